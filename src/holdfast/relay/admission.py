"""The single place that decides which peers may speak to this relay, for every transport.

It knows headers, not transports. Checked in this order:
- the name by which the relay was called, against an exact list, so that a web page whose own name
  points at this address cannot reach the relay;
- the web page that made the request, as the browser states it, against an exact list (empty by
  default); a browser that does not say so is recognised by other headers and refused;
- the bearer token, if there is one.
Cookies and URLs carry no credentials here, and an address admits no peer.

A missing token is not a refusal: clients come with a pass and known hosts with their key. Pass and
key are frames, so the registry checks both; until then the connection counts as a stranger's. A
wrong or revoked token is refused at once. An expired token is passed on as expired, because routes
enrolled with it stay enrolled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.relay.admin import TOKEN_CHARS, Row, digest
from holdfast.relay.events import Token

BEARER: Final = "bearer "


class Approach(NamedTuple):
    """A connection attempt. `hosts` is None if the transport does not tell (gRPC)."""

    hosts: tuple[str, ...] | None
    origins: tuple[str, ...]
    authorizations: tuple[str, ...]
    at: tuple[str, ...] = ()  # the address and port reached, as in a URL
    browser: bool = False  # it has headers that only browsers send


class Admission(NamedTuple):
    names: tuple[str, ...]  # the names by which the peer may have dialled the relay
    token: Token | None


def by_browser(names: Iterable[str]) -> bool:
    """Tell whether these headers come from a browser: pages cannot remove them."""
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
        """Return what the peer is admitted as. Raises TurnedAway if refused."""
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
        """Return the name by which the relay was called, or all names if unknown."""
        if approach.hosts is None:
            return (*self.names, *approach.at)
        if len(approach.hosts) != 1 or approach.hosts[0].lower() not in (*self.names, *approach.at):
            raise TurnedAway(421, "this relay does not go by that name")
        return (approach.hosts[0].lower(),)
