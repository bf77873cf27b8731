"""A keeper hands the exec gate's listener over later than the host waits for it (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.host.engine import Engine
from holdfast.host.exec_gate import gate
from holdfast.host.lifecycle.prepare import NewSession
from holdfast.host.processes.halt import execution
from holdfast.host.session.session import Session
from tests.support.installed_copy import engine, eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every keeper is late."""
    monkeypatch.setattr(gate, "LISTENER_S", 0.0)


def hosts(path: Path, *lives: Callable[[Engine], Awaitable[None]]) -> None:
    """Runs several hosts, one after the other; the last host ends all sessions."""

    async def main() -> None:
        for number, life in enumerate(lives, 1):
            async with engine(path) as made:
                try:
                    await life(made)
                finally:
                    for session in list(made.sessions.values()) if number == len(lives) else ():
                        await made.halter.end(execution(session))
                        # A keeper waits until a host has taken the exit code.
                        await eventually(lambda: not made.sessions, "the end of the session")

    asyncio.run(main())


def program(directory: Path) -> NewSession:
    """Starts programs, one at a time, until the file `go` exists."""
    work = directory / "work"  # beside the state, which no session sees
    work.mkdir()
    script = "echo begun; while [ ! -e go ]; do /bin/sleep 0.01; done; /bin/echo free; read x"
    env = {"PATH": "/usr/bin:/bin", "HOME": "/"}
    argv = ("sh", "-c", script)
    return NewSession(argv, str(work), env, umask=0o022, contained=True, gate="exec")


def shown(session: Session) -> bytes:
    return session.ring.copy(session.ring.start, session.ring.head) or b""


async def goes_on(session: Session, directory: Path) -> None:
    """The session's programs start, and the policy judges them."""
    (directory / "work" / "go").touch()
    await eventually(lambda: b"free" in shown(session), "the last program")
    assert session.layout["gate"] == "exec"
    assert "shown to the policy" in session.layout["gate_says"]
    assert session.layout["says"].count("the policy") == 1


def test_p4_a_new_session_is_gated_when_its_listener_comes_late(tmp_path: Path) -> None:
    async def life(made: Engine) -> None:
        await goes_on(await made.create(program(tmp_path), "ann"), tmp_path)

    hosts(tmp_path, life)


def test_p4_execs_that_wait_while_the_host_restarts_go_on_when_the_listener_comes_late(
    tmp_path: Path,
) -> None:
    async def first(made: Engine) -> None:
        session = await made.create(program(tmp_path), "ann")
        await eventually(lambda: b"begun" in shown(session), "the first program")

    async def second(made: Engine) -> None:
        [session] = made.sessions.values()
        await goes_on(session, tmp_path)

    hosts(tmp_path, first, second)
