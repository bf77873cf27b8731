"""The act behind each process, from orders and forks alone, in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.originators.lineage import LINES_KEPT, OTHERS_MAX, SHELL, UNKNOWN, Cause, Lineage

ROOT = 100
NEW = Cause("ann", None)


def never(pid: int) -> bool:
    return False


def at_prompt() -> Lineage:
    lineage = Lineage(ROOT, NEW, shell=True)
    lineage.prompt()
    return lineage


def test_p5_processes_of_a_line_belong_to_its_author_also_after_a_double_fork() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"server &\r")
    lineage.begun()
    assert (
        lineage.forked(ROOT, 101, never)
        and lineage.forked(101, 102, never)
        and lineage.forked(102, 103, never)
    )
    lineage.exited(101)
    lineage.exited(102)
    lineage.prompt()
    assert lineage.of(103) == Cause("bob", 7) and lineage.parent_of(103) == 102


def test_p5_the_fork_may_be_told_before_the_mark() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"make\r")
    lineage.forked(ROOT, 101, never)
    lineage.begun()
    assert lineage.of(101) == Cause("bob", 7)


def test_p3_all_typists_of_a_line_are_named() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"rm -rf ")
    lineage.typed("bob", 2, b"build")
    lineage.typed("bob", 3, b"\r")
    assert lineage.begun() == Cause("bob", 3, ("ann",))


def test_a_line_that_was_given_up_leaves_no_name() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"rm -rf ")
    lineage.typed("ann", 2, b"\x03")
    lineage.prompt()
    lineage.typed("bob", 3, b"ls\r")
    assert lineage.begun() == Cause("bob", 3)


def test_an_empty_line_is_no_order() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"\r")
    lineage.forked(ROOT, 101, never)
    assert lineage.of(101) == SHELL


def test_processes_of_the_prompt_belong_to_no_act() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"ls\r")
    lineage.begun()
    lineage.prompt()
    lineage.forked(ROOT, 101, never)
    assert lineage.of(101) == SHELL


def test_lines_typed_ahead_begin_in_their_order() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"sleep 1\r")
    lineage.begun()
    lineage.typed("ann", 2, b"a\rb\r")
    lineage.typed("bob", 3, b"c\r")
    lineage.prompt()
    assert lineage.begun() == Cause(
        "ann", 2, ("bob",)
    )  # bob's line may be meant too: the input of the first program is unknown
    lineage.prompt()
    assert lineage.begun() == Cause("ann", 2, ("bob",))
    lineage.prompt()
    assert lineage.begun() == Cause("bob", 3)


def test_a_line_typed_ahead_that_the_program_read_is_not_the_next_command() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"cat\r")
    lineage.begun()
    lineage.typed("ann", 2, b"for cat\r")
    lineage.prompt()
    lineage.typed("bob", 3, b"ls\r")
    assert lineage.begun() == Cause("bob", 3, ("ann",))


def test_a_process_that_began_between_two_lines_names_both_until_the_marks_are_there() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"make\r")
    lineage.begun()
    lineage.typed("bob", 2, b"deploy\r")
    lineage.forked(ROOT, 101, never)
    assert lineage.doubtful and lineage.of(101) == Cause("ann", 1)
    lineage.prompt()
    lineage.begun()
    assert lineage.of(101) == Cause("bob", 2, ("ann",)) and not lineage.doubtful
    lineage.typed("bob", 3, b"x\r")
    lineage.forked(ROOT, 102, never)
    lineage.certain(lineage.doubtful)
    lineage.prompt()
    lineage.begun()
    assert lineage.of(102) == Cause("bob", 2)


def test_p3_a_nested_shell_takes_orders_and_its_starter_is_named() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"bash\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.typed("bob", 2, b"ls\r")
    lineage.forked(101, 102, lambda pid: pid == 101)
    assert lineage.of(102) == Cause("bob", 2, ("ann",))
    lineage.forked(102, 103, never)
    assert lineage.of(103) == Cause("bob", 2, ("ann",))


def test_p3_every_typist_since_the_order_has_a_part_in_what_a_nested_shell_starts() -> None:
    """The nested shell may still work on bob's line when ann presses a key."""
    lineage = at_prompt()
    lineage.typed("eve", 1, b"ls\r")
    lineage.begun()
    lineage.prompt()
    lineage.typed("ann", 2, b"bash\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.typed("bob", 3, b"sleep 4; ./x\r")
    lineage.typed("ann", 4, b"\x1b[A")
    again = Lineage(ROOT, NEW, shell=True)
    lineage.started({101: 7})
    again.restore(lineage.save())
    for one in (lineage, again):
        one.forked(101, 102, lambda pid: pid == 101)
        assert one.of(102) == Cause("ann", 4, ("bob",))
    lineage.forked(102, 103, lambda pid: pid == 102)
    assert lineage.of(103) == Cause("ann", 4, ("bob",))


def test_p3_input_before_the_nested_shell_starts_may_be_meant_for_it() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"sleep 1; bash\r")
    lineage.begun()
    lineage.typed("bob", 2, b"./x\r")
    lineage.forked(ROOT, 101, never)
    lineage.typed("ann", 3, b"ls\r")
    lineage.forked(101, 102, lambda pid: pid == 101)
    assert lineage.of(102) == Cause("ann", 3, ("bob",))


