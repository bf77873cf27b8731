"""The effects of acts are exact within their bounds, and unknown beyond them (G2)."""

from __future__ import annotations

from holdfast.core.originators.act_effects import (
    ACTS_OPEN,
    FILES_KEPT,
    KINDS,
    NAME_CHARS,
    NAMES_MAX,
    Effects,
    EffectsOfActs,
)
from holdfast.core.record.record import ENTRY_BYTES
from holdfast.model import canonical


def opened(acts: EffectsOfActs, act: int) -> Effects:
    found = acts.of(act, "bot")
    assert found is not None
    return found


def test_g2_programs_files_and_ports_are_counted_once_each() -> None:
    acts = EffectsOfActs()
    one = opened(acts, 7)
    for program in ("/bin/sh", "/bin/ls", "/bin/sh"):
        one.executed(program)
    for key in (b"a", b"b", b"a"):
        acts.wrote(one, key)
    assert one.listens(["127.0.0.1:80"]) and not one.listens(["127.0.0.1:80"])
    acts.gone(b"b")
    assert one.show(["/a"], set()) == {
        "programs": {"count": 3, "names": ["/bin/sh", "/bin/ls"]},
        "files": {"count": 1, "names": ["/a"]},
        "ports": {"count": 1, "names": ["127.0.0.1:80"]},
        "unknown": [],
    }
    acts.ignore(b"a")
    acts.wrote(one, b"a")
    assert not one.files


def test_g2_files_beyond_the_bound_of_a_session_are_unknown_and_room_returns() -> None:
    acts = EffectsOfActs()
    one, other = opened(acts, 1), opened(acts, 2)
    for number in range(FILES_KEPT + 1):
        acts.wrote(one, b"%d" % number)
    acts.wrote(other, b"more")
    assert len(one.files) == FILES_KEPT and not other.files
    assert one.unknown == other.unknown == {"files"}
    acts.close(1)
    acts.wrote(other, b"more")
    assert [*other.files] == [b"more"]


def test_g2_an_act_of_an_earlier_host_or_a_dropped_one_is_not_all_known() -> None:
    acts = EffectsOfActs()
    acts.newest = 5
    assert opened(acts, 3).unknown == {*KINDS}
    assert not opened(acts, 6).unknown
    for act in range(7, 7 + ACTS_OPEN):
        opened(acts, act)
    assert len(acts) == ACTS_OPEN and acts.get(6) is None
    assert opened(acts, 6).unknown == {*KINDS}


def test_g2_a_closed_act_takes_no_later_report() -> None:
    acts = EffectsOfActs()
    opened(acts, 1)
    acts.close(1)
    assert acts.of(1, "bot") is None


def test_g2_an_act_in_several_pieces_is_awaited_once() -> None:
    acts = EffectsOfActs()
    acts.expect(1, None, "bot", False)
    acts.expect(2, 1, "bot", False)
    assert [one.awaited for _, one in acts] == [False, True]


def test_g2_the_longest_names_fit_into_an_entry() -> None:
    one = Effects("bot", (0, 0))
    longest = [f"{number:03}" + "\U0001f98a" * 4096 + "\x07\udcff" for number in range(100)]
    for name in longest:
        one.executed(name)
    shown = one.show(longest, {"files"})
    assert all(len(shown[kind]["names"]) == NAMES_MAX for kind in ("programs", "files"))
    assert all(len(name) == NAME_CHARS for name in shown["files"]["names"])
    assert len(canonical.encode(shown)) < ENTRY_BYTES * 3 // 4
