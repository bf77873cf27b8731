"""SWE-ReX on Holdfast sessions, with the real package swe-rex (M, P4, G2)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest

import holdfast.sync
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

pytest.importorskip("swerex", reason="the package swe-rex is not installed")

from holdfast_swerex import HoldfastDeployment, HoldfastRuntime
from swerex import exceptions
from swerex.runtime import abstract as rex

T = TypeVar("T")
PACKAGE = Path(__file__).resolve().parents[3] / "integrations" / "swerex"
HARNESS = """
import asyncio, signal, sys
from holdfast_swerex import HoldfastRuntime
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
async def main():
    runtime = HoldfastRuntime(operator="tester", name="outlives")
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.run_in_session(BashAction(command="answer=42"))
    print("ready", flush=True)
    signal.pause()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        made.people("bot", rights="execute", kind="agent")
        yield made


@pytest.fixture
def runtime(house: Installation) -> Iterator[HoldfastRuntime]:
    deployment = HoldfastDeployment(operator="tester", home=str(house.home), cwd=str(house.user))
    call(deployment.start())
    call(deployment.runtime.create_session(rex.CreateBashSessionRequest()))
    yield deployment.runtime
    call(deployment.stop())


def call(work: Coroutine[Any, Any, T]) -> T:
    """As SWE-agent calls: each time in a new event loop."""

    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


def run(runtime: HoldfastRuntime, command: str, **fields: Any) -> rex.BashObservation:
    return call(runtime.run_in_session(rex.BashAction(command=command, **fields)))


def test_m_commands_share_the_state_of_a_session(runtime: HoldfastRuntime) -> None:
    assert call(runtime.is_alive())
    assert run(runtime, "x=1; cd /; printf '  %s\\n\\n' a").output == "  a\n\n"
    assert run(runtime, "echo $x $PWD").output == "1 /\n"
    assert run(runtime, "(exit 3)", check="silent").exit_code == 3
    assert run(runtime, "(exit 3)", check="ignore").exit_code is None
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"why: .*exit code 3"):
        run(runtime, "(exit 3)", error_msg="why")
    with pytest.raises(exceptions.BashIncorrectSyntaxError):
        run(runtime, "echo $((")
    assert run(runtime, " \n").output == ""
    found = run(runtime, "echo one; echo ready-2; sleep 1000", expect=["never", "ready-[0-9]"])
    assert (found.output, found.expect_string) == ("one\n", "ready-[0-9]")
    call(runtime.run_in_session(rex.BashInterruptAction()))
    with pytest.raises(exceptions.SessionExistsError):
        call(runtime.create_session(rex.CreateBashSessionRequest()))
    ended = run(runtime, "exit 4", check="silent")
    assert (ended.exit_code, ended.failure_reason) == (4, "the session has ended")


def test_m_interactive_programs_and_interrupts(runtime: HoldfastRuntime) -> None:
    asks = "read -p 'name? ' name; echo hello $name; read -p 'more? '"
    first = run(runtime, asks, is_interactive_command=True, expect=[r"name\? $"])
    assert first.expect_string == r"name\? $"
    second = run(runtime, "ann", is_interactive_command=True, expect=[r"more\? $"])
    assert second.output == "hello ann\n"
    run(runtime, "no", is_interactive_quit=True)
    with pytest.raises(exceptions.CommandTimeoutError):
        run(runtime, "sleep 1000", timeout=0.5)
    call(runtime.run_in_session(rex.BashInterruptAction()))
    assert run(runtime, "echo free").output == "free\n"
    with pytest.raises(exceptions.CommandTimeoutError):
        run(runtime, "sh -c 'trap \"\" INT; sleep 1000; :'", timeout=0.5)
    call(runtime.run_in_session(rex.BashInterruptAction(n_retry=1)))
    assert run(runtime, "echo free").output.startswith("holdfast: killed sh")
    assert run(runtime, "echo free").output == "free\n"


