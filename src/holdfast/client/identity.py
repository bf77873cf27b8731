"""The identity that a client uses. An installation's first identity is made on first use."""

from __future__ import annotations

import os
import time

from holdfast.home import Home, keys, prepare
from holdfast.model.errors import NotFound, Refused
from holdfast.model.ids import check_name, clean_name
from holdfast.model.reserved_names import is_reserved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.home.keys import Ask, Identity


def operator_name(given: str | None, environ: Mapping[str, str]) -> str:
    """The name of the acting operator: as given, HOLDFAST_AS, or the login name."""
    given = given if given is not None else environ.get("HOLDFAST_AS") or None
    if given is not None:
        return check_name(given)
    name = environ.get("USER") or environ.get("LOGNAME") or ""
    if not name:
        import pwd

        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = f"uid{os.getuid()}"
    name = clean_name(name, "_")[:60] or "someone"
    return f"{name}-1" if is_reserved(name) else name


def identity(home: Home, name: str, ask: Ask | None = None, elsewhere: bool = False) -> Identity:
    """The local identity of that name, with its private key.

    `elsewhere`: the identity is for a remote machine, which would not know a newly made key.
    """
    try:
        found = keys.load(home, name)
    except NotFound:
        found = (
            _existing(home, name)
            if elsewhere or (keys.installed(home) and keys.listing(home))
            else _first(home, name)
        )
    if found.private is None and ask is not None:
        return keys.opened(found, ask)
    return found


def _existing(home: Home, name: str) -> Identity:
    """Load an identity of this home; a concurrent client may have made the file just now."""
    try:
        return keys.load(home, name)
    except NotFound:
        raise NotFound(
            f"there is no identity {name} here",
            f"`holdfast operator ls` lists identities; `holdfast operator add {name}` makes it",
        ) from None


def _first(home: Home, name: str) -> Identity:
    prepare(home)
    try:
        return keys.make(home, name, "human", time.time())
    except Refused:  # a concurrent client was faster
        return keys.load(home, name)
