"""How a client signs what it does (P1): for one machine, one incarnation of one session, through one channel, naming the last entry of the
record that it had seen.

The key never leaves `home.keys.Identity`; the content never enters the statement, only a commitment to it. Keys are not signed one by one:
when their line is done, or COVER_NS after the first of them, one statement covers them all.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.core import acts, statement
from holdfast.core.uncovered import Range
from holdfast.home.keys import Identity
from holdfast.model import signing
from holdfast.wire import hello


class Place:
    """Where an act takes effect, and the last that was known of its record."""

    __slots__ = ("epoch", "seen", "session")

    def __init__(self, session: str, epoch: int, seen: str | None) -> None:
        self.session, self.epoch, self.seen = session, epoch, seen


class Acting:
    def __init__(self) -> None:
        self.places: dict[str, Place] = {}  # by the name that was asked for, and by id
        self._identity: Identity | None = None
        self._machine = self._binding = self._client = ""

    def channel(self, identity: Identity, client: int, machine: str, binding: str) -> None:
        """Connected: everything is signed for this channel from now on."""
        self._identity, self._machine, self._binding = identity, machine, binding
        self._client = statement.client_id(hello.origin(signing.show(identity.public), client))
        self.places.clear()

    def learn(self, name: str, place: dict[str, Any]) -> Place:
        """What the host says of a session: {id, epoch, seen}."""
        known = self.places[name] = self.places[str(place["id"])] = Place(
            str(place["id"]), int(place["epoch"]), place.get("seen")
        )
        return known

    def acknowledged(self, place: Place, answer: dict[str, Any]) -> None:
        """The host recorded something of ours: that is the newest we know of."""
        if isinstance(recorded := answer.get("recorded"), dict):
            place.seen = str(recorded["hash"])

    def sign(self, op: str, fields: dict[str, Any], place: Place) -> None:
        """Makes a request an act: the session by its id, and the signature over what is asked."""
        if op in acts.KINDS:
            fields["session"] = place.session
        fields["signed"] = self._signed(
            place, fields["seq"], acts.kind(op, fields), acts.content(op, fields)
        )

    def cover(self, place: Place, keys: Range) -> dict[str, str]:
        return self._signed(place, keys.last, statement.KEYS, keys.content, keys.first)

    def _signed(
        self, place: Place, number: int, kind: str, content: bytes, first: int | None = None
    ) -> dict[str, str]:
        assert self._identity is not None
        salt = os.urandom(statement.SALT_BYTES)
        body = statement.statement(
            self._machine,
            place.session,
            place.epoch,
            self._client,
            number,
            kind,
            self._binding,
            place.seen,
            statement.commit(salt, content),
            first,
        )
        return {
            "statement": body.decode(),
            "signature": statement.sign_statement(self._identity.secret(), body).hex(),
            "salt": salt.hex(),
        }
