"""A client's connection to its host: blocking, small, quick to import.

Every command and the attach loop use `Link`. A client is stateless (S3): the client has a random id
per run and numbers all inputs, so that the host recognises a retry after a lost answer. Requests
that are read-only, or carry an input number, are repeated after a lost connection.
"""

from __future__ import annotations

import os
import time

from holdfast.client.gone import HostGone, NotRunning, Offline, WrongRelayKey, parting_error
from holdfast.client.identity import identity
from holdfast.client.repeating import Repeating
from holdfast.client.signing import Acting
from holdfast.core.record import acts
from holdfast.home import Home, keys
from holdfast.model import signing
from holdfast.model.errors import (
    Busy,
    HoldfastError,
    NotAllowed,
    NotFound,
    PeerFault,
    Stale,
    TimedOut,
    Unavailable,
    Usage,
    WrongPin,
    from_wire,
)
from holdfast.model.limits import (
    CONNECT_ATTEMPTS,
    CONNECT_WAIT_S,
    RECONNECT_FIRST_S,
    REMOTE_WAIT_S,
    REPLY_WAIT_S,
    REQUEST_BYTES,
)
from holdfast.transport import unix
from holdfast.wire import frames, hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol

    from holdfast.client.remote import Dialling, Line
    from holdfast.client.stdin import Source
    from holdfast.home.keys import Ask, Identity
    from holdfast.home.machines import Machine
    from holdfast.model.jsontext import Json

    # Called with parts of an answer: data, gaps and events.
    Told = tuple[
        Callable[[int, int, bytes], None] | None,
        Callable[[int, int], None] | None,
        Callable[[Json], None] | None,
    ]

    class Invited(Protocol):
        """The holder of an invitation's code (client/pairing.py)."""

        def prove(self, machine: str, statement: bytes) -> dict[str, str]: ...

        def waiting(self, event: Json) -> None: ...


