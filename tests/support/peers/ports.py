"""Servers in sessions, and connections to them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from pathlib import Path

from tests.support.installation import DEADLINE_S, Installation

SERVER = Path(__file__).parent / "port_server.py"
# Contained sessions see the system's Python, but not every Python that made a virtual environment.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def serve(hf: Installation, session: str, port: int, address: str = "127.0.0.1") -> None:
    """Starts the server in the session, in the background, from a copy that every session sees."""
    words = f"{PYTHON} -I - {address} {port} {hf.user}/counted"
    said = f"{words} <<'EOF' &\n{SERVER.read_text()}\nEOF"
    hf.ok("run", session, "--", said)
    hf.ok("wait", session, "--for", f"port:{port}", "--timeout", str(DEADLINE_S))


async def exchanged(address: str, first: bytes, data: bytes) -> bytes:
    """Sends, ends the direction, and reads to the end."""
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(first + data)
    writer.write_eof()
    got = await reader.read(-1)
    writer.close()
    return got
