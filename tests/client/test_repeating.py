"""Which requests are repeated after a lost connection, and what their callers are told."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from holdfast.client.engine.lane import Lane
from holdfast.client.gone import HostGone
from holdfast.client.link import Link
from holdfast.client.repeating import UNDER_WAY, UNDER_WAY_MAX, Repeating
from holdfast.home import Home
from holdfast.model.errors import Busy, OutcomeUnknown, Stale

LOST = HostGone("lost")


def sent(op: str, **fields: Any) -> Repeating:
    one = Repeating(op, fields, 0.0)
    one.is_sent()
    return one


def test_a9_a_request_is_repeated_if_that_has_one_effect() -> None:
    run = sent("run", session="s", text="x", seq=4)
    run.lost(LOST, 1.0)
    assert run.fields["seq"] == 4 and isinstance(run.failed(LOST), OutcomeUnknown)
    with pytest.raises(HostGone):
        sent("signal", session="s", pid=9, seq=4).lost(LOST, 1.0)
    keyed = sent("signal", session="s", pid=9, seq=4, once="k")
    keyed.lost(LOST, 1.0)
    assert "seq" not in keyed.fields
    unsent = Repeating("signal", {"session": "s", "pid": 9, "seq": 4}, 0.0)
    unsent.lost(LOST, 1.0)
    assert unsent.failed(LOST) is LOST
    look = sent("view", session="s")
    look.lost(LOST, 1.0)
    assert look.failed(LOST) is LOST
    with pytest.raises(HostGone):
        sent("view", session="s").lost(HostGone("stopped", "down"), 1.0)


def test_s4_a_repeated_request_goes_on_after_its_last_part() -> None:
    read = sent("read", session="s", **{"from": 0})
    read.delivered(90)
    wait = sent("wait", session="s", timeout=10.0)
    wait.lost(LOST, 4.0)
    wait.lost(LOST, 5.0)
    end = sent("end", session="s", seq=1)
    end.lost(LOST, 1.0)
    events = sent("events", after=3)
    events.told({"event": "happened", "body": {"number": 7}})
    assert (read.fields["from"], wait.fields["timeout"]) == (90, 5.0)
    assert end.fields["again"] is True and events.fields["after"] == 7


def test_a9_an_act_that_is_under_way_is_not_refused() -> None:
    first = sent("run", session="s", text="x", seq=4)
    with pytest.raises(Busy):
        first.busy(Busy(UNDER_WAY))
    again = sent("run", session="s", text="x", seq=4)
    again.lost(LOST, 1.0)
    for _ in range(UNDER_WAY_MAX):
        again.busy(Busy(UNDER_WAY))
    with pytest.raises(Busy) as busy:
        again.busy(Busy(UNDER_WAY))
    assert isinstance(again.failed(busy.value), OutcomeUnknown)
    with pytest.raises(Busy) as other:
        again.busy(Busy("vi is in the foreground"))
    assert again.failed(other.value) is other.value


def test_p1_a_stale_act_is_signed_anew_once() -> None:
    run = sent("run", session="s", text="x", seq=4)
    run.stale(Stale("much has happened"))
    assert "seq" not in run.fields
    with pytest.raises(Stale):
        run.stale(Stale("much has happened"))


def test_s3_a_lane_that_is_closed_while_it_connects_leaves_no_socket() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    class Slow(Link):
        def connect(self, about: str | None = None) -> None:
            begun.set()
            go_on.wait()
            self.sock = ours

        def close(self) -> None:
            super().close()
            if go_on.is_set():
                done.set()

    async def work() -> None:
        lane = Lane(Slow(Home("/nonexistent", "/nonexistent", True), "ann"))
        asking = asyncio.create_task(lane.connected(60.0))
        await asyncio.to_thread(begun.wait)
        await lane.close()
        asking.cancel()
        go_on.set()

    asyncio.run(work())
    assert done.wait(60.0)
    assert ours.fileno() == -1
    theirs.close()
