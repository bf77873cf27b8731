"""host, machines: the relays of this machine, and the machines that are reachable from here."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from holdfast import home as homes
from holdfast.client import everywhere
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import clean, duration, put_json, table
from holdfast.home import machines as known
from holdfast.home import relays
from holdfast.model import address, signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, PeerFault, Unavailable, Usage

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from holdfast.home import Home
    from holdfast.home.machines import Machine
    from holdfast.model.jsontext import Json

T = TypeVar("T")
AT_ONCE = 16  # machines that are asked in parallel
ODD_ANSWER = "its answer is odd"
TOKEN_CHARS = 512
SETTLE_S = 5.0  # how long `host connect` waits for the relay's answer
LOOK_S = 0.1


# ---------------------------------------------------------------- host


host_parser = usage("""
    let the host of this machine dial out to a relay, so that its operators can attach from
    anywhere. The relay forwards encrypted bytes and cannot read them.

    `connect ssh://BOX` connects this home to the Holdfast of your account on BOX through the
    system's ssh, without a relay of your own; then BOX/SESSION works here.

    act=[connect|disconnect|ls=ls]  (default: ls)
    url=[RELAY_URL]  wss://... (WebSocket) or grpcs://... (gRPC); on this machine also ws://,
        grpc://; or ssh://[USER@]BOX[:PORT]
    --token T  the token that admits this machine: @FILE, - for stdin, or the token itself (other
        users can see it in the list of processes)
    --ca FILE  trust these certificates for TLS instead of the system's
    --json
""")


def host(args: Namespace) -> int:
    if args.act == "connect" and args.url and (way := address.ssh(args.url)) is not None:
        from holdfast.faces.cli.invite import join_over_ssh

        if args.token:
            raise Usage("ssh:// needs no token")
        args.relay = args.passphrase = args.device = args.new_key = None
        return join_over_ssh(args, way)
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
        connection.request("relays")  # raises unless we may
        for other in relays.listing(connection.home):
            if other.url != args.url and _same(other.url, args.url):
                # The same relay at a second address: two registrations would push each other out.
                relays.forget(connection.home, other.url)
                print(f"holdfast: replaces {other.url}", file=sys.stderr)
        ca = os.path.abspath(args.ca) if args.ca else None
        relays.keep(connection.home, relays.Relay(args.url, _token(args.token), ca))
    else:
        args.url = _known(connection.home, args.url)
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
            "`holdfast relay token` there makes a token for --token; "
            "`holdfast host disconnect` removes the address",
        )
    if line is not None and line["state"] != "registered":
        raise Unavailable(
            f"the relay was not reached yet: {line['detail']}",
            "the host keeps trying; `holdfast host ls` shows the state",
        )
    return 0


def _known(home: Home, url: str) -> str:
    """The address in the list of relays; the pin may be left out."""
    bare = [one.url for one in relays.listing(home) if address.bare(one.url) == url]
    return bare[0] if len(bare) == 1 else url


def _same(one: str, other: str) -> bool:
    """Whether both addresses name the same relay, where this machine has a single registration."""
    try:
        return address.name(one) == address.name(other)
    except Usage:
        return False


def _token(text: str | None) -> str | None:
    if text is None:
        return None
    if text == "-":
        if sys.stdin.isatty():
            from getpass import getpass  # the terminal must not show the token

            text = getpass("token (not shown): ")
        else:
            text = sys.stdin.readline(TOKEN_CHARS + 1)
    elif text.startswith("@"):
        try:
            with open(text[1:]) as file:
                text = file.read(TOKEN_CHARS + 1)
        except (OSError, UnicodeError) as e:
            raise Usage(f"cannot read the token from {text[1:]!a}: {e}") from e
    text = text.strip()
    one_word = text and text.isascii() and text.isprintable() and " " not in text
    if not one_word or len(text) > TOKEN_CHARS:
        raise Usage("that is not a token", "it is one word, as `holdfast relay token` printed it")
    return text


def _show(args: Namespace, now: Json) -> int:
    if args.json:
        put_json(now)
    elif not now["relays"]:
        print(
            "this machine is not connected to a relay; "
            "`holdfast host connect RELAY_URL` makes it reachable from elsewhere"
        )
    else:
        rows = []
        for r in now["relays"]:
            since = duration(time.time() - r["since"])
            rows.append((r["url"], r["state"], since, str(r["streams"]), r["detail"] or "-"))
        print(table(("RELAY", "STATE", "SINCE", "CLIENTS", "WHY"), rows, ("SINCE",)))
    if now["trouble"] and not args.json:
        print(f"holdfast: {clean(now['trouble'])}", file=sys.stderr)
    return 0


# ---------------------------------------------------------------- machines


machines_parser = usage("""
    `holdfast join` adds a machine; then MACHINE/SESSION names a session there in every command.
    `forget` does not withdraw your access there: revoke it on that machine.

    `trust` lets a machine keep copies of sessions of this machine, and take these sessions over
    (`checkpoint --to`, `move`). You need `manage` here, and `manage` and `grant` there.

    act=[ls|forget|rename|trust=ls]  (default: ls)
    [MACHINE]  its name here
    [NAME]  the new name
    --off  with trust: withdraw the trust; with trust alone the trusted machines are listed
    --json
