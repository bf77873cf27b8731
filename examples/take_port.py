"""Takes the port of a development server to this machine, and waits for the server if need be.

    python take_port.py SESSION PORT

SESSION may be on another machine (`box/dev`). New connections work again after a restart of the
host or the relay.
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def main(name: str, port: int) -> None:
    async with holdfast.connect() as client:
        session = await client.sessions.get(name)
        await session.wait(f"port:{port}")
        async with session.forward(port) as forward:
            print(f"http://{forward.address}/", flush=True)
            await forward.wait()
    print("the session has ended")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
