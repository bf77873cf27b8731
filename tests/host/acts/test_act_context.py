"""The facts that the gate gets about a live session: from the kernel now, or unknown."""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.host.acts import act_context as situations
from holdfast.host.engine import Engine
from holdfast.host.lifecycle.prepare import NewSession
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.session import Session
from tests.support.installed_copy import Caller, engine, eventually

NUMBERS = itertools.count(1)
pytestmark = pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")


@asynccontextmanager
async def shell(
    tmp_path: Path, *argv: str, contained: bool = False
) -> AsyncIterator[tuple[Engine, Session]]:
    async with engine(tmp_path) as made:
        session = await made.create(
            NewSession(
                argv or ("/bin/bash",),
                str(tmp_path),
                {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PS1": "$ "},
                "work",
                contained=contained,
            ),
            "ann",
        )
        yield made, session
        await session.end("ann")


async def keys(session: Session, data: bytes) -> None:
    await session.type("ann", 9, next(NUMBERS), data)


async def typed(session: Session, text: str) -> None:
    await keys(session, text.encode() + b"\r")


def run(work: Callable[[], Any]) -> None:
    asyncio.run(work())


def seen(session: Session, caller: Any, act: str = "line", **more: Any) -> Any:
    """As `situation`, without a loop: a condition can wait for the file system."""
    details = more.get("details", situations.NOTHING)
    situations._learn(session, situations._home(session.record.root_pid))
    found = situations._look(session, cast(Connection, caller), act, b"ls\n", details)
    where = (
        situations.UNKNOWN_DIRECTORY
        if found.where is None
        else situations._working_directory(found.where)
    )
    return situations._at(found, where)


def test_p4_a_shell_at_its_prompt_is_described_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with shell(tmp_path) as (_, session):
            bob = Caller("bob", "agent")
            await eventually(lambda: session.commands.shell.ready, "a prompt")
            found = await situations.situation(session, cast(Connection, bob), "line", b"ls\n")
            assert (found.act, found.actor.operator, found.actor.kind, found.actor.key) == (
                "line",
                "bob",
                "agent",
                bob.shown,
            )
            assert (found.session, found.name, found.epoch, found.project, found.home) == (
                session.id,
                "work",
                1,
                str(tmp_path),
                str(tmp_path),
            )
            assert (
                found.cwd,
                found.foreground,
                found.shell,
                found.contained,
                found.actor.attached,
            ) == (str(tmp_path), "", "bash", False, False)
            assert seen(session, bob).state == found.state and seen(session, bob) == found

            (tmp_path / "a dir").mkdir()
            await typed(session, "cd 'a dir'")
            moved = await eventually(
                lambda: (r := seen(session, bob)).cwd != str(tmp_path) and r.foreground == "" and r,
                "another directory",
            )
            assert moved.cwd == str(tmp_path / "a dir") and moved.state != found.state
            assert (
                seen(session, bob, "end").state == seen(session, bob, "end").state != moved.state
                and seen(session, bob, "end").cwd is None
            )

            before = seen(session, bob)
            os.rename(tmp_path / "a dir", tmp_path / "b")
            (tmp_path / "a dir").mkdir()
            renamed = seen(session, bob)
            assert renamed.cwd == str(tmp_path / "b") and renamed.state == before.state, (
                "the directory is the same, its name is bound apart"
            )
            os.rmdir(tmp_path / "b")
            assert seen(session, bob).cwd is None and seen(session, bob).state != before.state

    run(work)


def test_p4_the_context_names_the_program_that_reads_the_input(tmp_path: Path) -> None:
    async def work() -> None:
        async with shell(tmp_path) as (_, session):
            bob = Caller("bob", "agent")
            await eventually(lambda: session.commands.shell.ready, "a prompt")
            prompt, end = seen(session, bob, "run").state, seen(session, bob, "end").state
            await keys(session, b"rm -r")
            assert seen(session, bob).foreground == "?", "Enter would submit more than this text"
            await keys(session, b"\x15cat\r")
            reading = await eventually(
                lambda: (r := seen(session, bob)).foreground == "cat" and r, "cat in the foreground"
            )
            assert (
                seen(session, bob, "run").state == prompt != reading.state
                and seen(session, bob, "end").state == end
            )
            await keys(session, b"\x04")
            await eventually(lambda: seen(session, bob).foreground == "", "the prompt again")
            await typed(session, "mkdir -p in/side; cd in; sh -c 'cd side && exec bash --norc'")
            inner = await eventually(
                lambda: (
                    (r := seen(session, bob)).foreground == "bash"
                    and r.cwd == str(tmp_path / "in/side")
                    and r
                ),
                "a shell inside",
            )
            assert inner.shell == "bash"
            await typed(session, "exit")
            await eventually(lambda: seen(session, bob).foreground == "", "the prompt again")
            await typed(session, "true | cat -")
            await eventually(lambda: seen(session, bob).foreground == "", "a pipeline is over")
            await typed(session, "(exit) | tail -f /dev/null")
            await eventually(
                lambda: seen(session, bob).foreground == "tail", "the last of a pipeline"
            )
            await keys(session, b"\x03")
            await eventually(lambda: seen(session, bob).foreground == "", "the prompt again")
            posix = seen(session, bob)
            assert posix.shadowed == frozenset()

    run(work)


def test_p4_only_a_shell_has_a_directory_and_a_posix_shell_is_a_shell(tmp_path: Path) -> None:
    async def work() -> None:
        async with shell(tmp_path, "cat") as (_, session):
            found = await eventually(
                lambda: (r := seen(session, Caller("bob"))).foreground == "cat" and r, "cat"
            )
            assert found.cwd is None and found.home == str(tmp_path)
        (tmp_path / "2").mkdir()
        async with shell(tmp_path / "2", "/bin/sh") as (_, session):
            await eventually(lambda: session.commands.shell.ready, "a prompt")
            assert seen(session, Caller("bob")).shell == "sh"

    run(work)


HOME = os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)