def test_m_files_and_commands_outside_of_a_session(
    runtime: HoldfastRuntime, tmp_path: Path
) -> None:
    there = tmp_path / "new" / "file"
    call(runtime.write_file(rex.WriteFileRequest(path=str(there), content="grüße")))
    assert there.read_text() == "grüße"
    assert call(runtime.read_file(rex.ReadFileRequest(path=str(there)))).content == "grüße"
    with pytest.raises(FileNotFoundError):
        call(runtime.read_file(rex.ReadFileRequest(path=f"{there}.absent")))
    (tmp_path / "new" / "empty").mkdir()
    up = rex.UploadRequest(source_path=str(tmp_path / "new"), target_path=str(tmp_path / "copy"))
    call(runtime.upload(up))
    assert (tmp_path / "copy" / "file").read_text() == "grüße"
    assert list((tmp_path / "copy" / "empty").iterdir()) == []

    both = rex.Command(command="echo $A; pwd; echo wrong >&2; exit 5", shell=True)
    both.env, both.cwd = {"A": "a b", "PATH": "/usr/bin:/bin"}, str(tmp_path)
    done = call(runtime.execute(both))
    assert (done.stdout, done.stderr, done.exit_code) == (f"a b\n{tmp_path}\n", "wrong\n", 5)
    with pytest.raises(exceptions.NonZeroExitCodeError):
        call(runtime.execute(rex.Command(command=["false"], check=True)))
    with pytest.raises(exceptions.CommandTimeoutError):
        call(runtime.execute(rex.Command(command=["sleep", "1000"], timeout=0.5)))
    assert call(runtime.execute(rex.Command(command=["echo", "-n", "x"]))).stdout == "x"


def test_p4_a_session_outlives_its_harness(house: Installation) -> None:
    env = {**house.env, "PYTHONPATH": f"{house.env['PYTHONPATH']}:{PACKAGE}"}
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS], env=env, cwd=house.user, stdout=subprocess.PIPE
    )
    assert harness.stdout is not None and harness.stdout.readline() == b"ready\n"
    harness.send_signal(signal.SIGKILL)
    harness.wait(DEADLINE_S)
    harness.stdout.close()
    again = HoldfastRuntime(operator="tester", home=str(house.home), name="outlives", keep=True)
    call(again.create_session(rex.CreateBashSessionRequest()))
    assert run(again, "echo $answer").output == "42\n"
    call(again.close())
    assert house.ok("run", "outlives-default", "--", "echo $answer").out == "42\n"
    house.end("outlives-default")


def test_g2_a_person_decides_takes_part_and_the_record_tells_them_apart(
    house: Installation,
) -> None:
    place = house.user / "task"
    place.mkdir()
    house.ready("task-default", "--contained", "--cwd", str(place))
    agent = HoldfastRuntime(
        operator="bot", home=str(house.home), name="task", keep=True, hold=DEADLINE_S
    )
    call(agent.create_session(rex.CreateBashSessionRequest()))

    def remove(answer: str) -> rex.BashObservation:
        seen: list[rex.BashObservation] = []
        command = (
            f"git worktree remove --force {answer}"  # not in a repository: git's exit code is 128
        )
        acting = Thread(target=lambda: seen.append(run(agent, command, check="silent")))
        acting.start()
        with holdfast.sync.connect(operator="ann", home=str(house.home)) as ann:
            (question,) = eventually(ann.approvals.list, "a question")
            getattr(ann.approvals, answer)(question.id)
        acting.join(DEADLINE_S)
        return seen[0]

    denied = remove("deny")
    assert denied.exit_code == 126 and denied.failure_reason
    assert denied.output.startswith("holdfast: ")
    assert remove("approve").exit_code == 128
    with holdfast.sync.connect(operator="ann", home=str(house.home)) as ann:
        session = ann.sessions.get("task-default")
        session.run("from=ann", turn="seize")
        session.turn.release()
        assert run(agent, "echo $from").output == "ann\n"
        acts = {(one.actor, one.content) for one in session.log()}
    assert acts >= {("ann", "from=ann"), ("bot", "echo $from")}, acts
    call(agent.close())
    house.end("task-default")
