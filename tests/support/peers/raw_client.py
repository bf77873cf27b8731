"""A client that sends arbitrary bytes."""

from __future__ import annotations

import json
import random
import socket
import struct
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.model import signing
from holdfast.wire import frames
from tests.support.installation import DEADLINE_S, Installation
from tests.support.peers.introduction import Introduction

HELLO: dict[str, Any] = {
    "version": frames.VERSION,
    "lowest": frames.LOWEST,
    "client": 77,
    "operator": "tester",
    "modality": "test",
    "key": signing.show(signing.public(bytes(32))),
}


class Raw:
    """A connection that sends exactly the given bytes."""

    def __init__(self, hf: Installation, hello: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(str(hf.home / "run/host.sock"))
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self.ready: list[tuple[int, bytes]] = []
        if hello:
            assert self.introduce(hf, random.getrandbits(63) | 2)[0] == frames.WELCOME

    def introduce(self, hf: Installation, client: int, **odd: Any) -> tuple[int, bytes]:
        introduction = Introduction(homes.resolve(hf.env), client, **odd)
        self.send(introduction.hello)
        kind, challenge = self.frame()
        assert kind == frames.CHALLENGE
        self.send(introduction.proof(challenge))
        return self.frame()

    def send(self, data: bytes) -> Raw:
        self.sock.sendall(data)
        return self

    def push(self, data: bytes) -> Raw:
        """The same, though the host may close before it has read all bytes."""
        try:
            return self.send(data)
        except ConnectionError:
            return self

    def frame(self) -> tuple[int, bytes]:
        while not self.ready:
            data = self.sock.recv(1 << 18)
            if not data:
                raise EOFError
            self.ready.extend(self.splitter.feed(data))
        return self.ready.pop(0)

    def ask(self, body: Any, number: int = 1) -> tuple[bool, dict[str, Any]]:
        self.send(
            frames.frame(frames.REQUEST, struct.pack("<I", number) + json.dumps(body).encode())
        )
        while True:
            kind, payload = self.frame()
            if kind == frames.REPLY:
                answered, ok, result = frames.read_reply(payload)
                if answered == number:
                    return ok, result

    def farewell(self) -> dict[str, Any] | None:
        """The last frame of the host before a close; None if the host closes without a word."""
        try:
            while True:
                kind, payload = self.frame()
                if kind == frames.BYE:
                    last = frames.read_json(payload)
                    with pytest.raises((EOFError, ConnectionError)):
                        self.frame()
                    return last
        except (EOFError, ConnectionError):
            return None

    def close(self) -> None:
        self.sock.close()
