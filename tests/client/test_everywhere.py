"""Another machine may say anything about a reference: an odd answer stops no other (S8)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from holdfast.client.everywhere import best
from holdfast.faces.cli import fleet, look
from holdfast.home import machines as known
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotFound

REF: Final = "hf:0123456789ab"
HERE: Final[Any] = {"known": False, "state": "not known any more"}
GOOD: Final[Any] = {
    "known": True,
    "state": "live",
    "session": {"name": "work", "epoch": 2, "idle_s": 1.0, "liveness": {"process": "alive"}},
}
LATE: Final = {**GOOD["session"], "epoch": 1 << 60}
ODD: Final[list[Any]] = [
    {},
    {"known": "yes", "elsewhere": 7},
    {"known": True, "state": "live", "session": {"epoch": "x"}},
    {"known": True, "state": "live", "session": {"epoch": float("inf")}},
    {"known": True, "state": "live", "session": "here"},
    [],
]
UNSHOWABLE: Final[list[Any]] = [
    {"known": True, "state": "live", "session": []},
    {"known": True, "state": "live", "session": {"epoch": 1 << 60}},
    {"known": True, "state": "live", "session": {**LATE, "idle_s": "long"}},
    {"known": True, "state": "live", "session": LATE, "act": "applied"},
    {"known": True, "state": "ended", "session": LATE},
]


@pytest.mark.parametrize("odd", ODD)
def test_s8_an_odd_answer_does_not_count(odd: Any) -> None:
    assert best({"odd": odd, "good": GOOD}, HERE) == ("good", GOOD)
    assert best({"odd": odd}, HERE) is None


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answers of machines by their names."""
    said: dict[str, Any] = {}

    class Link:
        def __init__(self, home: Any, operator: Any, *how: Any) -> None:
            self.name = how[-1].name

        def connect(self) -> None: ...

        def close(self) -> None: ...

        def request(self, op: str, **fields: Any) -> Any:
            if isinstance(said[self.name], HoldfastError):
                raise said[self.name]
            return said[self.name]

    def listing(home: Any) -> list[Any]:
        return [SimpleNamespace(name=one, operator="ann", key=bytes(32)) for one in said]

    monkeypatch.setattr(fleet, "Link", Link)
    monkeypatch.setattr(fleet, "_home", lambda: None)
    monkeypatch.setattr(known, "listing", listing)
    return said


@pytest.mark.parametrize("odd", [*ODD, *UNSHOWABLE])
def test_s8_a_reference_is_found_beside_a_machine_that_says_odd_things(
    machines: dict[str, Any], capsys: pytest.CaptureFixture[str], odd: Any
) -> None:
    shown: Callable[[Any], str] = lambda answer: look._told(REF, answer)  # noqa: E731
    machines.update(odd=odd, good=GOOD)
    args = Namespace(operator=None)
    assert fleet.resolve_elsewhere(args, REF, HERE, shown) == ("good", GOOD)
    assert capsys.readouterr().err == "holdfast: odd did not answer: its answer is odd\n"


def test_s8_this_machine_answers_if_the_one_that_has_the_session_says_odd_things(
    machines: dict[str, Any],
) -> None:
    machines.update(odd=UNSHOWABLE[0])
    went = {"machine": "odd", "key": signing.show(bytes(32)), "epoch": 3}
    here = {**GOOD, "state": "moved", "elsewhere": went}
    args = Namespace(operator=None)
    assert fleet.resolve_elsewhere(args, REF, here, lambda one: look._told(REF, one)) is None


def test_s8_a_name_is_looked_for_beside_a_machine_that_says_odd_things(
    machines: dict[str, Any],
) -> None:
    machines.update(odd={"state": "live"}, good=NotFound("x"))
    with pytest.raises(NotFound, match="odd did not answer"):
        fleet.find_elsewhere(Namespace(operator=None), "work")
