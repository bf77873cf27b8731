"""A host with contained sessions: made, run in, halted, ended; what they do not see; what stays behind: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.home import Home, config, prepare
from holdfast.host import layouts
from holdfast.host.engine import Engine
from holdfast.host.halt import execution
from holdfast.host.session import Session
from holdfast.host.store import Store
from holdfast.wire.keeper import Containment

WAIT_S = 120.0


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as top:
        made = Home(f"{top}/h", f"{top}/h/config.toml", True)
        prepare(made)
        Path(top, "h", "key").write_text("the machine's key")
        yield made


def request(*argv: str, contained: bool) -> dict[str, Any]:
    return {
        "argv": list(argv),
        "cwd": "/",
        "env": {"PATH": "/usr/bin:/bin", "HOME": "/"},
        "size": None,
        "umask": 0o022,
        "contained": contained,
        "gate": "input",
    }  # nobody here is a known operator


async def engine_for(home: Home) -> Engine:
    engine = Engine(home, config.settings(config.load(home.config)), Store(home.database))
    engine.store.start(asyncio.get_running_loop())
    await engine.adopt_all()
    return engine


async def until(condition: Any, what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.01)  # a poll with a deadline


def shown(session: Session) -> bytes:
    return session.ring.copy(session.ring.start, session.ring.head) or b""


def groups_left(engine: Engine) -> bool:
    return any(os.path.exists(base) for base in engine.halter.groups._bases)


async def ended(engine: Engine, session: Session) -> None:
    await asyncio.wait_for(session.ended, WAIT_S)
    await until(lambda: not engine._burying, "its burial")


def test_a4_a_contained_session_from_its_making_to_its_end(home: Home) -> None:
    async def story() -> None:
        engine = await engine_for(home)
        session = await engine.create(request("bash", contained=True), "someone")
        try:
            await session.type(
                "someone",
                7,
                1,
                f"ls -A {home.state} {home.run}; cat {home.state}/key; echo $TMUX_TMPDIR; echo pid=$$ DO''NE\n".encode(),
            )
            await until(lambda: b"DONE" in shown(session), "its answer")
            out = shown(session)
            assert (
                b"pid=2 DONE" in out
                and b"the machine's key" not in out
                and b"host.sock" not in out
                and b"nursery.sock" not in out
            )
            assert session.directory.encode() in out
            waits, _, _ = await session.attention()
            assert waits, "the host still sees what its terminal waits for"
            said = await engine.halter.layout(execution(session))
            assert said["layout"] == "contained" and said["halt"] != "best effort"
            halted = await engine.halter.halt(execution(session), lambda: session.ring.accepted)
            assert (
                halted.complete
                and halted.pids == (session.record.root_pid,)
                and halted.last_act == 1
            )
            assert await engine.halter.halted(execution(session)) == said["halt"]
            assert (await engine.halter.resume(execution(session))).complete
            await session.type("someone", 7, 2, b"exit 5\n")
            await ended(engine, session)
            assert session.record.exit_code == 5
            assert not groups_left(engine)
        finally:
            await engine.halter.end(execution(session))
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(story())


def test_a4_a_halted_session_is_found_halted_by_the_next_host_and_can_be_ended(home: Home) -> None:
    async def story() -> None:
        engine = await engine_for(home)
        session = await engine.create(
            request("sh", "-c", "(setsid sleep 631 &); exec cat", contained=False), "someone"
        )
        await engine.halter.halt(execution(session))
        await engine.close()
        engine = await engine_for(home)
        session = engine.sessions[session.id]
        try:
            assert await engine.halter.halted(execution(session)) is not None
            assert await engine.halter.end(execution(session))
            await ended(engine, session)
            assert session.record.exit_code == 128 + signal.SIGKILL
            assert not groups_left(engine)
        finally:
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(story())


def test_t4_what_is_hidden(home: Home) -> None:
    made = layouts.containment(home, f"{home.run}/s/x")
    assert (
        isinstance(made, Containment)
        and home.state.encode() in made.hide
        and made.keep == (f"{home.run}/s/x".encode(),)
    )
    assert made.fresh == (f"/run/user/{os.geteuid()}".encode(),)
    apart = layouts.containment(
        Home("/state/holdfast", f"{home.state}/config.toml", False), "/state/holdfast/run/s/x"
    )
    assert home.state.encode() in apart.hide, (
        "what is configured may name programs that the host runs: it cannot be written inside"
    )
