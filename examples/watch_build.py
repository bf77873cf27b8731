"""Runs a build in a session, streams its output and says how it ended.

    python watch_build.py SESSION COMMAND

The build belongs to the session: it goes on if this program ends, and the printed reference leads
to its exit code later (`holdfast resolve REF`).
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def main(name: str, command: str) -> int:
    async with holdfast.connect() as client:
        session = await client.sessions.get(name)
        build = await session.start(command)
        print(f"started as {build.ref}", file=sys.stderr)
        async for chunk in build:
            sys.stdout.buffer.write(chunk.data)
            sys.stdout.flush()
        result = await build.wait()
        print(f"the build ended with {result.exit_code}", file=sys.stderr)
        return result.exit_code or 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2])))
