"""Runs one command in every session whose shell is free, at the same time.

python many_sessions.py COMMAND
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def one(client: holdfast.Client, path: str, name: str, command: str) -> str:
    try:
        session = await client.sessions.get(path)
        result = await session.run(command, turn="fail", timeout=60)
    except holdfast.HoldfastError as e:
        return f"{name}: {e.message} ({e.recover})"
    return f"{name}: {result.state}, exit code {result.exit_code}\n{result.output}"


async def main(command: str) -> None:
    async with holdfast.connect() as client:
        found = await client.sessions.list()
        calls = (one(client, session.path, session.name, command) for session in found)
        for shown in await asyncio.gather(*calls):
            print(shown)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
