"""S4, S9: the host dies at every named point of its code; one installation survives all of it.

KILLS says for each probe how to bring a host there. A probe without an entry, or an entry without a
probe, fails: a new important place in the host's code gets its kill at the same time.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.model.limits import KEEPER_PACKET_BYTES
from holdfast.transport import unix
from holdfast.wire import keeper as wire
from tests.support import workload
from tests.support.busy_machine import Busy
from tests.support.checkers.history import check_processes
from tests.support.clients import Lean
from tests.support.stage import SOURCE, Stage


class World:
    """A flooding session, a shell, and the history of both across all deaths."""

    def __init__(self) -> None:
        self.stage = stage = Stage("[host]\naway_s = 120.0\n[session]\npace_s = 60.0\n")
        self.rng = random.Random(8)
        stage.start_host()
        self.busy = Busy(stage, "busy", 31)
        stage.new("shell", ["bash"])
        stage.pump.until(
            lambda: stage.view("shell")["waiting"]["for"] == "idle", "the shell is at its prompt"
        )
        self.identities = stage.identities("busy", "shell")
        self.count = 0
        self.commands: list[subprocess.Popen[bytes]] = []
        stage.kill_host()

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}-{self.count}"

    def die_at(self, name: str, provoke: Callable[[World], None]) -> None:
        """Start a host that dies at `name`, bring it there, and start the next."""
        stage = self.stage
        log = f"{stage.directory}/passed"
        Path(log).unlink(missing_ok=True)
        stage.autostart(False)
        stage.start_host(f"log:{log},kill@{name}", wait=False)
        pid = stage.host
        provoke(self)
        stage.pump.until(
            lambda: not stage.running(pid),
            lambda: f"the host passes {name}; it passed {set(Path(log).read_text().split())}",
        )
        assert stage.host_ended() == -signal.SIGKILL
        assert Path(log).read_text().split()[-1] == name
        if provoke in (cli_run, cli_exec, cli_new):
            command = self.commands[-1]
            stage.pump.until(
                lambda: command.poll() is not None, "the command ends"
            )  # this starts the next host
        else:
            stage.start_host(wait=False)
        stage.find_host()


def no_provocation(world: World) -> None:
    """Starting is enough, or the flood is."""


def viewers_back(world: World) -> None:
    """Wait until the host serves or has died.

    It may have reached its point while it took over a session that had ended.
    """
    stage, pid = world.stage, world.stage.host
    stage.pump.until(lambda: stage.host_answers() or not stage.running(pid), "the host answers")
    stage.pump.until(
        lambda: all(v.live for v in world.busy.viewers) or not stage.running(pid),
        "viewers are back",
    )


def keys(world: World) -> None:
    for _ in range(20):
        world.busy.type(world.rng)
        world.stage.pump.turn()


def another_viewer(world: World) -> None:
    world.busy.viewers.append(Lean(world.stage, "busy"))


def quiet_output(world: World) -> None:
    """Type a line in the shell: a second later the host stores the screen."""
    viewers_back(world)
    typist = Lean(world.stage, "shell")
    typist.type(b"true\r")
    pid = world.stage.host
    world.stage.pump.until(lambda: typist.settled or not world.stage.running(pid), "it is typed")
    typist.kill()


def question(world: World) -> None:
    """A program queries its terminal: `check_question` starts it."""


def cli_new(world: World) -> None:
    viewers_back(world)
    name = world.fresh("made")
    world.commands.append(world.stage.cli("new", name, "--no-attach", "--", "sleep", "1000"))


def cli_run(world: World) -> None:
    viewers_back(world)
    world.stage.autostart(True)
    name = world.fresh("run")
    world.commands.append(
        world.stage.cli(
            "run",
            "shell",
            "--",
            f"echo once >> {world.stage.directory}/{name}; echo {name}; (exit 17)",
        )
    )


def cli_exec(world: World) -> None:
    """A command whose program the gate has to judge: read, and not answered when the host dies."""
    viewers_back(world)
    world.stage.autostart(True)
    name = world.fresh("run")
    world.commands.append(
        world.stage.cli(
            "run",
            "shell",
            "--",
            f"/bin/sh -c 'echo once >> {world.stage.directory}/{name}'; "
            f"/bin/echo {name}; (exit 17)",
        )
    )


def program_ends(world: World) -> None:
    viewers_back(world)
    typist = Lean(world.stage, "leaver")
    typist.type(workload.STOP)
    pid = world.stage.host
    world.stage.pump.until(lambda: typist.settled or not world.stage.running(pid), "it is typed")
    typist.kill()


def broken_link(world: World) -> None:
    """Another process claims the keeper, so that the keeper drops the host."""
    viewers_back(world)
    stage = world.stage
    path = f"{stage.home.run}/{stage.session('busy')['id']}.keeper"
    other = unix.connect(path, socket.SOCK_SEQPACKET)
    term = stage.ask("ping")["term"]
    other.send(wire.hello(term + 1))
    other.recv(KEEPER_PACKET_BYTES)
    other.close()


def hang_up(world: World) -> None:
    viewers_back(world)
    os.kill(world.stage.host, signal.SIGHUP)


KILLS: dict[str, Callable[[World], None]] = {
    "host.keeper.claimed": no_provocation,
    "host.adopted": no_provocation,
    "host.ready": no_provocation,
    "host.attach.answered": no_provocation,
    "host.backlog.sent": no_provocation,
    "host.output.sent": no_provocation,
    "host.screen.sent": another_viewer,
    "host.input.received": keys,
    "host.act.sending": keys,
    "host.act.sent": keys,
    "host.snapshot.saved": quiet_output,
    "host.snapshot.stored": quiet_output,
    "host.consumed.sent": quiet_output,
    "host.query.answered": question,
    "host.create.recorded": cli_new,
    "host.spawn.sent": cli_new,
    "host.create.spawned": cli_new,
    "host.run.written": cli_run,
    "host.gate.listener": no_provocation,
    "host.exec.read": cli_exec,
    "host.exec.paged": cli_exec,
    "host.exec.answer": cli_exec,
    "host.run.typed": cli_run,
    "host.exit.seen": program_ends,
    "host.end.recorded": program_ends,
    "host.end.released": program_ends,
    "host.reclaiming": broken_link,
    "host.stopping": hang_up,
    "host.replacing": hang_up,
}


def probes_in_source() -> list[str]:
    """The name of every probe in the host's code, as often as it stands there."""
    found = []
    for path in sorted((SOURCE / "holdfast" / "host").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "probe"
            ):
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{path}: a probe's name is a literal"
                found.append(str(name.value))
    return found