def test_p3_a_program_of_the_line_may_read_what_another_operator_types() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"read x; rm $x\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    assert lineage.behind(101, never) == Cause("ann", 1)
    lineage.typed("bob", 2, b"precious\r")
    assert lineage.behind(101, never) == Cause("ann", 1, ("bob",))
    lineage.prompt()
    assert lineage.behind(101, never) == Cause("ann", 1, ("bob",)), "it runs on in the background"
    lineage.typed("eve", 3, b"fg\r")
    lineage.begun()
    assert lineage.behind(101, never) == Cause("ann", 1, ("bob",))
    assert lineage.behind(101, lambda pid: True) == Cause("ann", 1, ("bob", "eve"))
    assert lineage.behind(102, never) == UNKNOWN


def test_p3_in_a_session_without_marks_every_typist_has_a_part() -> None:
    lineage = Lineage(ROOT, NEW, shell=False)
    lineage.typed("bob", 1, b"x\r")
    lineage.forked(ROOT, 101, never)
    assert lineage.behind(101, never) == Cause("ann", None, ("bob",))
    lineage.typists = None
    assert lineage.behind(101, never) == Cause("ann", None, ("unknown",))


def test_p3_too_many_names_include_an_unknown_one() -> None:
    lineage = at_prompt()
    for n in range(OTHERS_MAX + 3):
        lineage.typed(f"op{n}", n, b"x")
    lineage.typed("ann", 99, b"\r")
    cause = lineage.begun()
    assert len(cause.others) == OTHERS_MAX and UNKNOWN.actor in cause.others


def test_children_of_a_program_that_is_no_shell_have_its_cause() -> None:
    lineage = Lineage(ROOT, NEW, shell=False)
    lineage.typed("bob", 1, b"x\r")
    lineage.forked(ROOT, 101, never)
    assert lineage.of(101) == NEW
    lineage.found({ROOT: (5, 1), 101: (6, ROOT), 102: (7, 101), 103: (8, ROOT)})
    assert lineage.of(102) == lineage.of(103) == NEW


def test_s2_an_unseen_start_is_unknown_unless_its_parent_tells() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"server &\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.found({ROOT: (5, 1), 101: (6, ROOT), 102: (7, 101), 103: (8, ROOT), 104: (9, 1)})
    assert lineage.of(102) == Cause("bob", 7)
    assert lineage.of(103) == lineage.of(104) == lineage.of(4711) == UNKNOWN


def test_p5_processes_1_and_2_of_a_contained_session_are_known_but_not_adopted_ones() -> None:
    lineage = at_prompt()
    lineage.found({98: (4, 50), 99: (4, 98), ROOT: (5, 99), 101: (6, 99)})
    assert lineage.of(98) == lineage.of(99) == lineage.of(ROOT) and lineage.of(101) == UNKNOWN


def test_a_pid_that_is_used_again_is_another_process() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"a\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.found({ROOT: (5, 1), 101: (6, ROOT)})
    lineage.found({ROOT: (5, 1), 101: (60, ROOT)})
    assert lineage.of(101) == UNKNOWN


