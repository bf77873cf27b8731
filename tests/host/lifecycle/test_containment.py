"""Contained sessions: creation, halt, end, and hidden paths; no files remain afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.containment import network
from holdfast.core.containment.network import PASTA, SLIRP, Program
from holdfast.home import Home, prepare
from holdfast.home.settings import Settings
from holdfast.host.engine import Engine
from holdfast.host.lifecycle import prepare as making
from holdfast.host.lifecycle import retry
from holdfast.host.lifecycle.contained import plan
from holdfast.host.lifecycle.contained.plan import Wanted
from holdfast.host.lifecycle.nursery import NoNetwork
from holdfast.host.lifecycle.prepare import (
    APART,
    MOUNTED,
    TOGETHER,
    NewSession,
    session_directories,
)
from holdfast.host.processes.halt import execution
from holdfast.host.runtime import connectors
from holdfast.host.session.session import Session
from holdfast.host.storage.store import Store
from holdfast.model.errors import Impossible, Unavailable

WAIT_S = 120.0


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as top:
        made = Home(f"{top}/h", f"{top}/h/config.toml", True)
        prepare(made)
        Path(top, "h", "key").write_text("the machine's key")
        yield made


def request(*argv: str, contained: bool) -> NewSession:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/"}
    return NewSession(argv, "/", env, umask=0o022, contained=contained, gate="input")


async def engine_for(home: Home) -> Engine:
    engine = Engine(home, Settings.load(home), Store(home.database))
    engine.store.start()
    await engine.rediscovery.begin()
    await engine.adoptions.all()
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
    await engine._burying.wait(WAIT_S)


def test_a4_a_contained_session_from_its_making_to_its_end(home: Home) -> None:
    async def story() -> None:
        engine = await engine_for(home)
        session = await engine.create(request("bash", contained=True), "someone")
        try:
            await session.type(
                "someone",
                7,
                1,
                (
                    f"ls -A {home.state} {home.run}; cat {home.state}/key; echo pid=$$ DO''NE\n"
                ).encode(),
            )
            await until(lambda: b"DONE" in shown(session), "its answer")
            out = shown(session)
            assert (
                b"pid=3 DONE" in out
                and b"the machine's key" not in out
                and b"host.sock" not in out
                and b"nursery.sock" not in out
            )
            waits, _, _ = await session.attention()
            assert waits, "the host still sees the readers of its terminal"
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


def test_p4_the_directories_of_a_session(home: Home) -> None:
    readable, writable = Path(home.run, "r", "x"), Path(home.run, "s", "x")
    old = session_directories(home, "x", TOGETHER)
    assert old == (writable,) * 4 and not readable.exists()
    assert session_directories(home, "x", APART) == (readable, writable, readable, writable)
    mounted = session_directories(home, "x", MOUNTED)
    assert mounted[:2] == (readable, writable)
    assert mounted[2:] == (Path("/.holdfast/session"), Path("/.holdfast/session/own"))
    assert os.listdir(readable) == ["own"], "where the writable directory is mounted"
    for one in (readable, writable, readable / "own"):
        assert one.stat().st_mode & 0o777 == 0o700


def test_p4_a_session_of_an_earlier_build_reads_its_files_in_the_old_place(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell of an adopted session has the paths in memory."""

    async def story() -> None:
        engine = await engine_for(home)
        with monkeypatch.context() as patch:
            patch.setattr(making, "place_of_files", lambda contained: TOGETHER)
            old = (await engine.create(request("bash", contained=False), "someone")).id
        new = (await engine.create(request("bash", contained=False), "someone")).id
        await engine.close()
        engine = await engine_for(home)
        try:
            own, apart = Path(home.run, "s", old), Path(home.run, "r", new)
            assert engine.sessions[old].directories.readable == own
            assert engine.sessions[new].directories.readable == apart
            assert (own / "bash.rc").exists() and (apart / "bash.rc").exists()
            assert "bash.rc" not in os.listdir(f"{home.run}/r/{old}")
            for session in list(engine.sessions.values()):
                session.end_of.asked_for("someone")
                assert await engine.halter.end(execution(session))
                await ended(engine, session)
            assert not os.listdir(f"{home.run}/r") and not os.listdir(f"{home.run}/s")
        finally:
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(story())


