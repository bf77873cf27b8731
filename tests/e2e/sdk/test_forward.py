"""Listening ports of sessions at an address of the client: real servers, a real host (T8)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast
import holdfast.sync
from holdfast.model.limits import DOWNSTREAM_WINDOW_BYTES
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.peers.ports import exchanged, free_port, serve

T = TypeVar("T")
CONNECTIONS = 100
HOST_GROWTH_KIB = 48 * 1024


def together(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def client(hf: Installation, operator: str = "tester") -> holdfast.Client:
    return holdfast.connect(operator=operator, home=str(hf.home))


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.ready("dev")
        yield made


@pytest.fixture(scope="module")
def port(hf: Installation) -> int:
    found = free_port()
    serve(hf, "dev", found)
    return found


def test_t8_a_hundred_connections_with_both_half_closes(hf: Installation, port: int) -> None:
    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("dev")
            async with session.forward(port) as forward:
                assert forward.host == "127.0.0.1" and forward.local_port != port
                sizes = [977 * number for number in range(CONNECTIONS)]
                got = await asyncio.gather(
                    *(exchanged(forward.address, b"E", bytes(size)) for size in sizes)
                )
                assert [len(one) for one in got] == [n + len(str(n)) for n in sizes]
                assert all(one.endswith(b"%d" % n) for one, n in zip(got, sizes, strict=True))
                assert forward.connections == CONNECTIONS
                # the server ends first, and still gets everything
                reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
                writer.write(b"H")
                assert await reader.read(-1) == b"bye"
                writer.write(bytes(1_000_000))
                writer.write_eof()
                await eventually_async(lambda: counted(hf) == "1000000")
                writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection(forward.host, forward.local_port)

    def counted(hf: Installation) -> str:
        found = hf.user / "counted"
        return found.read_text() if found.exists() else ""

    async def eventually_async(holds: Any) -> None:
        while not holds():
            await asyncio.sleep(0.02)  # poll

    together(work())
    said = [e for e in hf.ok("log", "dev", "--json").records if e["kind"] == "forward"]
    assert [(e["phase"], e["actor"]) for e in said] == [("intent", "tester"), ("outcome", "tester")]
    closed = eventually(
        lambda: [
            e for e in hf.ok("events", "dev", "--json").records if e["event"] == "forward.closed"
        ],
        "the event",
    )
    assert closed[0]["connections"] == CONNECTIONS + 1 and closed[0]["sent"] > 1_000_000


def test_t8_a_slow_reader_delays_no_other_connection(hf: Installation, port: int) -> None:
    def peak_kib() -> int:
        status = Path(f"/proc/{hf.host_pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("dev")
            async with session.forward(port, "127.0.0.1:0") as forward:
                before = peak_kib()
                flooded = []
                for _ in range(4):
                    _, writer = await asyncio.open_connection(
                        forward.host, forward.local_port, limit=1024
                    )
                    writer.write(b"F")
                    flooded.append(writer)
                for _ in range(5):
                    got = await exchanged(forward.address, b"E", bytes(DOWNSTREAM_WINDOW_BYTES))
                    assert got.endswith(b"%d" % DOWNSTREAM_WINDOW_BYTES)
                assert peak_kib() - before < HOST_GROWTH_KIB
                for writer in flooded:
                    writer.transport.abort()

    together(work())


def test_t8_only_a_port_of_the_session_is_opened(hf: Installation) -> None:
    """The test itself listens: the same machine and account, and no process of the session."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        error = the_error(hf.attempt("forward", "dev", str(number), "--json"), 4)
        assert error["name"] == "not_listening" and error["retry_safe"]
        assert f"port:{number}" in error["recover"]
    error = the_error(hf.attempt("forward", "dev", "1", "--listen", "0.0.0.0", "--json"), 2)
    assert "--expose" in error["recover"]
    hf.people("fwd-reader", rights="read")
    error = the_error(hf.attempt("--as", "fwd-reader", "forward", "dev", "1", "--json"), 4)
    assert error["name"] == "not_allowed" and "forward" in error["message"]


