"""Operations of the relay's operator on tokens and keys: pure functions on the database.

A token is 32 random bytes in text, shown once when made. The database has its SHA-256, which
suffices for an unguessable secret. The id that is shown and logged is the beginning of that hash.
The caller makes a token in its own process and submits the hash, so the relay never sees a token
before its use.

The same requests come through the relay's socket while it runs (control.py), and go straight to the
database while it does not.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from os import urandom
from typing import Final, NamedTuple

import apsw

from holdfast.model import signing
from holdfast.model.errors import NotFound, Refused, Usage
from holdfast.model.limits import NAME_CHARS, RELAY_TOKENS_MAX
from holdfast.relay.events import Known

PREFIX: Final = "hfr_"
TOKEN_CHARS: Final = len(PREFIX) + 43
TENANT: Final = "default"
_NAME = re.compile(rf"[A-Za-z0-9._][A-Za-z0-9._-]{{0,{NAME_CHARS - 1}}}")
_ID_CHARS = 12


Request = Mapping[str, object]  # {act, ...} as the caller sent it
Answer = dict[str, object]


class Row(NamedTuple):
    """A token as stored."""

    id: str
    digest: bytes
    tenant: str
    created: int
    expires: int | None
    revoked: int | None


def make() -> tuple[str, bytes]:
    """Make a new token and its hash."""
    token = PREFIX + urlsafe_b64encode(urandom(32)).rstrip(b"=").decode()
    return token, digest(token)


def digest(token: str) -> bytes:
    return sha256(token.encode()).digest()


def tokens(db: apsw.Connection) -> list[Row]:
    rows = db.execute(
        "SELECT id, digest, tenant, created, expires, revoked FROM tokens ORDER BY created, id"
    )
    return [Row._make(row) for row in rows]


def act(db: apsw.Connection, request: Request, now: int) -> Answer | list[Answer]:
    """Carry out a request inside the caller's transaction; return the answer."""
    acts: dict[str, Callable[[apsw.Connection, Request, int], Answer | list[Answer]]]
    acts = {"token.new": _new, "token.ls": _ls, "token.revoke": _revoke, "admit": _admit}
    kind = str(request.get("act"))
    if kind not in acts:
        raise Usage(
            "the relay was asked for something it does not know",
            "both sides should run the same release",
        )
    return acts[kind](db, request, now)


def _tenant(db: apsw.Connection, name: object, now: int) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Usage(
            "a tenant's name has letters, digits, `.`, `_`, `-`", f"at most {NAME_CHARS} of them"
        )
    db.execute("INSERT OR IGNORE INTO tenants VALUES (?, ?)", (name, now))
    return name


def _new(db: apsw.Connection, request: Request, now: int) -> Answer:
    hash, expires = bytes.fromhex(str(request.get("digest", ""))), request.get("expires")
    if len(hash) != 32 or not (expires is None or type(expires) is int):
        raise Usage("not a token's hash, or no time")
    tenant = _tenant(db, request.get("tenant"), now)
    if (
        len(db.execute("SELECT id FROM tokens LIMIT ?", (RELAY_TOKENS_MAX,)).fetchall())
        >= RELAY_TOKENS_MAX
    ):
        raise Refused(f"there are {RELAY_TOKENS_MAX} tokens", "give several hosts the same one")
    row = Row(hash.hex()[:_ID_CHARS], hash, tenant, now, expires, None)
    try:
        db.execute("INSERT INTO tokens VALUES (?,?,?,?,?,?)", row)
    except apsw.ConstraintError as e:
        raise Refused("there is such a token already", "make another one") from e
    return shown(row, now)


def _ls(db: apsw.Connection, request: Request, now: int) -> list[Answer]:
    return [shown(row, now) for row in tokens(db)]


def _revoke(db: apsw.Connection, request: Request, now: int) -> Answer:
    wanted = str(request.get("id", ""))
    found = [row for row in tokens(db) if wanted and row.id.startswith(wanted)]
    if len(found) != 1:
        raise NotFound(
            f"{'more than one' if found else 'no'} token begins with {wanted[:NAME_CHARS]!a}",
            "`holdfast relay token ls` lists them",
        )
    row = found[0]._replace(revoked=found[0].revoked or now)
    db.execute("UPDATE tokens SET revoked = ? WHERE id = ?", (row.revoked, row.id))
    return shown(row, now)


def _admit(db: apsw.Connection, request: Request, now: int) -> Answer:
    try:
        key = signing.read(str(request.get("key", "")))
    except ValueError as e:
        raise Usage(f"not a route key: {e}", "the host shows it: ed25519:...") from e
    tenant = _tenant(db, request.get("tenant"), now)
    db.execute(
        "INSERT INTO routes VALUES (?,?,NULL,0,x'',?)"
        " ON CONFLICT(key) DO UPDATE SET token = NULL, tenant = excluded.tenant",
        (key, tenant, now),
    )
    return {"key": signing.show(key), "tenant": tenant, "admitted": now}


def enrolled(answer: Answer) -> Known:
    """Return the result of `admit` as the registry needs it."""
    key, tenant, admitted = answer["key"], answer["tenant"], answer["admitted"]
    assert isinstance(admitted, int)
    return Known(signing.read(str(key)), str(tenant), None, 0, (), admitted)


def shown(row: Row, now: int) -> Answer:
    state = (
        "revoked"
        if row.revoked is not None
        else "expired"
        if row.expires is not None and row.expires <= now
        else "valid"
    )
    return {
        "id": row.id,
        "tenant": row.tenant,
        "state": state,
        "created": row.created,
        "expires": row.expires,
        "revoked": row.revoked,
    }
