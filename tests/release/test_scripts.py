"""The scripts that prepare a run of the tests, with stand-ins for the programs that they use."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
SETUP = """
here=$(cd "$(dirname "$0")" && pwd) venv=$here/venv
say() { echo "$@"; }
apt_install() { :; }
setup() { :; }
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(*command: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **more}
    )


@pytest.mark.parametrize(
    ("criu", "tests", "ci", "code"), [(0, 0, "1", 0), (1, 0, "1", 1), (1, 0, "", 0), (0, 5, "1", 5)]
)
def test_a_part_of_the_tests_is_not_green_in_ci_without_criu(
    tmp_path: Path, criu: int, tests: int, ci: str, code: int
) -> None:
    shutil.copy(SOURCE / "check", tmp_path)
    write(tmp_path / "scripts" / "setup.sh", SETUP)
    for name in ("etcd", "xterm", "playwright", "agents", "openhands"):
        write(tmp_path / "scripts" / name, "exit 0")
    write(tmp_path / "scripts" / "criu", f"exit {criu}")
    write(tmp_path / "venv" / "bin" / "python", f"exit {tests}")
    assert run(tmp_path / "check", "tests/core", CI=ci).returncode == code


def trial(directory: Path, dump: str, restore: str) -> tuple[bool, bool]:
    """Whether scripts/criu accepts a CRIU with these commands, and whether it ended the program."""
    shutil.copy(SOURCE / "scripts" / "criu", directory)
    killed = directory / "killed"
    write(
        directory / "debian.sh",
        f"""place={directory}
give_up() {{ exit 1; }}
kill() {{ touch {killed}; command kill "$@"; }}
main() {{ trial; }}""",
    )
    write(directory / "bin" / "criu", f"case $1 in dump) {dump} ;; *) {restore} ;; esac")
    return run("sh", "-eu", directory / "criu").returncode == 0, killed.exists()


@pytest.mark.parametrize(
    ("dump", "restore", "works", "killed"),
    [
        ("exit 1", "exit 0", False, True),
        ("kill -9 $3", "exit 1", False, False),
    ],
)
def test_a_failed_trial_of_criu_ends_no_foreign_process(
    tmp_path: Path, dump: str, restore: str, works: bool, killed: bool
) -> None:
    """After a dump the number is free, and may be another program's."""
    assert trial(tmp_path, dump, restore) == (works, killed)


def test_a_run_after_the_pinned_packages_are_back_takes_them(tmp_path: Path) -> None:
    scripts, mirror, tools = tmp_path / "scripts", tmp_path / "mirror", tmp_path / "tools"
    mirror.mkdir()
    scripts.mkdir()
    shutil.copy(SOURCE / "scripts" / "debian.sh", scripts)
    write(
        scripts / "thing",
        f"""name=thing title=Thing packages=thing needed=.* suites=sid kept=/nonexistent
. {scripts}/debian.sh
mirrors() {{ echo http://mirror; }}
newest() {{ mkdir -p "$place/apt"; cp {tmp_path}/newest "$place/apt/lock"; echo newest; }}
finish() {{ echo finished; }}
main "$@\"""",
    )
    for name in ("apt-get", "sha256sum"):
        if not shutil.which(name):
            pytest.skip(f"no {name}")
    write(tools / "dpkg", "echo amd64")
    write(tools / "apt-get", "exit 1")
    write(tools / "dpkg-deb", 'cp "$2" "$3"')
    write(tools / "curl", f'cp "{mirror}/$(basename "$6")" "$5" 2>/dev/null')

    def line(version: int) -> str:
        digest = hashlib.sha256(f"{version}".encode()).hexdigest()
        return f"thing_{version}_amd64.deb {digest} pool/thing_{version}_amd64.deb\n"

    def took() -> tuple[list[str], list[str]]:
        made = run("sh", scripts / "thing", PATH=f"{tools}:{os.environ['PATH']}")
        assert made.returncode == 0, made.stderr
        root = tmp_path / ".cache" / "thing" / "root"
        return sorted(path.name for path in root.iterdir()), made.stdout.split()

    (scripts / "thing.lock").write_text(line(1))
    (tmp_path / "newest").write_text(line(2))
    (mirror / "thing_2_amd64.deb").write_text("2")
    assert took() == (["thing_2_amd64.deb"], ["newest", "finished"])
    assert took() == (["thing_2_amd64.deb"], []), "the newest stay while the pinned are missing"
    (mirror / "thing_1_amd64.deb").write_text("1")
    assert took() == (["thing_1_amd64.deb"], ["finished"])
    assert took() == (["thing_1_amd64.deb"], [])
