"""The Python API against a real host: acts, looks, streams, and the loss of the host under them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from queue import Queue
from threading import Thread
from typing import Any, TypeVar

import pytest

import holdfast
import holdfast.sync
from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.wire import frames
from tests.support.installation import DEADLINE_S, Installation, eventually

T = TypeVar("T")


def together(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


def client(hf: Installation) -> holdfast.Client:
    return holdfast.connect(operator="tester", home=str(hf.home))


def test_m_a_program_runs_looks_and_waits(hf: Installation) -> None:
    hf.ready("sdk-run")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-run")
            done = await session.run("echo hello; false")
            assert (done.exit_code, done.output, done.state) == (1, "hello\n", "done")
            assert done.ref and done.ref.startswith(f"hf:{session.id}@1#")
            assert done.lost == 0 and done.data == b"hello\n"
            assert "hello" in (await session.view()).text
            await session.send("echo typed", enter=True)
            await session.wait("text:typed", timeout=DEADLINE_S)
            found = [one.name for one in await c.sessions.list()]
            assert "sdk-run" in found
            assert (await c.resolve(done.ref)).known
            graph = await session.graph()
            assert any(one.argv[0].endswith("bash") for one in graph.processes)

    together(work())


def test_m_many_requests_share_a_connection(hf: Installation) -> None:
    hf.ready("sdk-many")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-many")
            views = asyncio.gather(*(session.view() for _ in range(50)))
            runs = await asyncio.gather(*(session.run(f"echo {number}") for number in range(10)))
            assert [one.output for one in runs] == [f"{n}\n" for n in range(10)]
            assert len(await views) == 50

    together(work())


def test_s8_a_command_has_its_reference_at_once(hf: Installation) -> None:
    hf.ready("sdk-start")
    gate = hf.gate("sdk-start.gate")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-start")
            running = await session.start(
                f"cat {gate.path}; exit_with() {{ return 3; }}; exit_with"
            )
            assert running.ref is not None
            assert (await c.resolve(running.ref)).under_way
            await running.leave()
            gate.open()
            await session.wait("idle", timeout=DEADLINE_S)
            assert (await c.resolve(running.ref)).exit_code == 3

    together(work())


def test_s4_a_run_and_a_reader_survive_the_host(hf: Installation) -> None:
    hf.ready("sdk-killed")
    gate = hf.gate("sdk-killed.gate")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-killed")
            read: list[bytes] = []
            ends: list[int] = []

            async def reader() -> None:
                async for chunk in session.read(0, follow=True):
                    assert not ends or chunk.offset == ends[-1]
                    read.append(chunk.data)
                    ends.append(chunk.end)

            reading = asyncio.create_task(reader())
            running = await session.start(f"seq 1 1000; cat {gate.path}; seq 1001 2000")
            for _ in range(3):
                os.kill(hf.host_pid, signal.SIGKILL)
                assert (await session.info()).state in ("live", "detached")
            gate.open()
            done = await running.wait()
            assert done.exit_code == 0
            assert done.output == "".join(f"{number}\n" for number in range(1, 2001))
            await session.end()
            await reading
            assert b"\n2000\r\n" in b"".join(read)

    together(work())


def test_a1_a_run_waits_for_the_turn(hf: Installation) -> None:
    hf.people("sdk-other")
    hf.ready("sdk-turn")
    hf.quick("--as", "sdk-other", "seize", "sdk-turn")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-turn")
            with pytest.raises(holdfast.HoldfastError) as refused:
                await session.run("true", turn="fail")
            assert refused.value.name == "turn_held" and refused.value.retry_safe
            waiting = asyncio.create_task(session.run("echo mine"))
            await asyncio.to_thread(hf.under_way, "turn", 1)
            await asyncio.to_thread(
                hf.quick, "--as", "sdk-other", "turn", "sdk-turn", "hand", "tester"
            )
            assert (await waiting).output == "mine\n"

    together(work())


POLICY = """version = 1
extends = "default"
[[rule]]
name = "watched"
verdict = "ask"
because = "it is watched"
when = { act = ["run"], session = ["sdk-watched"] }
"""


def test_p4_a_held_act_is_decided_and_holds_up_no_other(fresh: Installation) -> None:
    fresh.home.mkdir(mode=0o700)
    (fresh.home / "policy.toml").write_text(POLICY)
    fresh.people("ann")
    fresh.new("sdk-watched", "--contained")

    async def work() -> None:
        ann = holdfast.connect(operator="ann", home=str(fresh.home))
        async with client(fresh) as c, ann as a:
            session = await c.sessions.get("sdk-watched")
            waiting = asyncio.create_task(session.start("echo approved"))
            await asyncio.to_thread(eventually, lambda: fresh.ask("approvals")["approvals"], "it")
            await session.send("", keys=["C-l"])
            (question,) = await a.approvals.list()
            assert (question.operator, question.text) == ("tester", "echo approved")
            with pytest.raises(holdfast.HoldfastError):
                await c.approvals.approve(question.id)
            await a.approvals.approve(question.id)
            assert (await (await waiting).wait()).output == "approved\n"

    together(work())


def test_a9_a_key_makes_a_retry_from_another_program_one_effect(hf: Installation) -> None:
    hf.ready("sdk-once")
    place = hf.user / "sdk-once.effects"

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-once")
            first = await session.run(f"echo x >>{place}; echo done", once="deploy-7")
        async with client(hf) as another:
            session = await another.sessions.get("sdk-once")
            again = await session.run(f"echo x >>{place}; echo done", once="deploy-7")
            assert (again.exit_code, again.ref) == (first.exit_code, first.ref)
            with pytest.raises(holdfast.OnceUsed):
                await session.run("echo other", once="deploy-7")
        assert place.read_text() == "x\n"

    together(work())


def test_a9_an_act_without_an_answer_is_unknown(fresh: Installation) -> None:
    fresh.ready("sdk-unknown")

    async def work() -> None:
        async with client(fresh) as c:
            session = await c.sessions.get("sdk-unknown")
            await session.send("true", enter=True)
            host = fresh.host_pid
            os.kill(host, signal.SIGSTOP)
            try:
                with pytest.raises(holdfast.OutcomeUnknown) as unknown:
                    await c.engine("").ask("send", 0.2, session=session.id, text="x", keys=[])
                assert unknown.value.code == 8 and not unknown.value.retry_safe
                with pytest.raises(holdfast.TimedOut):
                    await c.engine("").ask("view", 0.2, session=session.id)
            finally:
                os.kill(host, signal.SIGCONT)

    together(work())


def test_a9_errors_are_typed(hf: Installation) -> None:
    async def work() -> None:
        async with client(hf) as c:
            with pytest.raises(holdfast.NotFound) as unknown:
                await c.sessions.get("no-such-session")
            assert (unknown.value.code, unknown.value.name) == (3, "not_found")

    together(work())


def test_m_one_command_has_a_session_of_its_own(
    hf: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(hf.account))  # no start-up file of this account

    async def work() -> None:
        async with client(hf) as c:
            before = {one.id for one in await c.sessions.list(all=True)}
            done = await c.terminal.execute("", "echo once; exit 4")
            assert (done.exit_code, done.state) == (4, "ended") and "once" in done.output
            left = [one for one in await c.sessions.list() if one.id not in before]
            assert left == []

    together(work())


def test_t4_the_one_command_of_an_agent_is_contained(hf: Installation) -> None:
    """The default policy lets no agent end a session alone, so a person approves the end."""
    hf.people("bot", rights="execute,end", kind="agent", plain=False)

    async def work() -> None:
        async with holdfast.connect(operator="bot", home=str(hf.home)) as c:
            before = {one.id for one in await c.sessions.list(all=True)}
            doing = asyncio.create_task(c.terminal.execute("", f"ls -d {hf.home}; true"))
            asked = lambda: json.loads(hf.quick("approvals", "--json"))  # noqa: E731
            [question] = await asyncio.to_thread(eventually, asked, "the question about the end")
            [made] = [one for one in await c.sessions.list(all=True) if one.id not in before]
            assert (question["act"], made.layout) == ("end", "contained")
            yes = ("--yes", "--binding", question["binding"])
            await asyncio.to_thread(hf.ok, "approve", question["id"], *yes)
            done = await doing
            assert done.exit_code == 0 and str(hf.home) not in done.output.splitlines(), done
            assert made.id not in {one.id for one in await c.sessions.list()}

    together(work())


def test_m_the_same_names_without_await(hf: Installation) -> None:
    hf.ready("sdk-sync")

    def work() -> None:
        with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
            session = c.sessions.get("sdk-sync")
            assert session.run("echo sync").output == "sync\n"
            running = session.start("seq 3")
            assert b"".join(chunk.data for chunk in running) == b"1\n2\n3\n"
            assert running.wait().exit_code == 0
            assert next(iter(session.read(0))).offset == 0

    work()
    together(asyncio.to_thread(work))

    async def beside_a_running_loop() -> None:
        work()

    together(beside_a_running_loop())


def test_a9_a_client_that_connects_anew_follows_its_own_act(hf: Installation) -> None:
    """The host may not know yet that the older connection is dead: the act has one effect."""
    session = str(hf.ready("sdk-anew")["id"])
    gate, effects = hf.gate("sdk-anew.gate"), hf.user / "sdk-anew.effects"
    text = f"echo x >>{effects}; cat {gate.path}; (exit 3)"
    fields: dict[str, Any] = {"session": session, "text": text, "seq": 1, "resume": None}
    dead, anew = (Link(homes.resolve(hf.env), "tester", "sdk", False) for _ in range(2))
    anew.client = dead.client
    dead.connect(session)
    dead.acting.sign("run", fields, dead.acting.targets[session])
    dead.send(frames.request(1, {"op": "run", "timeout": 0.0, **fields}))
    eventually(effects.exists, "the command to run")
    told = Queue[dict[str, Any]]()
    new = Thread(target=lambda: told.put(anew.request("run", None, timeout=0.0, **fields)))
    new.start()
    hf.under_way("run", 1)
    gate.open()
    assert told.get(timeout=DEADLINE_S)["exit_code"] == 3
    new.join()
    assert effects.read_text() == "x\n"
    for link in (dead, anew):
        link.close()
