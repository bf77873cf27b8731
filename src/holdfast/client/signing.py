"""Sign acts (P1): each for a machine, an incarnation of a session, a channel and a number.

A statement names the last record entry that the client had seen. The private key never leaves
`home.keys.Identity`. A statement contains only a commitment to the content. Keystrokes are not
signed singly: a statement covers a line, or all keys within COVER_NS after the first.
"""

from __future__ import annotations

import os

from holdfast.core.record import acts, statement
from holdfast.model import signing
from holdfast.wire import hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.record.uncovered import Range
    from holdfast.home.keys import Identity
    from holdfast.model.errors import HoldfastError
    from holdfast.model.jsontext import Json


class SigningTarget:
    """The session of an act, and the last known entry of the session's record."""

    __slots__ = ("epoch", "name", "seen", "session")

    def __init__(self, session: str, epoch: int, seen: str | None, name: str | None = None) -> None:
        """`name`: None if the host is older and does not tell."""
        self.session, self.epoch, self.seen, self.name = session, epoch, seen, name

    def acknowledged(self, answer: Json) -> None:
        """Remember the newest record entry that the host reported, and a new incarnation."""
        if isinstance(recorded := answer.get("recorded"), dict):
            self.seen = str(recorded["hash"])
        if answer.get("id", self.session) == self.session:  # `new` answers for another session
            self.epoch = int(answer.get("epoch", self.epoch))


class Acting:
    def __init__(self) -> None:
        self.targets: dict[str, SigningTarget] = {}  # by the name in the request, and by id
        self._identity: Identity | None = None
        self._machine = self._binding = self._client = ""

    def channel(self, identity: Identity, client: int, machine: str, binding: str) -> None:
        """Sign all acts for this channel from now on."""
        self._identity, self._machine, self._binding = identity, machine, binding
        self._client = statement.client_id(hello.origin(signing.show(identity.public), client))
        self.targets.clear()

    def learn(self, name: str, target: Json) -> SigningTarget:
        """Remember the host's description of a session: {id, epoch, seen, name}."""
        known = self.targets[name] = self.targets[str(target["id"])] = SigningTarget(
            str(target["id"]), int(target["epoch"]), target.get("seen"), target.get("name")
        )
        return known

    def refused(self, name: str, error: HoldfastError) -> None:
        """Forget a session whose incarnation has changed.

        The caller is told that the act was refused. The next act is for the new incarnation.
        """
        if "epoch" in error.facts:
            self.targets.pop(name, None)

    def sign(self, op: str, fields: Json, target: SigningTarget) -> None:
        """Make a request a signed act, which names the session by id."""
        if op in acts.KINDS:
            if target.name is not None:
                acts.refuse_beginning(op, str(fields["session"]), target.session, target.name)
            fields["session"] = target.session
        fields["signed"] = self._signed(
            target,
            fields["seq"],
            acts.kind(op, fields),
            acts.content(op, fields),
            once=fields.get("once"),
        )

    def cover(self, target: SigningTarget, keys: Range) -> dict[str, str]:
        return self._signed(target, keys.last, statement.KEYS, keys.content, keys.first)

    def _signed(
        self,
        target: SigningTarget,
        number: int,
        kind: str,
        content: bytes,
        first: int | None = None,
        once: str | None = None,
    ) -> dict[str, str]:
        assert self._identity is not None
        salt = os.urandom(statement.SALT_BYTES)
        body = statement.statement(
            self._machine,
            target.session,
            target.epoch,
            self._client,
            number,
            kind,
            self._binding,
            target.seen,
            statement.commit(salt, content),
            first,
            once=once,
        )
        return {
            "statement": body.decode(),
            "signature": statement.sign_statement(self._identity.secret(), body).hex(),
            "salt": salt.hex(),
        }