def test_t8_new_connections_work_after_the_death_of_the_host(hf: Installation, port: int) -> None:
    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("dev")
            async with session.forward(port, "127.0.0.1:0") as forward:
                reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
                writer.write(b"Ex")
                assert await reader.readexactly(1) == b"x"
                for _ in range(2):
                    os.kill(hf.host_pid, signal.SIGKILL)
                    assert await exchanged(forward.address, b"E", b"again") == b"again5"
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)  # it ended with the host, and says so
                writer.close()

    together(work())


def test_a5_a_revocation_ends_the_forward_and_its_connections(hf: Installation, port: int) -> None:
    hf.people("fwd-ann", rights="execute")

    async def work() -> None:
        async with client(hf, "fwd-ann") as c:
            session = await c.sessions.get("dev")
            async with session.forward(port, "127.0.0.1:0") as forward:
                reader, writer = await asyncio.open_connection(forward.host, forward.local_port)
                writer.write(b"Ex")
                assert await reader.readexactly(1) == b"x"
                await asyncio.to_thread(hf.ok, "operator", "revoke", "fwd-ann")
                with pytest.raises(holdfast.NotAllowed):
                    await forward.wait()
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
                writer.close()

    together(work())


def test_t8_the_forward_ends_with_the_session(hf: Installation) -> None:
    hf.ready("brief")
    number = free_port()
    serve(hf, "brief", number)
    run = hf.start("forward", "brief", str(number), "--listen", "127.0.0.1:0", "--json")
    assert run.stdout is not None
    shown = json.loads(run.stdout.readline())
    assert asyncio.run(exchanged(shown["address"], b"E", b"12")) == b"122"
    hf.ok("end", "brief")
    _, said = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 0 and b"has ended" in said


def test_t8_a_port_in_a_network_of_the_session_s_own(hf: Installation) -> None:
    hf.new("cage", "--contained", "--net", "none", "--cwd", "/tmp", "--", "bash")
    hf.wait("cage", "idle")
    number = free_port()
    serve(hf, "cage", number, "0.0.0.0")
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        session = c.sessions.get("cage")
        with session.forward(number) as forward:
            assert forward.local_port == number, "the port is free on this machine"
            for _ in range(3):
                assert asyncio.run(exchanged(forward.address, b"E", b"abc")) == b"abc3"
    hf.ok("end", "cage")


@pytest.mark.skipif(os.getuid() != 0, reason="makes a throwaway user")
def test_t8_all_of_it_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(f"{__file__}::test_t8_a_port_in_a_network_of_the_session_s_own")


ASKED = """version = 1
extends = "default"
[[rule]]
name = "files and ports"
verdict = "ask"
because = "a person decides about files and ports"
when = { act = ["files", "forward"] }
"""


def test_p4_a_program_is_told_that_its_acts_on_files_and_ports_are_held(
    fresh: Installation,
) -> None:
    fresh.people("ann", "bob")
    (fresh.home / "policy.toml").write_text(ASKED)
    fresh.ready("asked", "--contained", "--cwd", str(fresh.user))
    found = free_port()
    fresh.ok("run", "asked", "--", f"python3 -m http.server --bind 127.0.0.1 {found} &")
    fresh.ok("wait", "asked", "--for", f"port:{found}")
    fresh.ok("turn", "asked", "release")

    async def work() -> None:
        async with client(fresh, "bob") as b, client(fresh, "ann") as a:
            questions: asyncio.Queue[holdfast.Question] = asyncio.Queue()

            async def approving() -> None:
                while True:
                    await a.approvals.approve((await questions.get()).id)

            approver = asyncio.create_task(approving())
            session = await b.sessions.get("asked")
            files = session.files.acting(
                hold=DEADLINE_S, intent="keep", expects="a note", on_held=questions.put_nowait
            )
            assert (await files.write_bytes("note", b"x")).size == 1
            asked = session.forward(found, intent="look", on_held=questions.put_nowait)
            async with asked as forward:
                assert not forward.over
            approver.cancel()
            with pytest.raises(holdfast.Held):
                await session.files.acting(hold=0.0).stat("note")
            meant = [
                (entry.kind, entry.facts.get("intent"), entry.facts.get("expects"))
                async for entry in session.log()
                if entry.phase == "intent" and entry.actor == "bob"
            ]
            assert meant == [("files", "keep", "a note"), ("forward", "look", None)]

    together(work())
    fresh.end("asked")
