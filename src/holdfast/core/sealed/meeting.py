"""A sealed channel between two who share nothing but a short code: SPAKE2 makes the code into a key, which then is the secret of an XXpsk3 handshake.

    first message   ::= "HFM" 1, then SPAKE2's message of the joiner
    second message  ::= "HFM" 1, then SPAKE2's message of the host
    from there on       a channel as in core/channel.py, pattern XXpsk3, whose psk is SPAKE2's key

Whoever carries this, or stands in for either side, gets one guess at the code for each attempt and nothing to try at leisure: that is what SPAKE2 is for (the elliptic-curve group and transcript are
the `spake2` library's, as magic-wormhole uses them). A wrong code is noticed by the handshake that follows, by both sides, before anything is said. The host burns the code after one failed attempt.

What is shared is not the code itself but `password`: scrypt of the code's secret and its id. The inviter's client makes it; the host has it for as long as the invitation is open, and in a file (home/codes.py) until the first who comes with
the code is answered: a host that was restarted before that still knows it, and one that was restarted after it does not, so that the one guess is one guess.
The meeting place follows from the code's public id (`route_key`, `pass_`): whoever knows the id can stand there, and gains nothing by it but to be in the way.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from holdfast.core.channel import HANDSHAKE, Bounds, Channel, Step
from holdfast.core.joincode import SCRYPT, Code
from holdfast.wire import noise

_MAGIC: Final = b"HFM\x01"
KEY_BYTES: Final = 32
_IDS: Final = {"idA": b"holdfast/joiner", "idB": b"holdfast/host"}


def password(code: Code) -> bytes:
    """What both sides make of the code. Takes a tenth of a second, on purpose."""
    options: dict[str, Any] = dict(SCRYPT)
    return hashlib.scrypt(
        code.secret.encode(),
        salt=b"holdfast/meeting/1\0" + code.id.encode(),
        dklen=KEY_BYTES,
        **options,
    )


def route_key(id: str) -> bytes:
    """The private Ed25519 key by which a host registers for this code at a relay."""
    return hashlib.sha256(b"holdfast/meeting/route/1\0" + id.encode()).digest()


def pass_(id: str) -> bytes:
    return hashlib.sha256(b"holdfast/meeting/pass/1\0" + id.encode()).digest()


class Meeting(Channel):
    """One side. The other side's static key is only worth something once it is `established`."""

    def __init__(
        self,
        initiator: bool,
        route: bytes,
        static: bytes,
        password: bytes,
        now: float,
        bounds: Bounds = Bounds(),
    ) -> None:
        super().__init__(
            noise.XXPSK3, initiator, route, static, now, psk=bytes(KEY_BYTES), bounds=bounds
        )
        from spake2 import SPAKE2_A, SPAKE2_B

        self._static = static
        self._spake = (SPAKE2_A if initiator else SPAKE2_B)(password, **_IDS)
        self._met = False

    def start(self) -> Step:
        return Step((_MAGIC + self._spake.start()[1:],))

    def receive(self, message: bytes, now: float) -> Step:
        if self._met or self.closed:
            return super().receive(message, now)
        self._met = True
        answer = b"" if self._initiator else _MAGIC + self._spake.start()[1:]
        try:
            if message[: len(_MAGIC)] != _MAGIC or len(message) != len(_MAGIC) + KEY_BYTES:
                raise ValueError("not a message of a meeting")
            key = self._spake.finish((b"B" if self._initiator else b"A") + message[len(_MAGIC) :])
        except (
            Exception
        ):  # of the library, for what is no point of the curve, or our own message sent back
            self._close(HANDSHAKE)
            return Step()
        self._keys = (
            self._static,
            None,
            hashlib.sha256(b"holdfast/meeting/psk/1\0" + key).digest(),
            None,
        )
        return super().start() if self._initiator else Step((answer,))
