"""The first words of a client, for tests that speak the wire themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.identity import identity
from holdfast.model import signing
from holdfast.wire import frames, hello

if TYPE_CHECKING:
    from holdfast.home import Home


class Introduction:
    def __init__(
        self, home: Home, client: int, operator: str = "tester", modality: str = "test", **odd: Any
    ) -> None:
        self._identity = identity(home, operator)
        self.words = {
            "version": frames.VERSION,
            "lowest": frames.LOWEST,
            "client": client,
            "operator": operator,
            "modality": modality,
            "key": signing.show(self._identity.public),
            **odd,
        }

    @property
    def hello(self) -> bytes:
        return frames.pack_json(frames.HELLO, self.words)

    def proof(self, challenge: bytes) -> bytes:
        """The answer to the content of a CHALLENGE frame."""
        statement = hello.statement(self.words, frames.read_json(challenge))
        return frames.pack_json(
            frames.PROOF,
            {"signature": signing.sign(self._identity.secret(), hello.DOMAIN, statement).hex()},
        )
