"""The worker process that runs a plug-in policy.

Run by host/policy/plugins.py as `python -m holdfast.host.policy.plugin_worker FD TARGET MEMORY
[PATH...]`. The worker limits its memory before it imports the plug-in, discards all output, and
dies with the host. The host sends questions one at a time over the descriptor, each as a length and
then JSON. The worker sends an answer with the number of the question.

If a plug-in forks, the child must not answer in the worker's place: the child exits when the
plug-in's function returns. The host trusts neither the plug-in nor this worker.
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
from typing import Final

LENGTH: Final = struct.Struct("!I")
QUESTION_BYTES_MAX: Final = 4 * 1024 * 1024
_PDEATHSIG: Final = 1
Question = dict[str, object]
Judge = Callable[[Question], object]


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
                os._exit(1)  # a child that the plug-in forked
            _send(link, answer)
    return 0


def _load(target: str) -> Judge:
    module, _, name = target.partition(":")
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target} is not callable")
    judge: Judge = found
    return judge


def _answer(judge: Judge, question: Question) -> dict[str, object]:
    number = question.pop("number")
    try:
        said = judge(question)
        json.dumps(said)
        return {"number": number, "answer": said}
    except MemoryError:
        return {"number": number, "error": "it used too much memory"}
    except (Exception, SystemExit) as e:
        return {"number": number, "error": f"{type(e).__name__}: {e}"[:300]}


def _receive(link: socket.socket) -> Question | None:
    head = _exactly(link, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    body = _exactly(link, length) if length <= QUESTION_BYTES_MAX else None
    if body is None:
        return None
    question: Question = json.loads(body)
    return question


def _exactly(link: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        piece = link.recv(length - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _send(link: socket.socket, answer: dict[str, object]) -> None:
    body = json.dumps(answer).encode()
    link.sendall(LENGTH.pack(len(body)) + body)


if __name__ == "__main__":
    sys.exit(main())
