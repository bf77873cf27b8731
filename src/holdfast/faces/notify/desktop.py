"""Desktop notifications: the interface org.freedesktop.Notifications over the session's D-Bus.

Commands like `notify-send` would show the text of an act in the list of processes, so this module
speaks D-Bus itself: little-endian messages, with the few types that these calls need. Each notice
has a connection of its own, so a restart of the bus or of the desktop needs no care.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Mapping
from html import escape
from typing import Final
from urllib.parse import unquote

from holdfast.core.session.waits import Wait
from holdfast.faces.notify.following import short
from holdfast.model.errors import Impossible, Unavailable

ANSWER_S: Final = 10.0  # the bus may have to start the service first
MESSAGE_MAX: Final = 1 << 20
CALL, RETURN, ERROR = 1, 2, 3
PATH, INTERFACE, MEMBER, ERROR_NAME, REPLY_TO, DESTINATION, SIGNATURE = 1, 2, 3, 4, 5, 6, 8
BUS: Final = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
NOTICES: Final = (
    "org.freedesktop.Notifications",
    "/org/freedesktop/Notifications",
    "org.freedesktop.Notifications",
)


class Writer:
    """The bytes of a message, or of a body."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int) -> None:
        self.data += bytes(-len(self.data) % size)

    def uint(self, value: int) -> None:
        self.align(4)
        self.data += struct.pack("<I", value)

    def text(self, value: str) -> None:
        raw = value.encode()
        self.uint(len(raw))
        self.data += raw + b"\0"

    def field(self, code: int, kind: str, value: str) -> None:
        """A field of the header: `kind` is the type, `s`, `o` or `g`."""
        self.align(8)
        self.data += bytes((code, 1)) + kind.encode() + b"\0"
        if kind == "g":
            self.data += bytes((len(value),)) + value.encode() + b"\0"
        else:
            self.text(value)


def call(serial: int, to: tuple[str, str, str], member: str, signature: str, body: bytes) -> bytes:
    """A method call. `to`: the service, the object and the interface."""
    fields = Writer()
    for code, kind, value in (
        (PATH, "o", to[1]),
        (INTERFACE, "s", to[2]),
        (MEMBER, "s", member),
        (DESTINATION, "s", to[0]),
        *([(SIGNATURE, "g", signature)] if signature else []),
    ):
        fields.field(code, kind, value)
    head = Writer()
    head.data += struct.pack("<cBBBII", b"l", CALL, 0, 1, len(body), serial)
    head.uint(len(fields.data))
    head.data += fields.data  # begins at 16, so the alignment of the fields holds
    head.align(8)
    return bytes(head.data) + body


class Bus:
    """A connection to the session bus of this account. Raises OSError or ValueError."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._serial = 0
        try:
            self._socket.connect(address)
            self._file = self._socket.makefile("rb")
            name = str(os.geteuid()).encode().hex()
            self._socket.sendall(f"\0AUTH EXTERNAL {name}\r\n".encode())
            if not (said := self._file.readline(1024)).startswith(b"OK "):
                raise ValueError(f"the bus refuses this account: {said[:80]!r}")
            self._socket.sendall(b"BEGIN\r\n")
            self.ask(BUS, "Hello")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(
        self, to: tuple[str, str, str], member: str, signature: str = "", body: bytes = b""
    ) -> bytes:
        """The body of the reply."""
        self._serial += 1
        self._socket.sendall(call(self._serial, to, member, signature, body))
        while True:
            kind, order, fields, found = self._message()
            if fields.get(REPLY_TO) != self._serial:
                continue  # a signal, like that of our name
            if kind == ERROR:
                size = struct.unpack_from(order + "I", found)[0] if len(found) >= 4 else 0
                why = found[4 : 4 + size].decode("utf-8", "replace")
                raise ValueError(why or str(fields.get(ERROR_NAME)))
            return found

    def _message(self) -> tuple[int, str, dict[int, str | int], bytes]:
        head = self._exactly(16)
        order = "<" if head[:1] == b"l" else ">"
        size, _, fields = struct.unpack(order + "III", head[4:])
        if size + fields > MESSAGE_MAX:
            raise ValueError("a message of the bus is too large")
        found = self._exactly(fields + -fields % 8)
        return head[1], order, _fields(found[:fields], order), self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionResetError("the bus closed the connection")
        return data


def _fields(data: bytes, order: str) -> dict[int, str | int]:
    """Header fields with a text or a number."""
    found: dict[int, str | int] = {}
    at = 0
    while at < len(data):
        at += -at % 8
        code, kind = data[at], data[at + 2 : at + 3]
        at += 4
        if kind == b"g":
            at += data[at] + 2
            continue
        (size,) = struct.unpack_from(order + "I", data, at)
        at += 4
        if kind == b"u":
            found[code] = size
        else:  # `s`, `o`
            found[code] = data[at : at + size].decode("utf-8", "replace")
            at += size + 1
    return found


def socket_of(environ: Mapping[str, str]) -> str:
    """The socket of the session bus; an abstract address begins with a NUL."""
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    given = environ.get("DBUS_SESSION_BUS_ADDRESS") or f"unix:path={runtime}/bus"
    for one in given.split(";"):
        for part in one.removeprefix("unix:").split(",") if one.startswith("unix:") else ():
            name, _, value = part.partition("=")
            if name in ("path", "abstract"):
                return ("\0" if name == "abstract" else "") + unquote(value)
    raise ValueError("the address of the session bus names no socket")


class Desktop:
    """Raises Impossible if no service shows notifications on this desktop."""

    name = "desktop"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        try:
            with Bus(socket_of(environ)) as bus:
                # The answer is a list of texts, each after a length.
                self._markup = b"\0body-markup\0" in bus.ask(NOTICES, "GetCapabilities")
        except (OSError, ValueError, struct.error, IndexError) as e:
            raise Impossible(
                f"no desktop takes notifications here: {e}",
                "run this in a desktop session, or use --terminal or --webhook URL",
            ) from e

    async def send(self, wait: Wait) -> None:
        try:
            await asyncio.to_thread(self._notify, wait.title, short(wait))
        except (OSError, ValueError, struct.error, IndexError) as e:
            raise Unavailable(f"the desktop does not take it: {e}") from e

    def _notify(self, title: str, text: str) -> None:
        body = Writer()
        body.text("holdfast")
        body.uint(0)  # replaces no other notification
        body.text("")  # no icon
        body.text(title)
        body.text(escape(text, quote=False) if self._markup else text)
        body.uint(0)  # no actions
        body.uint(0)  # no hints; the array still ends at a multiple of 8
        body.align(8)
        body.data += struct.pack("<i", -1)  # the desktop decides how long
        with Bus(socket_of(self._environ)) as bus:
            bus.ask(NOTICES, "Notify", "susssasa{sv}i", bytes(body.data))
