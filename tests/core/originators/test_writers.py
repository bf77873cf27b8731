"""The authors of files, against a reference with full memory (P3)."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.originators import writers
from holdfast.core.originators.activity import PAST_KEPT, RUNNING_MAX, SLACK_S, Activity
from holdfast.core.originators.lineage import SHELL, Cause
from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.core.originators.writers import (
    HANDS_MAX,
    OUTSIDE,
    SETTLED_AFTER_NS,
    Author,
    Entry,
    Stamp,
    Table,
    guessed,
    shaped,
)
from tests.support.examples import examples

ANN, BOB, CAT = (Author("s", Cause(name, n)) for n, name in enumerate(("ann", "bob", "cat"), 1))
KEYS = [bytes([n]) * 8 + b"key" for n in range(3)]
WHO = st.sampled_from([ANN, BOB, CAT, None])
KEY = st.sampled_from(KEYS)
NOW = 10**18
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wrote"), KEY, WHO),
        st.tuples(st.just("touched"), KEY, WHO),
        st.tuples(st.just("made"), KEY, WHO),
        st.tuples(st.just("all_told"), KEY, WHO),
        st.tuples(st.just("lost"), KEY, WHO),
        st.tuples(st.just("lost_on"), KEY, WHO),
        st.tuples(st.just("settle"), KEY, WHO),
        st.tuples(st.just("unseen"), KEY, WHO),
        st.tuples(st.just("restart"), KEY, WHO),
    ),
    max_size=40,
)


class File:
    """The true history of a file: every change with the time."""

    def __init__(self) -> None:
        self.time = 0  # change time
        self.content: Author | None = None
        self.since = 0  # the step of the last write of content
        self.hands: list[tuple[int, Author]] = []


@settings(max_examples=examples(400), deadline=None)
@given(STEPS)
def test_p3_no_wrong_author_is_named_alone(
    steps: list[tuple[str, bytes, Author | None]],
) -> None:
    """For any mix of reported, lost, settled and unseen writes, the named author is true."""
    table, files = Table(), {key: File() for key in KEYS}
    table.began(0)
    for clock, (what, key, who) in enumerate(steps, 1):
        file, before = files[key], len(table)
        if what in ("wrote", "made"):
            made = what == "made" and key in table._entries  # a link to an existing file
            file.time = clock
            if made:
                file.hands.append((clock, who or OUTSIDE))
            else:
                file.content, file.since, file.hands = who, clock, []
            getattr(table, what)(key, who)
        elif what == "touched":
            file.time = clock
            file.hands.append((clock, who or OUTSIDE))
            table.touched(key, who)
        elif what == "unseen":  # an unreported write, with a known loss
            file.time, file.content, file.since, file.hands = clock, who, clock, []
            table.lost()
        elif what == "settle":
            found = table.unsettled(10)
            for one, noted in found:
                table.settled(one, noted, Stamp(files[one].time, 0), NOW)
        elif what == "restart":
            rows = [*table.save()]
            table = Table()
            table.restore(rows, False)
        elif what == "lost_on":
            table.lost_on(key[:8])
        else:
            getattr(table, what)()
        assert len(table) <= max(before, len(KEYS))
    for key, file in files.items():
        entry = table.entry(key, Stamp(file.time, 0))
        if entry is None:
            continue  # unknown
        named = {one.actor for one in shaped(entry, "s", "f")}
        really = UNKNOWN if file.content is None else file.content.cause.actor
        assert really in named or UNKNOWN in named, (steps, named)
        if file.hands:
            assert {one.cause.actor for _, one in file.hands[-1:]} <= named


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(KEY, st.sampled_from([ANN, BOB, CAT]), st.booleans(), st.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_p3_without_losses_the_last_writer_comes_first_and_none_is_unknown(
    steps: list[tuple[bytes, Author, bool, bool]],
) -> None:
    table, last = Table(), dict[bytes, Author]()
    for key, who, writes, pause in steps:
        if writes or key not in last:
            table.wrote(key, who)
            last[key] = who
        else:
            table.touched(key, who)
        if pause:
            table.all_told()
            for one, noted in table.unsettled(2):
                table.settled(one, noted, Stamp(1, 1), NOW)
    for key, who in last.items():
        entry = table.entry(key, Stamp(9, 9))
        assert entry is not None
        first, *more = shaped(entry, "s", "f")
        assert first == Shaped("file", "f", who.cause.actor, who.cause.act) and UNKNOWN not in {
            one.actor for one in more
        }


def test_p3_the_last_writer_is_the_author_and_other_actors_follow() -> None:
    table = Table()
    table.wrote(KEYS[0], ANN)
    table.all_told()
    table.touched(KEYS[0], BOB)
    entry = table.entry(KEYS[0], Stamp(1, 1))
    assert entry is not None
    assert shaped(entry, "s", "/f") == (
        Shaped("file", "/f", "ann", 1),
        Shaped("file", "/f", "bob", 2),
    )
    assert shaped(entry, "other", "/f") == (
        Shaped("file", "/f", "ann"),
        Shaped("file", "/f", "bob"),
    )
    table.wrote(KEYS[0], CAT)
    entry = table.entry(KEYS[0], Stamp(1, 1))
    assert entry is not None and [one.actor for one in shaped(entry, "s", "/f")] == ["cat"]


def test_p3_writers_of_one_moment_are_all_named() -> None:
    """The kernel joins the unread events of a process, so the last of two writers is not known."""
    table = Table()
    table.wrote(KEYS[0], ANN)
    table.wrote(KEYS[0], BOB)
    entry = table.entry(KEYS[0], Stamp(1, 1))
    assert entry is not None and shaped(entry, "s", "/f") == (
        Shaped("file", "/f", "bob", 2),
        Shaped("file", "/f", "ann", 1, sure=False),
    )
    table.wrote(KEYS[1], None)
    table.wrote(KEYS[1], ANN)
    entry = table.entry(KEYS[1], Stamp(1, 1))
    assert entry is not None and [one.actor for one in shaped(entry, "s", "/f")] == ["ann", UNKNOWN]


def test_p3_an_older_file_has_its_mover_and_an_unknown_author() -> None:
    table = Table()
    table.touched(KEYS[0], ANN)
    entry = table.entry(KEYS[0], Stamp(1, 1))
    assert entry is not None and [one.actor for one in shaped(entry, "s", "/f")] == ["ann", UNKNOWN]
    for n in range(20):
        table.touched(KEYS[0], Author("s", Cause(f"op{n}", n)))
    entry = table.entry(KEYS[0], Stamp(1, 1))
    assert entry is not None and len(entry.hands) == HANDS_MAX and entry.hands[-1] == OUTSIDE


def test_p3_only_so_many_are_kept_and_the_oldest_are_unknown() -> None:
    table, most = Table(), writers.ENTRIES_MAX
    for n in range(most + 10):
        table.wrote(n.to_bytes(8, "big"), ANN)
    assert (
        len(table) == most
        and table.entry((9).to_bytes(8, "big"), Stamp(1, 1)) is None
        and table.entry((10).to_bytes(8, "big"), Stamp(1, 1)) is not None
    )
    assert len(table.unsettled(10**9)) == most


def test_p3_processes_of_no_session_are_remembered_no_longer_than_needed() -> None:
    table = Table()
    table.wrote(b"a", ANN)
    era = table.era
    for n in range(writers.ENTRIES_MAX + 10):
        table.wrote(n.to_bytes(8, "big"), None)
    assert (
        table.era == era + 1
        and len(table._outside) <= writers.ENTRIES_MAX
        and table.entry(b"a", Stamp(1, 1)) is None
    )


def test_a_change_time_is_settled_only_when_a_later_one_cannot_be_the_same() -> None:
    table = Table()
    table.wrote(KEYS[0], ANN)
    ((key, entry),) = table.unsettled(5)
    assert not table.settled(key, entry, Stamp(NOW, 1), NOW) and not table.settled(
        key, entry, Stamp(NOW + 1, 1), NOW
    ), "too new, or from the future"
    assert table.settled(key, entry, Stamp(NOW - SETTLED_AFTER_NS, 1), NOW) and not table.unsettled(
        5
    )
    table.lost()
    assert table.entry(key, Stamp(NOW - SETTLED_AFTER_NS, 1)) is not None
    assert (
        table.entry(key, Stamp(NOW - SETTLED_AFTER_NS, 2)) is None
        and table.entry(key, Stamp(NOW, 1)) is None
    )
    table.wrote(KEYS[1], ANN)
    ((key, entry),) = table.unsettled(5)
    assert (
        not table.settled(key, entry, None, NOW) and len(table) == 2 and not table.unsettled(5)
    ), "it is not asked for again"
    table.gone(key)
    assert len(table) == 1


def test_p3_a_clock_that_is_set_back_makes_files_of_the_machine_unknown() -> None:
    table = Table()
    table.began(1000.0)
    assert table.old(Stamp(int(999e9), 0)) and not table.old(Stamp(int(1001e9), 0))
    table.clock(2000.0, 10.0)
    table.clock(2005.0, 15.0)
    assert table.horizon == 1000.0
    table.clock(505.0, 20.0)  # back to 500 at the earliest 5 seconds ago
    assert table.horizon == 500.0 and not table.old(Stamp(int(600e9), 0))
    table.clock(5000.0, 25.0)
    assert table.horizon == 500.0 and Table().horizon == math.inf


def test_saved_writers_are_bounded_and_survive() -> None:
    table = Table()
    table.began(5.0)
    many = Author("s", Cause("dan", None, ("eve", "unknown")))
    for n in range(writers.SAVED_MAX + 5):
        table.wrote(n.to_bytes(8, "big"), many if n % 2 else ANN)
    for key, entry in table.unsettled(10**9):
        table.settled(key, entry, Stamp(7, 7), NOW)
    rows = [*table.save()]
    again = Table()
    again.restore(rows, True)
    assert len(again) == writers.SAVED_MAX and again.horizon == 5.0
    found = again.entry((writers.SAVED_MAX).to_bytes(8, "big"), Stamp(7, 7))
    assert (
        found is not None
        and found.content == ANN
        and again.entry((writers.SAVED_MAX).to_bytes(8, "big"), Stamp(8, 7)) is None
    )


def test_p3_a_file_that_the_host_provided_is_the_machines_until_it_changes() -> None:
    table, key, stamp = Table(), KEYS[0], Stamp(7, 7)
    table.wrote(key, None)  # the kernel reports the host's own write
    table.provided(key, stamp)
    for again in (table, _restored(table)):
        entry = again.entry(key, stamp)
        assert entry is not None and shaped(entry, "s", "f") == ()
        assert again.entry(key, Stamp(8, 7)) is None and again.entry(key, Stamp(7, 8)) is None
    table.touched(key, BOB)
    assert (moved := table.entry(key, stamp)) is not None
    assert [one.actor for one in shaped(moved, "s", "f")] == ["bob", UNKNOWN]
    table.all_told()
    table.wrote(key, ANN)
    assert (written := table.entry(key, Stamp(9, 9))) is not None
    assert [one.actor for one in shaped(written, "s", "f")] == ["ann"]


def _restored(table: Table) -> Table:
    again = Table()
    again.restore([*table.save()], True)
    return again


def test_p3_the_shell_itself_and_unknown_causes_give_an_unknown_author() -> None:
    for cause in (SHELL, Cause(UNKNOWN, None)):
        entry = Entry(Author("s", cause._replace(others=("ann",))), (), (), 1, 1)
        assert [(one.actor, one.sure) for one in shaped(entry, "s", "/f")] == [
            ("ann", False),
            (UNKNOWN, True),
        ]


def test_p3_the_only_running_act_is_named_but_not_as_sure() -> None:
    activity = Activity(0.0)
    activity.began(ANN, 10.0)
    activity.began(ANN, 11.0)
    activity.ended(ANN, 12.0)
    activity.began(BOB, 20.0)
    activity.ended(ANN, 21.0)
    activity.ended(BOB, 30.0)
    assert (
        activity.at(15.0) == (ANN,)
        and activity.at(20.2) == (ANN, BOB)
        and activity.at(25.0) == (BOB,)
        and activity.at(40.0) == ()
    )
    assert activity.at(0.1) is None, "before the first listener"
    assert guessed(activity.at(15.0), "s", "/f") == (Shaped("file", "/f", "ann", 1, sure=False),)
    for nobody in (activity.at(20.2), activity.at(40.0), None):
        assert guessed(nobody, "s", "/f") == (Shaped("file", "/f", UNKNOWN),)
    assert activity.at(10.0 - SLACK_S) == (ANN,)


def test_a_process_that_ran_long_ago_is_forgotten_and_then_unknown() -> None:
    activity = Activity(0.0)
    for n in range(PAST_KEPT + 1):
        activity.began(ANN, n)
        activity.ended(ANN, n + 0.1)
    assert activity.at(0.5) is None and activity.at(PAST_KEPT) == (ANN,)
    crowd = Activity(0.0)
    for n in range(RUNNING_MAX + 1):
        crowd.began(Author("s", Cause("x", n)), 1.0)
    assert crowd.at(100.0) is None


def test_p3_a_file_written_in_the_tick_of_the_first_session_is_not_the_machines() -> None:
    """The clock of change times has ticks: a change time may be slightly older than the change."""
    table = Table()
    table.began(1000.0)
    assert not table.old(Stamp(1000 * 10**9 - 4_000_000, 1)) and table.old(Stamp(999 * 10**9, 1))
