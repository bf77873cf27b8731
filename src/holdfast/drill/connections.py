"""The provocation of a lost connection (drill/checks.py lists it)."""

from __future__ import annotations

import asyncio
import shlex
import socket
import struct
import sys

from holdfast.drill.stage import SOON_S, Stage, expect

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends a reset
_CLIENT = (
    "import socket, sys; one = socket.create_connection(('127.0.0.1', {port}))\n"
    "try: one.recv(1)\n"
    "except OSError as e: print(type(e).__name__)"
)


async def connection_reset(stage: Stage) -> str:
    session = await stage.session()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        before = await stage.metric("holdfast_connections_watched")
        running = await session.start(
            f"{sys.executable} -c {shlex.quote(_CLIENT.format(port=port))}"
        )
        accept = asyncio.get_running_loop().sock_accept(server)
        peer, address = await asyncio.wait_for(accept, SOON_S)
        with peer:

            async def known() -> bool:
                return await stage.metric("holdfast_connections_watched") > before

            await stage.until(known, "the host knows the connection")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            async with stage.counted("holdfast_connections_lost_total", kind="reset"):
                peer.close()
                [lost] = await stage.until(
                    lambda: stage.events(session, "connection.lost"), "connection.lost"
                )
    done = await running.wait()
    facts = lost.facts
    expect(done.output == "ConnectionResetError\n", f"the program saw {done.output!r}")
    expect(facts["remote"] == f"127.0.0.1:{port}", f"the peer is {facts['remote']}")
    expect(facts["local"] == f"127.0.0.1:{address[1]}", f"this end is {facts['local']}")
    expect(facts["act"] == running.ref, f"the act is {facts['act']}, not {running.ref}")
    return f"connection.lost kind={facts['kind']} of {facts['program']} to {facts['remote']}"
