"""The one-time code of an invitation, which a person reads out, types or scans.

    CODE  ::= ID "-" SECRET          12 characters of Crockford's base32 in three groups:
                                     4 of id, 7 of secret, 1 check character
    URL   ::= "holdfast://" MACHINE "/join#" CODE [ "~" ELSEWHERE ]
                                     MACHINE is the fingerprint of the machine's key
    ELSEWHERE ::= base64url of: key 32, static 32, then for each relay: route 16, length u8, address
                                     how to reach the machine, and its keys

The id is public. It names the invitation in listings, and a meeting point on a network can route by
it. The secret (35 bits) stays with the two people. Both ends derive an Ed25519 key from it, by
scrypt with the machine's key and the id as salt. The host stores the public half, which admits
nobody. The joiner signs the introduction of its own connection with the private half, so the
signature is worthless for another connection, name or key.

An observer of both halves (root on this machine) could try all secrets at 32 MiB and a tenth of a
second each: a hundred years of one core for a code that lives ten minutes. Over a carrier that can
be read, this does not suffice. There the code is the password of a key exchange that reveals
nothing to try (id and secret stay the same).

The last character is a check over GF(32): a wrong character, or two swapped characters, are noticed
at the keyboard and cost no attempt. In the URL the code stands behind `#`, a part that URL handlers
neither send nor log.

Rejected: a keyed hash of the introduction (the stored value would be as good as the code); a random
salt (another question to the host before the proof, and guessing in advance would need the same
years for each machine and id).
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from holdfast.model import base64url, signing
from holdfast.model.errors import Usage
from holdfast.model.ids import ALPHABET

DOMAIN: Final = "invitation/1"
ID_CHARS: Final = 4
SECRET_CHARS: Final = 7
GROUP_CHARS: Final = 4
FINGERPRINT_CHARS: Final = 16  # 80 bits
TEXT_CHARS: Final = 256  # a longer typed text is refused
URL_CHARS: Final = 2048  # a longer link is refused
DOORS_MAX: Final = 4
ROUTE_BYTES: Final = 16
SCRYPT: Final = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 40 << 20}
SCHEME: Final = "holdfast://"
_ALPHABET = ALPHABET.upper()
_MEANT = str.maketrans("ILO", "110", "- \t")  # Crockford's reading of ambiguous letters


class Code(NamedTuple):
    id: str
    secret: str

    def __repr__(self) -> str:  # without the secret, because it appears in tracebacks and logs
        return f"Code({self.id}-...)"

    def show(self) -> str:
        return group(self.id + self.secret + _check(self.id + self.secret))


def make(random: bytes) -> Code:
    """Make a code from at least 8 random bytes."""
    text = _base32(random[:8], ID_CHARS + SECRET_CHARS)
    return Code(text[:ID_CHARS], text[ID_CHARS:])


def read(text: str) -> tuple[Code, str | None]:
    """Parse a typed, pasted or scanned code, with the machine's fingerprint if it is a URL.

    Usage if it is not a code.
    """
    text, machine = text.strip().partition("~")[0], None
    if len(text) > TEXT_CHARS:
        raise _no_code("it is too long")
    if text.lower().startswith(SCHEME):
        machine, slash, rest = text[len(SCHEME) :].lower().partition("/")
        path, _, text = rest.partition("#")
        if (
            not slash
            or path != "join"
            or len(machine) != FINGERPRINT_CHARS
            or machine.strip(ALPHABET)
        ):
            raise _no_code("it is not holdfast://MACHINE/join#CODE")
    plain = text.upper().translate(_MEANT)
    if len(plain) != ID_CHARS + SECRET_CHARS + 1 or plain.strip(_ALPHABET):
        raise _no_code(f"a code has {ID_CHARS + SECRET_CHARS + 1} letters and digits")
    if _check(plain[:-1]) != plain[-1]:
        raise _no_code("a character of it is wrong")
    return Code(plain[:ID_CHARS], plain[ID_CHARS:-1]), machine


def read_id(text: str) -> str:
    """Parse the id of a code as people write it."""
    plain = text[:TEXT_CHARS].upper().translate(_MEANT)
    if len(plain) != ID_CHARS or plain.strip(_ALPHABET):
        raise Usage(
            f"{text[:40]!a} is not the id of an invitation",
            f"it is the first {ID_CHARS} characters of the code: `holdfast invite ls` lists them",
        )
    return plain


class Elsewhere(NamedTuple):
    """The way to a machine that is not known yet."""

    key: bytes
    static: bytes
    doors: tuple[tuple[str, bytes], ...]  # (address of a relay, route there)


def elsewhere(text: str) -> Elsewhere | None:
    """Return the way that a link contains; None if the link is for this machine.

    Usage if the link is damaged.
    """
    _, tilde, rest = text.strip().partition("~")
    if not tilde:
        return None
    try:
        if len(text) > URL_CHARS:
            raise ValueError("too long")
        data = base64url.decode(rest)
        doors, at = list[tuple[str, bytes]](), 2 * signing.KEY_BYTES
        while at < len(data):
            length = data[at + ROUTE_BYTES]
            url = data[at + ROUTE_BYTES + 1 : at + ROUTE_BYTES + 1 + length]
            if len(url) != length or not length:
                raise ValueError("cut off")
            doors.append((url.decode("ascii"), data[at : at + ROUTE_BYTES]))
            at += ROUTE_BYTES + 1 + length
        if not 0 < len(doors) <= DOORS_MAX:
            raise ValueError("no relay")
    except (ValueError, IndexError) as e:
        raise _no_code("the link is damaged") from e
    return Elsewhere(
        data[: signing.KEY_BYTES], data[signing.KEY_BYTES : 2 * signing.KEY_BYTES], tuple(doors)
    )


def url(code: Code, machine: bytes, reached: Elsewhere | None = None) -> str:
    """Return the link; `reached` is for joiners on another machine."""
    more = (
        b""
        if reached is None
        else reached.key
        + reached.static
        + b"".join(
            route + bytes((len(url),)) + url.encode("ascii")
            for url, route in [door for door in reached.doors if 0 < len(door[0]) < 256][:DOORS_MAX]
        )
    )
    return f"{SCHEME}{fingerprint(machine)}/join#{code.show()}" + (
        "~" + base64url.encode(more) if more else ""
    )


def fingerprint(key: bytes) -> str:
    """Return a short form of a key for URLs; `group` formats it for comparison by people."""
    return _base32(
        hashlib.sha256(b"holdfast/fingerprint/1\0" + key).digest(), FINGERPRINT_CHARS
    ).lower()


def group(text: str) -> str:
    return "-".join(text[at : at + GROUP_CHARS] for at in range(0, len(text), GROUP_CHARS)).upper()


def pass_of(verifier: bytes) -> bytes:
    """Return the pass to the machine's line at a relay: no proof, but it keeps strangers off."""
    return hashlib.sha256(b"holdfast/invitation/pass/1\0" + verifier).digest()


