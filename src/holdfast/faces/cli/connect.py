"""Make a link to the host from the options of the command line."""

from __future__ import annotations

import os
import sys

from holdfast import home as homes
from holdfast.client import identity
from holdfast.client.environ import CREDENTIAL, handed_on
from holdfast.client.link import Link
from holdfast.model.errors import Refused, Usage
from holdfast.model.ids import is_once
from holdfast.model.limits import ONCE_CHARS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.home import Home
    from holdfast.home.machines import Machine
    from holdfast.model.jsontext import Json


MACHINE_FIELDS = ("session", "name", "machine", "id")  # of arguments that may be MACHINE/SESSION
HOLD = "wait at most S seconds for approval (default: until the decision or expiry)"


def operator_name(args: Namespace) -> str:
    """The name of the acting operator: --as, HOLDFAST_AS, or the login name."""
    return identity.operator_name(args.operator, os.environ)


def home_here() -> Home:
    """The home of this command."""
    return homes.resolve(os.environ)


def link(args: Namespace, modality: str = "cli", autostart: bool = True) -> Link:
    home = home_here()
    if home.explicit:
        # Absolute, because a host that this process starts has a different working directory.
        os.environ["HOLDFAST_HOME"] = home.state
    connection = _by_credential(args, modality, autostart)
    if connection is None:
        machine = _elsewhere(args, home)
        operator = operator_name(args) if machine is None else machine.operator
        connection = Link(home, operator, modality, autostart, ask, machine)
        if CREDENTIAL in os.environ:
            connection.host_environ = handed_on(os.environ)
    connection.once = _once(args)
    notice = put_held if getattr(args, "json", False) else say_held
    connection.on_held = lambda event: notice(event, getattr(args, "hold", None))
    connection.on_recovered = lambda one: (
        put_recovered if getattr(args, "json", False) else say_recovered
    )(one, connection.where)
    return connection


def _by_credential(args: Namespace, modality: str, autostart: bool) -> Link | None:
    """The link of HOLDFAST_CREDENTIAL, unless the command names an identity or another machine."""
    given = os.environ.get(CREDENTIAL)
    if not given or args.operator is not None:
        return None
    from holdfast.client import credential

    found = credential.load(given)
    for field in MACHINE_FIELDS:
        value = getattr(args, field, None)
        if isinstance(value, str) and "/" in value:
            name, _, session = value.partition("/")
            if name != found.machine.name:
                return None
            setattr(args, field, session or None)
    return credential.link(found, modality, autostart, handed_on(os.environ))


def _once(args: Namespace) -> str | None:
    """The idempotency key for the acts of this command."""
    key: str | None = getattr(args, "once", None)
    if key is not None and not is_once(key):
        raise Usage(
            f"--once {key[:20]!a}: a key has 1 to {ONCE_CHARS} printable ASCII characters",
            "for example a UUID, or the name of the job and its date",
        )
    return key


def say_recovered(one: Json, machine: str) -> None:
    """Tell a person that the machine's own key made an administrator."""
    from time import localtime, strftime

    who, where = one["operator"], "this machine" if machine == "the host" else machine
    at = strftime("%Y-%m-%d %H:%M", localtime(one["at"]))
    print(
        f"holdfast: since {at} {who} is an administrator of {where}, by `operator recover`; "
        f"if you did not expect that: `holdfast operator revoke {who}`",
        file=sys.stderr,
        flush=True,
    )


def put_recovered(one: Json, machine: str) -> None:
    """The same notice for a program: a JSON line on stderr."""
    import json

    print(json.dumps({"recovered": one}), file=sys.stderr, flush=True)


def _elsewhere(args: Namespace, home: Home) -> Machine | None:
    """The machine in `MACHINE/SESSION`; leaves the session in `args`. References have no slash."""
    for field in MACHINE_FIELDS:
        value = getattr(args, field, None)
        if isinstance(value, str) and "/" in value:
            from holdfast.home import machines

            name, _, session = value.partition("/")
            setattr(args, field, session or None)
            given = args.operator is not None or os.environ.get("HOLDFAST_AS")
            return machines.find(home, name, operator_name(args) if given else None)
    return None


def say_away() -> None:
    """Tell a person that the host is away, while a command with --follow waits for its return."""
    print(
        "holdfast: the host does not answer; this command goes on when it is back (Ctrl-C ends)",
        file=sys.stderr,
        flush=True,
    )


def say_held(event: Json, hold: float | None) -> None:
    """Tell a person that an act waits for approval; on stderr, because stdout is the command's."""
    from holdfast.core.people.scope import span
    from holdfast.faces.cli.output import clean

    which = event["id"]
    print(
        clean(
            f"holdfast: waits for approval, at most {span(_waits_s(event, hold))}: "
            f"{event['because']} (rule {event['rule']!a}). Another operator decides with "
            f"`holdfast approve {which}` or `holdfast deny {which}`; Ctrl-C withdraws the request"
        ),
        file=sys.stderr,
        flush=True,
    )


def put_held(event: Json, hold: float | None) -> None:
    """The same notice for a program: a JSON line on stderr before the answer or the error."""
    import json

    held = {key: event[key] for key in ("id", "session", "because", "rule", "expires_in")}
    held["waits_s"] = _waits_s(event, hold)
    print(json.dumps({"held": held}), file=sys.stderr, flush=True)


def _waits_s(event: Json, hold: float | None) -> float:
    """How long this command waits: until the question expires, or as long as `--hold` says."""
    expires: float = event["expires_in"]
    return expires if hold is None else min(expires, hold)


def ask(name: str) -> str:
    """Ask for a passphrase on the terminal, never in arguments or the environment."""
    import getpass

    try:
        return getpass.getpass(f"passphrase of {name}: ")
    except (EOFError, OSError) as e:
        raise Refused(
            f"the key of {name} has a passphrase, and there is no terminal to ask for it",
            "use a terminal, or another identity (--as)",
        ) from e
