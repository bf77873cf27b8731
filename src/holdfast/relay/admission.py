"""The one place that says who may speak to this relay at all, for every door.

It knows headers, not transports. Checked, in this order: the name the relay was called by (an exact list: a page that had its own name point at this address
cannot reach it), the page it was called from (a browser says; exact list, none by default; one that does not say is known by its other headers and refused), and
the bearer token, if there is one. There are no cookies and nothing in a URL counts. An address admits nobody.

No token is not a refusal: clients come with a pass, hosts that are known with their key. Both are frames, so the registry sees to them; until then
it is a stranger's connection. A token that is wrong or revoked is refused at once. One that has expired is let through as what it is, because what was
enrolled with it stays enrolled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.relay.events import Token
from holdfast.relay.office import TOKEN_CHARS, Row, digest

BEARER: Final = "bearer "


class Approach(NamedTuple):
    """How somebody comes. `hosts` is None where the transport does not tell (gRPC, which no page can speak)."""

    hosts: tuple[str, ...] | None
    origins: tuple[str, ...]
    authorizations: tuple[str, ...]
    at: tuple[str, ...] = ()  # the address and port that were reached, as they would be in a URL
    browser: bool = False  # whether it has headers that browsers alone send


class Admission(NamedTuple):
    names: tuple[str, ...]  # by which the relay may have been dialled
    token: Token | None


def by_browser(names: Iterable[str]) -> bool:
    """Whether somebody who sends these headers is a browser. Pages cannot take them away; others have no reason to send them."""
    return any(name.lower() == "cookie" or name.lower().startswith("sec-fetch-") for name in names)


class TurnedAway(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Doorkeeper:
    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(name.lower() for name in names))
        self.origins = frozenset(origins)
        self.tokens: dict[bytes, Row] = {}

    def learn(self, tokens: Iterable[Row]) -> None:
        self.tokens = {row.digest: row for row in tokens}

    def admit(self, approach: Approach, now: float) -> Admission:
        """Who this is, or TurnedAway."""
        names = self.called(approach)
        if not set(approach.origins) <= self.origins or len(approach.origins) > 1:
            raise TurnedAway(403, "this origin is not allowed here")
        if approach.browser and not approach.origins:
            raise TurnedAway(403, "a page has to say its origin")
        if not approach.authorizations:
            return Admission(names, None)
        given = approach.authorizations[0]
        row = (
            self.tokens.get(digest(given[len(BEARER) :]))
            if len(given) <= len(BEARER) + TOKEN_CHARS and given[: len(BEARER)].lower() == BEARER
            else None
        )
        if row is None or row.revoked is not None or len(approach.authorizations) > 1:
            raise TurnedAway(401, "this token does not admit anybody")
        return Admission(
            names, Token(row.id, row.tenant, row.expires is not None and row.expires <= now)
        )

    def called(self, approach: Approach) -> tuple[str, ...]:
        """The name it was called by; all of them where that cannot be known."""
        if approach.hosts is None:
            return (*self.names, *approach.at)
        if len(approach.hosts) != 1 or approach.hosts[0].lower() not in (*self.names, *approach.at):
            raise TurnedAway(421, "this relay does not go by that name")
        return (approach.hosts[0].lower(),)
