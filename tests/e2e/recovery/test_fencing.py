"""R3: leases and fences of real sessions, with the SQLite store of one machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.leases.fences import TAKE_S
from holdfast.host.leases.sqlite import SQLiteStore
from holdfast.host.processes import process
from holdfast.model.errors import Fenced
from tests.support.installation import SOON_S, Installation, eventually
from tests.support.ordinary_user import needs
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.leases import (
    DRIFT,
    TERM_S,
    Counter,
    Rival,
    boottime,
    counting,
    locked,
)
from tests.support.recovery.wall_clock import wall_clock

DAY_S = 86_400


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Installation]:
    config = f'[lease]\nterm_s = {TERM_S}\ndrift = {DRIFT}\npath = "{tmp_path}/shared.db"\n'
    made = Installation(tmp_path, config)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@pytest.fixture
def rival(store: Path) -> Rival:
    return Rival(lambda: SQLiteStore(str(store)))


def state(hf: Installation, name: str) -> str:
    return str(hf.get(name)["state"])


def happened(hf: Installation, name: str) -> list[str]:
    return [
        one["event"]
        for one in hf.ask("events", session=name)["events"]
        if one["event"] in ("session.fence", "session.unfenced", "session.rehomable")
    ]


def test_r3_without_the_store_a_rehomable_session_freezes_and_then_goes_on(
    hf: Installation, store: Path
) -> None:
    counter = counting(hf, "work")
    pinned = hf.ready("pinned")
    shown = hf.get("work")["lease"]
    assert shown["rehomable"] and shown["epoch"] == 1 and shown["state"] == "held"
    assert "lease" not in hf.get("pinned")
    with locked(store):
        eventually(lambda: state(hf, "work") == "fenced", "the session is fenced")
        assert counter.stands()
        shown = hf.get("work")["lease"]
        assert shown["state"] == "fenced" and "cannot be reached" in shown["why"]
        refused = hf.attempt("send", "work", "x", "--enter")
        assert refused.rc == 4 and "fenced" in refused.err
        with pytest.raises(Fenced):
            hf.ask("attach", session="work", cols=80, rows=24, observe=True, resume=None)
        assert hf.attempt("resume", "work").rc == 4, "a resume is no way around"
        assert hf.ok("run", "pinned", "--", "echo", "goes on").out == "goes on\n"
        assert state(hf, "pinned") == pinned["state"] == "detached"
    eventually(lambda: state(hf, "work") == "detached", "the lease is back")
    eventually(counter.goes_on, "the program goes on")
    assert happened(hf, "work") == ["session.rehomable", "session.fence", "session.unfenced"]


def test_r3_the_keeper_freezes_while_the_host_is_stopped(hf: Installation, rival: Rival) -> None:
    counter = counting(hf, "work")
    session = hf.get("work")["id"]
    os.kill(hf.host_pid, signal.SIGSTOP)
    try:
        epoch, at = rival.takes(session)
        assert epoch == 2
        assert counter.last() < at, "the program stands still before another machine can begin"
        assert counter.stands()
    finally:
        os.kill(hf.host_pid, signal.SIGCONT)
    gone = eventually(
        lambda: (
            next((s for s in hf.ls("--all") if s["id"] == session and s["ended"]), None)
            if any(s.get("ended") for s in hf.ls("--all"))
            else None
        ),
        "the old incarnation is discarded",
    )
    assert gone["reason"] == "fenced: epoch 2 lives on rival"


def test_r3_a_host_that_was_stopped_goes_on_if_no_machine_took_over(hf: Installation) -> None:
    counter = counting(hf, "work")
    os.kill(hf.host_pid, signal.SIGSTOP)
    try:
        eventually(counter.stands, "the keeper freezes the program")
    finally:
        os.kill(hf.host_pid, signal.SIGCONT)
    eventually(counter.goes_on, "the program goes on")
    assert state(hf, "work") == "detached"


def test_r3_a_keeper_that_was_stopped_goes_on_with_the_newest_deadline(hf: Installation) -> None:
    """It froze the programs at the old deadline; the host had renewed the lease meanwhile."""
    counter = counting(hf, "work")
    keeper = hf.get("work")["keeper"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        ends = boottime() + 2 * TERM_S
        eventually(lambda: boottime() > ends, "two terms are over")
    finally:
        os.kill(keeper, signal.SIGCONT)
    eventually(lambda: happened(hf, "work")[-1] == "session.unfenced", "the host has noticed")
    eventually(counter.goes_on, "the program goes on")
    assert state(hf, "work") == "detached"


def test_r3_steps_of_the_wall_clock_change_nothing(
    tmp_path: Path, store: Path, rival: Rival
) -> None:
    """Host, nursery, keeper and programs have a wall clock that the test sets."""
    needs("cc")
    config = f'[lease]\nterm_s = {TERM_S}\ndrift = {DRIFT}\npath = "{store}"\n'
    made = Installation(tmp_path, config)
    with wall_clock(tmp_path) as (environment, advance):
        made.env |= environment
        try:
            counter, session = counting(made, "work"), made.get("work")["id"]
            made.ready("other")
            for days in (2, -2):
                advance(days * DAY_S)
                shown = int(made.ok("run", "other", "--", "date +%s").out)
                assert abs(shown - time.time()) > DAY_S, "the clock was set"
                ends = boottime() + 2 * TERM_S
                while boottime() < ends:
                    eventually(counter.goes_on, "the program goes on")
                assert happened(made, "work") == ["session.rehomable"]
            os.kill(made.host_pid, signal.SIGSTOP)
            try:
                advance(0)
                _, at = rival.takes(session)
                assert counter.last() < at and counter.stands()
            finally:
                os.kill(made.host_pid, signal.SIGCONT)
        finally:
            made.close()


def test_r3_the_next_host_finds_a_fenced_session(hf: Installation) -> None:
    counter = counting(hf, "work")
    os.kill(hf.host_pid, signal.SIGKILL)
    eventually(counter.stands, "the keeper freezes the program")
    hf.ok("up", "--detach")
    eventually(counter.goes_on, "the next host has renewed the lease")
    assert hf.get("work")["epoch"] == 1


def test_r3_a_host_serves_pinned_sessions_while_the_store_is_away(
    hf: Installation, store: Path
) -> None:
    """The next incarnation of a re-homable session needs the store; no other session waits."""
    hf.ready("pinned")
    hf.ready("work")
    hf.quick("rehome", "work", "on")
    hf.ready("alive")
    hf.quick("rehome", "alive", "on")
    keeper = hf.get("work")["keeper"]
    with locked(store):
        os.kill(hf.host_pid, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        began = time.monotonic()
        hf.ok("up", "--detach")
        assert hf.ok("run", "pinned", "--", "echo", "goes on").out == "goes on\n"
        waiting = next(one for one in hf.ls() if one["name"] == "work")
        assert time.monotonic() - began < TAKE_S + SOON_S
        assert waiting["state"] == "unknown" and "waits for its lease" in waiting["reason"]
        refused = hf.attempt("send", "work", "x", "--enter")
        assert refused.rc == 5 and "waits for its lease" in refused.err, refused
        eventually(lambda: hf.attempt("send", "alive", "x").rc == 4, "the other one is fenced")
        hf.ready("new")
    eventually(lambda: hf.ls() and state(hf, "work") == "detached", "it comes back")
    assert hf.get("work")["epoch"] == 2
    eventually(lambda: state(hf, "alive") == "detached", "its lease is back")


def counts_when_it_comes_back(hf: Installation) -> tuple[Counter, Path]:
    """A shell that counts from its first line on, if the file is there."""
    counter, go = Counter(hf.user / "back.count"), hf.user / "go"
    os.mkfifo(f"{counter.path}.fifo")
    with open(hf.account / ".bashrc", "a") as rc:
        rc.write(f"if [ -e {go} ]; then exec 9<>{counter.path}.fifo; {counter.command}; fi\n")
    return counter, go


def test_r3_a_host_that_stops_while_a_session_comes_back_leaves_it_a_deadline(
    hf: Installation, rival: Rival
) -> None:
    """The programs run, and the host has not spoken to the new keeper yet."""
    counter, go = counts_when_it_comes_back(hf)
    probe = {"HOLDFAST_PROBE": f"stop@host.create.spawned,when:{go}"}
    hf.ok("up", "--detach", env=probe)
    hf.ready("work")
    hf.quick("rehome", "work", "on")
    session, host = hf.get("work")["id"], hf.host_pid
    keeper = hf.get("work")["keeper"]
    go.touch()
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: process.state_of(host) == "T", "the host stops")
    try:
        epoch, at = rival.takes(session)
        assert epoch == 3 and 0 < counter.last() < at
        assert counter.stands()
    finally:
        os.kill(host, signal.SIGCONT)
    eventually(
        lambda: any(s.get("reason", "").startswith("fenced: epoch 3") for s in hf.ls("--all")),
        "the incarnation in between is discarded",
    )


def test_r3_a_machine_that_renews_keeps_its_sessions(hf: Installation, rival: Rival) -> None:
    counter = counting(hf, "work")
    session = hf.get("work")["id"]
    with pytest.raises(Fenced) as refused:
        rival.tries(session)
    assert refused.value.facts["until"]
    assert counter.goes_on() and state(hf, "work") == "detached"


def test_r3_an_invalidated_lease_is_fenced_at_once_and_free_after_the_wait(
    hf: Installation, rival: Rival
) -> None:
    counter = counting(hf, "work")
    session = hf.get("work")["id"]
    said = hf.quick("lease", "invalidate", "work")
    assert "invalidated" in said and "no machine may" in said
    assert state(hf, "work") == "fenced"
    refused_attach(hf)
    assert counter.stands()
    early = hf.attempt("rehome", "work", "on")
    assert early.rc == 4 and "invalidated" in early.err, "also the owner has to wait"
    taken: list[tuple[int, float]] = []
    thread = threading.Thread(target=lambda: taken.append(rival.takes(session)))
    thread.start()
    thread.join()
    assert taken[0][0] == 2 and counter.last() < taken[0][1]
    eventually(
        lambda: any(s.get("reason", "").startswith("fenced: epoch 2") for s in hf.ls("--all")),
        "the old incarnation is discarded",
    )


def refused_attach(hf: Installation) -> None:
    """The refusal has the reason, and what takes the session back."""
    refused = hf.attempt("send", "work", "x", "--json")
    assert refused.rc == 4 and "tester invalidated its lease" in refused.err, refused
    assert "`holdfast rehome work on` takes it back" in refused.err
    with pytest.raises(Fenced) as attach:
        hf.ask("attach", session="work", cols=80, rows=24)
    assert attach.value.facts["why"] == "tester invalidated its lease"
    assert isinstance(attach.value.facts["until"], float)


def test_r3_an_operator_takes_an_invalidated_session_back(hf: Installation) -> None:
    counter = counting(hf, "work")
    hf.quick("lease", "invalidate", "work")
    refused_attach(hf)
    ends = boottime() + 1.5 * TERM_S  # the deadline that the keeper had is over
    eventually(lambda: boottime() > ends, "a term is over")
    refused_attach(hf)
    eventually(lambda: hf.attempt("rehome", "work", "on").rc == 0, "the wait is over")
    eventually(lambda: state(hf, "work") == "detached", "the session goes on")
    eventually(counter.goes_on, "the program goes on")
    assert hf.get("work")["epoch"] == 1


def test_r3_a_pinned_session_is_not_taken(hf: Installation, rival: Rival) -> None:
    counting(hf, "work")
    hf.quick("rehome", "work", "off")
    assert "lease" not in hf.get("work")
    with pytest.raises(Fenced, match="pinned"):
        rival.tries(hf.get("work")["id"])
    assert hf.attempt("lease", "invalidate", "work").rc == 4
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("up", "--detach")
    assert hf.quick("lease", "show", "work").startswith("work: incarnation 1 on ")


def test_r3_making_a_session_rehomable_is_a_right_of_its_own(hf: Installation) -> None:
    hf.ready("work")
    hf.people("dee", rights="execute,halt,checkpoint")
    for command in (("rehome", "work", "on"), ("lease", "invalidate", "work")):
        refused = hf.attempt("--as", "dee", *command)
        assert refused.rc == 4 and "rehome" in refused.err, refused
    hf.people("eve", rights="read,rehome")
    hf.quick("--as", "eve", "rehome", "work", "on")
    entries = [one for one in hf.ok("log", "work", "--json").records if one["kind"] == "rehome"]
    assert {one["actor"] for one in entries} == {"eve"}


def test_r3_a_halt_during_a_fence_outlives_it_and_a_host(hf: Installation, store: Path) -> None:
    """A4: also a session that stands still already can be halted."""
    counter = counting(hf, "work")
    with locked(store):
        eventually(lambda: state(hf, "work") == "fenced", "the session is fenced")
        hf.quick("halt", "work")
        assert state(hf, "work") == "fenced"
    eventually(lambda: state(hf, "work") == "halted", "the fence ends, the halt does not")
    with locked(store):
        eventually(lambda: state(hf, "work") == "fenced", "the session is fenced again")
        os.kill(hf.host_pid, signal.SIGKILL)
        hf.ok("up", "--detach")
        eventually(lambda: state(hf, "work") == "fenced", "the next host finds it so")
    eventually(lambda: state(hf, "work") == "halted", "and knows of the halt")
    assert counter.stands()
    hf.quick("resume", "work")
    eventually(counter.goes_on, "the program goes on")


def test_r3_a_halt_outlives_a_fence(hf: Installation, store: Path) -> None:
    counter = counting(hf, "work")
    hf.quick("halt", "work")
    with locked(store):
        eventually(lambda: state(hf, "work") == "fenced", "the session is fenced")
    eventually(lambda: state(hf, "work") == "halted", "the lease is back, and it is halted still")
    assert counter.stands()
    hf.quick("resume", "work")
    eventually(counter.goes_on, "the program goes on")


def test_r3_r5_a_branch_of_a_rehomable_session_is_pinned(hf: Installation) -> None:
    """No lease is held for it, so no host may fence it."""
    criu()
    hf.ready("work", "--contained")
    hf.quick("rehome", "work", "on")
    hf.ok("fork", "work")
    assert not hf.get("work-1").get("lease")
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("up", "--detach")
    assert hf.get("work")["lease"]["rehomable"]
    assert not hf.get("work-1").get("lease")
    assert hf.ok("run", "work-1", "--", "echo on").out == "on\n"


def test_a4_r2_a_halted_session_that_was_fenced_and_saved_comes_back_halted(
    hf: Installation, store: Path
) -> None:
    criu()
    counter = counting(hf, "work", "--contained")
    hf.quick("halt", "work")
    with locked(store):
        eventually(lambda: state(hf, "work") == "fenced", "the session is fenced")
        refused = hf.cli("fork", "work")
        assert refused.rc and "it is fenced" in refused.err
        hf.ok("checkpoint", "work", "--stop")
    assert [one["event"] for one in hf.ask("events", session="work")["events"]].count(
        "session.checkpointed"
    )
    hf.ok("restore", "work")
    assert state(hf, "work") == "halted" and counter.stands()
    hf.quick("resume", "work")
    eventually(counter.goes_on, "the program goes on")
