"""The rules by which a follower tries again (S4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.client import following
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, PeerFault, Unavailable


class Host:
    """A link whose host gives these answers, one for each attempt."""

    away = None

    def __init__(self, *answers: HoldfastError | dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.sock: object | None = object()

    def connect(self) -> None:
        self.sock = object()

    def close(self) -> None:
        self.sock = None

    def ask(self, op: str, told: Any, fields: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(dict(fields))
        fields["from"] = len(self.asked)  # as each part of the answer does
        found = self.answers.pop(0)
        if isinstance(found, HoldfastError):
            raise found
        return found

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        return {"op": op, **fields}


def follow(host: Host, **fields: Any) -> tuple[dict[str, Any], int]:
    """The answer, and how often an outage was reported."""
    told: list[None] = []
    done = following.follow(cast(Link, host), "read", lambda: told.append(None), **fields)
    return done, len(told)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses take no time and move the clock."""
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    monkeypatch.setattr("holdfast.client.following.time", clock)


def test_s4_a_follower_asks_again_from_where_it_was_and_reports_a_long_outage_once() -> None:
    gone = [HostGone("lost")] * 99
    host = Host(*gone, {"end": 7})
    assert follow(host, session="s", **{"from": 0}) == ({"end": 7}, 1)
    assert [one["from"] for one in host.asked] == list(range(100))
    assert all(one["follow"] for one in host.asked)
    assert follow(Host(HostGone("lost"), {}))[1] == 0, "a moment is not worth a word"


def test_s4_a_keeper_that_is_not_adopted_yet_is_waited_for_only_after_a_loss() -> None:
    assert follow(Host(HostGone("lost"), Unavailable("adopting"), {"end": 1}))[0] == {"end": 1}
    with pytest.raises(Unavailable):
        follow(Host(Unavailable("the keeper does not answer")))


def test_s4_a_session_that_ended_without_a_host_is_described() -> None:
    done, _ = follow(Host(HostGone("lost"), NotFound("ended")), session="s")
    assert done == {"op": "get", "session": "s"}
    with pytest.raises(NotFound):
        follow(Host(NotFound("no such session")), session="s")


@pytest.mark.parametrize(
    "last", [HostGone("stopped", "down"), NotAllowed("revoked"), PeerFault("another machine")]
)
def test_s4_a_stopped_host_and_a_lost_right_end_a_follower(last: HoldfastError) -> None:
    with pytest.raises(type(last)):
        follow(Host(HostGone("lost"), last))
