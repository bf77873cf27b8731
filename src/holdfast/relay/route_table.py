"""The routes that a relay remembers: those of connected hosts, and of hosts that will return.

A route outlives its host's connection for two reasons: a client with a pass is told that the host
is away, and a host whose token has expired returns by its key. The number of remembered routes per
tenant is bounded; the route that was away longest is forgotten first.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.sealed import route as routes
from holdfast.relay.events import Known, Token
from holdfast.relay.state import Route


class RouteTable:
    def __init__(self, known: Iterable[Known]) -> None:
        self.routes: dict[bytes, Route] = {}
        self._of: dict[str, set[Route]] = {}  # by tenant
        for one in known:
            self.put(one)

    def get(self, id: bytes) -> Route | None:
        return self.routes.get(id)

    def put(self, known: Known) -> Route:
        """Add or update a route. To change the tenant, remove the route first."""
        id = routes.route(known.key)
        route = self.routes.get(id)
        if route is None:
            route = self.routes[id] = Route(id, known, frozenset(known.passes), known.seen)
            self._of.setdefault(known.tenant, set()).add(route)
        assert route.known.tenant == known.tenant
        route.known, route.passes = known, frozenset(known.passes)
        return route

    def remove(self, route: Route) -> None:
        del self.routes[route.id]
        others = self._of[route.known.tenant]
        others.remove(route)
        if not others:
            del self._of[route.known.tenant]

    def too_many(self, tenant: str, most: int) -> Route | None:
        """Return the route to forget if a tenant has more than `most`."""
        ours = self._of.get(tenant, set())
        if len(ours) <= most:
            return None
        return min(
            (r for r in ours if r.connection is None),
            key=lambda r: (r.known.seen, r.id),
            default=None,
        )

    def enrolled_by(self, token: str) -> list[Route]:
        return [r for r in self.routes.values() if r.known.token == token]


def enrolled(token: Token | None, route: Route | None) -> tuple[str, str | None] | None:
    """Return the tenant and token id for a registration, or None if it is not allowed.

    A known route returns by its key.
    """
    if token is not None and not token.expired:
        beforehand = (
            route is not None and route.known.token is None and route.known.tenant == token.tenant
        )
        return token.tenant, None if beforehand else token.id
    if route is not None and (token is None or token.tenant == route.known.tenant):
        return route.known.tenant, route.known.token
    return None