# ------------------------------------------------------------ proof of possession


def private(code: Code, machine: bytes) -> bytes:
    """Derive the private key from the code, for this machine only.

    This takes a tenth of a second, on purpose.
    """
    return hashlib.scrypt(
        code.secret.encode(),
        salt=b"holdfast/" + DOMAIN.encode() + b"\0" + machine + code.id.encode(),
        dklen=signing.KEY_BYTES,
        **SCRYPT,
    )


def prove(code: Code, machine: bytes, statement: bytes) -> bytes:
    """Sign the introduction of this connection."""
    return signing.sign(private(code, machine), DOMAIN, statement)


def holds(verifier: bytes, statement: bytes, proof: bytes) -> bool:
    """Say whether the joiner of this introduction has the code."""
    return signing.verify(verifier, DOMAIN, statement, proof)


# ------------------------------------------------------------ characters


def _base32(data: bytes, chars: int) -> str:
    number = int.from_bytes(data, "little")
    return "".join(_ALPHABET[(number >> 5 * at) & 31] for at in range(chars))


def _check(text: str) -> str:
    """Return the check character.

    Each character is weighted with another power of two in GF(32), the check itself with 1. So no
    single mistake and no swap keeps the sum.
    """
    total = 0
    for character in text:
        total ^= _ALPHABET.index(character)
        total = total << 1 ^ (0x25 if total & 16 else 0)
    return _ALPHABET[total]


def _no_code(why: str) -> Usage:
    return Usage(
        f"that is no code: {why}",
        "it looks like 4KQ7-M2XD-9TRG; type it as `holdfast invite` showed it",
    )
