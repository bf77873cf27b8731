"""host, machines: the relays that this machine can be reached through, and the machines that can be reached from here."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast import home as homes
from holdfast.client.link import HostGone, Link
from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import clean, duration, put_json, table
from holdfast.home import machines as known
from holdfast.home import relays
from holdfast.model import address, signing
from holdfast.model.errors import HoldfastError, NotAllowed, Unavailable, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.home import Home
    from holdfast.home.machines import Machine

AT_ONCE = 16  # machines that are asked at the same time
TOKEN_CHARS = 512
SETTLE_S = 5.0  # that `host connect` waits for the relay's word
LOOK_S = 0.1


# ---------------------------------------------------------------- host


def host_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        nargs="?",
        choices=("connect", "disconnect", "ls"),
        default="ls",
        help="(default: ls)",
    )
    p.add_argument(
        "url",
        nargs="?",
        metavar="RELAY_URL",
        help="wss://... (WebSocket) or grpcs://... (gRPC); on this machine also ws://, grpc://",
    )
    p.add_argument(
        "--token",
        metavar="T",
        help="what admits this machine there: @FILE, - for stdin, or the token itself (which others on this machine can see in the list of processes)",
    )
    p.add_argument(
        "--ca", metavar="FILE", help="trust these certificates for TLS, instead of the system's"
    )
    p.add_argument("--json", action="store_true")
    p.description = "lets this machine's host dial out to a relay, so that whoever is known here can\nattach from anywhere. The relay passes sealed bytes on and can read none of them."


def host(args: Namespace) -> int:
    connection = link(args)
    if args.act == "ls":
        if args.url is not None:
            raise Usage("host ls takes no address")
        return _show(args, connection.request("relays"))
    if args.url is None:
        raise Usage(
            f"host {args.act} needs the address of a relay",
            "like wss://relay.example or grpcs://relay.example:8411",
        )
    address.parsed(args.url)
    if args.act == "connect":
        connection.request("relays")  # whether we may at all
        for other in (
            one
            for one in relays.listing(connection.home)
            if one.url != args.url and _same(one.url, args.url)
        ):
            relays.forget(
                connection.home, other.url
            )  # the same relay by another of its doors: one line, or each would throw out the other
            print(f"holdfast: instead of {other.url}", file=sys.stderr)
        relays.keep(
            connection.home,
            relays.Relay(
                args.url, _token(args.token), os.path.abspath(args.ca) if args.ca else None
            ),
        )
    else:
        relays.forget(connection.home, args.url)
    connection.request("relays.changed")
    until = time.monotonic() + SETTLE_S
    while True:
        now = connection.request("relays")
        line = next((one for one in now["relays"] if one["url"] == args.url), None)
        if line is None or line["state"] != "connecting" or time.monotonic() > until:
            break
        time.sleep(LOOK_S)
    _show(args, now)
    if line is not None and line["state"] == "refused":
        raise NotAllowed(
            f"the relay refuses this machine: {line['detail']}",
            "`holdfast relay token` there makes a token, which --token takes; `holdfast host disconnect` takes the address away again",
        )
    if line is not None and line["state"] != "registered":
        raise Unavailable(
            f"the relay was not reached yet: {line['detail']}",
            "it is tried again and again; `holdfast host ls` shows how it stands",
        )
    return 0


def _same(one: str, other: str) -> bool:
    """Whether both call a relay by the same name, under which this machine has one registration."""
    try:
        return address.name(one) == address.name(other)
    except Usage:
        return False


def _token(text: str | None) -> str | None:
    if text is None:
        return None
    if text == "-":
        if sys.stdin.isatty():
            print("token: ", end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline(TOKEN_CHARS + 1)
    elif text.startswith("@"):
        try:
            with open(text[1:]) as file:
                text = file.read(TOKEN_CHARS + 1)
        except (OSError, UnicodeError) as e:
            raise Usage(f"cannot read the token from {text[1:]!a}: {e}") from e
    text = text.strip()
    if (
        not text
        or len(text) > TOKEN_CHARS
        or not text.isascii()
        or not text.isprintable()
        or " " in text
    ):
        raise Usage("that is no token", "it is one word, as `holdfast relay token` printed it")
    return text


def _show(args: Namespace, now: dict[str, Any]) -> int:
    if args.json:
        put_json(now)
    elif not now["relays"]:
        print(
            "this machine is connected to no relay; `holdfast host connect RELAY_URL` lets it be reached from elsewhere"
        )
    else:
        print(
            table(
                ("RELAY", "STATE", "SINCE", "CLIENTS", "WHY"),
                [
                    (
                        r["url"],
                        r["state"],
                        duration(time.time() - r["since"]),
                        str(r["streams"]),
                        r["detail"] or "-",
                    )
                    for r in now["relays"]
                ],
                ("SINCE",),
            )
        )
    if now["trouble"] and not args.json:
        print(f"holdfast: {clean(now['trouble'])}", file=sys.stderr)
    return 0


# ---------------------------------------------------------------- machines


def machines_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act", nargs="?", choices=("ls", "forget", "rename"), default="ls", help="(default: ls)"
    )
    p.add_argument("machine", nargs="?", metavar="MACHINE", help="its name here")
    p.add_argument("name", nargs="?", metavar="NAME", help="the new name")
    p.add_argument("--json", action="store_true")
    p.description = "`holdfast join` makes a machine known; then MACHINE/SESSION is a session there, in\nevery command. What is forgotten here is still admitted there: revoke it there."


def machines(args: Namespace) -> int:
    home = _home()
    if args.act == "ls":
        return _machines(args, known.listing(home))
    if args.machine is None or (args.act == "rename") != (args.name is not None):
        raise Usage(
            f"machines {args.act} needs a machine"
            + (" and its new name" if args.act == "rename" else "")
        )
    found = known.find(home, args.machine)
    if args.act == "forget":
        known.forget(home, found.name)
        print(
            f"{found.name} is forgotten here; to withdraw its trust in you, revoke {found.operator} there"
        )
    else:
        known.keep(home, found._replace(name=args.name))
        print(f"{found.name} is now {args.name}")
    return 0


def _machines(args: Namespace, found: list[Machine]) -> int:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        shown = list(pool.map(lambda m: _looked_at(args, m), found))
    if args.json:
        put_json(shown)
    elif not shown:
        print("no machines are known here; `holdfast invite` on one of them, `holdfast join` here")
    else:
        print(
            table(
                ("MACHINE", "PRESENCE", "SESSIONS", "AS", "DEVICE", "RELEASE", "RELAYS", "WHY"),
                [
                    (
                        m["name"],
                        m["presence"],
                        "-" if m["sessions"] is None else str(m["sessions"]),
                        m["operator"],
                        m["device"] or "-",
                        m["release"] or "-",
                        ", ".join(m["relays"]),
                        m["why"] or "-",
                    )
                    for m in shown
                ],
                ("RELEASE", "RELAYS", "DEVICE", "AS"),
            )
        )
    if not args.json and (doors := [one.url for one in relays.listing(_home())]):
        print(
            f"this machine is reached through {', '.join(doors)}; `holdfast host ls` says how that stands"
        )
    return 0


def _to(args: Namespace, machine: Machine) -> Link:
    return Link(_home(), args.operator or machine.operator, "cli", False, ask, machine)


def _looked_at(args: Namespace, machine: Machine) -> dict[str, Any]:
    """Its own word that it is there, sealed; nothing that a relay says counts."""
    out: dict[str, Any] = {
        "name": machine.name,
        "presence": "unknown",
        "sessions": None,
        "release": None,
        "operator": machine.operator,
        "device": None,
        "relays": [way.url for way in machine.ways],
        "key": None,
        "added": machine.added,
        "why": "",
    }
    out["key"] = signing.show(machine.key)
    connection = _to(args, machine)
    try:
        connection.connect()
        answer = connection.request("ping")
        out |= {
            "presence": "online",
            "sessions": answer["sessions"],
            "release": answer["release"],
            "device": connection.welcome.get("device"),
        }
    except HostGone as e:
        out |= {"presence": "offline" if e.reason == "offline" else "unknown", "why": e.message}
    except HoldfastError as e:
        out |= {"presence": "unknown", "why": e.message}
    finally:
        connection.close()
    return out


def everywhere(args: Namespace) -> list[dict[str, Any]]:
    """The sessions of this machine and of all others that answer; of those that do not, a word on stderr."""

    def ask_one(machine: Machine | None) -> list[dict[str, Any]]:
        connection = link(args) if machine is None else _to(args, machine)
        try:
            connection.connect()
            sessions: list[dict[str, Any]] = connection.request("ls", all=args.all)["sessions"]
            return (
                [{**one, "machine": machine.name} for one in sessions]
                if machine is not None
                else sessions
            )
        except HoldfastError as e:
            print(
                f"holdfast: {machine.name if machine else 'here'}: {clean(e.message)}",
                file=sys.stderr,
            )
            return []
        finally:
            connection.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [one for some in pool.map(ask_one, [None, *known.listing(_home())]) for one in some]


def _home() -> Home:
    return homes.resolve(os.environ)
