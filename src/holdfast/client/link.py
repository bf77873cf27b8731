"""A client's connection to its host: blocking, small, quick to import. The attach loop and every command stand on it.

A client is stateless (S3): it has an id of its own per run and numbers its inputs, so that a retry after a lost answer is
recognised; nothing else is kept. Requests that change nothing, or carry such a number, are repeated after a lost connection.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.client import start
from holdfast.client.acting import Acting
from holdfast.client.identity import identity
from holdfast.core import acts
from holdfast.home import Home, keys
from holdfast.home.keys import Ask, Identity
from holdfast.model import signing
from holdfast.model.errors import (
    HoldfastError,
    Lost,
    NotAllowed,
    NotFound,
    PeerFault,
    Stale,
    TimedOut,
    Unavailable,
    Usage,
    from_wire,
)
from holdfast.model.limits import (
    CONNECT_WAIT_S,
    RECONNECT_FIRST_S,
    REMOTE_WAIT_S,
    REPLY_WAIT_S,
    REQUEST_BYTES,
)
from holdfast.transport import unix
from holdfast.wire import frames, hello

if TYPE_CHECKING:
    from holdfast.client.remote import Dialling, Line
    from holdfast.home.machines import Machine

REPEATABLE = frozenset(
    (
        "ping",
        "ls",
        "get",
        "who",
        "view",
        "resolve",
        "send",
        "run",
        "read",
        "graph",
        "wait",
        "attention",
        "stats",
        "events",
        "new",
        "end",
        "rename",
        "turn",
        "seize",
        "log",
        "place",
        "cover",
        "approvals",
        "invite",
        "invite.ls",
        "invite.revoke",
        "invite.decide",
        "invite.wait",
        "device.ls",
    )
)
HARMLESS = frozenset(
    (
        "ping",
        "ls",
        "get",
        "who",
        "view",
        "resolve",
        "read",
        "graph",
        "wait",
        "attention",
        "stats",
        "events",
        "operator.ls",
        "operator.show",
        "envelopes",
        "log",
        "log.export",
        "place",
        "approvals",
        "invite.ls",
        "invite.wait",
        "device.ls",
    )
)
SETTLED_S = 0.5  # a connection that lasted this long was a good one: the patience with its successor begins anew


class HostGone(Unavailable):
    """The connection ended; why is in `reason` if the host said it."""

    def __init__(self, message: str, reason: str = "lost", recover: str | None = None) -> None:
        super().__init__(message, recover)
        self.reason = reason


class NoWay(NotAllowed):
    """A relay lets us through to nobody. It is the relay's word: who was there before may be there again."""


class Offline(Unavailable):
    """A relay says that the machine is not connected to it."""


class OutcomeUnknown(TimedOut):
    """It was sent and not answered in time: it may have happened, or may still happen. Another try would be another act."""

    retry_safe = False

    def __init__(self, op: str) -> None:
        super().__init__(
            f"no answer to `{op}`; it may still take effect",
            "look before you try again: `holdfast view SESSION`, `holdfast ls`",
        )


class Invited(Protocol):
    """Who comes with the code of an invitation (client/pairing.py)."""

    def prove(self, machine: str, statement: bytes) -> dict[str, str]: ...

    def waiting(self, event: dict[str, Any]) -> None: ...