def test_every_probe_of_the_host_has_its_kill() -> None:
    found = probes_in_source()
    assert sorted(found) == sorted(set(found)), "one call site, one name"
    # Killed in tests/host/storage/test_journal.py, tests/e2e/authority/test_invite.py,
    # test_relay_faults.py. Tests of limits wait for theirs: nothing is half done there.
    # tests/host/storage/test_spool.py crashes at every operation on the files of the spool.
    # Of recovery: tests/e2e/recovery/test_drain.py, test_reaper.py, test_fork.py, test_keep.py and
    # test_move.py, test_checkpoint.py.
    areas = (
        *("host.journal.", "host.join.", "host.uplink.", "host.limits.", "host.spool."),
        *("host.drain.", "host.evict.", "host.fork.", "host.keep.", "host.wake."),
        "host.restore.",
        *("move.", "copies."),
    )
    elsewhere = [name for name in found if name.startswith(areas)]
    assert sorted(set(found) - set(elsewhere)) == sorted(KILLS)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        for command in made.commands:
            if command.poll() is None:
                command.kill()
            command.communicate()
        made.stage.close()


def prepare(world: World, name: str) -> None:
    """Make the preconditions of the kill, and leave no host running."""
    stage = world.stage
    if not stage.host:
        stage.start_host()
    stage.pump.until(
        lambda: not [s for s in stage.ask("ls")["sessions"] if s["liveness"]["process"] == "ended"],
        "the ended are buried",
    )
    if KILLS[name] is program_ends:
        stage.work("leaver", "record", f"{stage.directory}/leaver", 41)
    stage.autostart(False)
    stage.no_hosts()


@pytest.mark.parametrize("name", list(KILLS))
def test_s4_killed_at(world: World, name: str) -> None:
    if name.startswith(("host.exec.", "host.gate.")) and os.geteuid():
        pytest.skip("the plain session of an ordinary user has no exec gate")
    stage = world.stage
    prepare(world, name)
    commands = len(world.commands)
    if KILLS[name] is question:
        check_question(world, name)
        return
    world.die_at(name, KILLS[name])
    assert check_processes(world.identities, {n: stage.identity(n) for n in world.identities}) == []
    for command in world.commands[commands:]:
        code, out, err = stage.finish(command)
        last = f"{'made' if KILLS[name] is cli_new else 'run'}-{world.count}"
        if KILLS[name] in (cli_run, cli_exec):
            assert (code, out) == (17, last.encode() + b"\n"), err
            assert Path(stage.directory, last).read_text() == "once\n"
        else:
            check_made(world, last, code, err)
    if KILLS[name] is program_ends:
        stop = Lean(
            stage, "leaver"
        )  # the host may have died of another session's end before this was typed
        stop.type(workload.STOP)
        assert stage.exit_code("leaver") == 41
        stop.close()


def check_made(world: World, name: str, code: int, err: str) -> None:
    """The caller is told that the outcome is unknown; the session is whole, or does not exist."""
    stage = world.stage
    assert code in (0, 8), err
    found = [s for s in stage.ask("ls")["sessions"] if s["name"] == name]
    if found:
        [made] = found
        assert made["state"] in ("detached", "live") and stage.running(made["pid"])
        stage.ask("end", session=made["id"])
    else:
        stage.new(name, ["sleep", "1000"])
        assert stage.identity(name)
        stage.ask("end", session=name)


def check_question(world: World, probe: str) -> None:
    """The program gets its answers, each once, though the host died after the first."""
    stage = world.stage
    name = world.fresh("ask")
    path = f"{stage.directory}/{name}"

    def ask(_: World) -> None:
        viewers_back(world)
        with contextlib.suppress(HoldfastError):  # the host may be dead before its answer
            stage.new(name, workload.command("ask", path))

    world.die_at(probe, ask)
    viewer = Lean(stage, name).attached()
    stage.pump.until(
        lambda: any("ASKED" in line for line in stage.view(name)["lines"]), "all is answered"
    )
    viewer.type(workload.STOP)
    assert stage.exit_code(name) == 0
    assert Path(path).read_bytes() == b"".join(answer for _, answer in workload.QUERIES)


def test_s4_after_all_kills_nothing_was_lost(world: World) -> None:
    """The history of the session that lived through all of the above."""
    if not world.stage.host:
        world.stage.start_host()
    faults = world.busy.stop()
    assert [str(f) for f in faults[:10]] == []
    print(f"{world.stage.kills} kills at {len(KILLS)} probes")
