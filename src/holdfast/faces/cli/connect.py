"""From the command line's settings to a link to the host."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import Refused
from holdfast.model.ids import check_name

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.home import Home
    from holdfast.home.machines import Machine


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
    cleaned = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name
    ).lstrip("-")[:64]
    return cleaned or "someone"


def link(args: Namespace, modality: str = "cli", autostart: bool = True) -> Link:
    home = homes.resolve(os.environ)
    if home.explicit:
        os.environ["HOLDFAST_HOME"] = (
            home.state
        )  # it may be relative to where we are, and a host that we start is elsewhere
    machine = _elsewhere(args, home)
    connection = Link(
        home,
        operator_name(args) if machine is None else machine.operator,
        modality,
        autostart,
        ask,
        machine,
    )
    connection.on_held = put_held if getattr(args, "json", False) else say_held
    return connection


def _elsewhere(args: Namespace, home: Home) -> Machine | None:
    """The machine that `machine/SESSION` names; what is left of it is the session. A reference (hf:...) has no slash."""
    field = next(
        (
            f
            for f in ("session", "name", "machine")
            if isinstance(getattr(args, f, None), str) and "/" in getattr(args, f)
        ),
        None,
    )
    if field is None:
        return None
    from holdfast.home import machines

    name, _, session = getattr(args, field).partition("/")
    setattr(args, field, session or None)
    return machines.find(
        home,
        name,
        operator_name(args) if args.operator is not None or os.environ.get("HOLDFAST_AS") else None,
    )


def say_held(event: dict[str, Any]) -> None:
    """An act waits for somebody else; on stderr, for stdout is the command's."""
    from holdfast.faces.cli.output import clean

    print(
        clean(
            f"holdfast: waits for approval: {event['because']}. Somebody else decides: `holdfast approve {event['id']}`; Ctrl-C withdraws it"
        ),
        file=sys.stderr,
        flush=True,
    )


def put_held(event: dict[str, Any]) -> None:
    """The same for programs: one line before the answer or the error, on stderr."""
    import json

    print(
        json.dumps(
            {
                "held": {
                    key: event[key] for key in ("id", "session", "because", "rule", "expires_in")
                }
            }
        ),
        file=sys.stderr,
        flush=True,
    )


def add_hold(p: ArgumentParser) -> None:
    p.add_argument(
        "--hold",
        type=float,
        default=None,
        metavar="S",
        help="wait at most S seconds if it needs approval (default: until it is decided or the question lapses)",
    )


def ask(name: str) -> str:
    """A passphrase: on the terminal, never from arguments or the environment."""
    import getpass

    try:
        return getpass.getpass(f"passphrase of {name}: ")
    except (EOFError, OSError) as e:
        raise Refused(
            f"the key of {name} has a passphrase, and there is no terminal to ask for it",
            "use another identity (--as), or a terminal",
        ) from e
