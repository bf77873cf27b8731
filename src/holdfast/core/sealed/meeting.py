"""A sealed channel between two parties who share only a short code.

SPAKE2 turns the code into a key, and the key is the secret of an XXpsk3 handshake.

    first message   ::= "HFM" 1, then SPAKE2's message of the joiner
    second message  ::= "HFM" 1, then SPAKE2's message of the host
    afterwards          a channel as in core/sealed/channel.py, pattern XXpsk3, psk = SPAKE2's key

A carrier, or an impostor on either side, gets one guess at the code per attempt and no material for
offline guesses. That is the property of SPAKE2. The elliptic-curve group and the transcript are
those of the `spake2` library, as in magic-wormhole. In the handshake that follows, both sides
notice a wrong code before any data is exchanged. The host burns the code after one failed attempt.

The shared secret is not the code itself but `password`: scrypt of the code's secret and its id. The
inviter's client computes it. The host has it while the invitation is open. The host also keeps it
in a file (home/codes.py) until the first joiner with the code is answered. A host that restarts
before that answer still knows the code. A host that restarts afterwards does not, so there is only
one guess.

The meeting place follows from the public id of the code (`route_key`, `pass_`). An attacker who
knows the id can wait there, but can only obstruct.
"""

from __future__ import annotations

import hashlib
from typing import Final

from holdfast.core.people.join_code import SCRYPT, Code
from holdfast.core.sealed.channel import HANDSHAKE, Bounds, Channel, Step
from holdfast.wire import noise

_MAGIC: Final = b"HFM\x01"
KEY_BYTES: Final = 32
_IDS: Final = {"idA": b"holdfast/joiner", "idB": b"holdfast/host"}


def password(code: Code) -> bytes:
    """Derive the shared secret from the code. This takes a tenth of a second, on purpose."""
    return hashlib.scrypt(
        code.secret.encode(),
        salt=b"holdfast/meeting/1\0" + code.id.encode(),
        dklen=KEY_BYTES,
        **SCRYPT,
    )


def route_key(id: str) -> bytes:
    """Return the private Ed25519 key with which a host registers for this code at a relay."""
    return hashlib.sha256(b"holdfast/meeting/route/1\0" + id.encode()).digest()


def pass_(id: str) -> bytes:
    """Return the pass for the meeting place of this code."""
    return hashlib.sha256(b"holdfast/meeting/pass/1\0" + id.encode()).digest()


class Meeting(Channel):
    """One side of a meeting. The remote static key counts only once `established` is true."""

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
        # The library raises if the message is no point of the curve, or is this side's own message.
        except Exception:
            self._close(HANDSHAKE)
            return Step()
        self._keys = (
            self._static,
            None,
            hashlib.sha256(b"holdfast/meeting/psk/1\0" + key).digest(),
            None,
        )
        return super().start() if self._initiator else Step((answer,))
