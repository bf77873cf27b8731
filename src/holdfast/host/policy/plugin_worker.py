"""A plug-in policy, in a process of its own.

Run by host/plugins.py as `python -m holdfast.host.policyworker FD TARGET MEMORY [PATH...]`. Its memory is limited before the
plug-in is imported; what it prints goes nowhere; it dies with the host. One question at a time comes over the descriptor, as
JSON behind its length, and one answer goes back with the question's number.

The worker believes nothing of the plug-in but its answer, and the host nothing of the worker: a plug-in that forks leaves a
child that must not answer in its place, so the child ends as soon as it comes back here.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
QUESTION_BYTES_MAX: Final = 4 * 1024 * 1024
_PDEATHSIG: Final = 1


def main() -> int:
    fd, target, memory, *paths = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:0] = paths
    own = os.getpid()
    with socket.socket(fileno=int(fd)) as link:
        try:
            judge = _load(target)
        except BaseException as e:
            _send(link, {"broken": f"{type(e).__name__}: {e}"[:300]})
            return 1
        _send(link, {"ready": True})
        while (question := _receive(link)) is not None:
            answer = _answer(judge, question)
            if os.getpid() != own:
                os._exit(1)  # a child that the plug-in made and that came back
            _send(link, answer)
    return 0


def _load(target: str) -> Callable[[dict[str, Any]], Any]:
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target} is not callable")
    judge: Callable[[dict[str, Any]], Any] = found
    return judge


def _answer(judge: Callable[[dict[str, Any]], Any], question: dict[str, Any]) -> dict[str, Any]:
    number = question.pop("number")
    try:
        said = judge(question)
        json.dumps(said)
        return {"number": number, "answer": said}
    except MemoryError:
        return {"number": number, "error": "it used too much memory"}
    except (Exception, SystemExit) as e:
        return {"number": number, "error": f"{type(e).__name__}: {e}"[:300]}


def _receive(link: socket.socket) -> dict[str, Any] | None:
    head = _exactly(link, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    body = _exactly(link, length) if length <= QUESTION_BYTES_MAX else None
    if body is None:
        return None
    question: dict[str, Any] = json.loads(body)
    return question


def _exactly(link: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        piece = link.recv(length - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _send(link: socket.socket, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    link.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    sys.exit(main())
