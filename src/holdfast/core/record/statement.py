"""What an actor signs for an act (P1): small enough for every client to load at its start.

    STATEMENT ::= {v, machine, session, epoch, client, number, kind, binding, seen, commit [, first] [, for]}     "act/1"
    commit    =   blake2b-256(salt content), 16 bytes of salt

A statement names the one place where it holds: the machine, the session's incarnation, the attachment (`client`, random) and its number, the
channel it came through, the last entry of the record its actor had seen. It never holds the content, only a commitment to it, so the
record can forget the content and keep the signature. What the record makes of it is in core/record.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.model import canonical, signing

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

VERSION: Final = 1
SALT_BYTES: Final = 16
COVER_KEYS: Final = 64  # a signature covers at most this many inputs ...
COVER_NS: Final = 1_000_000_000  # ... and is due this long after the first of them
KEYS: Final = "keys"  # the kind of a statement about a range of raw keys
STATEMENT: Final = frozenset(
    ("v", "machine", "session", "epoch", "client", "number", "kind", "binding", "seen", "commit")
)
STATEMENT_OPTIONAL: Final = frozenset(("first", "for"))


def client_id(number: int) -> str:
    """A client's 64-bit id as the record has it: text, because not every language's numbers hold 64 bits."""
    return f"{number & 0xFFFFFFFFFFFFFFFF:016x}"


def commit(salt: bytes, content: bytes) -> str:
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    return blake2b(salt + content, digest_size=32).hexdigest()


def keys_content(keys: Iterable[tuple[int, bytes]]) -> bytes:
    """What the commitment of a range of keys is over: each as its number (8 bytes), its length (4 bytes, big-endian both), itself."""
    return b"".join(
        number.to_bytes(8, "big") + len(data).to_bytes(4, "big") + data for number, data in keys
    )


def statement(
    machine: str,
    session: str,
    epoch: int,
    client: str,
    number: int,
    kind: str,
    binding: str,
    seen: str | None,
    commit: str,
    first: int | None = None,
    on_behalf_of: str | None = None,
) -> bytes:
    """The bytes an actor signs for one act (or one range of keys: `first`); a bridge says for whom."""
    said: dict[str, Any] = {
        "v": VERSION,
        "machine": machine,
        "session": session,
        "epoch": epoch,
        "client": client,
        "number": number,
        "kind": kind,
        "binding": binding,
        "seen": seen,
        "commit": commit,
    }
    if first is not None:
        said["first"] = first
    if on_behalf_of is not None:
        said["for"] = on_behalf_of
    return canonical.encode(said)


def sign_statement(private: bytes, body: bytes) -> bytes:
    return signing.sign(private, "act/1", body)


def read_statement(body: bytes, signature: bytes, key: str) -> dict[str, Any]:
    """What is said in it, once it is known to be this key's word; ValueError otherwise."""
    if not signing.verify(signing.read(key), "act/1", body, signature):
        raise ValueError("not signed by that key")
    said = canonical.decode(body)
    if (
        not isinstance(said, dict)
        or not STATEMENT <= set(said) <= STATEMENT | STATEMENT_OPTIONAL
        or type(said["v"]) is not int
        or said["v"] != VERSION
    ):
        raise ValueError("not a statement of this version")
    if not (
        _hex(said["binding"])
        and (said["seen"] is None or (_hex(said["seen"]) and len(said["seen"]) == 64))
    ):
        raise ValueError("its channel or the head it has seen is none")
    return said


def _hex(value: Any) -> bool:
    return isinstance(value, str) and len(value) % 2 == 0 and not value.strip("0123456789abcdef")


def expect(said: Mapping[str, Any], **fields: Any) -> None:
    """ValueError naming the first of these that the statement has otherwise."""
    for name, value in fields.items():
        if said.get(name) != value or type(said.get(name)) is not type(value):
            raise ValueError(f"what was signed has another {name}")
