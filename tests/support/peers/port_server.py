"""A TCP server for sessions of tests: the first byte of a connection says what it does.

    E  echo every byte; at the end of the input, send its length and close
    H  send `bye`, end this direction, read to the end, and write the length to FILE
    F  send zeros without end

Run as `python port_server.py ADDRESS PORT FILE`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path


def note(count: int) -> None:
    Path(sys.argv[3]).write_text(str(count))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        what, count = await reader.readexactly(1), 0
        if what == b"H":
            writer.write(b"bye")
            writer.write_eof()
        while what == b"F":
            writer.write(bytes(65536))
            await writer.drain()
        while data := await reader.read(65536):
            count += len(data)
            if what == b"E":
                writer.write(data)
                await writer.drain()
        if what == b"E":
            writer.write(b"%d" % count)
        else:
            note(count)
        writer.close()
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]), backlog=256)
    async with server:
        await server.serve_forever()


asyncio.run(main())
