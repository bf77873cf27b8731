"""The keys that may reach this host through a relay.

Keys with rights may, and keys that lost their rights lately: the host refuses them with the reason,
which only the holder of such a key learns.
"""

from __future__ import annotations

from holdfast.host.people.rights import FOREVER, Rights
from holdfast.model.limits import REVOKED_TOLD_S


def living(rights: Rights, now: float) -> list[bytes]:
    """All valid keys that have any right, the newest first."""
    alive = [
        one
        for one in rights.all_keys()
        if not rights.dead(one.key)
        and any(rights.state_of(held, now) == "valid" for held in rights.envelopes(one.key))
    ]
    return [one.key for one in sorted(alive, key=lambda one: -one.added)]


def ended(rights: Rights, now: float) -> list[bytes]:
    """Keys that lost every right at most REVOKED_TOLD_S ago, the newest loss first."""
    alive = set(living(rights, now))
    lost = {
        one.key: max(_losses(rights, one.key, one.operator, now), default=-FOREVER)
        for one in rights.all_keys()
        if one.key not in alive
    }
    recent = [key for key, at in lost.items() if now - at <= REVOKED_TOLD_S]
    return sorted(recent, key=lambda key: -lost[key])


def _losses(rights: Rights, key: bytes, operator: str, now: float) -> list[float]:
    """When the key, its operator or an envelope of the key was revoked or expired."""
    subjects, expired = {("key", key), ("operator", operator.encode())}, []
    for held in rights.envelopes(key):
        subjects |= {("link", link.id) for link in held.chain.links}
        subjects |= {("key", one) for one in held.chain.keys}
        if (expires := held.chain.last.scope.expires) is not None and expires <= now:
            expired.append(float(expires))
    revoked = (rights.revocation(kind, subject)["revoked"] for kind, subject in subjects)
    return expired + [float(at) for at in revoked if at is not None]
