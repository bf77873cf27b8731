"""Runs the courier, the process that speaks to another machine (holdfast/courier)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final

from holdfast.home import machines, programs
from holdfast.home.machines import Machine
from holdfast.model.errors import PeerFault, TimedOut, Unavailable, from_wire

Json = dict[str, Any]
# Bytes that arrived, of all; the wall clock's time when a silent machine is given up, or 0.0.
Told = Callable[[int, int, float], None]
ASK_S: Final = 15.0
STARTS_S: Final = 5.0  # for the courier to start on a busy machine
LINE_BYTES: Final = 4 << 20
SILENCE_S: Final = 900.0  # between two lines of the courier


def untold(done: int, of: int, until: float) -> None:
    """For a caller that shows no progress."""


async def ask(machine: Machine, op: str, wait_s: float = ASK_S, /, **fields: Any) -> Json:
    """Send one request to a machine; return the reply."""
    errand = {"op": op, "wait_s": wait_s, "fields": fields}
    try:
        async with asyncio.timeout(wait_s):
            return await run(machine, errand)
    except TimeoutError:
        raise TimedOut(f"{machine.name} does not answer", "try again") from None


async def ask_each(machine: Machine, op: str, wait_s: float, each: list[Json]) -> list[Json]:
    """The replies to many requests, by one courier; `error` is in the place of a reply."""
    errand = {"op": op, "wait_s": wait_s, "each": each}
    try:
        async with asyncio.timeout(wait_s + STARTS_S):
            replies: list[Json] = (await run(machine, errand))["replies"]
            return replies
    except TimeoutError:
        raise TimedOut(f"{machine.name} does not answer", "try again") from None


async def act(machine: Machine, op: str, wait_s: float, /, **fields: Any) -> Json:
    """The same for an act, which takes effect once."""
    return await ask(machine, op, wait_s, once=os.urandom(16).hex(), **fields)


def epoch_of(said: Json) -> int:
    """The incarnation in an answer; the other machine may say anything."""
    epoch = said.get("epoch")
    if type(epoch) is not int or not 0 <= epoch < 1 << 53:
        raise PeerFault("the other machine's answer names no incarnation")
    return epoch


async def run(machine: Machine, errand: Json, told: Told = untold) -> Json:
    """The result of an errand; its error as an exception. A caller that leaves ends the process."""
    try:
        return await _run(machine, errand, told)
    except TimeoutError:
        raise TimedOut(f"the courier to {machine.name} is silent", "try again") from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = f"the courier to {machine.name} failed: {type(e).__name__}: {e}"
        raise Unavailable(why, "try again; see host.log") from e


async def _run(machine: Machine, errand: Json, told: Told) -> Json:
    process = await asyncio.create_subprocess_exec(
        *programs.module("holdfast.courier"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        limit=LINE_BYTES,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps({**errand, "machine": machines.show(machine)}).encode())
        process.stdin.close()
        while True:
            async with asyncio.timeout(SILENCE_S):
                line = await process.stdout.readline()
            if not line:
                raise Unavailable("the courier died", "try again; see host.log")
            said = json.loads(line)
            if "progress" in said:
                told(int(said["progress"]), int(said["of"]), float(said.get("until", 0.0)))
            elif "error" in said:
                raise from_wire(said["error"])
            else:
                done: Json = said["done"]
                return done
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.shield(process.wait())
