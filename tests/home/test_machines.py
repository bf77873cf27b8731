"""A home's list of machines and relays: private, whole or absent, never overwritten unread (T4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.home import Home, machines, relays
from holdfast.home.machines import Machine, Way
from holdfast.home.relays import Relay
from holdfast.model.errors import NotFound, Refused, Unavailable

WAY = Way("ws://relay.example", bytes(16), b"p" * 32)
BOX = Machine("box", b"k" * 32, b"s" * 32, "ann", 1, (WAY,))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = homes.resolve({"HOLDFAST_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)})
    homes.prepare(made)
    return made


def test_machines_come_back_as_they_were_kept_each_identity_with_its_own_way(home: Home) -> None:
    bob = BOX._replace(operator="bob", added=2, ways=(WAY._replace(pass_=b"q" * 32, ca="/ca"),))
    for one in (BOX, bob, BOX):
        machines.keep(home, one)
    assert machines.listing(home) == [BOX, bob]
    assert machines.find(home, "box") == BOX and machines.find(home, "box", "bob") == bob
    assert os.stat(machines.path(home)).st_mode & 0o777 == 0o600 and "ppp" not in repr(BOX)
    for name, operator in (("nowhere", None), ("box", "carl")):
        with pytest.raises(NotFound) as refused:
            machines.find(home, name, operator)
        assert refused.value.recover
    with pytest.raises(Refused):
        machines.keep(home, BOX._replace(key=b"x" * 32))
    machines.keep(home, BOX._replace(name="renamed"))
    assert {m.name for m in machines.listing(home)} == {"renamed"}, "one machine has one name"
    machines.forget(home, "renamed")
    assert machines.listing(home) == []


def test_relays_are_kept_by_their_address(home: Home) -> None:
    relays.keep(home, Relay("ws://a", "one"))
    relays.keep(home, Relay("ws://b"))
    relays.keep(home, Relay("ws://a", "two", "/ca"))
    assert relays.listing(home) == [
        Relay("ws://b"),
        Relay("ws://a", "two", "/ca"),
    ] and "two" not in repr(relays.listing(home))
    relays.forget(home, "ws://b")
    with pytest.raises(NotFound):
        relays.forget(home, "ws://b")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"v":2,"machines":[],"relays":[]}',
        b'{"machines":[{}],"relays":[{}],"v":1}',
        b'{"machines":{},"relays":7,"v":1}',
        b'{"machines":[1],"relays":[1],"v":1}',
    ],
)
@pytest.mark.parametrize("which", [machines, relays])
def test_t4_an_unreadable_file_is_reported_and_stays(
    home: Home, which: object, content: bytes
) -> None:
    assert which in (machines, relays)
    path = Path(machines.path(home) if which is machines else relays.path(home))
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(Unavailable) as damaged:
        machines.keep(home, BOX) if which is machines else relays.keep(home, Relay("ws://a"))
    assert "move it away" in damaged.value.recover and path.read_bytes() == content


def test_t4_a_file_that_others_could_read_is_refused(home: Home) -> None:
    relays.keep(home, Relay("ws://a", "token"))
    os.chmod(relays.path(home), 0o640)
    with pytest.raises(Refused, match="private to this account"):
        relays.listing(home)


def test_r1_a_change_survives_a_power_cut_once_it_is_told(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename is durable only after its directory was synced."""
    done: list[tuple[str, int]] = []
    rename, sync = os.rename, os.fsync

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        done.append(("renamed", os.stat(new).st_ino))

    def synced(fd: int) -> None:
        sync(fd)
        done.append(("synced", os.fstat(fd).st_ino))

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    machines.keep(home, BOX)
    file, folder = (os.stat(one).st_ino for one in (machines.path(home), home.state))
    assert done == [("synced", file), ("renamed", file), ("synced", folder)]
