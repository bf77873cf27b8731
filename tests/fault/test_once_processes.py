"""A9: commands with an idempotency key whose host and client die; new processes retry.

Each command is a process of its own (`holdfast run --once`, `holdfast send --once`). The host dies
at a probe around the act, and the client is killed too. Then three new processes ask again with the
same key, two of them at the same time. The checkers judge all outcomes of all processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkers.history import Outcome, Sent, check_input
from tests.support.checkers.runs import End, Ran, check_runs
from tests.support.stage import DEADLINE_S, Stage
from tests.support.workload import STOP

GROUPS = ("host.journal.appending", "host.journal.appended", "host.journal.durable")
# The second group of entries has the outcome.
PROBES = (*GROUPS, "host.act.sending", "host.act.sent", *(f"{name}#2" for name in GROUPS))
RUN_PROBES = (*PROBES, "host.run.written", "host.run.typed")
UNKNOWN = 8  # the exit code of an unknown outcome


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage("[host]\naway_s = 120.0\n")
    made.autostart(False)
    made.start_host()
    try:
        yield made
    finally:
        made.close()


def answers(stage: Stage, probe: str, *command: str) -> Iterator[tuple[int, bytes]]:
    """Exit code and output of each process that is left to tell them."""
    armed = Path(stage.directory, f"armed-{probe}")
    stage.kill_host()
    stage.start_host(f"when:{armed},kill@{probe}")
    armed.touch()
    pid, first = stage.host, stage.cli(*command)
    stage.pump.until(lambda: not stage.running(pid), f"the host dies at {probe}")
    assert stage.host_ended() == -signal.SIGKILL
    first.kill()
    stage.finish(first)
    stage.start_host()
    for one in (stage.cli(*command), stage.cli(*command)):
        yield stage.finish(one)[:2]
    yield stage.finish(stage.cli(*command))[:2]


def test_a9_retried_runs_of_new_processes_have_one_effect_and_one_outcome(stage: Stage) -> None:
    effects = Path(stage.directory, "effects")
    stage.new("shell", ["bash"])
    codes, history = {n: n % 5 for n in range(len(RUN_PROBES))}, []
    for number, probe in enumerate(RUN_PROBES):
        text = f"echo {number} >>{effects}; echo {number}; (exit {codes[number]})"
        command = ("run", "shell", "--json", "--once", f"run-{number}", "--", text)
        for _, out in answers(stage, probe, *command):
            told = json.loads(out)
            end = End.UNKNOWN if told.get("error", {}).get("code") == UNKNOWN else End.REFUSED
            if "error" not in told:
                end = End.DONE
            code, output = told.get("exit_code"), str(told.get("data")).replace("\r", "")
            history.append(Ran(number, end, f"{probe}: {told}", code, output))
    stage.ask("wait", session="shell", timeout=DEADLINE_S, **{"for": "idle"})
    found = [int(line) for line in effects.read_text().split()]
    assert check_runs(history, found, codes) == []
    unknown = [ran for ran in history if ran.end is not End.DONE]
    assert not unknown, "the keeper knows what it took"


def test_a9_retried_sends_of_new_processes_arrive_once_and_in_order(stage: Stage) -> None:
    log = Path(stage.directory, "received")
    stage.work("program", "record", str(log), 0)
    history = []
    for number, probe in enumerate(PROBES, 1):
        data = f"<{number} {probe}>"
        command = ("send", "program", data, "--once", f"send-{number}")
        codes = {code for code, _ in answers(stage, probe, *command)}
        assert codes == {0}, "the keeper knows what it took"
        history.append(Sent(1, number, data.encode(), Outcome.ACKED))
    stage.ask("send", session="program", text=STOP.decode(), keys=[])
    assert stage.exit_code("program") == 0
    assert check_input(history, log.read_bytes().removesuffix(STOP)) == []


def test_a9_a_retry_waits_for_a_run_that_the_shell_has_not_begun_yet(stage: Stage) -> None:
    made = stage.new("shell", ["bash"])
    stage.ask("wait", session="shell", timeout=DEADLINE_S, **{"for": "idle"})
    os.kill(made["pid"], signal.SIGSTOP)

    def begin(count: int) -> subprocess.Popen[bytes]:
        """Start a process that asks; `count` of them wait for the answer now."""
        asking = stage.cli("run", "shell", "--once", "slow", "--", "echo slow; (exit 9)")
        stage.pump.until(
            lambda: (
                stage.ask("stats")["under_way"].get("run", 0) == count or asking.poll() is not None
            ),
            f"{count} processes that ask",
        )
        return asking

    commands = [begin(1), begin(2)]
    os.kill(made["pid"], signal.SIGCONT)
    assert [stage.finish(one)[:2] for one in commands] == [(9, b"slow\n")] * 2
