"""Bearer tokens of a service operator: each is a name with rights, narrower than the operator's.

    HOME/http/OPERATOR.tokens     {v, tokens: [{name, hash, rights, session, made, expires}]}, 0600

The file has the SHA-256 of a token, not the token: 256 random bits need no slow hash. The server
reads the file again after every change, so `rm` takes effect with the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from holdfast.faces.http.store import Store
from holdfast.home import Home
from holdfast.model import base64url
from holdfast.model.errors import NotFound, Refused, Usage
from holdfast.model.ids import check_name

PREFIX: Final = "hf_"
SECRET_BYTES: Final = 32
NAME_CHARS: Final = 48  # the record shows `http.NAME` as the modality, which is a name of its own
TOKENS_MAX: Final = 100
TEXT_CHARS: Final = 128  # of a header's token, before it is hashed
MODALITY: Final = "http."


@dataclass(frozen=True)
class Token:
    """`session`: the id of the only session; None for the whole machine. `expires`: or None."""

    name: str
    hash: str
    rights: tuple[str, ...]
    session: str | None
    made: int
    expires: int | None

    @property
    def modality(self) -> str:
        return MODALITY + self.name

    def valid(self, now: float) -> bool:
        return self.expires is None or now < self.expires


class Tokens:
    """The tokens of one operator."""

    def __init__(self, home: Home, operator: str) -> None:
        self._store = Store(home, operator, "tokens")

    def listing(self) -> list[Token]:
        return [
            Token(
                one["name"],
                one["hash"],
                tuple(one["rights"]),
                one["session"],
                one["made"],
                one["expires"],
            )
            for one in self._store.entries()
        ]

    def add(
        self,
        name: str,
        rights: frozenset[str],
        session: str | None,
        expires: int | None,
        now: float,
        random: Callable[[int], bytes] = os.urandom,
    ) -> str:
        """Makes a token; gives its text, which is stored nowhere."""
        if len(check_name(name)) > NAME_CHARS:
            raise Usage(f"the name of a token has at most {NAME_CHARS} characters")
        text = PREFIX + base64url.encode(random(SECRET_BYTES))
        with self._store.changing() as entries:
            if any(one["name"] == name for one in entries):
                raise Refused(f"there is a token {name}", f"`holdfast http token rm {name}`")
            if len(entries) >= TOKENS_MAX:
                raise Refused(f"there are {TOKENS_MAX} tokens", "remove tokens that expired")
            made = Token(name, _hash(text), tuple(sorted(rights)), session, int(now), expires)
            entries.append({**asdict(made), "rights": sorted(rights)})
        return text

    def remove(self, name: str) -> None:
        with self._store.changing() as entries:
            left = [one for one in entries if one["name"] != name]
            if len(left) == len(entries):
                raise NotFound(f"there is no token {name}", "`holdfast http token ls`")
            entries[:] = left

    def find(self, text: str, now: float) -> Token | None:
        """The valid token with this text. Takes as long for a wrong text as for a right one."""
        given, found = _hash(text[:TEXT_CHARS]), None
        for one in self.listing():
            if hmac.compare_digest(one.hash, given):
                found = one
        return found if found is not None and found.valid(now) else None

    def still(self, found: Token, now: float) -> bool:
        """Whether a token that was found before is still there, unchanged and valid."""
        return found.valid(now) and found in self.listing()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
