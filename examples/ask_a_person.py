"""Runs a program in a session until it asks for input, then hands the turn to a person.

    python ask_a_person.py SESSION COMMAND PERSON

The program does not guess from silence: the kernel says that a process waits for input.
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def main(name: str, command: str, person: str) -> None:
    async with holdfast.connect() as client:
        session = await client.sessions.get(name)
        running = await session.start(command)
        seen = await session.wait("input", "secret", "idle")
        if seen.for_ != "idle":
            print(f"{command} waits for {seen.for_}: {seen.seen}")
            await session.turn.hand(person)
            print(f"{person} has the turn: `holdfast attach {name}`")
        result = await running.wait()
        print(f"{command} ended with {result.exit_code}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
