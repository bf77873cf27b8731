"""A host that a case plays by hand: it listens, checks each frame of the client, and answers.

The host verifies every introduction and every signed act as a real host does. Answers are made
from the types of the contract, so that a client sees the fields of a real host.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.contract.codec import encode
from holdfast.core.contract.message import Recorded, Size
from holdfast.core.contract.sessions import ActTarget, Listed, Liveness, Range, Summary
from holdfast.core.record import acts, statement
from holdfast.model import canonical, ids, signing
from holdfast.testing.conformance.report import WAIT_S, Failed, expect, same
from holdfast.wire import frames, hello

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

SESSION: Final = "c0nf0rmance0"
NAME: Final = "conformance"
EPOCH: Final = 3
OPERATOR: Final = "tester"
MODALITY: Final = "conformance"
HELLO_FIELDS: Final = frozenset(
    ("version", "lowest", "client", "operator", "modality", "key", "about", "announce", "credit")
)


class Asked(NamedTuple):
    """A request of the client."""

    number: int
    body: Json


class ScriptedHost:
    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/host.sock"
        self.private, self.machine_private = signing.generate(), signing.generate()
        self.key = signing.show(signing.public(self.private))
        self.machine = signing.show(signing.public(self.machine_private))
        self.seen: str = os.urandom(32).hex()
        self.entries = 0
        self._listener: socket.socket | None = None
        self._open: list[Conversation] = []
        self.listen()

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(WAIT_S)
        self._listener.bind(self.path)
        self._listener.listen(8)

    def fileno(self) -> int:
        assert self._listener is not None
        return self._listener.fileno()

    def accept(self) -> Conversation:
        """The next connection, before its introduction."""
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except TimeoutError as e:
            raise Failed("the client did not connect") from e
        made = Conversation(self, sock)
        self._open.append(made)
        return made

    def meet(self) -> Conversation:
        """The next connection, introduced and welcomed."""
        made = self.accept()
        made.introduce()
        return made

    def leave(self) -> None:
        """Stops listening, as a host that is gone."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            os.unlink(self.path)

    def close(self) -> None:
        self.leave()
        for one in self._open:
            one.close()

    # ------------------------------------------------------------ answers of this host

    def place(self) -> Json:
        return encode(ActTarget(id=SESSION, epoch=EPOCH, seen=self.seen, name=NAME))

    def summary(self) -> Json:
        return encode(
            Summary(
                id=SESSION,
                name=NAME,
                machine="scripted",
                state="detached",
                liveness=Liveness(process="running", host="here", relay="none"),
                epoch=EPOCH,
                created=1.5,
                idle_s=0.0,
                size=Size(cols=80, rows=24),
                output=Range(start=0, end=0),
                ref=f"hf:{SESSION}@{EPOCH}",
            )
        )

    def listed(self) -> Json:
        body = encode(Listed(sessions=()))
        return {**body, "sessions": [self.summary()]}

    def recorded(self, client: str, number: int) -> Json:
        """A new entry of the record, and the receipt for its client."""
        self.entries += 1
        self.seen = os.urandom(32).hex()
        ack = canonical.encode(
            {
                "v": 1,
                "session": SESSION,
                "seq": self.entries,
                "hash": self.seen,
                "time": 0,
                "client": client,
                "number": number,
            }
        )
        signature = signing.sign(self.machine_private, "ack/1", ack).hex()
        return encode(
            Recorded(seq=self.entries, hash=self.seen, ack=ack.decode(), signature=signature)
        )


