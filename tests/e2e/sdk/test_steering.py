"""Programs steer a session: the turn, single operators, what a wait counts, and what changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

import holdfast
import holdfast.sync
from tests.support.commands.programs import client, together
from tests.support.installation import DEADLINE_S, Installation


def test_s8_a_wait_counts_the_output_since_an_offset_or_a_command(hf: Installation) -> None:
    hf.ready("sdk-since")
    gate = hf.gate("sdk-since.gate")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-since")
            old = await session.run("echo mark-1")
            assert old.offsets is not None
            seen = await session.wait("text:mark-.", since=old.ref, timeout=DEADLINE_S)
            assert (seen.seen, seen.where) == ("mark-1", "output")
            waiting = asyncio.create_task(
                session.wait("text:mark-.", since=old.offsets.end, timeout=DEADLINE_S)
            )
            await asyncio.to_thread(hf.under_way, "wait", 1)
            assert not waiting.done(), "the screen still has mark-1"
            await session.run("echo mark-2")
            assert (await waiting).seen == "mark-2"
            with pytest.raises(holdfast.Usage):
                await session.wait("idle", since=0)
            running = await session.start(f"echo mark-3; cat {gate.path}")
            seen = await session.wait("text:mark-.", since=running.ref, timeout=DEADLINE_S)
            assert seen.seen == "mark-3", "the command still runs"
            gate.open()
            await running.wait()

    together(work())


def test_a8_a_program_stops_one_operator(hf: Installation) -> None:
    hf.people("sdk-ann", "sdk-bob")
    hf.ready("sdk-stopped")

    async def work() -> None:
        async with client(hf, "sdk-ann") as a, client(hf, "sdk-bob") as b:
            hers = await a.sessions.get("sdk-stopped")
            his = await b.sessions.get("sdk-stopped")
            await hers.run("cat </dev/zero >/dev/null & ")
            taken = await his.seize(stop=True)
            assert taken.previous == "sdk-ann" and taken.stopped is not None
            assert taken.stopped.operator == "sdk-ann" and len(taken.stopped.processes) == 1
            with pytest.raises(holdfast.OperatorStopped):
                await hers.send("x")
            went_on = await his.resume(operator="sdk-ann")
            assert went_on.processes == taken.stopped.processes
            halted = await his.halt(operator="sdk-ann")
            assert halted.complete and halted.operator == "sdk-ann"
            shell = (await his.info()).pid
            assert {"pid": shell, "why": "the shared shell"} in halted.left_out
            assert (await his.run("echo works on")).output == "works on\n"
            assert (await his.info()).state != "halted"
            await his.resume()
            whole = await his.halt()
            assert whole.operator is None and shell in whole.processes
            assert (await his.info()).state == "halted"
            await his.resume()

    together(work())


def test_a1_the_turn_is_shown_asked_for_and_taken(hf: Installation) -> None:
    hf.people("sdk-tom", "sdk-uma")
    hf.ready("sdk-asked")

    async def work() -> None:
        async with client(hf, "sdk-tom") as t, client(hf, "sdk-uma") as u:
            his = await t.sessions.get("sdk-asked")
            hers = await u.sessions.get("sdk-asked")
            assert await his.turn.state() is None
            await his.seize()
            state = await hers.turn.state()
            assert state is not None and state.holder == "sdk-tom"
            asking = asyncio.create_task(hers.turn.request(wait=DEADLINE_S))
            await asyncio.to_thread(hf.under_way, "turn", 1)
            await his.turn.release()
            got = await asking
            assert got is not None and got.holder == "sdk-uma"
            assert (await his.run("echo taken", turn="seize")).output == "taken\n"
            state = await hers.turn.state()
            assert state is not None and state.holder == "sdk-tom"

    together(work())


def test_s2_changes_of_the_graph_are_followed_over_the_death_of_the_host(hf: Installation) -> None:
    hf.ready("sdk-changes")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-changes")
            shell = (await session.info()).pid
            seen: list[holdfast.Change] = []
            async with contextlib.aclosing(session.changes()) as changes:

                async def until(change: str, argv: tuple[str, ...] = ()) -> holdfast.Change:
                    async for one in changes:
                        seen.append(one)
                        if one.change == change and (not argv or one.argv == argv):
                            return one
                    raise AssertionError((change, seen))

                first = await until("started")
                assert (first.pid, first.was) == (shell, True)
                await session.send("sleep 1234", enter=True)
                begun = await until("started", ("sleep", "1234"))
                assert (begun.actor, begun.was, begun.ppid) == ("tester", False, shell)
                assert begun.act is not None and begun.act.startswith(f"hf:{session.id}@1#")
                os.kill(hf.host_pid, signal.SIGKILL)
                await session.send(keys=["C-c"])
                ended = await until("exited", ("sleep", "1234"))
                assert ended.pid == begun.pid
                await session.send("read -r line", enter=True)
                blocked = await until("blocked")
                assert blocked.waiting is not None and blocked.waiting.for_ == "input"
                await session.end()
                seen += [one async for one in changes]
            starts = [one.pid for one in seen if one.change == "started"]
            assert len(starts) == len(set(starts)), "no change comes twice"
            with pytest.raises(holdfast.NotFound):
                await anext(session.changes())

    together(work())


def test_s2_a_graph_has_typed_files_sockets_and_terminal(hf: Installation) -> None:
    hf.ready("sdk-graph")
    held = hf.user / "sdk-graph.file"
    held.write_text("twelve bytes")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-graph")
            await session.send(f"cat - 3<{held}", enter=True)
            await session.wait("input", timeout=DEADLINE_S)
            graph = await session.graph()
            (file,) = [one for one in graph.files if one.path == str(held)]
            assert (file.fd, file.kind, file.mode, file.offset) == (3, "file", "r", 0)
            (cat,) = [one for one in graph.processes if one.pid == file.pid]
            assert cat.argv == ("cat", "-") and cat.actor == "tester"
            assert graph.terminal is not None and graph.terminal.foreground.command == "cat -"
            assert graph.terminal.waiting is not None and graph.terminal.waiting.for_ == "input"
            assert graph.raw["id"] == session.id
            await session.send(keys=["C-c"])
            server = (
                "import socket; s = socket.create_server(('127.0.0.1', 0));"
                "print('port', s.getsockname()[1], flush=True); s.accept()"
            )
            await session.wait("idle", timeout=DEADLINE_S)
            await session.send(f'python3 -c "{server}"', enter=True)
            seen = await session.wait("text:port [0-9]+", timeout=DEADLINE_S)
            port = int(seen.seen.split()[1])
            (socket,) = [one for one in (await session.graph()).sockets if one.port == port]
            assert (socket.kind, socket.state) == ("tcp", "listen")
            await session.end()

    together(work())


def test_p1_the_record_and_the_events_are_typed_and_followed(hf: Installation) -> None:
    hf.ready("sdk-record")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-record")
            await session.run("echo recorded")
            entries = [one async for one in session.log()]
            (command,) = [one for one in entries if one.content == "echo recorded"]
            assert (command.kind, command.actor, command.verdict) == ("command", "tester", "allow")
            assert abs(command.time - time.time()) < 3600, "seconds since 1970"
            assert command.signed and command.attestation == "actor-signed"
            assert [one.seq for one in entries] == list(range(1, len(entries) + 1))
            followed = session.log(command.seq - 1, follow=True)
            assert await anext(followed) == command, "a followed entry is the same entry"
            await followed.aclose()
            events = [one async for one in c.events()]
            (started,) = [
                one for one in events if (one.event, one.session) == ("session.started", session.id)
            ]
            assert started.facts["operator"] == "tester" and "event" not in started.facts
            following = c.events(started.number - 1, follow=True)
            assert await anext(following) == started
            await following.aclose()

    together(work())


def test_m_a_session_gets_another_name_and_its_history_is_shown(hf: Installation) -> None:
    hf.ready("sdk-named")
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        session = c.sessions.get("sdk-named")
        session.rename("sdk-renamed")
        assert session.name == "sdk-renamed" and c.sessions.get("sdk-renamed").id == session.id
        session.run("seq 100")
        screen = session.view(history=50)
        assert "57" in [line.strip() for line in screen.history] and len(screen.history) <= 50
        assert session.view().history == ()
        sent = session.send("echo 'two\nlines'", paste=True, enter=True)
        assert sent.bytes > 0
        session.wait("idle", timeout=DEADLINE_S)
        assert "lines" in session.view().text
        with session.attach(observe=True) as terminal:
            first = terminal.read()
            assert first is not None and first.screen
            assert [one.observe for one in session.info().operators] == [True]
            with pytest.raises(holdfast.Refused):
                terminal.write(b"x")


def test_a3_a_signal_does_not_wait_for_a_command_that_has_not_begun(hf: Installation) -> None:
    hf.ready("sdk-stands")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-stands")
            await session.run("true")
            shell = (await session.info()).pid
            assert shell is not None
            os.kill(shell, signal.SIGSTOP)  # it does not begin what is typed
            behind = asyncio.create_task(session.run("echo mine"))
            await asyncio.to_thread(hf.under_way, "run", 1)
            await session.signal(shell, "CONT")
            assert (await behind).output == "mine\n"

    together(work())
