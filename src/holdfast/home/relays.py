"""The relays that this installation's host dials out to: one file, readable by this account alone, because it holds the tokens that admit it there.

    HOME/relays.json   canonical JSON {v, relays: [{url, token?, ca?, own?}]}

`own` is the relay that `up` starts for this installation; there is one at most, and its address may change.
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
    recover = "put it aside, then `holdfast host connect` again"
    try:
        return [
            Relay(str(one["url"]), one.get("token"), one.get("ca"), one.get("own") is True)
            for one in private.entries(path(home), FILE_BYTES, "relays", recover)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise private.damaged(path(home), e, recover) from e


def keep(home: Home, relay: Relay) -> None:
    """Adds it, or puts it in the place of what was known of that address."""
    others = [one for one in listing(home) if one.url != relay.url]
    if len(others) >= RELAYS_MAX:
        raise Refused(
            f"{RELAYS_MAX} relays are known already",
            "`holdfast host disconnect URL` takes one away",
        )
    _write(home, [*others, relay])


def keep_own(home: Home, url: str | None, token: str | None = None) -> bool:
    """This is the address of our own relay now (None: there is none), and what admits us there (None: what is known). Whether that changed anything."""
    known = listing(home)
    wanted = [
        one._replace(token=token or one.token) if one.own else one
        for one in known
        if not one.own or one.url == url
    ]
    if url is not None and not any(one.url == url for one in wanted):
        if len(wanted) >= RELAYS_MAX:
            raise Refused(
                f"{RELAYS_MAX} relays are known already",
                "`holdfast host disconnect URL` takes one away",
            )
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


def _write(home: Home, relays: list[Relay]) -> None:
    private.keep(
        path(home),
        "relays",
        [
            {
                key: value
                for key, value in one._asdict().items()
                if value is not None and value is not False
            }
            for one in relays
        ],
    )
