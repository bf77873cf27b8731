"""News about a session, and the backlog of a slow reader."""

from __future__ import annotations

import pytest

from holdfast.core.session.notices import KINDS, OVER, PENDING_MAX, Notice, Pending, doubtful, news

IDLE = Notice("s", "work", "idle", "bash (pid 7) is at its prompt", 7, 1.0, "bash", None)


def test_news_is_a_changed_state_name_or_waiting_process() -> None:
    assert news(None, IDLE)
    assert not news(IDLE, IDLE._replace(why="other words", since=9.0, foreground="sh", pid=8))
    assert news(IDLE, IDLE._replace(kind="secret")) and news(IDLE, IDLE._replace(name="play"))
    working = IDLE._replace(kind="working")
    assert not news(working, working._replace(pid=9, foreground="ld"))
    waits = IDLE._replace(kind="input")
    assert news(waits, waits._replace(pid=9)), "the next question is another one"
    assert not news(waits._replace(pid=None), waits), "a newly found reader is no change"


@pytest.mark.parametrize("kind", KINDS)
def test_only_sessions_that_could_not_be_seen_are_looked_at_again(kind: str) -> None:
    assert not any(doubtful(IDLE, one) for one in KINDS if one != "unknown")
    assert doubtful(IDLE._replace(kind=kind), "unknown") == (kind not in ("unknown", *OVER))
    assert not doubtful(None, "unknown")


def test_a_slow_reader_gets_the_newest_of_each_in_the_order_of_the_news() -> None:
    pending = Pending()
    for n in range(1000):
        for session in ("a", "b"):
            pending.put(
                IDLE._replace(session=session, kind=("idle", "working")[n % 2], since=float(n))
            )
    pending.put(IDLE._replace(session="c"))
    pending.put(IDLE._replace(session="a", since=5000.0))
    assert [(n.session, n.since) for n in pending.take()] == [
        ("b", 999.0),
        ("c", 1.0),
        ("a", 5000.0),
    ]
    assert not pending


def test_kept_notices_are_bounded_and_the_rest_is_counted() -> None:
    pending = Pending()
    for n in range(PENDING_MAX + 10):
        pending.put(IDLE._replace(session=str(n)))
    assert pending and pending.missed == 10
    taken = list(pending.take())
    assert len(taken) == PENDING_MAX and taken[-1].session == str(PENDING_MAX + 9)
    assert pending, "that some were left out is still to be told"
