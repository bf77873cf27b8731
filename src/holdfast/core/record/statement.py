"""The statement that an actor signs for an act (P1); every client loads this small module.

    STATEMENT ::= {v, machine, session, epoch, client, number, kind, binding, seen, commit
                   [, first] [, for] [, once]}     "act/1"
    commit    =   blake2b-256(salt content), 16 bytes of salt

A statement names the only place where it is valid: the machine, the incarnation of the session, the
attachment (`client`, random) and its number, the channel, and the last entry of the record that the
actor had seen. `once` is the act's idempotency key, if there is one. A statement contains a
commitment instead of the content, so the record can forget the content and keep the signature.
core/record/record.py says how the record uses it.
"""

from __future__ import annotations

from holdfast.model import canonical, signing
from holdfast.model.ids import is_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL for the same function
except ImportError:
    from hashlib import blake2b

VERSION: Final = 1
SALT_BYTES: Final = 16
COVER_KEYS: Final = 64  # inputs that one signature covers, at most
COVER_NS: Final = 1_000_000_000  # after the first of them, the signature is due
KEYS: Final = "keys"  # the kind of a statement about a range of raw keys
STATEMENT: Final = frozenset(
    ("v", "machine", "session", "epoch", "client", "number", "kind", "binding", "seen", "commit")
)
STATEMENT_OPTIONAL: Final = frozenset(("first", "for", "once"))


def client_id(number: int) -> str:
    """Return a 64-bit id as text, because numbers of some languages do not hold 64 bits."""
    return f"{number & 0xFFFFFFFFFFFFFFFF:016x}"


def commit(salt: bytes, content: bytes) -> str:
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes")
    return blake2b(salt + content, digest_size=32).hexdigest()


def keys_content(keys: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the committed bytes of a range of keys.

    Each key is a number (8 bytes), a length (4 bytes, both big-endian) and the bytes.
    """
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
    once: str | None = None,
) -> bytes:
    """Return the bytes to sign for an act, or for a range of keys (`first`).

    A bridge names the operator it acts for.
    """
    said: dict[str, object] = {
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
    if once is not None:
        said["once"] = once
    return canonical.encode(said)


def sign_statement(private: bytes, body: bytes) -> bytes:
    return signing.sign(private, "act/1", body)


def read_statement(body: bytes, signature: bytes, key: str) -> dict[str, Any]:
    """Verify a statement of this key and return its fields; ValueError otherwise."""
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
        raise ValueError("its channel or the head it names is malformed")
    if "once" in said and not is_once(said["once"]):
        raise ValueError("its idempotency key is malformed")
    return said


def _hex(value: object) -> bool:
    return isinstance(value, str) and len(value) % 2 == 0 and not value.strip("0123456789abcdef")


def expect(said: Mapping[str, object], **fields: object) -> None:
    """Raise ValueError naming the first field in which the statement differs."""
    for name, value in fields.items():
        if said.get(name) != value or type(said.get(name)) is not type(value):
            raise ValueError(f"the signed statement has another {name}")
