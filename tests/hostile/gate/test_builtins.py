"""Builtins of a shell that change later words, or write files, are asked about (P4).

No exec shows them: the shell does it all by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.approving import approve, waiting
from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("builtins")) as made:
        made.people("ann")
        made.people("bot", rights="execute,observe", kind="agent")
        yield made


def held(hf: Installation, session: str, text: str) -> None:
    done = hf.cli("--as", "bot", "run", session, "--hold", "0", "--", text)
    assert done.rc == 255 and "waits for approval" in done.err, done
    approve(hf, waiting(hf)[0], "deny")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("gate", ["input", "exec"])
def test_p4_builtins_that_shape_or_write_are_asked_about(
    hf: Installation, tmp_path: Path, shell: str, gate: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    project, outside = tmp_path / "project", tmp_path / "outside"
    (outside / "tree").mkdir(parents=True)
    project.mkdir()
    (outside / "file").write_text("mine")
    name = f"{shell}-{gate}"
    place = ("--cwd", str(project), "--share", f"{outside}:rw")
    hf.new(name, "--contained", "--gate", gate, *place, "--", shell)
    texts = {
        "bash": (
            f"history -c; history -s evil; history -w {outside}/file",
            f"HISTFILE={outside}/file",
            f"hash -p /bin/rm ls; ls -r {outside}/tree",
            f"trap 'rm -r {outside}/tree' CHLD",
            f"declare -n x=HISTFILE; x={outside}/file",
        ),
        "zsh": (
            f"fc -W {outside}/file",
            f"HISTFILE={outside}/file",
            f"hash ls=/bin/rm; ls -r {outside}/tree",
            f"TRAPCHLD() {{ rm -r {outside}/tree }}",
            f"STTY='sane; rm -r {outside}/tree' true",
        ),
    }
    for text in texts[shell]:
        held(hf, name, text)
    assert hf.ok("--as", "bot", "run", name, "--", "echo still here").out == "still here\n"
    assert (outside / "tree").is_dir() and (outside / "file").read_text() == "mine"
