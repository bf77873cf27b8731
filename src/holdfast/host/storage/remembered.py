"""Descriptions of living sessions, sealed, for the next incarnation after a loss of memory (R1).

    TABLE remembered (session, body)        body ::= NONCE (12 bytes) AES-256-GCM(JSON)

A description has the environment of the session, which often holds tokens. The key is derived from
the machine's secret, so a copy of the database without `keys/machine` reveals nothing. The account
itself can read both. The id of the session is authenticated, so exchanged rows do not open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any, Final

import apsw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.host.storage.store import Job, forget_description

ROWS: Final = "SELECT session, body FROM remembered"
DESCRIPTION_BYTES: Final = 1 << 20  # of a larger one, the shortened form is stored
_NONCE_BYTES: Final = 12


class Remembered:
    def __init__(self, rows: Iterable[tuple[Any, ...]], key: bytes) -> None:
        """`rows`: of the table, as an earlier host left it. `key`: `keys.remembered_key`."""
        self._aead = AESGCM(key)
        # Of the sessions of the last host; each is taken once.
        self._stored = {str(session): bytes(body) for session, body in rows}

    def has(self, session: str) -> bool:
        """Whether an earlier host stored a description."""
        return session in self._stored

    def take(self, session: str) -> dict[str, Any] | None:
        """The description that an earlier host stored. None: there is none, or it does not open."""
        body = self._stored.pop(session, b"")
        try:
            plain = self._aead.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], session.encode())
            found = json.loads(plain)
        except (InvalidTag, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def save(self, session: str, descriptions: Iterable[dict[str, Any]]) -> Job:
        """A job that stores a description in place of the last one: the first that fits."""
        encoded = (json.dumps(one).encode() for one in descriptions)
        plain = next((one for one in encoded if len(one) <= DESCRIPTION_BYTES), None)
        if plain is None:
            return forget_description(session)
        nonce = os.urandom(_NONCE_BYTES)
        body = nonce + self._aead.encrypt(nonce, plain, session.encode())

        def job(db: apsw.Connection) -> None:
            db.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?)", (session, body))

        return job
