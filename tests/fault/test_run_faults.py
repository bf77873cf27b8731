"""S4 for `run`, `send` and `wait`: the host dies while a command is under way.

The command runs once, its output is complete, its exit code is right.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.model.limits import CONNECT_WAIT_S
from tests.support import workload
from tests.support.checkers.history import difference
from tests.support.clients import Lean
from tests.support.stage import DEADLINE_S, SOON_S, Stage

PATIENT = "[host]\naway_s = 120.0\n[session]\npace_s = 60.0\n"

PRINTER = """
import os, sys
name, lines, code = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(name, "a") as f: f.write("once\\n")
line = b"%07d \\x1b[3%dmcolour\\x1b[0m \\r back %s\\n"
out = b"".join(line % (n, n % 8, b"x" * (n % 90)) for n in range(lines))
while out: out = out[os.write(1, out):]
sys.exit(code)
"""


def printed(lines: int) -> bytes:
    return b"".join(
        b"%07d \x1b[3%dmcolour\x1b[0m \r back %s\n" % (n, n % 8, b"x" * (n % 90))
        for n in range(lines)
    )


def shell(stage: Stage, name: str, program: str = "bash") -> None:
    stage.new(name, [program])
    stage.pump.until(
        lambda: stage.view(name)["waiting"]["for"] == "idle", f"{name} is at its prompt"
    )


def kill(stage: Stage) -> None:
    """Kill the serving host; there is none if the last command ended before it had to start one."""
    stage.json("up", "--detach")
    stage.find_host()
    stage.kill_host()


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s4_run_through_host_kills(stage: Stage) -> None:
    """Twelve commands of a megabyte, a host killed at a random moment of each, sometimes twice."""
    stage.start_host()
    shell(stage, "sh")
    Path(stage.directory, "print.py").write_text(PRINTER)
    rng = random.Random(4)
    identity = stage.identities("sh")
    kills = 0
    for n in range(12):
        lines = rng.choice((100, 15_000, 15_000))
        mark = f"{stage.directory}/ran-{n}"
        command = stage.cli(
            "run",
            "sh",
            "--",
            f"{sys.executable} -I -S {stage.directory}/print.py {mark} {lines} {n}",
            bufsize=0,
        )
        assert command.stdout is not None
        out = bytearray()
        os.set_blocking(command.stdout.fileno(), False)
        due = sorted(rng.randrange(len(printed(lines))) for _ in range(rng.randint(1, 2)))
        if n % 3 == 0:
            stage.pump.during(rng.uniform(0, 0.4))  # around the start of the command
            kill(stage)
            kills += 1
            due = due[1:]
        end = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < end, f"run {n} does not come back; {len(out)} bytes"
            piece = command.stdout.read(65536)
            if piece == b"":
                break
            if piece is None:
                stage.pump.turn(0.005)
                continue
            out += piece
            if due and len(out) >= due[0]:
                due.pop(0)
                kill(stage)
                kills += 1
        code, _, err = stage.finish(command)
        assert (code, err) == (n, ""), f"run {n}"
        assert difference(bytes(out), printed(lines)) == "", f"run {n}"
        assert Path(mark).read_text() == "once\n", f"run {n} ran more than once"
    stage.json("up", "--detach")
    assert stage.identity("sh") == identity["sh"]
    print(f"{kills} kills")


def test_s4_run_of_an_exiting_shell_through_a_host_kill(stage: Stage) -> None:
    """`exit` in a `run` ends the session; the host that typed it dies before its report."""
    stage.start_host()
    shell(stage, "sh")
    command = stage.cli(
        "run",
        "sh",
        "--",
        f"echo going; touch {stage.directory}/went; "
        f"while [ -e {stage.directory}/went ]; do :; done; exit 23",
    )
    stage.pump.until(lambda: Path(stage.directory, "went").exists(), "it runs")
    stage.kill_host()
    Path(stage.directory, "went").unlink()
    code, out, err = stage.finish(command)
    assert (code, out) == (23, b"going\n"), err
    stage.find_host()
    assert stage.exit_code("sh") == 23


def test_s4_a_long_run_outlives_its_host(stage: Stage) -> None:
    """Longer than a client waits for a host to start.

    That wait begins when the host dies, not when the command began.
    """
    stage.start_host()
    shell(stage, "sh")
    command = stage.cli(
        "run",
        "sh",
        "--",
        f"echo begun; until [ -e {stage.directory}/go ]; do sleep 0.1; done; echo done; (exit 9)",
    )
    stage.pump.during(CONNECT_WAIT_S + 1)
    stage.kill_host()
    stage.find_host()
    Path(stage.directory, "go").touch()
    code, out, err = stage.finish(command)
    assert (code, out) == (9, b"begun\ndone\n"), err


def test_s4_wait_and_send_outlive_the_host(stage: Stage) -> None:
    stage.start_host()
    stage.work("rec", "record", f"{stage.directory}/typed", 12)
    waiting = stage.cli("wait", "rec", "--for", "exit", "--json")
    sent = []
    for n in range(6):
        sent.append(stage.cli("send", "rec", f"<{n}>", "--json"))
        if n % 2:
            kill(stage)
        code, _, err = stage.finish(sent[-1])
        assert code == 0, err
    stage.finish(stage.cli("send", "rec", workload.STOP.decode()))
    code, out, err = stage.finish(waiting)
    assert code == 0 and b'"exit_code": 12' in out, (out, err)
    assert Path(stage.directory, "typed").read_bytes() == b"".join(b"<%d>" % n for n in range(6))


def test_a7_an_unfinished_line_keeps_its_operator_after_a_host_kill(stage: Stage) -> None:
    """The next host must not type a command into an unfinished line of an operator."""
    stage.start_host()
    shell(stage, "sh")
    client = Lean(stage, "sh").attached()
    client.type(b"rm -rf precious ")
    stage.pump.until(
        lambda: client.settled and "precious" in "".join(stage.view("sh")["lines"]), "it is typed"
    )
    stage.kill_host()
    stage.start_host()
    code, out, err = stage.finish(stage.cli("run", "sh", "--", "echo ran"))
    assert code == 255 and b"ran" not in out, (code, out)
    assert "typed" in err, err
    stage.pump.until(lambda: client.live, "the client is back")
    client.type(b"\x03")
    stage.pump.until(
        lambda: stage.finish(stage.cli("run", "sh", "--", "echo ran"))[:2] == (0, b"ran\n"),
        "the line was given up",
    )


def test_s4_unread_input_is_kept_through_host_kills(stage: Stage) -> None:
    """Input beyond the limits of keeper and host is refused.

    The rest arrives once and in order when the program reads at last.
    """
    stage.start_host()
    path = f"{stage.directory}/typed"
    gate = f"{path}.gate"
    os.mkfifo(gate)
    program = (
        f"import sys; sys.argv = ['w', 'record', {path!r}, '8']\n"
        f"import tty; tty.setraw(0); print('READY', end='\\r\\n', flush=True)\n"
        f"open({gate!r}).close()\n"
        f"exec(compile(open({workload.__file__!r}).read(), 'w', 'exec'))\n"
    )
    stage.new("deaf", [sys.executable, "-I", "-S", "-c", program])
    stage.pump.until(lambda: stage.session("deaf")["output"]["end"] >= 7, "the program is there")
    client = Lean(stage, "deaf").attached()
    for n in range(1, 61):
        client.type(workload.tagged(client.client, n, 30_000))
        stage.pump.turn(0.001)
        if n in (10, 20, 35, 50):
            stage.kill_host()
            stage.start_host(wait=False)
            stage.pump.until(lambda: client.live, "the client is back")
    stage.pump.during(0.3)
    os.close(os.open(gate, os.O_WRONLY))
    stage.pump.until(
        lambda: client.settled,
        lambda: f"all is taken or refused: acked {client.acked}, refused {len(client.refused)}",
    )
    client.type(workload.tagged(client.client, client.number + 1, 30))
    client.type(workload.STOP)
    assert stage.exit_code("deaf") == 8
    received = Path(path).read_bytes()
    from tests.support.checkers.history import check_input

    history = [one for one in client.history() if one.data != workload.STOP]
    assert [str(f) for f in check_input(history, received)] == []
    print(f"{len(received)} bytes taken, {len(client.refused)} inputs refused")


def test_a_session_that_does_not_read_can_be_ended(stage: Stage) -> None:
    """Signals do not wait behind unread input."""
    stage.start_host()
    stage.new("deaf", ["sh", "-c", "stty raw -echo; echo READY; trap '' HUP; sleep 1000"])
    stage.pump.until(lambda: stage.session("deaf")["output"]["end"] >= 6, "the program is there")
    client = Lean(stage, "deaf").attached()
    for n in range(1, 41):
        client.type(workload.tagged(client.client, n, 60_000))
    stage.pump.until(lambda: client.refused, "too much was typed")
    begun = time.monotonic()
    result = stage.ask("end", session="deaf")
    assert (
        result["signal"] in ("SIGTERM", "SIGKILL", "SIGHUP") and time.monotonic() - begun < SOON_S
    )


def test_s4_a_host_killed_while_it_starts_is_started_again(stage: Stage) -> None:
    """Two hosts in a row. A host may be quicker than the kill; then the command is run again."""
    stage.start_host()
    shell(stage, "sh")
    for _ in range(10):
        stage.kill_host()
        command = stage.cli("run", "sh", "--", "echo through")
        killed: list[set[int]] = []
        while len(killed) < 2 and command.poll() is None:
            if found := set(stage.hosts()).difference(*killed):
                killed.append(found)
                for pid in found:
                    os.kill(pid, signal.SIGKILL)
            stage.pump.turn()
        code, out, err = stage.finish(command)
        assert (code, out, err) == (0, b"through\n", "")
        stage.finish(stage.cli("ls"))  # starts a host if the last kill came after the answer
        stage.find_host()
        if len(killed) == 2:
            return
    raise AssertionError("no two hosts could be killed while they started")


def test_s4_the_host_that_another_client_starts_is_killed(stage: Stage) -> None:
    """Our host has left in favour of that one; when it is gone, there is one more try."""
    stage.start_host()
    shell(stage, "sh")
    stage.kill_host()
    other = stage.start_host(
        "stop@host.adopted", wait=False
    )  # has the lock, and does not listen yet
    stage.pump.until(
        lambda: (
            os.path.exists(f"{stage.home.run}/host.lock")
            and Path(stage.home.run, "host.lock").read_text() == f"{other}\n"
        ),
        "the other host has the lock",
    )
    command = stage.cli("run", "sh", "--", "echo through")
    stage.pump.until(stage.hosts, "our host starts")
    stage.pump.until(lambda: not stage.hosts(), "our host leaves")
    stage.kill_host()
    code, out, err = stage.finish(command)
    assert (code, out, err) == (0, b"through\n", "")
    stage.find_host()
