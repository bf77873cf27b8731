"""A follower of the graph reports what happened while no host was there, and repeats nothing."""

from __future__ import annotations

from typing import Any

from holdfast.core.session.graph_news import GraphNews, present


def started(pid: int, at: float, **more: Any) -> dict[str, Any]:
    return {"change": "started", "pid": pid, "started": at, "argv": [f"p{pid}"], **more}


def listening(pid: int, local: str) -> dict[str, Any]:
    return {"change": "listening", "pid": pid, "local": local, "kind": "tcp", "port": 80}


def back(*args: Any) -> dict[str, Any]:
    return {**present(*args), "time": 9.0}


def test_s4_a_return_reports_what_vanished_and_repeats_nothing() -> None:
    known = GraphNews()
    for change in (
        started(1, 10.0),
        started(2, 20.0),
        listening(2, "0.0.0.0:80"),
        {"change": "blocked", "waiting": {"for": "input"}},
    ):
        assert known.is_news(change)
    # Process 2 is gone; its pid belongs to a later process. Start times differ by rounding.
    found = back([(1, 10.01), (2, 95.0)], [], ("working", "", "make"))
    gone = list(known.returned(found))
    assert [(c["change"], c.get("pid")) for c in gone] == [
        ("exited", 2),
        ("closed", 2),
        ("unblocked", None),
    ]
    assert gone[0]["argv"] == ["p2"] and gone[0]["exit_code"] is None and "was" not in gone[0]
    assert all(known.is_news(change) for change in gone)
    assert not list(known.returned(found)), "a second return has no news"
    assert not known.is_news(started(1, 10.01, was=True))
    assert known.is_news(started(2, 95.0, was=True))


def test_s4_a_wait_that_goes_on_is_not_repeated() -> None:
    known = GraphNews()
    blocked = {"change": "blocked", "waiting": {"for": "secret"}}
    assert known.is_news(blocked)
    assert not list(known.returned(back([], [], ("secret", "", "ssh"))))
    assert not known.is_news(blocked)
    assert known.is_news({"change": "unblocked", "waiting": {"for": "working"}})
