"""From the command line's settings to a link to the host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.ids import check_name

if TYPE_CHECKING:
    from argparse import Namespace


def operator_name(args: Namespace) -> str:
    """Who acts: --as, HOLDFAST_AS, or the login name."""
    given = args.operator if args.operator is not None else os.environ.get("HOLDFAST_AS") or None
    if given is not None:
        return check_name(given)
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    if not name:
        import pwd

        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = f"uid{os.getuid()}"
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name).lstrip("-")[:64]
    return cleaned or "someone"


def link(args: Namespace, modality: str = "cli", autostart: bool = True) -> Link:
    home = homes.resolve(os.environ)
    if home.explicit:
        os.environ["HOLDFAST_HOME"] = home.state       # it may be relative to where we are, and a host that we start is elsewhere
    return Link(home, operator_name(args), modality, autostart, ask)


def ask(name: str) -> str:
    """A passphrase: on the terminal, never from arguments or the environment."""
    import getpass

    return getpass.getpass(f"passphrase of {name}: ")
