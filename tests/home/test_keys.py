"""Identities as files: private to the account, whole or absent, and never unlocked by accident."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.home import Home, keys
from holdfast.model import canonical, sealing, signing
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Unavailable, Usage


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(sealing, "COST", sealing.COST_MIN)
    monkeypatch.setattr(sealing.seal, "__defaults__", (sealing.COST_MIN,))
    tmp_path.chmod(0o700)
    return Home(str(tmp_path), f"{tmp_path}/config.toml", True)


def says(word: str) -> keys.Ask:
    return lambda name: word


def never(name: str) -> str:
    raise AssertionError("asked for a passphrase")


def test_a_home_that_is_made_for_a_key_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        keys.make(
            Home(f"{tmp_path}/state/holdfast", f"{tmp_path}/config.toml", True), "ann", "human", 0
        )
    finally:
        os.umask(before)
    assert (tmp_path / "state" / "holdfast").stat().st_mode & 0o777 == 0o700


def test_a_new_identity_is_there_again_and_private(home: Home) -> None:
    made = keys.make(home, "ann", "human", 1_700_000_000.9)
    again = keys.load(home, "ann")
    assert again == made and (again.kind, again.created, again.locked) == (
        "human",
        1_700_000_000,
        False,
    )
    assert again.private is not None and signing.public(again.private) == again.public
    assert (
        os.stat(made.path).st_mode & 0o777 == 0o600
        and os.stat(keys.directory(home)).st_mode & 0o777 == 0o700
    )
    assert made.path.endswith("/keys/ann.key") and os.listdir(keys.directory(home)) == ["ann.key"]
    assert again.private.hex() not in repr(again) and repr(again.private) not in repr(again)


def test_a_name_has_one_key_and_it_is_never_written_over(home: Home) -> None:
    made = keys.make(home, "ann", "human", 1)
    with pytest.raises(Refused):
        keys.make(home, "ann", "agent", 2)
    assert keys.load(home, "ann") == made
    for name, kind in (
        ("../x", "human"),
        ("-x", "human"),
        ("a/b", "human"),
        ("ann", "machine"),
        ("bob", "robot"),
    ):
        with pytest.raises(Usage):
            keys.make(home, name, kind, 1)
    with pytest.raises(NotFound):
        keys.load(home, "bob")


def test_of_many_at_once_one_makes_it(home: Home) -> None:
    made: list[keys.Identity] = []
    refused: list[HoldfastError] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        try:
            made.append(keys.make(home, "ann", "human", 1))
        except HoldfastError as e:
            refused.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and len(refused) == 7 and keys.load(home, "ann") == made[0]
    assert os.listdir(keys.directory(home)) == ["ann.key"]


def test_the_machine_has_one_key(home: Home) -> None:
    first = keys.machine(home, 1)
    assert keys.machine(home, 2) == first == keys.load_machine(home)
    assert first.path.endswith("/keys/machine") and first.kind == "machine"
    with pytest.raises(Usage, match="cannot be named machine"):
        keys.make(home, "machine", "human", 3)
    assert keys.load_machine(home) == first and keys.listing(home) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o700 | 0o001])
def test_a_key_that_others_could_read_is_refused(home: Home, mode: int) -> None:
    path = keys.make(home, "ann", "human", 1).path
    os.chmod(path, mode)
    with pytest.raises(Impossible, match="others"):
        keys.load(home, "ann")
    [listed] = keys.listing(home)
    assert listed.identity is None and "others" in listed.trouble


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_account_is_refused(home: Home) -> None:
    path = keys.make(home, "ann", "human", 1).path
    os.chown(path, 12345, -1)
    with pytest.raises(Impossible, match="12345"):
        keys.load(home, "ann")
    os.chown(path, os.geteuid(), -1)
    os.chown(keys.directory(home), 12345, -1)
    with pytest.raises(Impossible, match="12345"):
        keys.load(home, "ann")


def test_a_directory_that_others_reach_is_refused(home: Home) -> None:
    keys.make(home, "ann", "human", 1)
    os.chmod(keys.directory(home), 0o755)
    with pytest.raises(Impossible, match="others"):
        keys.load(home, "ann")
    with pytest.raises(Impossible, match="others"):
        keys.make(home, "bob", "human", 1)


@pytest.mark.parametrize(
    "what",
    ["link", "directory", "fifo", "garbage", "empty", "long", "fields", "kind", "short", "json"],
)
def test_an_invalid_key_file_is_a_typed_error(home: Home, what: str) -> None:
    path = Path(keys.make(home, "ann", "human", 1).path)
    value = canonical.decode(path.read_bytes())
    data = {
        "garbage": os.urandom(200),
        "empty": b"",
        "long": b" " * 5000,
        "fields": canonical.encode({**value, "more": 1}),
        "kind": canonical.encode({**value, "kind": "machine"}),
        "short": canonical.encode({**value, "private": "AAAA"}),
        "json": b"[1]",
    }.get(what)
    if data is not None:
        path.write_bytes(data)
    else:
        path.rename(path.with_suffix(".kept"))
        if what == "link":
            path.symlink_to(path.with_suffix(".kept"))
        elif what == "directory":
            path.mkdir(mode=0o700)
        else:
            os.mkfifo(path, 0o600)
    with pytest.raises(Impossible):
        keys.load(home, "ann")
    assert keys.listing(home)[0].trouble


def test_a_passphrase_protects_the_file_and_nothing_else_is_needed(home: Home) -> None:
    made = keys.make(home, "ann", "human", 1, says("höchst geheim"))
    loaded = keys.load(home, "ann")
    assert loaded.locked and loaded.private is None and made.private is not None
    assert made.private not in Path(made.path).read_bytes()
    with pytest.raises(Refused, match="locked"):
        loaded.secret()
    with pytest.raises(Refused, match="passphrase"):
        keys.opened(loaded, says("falsch"))
    assert (
        keys.opened(loaded, says("ho\u0308chst geheim")).private == made.private
    )  # the same word, composed otherwise
    assert keys.load(home, "ann").locked


def test_a_passphrase_can_be_put_on_changed_and_taken_off(home: Home) -> None:
    private = keys.make(home, "ann", "human", 1).private
    keys.lock(home, "ann", never, says("one"))
    with pytest.raises(Refused):
        keys.lock(home, "ann", says("wrong"), says("two"))
    keys.lock(home, "ann", says("one"), says("two"))
    with pytest.raises(Refused):
        keys.unlock(home, "ann", says("one"))
    with pytest.raises(Usage, match="empty"):
        keys.lock(home, "ann", says("two"), says(""))
    keys.unlock(home, "ann", says("two"))
    assert keys.load(home, "ann").private == private and os.listdir(keys.directory(home)) == [
        "ann.key"
    ]


def test_a_locked_key_cannot_be_passed_off_as_another(home: Home) -> None:
    ann, bob = (keys.make(home, name, "human", 1, says("same")) for name in ("ann", "bob"))
    one, other = (canonical.decode(Path(i.path).read_bytes()) for i in (ann, bob))
    Path(ann.path).write_bytes(canonical.encode({**one, "locked": other["locked"]}))
    with pytest.raises(Refused):
        keys.opened(keys.load(home, "ann"), says("same"))
    for change in (
        {"n": 1 << 40},
        {"n": 3},
        {"n": "x"},
        {"salt": "AA"},
        {"sealed": ""},
        {"nonce": None},
    ):
        Path(ann.path).write_bytes(canonical.encode({**one, "locked": {**one["locked"], **change}}))
        with pytest.raises(Impossible):
            keys.opened(keys.load(home, "ann"), says("same"))


def test_a_full_or_read_only_disk_leaves_no_half_of_a_key(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = keys.make(home, "ann", "human", 1).private

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="No space"):
        keys.make(home, "bob", "human", 1)
    with pytest.raises(Unavailable, match="No space"):
        keys.lock(home, "ann", never, says("x"))
    assert (
        os.listdir(keys.directory(home)) == ["ann.key"]
        and keys.load(home, "ann").private == private
    )


def test_leftovers_of_a_crash_are_removed(home: Home) -> None:
    keys.make(home, "ann", "human", 1)
    old, fresh = (Path(keys.directory(home)) / f".new-{n}" for n in ("aa", "bb"))
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    keys.make(home, ".new-x", "human", 1)
    assert not old.exists() and fresh.exists() and keys.load(home, ".new-x")


def test_removed_is_gone(home: Home) -> None:
    keys.make(home, "ann", "human", 1)
    keys.remove(home, "ann")
    with pytest.raises(NotFound):
        keys.remove(home, "ann")
    assert keys.listing(home) == []


def test_reading_a_plain_key_imports_nothing_heavy(home: Home) -> None:
    keys.make(home, "ann", "human", 1)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from holdfast.home import Home, keys; "
            f"assert keys.load(Home({home.state!r}, '', True), 'ann').private; "
            "print([m for m in ('cryptography', 'hashlib', 'asyncio', 'dataclasses', "
            "'unicodedata') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "src"},
    )
    assert done.stdout == "[]\n"


def test_the_keys_for_relays_follow_from_the_identity(home: Home) -> None:
    """No second file: the same keys at every start, and never without the passphrase."""
    ann = keys.make(home, "ann", "human", 1)
    here = keys.machine(home, 1)
    assert keys.static(keys.load(home, "ann")) == keys.static(ann) != keys.static(here)
    assert (
        len(
            {
                keys.route_key(here, "a.example:443"),
                keys.route_key(here, "b.example:443"),
                keys.static(here),
                here.secret(),
            }
        )
        == 4
    )
    assert keys.route_key(keys.load_machine(home), "a.example:443") == keys.route_key(
        here, "a.example:443"
    )
    assert sorted(os.listdir(keys.directory(home))) == ["ann.key", "machine"]
    keys.lock(home, "ann", lambda _: "", lambda _: "secret")
    locked = keys.load(home, "ann")
    with pytest.raises(Refused, match="locked"):
        keys.static(locked)
    assert keys.static(keys.opened(locked, lambda _: "secret")) == keys.static(ann)
