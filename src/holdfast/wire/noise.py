"""The needed part of Noise (revision 34): IK and XXpsk3 with 25519, AESGCM and SHA256.

    IK        <- s               the initiator knows the responder's static key: any known host
              ...
              -> e, es, s, ss
              <- e, ee, se
    XXpsk3    -> e               no key is known, but both sides share 32 secret bytes: pairing
              <- e, ee, s, es
              -> s, se, psk

Browsers have this suite with non-exportable keys. There is no fallback, no other pattern and no
choice at run time, so there is no downgrade.

Stricter than the specification:
- A message that cannot be opened ends the handshake or the cipher for good ("poisoned"): the nonce
  is not advanced, and no further message is opened or sealed. Over an ordered carrier such a
  message is an attack or a defect, and the channel cannot continue.
- Public keys of low order are refused, although Noise allows them: with such a key both sides would
  agree on a publicly known secret.
- The nonce 2^64-1 is never used for a message, because `rekey` uses it. Messages have at most 65535
  bytes in both directions.

core/sealed/channel.py decides when to rekey, what messages mean, and what follows from a broken
channel. Python cannot wipe memory, so keys are only forgotten.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.model import agreement
from holdfast.model.errors import PeerFault
from holdfast.model.limits import SEALED_BYTES

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
PLAIN_BYTES: Final = SEALED_BYTES - TAG_BYTES
NONCE_END: Final = (1 << 64) - 1  # reserved: the nonce of `rekey`

IK: Final = "IK"
XXPSK3: Final = "XXpsk3"
# Messages by turns, the initiator's first. Tokens as in the specification.
_MESSAGES: Final = {
    IK: (("e", "es", "s", "ss"), ("e", "ee", "se")),
    XXPSK3: (("e",), ("e", "ee", "s", "es"), ("s", "se", "psk")),
}


class Exhausted(Exception):
    """All nonces of a key are used: the key can no longer seal or open."""


class Cipher:
    """A key and the number of its next message: one direction of a channel, or of a handshake."""

    __slots__ = ("_aead", "_key", "dead", "nonce")

    def __init__(self, key: bytes, nonce: int = 0) -> None:
        self._key, self._aead = key, AESGCM(key)
        self.nonce = nonce
        self.dead = False

    def seal(self, plain: bytes, beside: bytes = b"") -> bytes:
        if self.dead:
            raise PeerFault("this channel is broken")
        if len(plain) > PLAIN_BYTES:
            raise ValueError(f"{len(plain)} bytes to seal; at most {PLAIN_BYTES}")
        sealed = self._aead.encrypt(self._next(), plain, beside)
        self.nonce += 1
        return sealed

    def open(self, sealed: bytes, beside: bytes = b"") -> bytes:
        """Open the next message. Any other bytes poison the cipher."""
        if self.dead:
            raise PeerFault("this channel is broken")
        nonce = self._next()
        if not TAG_BYTES <= len(sealed) <= SEALED_BYTES:
            self.dead = True
            raise PeerFault(f"a sealed message of {len(sealed)} bytes")
        try:
            plain = self._aead.decrypt(nonce, sealed, beside)
        except InvalidTag as e:
            self.dead = True
            raise PeerFault("a sealed message that is not the next one of this channel") from e
        self.nonce += 1
        return plain

    def rekey(self) -> None:
        """Switch to the next key, which does not reveal this one. The numbering continues."""
        self._key = self._aead.encrypt(_nonce(NONCE_END), bytes(KEY_BYTES), b"")[:KEY_BYTES]
        self._aead = AESGCM(self._key)

    def _next(self) -> bytes:
        if self.nonce >= NONCE_END:
            raise Exhausted
        return _nonce(self.nonce)


def _nonce(number: int) -> bytes:
    return b"\0\0\0\0" + number.to_bytes(8, "big")


class _Symmetric:
    """SymmetricState of the specification: chaining key, transcript hash and, later, the cipher."""

    __slots__ = ("_chain", "cipher", "hash")

    def __init__(self, name: bytes) -> None:
        self.hash = name.ljust(32, b"\0") if len(name) <= 32 else sha256(name).digest()
        self._chain = self.hash
        self.cipher: Cipher | None = None

    def mix_hash(self, data: bytes) -> None:
        self.hash = sha256(self.hash + data).digest()

    def mix_key(self, secret: bytes) -> None:
        self._chain, key = self._derive(secret, 2)
        self.cipher = Cipher(key)

    def mix_key_and_hash(self, secret: bytes) -> None:
        self._chain, middle, key = self._derive(secret, 3)
        self.mix_hash(middle)
        self.cipher = Cipher(key)

    def seal(self, plain: bytes) -> bytes:
        sealed = plain if self.cipher is None else self.cipher.seal(plain, self.hash)
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed: bytes) -> bytes:
        plain = sealed if self.cipher is None else self.cipher.open(sealed, self.hash)
        self.mix_hash(sealed)
        return plain

    def split(self) -> tuple[Cipher, Cipher]:
        first, second = self._derive(b"", 2)
        return Cipher(first), Cipher(second)

    def _derive(self, secret: bytes, count: int) -> list[bytes]:
        """Apply the specification's HKDF."""
        root = hmac.digest(self._chain, secret, "sha256")
        out: list[bytes] = []
        for number in range(1, count + 1):
            out.append(hmac.digest(root, (out[-1] if out else b"") + bytes((number,)), "sha256"))
        return out


