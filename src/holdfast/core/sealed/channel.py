"""The sealed channel between host and client, whoever carries its messages. A pure machine: messages in; messages, plaintext and an end out.

    first message   ::= "HF" pattern u8, lowest u8, highest u8, then the first message of the handshake     pattern 1: IK, 2: XXpsk3
    second message  ::= the second message of the handshake; its payload is the chosen version, u8
    (third message  ::= the third message of the handshake, XXpsk3 only)
    every other     ::= one sealed `Body` (wire/body.py): DATA, REKEY, END, ASK or YES
    prologue         =  canonical {"holdfast": "channel/1", "route": base64url, "versions": [lowest, highest]}

Both sides put into the prologue what they believe was said in the clear: if a carrier changed the offered versions, or led the stream to another route, the handshake
fails. The answer is chosen by the responder and authenticated in its message, so nobody in between can choose. Every other payload of the handshake is empty.

Nothing is acted on early. The first message of IK can be recorded and sent again by anybody; all that it makes a responder do is to answer it, with a fresh key of
its own. What comes after that answer can only be made by who holds the static key and sees this answer: so a responder is `established`, delivers and sends from the first sealed
message of the initiator that opens. The initiator speaks first, always. No memory of earlier first messages is needed. An initiator is `established` with the answer of IK, which
only the pinned key can make; in XXpsk3 with the first sealed message that comes back, because nothing before shows that the other side has the secret.

Messages are numbered by the cipher and carried in order. One that is dropped, repeated, moved, cut, changed, or of another channel or direction does not open, and the first
that does not open ends the channel for ever, with nothing of it delivered. So what is delivered is always a beginning of what was sent. Whether it is all of it
says END, which is sealed, too: `whole`. A carrier that stops without it is a cut, whatever the carrier says about it. Whether the other side is still there says YES,
sealed: no carrier can answer for it.

The sender takes the next key after REKEY_MESSAGES, REKEY_BYTES or REKEY_S, whichever is first, and says so under the old one; the receiver follows, and takes no more than
REKEY_SLACK times the messages and bytes under one key. A channel that is closed stays closed, with its `reason`; a session does not end with it.
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
CUT: Final = "cut"  # the carrier ended; see `whole` for whether the other side had said all
TAMPERED: Final = "tampered"  # a message that was not the next one of this channel
HANDSHAKE: Final = "handshake"  # the handshake failed: other keys, another prologue, or tampering
UNSPOKEN: Final = "version"  # no version in common
PROTOCOL: Final = "protocol"  # the other side itself broke the rules: authentic, and wrong
EXHAUSTED: Final = "exhausted"  # all nonces are used
LEFT: Final = "left"  # this side gave it up


class Bounds(NamedTuple):
    """How long one key is used."""

    messages: int = limits.REKEY_MESSAGES
    bytes: int = limits.REKEY_BYTES
    seconds: float = limits.REKEY_S


class Step(NamedTuple):
    """What follows from a message: what to send, and what was received."""

    send: tuple[bytes, ...] = ()
    data: bytes = b""


class Offer(NamedTuple):
    """What an initiator says in the clear."""

    pattern: str
    lowest: int
    highest: int


def offered(message: bytes) -> Offer:
    """What the first message offers; PeerFault if it is none. For who has to find the keys before there is a responder."""
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
    """One side. Made by `initiator` or `responder`; `now` is seconds of any clock that only goes on."""

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
        self.established = False  # the other side has proved itself, on this channel, now
        self.whole = False  # the other side has said END: all that it sent was delivered
        self.reason = ""  # why it is closed, or empty
        self.version = 0
        self.handshake_hash = b""  # names this channel in whatever is signed on it; empty until the handshake is complete
        self.remote_static = (
            b""  # the other side's static key; to be believed once it is established
        )

    @property
    def closed(self) -> bool:
        return bool(self.reason)

    @property
    def ended(self) -> bool:
        """This side has said END."""
        return self._end_sent

    @property
    def may_send(self) -> bool:
        """There is somebody to send to. An initiator may before the other side has proved itself: nobody else could read it."""
        return (
            self._sender is not None
            and (self.established or self._initiator)
            and not self._end_sent
        )

    def start(self) -> Step:
        """The initiator's first message."""
        if not self._initiator or self._handshake is not None or self.closed:
            raise ValueError("only an initiator begins, once")
        lowest, highest = self._versions
        self._begin(lowest, highest)
        assert self._handshake is not None
        try:
            first = self._handshake.write()
        except PeerFault:  # the key that was pinned is none
            self._close(HANDSHAKE)
            return Step()
        return Step((_MAGIC + bytes((PATTERNS[self._pattern], lowest, highest)) + first,))

    def receive(self, message: bytes, now: float) -> Step:
        """The next message of the carrier. Whatever it is, the answer is a Step; look at `established`, `whole` and `reason` afterwards."""
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
        """Messages that carry this on. ValueError before there is anybody to send to, and after END."""
        if not self.may_send:
            raise ValueError("nothing can be sent now")
        out: list[bytes] = []
        for at in range(0, len(data), limits.BODY_BYTES):
            out += self._seal(body.data(data[at : at + limits.BODY_BYTES]), now)
        return tuple(out)

    def end(self, now: float) -> tuple[bytes, ...]:
        """Says that nothing follows. The other side may go on."""
        if not self.may_send:
            raise ValueError("there is nothing to end")
        out = self._seal(body.END, now)
        self._end_sent = True
        if self.whole:
            self._close(ENDED)
        return tuple(out)

    def ask(self, now: float) -> tuple[bytes, ...]:
        """Asks whether the other side is there. Whatever it sends next is an answer."""
        if not self.may_send:
            return ()
        return tuple(self._seal(body.ASK, now))

    def cut(self) -> None:
        """The carrier is gone."""
        self._close(CUT)

    def leave(self) -> None:
        """This side gives it up. To the other one it is a cut."""
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
        """The message, after another that changes the key if it is time."""
        if self._sender is None:
            return []  # closed while several were on their way
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
        """For ever. Keys are forgotten."""
        if not self.reason:
            self.reason = reason
        self._handshake = self._sender = self._receiver = None
        self._keys = (b"", None, None, None)


def initiator(
    route: bytes, static: bytes, remote_static: bytes, now: float, bounds: Bounds = Bounds()
) -> Channel:
    """A client's side of a channel to a host whose key it knows (IK)."""
    return Channel(noise.IK, True, route, static, now, remote_static=remote_static, bounds=bounds)


def responder(route: bytes, static: bytes, now: float, bounds: Bounds = Bounds()) -> Channel:
    """A host's side of a channel from anybody (IK); who it is says `remote_static` once it is established."""
    return Channel(noise.IK, False, route, static, now, bounds=bounds)


def paired(
    initiator: bool, route: bytes, static: bytes, psk: bytes, now: float, bounds: Bounds = Bounds()
) -> Channel:
    """Either side of a channel between two that only share 32 secret bytes (XXpsk3)."""
    return Channel(noise.XXPSK3, initiator, route, static, now, psk=psk, bounds=bounds)