class Link:
    def __init__(
        self,
        home: Home,
        operator: str,
        modality: str = "cli",
        autostart: bool = True,
        ask: Ask | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.away = machine  # another machine, reached through a relay; None: this one
        self.line: Line | None = None  # the way there
        self.meeting: bytes | None = (
            None  # what a code was made into, if that is all that is known of the machine
        )
        self._channel = ""  # the hash of the sealed channel
        self._dialling: Dialling | None = None  # the way there is being looked for
        self.home, self.operator, self.modality, self.autostart = (
            home,
            operator,
            modality,
            autostart,
        )
        self._passphrase = ask  # a person, for a passphrase
        self.identity: Identity | None = None
        self.recovery: tuple[bytes, bytes] | None = (
            None  # signed with the machine's key: the way back in
        )
        self.invited: Invited | None = None  # with a one-time code
        self.client = int.from_bytes(os.urandom(8), "little") | 2
        self.on_held: Callable[[dict[str, Any]], None] = lambda event: (
            None
        )  # an act waits for somebody's approval
        self.sequence = 0
        self.acting = Acting()  # what is signed, for which session
        self.welcome: dict[str, Any] = {}
        self.sock: socket.socket | None = None
        self._number = 0
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self._ready: list[tuple[int, bytes]] = []
        self.descriptors: list[int] = []  # that came with frames; whoever asked for them takes them

    def next_sequence(self, count: int = 1) -> int:
        first = self.sequence + 1
        self.sequence += count
        return first

    # ------------------------------------------------------------ connecting

    def connect(self, about: str | None = None) -> None:
        """Connects and introduces itself; starts the host if it may and there is none. `about`: the session that an act will be on."""
        if self.identity is None:
            self.identity = identity(
                self.home, self.key_name, self._passphrase, self.away is not None
            )
        if self.away is not None:
            return self._connect_away(self.away, self.identity, about)
        try:
            sock = unix.connect(self.home.host_socket)
        except PermissionError as e:
            raise Unavailable(
                f"{self.home.host_socket} belongs to someone else",
                "set HOLDFAST_HOME to a directory of your own",
            ) from e
        except OSError:
            if not self.autostart or start.is_stopped(self.home):
                raise Unavailable("the host does not run") from None
            try:
                start.start_host(self.home)
            except start.Killed as e:
                raise HostGone(e.message, recover=e.recover) from e
            try:
                sock = unix.connect(self.home.host_socket)
            except OSError as e:
                raise HostGone(
                    "the host went away again", recover=f"look at {self.home.log}"
                ) from e
        self._begin(sock, self.identity, about)

    @property
    def key_name(self) -> str:
        """The local identity whose key is used."""
        return (self.away.identity if self.away is not None else None) or self.operator

    @property
    def where(self) -> str:
        return "the host" if self.away is None else self.away.name

    def ready(self, told: Callable[[], None]) -> bool:
        """Whether `connect` has nobody to wait for: the way to another machine is found by a thread, which calls `told`. HostGone if there is none now."""
        if self.away is None or self.identity is None:
            return True
        from holdfast.client import remote

        if self._dialling is None:
            self._dialling = remote.Dialling(
                self.away, keys.static(self.identity), self.meeting, told, patient=True
            )
        return not self._dialling.busy

    def _connect_away(self, machine: Machine, identity: Identity, about: str | None) -> None:
        from holdfast.client import remote

        dialling, self._dialling = (
            self._dialling or remote.Dialling(machine, keys.static(identity), self.meeting),
            None,
        )
        try:
            sock, self._channel, self.line = dialling.line()
        except (
            Unavailable,
            TimedOut,
            PeerFault,
        ) as e:  # whatever a relay does, it is worth another try
            raise HostGone(
                e.message,
                "offline" if isinstance(e, Offline) else "lost",
                e.recover or "`holdfast machines` shows which machines answer",
            ) from e
        self._begin(sock, identity, about)

    def _begin(self, sock: socket.socket, identity: Identity, about: str | None) -> None:
        sock.settimeout(CONNECT_WAIT_S if self.away is None else REMOTE_WAIT_S)
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self._ready.clear()
        self.sock = sock
        self._introduce(identity, about)

    def _introduce(self, identity: Identity, about: str | None) -> None:
        """Says who we are and proves it (wire/hello.py)."""
        words = {
            "version": frames.VERSION,
            "lowest": frames.LOWEST,
            "client": self.client,
            "operator": self.operator,
            "modality": self.modality,
            "key": signing.show(identity.public),
            **({"about": about} if about else {}),
        }
        self.send(frames.pack_json(frames.HELLO, words))
        wait_s = CONNECT_WAIT_S if self.away is None else REMOTE_WAIT_S
        kind, payload = self.receive(wait_s)
        if kind != frames.CHALLENGE:
            raise PeerFault("the host did not ask for our proof")
        try:
            challenge = frames.read_json(payload)
            self.statement, self.machine = (
                hello.statement(words, challenge, self._channel),
                str(challenge["machine"]),
            )
        except (KeyError, ValueError) as e:
            raise PeerFault("the host's challenge is malformed") from e
        if (
            self.away is not None
            and self.meeting is None
            and self.machine != signing.show(self.away.key)
        ):
            raise PeerFault(
                f"who answers is not the machine {self.away.name} that was paired with",
                "pair again if it was set up anew",
            )
        self.signature = signing.sign(identity.secret(), hello.DOMAIN, self.statement)
        recovery = (
            {
                "recovery": dict(
                    zip(
                        ("statement", "signature"),
                        (part.hex() for part in self.recovery),
                        strict=True,
                    )
                )
            }
            if self.recovery
            else {}
        )
        invited = (
            {"invitation": self.invited.prove(self.machine, self.statement)} if self.invited else {}
        )
        self.send(
            frames.pack_json(
                frames.PROOF, {"signature": self.signature.hex(), **recovery, **invited}
            )
        )
        kind, payload = self.receive(wait_s)
        while kind == frames.EVENT and self.invited is not None:  # somebody there is asked first
            self.invited.waiting(frames.read_json(payload))
            kind, payload = self.receive(None)
        if kind != frames.WELCOME:
            raise PeerFault("the host did not welcome us")
        self.welcome = frames.read_json(payload)
        self.acting.channel(
            identity,
            self.client,
            challenge["machine"],
            hello.binding(self.statement, self.signature),
        )
        if about and isinstance(place := self.welcome.get("place"), dict):
            self.acting.learn(about, place)

    def sign(self, domain: str, message: Callable[[str], bytes]) -> str:
        """What `message` makes of our public key, signed with our own, in hexadecimal."""
        if self.identity is None:
            self.identity = identity(self.home, self.key_name, self._passphrase)
        return signing.sign(
            self.identity.secret(), domain, message(signing.show(self.identity.public))
        ).hex()

    def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    # ------------------------------------------------------------ frames

    def send(self, frame: bytes) -> None:
        if self.sock is None:
            raise HostGone("not connected")
        try:
            self.sock.sendall(frame)
        except TimeoutError as e:
            raise TimedOut(
                "the host does not read", "it may be stopped; sessions are not affected"
            ) from e
        except OSError as e:
            if (last := self._last_word()) is not None:
                raise last from e
            raise HostGone("the connection to the host broke") from e

    def _last_word(self) -> HoldfastError | None:
        """What the host said before it closed: a reason beats a broken pipe."""
        try:
            while True:
                self.receive(0.2)
        except HoldfastError as e:
            return (
                e
                if isinstance(e, HostGone | PeerFault | NotAllowed) and "ended" not in e.message
                else None
            )

    def receive(self, timeout: float | None) -> tuple[int, bytes]:
        """The next frame. HostGone when the host left, with its reason."""
        while not self._ready:
            if self.sock is None:
                raise HostGone("not connected")
            self.sock.settimeout(timeout)
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 2)
                self.descriptors += fds
            except TimeoutError as e:
                raise TimedOut(
                    "the host does not answer", "it may be stopped; sessions are not affected"
                ) from e
            except OSError:
                data = b""
            if not data:
                self.close()
                raise HostGone(
                    self._why() or "the connection to the host ended",
                    recover=None
                    if self.away is None
                    else "`holdfast machines` shows which machines answer",
                )
            self._ready.extend(self.splitter.feed(data))
        kind, payload = self._ready.pop(0)
        if kind == frames.BYE:
            self.close()
            body = frames.read_json(payload)
            reason = str(body.get("reason"))
            if reason in ("protocol", "version"):
                raise PeerFault(f"the host refused the connection: {body.get('message')}")
            if reason == "admission":
                raise NotAllowed(str(body.get("message")), str(body.get("recover") or ""))
            raise HostGone(str(body.get("message")), reason)
        return kind, payload

    def _why(self) -> str:
        """Why the line to another machine broke, once it has ended."""
        if self.line is None:
            return ""
        self.line.join(1.0)
        return self.line.why

    def take_ready(self) -> list[tuple[int, bytes]]:
        """Frames that came with the last answer: the caller goes on reading by itself, with `splitter`."""
        ready, self._ready = self._ready, []
        return ready

    def give_back(self, ready: Iterable[tuple[int, bytes]], rest: bytes) -> None:
        """What such a caller has read but not used, before it asks again through this link."""
        self._ready = [*ready, *self._ready]
        self._ready.extend(self.splitter.feed(rest))

    # ------------------------------------------------------------ requests

    def request(
        self,
        op: str,
        wait_s: float | None = REPLY_WAIT_S,
        on_data: Callable[[int, int, bytes], None] | None = None,
        on_gap: Callable[[int, int], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Asks and waits for the answer; parts of it go to the callbacks. Safe requests survive a restart of the host: they are
        repeated, and go on where the parts had come to."""
        if op == "new":
            fields.setdefault("token", f"{self.client:x}-{self._number}")
        act = acts.is_act(op, fields)
        if act:
            fields.setdefault("seq", self.next_sequence() if op in acts.TYPED else 0)
            self.sequence = max(self.sequence, fields["seq"])
        begun = time.monotonic()
        deadline, pause = begun + CONNECT_WAIT_S, RECONNECT_FIRST_S
        while True:
            asked_at: float | None = None
            try:
                if self.sock is None:
                    self.connect(acts.place(op, fields) if act else None)
                asked_at = time.monotonic()
                if act:
                    if op not in acts.TYPED:
                        fields["seq"] = (
                            self.next_sequence()
                        )  # asked again, it is done again, or finds that it is done
                    return self._act(op, wait_s, on_data, on_gap, on_event, fields)
                return self._ask(op, wait_s, on_data, on_gap, on_event, fields)
            except HostGone as e:
                self.close()
                now = time.monotonic()
                if asked_at is not None and op not in REPEATABLE and op != "down":
                    raise Lost(
                        f"{e.message}; whether `{op}` was done is not known",
                        "look first: `holdfast ls --all`",
                    ) from e
                if asked_at is not None and now - asked_at >= SETTLED_S:
                    deadline, pause = now + CONNECT_WAIT_S, RECONNECT_FIRST_S
                if op == "down" or e.reason == "down" or now > deadline:
                    raise
                if op == "end":
                    fields["again"] = True
                if op == "wait" and fields.get("timeout"):
                    fields["timeout"] = max(0.001, fields["timeout"] - (now - begun))
                    begun = now
                time.sleep(pause)
                pause = min(pause * 2, 0.5)

    def _as_here(self, error: HoldfastError) -> HoldfastError:
        """What another machine says of itself, as one would look at it from here."""
        if (
            self.away is not None
            and isinstance(error, NotFound)
            and error.recover == NotFound.default_recover
        ):
            error.recover = f"`holdfast ls --all {self.away.name}/` lists what exists"
        return error

    def _act(
        self,
        op: str,
        wait_s: float | None,
        on_data: Callable[[int, int, bytes], None] | None,
        on_gap: Callable[[int, int], None] | None,
        on_event: Callable[[dict[str, Any]], None] | None,
        fields: dict[str, Any],
    ) -> dict[str, Any]:
        """Signs it for this session as it is now, and asks. Much may have been recorded since we looked: then we look again, once."""
        where = acts.place(op, fields)
        place = self.acting.places.get(where)
        fresh = place is None
        while True:
            if place is None:
                place = self.acting.learn(
                    where, self._ask("place", REPLY_WAIT_S, None, None, None, {"session": where})
                )
            self.acting.sign(op, fields, place)
            try:
                answer = self._ask(op, wait_s, on_data, on_gap, on_event, fields)
            except Stale:
                if fresh:
                    raise
                place, fresh = None, True
                if (
                    op != "send"
                ):  # whose number counts for its pieces, and is still free; the others' is used up
                    fields["seq"] = self.next_sequence()
            else:
                self.acting.acknowledged(place, answer)
                return answer

    def _ask(
        self,
        op: str,
        wait_s: float | None,
        on_data: Callable[[int, int, bytes], None] | None,
        on_gap: Callable[[int, int], None] | None,
        on_event: Callable[[dict[str, Any]], None] | None,
        fields: dict[str, Any],
    ) -> dict[str, Any]:
        self._number += 1
        number = self._number
        request = frames.request(number, {"op": op, **fields})
        if len(request) > REQUEST_BYTES:
            raise Usage(
                f"this would be a request of {len(request)} bytes; at most {REQUEST_BYTES} are taken",
                "shorten the environment, the command or the text",
            )
        self.send(request)
        while True:
            try:
                kind, payload = self.receive(wait_s)
            except TimedOut as e:
                raise e if op in HARMLESS else OutcomeUnknown(op) from e
            if kind == frames.REPLY:
                answered, ok, body = frames.read_reply(payload)
                if answered == number:
                    if not ok:
                        raise self._as_here(from_wire(body))
                    return body
            elif kind == frames.DATA and on_data is not None:
                answered, begin, end, data = frames.read_data(memoryview(payload))
                if answered == number:
                    on_data(begin, end, bytes(data))
                    _go_on_at(fields, end)
            elif kind == frames.GAP and on_gap is not None:
                answered, begin, end, _ = frames.read_data(memoryview(payload))
                if answered == number:
                    on_gap(begin, end)
                    _go_on_at(fields, end)
            elif kind == frames.EVENT:
                event = frames.read_json(payload)
                if event.get("event") == "held" and event.get("request") == number:
                    wait_s = None  # somebody else decides now; the question lapses by itself
                    self.on_held(event)
                if on_event is None:
                    continue
                on_event(event)
                if "after" in fields and isinstance(event.get("body"), dict):
                    fields["after"] = event["body"].get("number", fields["after"])


def _go_on_at(fields: dict[str, Any], offset: int) -> None:
    """Where a repeated request continues: bytes that were handed on are not handed on twice."""
    for name in ("resume", "from"):
        if name in fields:
            fields[name] = offset
