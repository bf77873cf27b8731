"""machines trust: let another machine keep sessions of this machine, and take them over."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time

from holdfast.client.link import Link
from holdfast.faces.cli.connect import ask, link
from holdfast.faces.cli.output import put_json, table
from holdfast.home import keys, machines
from holdfast.model import ids, signing
from holdfast.model.errors import HoldfastError, NotFound, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.home import Home
    from holdfast.home.machines import Machine
    from holdfast.model.jsontext import Json

COURIER = "courier"  # with this identity the machine delivers its sessions
RIGHT = "store"


def trust(args: Namespace) -> int:
    here = link(args)
    if args.machine is None:
        return _put(args, here.request("machines.trusted"))
    home = here.home
    acting = args.operator or os.environ.get("HOLDFAST_AS")
    paired = machines.find(home, args.machine, acting or None)
    said = _withdraw(args, here, paired) if args.off else _give(args, here, paired)
    return _put(args, said, paired.name, args.off)


def _give(args: Namespace, here: Link, paired: Machine) -> Json:
    """Make this machine known there with the one right, then trust the machine here."""
    here.request("ping")
    there = Link(here.home, paired.operator, "cli", False, ask, paired)
    there.connect()
    known = there.request("operator.ls")["operators"]
    identity, mine = _courier(here.home, known)
    name = _known_as(there, mine, known)
    there.request("grant", name=name, rights=[RIGHT])
    there.close()
    # The pass of the person admits to the line; the ways of the courier's key replace it.
    entry = paired._replace(operator=name, identity=identity, added=int(time.time()))
    bring = Link(here.home, name, "service", False, None, entry)
    bring.connect()
    entry = entry._replace(ways=_ways(bring, entry))
    bring.close()
    said: Json = here.request("machines.trust", entry=machines.show(entry), trusted=True)
    return said


def _courier(home: Home, known: list[Json]) -> tuple[str, list[str]]:
    """The identity for this machine's errands there, and its keys; the last key counts there.

    A key that was revoked does not come back, so a new identity follows it.
    """
    revoked, mine = {k["key"] for o in known for k in o["keys"] if k["revoked"] is not None}, []
    for number in itertools.count(1):
        name = COURIER if number == 1 else f"{COURIER}-{number}"
        try:
            found = keys.load(home, name)
        except NotFound:
            found = keys.make(home, name, "service", time.time())
        mine.append(signing.show(found.public))
        if mine[-1] not in revoked:
            break
    return name, mine


def _known_as(there: Link, mine: list[str], known: list[Json]) -> str:
    """The name of this machine there; an operator of the kind service, made if it is missing.

    The name stays the same after `--off`: only the operator that brought copies replaces them.
    """
    names, key = {str(one["name"]) for one in known}, mine[-1]
    for one in known:
        had = {k["key"] for k in one["keys"]}
        if one["revoked"] is None and had & {*mine}:
            if key not in had:
                there.request("device.add", operator=one["name"], key=key)
            return str(one["name"])
    node = ids.clean_name(os.uname().nodename, "-")[:40] or "machine"
    free = next(
        n for n in (node, *(f"{node}-{i}" for i in range(2, len(names) + 3))) if n not in names
    )
    there.request("operator.add", name=free, kind="service", key=key, device=node)
    return free


def _ways(bring: Link, entry: Machine) -> tuple[machines.Way, ...]:
    known = {way.url: way.ca for way in entry.ways}
    found = [machines.read_way(one) for one in bring.request("ways")["ways"]]
    kept = tuple(way._replace(ca=known[way.url]) for way in found if way.url in known)
    return kept or entry.ways


def _withdraw(args: Namespace, here: Link, paired: Machine) -> Json:
    """Here first; then the keys there, if that machine answers and the caller may."""
    before = here.request("machines.trusted")["machines"]
    said: Json = here.request("machines.trust", entry=machines.show(paired), trusted=False)
    name = next((m["known_as"] for m in before if m["key"] == signing.show(paired.key)), None)
    there = Link(here.home, paired.operator, "cli", False, ask, paired)
    try:
        there.connect()
        if name is not None:
            for one in there.request("operator.show", name=name)["keys"]:
                if one["revoked"] is None:
                    there.request("device.revoke", operator=name, device=one["key"])
    except HoldfastError as e:
        print(
            f"holdfast: {paired.name} still knows this machine as {name}: {e.message}; "
            f"`holdfast operator revoke {name}` there ends that",
            file=sys.stderr,
        )
    finally:
        with contextlib.suppress(HoldfastError):
            there.close()
    return said


def _put(args: Namespace, said: Json, name: str = "", off: bool = False) -> int:
    if args.json:
        put_json(said)
    elif name:
        may = "may no longer" if off else "may now"
        print(f"{name} {may} keep copies of sessions of this machine and take them over")
    elif not said["machines"]:
        print("no machine may take sessions of this machine over; `holdfast machines trust NAME`")
    else:
        rows = [(m["name"], m["known_as"], m["by"]) for m in said["machines"]]
        print(table(("MACHINE", "KNOWS THIS ONE AS", "TRUSTED BY"), rows, ()))
    if off and not name:
        raise Usage("--off needs a machine")
    return 0
