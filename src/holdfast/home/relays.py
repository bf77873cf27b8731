"""The relays that this installation's host dials out to: one file, readable by this account alone, because it holds the tokens that admit it there.

    HOME/relays.json   canonical JSON {v, relays: [{url, token?, ca?}]}
"""

from __future__ import annotations

import os
import secrets
from typing import Final, NamedTuple

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model import canonical
from holdfast.model.errors import NotFound, Refused, Unavailable

RELAYS_MAX: Final = 8
FILE_BYTES: Final = 1 << 16


class Relay(NamedTuple):
    url: str
    token: str | None = None
    ca: str | None = None

    def __repr__(self) -> str:            # a token must not end up in a log
        return f"Relay({self.url!r})"


def path(home: Home) -> str:
    return f"{home.state}/relays.json"


def listing(home: Home) -> list[Relay]:
    try:
        with open(path(home), "rb") as file:
            homes.check_private(path(home))
            data = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Unavailable(f"cannot read {path(home)}: {e.strerror}", "make it readable for this account") from e
    try:
        value = canonical.decode(data.strip())
        if len(data) > FILE_BYTES or value["v"] != 1:
            raise ValueError("another version")
        return [Relay(str(one["url"]), one.get("token"), one.get("ca")) for one in value["relays"]]
    except (ValueError, KeyError, TypeError) as e:
        raise Unavailable(f"{path(home)} is damaged: {e}", "put it aside, then `holdfast host connect` again") from e


def keep(home: Home, relay: Relay) -> None:
    """Adds it, or puts it in the place of what was known of that address."""
    others = [one for one in listing(home) if one.url != relay.url]
    if len(others) >= RELAYS_MAX:
        raise Refused(f"{RELAYS_MAX} relays are known already", "`holdfast host disconnect URL` takes one away")
    _write(home, [*others, relay])


def forget(home: Home, url: str) -> None:
    known = listing(home)
    if not any(one.url == url for one in known):
        raise NotFound(f"no relay {url[:80]!a} is known here", f"known: {', '.join(one.url for one in known)}" if known else "there are none")
    _write(home, [one for one in known if one.url != url])


def _write(home: Home, relays: list[Relay]) -> None:
    data = canonical.encode({"v": 1, "relays": [{key: value for key, value in one._asdict().items() if value is not None} for one in relays]}) + b"\n"
    fresh = f"{path(home)}.{secrets.token_hex(4)}"
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, path(home))
        except BaseException:
            os.unlink(fresh)
            raise
    except OSError as e:
        raise Unavailable(f"cannot write {path(home)}: {e.strerror}", "free disk space or make the directory writable") from e
