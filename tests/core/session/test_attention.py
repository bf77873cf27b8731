"""The measured table, row by row, and that the rule answers every combination of facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session.attention import (
    Attention,
    AttentionKind,
    TaskFact,
    TerminalFacts,
    TtyWait,
    classify,
)

SHELL = 100
PROGRAM = 200

COOKED = {"icanon": True, "echo": True}
NO_ECHO = {"icanon": True, "echo": False}
RAW = {"icanon": False, "echo": False}


def seen(
    mode: dict[str, bool],
    fg: int | None,
    *tasks: TaskFact,
    prompt: bool | None = None,
    shell: int | None = SHELL,
) -> Attention:
    return classify(
        TerminalFacts(
            icanon=mode["icanon"],
            echo=mode["echo"],
            fg_pgrp=fg,
            shell_pgrp=shell,
            shell_at_prompt=prompt,
            fg_tasks=tasks,
        )
    )


def bash(wait: TtyWait) -> TaskFact:
    return TaskFact(SHELL, "bash", wait)


def program(wait: TtyWait, name: str = "python3", pid: int = PROGRAM) -> TaskFact:
    return TaskFact(pid, name, wait)


MEASURED: list[tuple[str, Attention, AttentionKind]] = [
    ("bash at its prompt, unmarked", seen(RAW, SHELL, bash(TtyWait.POLL)), AttentionKind.IDLE),
    (
        "bash at its prompt, marked",
        seen(RAW, SHELL, bash(TtyWait.POLL), prompt=True),
        AttentionKind.IDLE,
    ),
    ("zsh at its prompt reads", seen(RAW, SHELL, bash(TtyWait.READ)), AttentionKind.IDLE),
    (
        "dash at its marked prompt",
        seen(COOKED, SHELL, bash(TtyWait.READ), prompt=True),
        AttentionKind.IDLE,
    ),
    ("cat, input()", seen(COOKED, PROGRAM, program(TtyWait.READ)), AttentionKind.INPUT),
    ("getpass", seen(NO_ECHO, PROGRAM, program(TtyWait.READ)), AttentionKind.SECRET),
    ("sudo, closed to us", seen(NO_ECHO, PROGRAM, program(TtyWait.UNKNOWN)), AttentionKind.SECRET),
    ("read -s", seen(NO_ECHO, SHELL, bash(TtyWait.READ), prompt=False), AttentionKind.SECRET),
    (
        "read -s, late mark",
        seen(NO_ECHO, SHELL, bash(TtyWait.READ), prompt=True),
        AttentionKind.SECRET,
    ),
    ("vim, REPL", seen(RAW, PROGRAM, program(TtyWait.POLL)), AttentionKind.INPUT),
    ("less", seen(RAW, PROGRAM, program(TtyWait.READ)), AttentionKind.INPUT),
    ("sleep", seen(COOKED, PROGRAM, program(TtyWait.NONE)), AttentionKind.WORKING),
    (
        "a loop in the shell",
        seen(COOKED, SHELL, bash(TtyWait.NONE), prompt=False),
        AttentionKind.WORKING,
    ),
    (
        "read x in the shell",
        seen(COOKED, SHELL, bash(TtyWait.READ), prompt=False),
        AttentionKind.INPUT,
    ),
]


@pytest.mark.parametrize(("row", "got", "want"), MEASURED, ids=[row for row, _, _ in MEASURED])
def test_s2_measured_row(row: str, got: Attention, want: AttentionKind) -> None:
    assert got.kind is want, f"{row}: {got}"


def test_the_reason_names_the_process() -> None:
    got = seen(COOKED, 12, program(TtyWait.READ, pid=12))
    assert got == Attention(AttentionKind.INPUT, "python3 (pid 12) reads the terminal", 12)


def test_a_pipeline_waits_when_one_of_it_does() -> None:
    got = seen(RAW, PROGRAM, program(TtyWait.NONE, "find"), program(TtyWait.READ, "less", 201))
    assert (got.kind, got.pid) == (AttentionKind.INPUT, 201)


def test_a_shell_without_job_control_shares_its_group() -> None:
    working = seen(COOKED, SHELL, bash(TtyWait.NONE), program(TtyWait.NONE))
    asking = seen(COOKED, SHELL, bash(TtyWait.NONE), program(TtyWait.READ, "cat"))
    assert (working.kind, asking.kind, asking.pid) == (
        AttentionKind.WORKING,
        AttentionKind.INPUT,
        PROGRAM,
    )


def test_an_unmarked_shell_reading_a_line_may_be_prompt_or_read() -> None:
    assert seen(COOKED, SHELL, bash(TtyWait.READ), prompt=None).kind is AttentionKind.INPUT


def test_the_kernel_outweighs_a_stale_prompt_mark() -> None:
    assert seen(COOKED, SHELL, bash(TtyWait.NONE), prompt=True).kind is AttentionKind.WORKING
    assert seen(COOKED, PROGRAM, program(TtyWait.NONE), prompt=True).kind is AttentionKind.WORKING


def test_a_mark_stands_where_the_shell_cannot_be_seen() -> None:
    assert seen(RAW, SHELL, bash(TtyWait.UNKNOWN), prompt=True).kind is AttentionKind.IDLE
    assert seen(RAW, SHELL, prompt=True).kind is AttentionKind.IDLE
    assert seen(RAW, SHELL, bash(TtyWait.UNKNOWN), prompt=None).kind is AttentionKind.UNKNOWN


def test_s2_a_state_that_cannot_be_seen_is_unknown() -> None:
    assert seen(COOKED, PROGRAM, program(TtyWait.UNKNOWN)).kind is AttentionKind.UNKNOWN
    half = seen(COOKED, PROGRAM, program(TtyWait.NONE), program(TtyWait.UNKNOWN, pid=201))
    assert half.kind is AttentionKind.UNKNOWN
    assert seen(COOKED, PROGRAM).kind is AttentionKind.UNKNOWN
    assert seen(COOKED, PROGRAM, program(TtyWait.GONE)).kind is AttentionKind.UNKNOWN
    assert seen(COOKED, PROGRAM, program(TtyWait.STOPPED)).kind is AttentionKind.UNKNOWN
    assert seen(COOKED, None).kind is AttentionKind.UNKNOWN
    assert (
        classify(TerminalFacts(None, None, PROGRAM, SHELL, True, (program(TtyWait.READ),))).kind
        is AttentionKind.UNKNOWN
    )


def test_a_poll_on_unseen_descriptors_counts_in_raw_mode_only() -> None:
    raw = seen(RAW, PROGRAM, program(TtyWait.POLL_ANY, "vim"))
    assert (raw.kind, raw.why) == (
        AttentionKind.INPUT,
        f"vim (pid {PROGRAM}) probably waits on the terminal",
    )
    assert seen(COOKED, PROGRAM, program(TtyWait.POLL_ANY)).kind is AttentionKind.UNKNOWN
    assert seen(RAW, SHELL, bash(TtyWait.POLL_ANY)).kind is AttentionKind.IDLE


def test_without_a_shell_in_charge_nothing_is_idle() -> None:
    got = seen(RAW, PROGRAM, program(TtyWait.POLL), shell=None)
    assert got.kind is AttentionKind.INPUT


pids = st.one_of(st.none(), st.sampled_from([-1, 0, 1, SHELL, PROGRAM, 201]), st.integers())
maybe = st.sampled_from([None, False, True])
tasks = st.builds(
    TaskFact,
    pid=st.sampled_from([SHELL, PROGRAM, 201, 202]),
    name=st.text(max_size=20),
    wait=st.sampled_from(TtyWait),
)
any_facts = st.builds(
    TerminalFacts,
    icanon=maybe,
    echo=maybe,
    fg_pgrp=pids,
    shell_pgrp=pids,
    shell_at_prompt=maybe,
    fg_tasks=st.lists(tasks, max_size=5).map(tuple),
)


@given(any_facts)
def test_the_rule_is_total_and_gives_a_reason(facts: TerminalFacts) -> None:
    got = classify(facts)
    assert got.kind in AttentionKind
    assert got.why
    assert got == classify(facts)


@given(any_facts)
def test_s2_secret_exactly_when_canonical_without_echo(facts: TerminalFacts) -> None:
    assert (classify(facts).kind is AttentionKind.SECRET) == (
        facts.icanon is True and facts.echo is False
    )


@given(any_facts)
def test_idle_needs_the_shell_in_the_foreground(facts: TerminalFacts) -> None:
    if classify(facts).kind is AttentionKind.IDLE:
        assert facts.fg_pgrp == facts.shell_pgrp
        assert facts.shell_at_prompt is not False


@given(any_facts)
def test_input_needs_a_task_that_waits(facts: TerminalFacts) -> None:
    got = classify(facts)
    if got.kind is AttentionKind.INPUT:
        assert any(
            task.pid == got.pid and task.wait in (TtyWait.READ, TtyWait.POLL, TtyWait.POLL_ANY)
            for task in facts.fg_tasks
        )


@given(any_facts)
def test_working_is_said_only_when_every_task_was_seen(facts: TerminalFacts) -> None:
    if classify(facts).kind is AttentionKind.WORKING:
        assert not any(
            task.wait in (TtyWait.UNKNOWN, TtyWait.READ, TtyWait.POLL) for task in facts.fg_tasks
        )


def test_a_shell_with_a_second_thread_is_still_at_its_prompt() -> None:
    """A thread waits in poll, a second thread reads: the same process waits."""
    tasks = (TaskFact(100, "sh", TtyWait.POLL), TaskFact(100, "sh", TtyWait.READ))
    facts = TerminalFacts(
        icanon=False, echo=False, fg_pgrp=100, shell_pgrp=100, shell_at_prompt=None, fg_tasks=tasks
    )
    assert classify(facts).kind is AttentionKind.IDLE
