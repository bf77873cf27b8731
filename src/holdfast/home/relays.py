"""The relays to which the host of this installation dials out.

    HOME/relays.json   canonical JSON {v, relays: [{url, token?, ca?, own?}]}

The file holds the tokens that admit the host, so only this account may read the file. `own` marks
the relay that `up` starts for this installation. At most one relay has this mark, and the address
of that relay may change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.home import Home, private
from holdfast.model.errors import NotFound, Refused

RELAYS_MAX: Final = 8
FILE_BYTES: Final = 1 << 16


class Relay(NamedTuple):
    url: str
    token: str | None = None
    ca: str | None = None
    own: bool = False

    def __repr__(self) -> str:  # a token must not end up in a log
        return f"Relay({self.url!r})"


def path(home: Home) -> str:
    return f"{home.state}/relays.json"


def listing(home: Home) -> list[Relay]:
    recover = "move it away, then `holdfast host connect` again"
    try:
        return [
            Relay(str(one["url"]), one.get("token"), one.get("ca"), one.get("own") is True)
            for one in private.entries(path(home), FILE_BYTES, "relays", recover)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise private.damaged(path(home), e, recover) from e


def keep(home: Home, relay: Relay) -> None:
    """Add the relay, or replace the entry with the same address."""
    others = [one for one in listing(home) if one.url != relay.url]
    _check_room(others)
    _write(home, [*others, relay])


def keep_own(home: Home, url: str | None, token: str | None = None) -> bool:
    """Record the address of this installation's own relay; True if the file changed.

    `url` None: there is no own relay. `token` None: keep the known token.
    """
    known = listing(home)
    wanted = [
        one._replace(token=token or one.token) if one.own else one
        for one in known
        if not one.own or one.url == url
    ]
    if url is not None and not any(one.url == url for one in wanted):
        _check_room(wanted)
        wanted.append(Relay(url, token, own=True))
    if wanted == known:
        return False
    _write(home, wanted)
    return True


def forget(home: Home, url: str) -> None:
    known = listing(home)
    if not any(one.url == url for one in known):
        raise NotFound(
            f"no relay {url[:80]!a} is known here",
            f"known: {', '.join(one.url for one in known)}" if known else "there are none",
        )
    _write(home, [one for one in known if one.url != url])


def _check_room(relays: list[Relay]) -> None:
    if len(relays) >= RELAYS_MAX:
        raise Refused(
            f"{RELAYS_MAX} relays are already known", "`holdfast host disconnect URL` removes one"
        )


def _write(home: Home, relays: list[Relay]) -> None:
    given = [
        {key: value for key, value in one._asdict().items() if value not in (None, False)}
        for one in relays
    ]
    private.keep(path(home), "relays", given)
