"""The sealed channel between host and client, over any carrier. A pure state machine.

    first message   ::= "HF" pattern u8, lowest u8, highest u8, then the first handshake message
                        (pattern 1: IK, 2: XXpsk3)
    second message  ::= the second handshake message; its payload is the chosen version, u8
    (third message  ::= the third handshake message, XXpsk3 only)
    every other     ::= one sealed `Body` (wire/body.py): DATA, REKEY, END, ASK or YES
    prologue         =  canonical {"holdfast": "channel/1", "route": base64url,
                        "versions": [lowest, highest]}

Both sides put into the prologue the values that were sent in the clear. If a carrier changes the
offered versions, or leads the stream to another route, the handshake fails. The responder chooses
the version and authenticates it in its message, so no carrier can choose. All other payloads of the
handshake are empty.

Neither side acts early. Any attacker can record the first message of IK and replay it. A responder
only answers it, with a fresh key. Only the holder of the static key who sees this answer can make
the next message. So a responder is `established`, delivers and sends from the first sealed message
that opens. The initiator always speaks first. No memory of earlier first messages is needed.

An initiator is `established` with the answer of IK, which only the pinned key can make. In XXpsk3
it is established with the first sealed message from the responder, because no earlier message
proves that the responder has the secret.

Messages are numbered by the cipher and carried in order. A message does not open if it is dropped,
repeated, moved, cut or changed, or belongs to another channel or direction. The first message that
does not open ends the channel for ever, and none of it is delivered. So the delivered data is
always a prefix of the sent data. END, which is sealed too, says that the data is complete
(`whole`). A carrier that stops without END is a cut, whatever the carrier claims. A sealed YES says
that the other side is still present: no carrier can forge it.

The sender takes the next key after REKEY_MESSAGES, REKEY_BYTES or REKEY_S, whichever is first, and
announces it under the old key. The receiver follows, and accepts at most REKEY_SLACK times the
messages and bytes under one key. A closed channel stays closed, with its `reason`. The session does
not end with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model import base64url, canonical, limits
from holdfast.model.errors import PeerFault
from holdfast.wire import body, noise

VERSION: Final = 1
LOWEST: Final = 1
PATTERNS: Final = {noise.IK: 1, noise.XXPSK3: 2}
ROUTE_BYTES: Final = 16
_MAGIC: Final = b"HF"
_HEAD: Final = len(_MAGIC) + 3

# Why a channel is closed.
ENDED: Final = "ended"  # both sides said END
CUT: Final = "cut"  # the carrier ended; `whole` says whether the other side had said END
TAMPERED: Final = "tampered"  # a message was not the next message of this channel
HANDSHAKE: Final = "handshake"  # the handshake failed: other keys, another prologue, or tampering
UNSPOKEN: Final = "version"  # the sides have no version in common
PROTOCOL: Final = "protocol"  # an authentic message of the other side broke the rules
EXHAUSTED: Final = "exhausted"  # all nonces are used
LEFT: Final = "left"  # this side closed it


class Bounds(NamedTuple):
    """The limits of one key."""

    messages: int = limits.REKEY_MESSAGES
    bytes: int = limits.REKEY_BYTES
    seconds: float = limits.REKEY_S


class Step(NamedTuple):
    """The result of a message: messages to send, and received plaintext."""

    send: tuple[bytes, ...] = ()
    data: bytes = b""


class Offer(NamedTuple):
    """The offer of an initiator, sent in the clear."""

    pattern: str
    lowest: int
    highest: int


def offered(message: bytes) -> Offer:
    """Parse the offer of a first message; PeerFault if the message is not a first message.

    Callers use this to find the keys before there is a responder.
    """
    if len(message) < _HEAD or message[:2] != _MAGIC:
        raise PeerFault("not the first message of a sealed channel")
    pattern = next((name for name, code in PATTERNS.items() if code == message[2]), None)
    lowest, highest = message[3], message[4]
    if pattern is None or not 0 < lowest <= highest:
        raise PeerFault("not the first message of a sealed channel")
    return Offer(pattern, lowest, highest)


def prologue(route: bytes, lowest: int, highest: int) -> bytes:
    if len(route) != ROUTE_BYTES:
        raise ValueError(f"a route has {ROUTE_BYTES} bytes")
    return canonical.encode(
        {"holdfast": "channel/1", "route": base64url.encode(route), "versions": [lowest, highest]}
    )


class Channel:
    """One side of a channel; `now` is a monotonic time in seconds."""

    def __init__(
        self,
        pattern: str,
        initiator: bool,
        route: bytes,
        static: bytes,
        now: float,
        *,
        remote_static: bytes | None = None,
        psk: bytes | None = None,
        versions: tuple[int, int] = (LOWEST, VERSION),
        bounds: Bounds = Bounds(),
        ephemeral: bytes | None = None,
    ) -> None:
        self._pattern, self._initiator, self._route, self._versions, self._bounds = (
            pattern,
            initiator,
            route,
            versions,
            bounds,
        )
        self._keys = (static, remote_static, psk, ephemeral)
        self._handshake: noise.Handshake | None = None
        self._sender: noise.Cipher | None = None
        self._receiver: noise.Cipher | None = None
        self._sent_messages = self._sent_bytes = self._got_messages = self._got_bytes = 0
        self._keyed_at = now
        self._end_sent = False
        self.established = False  # the other side has proved its identity on this channel
        self.whole = False  # the other side said END: all its data was delivered
        self.reason = ""  # why the channel is closed; empty while it is open
        self.version = 0
        # Names this channel in signed statements; empty until the handshake is complete.
        self.handshake_hash = b""
        self.remote_static = b""  # the peer's key; proved only once `established` is true

    @property
    def closed(self) -> bool:
        return bool(self.reason)

    @property
    def ended(self) -> bool:
        """This side has said END."""
        return self._end_sent

    @property
    def may_send(self) -> bool:
        """This side may send.

        An initiator may send before the other side is established: no other party could read it.
        """
        return (
            self._sender is not None
            and (self.established or self._initiator)
            and not self._end_sent
        )

    def start(self) -> Step:
        """Return the first message of the initiator."""
        if not self._initiator or self._handshake is not None or self.closed:
            raise ValueError("only an initiator starts, and only once")
        lowest, highest = self._versions
        self._begin(lowest, highest)
        assert self._handshake is not None
        try:
            first = self._handshake.write()
        except PeerFault:  # the pinned key is not a valid key
            self._close(HANDSHAKE)
            return Step()
        return Step((_MAGIC + bytes((PATTERNS[self._pattern], lowest, highest)) + first,))

    def receive(self, message: bytes, now: float) -> Step:
        """Process the next message of the carrier.

        Any bytes give a Step. Then check `established`, `whole` and `reason`.
        """
        if self.closed:
            return Step()
        if self._receiver is None:
            try:
                return self._shake(message, now)
            except PeerFault:
                self._close(HANDSHAKE)
                return Step()
        return self._take(message, now)

    def send(self, data: bytes, now: float) -> tuple[bytes, ...]:
        """Return the messages that carry this data; ValueError unless `may_send`."""
        if not self.may_send:
            raise ValueError("nothing can be sent now")
        out: list[bytes] = []
        for at in range(0, len(data), limits.BODY_BYTES):
            out += self._seal(body.data(data[at : at + limits.BODY_BYTES]), now)
        return tuple(out)

    def end(self, now: float) -> tuple[bytes, ...]:
        """Return the message that says END. The other side may continue to send."""
        if not self.may_send:
            raise ValueError("the channel cannot send, so it cannot end")
        out = self._seal(body.END, now)
        self._end_sent = True
        if self.whole:
            self._close(ENDED)
        return tuple(out)

    def ask(self, now: float) -> tuple[bytes, ...]:
        """Return the message that asks whether the other side is present.

        Any message from the other side is an answer.
        """
        if not self.may_send:
            return ()
        return tuple(self._seal(body.ASK, now))

    def cut(self) -> None:
        """Note that the carrier is gone."""
        self._close(CUT)

    def leave(self) -> None:
        """Close this side; the other side sees a cut."""
        self._close(LEFT)

    # ------------------------------------------------------------ the handshake

    def _begin(self, lowest: int, highest: int) -> None:
        static, remote_static, psk, ephemeral = self._keys
        self._handshake = noise.Handshake(
            self._pattern,
            self._initiator,
            prologue(self._route, lowest, highest),
            static,
            remote_static,
            psk,
            ephemeral,
        )
        self._keys = (b"", None, None, None)

    def _shake(self, message: bytes, now: float) -> Step:
        if self._handshake is None:
            if self._initiator:
                raise PeerFault("a message before the first one")
            return self._answer(message, now)
        if self._initiator:
            said = self._handshake.read(message)
            if len(said) != 1 or not self._versions[0] <= said[0] <= self._versions[1]:
                self._close(UNSPOKEN)
                return Step()
            self.version = said[0]
            out = () if self._handshake.done else (self._handshake.write(),)
            self._complete(now)
            return Step(out)
        if self._handshake.read(message):
            raise PeerFault("a payload where none belongs")
        self._complete(now)
        return Step()

    def _answer(self, message: bytes, now: float) -> Step:
        offer = offered(message)
        if offer.pattern != self._pattern:
            raise PeerFault("another handshake than is expected here")
        version = min(offer.highest, self._versions[1])
        if version < max(offer.lowest, self._versions[0]):
            self._close(UNSPOKEN)
            return Step()
        self.version = version
        self._begin(offer.lowest, offer.highest)
        assert self._handshake is not None
        if self._handshake.read(message[_HEAD:]):
            raise PeerFault("a payload where none belongs")
        out = self._handshake.write(bytes((version,)))
        if self._handshake.done:
            self._complete(now)
        return Step((out,))

    def _complete(self, now: float) -> None:
        assert self._handshake is not None
        self.handshake_hash, self.remote_static = (
            self._handshake.hash,
            self._handshake.remote_static,
        )
        self._sender, self._receiver = self._handshake.ciphers()
        self._handshake = None
        self._keyed_at = now
        self.established = self._initiator and self._pattern == noise.IK

    # ------------------------------------------------------------ sealed messages

    def _take(self, message: bytes, now: float) -> Step:
        assert self._receiver is not None
        try:
            plain = self._receiver.open(message)
        except PeerFault:
            self._close(TAMPERED)
            return Step()
        except noise.Exhausted:
            self._close(EXHAUSTED)
            return Step()
        try:
            data = body.read(plain)
        except PeerFault:
            self._close(PROTOCOL)
            return Step()
        self._got_messages += 1
        self._got_bytes += len(plain)
        slack = limits.REKEY_SLACK
        if (
            self.whole
            or self._got_messages > slack * self._bounds.messages
            or self._got_bytes > slack * self._bounds.bytes + limits.SEALED_BYTES
        ):
            self._close(PROTOCOL)
            return Step()
        self.established = True
        if data is not None:
            return Step((), data)
        if plain == body.REKEY:
            self._receiver.rekey()
            self._got_messages = self._got_bytes = 0
        elif plain == body.ASK:
            return Step(tuple(self._seal(body.YES, now)) if not self._end_sent else ())
        elif plain == body.END:
            self.whole = True
            if self._end_sent:
                self._close(ENDED)
        return Step()

    def _seal(self, plain: bytes, now: float) -> list[bytes]:
        """Return the sealed message, preceded by a REKEY if that is due."""
        if self._sender is None:
            return []  # closed while several messages were being sealed
        out: list[bytes] = []
        bounds = self._bounds
        try:
            if (
                self._sent_messages >= bounds.messages
                or self._sent_bytes >= bounds.bytes
                or now - self._keyed_at >= bounds.seconds
            ):
                out.append(self._sender.seal(body.REKEY))
                self._sender.rekey()
                self._sent_messages = self._sent_bytes = 0
                self._keyed_at = now
            out.append(self._sender.seal(plain))
        except noise.Exhausted:
            self._close(EXHAUSTED)
            return out
        self._sent_messages += 1
        self._sent_bytes += len(plain)
        return out

    def _close(self, reason: str) -> None:
        """Close for ever, and forget the keys."""
        if not self.reason:
            self.reason = reason
        self._handshake = self._sender = self._receiver = None
        self._keys = (b"", None, None, None)


def initiator(
    route: bytes, static: bytes, remote_static: bytes, now: float, bounds: Bounds = Bounds()
) -> Channel:
    """Make the client's side of a channel to a host whose key it knows (IK)."""
    return Channel(noise.IK, True, route, static, now, remote_static=remote_static, bounds=bounds)


def responder(route: bytes, static: bytes, now: float, bounds: Bounds = Bounds()) -> Channel:
    """Make the host's side of a channel from any client (IK).

    Once the channel is established, `remote_static` identifies the client.
    """
    return Channel(noise.IK, False, route, static, now, bounds=bounds)