""")


def machines(args: Namespace) -> int:
    home = _home()
    if args.act == "ls":
        return _machines(args, known.listing(home))
    if args.act == "trust":
        from holdfast.faces.cli.recovery.trust import trust

        return trust(args)
    if args.machine is None or (args.act == "rename") != (args.name is not None):
        raise Usage(
            f"machines {args.act} needs a machine"
            + (" and its new name" if args.act == "rename" else "")
        )
    found = known.find(home, args.machine)
    if args.act == "forget":
        known.forget(home, found.name)
        print(
            f"{found.name} is forgotten here; "
            f"to end your access there, revoke {found.operator} on it"
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
            f"this machine is reached through {', '.join(doors)}; "
            "`holdfast host ls` shows their state"
        )
    return 0


def _to(args: Namespace, machine: Machine) -> Link:
    return Link(_home(), args.operator or machine.operator, "cli", False, ask, machine)


def _looked_at(args: Namespace, machine: Machine) -> Json:
    """Ask the machine itself, through the sealed channel; no statement of a relay counts."""
    out: Json = {
        "name": machine.name,
        "presence": "unknown",
        "sessions": None,
        "release": None,
        "operator": machine.operator,
        "device": None,
        "relays": [way.url for way in machine.ways],
        "key": signing.show(machine.key),
        "added": machine.added,
        "why": "",
    }
    connection = _to(args, machine)
    try:
        connection.connect()
        answer = connection.request("ping")
        out |= {"presence": "online", "device": connection.welcome.get("device")}
        out |= {name: answer[name] for name in ("sessions", "release")}
    except HostGone as e:
        out |= {"presence": "offline" if e.reason == "offline" else "unknown", "why": e.message}
    except HoldfastError as e:
        out |= {"presence": "unknown", "why": e.message}
    finally:
        connection.close()
    return out


class Asked(NamedTuple, Generic[T]):
    """The answers by machine, and the reason of each machine without an answer."""

    answers: dict[str, T]
    unreachable: dict[str, str]


class Everywhere(Generic[T]):
    """Asks all known machines in the background, while the caller does its own work."""

    def __init__(self, args: Namespace, question: Callable[[Link], T]) -> None:
        self._question = question
        self._machines = _chosen(args, known.listing(_home()))
        self._left = iter(self._machines)
        self._answers: dict[str, T] = {}
        self._failed: dict[str, str] = {}
        self._change = threading.Condition()
        for _ in self._machines[:AT_ONCE]:
            # Daemons: a machine that never answers does not keep this command.
            threading.Thread(target=self._work, name="asking machines", daemon=True).start()

    def asked(self, wait_s: float | None) -> Asked[T]:
        """All answers within that time; None: until each machine has answered or failed."""
        with self._change:
            self._change.wait_for(self._all, wait_s)
            answers, failed = dict(self._answers), dict(self._failed)
        late = "no answer in time; `holdfast ls --everywhere` waits longer"
        names = [m.name for m in self._machines]
        return Asked(
            {name: answers[name] for name in names if name in answers},
            {name: failed.get(name, late) for name in names if name not in answers},
        )

    def _all(self) -> bool:
        return len(self._answers) + len(self._failed) == len(self._machines)

    def _work(self) -> None:
        while True:
            with self._change:
                machine = next(self._left, None)
            if machine is None:
                return
            # Without questions: a passphrase is asked for only when one machine is meant.
            connection = Link(_home(), machine.operator, "cli", False, None, machine)
            try:
                connection.connect()
                answer = self._question(connection)
            except (HoldfastError, *everywhere.ODD) as e:
                why = e.message if isinstance(e, HoldfastError) else ODD_ANSWER
                with self._change:
                    self._failed[machine.name] = clean(why)
                    self._change.notify_all()
            else:
                with self._change:
                    self._answers[machine.name] = answer
                    self._change.notify_all()
            finally:
                connection.close()


def find_elsewhere(args: Namespace, word: str) -> str:
    """MACHINE/ID of a session that this machine does not have; NotFound or Ambiguous."""

    def look(connection: Link) -> tuple[str, str] | None:
        try:
            found = connection.request("get", session=word)
        except NotFound:
            return None
        return None if found["state"] == "moved" else (str(found["id"]), str(found["name"]))

    asked = Everywhere(args, look).asked(everywhere.SEARCH_S)
    found = [
        everywhere.Found(machine, *one) for machine, one in asked.answers.items() if one is not None
    ]
    chosen = everywhere.decide(word, found, asked.unreachable)
    return f"{chosen.machine}/{chosen.id}"


def resolve_elsewhere(
    args: Namespace, ref: str, here: Json, shown: Callable[[Json], str]
) -> tuple[str, Json] | None:
    """The known machine that knows a reference best, and its answer, which can be `shown`.

    `here`: the answer of this machine. A machine that it names is found by its key; if that is not
    known here, all known machines are asked.
    """

    def question(connection: Link) -> Json:
        answer = connection.request("resolve", ref=ref)
        try:
            shown(answer)
        except everywhere.ODD:
            raise PeerFault(ODD_ANSWER) from None
        return answer

    by_key = {signing.show(one.key): one for one in _chosen(args, known.listing(_home()))}
    answer = here
    while (machine := by_key.pop(everywhere.went(answer), None)) is not None:
        connection = _to(args, machine)
        try:
            answer = question(connection)
        except HoldfastError as e:
            print(f"holdfast: {machine.name} did not answer: {clean(e.message)}", file=sys.stderr)
            break
        finally:
            connection.close()
        if answer["known"] and not everywhere.went(answer):
            return machine.name, answer
    asked = Everywhere(args, question).asked(everywhere.SEARCH_S)
    for name, why in asked.unreachable.items():
        print(f"holdfast: {name} did not answer: {why}", file=sys.stderr)
    return everywhere.best(asked.answers, here)


def named(args: Namespace, key: str) -> str:
    """The name of a machine here, by its key; empty if it is not known."""
    chosen = _chosen(args, known.listing(_home()))
    return next((one.name for one in chosen if signing.show(one.key) == key), "")


def _chosen(args: Namespace, machines: list[Machine]) -> list[Machine]:
    """One entry per machine: of the acting identity if that was named, else the first paired."""
    named = args.operator or os.environ.get("HOLDFAST_AS")
    chosen: dict[str, Machine] = {}
    for machine in machines:
        if named in (None, "", machine.operator):
            chosen.setdefault(machine.name, machine)
    return list(chosen.values())


def _home() -> Home:
    return homes.resolve(os.environ)