class Handshake:
    """One side of a handshake: `write` and `read` in turn until `done`, then `ciphers` once.

    Raises PeerFault for a fault of the peer, after which the handshake is unusable, and ValueError
    for a mistake of the caller.
    """

    def __init__(
        self,
        pattern: str,
        initiator: bool,
        prologue: bytes,
        static: bytes,
        remote_static: bytes | None = None,
        psk: bytes | None = None,
        ephemeral: bytes | None = None,
    ) -> None:
        """`ephemeral` is for test vectors only: a reused ephemeral key destroys all secrecy."""
        if (remote_static is not None) != (pattern == IK and initiator) or (psk is not None) != (
            pattern == XXPSK3
        ):
            raise ValueError(f"these are not the keys for {pattern}")
        if any(
            len(key) != KEY_BYTES
            for key in (static, remote_static, psk, ephemeral)
            if key is not None
        ):
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._initiator, self._psk = initiator, psk
        self._messages = _MESSAGES[pattern]
        self._at = 0
        self._static = agreement.load(static)
        self._ephemeral = agreement.load(ephemeral or agreement.generate())
        self._remote_ephemeral: bytes = b""
        self.remote_static: bytes = remote_static or b""
        self.dead = False
        self._state = _Symmetric(f"Noise_{pattern}_25519_AESGCM_SHA256".encode())
        self._state.mix_hash(prologue)
        if pattern == IK:
            self._state.mix_hash(
                self.remote_static if initiator else agreement.public_of(self._static)
            )

    @property
    def done(self) -> bool:
        return self._at == len(self._messages)

    @property
    def hash(self) -> bytes:
        """Return the transcript hash, which names this handshake in later signatures."""
        if not self.done:
            raise ValueError("the handshake is not complete")
        return self._state.hash

    def write(self, payload: bytes = b"") -> bytes:
        tokens = self._turn(writing=True)
        try:
            out = [self._write(token) for token in tokens]
            out.append(self._state.seal(payload))
        except agreement.LowOrder as e:
            self.dead = True
            raise PeerFault(str(e)) from e
        except BaseException:
            self.dead = True
            raise
        message = b"".join(out)
        if len(message) > SEALED_BYTES:
            self.dead = True
            raise ValueError(f"a handshake message of {len(message)} bytes; at most {SEALED_BYTES}")
        self._at += 1
        return message

    def read(self, message: bytes) -> bytes:
        """Read the peer's message and return its payload."""
        tokens = self._turn(writing=False)
        try:
            if len(message) > SEALED_BYTES:
                raise PeerFault(f"a handshake message of {len(message)} bytes")
            for token in tokens:
                message = self._read(token, message)
            payload = self._state.open(message)
        except agreement.LowOrder as e:
            self.dead = True
            raise PeerFault(str(e)) from e
        except BaseException:
            self.dead = True
            raise
        self._at += 1
        return payload

    def ciphers(self) -> tuple[Cipher, Cipher]:
        """Return the ciphers for sending and receiving.

        Callable once: two ciphers with the same key and nonce would break each other.
        """
        if not self.done or self.dead:
            raise ValueError("the handshake is not complete, or over")
        first, second = self._state.split()
        self.dead = True
        return (first, second) if self._initiator else (second, first)

    def _turn(self, writing: bool) -> tuple[str, ...]:
        if self.dead:
            raise PeerFault("this handshake is broken")
        if self.done or (self._at % 2 == 0) != (self._initiator == writing):
            raise ValueError("not this side's turn")
        return self._messages[self._at]

    def _write(self, token: str) -> bytes:
        if token == "e":
            public = agreement.public_of(self._ephemeral)
            self._mix_ephemeral(public)
            return public
        if token == "s":
            return self._state.seal(agreement.public_of(self._static))
        self._mix(token)
        return b""

    def _read(self, token: str, message: bytes) -> bytes:
        if token == "e":
            self._remote_ephemeral, message = _cut(message, KEY_BYTES)
            self._mix_ephemeral(self._remote_ephemeral)
        elif token == "s":
            # In both patterns the key is known by then.
            sealed, message = _cut(message, KEY_BYTES + TAG_BYTES)
            self.remote_static = self._state.open(sealed)
        else:
            self._mix(token)
        return message

    def _mix_ephemeral(self, public: bytes) -> None:
        self._state.mix_hash(public)
        if self._psk is not None:
            self._state.mix_key(public)

    def _mix(self, token: str) -> None:
        """Mix in a shared secret; the token's first letter names the initiator's key."""
        if token == "psk":
            assert self._psk is not None
            self._state.mix_key_and_hash(self._psk)
            return
        mine, theirs = (token[0], token[1]) if self._initiator else (token[1], token[0])
        self._state.mix_key(
            agreement.agree(
                self._ephemeral if mine == "e" else self._static,
                self._remote_ephemeral if theirs == "e" else self.remote_static,
            )
        )


def _cut(message: bytes, length: int) -> tuple[bytes, bytes]:
    if len(message) < length:
        raise PeerFault("a handshake message that is too short")
    return message[:length], message[length:]
