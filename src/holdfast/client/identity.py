"""Whose key a client uses. The first identity of an installation is made when it is first needed: nobody sets anything up."""

from __future__ import annotations

import time

from holdfast.home import Home, keys, prepare
from holdfast.home.keys import Ask, Identity
from holdfast.model.errors import NotFound, Refused


def identity(home: Home, name: str, ask: Ask | None = None, elsewhere: bool = False) -> Identity:
    """The local identity of that name, with its private key. `elsewhere`: it is for another machine, which would not know one that is made now."""
    try:
        found = keys.load(home, name)
    except NotFound:
        found = (
            _late(home, name)
            if elsewhere or (keys.installed(home) and keys.listing(home))
            else _first(home, name)
        )
    if found.private is None and ask is not None:
        return keys.opened(found, ask)
    return found


def _late(home: Home, name: str) -> Identity:
    """There are identities. One of this name may have been made since it was looked for: six clients at once start an installation together."""
    try:
        return keys.load(home, name)
    except NotFound:
        raise NotFound(
            f"there is no identity {name} here",
            f"`holdfast operator ls` shows those there are; `holdfast operator add {name}` makes it",
        ) from None


def _first(home: Home, name: str) -> Identity:
    prepare(home)
    try:
        return keys.make(home, name, "human", time.time())
    except Refused:  # another client was quicker
        return keys.load(home, name)