def test_p4_in_a_contained_session_the_path_is_as_inside(tmp_path: Path) -> None:
    async def work() -> None:
        try:
            async with shell(tmp_path, contained=True) as (_, session):
                await eventually(lambda: session.commands.shell.ready, "a prompt")
                found = seen(session, Caller("bob"))
                # The directory has the installation's state, so it is no workspace.
                assert found.contained and found.foreground == ""
                assert found.cwd == found.home == HOME
                await typed(session, "cd /dev; cat")
                inside = await eventually(
                    lambda: (r := seen(session, Caller("bob"))).foreground == "cat" and r, "cat"
                )
                assert inside.cwd == "/dev"
        except Exception as e:
            if "namespace" in str(e):
                pytest.skip(str(e))
            raise

    run(work)


def test_p4_a_key_costs_no_look_at_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with shell(tmp_path) as (_, session):
            bob = cast(Connection, Caller("bob", "agent"))
            await eventually(lambda: session.commands.shell.ready, "a prompt")

            def never(*_: object) -> None:
                raise AssertionError("a key looks at the world")

            with monkeypatch.context() as patch:
                for name in ("open", "stat", "readlink", "listdir"):
                    patch.setattr(os, name, never)
                found = situations.quick_keys_request(session, bob, b"x")
            assert found.foreground == "" and found.content == b"x"
            await keys(session, b"cat\r")
            await eventually(
                lambda: situations.quick_keys_request(session, bob, b"x").foreground == "?",
                "a program in the foreground",
            )

    run(work)


def test_p4_an_act_on_the_machine_names_no_session() -> None:
    async def work() -> None:
        found = await situations.situation(
            None, cast(Connection, Caller("bob")), "grant", details={"rights": "run"}
        )
        assert (found.session, found.epoch, found.details, found.cwd) == (
            "",
            0,
            {"rights": "run"},
            None,
        )

    run(work)
