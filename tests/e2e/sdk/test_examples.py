"""The programs in examples/ run as printed, against a real host."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.installation import DEADLINE_S, Installation

EXAMPLES = Path(__file__).parents[3] / "examples"


def start(hf: Installation, name: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *args],
        env={**hf.env, "PYTHONUNBUFFERED": "1"},
        cwd=hf.user,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_build_is_watched(hf: Installation) -> None:
    hf.ready("build")
    out, err = start(hf, "watch_build.py", "build", "echo made; (exit 2)").communicate(
        timeout=DEADLINE_S
    )
    assert out == "made\n"
    assert "started as hf:" in err and "the build ended with 2" in err


def test_a_prompt_is_handed_to_a_person(hf: Installation) -> None:
    hf.people("example-ann")
    hf.ready("asks")
    program = start(hf, "ask_a_person.py", "asks", "read -r answer", "example-ann")
    assert program.stdout is not None
    assert "waits for input" in program.stdout.readline()
    assert "example-ann has the turn" in program.stdout.readline()
    hf.quick("--as", "example-ann", "send", "asks", "yes", "--enter")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert "ended with 0" in out, err


def test_one_command_in_many_sessions(hf: Installation) -> None:
    for name in ("many-1", "many-2"):
        hf.ready(name)
    out, err = start(hf, "many_sessions.py", "echo here").communicate(timeout=DEADLINE_S)
    assert "many-1: done, exit code 0\nhere" in out and "many-2: done, exit code 0\nhere" in out, (
        err
    )


def test_an_artifact_is_uploaded_and_unpacked(hf: Installation, tmp_path: Path) -> None:
    there = hf.user / "artifacts"
    there.mkdir()
    hf.ready("artifact", f"--cwd={there}")
    archive = artifact(tmp_path)
    out, err = start(hf, "upload_artifact.py", "artifact", str(archive)).communicate(
        timeout=DEADLINE_S
    )
    assert f"{there}/made.tar.gz: {archive.stat().st_size} bytes" in out, err
    assert (there / "made").read_text() == "made of this"


def artifact(folder: Path) -> Path:
    (folder / "made").write_text("made of this")
    archive = folder / "made.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder / "made", "made")
    return archive


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_listed(path: Path) -> None:
    assert f"({path.name})" in (EXAMPLES / "README.md").read_text()
