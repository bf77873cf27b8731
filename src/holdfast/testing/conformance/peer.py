"""A client that a case plays by hand against a real host."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.client.signing import Acting
from holdfast.core.record import acts
from holdfast.home.keys import Identity
from holdfast.model import signing
from holdfast.testing.conformance.report import WAIT_S, Failed, same
from holdfast.wire import frames, hello

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


@dataclass
class Answer:
    """All parts of the answer to a request, in the order of arrival."""

    ok: bool = False
    body: Json = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    parts: list[tuple[int, int, bytes | None]] = field(default_factory=list)  # None: a gap

    @property
    def data(self) -> bytes:
        return b"".join(data for _, _, data in self.parts if data is not None)

    def result(self) -> Json:
        if not self.ok:
            raise Failed(f"the host refused: {self.body}")
        return self.body

    def refused(self, name: str) -> None:
        if self.ok:
            raise Failed(f"the host did not refuse, and answered {self.body}")
        same(self.body.get("name"), name, "the error's name")


class Peer:
    def __init__(self, path: str, identity: Identity, client: int | None = None) -> None:
        self.identity = identity
        self.client = int.from_bytes(os.urandom(8), "little") | 2 if client is None else client
        self.sequence = 0
        self.welcome: Json = {}
        self.machine = ""
        self.acting = Acting()
        self._number = 0
        self._splitter = frames.Splitter(frames.FROM_HOST)
        self._ready: list[tuple[int, bytes]] = []
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(WAIT_S)
        self._sock.connect(path)

    def close(self) -> None:
        self._sock.close()

    # ------------------------------------------------------------ frames

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def next(self) -> tuple[int, bytes]:
        while not self._ready:
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError as e:
                raise Failed("the host sent nothing more") from e
            if not data:
                raise Failed("the host closed the connection without a reason")
            self._ready += self._splitter.feed(data)
        return self._ready.pop(0)

    def parting(self) -> str:
        """The reason of the BYE with which the host ends this connection."""
        while True:
            kind, payload = self.next()
            if kind == frames.BYE:
                return str(frames.read_json(payload).get("reason"))

    # ------------------------------------------------------------ the introduction

    def greet(self, **changed: object) -> Json:
        """Sends HELLO."""
        words: Json = {
            "version": frames.VERSION,
            "lowest": frames.LOWEST,
            "client": self.client,
            "operator": self.identity.name,
            "modality": "conformance",
            "key": signing.show(self.identity.public),
        }
        words.update(changed)
        self.send(frames.pack_json(frames.HELLO, words))
        return words

    def prove(self, words: Json, spoil: Callable[[bytes], bytes] = lambda it: it) -> None:
        """Answers CHALLENGE. `spoil` changes the signature."""
        kind, payload = self.next()
        same(kind, frames.CHALLENGE, "the answer to HELLO")
        challenge = frames.read_json(payload)
        self.machine = str(challenge["machine"])
        said = hello.statement(words, challenge)
        signature = spoil(signing.sign(self.identity.secret(), hello.DOMAIN, said))
        self.send(frames.pack_json(frames.PROOF, {"signature": signature.hex()}))
        binding = hello.binding(said, signature)
        self.acting.channel(self.identity, self.client, self.machine, binding)

    def introduce(self) -> Peer:
        self.prove(self.greet())
        kind, payload = self.next()
        same(kind, frames.WELCOME, f"the answer to PROOF ({payload[:80]!r})")
        self.welcome = frames.read_json(payload)
        return self

    # ------------------------------------------------------------ requests

    def begin(self, op: str, **fields: object) -> int:
        """Sends a request; gives its number on this connection."""
        self._number += 1
        self.send(frames.request(self._number, {"op": op, **fields}))
        return self._number

    def answer(self, number: int, on_event: Callable[[Json], None] = lambda event: None) -> Answer:
        found = Answer()
        while True:
            kind, payload = self.next()
            if kind == frames.REPLY:
                of, ok, body = frames.read_reply(payload)
                if of == number:
                    found.ok, found.body = ok, body
                    return found
            elif kind in (frames.DATA, frames.GAP):
                of, start, end, data = frames.read_data(memoryview(payload))
                if of == number:
                    found.parts.append((start, end, bytes(data) if kind == frames.DATA else None))
            elif kind == frames.EVENT:
                event = frames.read_json(payload)
                if event.get("request") == number:
                    found.events.append(event)
                    on_event(event)
            elif kind == frames.BYE:
                raise Failed(f"the host ended the connection: {frames.read_json(payload)}")

    def ask(self, op: str, **fields: object) -> Answer:
        return self.answer(self.begin(op, **fields))

    def signed(self, op: str, seq: int | None = None, **fields: object) -> Json:
        """The fields of an act with its signature, for the place as it is now."""
        where = acts.place(op, fields)
        target = self.acting.learn(where, self.ask("place", session=where).result())
        if seq is None:
            self.sequence += 1
        made = {**fields, "seq": self.sequence if seq is None else seq}
        self.acting.sign(op, made, target)
        return made

    def act(self, op: str, seq: int | None = None, **fields: object) -> Answer:
        return self.ask(op, **self.signed(op, seq, **fields))
