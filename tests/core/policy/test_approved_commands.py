"""How often and how long an approved text covers the programs that it starts (P4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.act_facts import facts_of
from holdfast.core.policy.approved_commands import (
    ANY_NUMBER,
    BACKGROUND_S,
    NOTHING,
    UNSTARTED_S,
    Cleared,
    Cover,
    Pattern,
    Phase,
    Use,
    patterns,
)
from holdfast.core.policy.conditions import Actor, Request
from holdfast.host.policy.shfmt import Parser

PARSER = Parser()
HERE = (1, 17)


def commands(text: str) -> tuple[Pattern, ...]:
    request = Request("run", Actor("bot"), content=text.encode(), cwd="/srv/app", home="/home/u")
    return patterns(facts_of(request, PARSER), "/srv/app", HERE)


def cover(text: str) -> Cover:
    return Cover(Cleared(frozenset(["asked"]), commands(text)), 100.0)


def use_of(one: Cover, name: str, gone: int = 0) -> Use:
    return next(Use(p, gone) for p in one.answer.commands if p.name == name)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("rm x", 1),
        ("rm x; rm x", 2),
        ("rm x && (rm x) | rm x", 3),
        ("echo $(rm x)", 1),
        ("if true; then rm x; fi", 1),
        ("case a in a) rm x;; esac", 1),
        ("rm x & wait", 1),
        ("for i in $(rm x); do :; done", 1),
        ("for i in a b; do rm x; done", ANY_NUMBER),
        ("for ((;;$(rm x))); do :; done", ANY_NUMBER),
        ("while rm x; do :; done", ANY_NUMBER),
        ("until true; do (rm x); done", ANY_NUMBER),
        ("rm x; while :; do rm x; done; rm x", ANY_NUMBER),
        ("f() { rm x; }; f; f", ANY_NUMBER),
        ("trap 'rm x' EXIT", ANY_NUMBER),
        ("watch 'rm x'", ANY_NUMBER),
        ("sh -c 'rm x'", 1),
        ("sh -c 'while :; do rm x; done'", ANY_NUMBER),
        ("sudo rm x", 1),
    ],
)
def test_a_command_counts_as_often_as_the_text_can_start_it(text: str, times: int) -> None:
    assert [one.times for one in commands(text) if one.name == "rm"] == [times]


@pytest.mark.parametrize("text", ["ls | xargs rm", "find . -exec rm {} +"])
def test_a_wrapper_that_repeats(text: str) -> None:
    assert [one.times for one in commands(text) if one.name == "rm"] == [ANY_NUMBER]


def test_p4_a_command_is_used_once() -> None:
    run = cover("rm x")
    run.begin()
    rm = use_of(run, "rm")
    assert run.use([rm], (7, 1)) and run.use([rm], (7, 1)), "an interrupted exec tries again"
    assert not run.use([rm], (8, 1)) and not run.use([rm], (7, 2)), "the pid was used again"
    assert rm in run.left((8, 1), False, 100.0).used
    assert rm not in run.left((7, 1), False, 100.0).used


def test_a_wrapper_and_its_command_are_used_apart() -> None:
    run = cover("setsid rm x")
    run.begin()
    assert run.use([use_of(run, "rm")], (7, 1)) and run.use([use_of(run, "rm", 1)], (8, 1))
    assert not run.use([use_of(run, "rm", 1)], (9, 1))


def test_a_command_of_a_loop_is_used_any_number_of_times() -> None:
    run = cover("for i in a b; do rm $i; done")
    run.begin()
    assert all(run.use([use_of(run, "rm")], (pid, 1)) for pid in range(100))


def test_p4_the_cover_of_a_run_ends_with_the_run_and_not_before() -> None:
    run = cover("rm x; while :; do rm y; done")
    assert run.left((7, 1), False, 100.0 + UNSTARTED_S).commands
    assert run.left((7, 1), False, 101.0 + UNSTARTED_S) == NOTHING
    run.begin()
    long = 100.0 + 1000 * UNSTARTED_S
    assert run.left((7, 1), False, long).commands and run.left((7, 1), True, long).below
    run.end(long)
    run.begin()
    assert run.phase is Phase.OVER, "it does not begin again"
    assert run.left((7, 1), False, long) == NOTHING == run.left((7, 1), True, long)


def test_what_began_in_time_goes_on_where_no_end_is_reported() -> None:
    nested = cover("make deploy")
    late = 101.0 + UNSTARTED_S
    assert nested.left((7, 1), True, late).below and not nested.left((7, 1), True, late).commands


def test_p4_a_command_in_the_background_may_start_a_moment_after_the_run() -> None:
    run = cover("rm x & while :; do rm y; done & rm z")
    run.begin()
    run.end(200.0)
    left = run.left((7, 1), True, 200.0 + BACKGROUND_S)
    assert [[word.text for word in one.words] for one in left.commands] == [["x"]]
    assert not left.below
    assert run.left((7, 1), True, 201.0 + BACKGROUND_S) == NOTHING


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=30))
def test_p4_never_more_processes_than_the_text_has_commands(asked: list[tuple[str, int]]) -> None:
    run = cover("a; b; b; for i in 1 2; do c; done")
    run.begin()
    users: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
    for name, pid in asked:
        one = use_of(run, name)
        free = one not in run.left((pid, 1), False, 100.0).used
        assert run.use([one], (pid, 1)) is free, "what is left is what can be used"
        if free:
            users[name].add(pid)
    assert len(users["a"]) <= 1 and len(users["b"]) <= 2
    assert users["c"] == {pid for name, pid in asked if name == "c"}
