"""The process that touches the files of one session, for one request at a time.

Run by host/requests/files/workers.py as `python -m holdfast.host.requests.files.worker FD PID
START`. A file system that does not answer blocks this process alone, and the host ends it. Both
sides send messages: length u32, kind u8, payload. A kind is JSON (a request, or an answer) or DATA
(bytes of a file; none: the end of an upload). The last answer to a request has `reply` or `error`.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

from holdfast.host.requests.files import changing, looking
from holdfast.host.requests.files.session_root import Refusal, SessionRoot

HEAD = struct.Struct("<IB")
JSON, DATA = 0, 1
MESSAGE_BYTES = 8 << 20
_NAMES = {
    errno.ENOENT: "not_found",
    errno.ESRCH: "not_found",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
    errno.EROFS: "refused",
    errno.EBUSY: "busy",
    errno.EWOULDBLOCK: "busy",
}
Json = dict[str, Any]


class Line:
    """The socket to the host."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, body: Json) -> None:
        data = json.dumps(body).encode()
        self._sock.sendall(HEAD.pack(len(data), JSON) + data)

    def tell(self, body: Json) -> None:
        self.send({"told": body})

    def give(self, data: memoryview) -> None:
        head = HEAD.pack(len(data), DATA)
        sent = self._sock.sendmsg((head, data)) - len(head)
        if sent < len(data):
            self._sock.sendall(data[sent:])

    def taken(self) -> memoryview:
        """The next bytes of an upload; none: the end."""
        kind, data = self.receive()
        if kind != DATA:
            raise EOFError
        return data

    def receive(self) -> tuple[int, memoryview]:
        """The next message; the end of the host ends this process."""
        length, kind = HEAD.unpack(self._exactly(HEAD.size))
        if length > MESSAGE_BYTES:
            os._exit(1)
        return kind, self._exactly(length)

    def _exactly(self, length: int) -> memoryview:
        data, at = memoryview(bytearray(length)), 0
        while at < length:
            count = self._sock.recv_into(data[at:])
            if not count:
                raise EOFError
            at += count
        return data


def main() -> None:
    pid, start, fd = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Line(socket.socket(fileno=fd))
    os.umask(0o022)
    try:
        root = SessionRoot(pid, start)
    except (OSError, ValueError, KeyError) as e:
        line.send({"error": ["impossible", f"the files of this session cannot be reached: {e}"]})
        return
    line.send({"reply": {}})
    while True:
        kind, data = line.receive()
        if kind == DATA:
            continue  # the rest of an upload that failed
        line.send(_answer(line, root, json.loads(bytes(data))))


def _answer(line: Line, root: SessionRoot, q: Json) -> Json:
    try:
        return {"reply": _do(line, root, q)}
    except Refusal as e:
        return {"error": [e.name, e.message]}
    except OSError as e:
        name = _NAMES.get(e.errno or 0, "impossible")
        if e.errno == errno.ELOOP:
            return {"error": ["refused", f"{e.filename}: a link that is not followed here"]}
        about = f"{e.filename}: " if isinstance(e.filename, str) else ""
        return {"error": [name, f"{about}{e.strerror or e}"]}


def _do(line: Line, root: SessionRoot, q: Json) -> Json:
    match q["op"]:
        case "where":
            return {"paths": _where(root, q["paths"], q["into"])}
        case "ls":
            return looking.ls(root, q)
        case "stat":
            return looking.stat(root, q)
        case "search":
            return looking.search(root, q)
        case "get":
            return looking.get(root, q, line.tell, line.give)
        case "put":
            return changing.put(root, q, line.tell, line.taken)
        case "rm":
            return changing.rm(root, q)
        case "mv":
            return changing.mv(root, q)
    raise Refusal("usage", f"unknown operation {q['op']!a}")


def _where(root: SessionRoot, paths: list[str], into: str) -> list[str]:
    """Absolute paths. If the last is a directory, the file `into` in it is meant."""
    found = [root.absolute(path) for path in paths]
    if into:
        try:
            os.close(root.open(found[-1], os.O_PATH | os.O_DIRECTORY))
            found[-1] = f"{found[-1].rstrip('/')}/{into}"
        except (FileNotFoundError, NotADirectoryError):
            pass
    return found


if __name__ == "__main__":
    try:
        main()
    except (EOFError, OSError):
        os._exit(0)