def test_s4_the_next_host_knows_the_lineage_of_the_last() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"x")
    lineage.typed("bob", 2, b"\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.forked(101, 102, never)
    lineage.started({101: 6})
    again = Lineage(ROOT, NEW, shell=True)
    again.restore(lineage.save())
    again.found({ROOT: (5, 1), 101: (6, ROOT), 102: (7, 101)})
    assert again.of(101) == again.of(102) == Cause("bob", 2, ("ann",))
    again.forked(ROOT, 103, never)
    assert again.of(103) == Cause("bob", 2, ("ann",))


# ------------------------------------------------------------ any history


@dataclass
class World:
    """A shell that reads lines; the lineage gets the same events, some of them late."""

    lineage: Lineage = field(default_factory=at_prompt)
    pid: int = ROOT
    act: int = 0
    truth: dict[int, tuple[str, int]] = field(default_factory=dict)

    def line(self, who: str, forks: int, early: bool) -> None:
        self.act += 1
        self.lineage.typed(who, self.act, b"command\r")
        for n in range(forks):
            self.pid += 1
            if n == 0 and not early:
                self.lineage.begun()
            self.lineage.forked(ROOT if n % 2 == 0 else self.pid - 1, self.pid, never)
            self.truth[self.pid] = who, self.act
        if early or not forks:
            self.lineage.begun()
        self.lineage.prompt()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("ann", "bob", "bot")), st.integers(0, 6), st.booleans()),
        max_size=30,
    )
)
def test_p5_when_lines_wait_for_their_prompt_every_process_has_its_very_act(
    lines: list[tuple[str, int, bool]],
) -> None:
    world = World()
    for line in lines:
        world.line(*line)
    for pid, (who, act) in world.truth.items():
        assert world.lineage.of(pid) == Cause(who, act)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("typed"), st.sampled_from(("ann", "bob")), st.binary(max_size=8)),
            st.tuples(st.just("begun")),
            st.tuples(st.just("prompt")),
            st.tuples(st.just("certain")),
            st.tuples(st.just("fork"), st.integers(0, 40)),
            st.tuples(st.just("exit"), st.integers(0, 40)),
            st.tuples(st.just("found"), st.integers(0, 40)),
        ),
        max_size=80,
    )
)
def test_any_order_of_events_names_only_typists_and_stays_bounded(
    events: list[tuple[object, ...]],
) -> None:
    lineage, act, seen = at_prompt(), 0, set[str]()
    for event in events:
        match event:
            case "typed", str(who), bytes(data):
                act += 1
                seen.add(who)
                lineage.typed(who, act, data)
            case ("begun",):
                lineage.begun()
            case ("prompt",):
                lineage.prompt()
            case ("certain",):
                lineage.certain(lineage.doubtful)
            case "fork", int(n):
                lineage.forked(ROOT + n // 2, ROOT + n, lambda pid: pid % 3 == 0)
            case "exit", int(n):
                lineage.exited(ROOT + n)
            case "found", int(n):
                lineage.found({ROOT: (1, 1), **{ROOT + i: (i, ROOT + i // 2) for i in range(1, n)}})
        for pid in lineage.members:
            cause = lineage.of(pid)
            assert {cause.actor, *cause.others} <= seen | {
                "ann",
                "shell",
                "unknown",
            } and cause.actor not in cause.others
            assert len(cause.others) <= OTHERS_MAX and (cause.act is None or cause.act <= act)
    assert ROOT in lineage.members
    again = Lineage(ROOT, NEW, shell=True)
    again.restore(lineage.save())
    assert len(lineage._ahead) <= LINES_KEPT


# ------------------------------------------------------------ attempts to shift the blame


def test_p3_a_quoted_interrupt_does_not_take_a_name_off_the_line() -> None:
    """^V^C quotes the character: the line and its typist stay until the shell gives up the line."""
    for data in (b"evil #\x16\x03", b"evil #\x16\x03\x15"):
        lineage = at_prompt()
        lineage.typed("ann", 1, data)
        lineage.typed("bob", 2, b"\r")
        assert lineage.begun() == Cause("bob", 2, ("ann",))


def test_p3_a_quoted_interrupt_that_was_typed_ahead_of_a_prompt_neither() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 1, b"make\r")
    lineage.typed(
        "ann", 2, b"evil #\x16\x03"
    )  # a mark may be on the way: the shell has left the prompt
    lineage.begun()
    lineage.typed("ann", 3, b"more #\x16\x03")
    lineage.prompt()
    lineage.typed("bob", 4, b"\r")
    assert lineage.begun() == Cause("bob", 4, ("ann",))


def test_an_interrupt_alone_is_no_word_on_a_line() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 1, b"server\r")
    lineage.begun()
    lineage.typed("ann", 2, b"\x03")
    lineage.prompt()
    lineage.typed("bob", 3, b"ls\r")
    assert lineage.begun() == Cause("bob", 3)


def test_p3_the_operator_that_completes_a_line_is_named() -> None:
    """An open quote, a loop, a paste: several lines are a single order."""
    for early in (False, True):
        lineage = at_prompt()
        lineage.typed("ann", 1, b"for i in 1; do\r")
        lineage.typed("bob", 2, b"evil; done\r")
        if early:
            lineage.forked(ROOT, 101, never)
        assert lineage.begun() == Cause("ann", 1, ("bob",))
        if not early:
            lineage.forked(ROOT, 101, never)
        assert lineage.of(101) == Cause("ann", 1, ("bob",))


def test_p3_the_operator_that_enters_a_line_by_another_key_is_named() -> None:
    """^O, or a bound key: no line was seen entered, so a line typed ahead may not be meant."""
    lineage = at_prompt()
    lineage.typed("bob", 1, b"cat\r")
    lineage.begun()
    lineage.typed("bob", 2, b"for cat\r")
    lineage.prompt()
    lineage.typed("ann", 3, b"evil\x0f")
    lineage.forked(ROOT, 101, never)
    assert lineage.begun() == Cause("bob", 2, ("ann",)) and lineage.of(101) == Cause(
        "bob", 2, ("ann",)
    )


def test_p3_an_entering_key_without_waiting_lines_leaves_the_actor_unknown() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"evil\x0f")
    lineage.forked(ROOT, 101, never)
    assert lineage.doubtful, "perhaps for that line already"
    assert lineage.begun() == UNKNOWN._replace(others=("ann",))
    assert set(lineage.of(101).others) == {"ann", "shell"} and lineage.of(101).actor == "unknown"
    lineage.prompt()
    lineage.typed("bob", 2, b"ls\r")
    assert lineage.begun() == Cause("bob", 2)


# ------------------------------------------------------------ looks that take time


def test_s2_starts_during_a_look_keep_their_act_and_exits_stay_gone() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"a\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.forked(ROOT, 102, never)
    before = frozenset(lineage.members)
    lineage.forked(ROOT, 103, never)
    lineage.exited(101)
    lineage.found({ROOT: (5, 1), 101: (6, ROOT)}, before)
    assert lineage.of(103) == Cause("bob", 7) and {*lineage.members} == {ROOT, 103}


def test_s2_a_look_that_was_cut_short_forgets_no_process() -> None:
    lineage = at_prompt()
    lineage.typed("bob", 7, b"a\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.found({ROOT: (5, 1)}, whole=False)
    assert lineage.of(101) == Cause("bob", 7)


def test_a_stored_lineage_counts_as_a_whole_or_not_at_all() -> None:
    lineage = at_prompt()
    saved = lineage.save() | {
        "members": [[101, 6, ROOT, "bob", 7, []], [102, float("inf"), ROOT, "bob", 7, []]]
    }
    with pytest.raises(OverflowError):
        lineage.restore(saved)
    assert {*lineage.members} == {ROOT}


# ------------------------------------------------------------ after the command


def test_p5_a_command_is_over_when_the_shell_has_gone_on() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 1, b"server &\r")
    ann, unknown = Cause("ann", 1), Cause("unknown", None)
    assert not lineage.over(ann), "its mark may be late: it may not even have begun"
    lineage.begun()
    assert not lineage.over(ann) and not lineage.over(unknown)
    lineage.finished(0)
    lineage.prompt()
    assert lineage.over(ann) and lineage.exits == {1: 0}
    lineage.typed("bob", 2, b"bash\r")
    lineage.begun()
    assert lineage.over(ann) and not lineage.over(Cause("bob", 2))
    assert not lineage.over(Cause("ann", 3)), "typed into the running program"


def test_s4_marks_that_are_read_again_change_nothing_that_was_known() -> None:
    def marks(lineage: Lineage, after: int = 0) -> None:
        for number, what in enumerate(
            (
                lineage.prompt,
                lineage.begun,
                lambda: lineage.finished(3),
                lineage.prompt,
                lineage.begun,
            ),
            1,
        ):
            if number > after:
                lineage.marked(number)
                what()

    first = Lineage(ROOT, Cause("ann", None), True)
    first.marked(1)
    first.prompt()
    first.typed("ann", 1, b"make\r")
    first.typed("ann", 2, b"cat\r")
    marks(first, 1)
    assert first.now == Cause("ann", 2) and first.exits == {1: 3}
    second = Lineage(ROOT, Cause("ann", None), True)
    second.restore(first.save())
    marks(second)
    assert second.already_known and second.now == Cause("ann", 2) and second.exits == {1: 3}
    second.marked(6)
    second.finished(4)
    second.prompt()
    assert not second.already_known and second.now is None and second.exits == {1: 3, 2: 4}
    assert second.save()["marks"] == 6


def test_exits_are_kept_of_the_newest_only() -> None:
    lineage = at_prompt()
    for act in range(1, 1000):
        lineage.typed("ann", act, b"x\r")
        lineage.begun()
        lineage.finished(act % 256)
        lineage.prompt()
    assert len(lineage.exits) < 300 and lineage.exits[999] == 999 % 256


# ------------------------------------------------------------ actions of a process besides forks


def test_p3_effects_of_the_shell_itself_belong_to_the_executed_line() -> None:
    lineage = at_prompt()
    assert lineage.doing(ROOT, None, never) == SHELL, "for its prompt"
    lineage.typed("bob", 7, b"echo x > f\r")
    assert lineage.doing(ROOT, None, never) == Cause("bob", 7), "its mark is on its way"
    lineage.begun()
    assert lineage.now == Cause("bob", 7) == lineage.doing(ROOT, None, never)
    lineage.typed("cat", 8, b"echo y > f\r")
    assert lineage.doing(ROOT, None, never) == Cause("bob", 7, ("cat",)), (
        "typed ahead: it may be that line already"
    )
    lineage.prompt()
    lineage.begun()
    assert lineage.doing(ROOT, None, never) == Cause("cat", 8)


def test_p3_an_exited_process_keeps_its_act_and_later_typists_are_named() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 7, b"cat > f\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    assert lineage.doing(101, None, never) == Cause("ann", 7)
    lineage.typed("bob", 8, b"text")
    assert lineage.doing(101, None, never) == Cause("ann", 7, ("bob",))
    was = lineage.member(101)
    assert (
        lineage.exited(101) == was
        and lineage.doing(101, was, never) == Cause("ann", 7, ("bob",))
        and lineage.doing(101, None, never) == UNKNOWN
    )
    lineage.prompt()
    lineage.typed("bob", 9, b"\r")
    assert lineage.doing(101, was, never) == Cause("ann", 7), "a background process gets no input"


def test_p3_an_editor_writes_in_the_name_of_the_typist_not_the_starter() -> None:
    lineage = at_prompt()
    lineage.typed("ann", 7, b"vim f\r")
    lineage.begun()
    lineage.forked(ROOT, 101, never)
    lineage.typed("bob", 8, b":w\r")
    assert lineage.doing(101, None, lambda pid: pid == 101) == Cause("bob", 8, ("ann",))


# ---------------------------------------------------------------- the end of the first program


def test_s7_the_operator_whose_order_ended_the_shell_is_named() -> None:
    one = Lineage(1, Cause("ann", None), True)
    one.prompt()
    one.typed("bob", 4, b"exit 3\r")
    assert one.ending() == Cause("bob", 4)  # before the mark too
    one.begun()
    assert one.ending() == Cause("bob", 4)


def test_s7_the_end_of_input_belongs_to_the_last_typist() -> None:
    one = Lineage(1, Cause("ann", None), True)
    one.prompt()
    assert one.ending() == UNKNOWN
    one.typed("bob", 4, b"\x04")
    assert one.ending() == Cause("bob", 4)


def test_s7_another_program_is_ended_by_its_maker_or_unknown() -> None:
    one = Lineage(1, Cause("ann", None), False)
    assert one.ending() == Cause("ann", None)
    one.typed("ann", 3, b"q")
    assert one.ending() == Cause("ann", None)
    one.typed("bob", 4, b"q")
    assert one.ending() == Cause("unknown", None, ("ann", "bob"))
