"""The reaper never touches a session in use, warns first, and always says why (R8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.reaper import reaper as rules
from holdfast.core.reaper.reaper import (
    CHOICES,
    END,
    EVICT,
    NEVER,
    SETTLED_S,
    Cannot,
    Effect,
    End,
    Evict,
    Leave,
    Looked,
    Policy,
    Reaper,
    Resident,
    Used,
    Warn,
    Withdraw,
)

HOUR = 3600.0


def looked(reaper: Reaper, now: float, *sessions: Resident) -> list[Effect]:
    return reaper.handle(Looked(sessions), now)


def test_r8_an_idle_session_is_warned_and_then_evicted() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=300))
    assert looked(reaper, 0, Resident("a", 1000)) == []
    [warned] = looked(reaper, 1, Resident("a", HOUR - 300))
    assert warned == Warn("a", "idle for 55 min", 301)
    assert looked(reaper, 300, Resident("a", HOUR - 1)) == []
    assert looked(reaper, 301, Resident("a", HOUR)) == [Evict("a", "idle for 55 min")]
    assert looked(reaper, 302, Resident("a", HOUR)) == [], "it is evicted once"


def test_r8_activity_withdraws_the_warning() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=300))
    looked(reaper, 0, Resident("a", HOUR - 10))
    assert looked(reaper, 20, Resident("a", 0, busy="it prints output")) == [
        Withdraw("a", "it prints output")
    ]
    looked(reaper, 30, Resident("b", HOUR - 10))
    assert reaper.handle(Used("b", "a client is attached"), 31) == [
        Withdraw("b", "a client is attached")
    ]


def test_r8_what_cannot_be_saved_is_left_with_the_reason_or_ended_by_policy() -> None:
    left = Reaper(Policy(idle_s=HOUR, warn_s=0))
    idle = Resident("a", HOUR)
    assert looked(left, 0, idle) == [Warn("a", "idle for 1 h", 0), Evict("a", "idle for 1 h")]
    assert left.handle(Cannot("a", "io_uring", True), 1) == [Leave("a", "idle for 1 h", "io_uring")]
    assert looked(left, 10_000, idle) == [], "it stays until it was active again"
    assert left.left() == {"a": "io_uring"}
    ends = Reaper(Policy(idle_s=HOUR, warn_s=0, action=END))
    looked(ends, 0, idle)
    assert ends.handle(Cannot("a", "io_uring", True), 1) == [End("a", "idle for 1 h", "io_uring")]


def test_r8_a_failed_eviction_is_tried_again_later() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=0, action=END))
    idle = Resident("a", HOUR)
    looked(reaper, 0, idle)
    assert reaper.handle(Cannot("a", "the disk is full", False), 1) == [
        Leave("a", "idle for 1 h", "the disk is full")
    ]
    assert looked(reaper, 2, idle) == []
    assert Evict("a", "idle for 1 h") in looked(reaper, 2 + rules.AGAIN_S, idle)


def test_r8_a_session_that_waits_for_a_person_is_never_ended() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=0, action=END))
    editor = Resident("a", HOUR, person="vim waits for a person")
    assert Evict("a", "idle for 1 h") in looked(reaper, 0, editor)
    [left] = reaper.handle(Cannot("a", "io_uring", True), 1)
    assert left == Leave("a", "idle for 1 h", "io_uring; vim waits for a person")


def test_r8_a_session_that_is_known_to_be_unsavable_is_not_warned_in_vain() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=60))
    plain = Resident("a", HOUR, cannot="it is a plain session")
    assert looked(reaper, 0, plain) == [Leave("a", "idle for 1 h", "it is a plain session")]
    assert looked(reaper, 1, plain) == []
    busy = plain._replace(busy="it prints output", idle_s=0)
    assert looked(reaper, 2, busy) == looked(reaper, 3, plain) == [], "and is told of once"
    ends = Reaper(Policy(idle_s=HOUR, warn_s=60, action=END))
    assert looked(ends, 0, plain) == [Warn("a", "idle for 1 h", 60)]
    assert looked(ends, 60, plain) == [End("a", "idle for 1 h", "it is a plain session")]


def test_r8_too_many_sessions_the_longest_idle_leave_first() -> None:
    reaper = Reaper(Policy(sessions=2, warn_s=0))
    crowd = [Resident("a", 100), Resident("b", 300), Resident("c", 200), Resident("d", 10)]
    evicted = [one.session for one in looked(reaper, 0, *crowd) if isinstance(one, Evict)]
    assert evicted == ["b", "c"]


def test_r8_too_much_memory_makes_room_beside_sessions_that_must_stay() -> None:
    reaper = Reaper(Policy(memory=100, warn_s=0))
    crowd = [
        Resident("a", 900, memory=80, attached=True),
        Resident("b", 500, memory=30, cannot="plain"),
        Resident("c", 400, memory=30),
        Resident("d", 300, memory=30),
    ]
    evicted = [one.session for one in looked(reaper, 0, *crowd) if isinstance(one, Evict)]
    assert evicted == ["c", "d"]
    fresh = Resident("e", SETTLED_S - 1, memory=500)
    assert looked(Reaper(Policy(memory=100, warn_s=0)), 0, fresh) == []


def test_r8_a_late_answer_does_not_shorten_the_next_notice() -> None:
    reaper = Reaper(Policy(idle_s=HOUR, warn_s=300, action=END))
    looked(reaper, 0, Resident("a", HOUR))
    assert looked(reaper, 300, Resident("a", HOUR)) == [Evict("a", "idle for 1 h")]
    assert reaper.handle(Used("a", "a client attached"), 301)
    (warned,) = looked(reaper, HOUR, Resident("a", HOUR))
    assert isinstance(warned, Warn)
    assert reaper.handle(Cannot("a", "plain", True), HOUR + 1) == []
    assert looked(reaper, HOUR + 300, Resident("a", HOUR)) == [Evict("a", "idle for 1 h")]


RESIDENTS = st.builds(
    Resident,
    st.sampled_from("abcdef"),
    st.floats(0, 2 * HOUR),
    st.integers(0, 100),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("", "it prints output")),
    st.sampled_from(("", "vim waits for a person")),
    st.sampled_from(("", "", "plain")),
    st.sampled_from(CHOICES),
)
LOOKS = st.lists(
    st.tuples(
        st.floats(0, HOUR),
        st.lists(RESIDENTS, max_size=6, unique_by=lambda one: one.id),
        st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=3),
    ),
    max_size=8,
)
POLICIES = st.builds(
    Policy,
    st.sampled_from((0.0, 60.0, HOUR)),
    st.sampled_from((0, 150)),
    st.sampled_from((0, 2)),
    st.sampled_from((0.0, 300.0)),
    st.sampled_from((EVICT, END)),
)


@given(POLICIES, LOOKS)
def test_r8_rules_hold_for_every_history(
    policy: Policy, looks: list[tuple[float, list[Resident], list[tuple[str, bool]]]]
) -> None:
    reaper, now, warned = Reaper(policy), 0.0, dict[str, float]()
    for passed, sessions, failures in looks:
        now += passed
        known = {one.id: one for one in sessions}
        effects = reaper.handle(Looked(tuple(sessions)), now)
        for id, final in failures:
            effects += reaper.handle(Cannot(id, "no", final), now)
        for effect in effects:
            one = known[effect.session]
            if isinstance(effect, Warn):
                warned[one.id] = effect.at
                assert effect.at - now >= policy.notice_s - 1e-6
            if isinstance(effect, Warn | Evict | End | Leave):
                assert not one.safe, "a session in use was chosen"
                assert one.choice != NEVER and policy.on and effect.why
            if isinstance(effect, Evict | End):
                assert warned[one.id] <= now, "without the notice"
            if isinstance(effect, Evict):
                assert not one.cannot
            if isinstance(effect, End):
                assert not one.person and one.choice != EVICT and effect.cannot
                assert one.choice == END or policy.action == END
            if isinstance(effect, Leave):
                assert effect.cannot
