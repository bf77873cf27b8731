"""WebSocket to the relay on another machine's loopback, through the system's `ssh` program.

`ssh -W 127.0.0.1:PORT BOX` connects its standard input and output to that port, so the machine
needs a stock sshd and no open port besides. Keys, names, jump hosts and agents are the business of
the user's ssh configuration. ssh gets no terminal and asks nothing (BatchMode): a question would
appear in the middle of an attached screen. The sealed channel is inside, as with every relay.

ssh ends when its standard input ends, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from typing import Final

from holdfast.model.address import Ssh
from holdfast.model.errors import Impossible, Unavailable
from holdfast.transport import unix
from holdfast.transport.websocket import WebSocket, handshake

SAID_BYTES: Final = 8192  # of ssh's messages that are read
SAID_CHARS: Final = 200
END_S: Final = 2.0  # for ssh to end by itself after its input has ended
NO_SSH: Final = "there is no `ssh` program here"


def command(way: Ssh, wait_s: float, *more: str) -> list[str]:
    """Return the command line: options, the caller's own, and the machine."""
    return [
        "ssh",
        "-T",
        *("-o", "BatchMode=yes"),
        *("-o", "LogLevel=ERROR"),
        *("-o", f"ConnectTimeout={max(1, int(wait_s))}"),
        *(("-p", str(way.port)) if way.port else ()),
        *more,
    ]


def failed(way: Ssh, said: bytes) -> Unavailable:
    """Return the error with ssh's own last line."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip()[:SAID_CHARS] if lines else "it ended without a message"
    return Unavailable(
        f"ssh to {way.host} failed: {last if last.isprintable() else ascii(last)}",
        f"try `ssh {way.destination}` yourself; it must not ask for anything. `holdfast up` there"
        " starts the relay",
    )


class OverSsh(WebSocket):
    """A WebSocket whose socket is the standard input and output of ssh."""

    def __init__(self, way: Ssh, wait_s: float) -> None:
        assert way.relay is not None
        self._way, deadline = way, time.monotonic() + wait_s
        ours, theirs = unix.pair()
        self._said, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._process = subprocess.Popen(
                command(way, wait_s, "-W", f"127.0.0.1:{way.relay}", "--", way.destination),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=said,
                start_new_session=True,  # no terminal to ask on, and no Ctrl-C meant for others
            )
        except OSError as e:
            ours.close()
            os.close(self._said)
            raise Impossible(f"{NO_SSH}: {e.strerror}", "install OpenSSH's client") from e
        finally:
            theirs.close()
            os.close(said)
        try:
            url = f"ws://127.0.0.1:{way.relay}"
            super().__init__(ours, *handshake(ours, url, f"on {way.host}", None, deadline))
        except Unavailable as e:
            said_last = self._leave(ours)
            raise (failed(way, said_last) if said_last else e) from e
        except BaseException:
            self._leave(ours)
            raise

    def receive(self) -> list[bytes]:
        try:
            return super().receive()
        except Unavailable as e:
            if said := self._messages():
                raise failed(self._way, said) from e
            raise

    def close(self) -> None:
        super().close()
        self._leave(self._sock)

    def _leave(self, sock: socket.socket) -> bytes:
        """Let ssh end, without waiting; return its messages. May be called again."""
        sock.close()
        if self._said < 0:
            return b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)  # to collect the last message of an ssh that failed
        said = self._messages()
        os.close(self._said)
        self._said = -1
        threading.Thread(target=self._reap, name="leaving ssh", daemon=True).start()
        return said

    def _messages(self) -> bytes:
        try:
            return os.read(self._said, SAID_BYTES) if self._said >= 0 else b""
        except BlockingIOError:
            return b""

    def _reap(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def dial(way: Ssh, wait_s: float) -> OverSsh:
    """Connect. Raises Unavailable with ssh's last line if ssh fails."""
    return OverSsh(way, wait_s)
