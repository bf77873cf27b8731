"""Approvals: permission for a single act, once, by a second operator. Examples and a model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from holdfast.core.policy.approvals import (
    ANSWER_WAIT_S,
    DENIED_S,
    PENDING_MAX,
    PENDING_PER_OPERATOR,
    USE_WAIT_S,
    Approvals,
    Approved,
    Approver,
    Asked,
    Closed,
    Effect,
    Pending,
    Rejected,
    bind,
    commitment,
    restore,
)
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Decision, Verdict
from holdfast.model import canonical
from tests.support.examples import examples

ASK = Decision(Verdict.ASK, "r", "sure?", version="v1", by=("human",))
REQUEST = Request(
    "run", Actor("bot", "kb", "agent"), "s1", "work", 3, b"rm -rf x", "/p", state=b"st"
)
ANN = Approver("ann", "ka", "human", frozenset({"approve"}), key_readable=False, plain=True)


def last(effects: list[Effect]) -> Effect:
    return effects[-1]


def code(effects: list[Effect]) -> str:
    end = effects[-1]
    assert isinstance(end, Rejected), end
    assert end.why
    return end.code


def asked(
    approvals: Approvals,
    now: float = 0.0,
    id: str = "q1",
    request: Request = REQUEST,
    decision: Decision = ASK,
) -> Pending:
    end = last(approvals.ask(id, request, decision, now))
    assert isinstance(end, Asked)
    return end.pending


def test_p4_asked_approved_used_once() -> None:
    approvals = Approvals()
    pending = asked(approvals)
    assert pending.text == "rm -rf x" and pending.because == "sure?" and pending.state == "waiting"
    assert code(approvals.use("q1", REQUEST, "v1", 1)) == "waiting"
    assert last(approvals.approve("q1", ANN, 2)) == Approved(approvals.open["q1"], True)
    assert code(approvals.approve("q1", ANN, 2)) == "twice"
    used = last(approvals.use("q1", REQUEST, "v1", 3))
    assert (
        isinstance(used, Closed) and used.how == "used" and used.pending.given == (("ann", "ka"),)
    )
    assert code(approvals.use("q1", REQUEST, "v1", 3)) == "not_found", "single use"
    assert not approvals.open


def test_asking_again_is_the_same_question() -> None:
    approvals = Approvals()
    first = asked(approvals)
    assert approvals.ask("q2", REQUEST, ASK, 1) == [Asked(first, False)] and list(
        approvals.open
    ) == ["q1"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"content": b"rm -rf y"}, "content"),
        ({"content": b"rm -rf x "}, "content"),
        ({"cwd": "/"}, "directory"),
        ({"cwd": None}, "directory"),
        ({"epoch": 4}, "epoch"),
        ({"session": "s2"}, "session"),
        ({"act": "line"}, "act"),
        ({"state": b"other"}, "state"),
        ({"details": {"signal": "KILL"}}, "content"),
    ],
)
def test_p4_any_change_voids_an_approval(change: dict[str, Any], says: str) -> None:
    approvals = Approvals()
    asked(approvals)
    approvals.approve("q1", ANN, 1)
    effects = approvals.use("q1", replace(REQUEST, **change), "v1", 2)
    assert (
        code(effects) == "changed"
        and isinstance(effects[0], Closed)
        and effects[0].how == "void"
        and says in effects[0].why
    )
    assert code(approvals.use("q1", REQUEST, "v1", 2)) == "not_found", "void is for good"


def test_p4_another_policy_voids_an_approval() -> None:
    approvals = Approvals()
    asked(approvals)
    approvals.approve("q1", ANN, 1)
    assert code(approvals.use("q1", REQUEST, "v2", 2)) == "changed"
    asked(approvals, 3)
    assert [e.how for e in approvals.policy_changed("v2") if isinstance(e, Closed)] == ["void"]
    assert approvals.policy_changed("v2") == []


def test_another_operator_neither_uses_nor_spoils_an_approval() -> None:
    approvals = Approvals()
    asked(approvals)
    approvals.approve("q1", ANN, 1)
    for actor in (
        Actor("eve", "ke", "agent"),
        Actor("bot", "ke", "agent"),
        Actor("eve", "kb", "agent"),
    ):
        assert code(approvals.use("q1", replace(REQUEST, actor=actor), "v1", 1)) == "not_found"
    assert isinstance(last(approvals.use("q1", REQUEST, "v1", 1)), Closed)


@pytest.mark.parametrize(
    ("approver", "why"),
    [
        (replace(ANN, operator="bot"), "own"),
        (replace(ANN, key="kb"), "own"),
        (replace(ANN, rights=frozenset({"run", "halt"})), "right"),
        (replace(ANN, kind="agent"), "kind"),
        (replace(ANN, key_readable=True), "readable"),
    ],
)
def test_p4_approvers_that_do_not_count(approver: Approver, why: str) -> None:
    approvals = Approvals()
    asked(approvals)
    assert code(approvals.approve("q1", approver, 1)) == why
    assert approvals.open["q1"].state == "waiting" and approvals.open["q1"].given == ()


def test_p4_a_readable_key_counts_in_a_contained_session() -> None:
    approvals = Approvals()
    asked(approvals)
    assert isinstance(
        last(approvals.approve("q1", replace(ANN, key_readable=True, plain=False), 1)), Approved
    )


def test_s7_two_operators_if_the_rule_wants_two() -> None:
    approvals = Approvals()
    asked(approvals, decision=replace(ASK, approvals=2))
    assert last(approvals.approve("q1", ANN, 1)) == Approved(approvals.open["q1"], False)
    assert code(approvals.approve("q1", replace(ANN, key="other"), 1)) == "twice", (
        "one operator, another device"
    )
    assert code(approvals.approve("q1", replace(ANN, operator="amy"), 1)) == "twice", (
        "one key, another name"
    )
    assert code(approvals.use("q1", REQUEST, "v1", 1)) == "waiting"
    assert last(approvals.approve("q1", replace(ANN, operator="bea", key="kc"), 2)) == Approved(
        approvals.open["q1"], True
    )
    assert isinstance(last(approvals.use("q1", REQUEST, "v1", 3)), Closed)


def test_denied_stays_denied_for_a_while() -> None:
    approvals = Approvals()
    asked(approvals)
    assert code(approvals.deny("q1", replace(ANN, rights=frozenset()), 1)) == "right"
    assert code(approvals.deny("q1", replace(ANN, operator="bot"), 1)) == "own"
    closed = last(approvals.deny("q1", ANN, 1))
    assert isinstance(closed, Closed) and closed.how == "denied" and closed.why == "by ann"
    assert (
        code(approvals.use("q1", REQUEST, "v1", 2)) == "denied"
        and code(approvals.ask("q2", REQUEST, ASK, 2)) == "denied"
    )
    [again] = approvals.ask("q2", REQUEST, ASK, 2)
    assert isinstance(again, Rejected) and again.why == "it was denied by ann"
    assert code(approvals.approve("q1", ANN, 2)) == "not_found" and list(approvals.waiting()) == []
    assert asked(approvals, 1 + DENIED_S, "q3").id == "q3"


def test_questions_and_approvals_lapse() -> None:
    approvals = Approvals()
    asked(approvals)
    assert approvals.deadline() == ANSWER_WAIT_S
    assert code(approvals.approve("q1", ANN, ANSWER_WAIT_S)) == "not_found"
    asked(approvals, 0, "q2")
    approvals.approve("q2", ANN, 10)
    assert approvals.deadline() == 10 + USE_WAIT_S
    effects = approvals.use("q2", REQUEST, "v1", 10 + USE_WAIT_S)
    assert (
        code(effects) == "expired"
        and isinstance(effects[0], Closed)
        and effects[0].how == "expired"
    )


def test_the_world_changes() -> None:
    approvals = Approvals()
    asked(approvals)
    assert approvals.session_changed("s1", 3) == [] and approvals.session_changed("s2", None) == []
    assert len(approvals.session_changed("s1", 4)) == 1 and not approvals.open
    asked(approvals)
    assert len(approvals.session_changed("s1", None)) == 1
    asked(approvals)
    approvals.approve("q1", ANN, 1)
    assert (
        approvals.revoked("ka") == []
        and approvals.open["q1"].state == "waiting"
        and approvals.open["q1"].given == ()
    )
    assert code(approvals.use("q1", REQUEST, "v1", 2)) == "waiting", "an approval dies with its key"
    assert len(approvals.revoked("kb")) == 1 and not approvals.open


def test_withdrawing() -> None:
    approvals = Approvals()
    asked(approvals)
    assert code(approvals.withdraw("q1", "ann", 1)) == "not_found"
    closed = last(approvals.withdraw("q1", "bot", 1))
    assert isinstance(closed, Closed) and closed.how == "withdrawn" and not approvals.open


def test_questions_are_bounded() -> None:
    approvals = Approvals()
    for n in range(PENDING_PER_OPERATOR):
        asked(approvals, id=f"q{n}", request=replace(REQUEST, content=b"%d" % n))
    assert code(approvals.ask("more", replace(REQUEST, content=b"more"), ASK, 0)) == "full"
    approvals.deny("q0", ANN, 1)
    asked(approvals, 1, "again", replace(REQUEST, content=b"again"))
    for n in range(PENDING_MAX):
        approvals.ask(f"o{n}", replace(REQUEST, actor=Actor(f"bot{n}", f"k{n}", "agent")), ASK, 1)
    assert len(approvals.open) == PENDING_MAX
    assert (
        code(approvals.ask("x", replace(REQUEST, actor=Actor("z", "z", "agent")), ASK, 1)) == "full"
    )


def test_an_act_is_shown_escaped_and_whole_or_not_at_all() -> None:
    approvals = Approvals()
    assert (
        asked(
            approvals, request=replace(REQUEST, content="rm \u202ex\x1b[2J\n".encode() + b"\xff")
        ).text
        == "rm \\u{202e}x\\u{1b}[2J\\u{a}\\u{dcff}"
    )
    assert (
        asked(
            approvals,
            id="q2",
            request=replace(REQUEST, act="end", content=b"", details={"why": "x\n"}),
        ).text
        == "end why=x\\u{a}"
    )
    assert code(approvals.ask("q3", replace(REQUEST, content=b"x" * 100_000), ASK, 0)) == "size"


def test_the_signed_statement_names_every_fact() -> None:
    pending = asked(Approvals())
    body = canonical.decode(pending.statement("ka", "approve"))
    assert body == {
        "v": 1,
        "id": "q1",
        "binding": bind(REQUEST, "v1").digest(),
        "approver": "ka",
        "answer": "approve",
        "expires": int(ANSWER_WAIT_S),
    }
    others = {
        pending.statement("kc", "approve"),
        pending.statement("ka", "deny"),
        asked(Approvals(), id="q2").statement("ka", "approve"),
        asked(Approvals(), request=replace(REQUEST, cwd="/")).statement("ka", "approve"),
    }
    assert len(others) == 4 and pending.statement("ka", "approve") not in others


def test_a_commitment_is_of_exactly_these_bytes() -> None:
    assert (
        len(
            {
                commitment(b""),
                commitment(b"a"),
                commitment(b"a\n"),
                commitment(b"", {"a": "b"}),
                commitment(b"a", {"a": "b"}),
                commitment(b'{"a":"b"}'),
            }
        )
        == 6
    )


def test_saved_and_restored() -> None:
    approvals = Approvals()
    asked(approvals)
    approvals.approve("q1", ANN, 1)
    again = restore(json.loads(json.dumps(approvals.save())))
    assert again == approvals
    assert isinstance(last(again.use("q1", REQUEST, "v1", 2)), Closed)


# ---------------------------------------------------------------- every sequence

OPERATORS = {
    "bot": ("kb", "agent"),
    "cat": ("kc", "agent"),
    "ann": ("ka", "human"),
    "bea": ("ke", "human"),
}


class Machine(RuleBasedStateMachine):
    """Compare with a simple ledger of approvals: an act needs enough of them in the ledger."""

    questions: Bundle[str] = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        self.approvals = Approvals()
        self.now = 0.0
        self.policy = "v1"
        self.count = 0
        self.asked: dict[str, tuple[Request, str, int]] = {}
        self.given: dict[str, dict[str, float]] = {}  # question -> approver's key -> when
        self.dead: set[str] = set()

    @rule(seconds=st.sampled_from([0.0, 1.0, 50.0, 119.0, 130.0, 599.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        target=questions,
        operator=st.sampled_from(["bot", "cat", "ann"]),
        content=st.sampled_from([b"a", b"b"]),
        cwd=st.sampled_from(["/", "/p", None]),
        needed=st.integers(1, 2),
        session=st.sampled_from(["s1", "s2"]),
    )
    def ask(self, operator: str, content: bytes, cwd: str | None, needed: int, session: str) -> Any:
        self.count += 1
        key, kind = OPERATORS[operator]
        request = Request("run", Actor(operator, key, kind), session, "", 1, content, cwd)
        id = f"q{self.count}"
        end = last(
            self.approvals.ask(
                id,
                request,
                Decision(Verdict.ASK, "r", "?", version=self.policy, approvals=needed),
                self.now,
            )
        )
        if isinstance(end, Rejected):
            assert end.code in ("full", "denied")
            return multiple()
        assert isinstance(end, Asked)
        if end.new:
            assert end.pending.id == id
            self.asked[id] = (request, self.policy, needed)
            self.given[id] = {}
        return end.pending.id

    @rule(
        id=questions,
        operator=st.sampled_from(list(OPERATORS)),
        right=st.booleans(),
        readable=st.booleans(),
        plain=st.booleans(),
    )
    def approve(self, id: str, operator: str, right: bool, readable: bool, plain: bool) -> None:
        key, kind = OPERATORS[operator]
        end = last(
            self.approvals.approve(
                id,
                Approver(
                    operator,
                    key,
                    kind,
                    frozenset({"approve"} if right else {"run"}),
                    readable,
                    plain,
                ),
                self.now,
            )
        )
        if isinstance(end, Approved):
            request, _, _ = self.asked[id]
            assert (
                right
                and operator != request.actor.operator
                and not (plain and readable)
                and key not in self.given[id]
                and id not in self.dead
            )
            self.given[id][key] = self.now

    @rule(id=questions, operator=st.sampled_from(["ann", "bea", "bot"]))
    def deny(self, id: str, operator: str) -> None:
        key, kind = OPERATORS[operator]
        if isinstance(
            last(
                self.approvals.deny(
                    id,
                    Approver(operator, key, kind, frozenset({"approve"}), False, False),
                    self.now,
                )
            ),
            Closed,
        ):
            assert operator != self.asked[id][0].actor.operator
            self.dead.add(id)

    @rule(
        id=consumes(questions),
        change=st.sampled_from(
            ["nothing", "nothing", "nothing", "content", "cwd", "epoch", "operator"]
        ),
    )
    def use(self, id: str, change: str) -> None:
        request, policy, needed = self.asked[id]
        changed = {
            "content": {"content": request.content + b" "},
            "cwd": {"cwd": "/elsewhere"},
            "epoch": {"epoch": 2},
            "operator": {"actor": Actor("dan", "kd", "human")},
        }.get(change, {})
        end = last(self.approvals.use(id, replace(request, **changed), self.policy, self.now))  # type: ignore[arg-type]
        if isinstance(end, Closed):
            assert (
                end.how == "used"
                and change == "nothing"
                and policy == self.policy
                and id not in self.dead
            )
            assert (
                len(self.given[id]) >= needed
                and self.now - max(self.given[id].values()) < USE_WAIT_S
            )
            self.dead.add(id)
        elif change != "nothing" and change != "operator":
            self.dead.add(id)

    @rule(version=st.sampled_from(["v1", "v2"]))
    def policy_changes(self, version: str) -> None:
        self.policy = version
        self.approvals.policy_changed(version)
        self.dead |= {id for id, (_, v, _) in self.asked.items() if v != version}

    @rule(operator=st.sampled_from(list(OPERATORS)))
    def revoke(self, operator: str) -> None:
        key = OPERATORS[operator][0]
        self.approvals.revoked(key)
        for id, (request, _, _) in self.asked.items():
            self.given[id].pop(key, None)
            if request.actor.key == key:
                self.dead.add(id)

    @rule()
    def the_host_restarts(self) -> None:
        self.approvals = restore(json.loads(json.dumps(self.approvals.save())))

    @invariant()
    def bounds_hold_and_no_operator_approved_its_own_act(self) -> None:
        waiting = list(self.approvals.waiting())
        for operator in OPERATORS:
            assert sum(p.binding.operator == operator for p in waiting) <= PENDING_PER_OPERATOR
        for p in waiting:
            assert all(o != p.binding.operator and k != p.binding.key for o, k in p.given)
            assert (p.state == "approved") == (len(p.given) >= p.needed)
            assert len({o for o, _ in p.given}) == len(p.given)


Machine.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
TestApprovals = Machine.TestCase


def test_p4_a_denied_act_stays_denied_though_an_approver_is_revoked() -> None:
    desk = Approvals()
    desk.ask("q", REQUEST, ASK, 0.0)
    ann = Approver("ann", "ka", "human", frozenset(("approve",)), False, False)
    desk.approve("q", ann, 1.0)
    desk.deny("q", ann, 2.0)
    desk.revoked("ka")
    assert desk.open["q"].state == "denied"
