"""A client inside a session that reaches the host through the installation's own relay (A7)."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.core.sealed import route
from holdfast.home import keys, machines
from holdfast.host.relays.uplinks import PASS
from holdfast.model import address, agreement, signing
from tests.support.installation import Installation, installation


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Installation]:
    config = '[turn]\nidle_s = 600\n[relay]\nlisten = "127.0.0.1:0"\n'
    with installation(tmp_path, config, relay=True) as made:
        yield made


def second_home(hf: Installation, operator: str) -> Path:
    """A home with a copy of the operator's key, as a program of the account can make one."""
    home, copy = homes.resolve(hf.env), hf.base / "copy"
    (copy / "keys").mkdir(mode=0o700, parents=True)
    copy.chmod(0o700)
    shutil.copy(hf.home / "keys" / f"{operator}.key", copy / "keys")
    machine, identity = keys.load_machine(home), keys.load(home, operator)
    url = hf.ok("host", "ls", "--json").json["relays"][0]["url"]
    relay = address.name(url)
    way = machines.Way(
        url,
        route.route(signing.public(keys.route_key(machine, relay))),
        agreement.derive(machine.secret(), PASS + relay.encode() + b"\0" + identity.public),
    )
    static = agreement.public(keys.static(machine))
    entry = machines.Machine("box", machine.public, static, operator, 0, (way,))
    machines.keep(homes.resolve({**hf.env, "HOLDFAST_HOME": str(copy)}), entry)
    return copy


def client(hf: Installation, home: Path, *args: str) -> str:
    """A line of the shell that runs the command line inside the session, with another home."""
    environ = {**hf.env, "HOLDFAST_HOME": str(home)}
    return shlex.join(["env", *(f"{k}={v}" for k, v in environ.items()), *map(str, hf.argv(args))])


def entries(hf: Installation, session: str, kind: str) -> list[dict[str, Any]]:
    found = hf.ok("log", session, "--json").records
    return [e for e in found if e["kind"] == kind and e["phase"] != "outcome"]


def test_a7_an_open_key_that_comes_through_a_relay_does_not_act_as_its_owner(
    house: Installation,
) -> None:
    house.ok("up", "--detach")
    house.people("ann", "bob")
    house.ok("--as", "ann", "new", "target", "--no-attach")
    house.ok("--as", "ann", "new", "shared", "--no-attach")
    copy = second_home(house, "ann")
    house.ok("--as", "bob", "seize", "shared")

    def bob(*args: str) -> Any:
        return house.cli("--as", "bob", "run", "shared", "--", client(house, copy, *args))

    done = bob("rename", "box/target", "stolen")
    assert done.rc == 4 and "through a relay" in done.out, done
    (entry,) = entries(house, "target", "rename")
    assert (entry["actor"], entry["verdict"]) == ("ann", "refuse")
    assert entry["originators"] == entry["facts"]["inside"]["operators"] == ["unknown"]
    assert entry["facts"]["inside"]["session"] is None
    assert "perhaps from inside a session" in house.ok("log", "target").out
    # The program may move the key file away first; acts that only stop stay possible, with a mark.
    (house.home / "keys/ann.key").rename(house.base / "ann.key")
    assert bob("rename", "box/target", "stolen").rc == 4
    assert bob("halt", "box/target").rc == 0
    (entry,) = entries(house, "target", "halt")
    assert entry["originators"] == ["unknown"] and entry["facts"]["inside"]["session"] is None


def test_a7_a_machine_with_one_operator_asks_for_no_second_key(house: Installation) -> None:
    house.ok("up", "--detach")
    house.ok("new", "target", "--no-attach")
    copy = second_home(house, "tester")
    done = house.ok("run", "box/target", "--", "echo", "here", env={"HOLDFAST_HOME": str(copy)})
    assert done.out == "here\n"