class Conversation:
    """A connection of the client."""

    def __init__(self, host: ScriptedHost, sock: socket.socket) -> None:
        self.host = host
        self.hello: Json = {}
        self.client = self.binding = ""
        self._sock = sock
        self._sock.settimeout(WAIT_S)
        self._splitter = frames.Splitter(frames.FROM_CLIENT)
        self._ready: list[tuple[int, bytes]] = []

    # ------------------------------------------------------------ frames

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the client may leave at any time
            self._sock.sendall(data)

    def next(self) -> tuple[int, bytes]:
        while not self._ready:
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError as e:
                raise Failed("the client sent nothing more") from e
            except OSError:
                data = b""
            if not data:
                raise Failed("the client closed the connection too early")
            self._ready += self._splitter.feed(data)
        return self._ready.pop(0)

    def quiet(self, wait_s: float) -> bool:
        """Whether the client is silent for a while."""
        if self._ready:
            return False
        self._sock.settimeout(wait_s)
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except (TimeoutError, OSError):
            return True
        finally:
            self._sock.settimeout(WAIT_S)

    def close(self) -> None:
        self._sock.close()

    # ------------------------------------------------------------ the introduction

    def read_hello(self) -> Json:
        kind, payload = self.next()
        same(kind, frames.HELLO, "the first frame")
        self.hello = body = frames.read_json(payload)
        expect(set(body) <= HELLO_FIELDS, f"HELLO has unknown fields: {sorted(body)}")
        for name in ("version", "lowest", "client"):
            expect(type(body.get(name)) is int, f"HELLO needs the whole number {name}")
        same(body.get("operator"), OPERATOR, "the operator in HELLO")
        same(body.get("modality"), MODALITY, "the modality in HELLO")
        same(body.get("key"), self.host.key, "the key in HELLO")
        expect(
            body["lowest"] <= frames.VERSION <= body["version"],
            f"HELLO offers versions {body['lowest']} to {body['version']}, not {frames.VERSION}",
        )
        expect(1 < body["client"] < 1 << 64, "a client id is from 2 to 2^64-1")
        return body

    def challenge(self, **more: object) -> None:
        """Sends CHALLENGE, and verifies the client's proof."""
        challenge = {
            "version": frames.VERSION,
            "machine": self.host.machine,
            "nonce": os.urandom(hello.NONCE_BYTES).hex(),
        }
        self.send(frames.pack_json(frames.CHALLENGE, {**challenge, **more}))
        kind, payload = self.next()
        same(kind, frames.PROOF, "the frame after CHALLENGE")
        said = hello.statement(self.hello, challenge)
        signature = bytes.fromhex(str(frames.read_json(payload).get("signature")))
        known = signing.read(self.host.key)
        expect(
            signing.verify(known, hello.DOMAIN, said, signature),
            "the proof is not a signature over the canonical statement",
        )
        self.binding = hello.binding(said, signature)
        self.client = statement.client_id(hello.origin(self.host.key, self.hello["client"]))

    def welcome(self, **more: object) -> None:
        about = {"place": self.host.place()} if self.hello.get("about") in (SESSION, NAME) else {}
        body = {
            "version": frames.VERSION,
            "host": "scripted",
            "home": "/nowhere",
            "pid": os.getpid(),
            "release": "0",
            "device": None,
            "takes": ["stdin", "credit"],
            **about,
            **more,
        }
        self.send(frames.pack_json(frames.WELCOME, body))

    def introduce(self) -> None:
        self.read_hello()
        self.challenge()
        self.welcome()

    # ------------------------------------------------------------ requests

    def request(self, op: str) -> Asked:
        """The next request, which must be `op`.

        A client may ask for the place of an act or the description of a session first.
        """
        while True:
            kind, payload = self.next()
            if kind == frames.CREDIT:
                continue
            same(kind, frames.REQUEST, f"the frame where {op} was expected")
            number, body = frames.read_request(payload)
            if body.get("op") == op:
                return Asked(number, body)
            if body.get("op") == "place":
                self.reply(number, self.host.place())
            elif body.get("op") == "get":
                self.reply(number, self.host.summary())
            elif body.get("op") == "ls":
                self.reply(number, self.host.listed())
            else:
                raise Failed(f"the client asked for {body.get('op')}, expected {op}")

    def act(self, op: str, **wanted: object) -> Asked:
        """The next request, which must be the signed act `op` with these fields."""
        asked = self.request(op)
        body = asked.body
        for name, value in wanted.items():
            same(body.get(name), value, f"the field {name} of {op}")
        same(body.get("session"), SESSION, "the session of an act, which is its id,")
        number, signed = body.get("seq"), body.get("signed")
        if type(number) is not int or not isinstance(signed, dict):
            raise Failed(f"{op} needs seq and signed")
        try:
            said = statement.read_statement(
                str(signed["statement"]).encode(), bytes.fromhex(signed["signature"]), self.host.key
            )
            commit = statement.commit(bytes.fromhex(signed["salt"]), acts.content(op, body))
            statement.expect(
                said,
                machine=self.host.machine,
                session=SESSION,
                epoch=EPOCH,
                client=self.client,
                number=number,
                kind=acts.kind(op, body),
                binding=self.binding,
                seen=self.host.seen,
                commit=commit,
                **({"once": body["once"]} if "once" in body else {}),
            )
        except (ValueError, KeyError, TypeError) as e:
            raise Failed(f"the signature of {op}: {e}") from e
        expect(("once" in said) == ("once" in body), "`once` is in the statement and the request")
        return asked

    def acknowledge(self, asked: Asked, **body: object) -> None:
        """The reply to an act."""
        recorded = self.host.recorded(self.client, int(asked.body["seq"]))
        self.reply(asked.number, {**body, "recorded": recorded})

    def ran(self, asked: Asked, start: int, end: int, code: int = 0, lost: int = 0) -> None:
        """The reply to a `run` whose output has these offsets."""
        ref = f"hf:{SESSION}@{EPOCH}"
        output = {"start": start, "end": end, "ref": f"{ref}:{start}-{end}"}
        self.acknowledge(
            asked,
            exit_code=code,
            output=output,
            lost=lost,
            session=SESSION,
            ended=False,
            act=7,
            ref=f"{ref}#7",
        )

    def reply(self, number: int, body: Json) -> None:
        self.send(frames.reply(number, body))

    def fail(self, number: int, **error: object) -> None:
        self.send(frames.reply(number, error, ok=False))

    def event(self, name: str, **body: object) -> None:
        self.send(frames.pack_json(frames.EVENT, {"event": name, **body}))

    def data(self, number: int, start: int, data: bytes) -> None:
        end = start + len(data)
        self.send(frames.data_header(number, start, end, len(data)) + data)

    def gap(self, number: int, start: int, end: int) -> None:
        self.send(frames.gap(number, start, end))

    def bye(self, reason: str, message: str) -> None:
        self.send(frames.pack_json(frames.BYE, {"reason": reason, "message": message}))
        self.close()


assert ids.is_session_id(SESSION)