# After a connection that lasted this long, the time limit for reconnecting starts anew.
SETTLED_S = 0.5
PAUSE_MOST_S = 0.5  # between two attempts
SHOW_MACHINES = "`holdfast machines` shows which machines answer"


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
        self.away = machine  # a machine behind a relay; None: this machine
        self.line: Line | None = None  # the connection through the relay
        # The password derived from an invitation code, until the machine's keys are known.
        self.meeting: bytes | None = None
        self._channel = ""  # the hash of the sealed channel
        self._dialling: Dialling | None = None  # the thread that opens the line
        self.home, self.operator = home, operator
        self.modality, self.autostart = modality, autostart
        self._passphrase = ask
        self.host_environ: dict[str, str] | None = None  # of a host that we start; None: ours
        self.identity: Identity | None = None
        # A recovery statement, and the signature by the machine's key (core/people/recovery.py).
        self.recovery: tuple[bytes, bytes] | None = None
        self.invited: Invited | None = None
        self.client = int.from_bytes(os.urandom(8), "little") | 2
        # Called when an act waits for an approval.
        self.on_held: Callable[[Json], None] = lambda event: None
        # Recoveries that the host announced; called with each, by a client that shows them.
        self.recovered: list[Json] = []
        self.on_recovered: Callable[[Json], None] | None = None
        self.sequence = 0
        self.acting = Acting()  # signs acts
        self.welcome: Json = {}
        self.sock: Socket | None = None
        self._number = 0
        self.waits_for = 0  # the request that is sent and not answered
        self.once: str | None = None  # the idempotency key of the acts that this client asks for
        self._keyed: dict[str, int] = {}  # acts under that key, by place
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self._ready: list[tuple[int, bytes]] = []
        self.source: Source | None = None  # the input of a `run`
        self.credit = 0  # bytes of DATA per request that we take; 0: limited by the socket only
        self.descriptors: list[int] = []  # received with frames, for the caller to take

    def next_sequence(self, count: int = 1) -> int:
        first = self.sequence + 1
        self.sequence += count
        return first

    # ------------------------------------------------------------ connecting

    def connect(self, about: str | None = None) -> None:
        """Connect and prove our identity; start the host if none runs and `autostart` is set.

        `about` names the session of the first act; the welcome carries the place of that session.
        """
        if self.identity is None:
            self.identity = identity(
                self.home, self.key_name, self._passphrase, self.away is not None
            )
        if self.away is not None:
            return self._connect_away(self.away, self.identity, about)
        try:
            sock: Socket = unix.connect_quickly(self.home.host_socket)
        except PermissionError as e:
            raise Unavailable(
                f"{self.home.host_socket} belongs to another user",
                "set HOLDFAST_HOME to a directory of your own",
            ) from e
        except OSError:
            sock = self._started()
        self._begin(sock, self.identity, about)

    def takes(self, session: str) -> list[str]:
        """What the host takes beyond the first release; reads the place of the session for acts."""
        self.acting.learn(session, self.request("place", session=session))
        return list(self.welcome.get("takes") or ())

    def _started(self) -> Socket:
        """Start a host, because none answered, and connect."""
        from holdfast.client import start

        if not self.autostart or start.is_stopped(self.home):
            raise NotRunning from None
        try:
            start.start_host(self.home, self.host_environ)
        except start.Killed as e:
            raise HostGone(e.message, recover=e.recover) from e
        try:
            return unix.connect_quickly(self.home.host_socket)
        except OSError as e:
            raise HostGone("the host went away again", recover=f"look at {self.home.log}") from e

    @property
    def key_name(self) -> str:
        """The name of the local identity that signs."""
        return (self.away.identity if self.away is not None else None) or self.operator

    @property
    def where(self) -> str:
        return "the host" if self.away is None else self.away.name

    def ready(self, found: Callable[[], None]) -> bool:
        """Whether `connect` can run without waiting for a line to a remote machine.

        A thread opens the line and calls `found` at the end.
        """
        if self.away is None or self.identity is None:
            return True
        from holdfast.client import remote

        if self._dialling is None:
            self._dialling = remote.Dialling(
                self.away, keys.static(self.identity), self.meeting, found, patient=True
            )
        return not self._dialling.busy

    def _connect_away(self, machine: Machine, identity: Identity, about: str | None) -> None:
        from holdfast.client import remote

        dialling = self._dialling
        if dialling is None:
            dialling = remote.Dialling(machine, keys.static(identity), self.meeting)
        self._dialling = None
        try:
            sock, self._channel, self.line = dialling.line()
        except (Unavailable, TimedOut, PeerFault) as e:  # after any fault of a relay, retry
            reason = "offline" if isinstance(e, Offline) else "lost"
            made = WrongRelayKey if isinstance(e, WrongPin) else HostGone
            raise made(e.message, reason, e.recover or SHOW_MACHINES) from e
        self._begin(sock, identity, about)

    def _begin(self, sock: Socket, identity: Identity, about: str | None) -> None:
        sock.settimeout(CONNECT_WAIT_S if self.away is None else REMOTE_WAIT_S)
        self.splitter = frames.Splitter(frames.FROM_HOST)
        self._ready.clear()
        self.sock = sock
        self._introduce(identity, about)

    def _introduce(self, identity: Identity, about: str | None) -> None:
        """Name our operator and prove possession of the key (wire/hello.py)."""
        words = {
            "version": frames.VERSION,
            "lowest": frames.LOWEST,
            "client": self.client,
            "operator": self.operator,
            "modality": self.modality,
            "key": signing.show(identity.public),
            **({"about": about} if about else {}),
            **({"announce": True} if self.on_recovered else {}),
            **({"credit": self.credit} if self.credit else {}),
        }
        self.send(frames.pack_json(frames.HELLO, words))
        wait_s = CONNECT_WAIT_S if self.away is None else REMOTE_WAIT_S
        kind, payload = self.receive(wait_s)
        if kind != frames.CHALLENGE:
            raise PeerFault("the host did not challenge us")
        try:
            challenge = frames.read_json(payload)
            self.statement = hello.statement(words, challenge, self._channel)
            self.machine = str(challenge["machine"])
        except (KeyError, ValueError) as e:
            raise PeerFault("the host's challenge is malformed") from e
        if (
            self.away is not None
            and self.meeting is None
            and self.machine != signing.show(self.away.key)
        ):
            raise PeerFault(
                f"the machine that answers is not {self.away.name} that you paired with",
                "pair again if that machine was set up anew",
            )
        self.signature = signing.sign(identity.secret(), hello.DOMAIN, self.statement)
        proof: Json = {"signature": self.signature.hex()}
        if self.recovery:
            statement, signature = self.recovery
            proof["recovery"] = {"statement": statement.hex(), "signature": signature.hex()}
        if self.invited:
            proof["invitation"] = self.invited.prove(self.machine, self.statement)
        self.send(frames.pack_json(frames.PROOF, proof))
        kind, payload = self.receive(wait_s)
        while kind == frames.EVENT and self.invited is not None:  # the inviter is asked first
            self.invited.waiting(frames.read_json(payload))
            kind, payload = self.receive(None)
        if kind != frames.WELCOME:
            raise PeerFault("the host did not welcome us")
        self.welcome = frames.read_json(payload)
        for one in self.welcome.get("recovered") or ():
            self.recovered.append(one)
            if self.on_recovered:
                self.on_recovered(one)
        binding = hello.binding(self.statement, self.signature)
        self.acting.channel(identity, self.client, challenge["machine"], binding)
        if about and isinstance(place := self.welcome.get("place"), dict):
            self.acting.learn(about, place)

    def sign(self, domain: str, message: Callable[[str], bytes]) -> str:
        """Sign the message made from our public key; return the signature in hexadecimal."""
        if self.identity is None:
            self.identity = identity(self.home, self.key_name, self._passphrase)
        return signing.sign(
            self.identity.secret(), domain, message(signing.show(self.identity.public))
        ).hex()

    def give_up(self) -> None:
        """Ask the host to stop the request that has no answer yet. The answer says what is left."""
        self.send(frames.cancel(self.waits_for))

    def close(self) -> None:
        self.waits_for = 0
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()

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
            if (last := self._parting_error()) is not None:
                raise last from e
            raise HostGone("the connection to the host broke") from e

    def _parting_error(self) -> HoldfastError | None:
        """The reason that the host gave before closing; a broken pipe says less."""
        try:
            while True:
                self.receive(0.2)
        except HoldfastError as e:
            says_why = isinstance(e, HostGone | PeerFault | NotAllowed)
            return e if says_why and "ended" not in e.message else None

    def receive(self, timeout: float | None) -> tuple[int, bytes]:
        """The next frame. Raises HostGone with the host's reason when the connection ended."""
        while not self._ready:
            if self.sock is None:
                raise HostGone("not connected")
            while self.source is not None and (input_ := self.source.wait(self.sock)) is not None:
                self.send(input_)
            self.sock.settimeout(timeout)
            try:
                data, fds = unix.receive(self.sock, 1 << 16, 2)
                self.descriptors += fds
            except TimeoutError as e:
                raise TimedOut(
                    "the host does not answer", "it may be stopped; sessions are not affected"
                ) from e
            except OSError:
                data = b""
            if not data:
                self.close()
                why = self.line_error() or "the connection to the host ended"
                raise HostGone(why, recover=None if self.away is None else SHOW_MACHINES)
            self._ready.extend(self.splitter.feed(data))
        kind, payload = self._ready.pop(0)
        if kind == frames.BYE:
            self.close()
            raise parting_error(frames.read_json(payload))
        return kind, payload

    def line_error(self, wait_s: float = 1.0) -> str:
        """Why the line to the remote machine broke."""
        if self.line is None:
            return ""
        self.line.join(wait_s)
        return self.line.why

    def take_ready(self) -> list[tuple[int, bytes]]:
        """Frames that arrived with the last answer; later frames come from `splitter`."""
        ready, self._ready = self._ready, []
        return ready

    def give_back(self, ready: Iterable[tuple[int, bytes]], rest: bytes) -> None:
        """Return frames and bytes that the caller read but did not use."""
        self._ready = [*ready, *self._ready]
        self._ready.extend(self.splitter.feed(rest))

    # ------------------------------------------------------------ requests

    def request(
        self,
        op: str,
        wait_s: float | None = REPLY_WAIT_S,
        on_data: Callable[[int, int, bytes], None] | None = None,
        on_gap: Callable[[int, int], None] | None = None,
        on_event: Callable[[Json], None] | None = None,
        **fields: Any,
    ) -> Json:
        """Send a request and wait for the answer; parts of the answer go to the callbacks.

        Safe requests survive a restart of the host: the client repeats the missing part. A request
        that was sent and got no answer is OutcomeUnknown, unless it changes nothing.
        """
        if acts.is_act(op, fields):
            if self.once is not None:
                fields.setdefault("once", self._next_key(acts.place(op, fields)))
            self.sequence = max(self.sequence, fields.get("seq") or 0)
        if op == "new" and fields.get("once") is None:
            fields.setdefault("token", f"{self.client:x}-{self._number}")
        one = Repeating(op, fields, time.monotonic())
        try:
            return self._request(one, wait_s, (on_data, on_gap, on_event))
        except HoldfastError as e:
            if (error := one.failed(e)) is e:
                raise
            raise error from e

    def _request(self, one: Repeating, wait_s: float | None, told: Told) -> Json:
        act = acts.is_act(one.op, one.fields)
        deadline, pause = time.monotonic() + CONNECT_WAIT_S, RECONNECT_FIRST_S
        attempts = 0
        while True:
            one.connecting()
            asked_at: float | None = None
            try:
                if self.sock is None:
                    self.connect(acts.place(one.op, one.fields) if act else None)
                asked_at = time.monotonic()
                return self._act(one, wait_s, told) if act else self._ask(one, wait_s, told)
            except HostGone as e:
                self.close()
                now = time.monotonic()
                attempts += 1
                one.lost(e, now)
                if asked_at is not None and now - asked_at >= SETTLED_S:
                    deadline, pause = now + CONNECT_WAIT_S, RECONNECT_FIRST_S
                if now > deadline and (self.away or attempts >= CONNECT_ATTEMPTS):
                    raise
            except Busy as e:
                one.busy(e)
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MOST_S)

    def _next_key(self, place: str) -> str:
        """The key for the next act there. A command may consist of several acts on one place."""
        self._keyed[place] = count = self._keyed.get(place, 0) + 1
        return f"{self.once}" if count == 1 else f"{self.once}/{count}"

    def seen_from_here(self, error: HoldfastError) -> HoldfastError:
        """Rewrite the advice of a remote machine into commands for this machine."""
        if (
            self.away is not None
            and isinstance(error, NotFound)
            and error.recover == NotFound.default_recover
        ):
            error.recover = f"`holdfast ls --all {self.away.name}/` lists what exists"
        if self.away is not None and error.facts.get("elsewhere"):
            from holdfast.client.everywhere import called_here

            error.recover = called_here(error, self.home, self.away.name)
        return error

    def _act(self, one: Repeating, wait_s: float | None, told: Told) -> Json:
        """Sign a request for the session's present state and send it.

        If the record grew too much since that state was read, read the state again, once.
        """
        where = acts.place(one.op, one.fields)
        while True:
            if "seq" not in one.fields:
                one.fields["seq"] = self.next_sequence()
            if (target := self.acting.targets.get(where)) is None:
                asking = Repeating("place", {"session": where}, 0.0)
                place = self._ask(asking, REPLY_WAIT_S, (None, None, None))
                target = self.acting.learn(where, place)
            self.acting.sign(one.op, one.fields, target)
            try:
                answer = self._ask(one, wait_s, told)
            except Stale as e:
                one.stale(e)
                del self.acting.targets[where]
            except HoldfastError as e:
                self.acting.refused(where, e)
                raise
            else:
                target.acknowledged(answer)
                self.keep_receipt(answer.get("recorded"))
                return answer

    def keep_receipt(self, recorded: object) -> None:
        """Keep the machine's signed acknowledgement, as proof that the act was recorded (P2)."""
        if isinstance(recorded, dict) and "ack" in recorded:
            from holdfast.home.receipts import keep

            keep(self.home, self.machine, "ack", str(recorded["ack"]), str(recorded["signature"]))

    def ask(self, op: str, told: Told, fields: Json) -> Json:
        """Ask once on the open connection, without a time limit; positions in `fields` advance."""
        return self._ask(Repeating(op, fields, 0.0), None, told)

    def _ask(self, one: Repeating, wait_s: float | None, told: Told) -> Json:
        on_data, on_gap, on_event = told
        self._number += 1
        number = self._number
        request = frames.request(number, {"op": one.op, **one.fields})
        if len(request) > REQUEST_BYTES:
            raise Usage(
                f"the request has {len(request)} bytes; at most {REQUEST_BYTES} are accepted",
                "shorten the environment, the command or the text",
            )
        self.send(request)
        self.waits_for = number
        one.is_sent()
        if self.source is not None and one.op == "run":
            self.source.begin(number)
        while True:
            kind, payload = self.receive(wait_s)
            if kind == frames.REPLY:
                answered, ok, body = frames.read_reply(payload)
                if answered == number:
                    self.waits_for = 0
                    one.answered()
                    if not ok:
                        raise self.seen_from_here(from_wire(body))
                    return body
            elif kind == frames.DATA and on_data is not None:
                answered, begin, end, data = frames.read_data(memoryview(payload))
                if answered == number:
                    on_data(begin, end, bytes(data))
                    one.delivered(end)
            elif kind == frames.GAP and on_gap is not None:
                answered, begin, end, _ = frames.read_data(memoryview(payload))
                if answered == number:
                    on_gap(begin, end)
                    one.delivered(end)
            elif kind == frames.EVENT:
                event = frames.read_json(payload)
                if event.get("event") == "held" and event.get("request") == number:
                    wait_s = None  # an approver decides; the question expires by itself
                    self.on_held(event)
                if event.get("event") == "stdin" and event.get("request") == number:
                    if self.source is not None:
                        self.source.allowed(event)
                    continue
                if on_event is None:
                    continue
                on_event(event)
                one.told(event)
