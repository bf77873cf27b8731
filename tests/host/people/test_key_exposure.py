"""Which private keys code in a session could read without help."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import home as homes
from holdfast.home import Home, keys
from holdfast.host.people.key_exposure import account, readable
from holdfast.model import signing

ME, OTHER = os.geteuid() or 4321, 9999


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = homes.resolve({"HOLDFAST_HOME": str(tmp_path / "hf")})
    homes.prepare(made)
    return made


def owned(path: str, uid: int) -> None:
    if os.geteuid() == 0:
        for one in (path, os.path.dirname(path)):
            os.chown(one, uid, -1)


def test_a_plain_file_is_readable_to_its_account_and_to_root(home: Home) -> None:
    made = keys.make(home, "ann", "human", time.time())
    owned(made.path, ME)
    assert readable(home, "ann", made.public, ME) and readable(home, "ann", made.public, 0)
    assert not readable(home, "ann", made.public, OTHER)
    os.chmod(made.path, 0o644)
    assert not readable(home, "ann", made.public, OTHER), "its directory is closed"
    os.chmod(os.path.dirname(made.path), 0o755)
    assert readable(home, "ann", made.public, OTHER)
    os.chmod(made.path, 0o000)
    assert readable(home, "ann", made.public, ME), "its owner can give itself the right"
    assert not readable(home, "ann", made.public, OTHER)


def test_a_key_under_a_passphrase_or_in_another_place_is_not_readable(home: Home) -> None:
    locked = keys.make(home, "ann", "human", time.time(), lambda name: "open sesame")
    plain = keys.make(home, "bea", "human", time.time())
    elsewhere = signing.public(signing.generate())
    for uid in (0, ME):
        assert not readable(home, "ann", locked.public, uid)
        assert not readable(home, "cat", elsewhere, uid)
    assert readable(home, "ann", plain.public, 0), "under any file name"
    keys.unlock(home, "ann", lambda name: "open sesame")
    assert readable(home, "ann", locked.public, 0)


def test_a_key_file_that_cannot_be_parsed_counts_as_readable(home: Home) -> None:
    made = keys.make(home, "ann", "human", time.time())
    Path(made.path).write_bytes(b"{nonsense")
    owned(made.path, ME)
    assert readable(home, "ann", made.public, ME) and readable(home, "ann", made.public, 0)
    assert not readable(home, "ann", made.public, OTHER)
    assert not readable(home, "bea", made.public, ME), (
        "the broken file of another operator says nothing about this key"
    )


def test_no_keys_at_all(home: Home) -> None:
    assert not readable(home, "ann", bytes(32), 0)


def test_the_account_is_that_of_the_sessions_program() -> None:
    assert account(None) == os.geteuid()
    assert (
        account(cast(Any, SimpleNamespace(record=SimpleNamespace(root_pid=os.getpid()))))
        == os.geteuid()
    )
    assert account(cast(Any, SimpleNamespace(record=SimpleNamespace(root_pid=-1)))) == 0, (
        "not known: the one that can read most"
    )
