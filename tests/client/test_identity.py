"""The key of a client: made on demand, once even when several clients start at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.identity import identity
from holdfast.home import Home, keys
from holdfast.model.errors import NotFound


@pytest.fixture
def home(tmp_path: Path) -> Home:
    tmp_path.chmod(0o700)
    return Home(str(tmp_path), f"{tmp_path}/config.toml", True)


def test_the_first_identity_is_made_when_it_is_needed_and_a_second_only_when_asked_for(
    home: Home,
) -> None:
    first = identity(home, "ann")
    assert first.kind == "human" and identity(home, "ann") == first
    keys.machine(home, 0)
    with pytest.raises(NotFound, match="no identity bob"):
        identity(home, "bob")


def test_an_identity_that_joined_another_machine_is_not_the_first_of_this_home(
    home: Home,
) -> None:
    keys.make(home, "ann", "human", 0)
    with pytest.raises(NotFound, match="no identity bob"):
        identity(home, "bob", elsewhere=True)
    assert identity(home, "bob") == keys.load(home, "bob")


@pytest.mark.parametrize("moment", ["listing", "make"])
def test_one_that_another_client_makes_meanwhile_is_used(
    home: Home, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`moment` is the step before which the other client is quicker."""
    late = getattr(keys, moment)

    def overtaken(*args: object) -> object:
        monkeypatch.setattr(keys, moment, late)
        identity(home, "ann")
        return late(*args)

    monkeypatch.setattr(keys, moment, overtaken)
    assert identity(home, "ann") == keys.load(home, "ann")