def test_t4_a_workspace_exchanged_for_a_link_after_the_decision_is_refused(
    home: Home, tmp_path: Path
) -> None:
    """A policy may ask a person between the two, and code of another session may use the time."""
    work, private = tmp_path / "work", tmp_path / "private"
    work.mkdir()
    private.mkdir()

    async def story() -> None:
        engine = await engine_for(home)
        try:
            asked = request("true", contained=True)
            wanted = Wanted(str(work), asked.env, human=True)
            decision = await making.decide(engine, wanted)
            assert decision.tree is not None and decision.tree.top == str(work)
            work.rmdir()
            work.symlink_to(private)
            with pytest.raises(Unavailable, match="symbolic link"):
                await engine.create(replace(asked, decision=decision), "someone")
        finally:
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(story())


# ---------------------------------------------------------------- the machine changes meanwhile


async def made(engine: Engine, wanted: Wanted, *argv: str) -> Session:
    """A session, made as `new` makes it; ended and gone afterwards."""
    decision = await making.decide(engine, wanted)
    asked = replace(request(*argv, contained=True), decision=decision, env=dict(wanted.env))
    session = await engine.create(asked, "someone")
    try:
        await ended(engine, session)
    finally:
        await engine.halter.end(execution(session))
    return session


def staged(home: Home, story: Any) -> None:
    async def play() -> None:
        engine = await engine_for(home)
        try:
            await story(engine)
        finally:
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(play())


@pytest.mark.parametrize("replaced", ["by nothing", "by a link"])
def test_t4_a_tree_that_changes_after_the_plan_is_planned_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    tools, build, plans = tmp_path / "tools", plan.build, list[plan.Built]()
    (tools / "bin").mkdir(parents=True)
    env = {"PATH": f"{tools}/bin:/usr/bin:/bin", "HOME": "/"}

    def building(*args: Any) -> plan.Built:
        plans.append(build(*args))
        if len(plans) == 1:
            (tools / "bin").rename(tools / "moved")
            if replaced == "by a link":
                (tools / "bin").symlink_to("moved")
        return plans[-1]

    monkeypatch.setattr(plan, "build", building)

    async def story(engine: Engine) -> None:
        await made(engine, Wanted("/tmp", env, True), "true")
        sources = [{os.fsdecode(m.source) for m in one.containment.mounts} for one in plans]
        assert len(plans) == 2 and f"{tools}/bin" in sources[0]
        assert f"{tools}/bin" not in sources[1]

    staged(home, story)


