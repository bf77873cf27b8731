"""`session.attach()`: a terminal as a duplex stream, against a real host (M, S4, A1, P1)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import holdfast
import holdfast.sync
from tests.support.installation import DEADLINE_S, Installation, eventually

T = TypeVar("T")
LINES = 200


def together(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, DEADLINE_S))


def client(hf: Installation) -> holdfast.Client:
    return holdfast.connect(operator="tester", home=str(hf.home))


def test_m_a_terminal_is_read_typed_into_and_resized(hf: Installation) -> None:
    hf.ready("sdk-attached")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-attached")
            async with session.attach((90, 30)) as terminal:
                first = await terminal.read()
                assert first is not None and first.screen
                [one] = (await session.info()).operators
                assert (one.operator, one.modality) == ("tester", "sdk")
                await terminal.write(b"stty size; echo d''one\r")
                assert b"30 90" in await read_until(terminal, b"done")
                await terminal.resize(100, 40)
                await session.wait("idle", timeout=DEADLINE_S)
                await terminal.write(b"stty size; echo ag''ain\r")
                assert b"40 100" in await read_until(terminal, b"again")
                await terminal.write(b"exit 3\r")
                while await terminal.read() is not None:
                    pass
            assert (await session.info()).exit_code == 3

    together(work())
    said = hf.ok("log", "sdk-attached", "--json").records
    assert {"keys", "cover"} <= {e["kind"] for e in said if e["actor"] == "tester"}
    hf.ok("log", "verify", "sdk-attached")


async def read_until(terminal: Any, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        output = await terminal.read()
        assert output is not None, got
        got += output.data
    return got


def test_s4_no_byte_is_lost_or_doubled_when_the_host_dies(hf: Installation) -> None:
    hf.ready("sdk-typed")
    gate = hf.gate("sdk-typed.gate")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-typed")
            async with session.attach() as terminal:
                await terminal.write(b"PS1=; stty -echo; clear; echo re''ady\r")
                await read_until(terminal, b"ready")
                loop = f"cat {gate.path}; while read x; do echo =$x=; done\r"
                await terminal.write(loop.encode())
                reading = asyncio.create_task(read_until(terminal, b"=%d=" % (LINES - 1)))
                gate.open()
                for number in range(LINES):
                    if number % 100 == 50:
                        os.kill(hf.host_pid, signal.SIGKILL)
                    await terminal.write(b"%d\r" % number)
                got = await reading
                found = [int(one) for one in re.findall(rb"=(\d+)=", got)]
                assert found == list(range(LINES))

    together(work())


def test_a1_typing_needs_the_turn(hf: Installation) -> None:
    hf.people("sdk-holder")
    hf.ready("sdk-held")
    hf.quick("--as", "sdk-holder", "seize", "sdk-held")

    with (
        holdfast.sync.connect(operator="tester", home=str(hf.home)) as c,
        c.sessions.get("sdk-held").attach() as terminal,
    ):
        with pytest.raises(holdfast.TurnHeld):
            terminal.write(b"x")
        assert terminal.read() is not None
        hf.quick("--as", "sdk-holder", "turn", "sdk-held", "hand", "tester")
        terminal.write(b"echo mi''ne\r")
        for output in terminal:
            if b"mine" in output.data:
                break
    eventually(lambda: hf.get("sdk-held")["operators"] == [], "the client has left")
