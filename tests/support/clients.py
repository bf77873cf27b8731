"""Clients that tests kill, cut, stall and compare.

`Lean` speaks the wire itself, without a process: two hundred of them cost little, and every
received frame is kept as a history. `Attached` is the real `holdfast attach` on its own terminal;
its output is kept, and shown to an `Eye`. Both reconnect by themselves when their host dies and
resend unacknowledged input.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import signal
import socket
import struct
import termios
import time
from collections import deque
from typing import Any

from holdfast.model.errors import Unavailable, from_wire
from holdfast.transport import unix
from holdfast.wire import frames
from tests.support.checkers.history import Outcome, Output, Screen, Sent, Shown
from tests.support.checkers.screen_model import Eye
from tests.support.peers.introduction import Introduction
from tests.support.stage import COLS, ROWS, Stage

RETRY_S = 0.02
READ_BYTES = 1 << 18
TERMINAL_READS = 64  # in one turn


class Lean:
    def __init__(
        self,
        stage: Stage,
        session: str,
        operator: str = "tester",
        observe: bool = False,
        size: tuple[int, int] = (COLS, ROWS),
        eye: bool = False,
        scrollback: int = 0,
        second: bool = True,
    ) -> None:
        self.stage, self.session, self.operator, self.observe, self.size = (
            stage,
            session,
            operator,
            observe,
            size,
        )
        self.client = int.from_bytes(os.urandom(8), "little") | 2
        self.log: list[Shown] = []
        self.screens: list[tuple[int, int]] = []  # (offset, reason) of each screen that came
        self.events: list[dict[str, Any]] = []
        self.position: int | None = None
        self.acked = 0
        self.number = 0
        self.refused: set[int] = set()
        self.sent: dict[int, bytes] = {}
        self.eye = Eye(*size, second) if eye else None
        self.scrollback = scrollback
        self.live = False  # attached; output comes
        self.gone = False  # this client is dead for good
        self.stalled = False
        self.away = False  # does not try to come back for now
        self.ended: dict[str, Any] | None = None
        self.error: Exception | None = None
        self.connects = 0
        self._sock: socket.socket | None = None
        self._splitter = frames.Splitter(frames.FROM_HOST)
        self._out = bytearray()
        self._retry_at = 0.0
        stage.clients.append(self)
        stage.pump.every(self._tick)

    # ------------------------------------------------------------ life

    def _tick(self) -> None:
        if self.gone:
            return
        if (
            self._sock is None
            and time.monotonic() >= self._retry_at
            and self.ended is None
            and not self.away
        ):
            self._connect()
        if self._out and self._sock is not None:
            self._flush()

    def _connect(self) -> None:
        try:
            sock = unix.connect(self.stage.home.host_socket)
        except OSError:
            self._retry_at = time.monotonic() + RETRY_S
            return
        sock.setblocking(False)
        self._sock = sock
        self._splitter = frames.Splitter(frames.FROM_HOST)
        self.connects += 1
        self._introduction = Introduction(self.stage.home, self.client, self.operator)
        self._out = bytearray(self._introduction.hello)
        self._after = frames.request(
            1,
            {
                "op": "attach",
                "session": self.session,
                "cols": self.size[0],
                "rows": self.size[1],
                "observe": self.observe,
                "scrollback": self.scrollback,
                "resume": self.position,
            },
        )
        if not self.stalled:
            self.stage.pump.add(sock.fileno(), self._readable)
        self._flush()

    def _flush(self) -> None:
        assert self._sock is not None
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            if not self.stalled:
                self._readable()  # the host's last frames count; the end follows

    def _readable(self) -> None:
        sock = self._sock
        if sock is None:
            return None
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._lost()
        for kind, payload in self._splitter.feed(data):
            self._frame(kind, payload)
            if self._sock is None:
                return None

    def _lost(self) -> None:
        if self._sock is not None:
            if not self.stalled:
                self.stage.pump.remove(self._sock.fileno())
            self._sock.close()
        self._sock, self.live = None, False
        self._retry_at = time.monotonic() + RETRY_S

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.CHALLENGE:
            self._out += self._introduction.proof(payload)
            return self._flush()
        if kind == frames.WELCOME:
            self._out += self._after
            return self._flush()
        if kind == frames.OUTPUT:
            begin, end, acked, data = frames.read_output(memoryview(payload))
            self.log.append(Output(begin, end, bytes(data)))
            self.position = end
            self.acked = max(self.acked, acked)
            if self.eye is not None and len(data):
                self.eye.feed(data)
        elif kind == frames.SCREEN:
            offset, acked, reason, _, _, data = frames.read_screen(memoryview(payload))
            self.log.append(Screen(offset))
            self.screens.append((offset, reason))
            self.position = offset
            self.acked = max(self.acked, acked)
            if self.eye is not None:
                self.eye.feed(data)
        elif kind == frames.REPLY:
            number, ok, body = frames.read_reply(payload)
            if number == 1:
                self._attached(ok, body)
        elif kind == frames.EVENT:
            body = frames.read_json(payload)
            self.events.append(body)
            if body["event"] == "ended":
                self.ended = body
            elif body["event"] == "refused" and "number" in body:
                self.refused.add(int(body["number"]))

    def _attached(self, ok: bool, body: dict[str, Any]) -> None:
        if not ok:
            error = from_wire(body)
            if not isinstance(
                error, Unavailable
            ):  # as a session whose keeper is just being claimed again
                self.error, self.gone = error, True
            return self._lost()
        self.live = True
        self.acked = max(self.acked, int(body["acked"]))
        for number, data in self.sent.items():
            if number > self.acked and number not in self.refused:
                self._out += frames.input_(number, data, frames.INPUT_ACK)
        self._flush()

    # ------------------------------------------------------------ acts

    def attached(self) -> Lean:
        self.stage.pump.until(
            lambda: (self.live and self.position is not None) or self.error,
            f"{self.session} is attached",
        )
        assert self.error is None, self.error
        return self

    def type(self, data: bytes, ack: bool = True) -> int:
        self.number += 1
        self.sent[self.number] = data
        if self.live and self._sock is not None:
            self._out += frames.input_(self.number, data, frames.INPUT_ACK if ack else 0)
            self._flush()
        return self.number

    def resize(self, cols: int, rows: int) -> None:
        self.size = (cols, rows)
        self._out += frames.resize(0, cols, rows)
        self._flush()

    def stall(self) -> None:
        """Stops reading, as a suspended terminal does."""
        assert not self.stalled
        self.stalled = True
        if self._sock is not None:
            self.stage.pump.remove(self._sock.fileno())

    def unstall(self) -> None:
        assert self.stalled
        self.stalled = False
        if self._sock is not None:
            self.stage.pump.add(self._sock.fileno(), self._readable)

    def cut(self) -> None:
        """Break the connection, at any byte; the client reconnects and continues where it was."""
        self._lost()

    def kill(self) -> None:
        """Kill the client, without a reconnect."""
        self.gone = True
        self._lost()

    def close(self) -> None:
        self.kill()
        if self.eye is not None:
            self.eye.close()
            self.eye = None
        if self in self.stage.clients:
            self.stage.clients.remove(self)
            self.stage.pump.no_more(self._tick)

    # ------------------------------------------------------------ history

    def history(self) -> list[Sent]:
        return [
            Sent(
                self.client,
                n,
                data,
                Outcome.REFUSED
                if n in self.refused
                else Outcome.ACKED
                if n <= self.acked
                else Outcome.UNKNOWN,
            )
            for n, data in self.sent.items()
        ]

    @property
    def settled(self) -> bool:
        """All that was typed has been acknowledged or refused."""
        return all(n <= self.acked or n in self.refused for n in self.sent)


class Attached:
    """`holdfast attach` on a terminal. `data` has all bytes written there."""

    def __init__(
        self,
        stage: Stage,
        session: str,
        *options: str,
        size: tuple[int, int] = (COLS, ROWS),
        eye: bool = True,
        env: dict[str, str] | None = None,
        second: bool = True,
    ) -> None:
        self.stage = stage
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        os.set_blocking(self.master, False)
        self.data = bytearray()
        self.eye = Eye(*size, second) if eye else None
        self.stalled = False
        self._out: deque[bytes] = deque()
        self.before = termios.tcgetattr(slave)
        self.pid = stage.forge.cli(stage.env | (env or {}), ["attach", session, *options], slave)
        self._slave = slave  # kept open: output of the client stays readable after its death
        self.status: int | None = None
        stage.clients.append(self)
        stage.pump.add(self.master, self._readable)
        stage.pump.every(self._tick)

    def _tick(self) -> None:
        while self._out:
            try:
                n = os.write(self.master, self._out[0])
            except BlockingIOError:
                return
            if n < len(self._out[0]):
                self._out[0] = self._out[0][n:]
            else:
                self._out.popleft()

    def _readable(self) -> None:
        """Read all available bytes, as a terminal does, not only the kernel's 4 KiB."""
        for _ in range(TERMINAL_READS):
            try:
                data = os.read(self.master, 1 << 16)
            except (BlockingIOError, OSError):
                return
            self.data += data
            if self.eye is not None:
                self.eye.feed(data)

    def attached(self) -> Attached:
        self.stage.pump.until(
            lambda: b"to detach" in self.data and len(self.data) > 300,
            lambda: f"attach shows a screen: {bytes(self.data[-500:])!r}",
        )
        return self

    def type(self, data: bytes) -> None:
        self._out.append(data)
        self._tick()

    def stall(self) -> None:
        self.stalled = True
        self.stage.pump.remove(self.master)

    def unstall(self) -> None:
        self.stalled = False
        self.stage.pump.add(self.master, self._readable)

    def resize(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    @property
    def running(self) -> bool:
        return self.status is None and self.stage.running(self.pid)

    def kill(self, number: int = signal.SIGKILL) -> int:
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; return the exit code, negative for a signal."""
        if self.status is None:
            self.stage.pump.until(
                lambda: not self.stage.running(self.pid),
                lambda: f"attach ends: {bytes(self.data[-300:])!r}",
            )
            self.status = self.stage.forge.wait(self.pid)
            if not self.stalled:
                self._readable()
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.status = self.stage.forge.wait(self.pid)
        if self in self.stage.clients:
            self.stage.clients.remove(self)
            self.stage.pump.no_more(self._tick)
            if not self.stalled:
                self.stage.pump.remove(self.master)
            os.close(self.master)
            os.close(self._slave)
            if self.eye is not None:
                self.eye.close()
                self.eye = None