def test_t4_a_tree_that_never_stands_still_is_an_error_that_names_the_path(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, build = tmp_path / "hosts", plan.build

    def building(*args: Any) -> plan.Built:
        file.touch()
        found = build(*args)
        file.unlink()
        return found

    monkeypatch.setattr(plan, "build", building)

    async def story(engine: Engine) -> None:
        file.touch()
        env = {"PATH": "/usr/bin:/bin", "HOME": "/"}
        with pytest.raises(Unavailable) as failed:
            await made(engine, Wanted("/tmp", env, True, share=[str(file)]), "true")
        assert f"{file}: No such file" in failed.value.message
        assert "CAP_SYS_ADMIN" not in str(failed.value.to_wire()), "the machine allows it"
        assert not engine.sessions

    staged(home, story)


# ---------------------------------------------------------------- a connector that does not start


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both connectors are installed, and end with an error."""
    break_connectors(tmp_path, monkeypatch)


def break_connectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "connector"
    program.write_text("#!/bin/sh\necho no external interface >&2; exit 1\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    found = [Program(name, str(program)) for name in (PASTA, SLIRP)]
    monkeypatch.setattr(connectors, "installed", lambda: found)
    monkeypatch.setattr(network, "TUN", os.devnull)


ENV = {"PATH": "/usr/bin:/bin", "HOME": "/"}


def test_t4_auto_shares_the_machines_network_if_no_connector_starts(
    home: Home, broken: None
) -> None:
    async def story(engine: Engine) -> None:
        decision = await making.decide(engine, Wanted("/tmp", ENV, True))
        found = decision.details()
        assert (found["net"], found["net_fallback"]) == ("own", "host"), "an approver sees both"
        session = await made(engine, Wanted("/tmp", ENV, True), "true")
        sees = session.label["sees"]
        assert "network: the machine's" in sees and "no external interface" in sees
        assert "loopback" in sees and "net" not in session.label

    staged(home, story)


@pytest.mark.parametrize("how", ["--net own", "contain.net", "--publish"])
def test_t4_a_network_of_its_own_that_was_asked_for_is_never_replaced(
    home: Home, broken: None, how: str
) -> None:
    Path(home.config).write_text('[contain]\nnet = "own"\n' if how == "contain.net" else "")
    net, publish = "own" if how == "--net own" else None, (9000,) if how == "--publish" else ()

    async def story(engine: Engine) -> None:
        with pytest.raises(Impossible, match="no external interface"):
            await made(engine, Wanted("/tmp", ENV, True, net=net, publish=publish), "true")

    staged(home, story)


@pytest.mark.parametrize(
    ("human", "works", "routed", "shares"),
    [
        (False, False, True, True),
        (False, True, False, True),
        (False, True, True, False),
        (True, True, True, True),
    ],
)
def test_t4_an_agent_cannot_get_the_machines_network_by_exhausting_the_machine(
    home: Home,
    broken: None,
    monkeypatch: pytest.MonkeyPatch,
    human: bool,
    works: bool,
    routed: bool,
    shares: bool,
) -> None:
    """A living session with a network of its own shows that this machine can connect one."""
    monkeypatch.setattr(connectors, "routed", lambda: routed)
    machine = plan.Machine(home, {"HOME": "/root", "PATH": "/usr/bin"})
    decision = plan.decide(machine, Settings.load(home), Wanted("/tmp", ENV, human))
    asked = replace(request("true", contained=True), decision=decision)
    maker: Any = SimpleNamespace(sessions={"a": SimpleNamespace(label={"net": "own"})})
    if not works:
        maker.sessions.clear()
    failure = NoNetwork("no process for it")
    if shares:
        found = retry.with_the_machines_network(maker, asked, failure).decision
        assert (
            found is not None and found.terms.net == "host" and "no process" in found.open_network
        )
    else:
        with pytest.raises(NoNetwork):
            retry.with_the_machines_network(maker, asked, failure)


@pytest.mark.skipif(not connectors.usable(), reason="no network of its own on this machine")
@pytest.mark.parametrize("net", [None, "own"])
@pytest.mark.parametrize("how", ["missing", "ends"])
def test_r1_t4_a_session_never_comes_back_with_more_network(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: str | None, how: str
) -> None:
    """Its own network cannot be connected any more; by default, a new one shares the machine's."""

    async def story() -> None:
        engine = await engine_for(home)
        decision = await making.decide(engine, Wanted("/tmp", ENV, True, net=net))
        asked = replace(request("bash", contained=True), cwd="/tmp", decision=decision)
        session = await engine.create(asked, "someone")
        assert session.label["net"] == "own"
        await engine.close()
        engine.nursery.dismiss()
        os.kill(session.keeper_pid, signal.SIGKILL)
        if how == "ends":
            break_connectors(tmp_path, monkeypatch)
        else:
            monkeypatch.setattr(connectors, "installed", list)
        engine = await engine_for(home)
        try:
            lost = {one.id: one.reason for one in engine.ended.values()}
            assert session.id in engine.sessions, (lost, engine.unreachable)
            back = engine.sessions[session.id]
            assert back.record.epoch == 2 and "net" not in back.label
            inside = os.readlink(f"/proc/{back.record.root_pid}/ns/net")
            assert inside != os.readlink("/proc/self/ns/net"), "not the machine's network"
            assert "no network" in back.label["lost"]["notes"][0]
        finally:
            for one in tuple(engine.sessions.values()):
                await engine.halter.end(execution(one))
            await engine.close()
            engine.nursery.dismiss()

    asyncio.run(story())
