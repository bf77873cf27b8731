"""The programs in examples/ and `run --on`, against machines behind a real relay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands.afar import Afar, join_relay, pair
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

EXAMPLES = Path(__file__).parents[3] / "examples"
MORE = 4  # machines beside `box`; each costs a host


@pytest.fixture(scope="module")
def machines(far: Afar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Installation]]:
    """Five machines: `box`, and `box-1` to `box-4`."""
    with ExitStack() as stack:
        made = [far.there]
        for number in range(1, MORE + 1):
            other = stack.enter_context(installation(tmp_path_factory.mktemp("other")))
            join_relay(other, far.relay)
            pair(other, far.here, f"box-{number}")
            made.append(other)
        yield made


def start(hf: Installation, name: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *args],
        env={**hf.env, "PYTHONUNBUFFERED": "1"},
        cwd=hf.user,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_build_is_watched_through_a_relay(far: Afar) -> None:
    far.there.ready("build")
    program = start(far.here, "watch_build.py", "box/build", "echo made; (exit 2)")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert out == "made\n" and "the build ended with 2" in err
    assert program.returncode == 2


def test_a_prompt_is_handed_to_a_person_through_a_relay(far: Afar) -> None:
    far.there.people("example-bob")
    far.there.ready("asks")
    program = start(far.here, "ask_a_person.py", "box/asks", "read -r answer", "example-bob")
    assert program.stdout is not None
    assert "waits for input" in program.stdout.readline()
    assert "example-bob has the turn" in program.stdout.readline()
    far.there.quick("--as", "example-bob", "send", "asks", "yes", "--enter")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert "ended with 0" in out, err


def test_m_one_command_on_five_machines(far: Afar, machines: list[Installation]) -> None:
    out, err = start(far.here, "run_on_machines.py", "echo ran").communicate(timeout=DEADLINE_S)
    for name in ("box", "box-1", "box-2", "box-3", "box-4"):
        assert f"{name}: exit code 0\n" in out, err
    assert out.count("ran\n") == len(machines), err
    for machine in machines:
        own = [one for one in machine.ls("--all") if one["state"] == "ended"]
        assert own, "the session has ended, and its record is there"


def test_m_a_command_has_a_session_of_its_own_on_a_machine(far: Afar) -> None:
    before = {one["id"] for one in far.there.ls("--all")}
    done = far.here.cli("run", "--on", "box", "--", "echo once; exit 7")
    assert (done.rc, "once" in done.out) == (7, True), done
    (own,) = [one for one in far.there.ls("--all") if one["id"] not in before]
    assert own["state"] == "ended" and own["exit_code"] == 7
    piped = far.here.cli("run", "--on", "box", "--", "cat", stdin=b"through\n")
    assert (piped.rc, piped.out) == (0, "through\n"), piped
    eventually(
        lambda: not [one for one in far.there.ls() if one["id"] not in before],
        "the session of the second command to end",
    )
    wrong = far.here.cli("run", "asks", "--on", "box", "--", "true")
    assert wrong.rc == 2
