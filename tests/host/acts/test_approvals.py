"""Held acts with the real gate, parser and store.

Questions are durable, bound, decided by another operator, and used once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.core.policy.approvals import (
    ANSWER_WAIT_S,
    DENIED_S,
    DOMAIN,
    PENDING_PER_OPERATOR,
    USE_WAIT_S,
    Approver,
    Pending,
)
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Decision, Verdict
from holdfast.host.acts.approvals import HeldActs
from holdfast.host.policy.gate import Gate
from holdfast.host.policy.plugins import Plugin, Worker
from holdfast.host.policy.shfmt import Parser
from holdfast.host.runtime.connection import GAVE_UP
from holdfast.host.storage.store import Store
from holdfast.model import signing
from holdfast.model.errors import (
    GateRefused,
    Held,
    NotAllowed,
    NotFound,
    Refused,
    Unavailable,
    Usage,
)
from tests.support.asker import Asker, Standing
from tests.support.installed_copy import Caller, eventually

HERE = str(Path(__file__).parents[2] / "support")
BOT, ANN, BEA = Caller("bot", "agent"), Caller("ann"), Caller("bea")
ENDS = (
    'version = 1\nextends = "default"\n[[rule]]\nname = "two end it"\nverdict = "ask"\n'
    'because = "others work in it"\nby = ["human"]\napprovals = 2\n'
    'when = { act = ["end"], session = ["work"] }\n'
)
RM = Request(
    "run",
    Actor("bot", BOT.shown, "agent"),
    "s1",
    "work",
    1,
    b"rm -rf /logs",
    "/srv/app",
    "/srv/app",
    "/home/ann",
    state=b"1",
)


@dataclass
class Office:
    """Held acts with their events and a clock that the test sets."""

    path: Path
    policy: str | None = None
    plugins: tuple[Plugin, ...] = ()
    judge_s: float = 60.0
    answer_s: float = 20.0
    now: float = 1_000_000.0
    lost: set[str] = field(default_factory=set)  # keys without the right to approve
    told: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    async def __aenter__(self) -> Office:
        if self.policy is not None:
            (self.path / "policy.toml").write_text(self.policy)
        self.store = Store(str(self.path / "state.db"))
        self.gate = Gate(
            str(self.path / "policy.toml"),
            self.plugins,
            Parser(wait_s=30.0),
            self.judge_s,
            lambda plugin: Worker(plugin, self.answer_s, 60.0, paths=[HERE]),
            lambda version: self.held_acts.policy_changed(version),
        )
        self.held_acts = HeldActs(
            self.gate,
            self.store,
            lambda *event: self.told.append(event),
            Standing(self.lost),
            lambda: self.now,
        )
        self.store.start()
        self.held_acts.begin({"s1": 1}, lambda key: True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.held_acts.close()
        self.gate.close()
        self.store.close()

    def clear(
        self, request: Request | Callable[[], Request] = RM, caller: Caller = BOT, **how: Any
    ) -> Awaitable[Decision]:
        async def observe() -> Request:
            return request() if callable(request) else request

        return self.held_acts.wait_until_allowed(Asker(caller, observe, **how))

    async def ask(self, request: Request = RM, caller: Caller = BOT) -> str:
        """Asks and does not wait; gives the question's id."""
        with pytest.raises(Held) as held:
            await self.clear(request, caller, wait_s=0)
        return str(held.value.facts["id"])

    async def decide(self, answer: str, id: str, caller: Caller = ANN, **odd: Any) -> Pending:
        pending = self.held_acts.approvals.open.get(id)
        signature = (
            signing.sign(caller.private, DOMAIN, pending.statement(caller.shown, cast(Any, answer)))
            if pending
            else bytes(64)
        )
        binding = pending.binding.digest() if pending else ""
        given = {
            "binding": binding,
            "signature": signature,
            "key": caller.key,
            "rights": frozenset({"approve"}),
            "readable": False,
            "plain": True,
            **odd,
        }
        who = Approver(
            caller.operator,
            caller.shown,
            caller.kind,
            given["rights"],
            given["readable"],
            given["plain"],
        )
        return cast(
            Pending,
            await getattr(self.held_acts, answer)(
                id, given["binding"], given["signature"], given["key"], who
            ),
        )

    async def withdraw(self, id: str, caller: Caller = BOT, **odd: Any) -> Pending:
        pending = self.held_acts.approvals.open[id]
        signature = signing.sign(
            caller.private, DOMAIN, pending.statement(caller.shown, "withdraw")
        )
        return await self.held_acts.withdraw(
            id,
            pending.binding.digest(),
            odd.get("signature", signature),
            caller.key,
            caller.operator,
        )

    def events(self) -> list[str]:
        return [name.removeprefix("approval.") for _, name, _ in self.told]

    def stored(self) -> Awaitable[list[Any]]:
        return self.store.run(
            lambda db: [
                row[0] for row in db.execute("SELECT id FROM approvals ORDER BY id").fetchall()
            ]
        )


def office(work: Callable[[Office], Awaitable[None]], tmp_path: Path, **how: Any) -> None:
    async def go() -> None:
        async with Office(tmp_path, **how) as made:
            await work(made)

    asyncio.run(go())


# ------------------------------------------------------------ the three verdicts


def test_p4_allowed_refused_and_asked(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        allowed = await o.clear(replace(RM, content=b"ls"))
        assert allowed.verdict is Verdict.ALLOW and allowed.approved == ()
        with pytest.raises(GateRefused) as refused:
            await o.clear(replace(RM, content=b"rm -rf /"))
        assert (
            refused.value.exit_code == 4
            and refused.value.facts["rule"] == "the system is not deleted"
            and "the system is not deleted" in refused.value.message
        )
        assert o.told == [] and await o.stored() == []
        shown: list[Pending] = []
        with pytest.raises(Held) as held:
            await o.clear(told=shown.append, wait_s=0)
        assert (
            held.value.exit_code == 4
            and held.value.retry_safe
            and [p.id for p in shown] == [held.value.facts["id"]] == await o.stored()
        )
        assert str(held.value.facts["id"]) in held.value.recover and o.events() == ["asked"]
        [(session, _, facts)] = o.told
        assert (
            session == "s1"
            and facts["operator"] == "bot"
            and facts["act"] == "run"
            and "/logs" not in str(facts)
        ), "the content is not told"

    office(work, tmp_path)


def test_p4_an_approval_lets_the_waiting_act_happen_once(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        waiting = asyncio.ensure_future(o.clear())
        await eventually(lambda: o.told, "the question")
        id = o.told[0][2]["id"]
        pending = await o.decide("approve", id)
        assert pending.state == "approved"
        decision = await waiting
        assert (
            decision.verdict is Verdict.ALLOW
            and decision.approved == ("ann",)
            and decision.rule == "deletes stay inside"
        )
        assert o.events() == ["asked", "given", "used"] and await o.stored() == []
        given = o.told[1][2]
        assert signing.verify(
            signing.read(given["key"]),
            DOMAIN,
            bytes.fromhex(given["statement"]),
            bytes.fromhex(given["signature"]),
        ), "the event proves itself"
        assert await o.ask() != id, "again is a new question"

    office(work, tmp_path)


def test_p4_the_asker_may_disconnect_and_return(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        waiting = asyncio.ensure_future(o.clear())
        await eventually(lambda: o.told, "the question")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        id = o.told[0][2]["id"]
        assert await o.ask() == id, "the same act joins its question"
        await o.decide("approve", id)
        assert (await o.clear()).approved == ("ann",)
        assert o.events() == ["asked", "given", "used"]

    office(work, tmp_path)


def test_p4_an_asker_that_gives_up_withdraws_unless_another_waits_for_the_same_act(
    tmp_path: Path,
) -> None:
    async def work(o: Office) -> None:
        first, second = asyncio.ensure_future(o.clear()), asyncio.ensure_future(o.clear())
        await eventually(
            lambda: o.told and len(next(iter(o.held_acts._waiters.values()), ())) == 2,
            "two waiters for one answer",
        )
        for waiting, events in ((first, ["asked"]), (second, ["asked", "withdrawn"])):
            waiting.cancel(GAVE_UP)
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert o.events() == events
        assert await o.stored() == [] and not o.held_acts.approvals.open
        again = asyncio.ensure_future(o.clear())
        again.cancel(GAVE_UP)  # before the question exists
        with pytest.raises(asyncio.CancelledError):
            await again
        id = await o.ask()
        with pytest.raises(GateRefused, match="no such question"):
            await o.withdraw(id, ANN)
        with pytest.raises(Usage):
            await o.withdraw(id, BOT, signature=bytes(64))
        await o.withdraw(id)
        assert o.events() == ["asked", "withdrawn"] * 2 and await o.stored() == []

    office(work, tmp_path)


def test_p4_one_approval_is_for_one_of_two_requests_at_once(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        both = [asyncio.ensure_future(o.clear()) for _ in range(2)]
        await eventually(
            lambda: o.told and len(next(iter(o.held_acts._waiters.values()), ())) == 2, "both wait"
        )
        assert o.events() == ["asked"]
        await o.decide("approve", o.told[0][2]["id"])
        done = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(d).__name__ for d in done) == ["Decision", "GateRefused"]

    office(work, tmp_path)


def test_p4_denied_expired_and_void_are_said(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        async def ends(how: str, end: Callable[[str], Any], words: str) -> None:
            before = len(o.told)
            waiting = asyncio.ensure_future(o.clear())
            await eventually(lambda: len(o.told) > before, "the question")
            if (result := end(o.told[-1][2]["id"])) is not None:
                await result
            with pytest.raises(GateRefused, match=words) as refused:
                await waiting
            assert (
                refused.value.facts["how"] == how
                and refused.value.recover
                and o.events()[before:] == ["asked", how]
            )

        def lapse(_: str) -> None:
            o.now += ANSWER_WAIT_S
            o.held_acts._lapse()

        def new_policy(_: str) -> None:
            (tmp_path / "policy.toml").unlink()
            assert o.gate.version

        await ends("denied", lambda id: o.decide("deny", id), "denied by ann")
        with pytest.raises(GateRefused, match="denied"):
            await o.clear()
        o.now += DENIED_S
        await ends("expired", lapse, "nobody decided in time")
        await ends("void", lambda _: o.held_acts.session_changed("s1", None), "the session ended")
        await ends("void", lambda _: o.held_acts.session_changed("s1", 2), "re-established")
        await ends(
            "void", lambda _: o.held_acts.keys_changed(lambda key: key != BOT.shown), "revoked"
        )
        o.policy = ENDS
        (tmp_path / "policy.toml").write_text(ENDS)
        await ends("void", new_policy, "the policy changed")
        assert await o.stored() == []

    office(work, tmp_path)


def test_s4_a_question_is_shown_only_after_it_is_durable(tmp_path: Path) -> None:
    """An approver that has seen a question finds it at the next host too."""
    busy, go = threading.Event(), threading.Event()

    def occupy(_: object) -> None:
        busy.set()
        assert go.wait(60)

    async def work(o: Office) -> None:
        other = asyncio.ensure_future(o.store.run(occupy))
        assert await asyncio.to_thread(busy.wait, 60), "the store is busy"
        asking = asyncio.ensure_future(o.clear())
        while not o.held_acts.approvals.open:
            await asyncio.sleep(0)
        [id] = o.held_acts.approvals.open
        assert [*o.held_acts.waiting()] == []
        with pytest.raises(NotFound):
            o.held_acts.find(id)
        go.set()
        await other
        while "asked" not in o.events():
            await asyncio.sleep(0)
        assert [one.id for one in o.held_acts.waiting()] == await o.stored() == [id]
        asking.cancel()

    try:
        office(work, tmp_path)
    finally:
        go.set()


def test_p4_the_question_lapses_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(o: Office) -> None:
        monkeypatch.setattr("holdfast.core.policy.approvals.ANSWER_WAIT_S", 0.05)
        with pytest.raises(GateRefused, match="nobody decided in time"):
            o.held_acts._clock = lambda: o.now + (1.0 if "asked" in o.events() else 0.0)
            await o.clear()
        assert (
            o.events() == ["asked", "expired"]
            and o.held_acts._timer is None
            and await o.stored() == []
        )

    office(work, tmp_path)


# ------------------------------------------------------------ the binding


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cwd": "/srv"}, "the directory"),
        ({"content": b"rm -rf /logs2"}, "the content"),
        ({"state": b"2"}, "the state"),
        ({"epoch": 2}, "epoch"),
    ],
)
def test_p4_an_approved_act_is_observed_again_before_it_happens(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async def work(o: Office) -> None:
        now = [RM]
        waiting = asyncio.ensure_future(o.clear(lambda: now[0]))
        await eventually(lambda: o.told, "the question")
        now[0] = replace(RM, **change)
        await o.decide("approve", o.told[0][2]["id"])
        with pytest.raises(GateRefused, match=words) as refused:
            await waiting
        assert (
            refused.value.facts["how"] == "void"
            and o.events() == ["asked", "given", "void"]
            and await o.stored() == []
        )

    office(work, tmp_path)


def test_p4_an_act_that_the_policy_sees_differently_by_then_does_not_happen(tmp_path: Path) -> None:
    """Text and directory are the same; a link in the text points elsewhere."""

    async def work(o: Office) -> None:
        link = tmp_path / "link"
        request = replace(RM, content=b"rm -rf link/x", cwd=str(tmp_path), project=str(tmp_path))
        link.symlink_to("/srv")
        await o.decide("approve", await o.ask(request))
        link.unlink()
        link.symlink_to("/opt")
        new = await o.ask(request)
        await o.decide("approve", new)
        assert (await o.clear(request)).approved == ("ann",)
        waiting = asyncio.ensure_future(o.clear(request))
        before = len(o.told)
        await eventually(lambda: len(o.told) > before, "the question")
        link.unlink()
        link.symlink_to("/srv/y")
        await o.decide("approve", o.told[-1][2]["id"])
        with pytest.raises(GateRefused, match="the state"):
            await waiting

    office(work, tmp_path)


def test_p4_an_act_must_come_from_its_own_actor(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        with pytest.raises(NotAllowed):
            await o.clear(RM, ANN)
        with pytest.raises(NotAllowed):
            await o.clear(replace(RM, actor=Actor("bot", ANN.shown, "agent")), BOT)

    office(work, tmp_path)


# ------------------------------------------------------------ approvers


def test_p4_a_decision_is_signed_by_its_approver_over_the_shown_act(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        id = await o.ask()
        pending = o.held_acts.find(id)
        for answer, other in (("approve", "deny"), ("deny", "approve")):
            for odd, error in cast(
                Any,
                (
                    ({"binding": "0" * 64}, Refused),
                    ({"signature": bytes(64)}, Usage),
                    ({"key": BEA.key}, Usage),
                    (
                        {
                            "signature": signing.sign(
                                BEA.private, DOMAIN, pending.statement(ANN.shown, cast(Any, answer))
                            )
                        },
                        Usage,
                    ),
                    (
                        {
                            "signature": signing.sign(
                                ANN.private, DOMAIN, pending.statement(ANN.shown, cast(Any, other))
                            )
                        },
                        Usage,
                    ),
                    (
                        {
                            "signature": signing.sign(
                                ANN.private,
                                "hello",
                                pending.statement(ANN.shown, cast(Any, answer)),
                            )
                        },
                        Usage,
                    ),
                ),
            ):
                with pytest.raises(error):
                    await o.decide(answer, id, **odd)
        for odd, words in cast(
            Any,
            (
                ({"rights": frozenset({"run"})}, "does not include `approve`"),
                ({"readable": True}, "could read"),
                ({"caller": Caller("cat", "agent")}, "only human"),
                ({"caller": replace_key("bot", ANN)}, "own"),
                ({"caller": replace_key("eve", BOT)}, "own"),
            ),
        ):
            with pytest.raises(Refused, match=words):
                await o.decide("approve", id, **odd)
        with pytest.raises(NotFound):
            await o.decide("approve", "q0")
        assert o.held_acts.find(id).given == () and o.events() == ["asked"]
        await o.decide("approve", id, readable=True, plain=False)
        assert (await o.clear()).approved == ("ann",)

    office(work, tmp_path)


def replace_key(name: str, of: Caller) -> Caller:
    return Caller(name, "human", of.private)


def test_p4_a_session_that_two_end_is_ended_by_two(tmp_path: Path) -> None:
    """A policy may require two operators for ending (issue: ending is gated)."""

    async def work(o: Office) -> None:
        end = Request("end", Actor("cat", (cat := Caller("cat")).shown, "human"), "s1", "work", 1)
        waiting = asyncio.ensure_future(o.clear(end, cat))
        await eventually(lambda: o.told, "the question")
        id = o.told[0][2]["id"]
        assert (await o.decide("approve", id)).state == "waiting" and not waiting.done()
        with pytest.raises(Refused, match="already"):
            await o.decide("approve", id)
        with pytest.raises(Refused, match="own"):
            await o.decide("approve", id, cat)
        assert [o.told[-1][1], o.told[-1][2]["given"], o.told[-1][2]["needed"]] == [
            "approval.given",
            ["ann"],
            2,
        ]
        await o.decide("approve", id, BEA)
        assert (await waiting).approved == ("ann", "bea")
        assert (await o.clear(replace(end, name="other"), cat)).verdict is Verdict.ALLOW, (
            "other sessions are ended by any operator with the right"
        )

    office(work, tmp_path, policy=ENDS)


def test_p4_an_approver_whose_key_is_revoked_has_not_approved(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        id = await o.ask()
        await o.decide("approve", id)
        o.held_acts.keys_changed(lambda key: key != ANN.shown)
        assert await o.ask() == id, "it waits again"
        await o.decide("approve", id, BEA)
        assert (await o.clear()).approved == ("bea",)

    office(work, tmp_path)


def test_p4_a_key_revoked_between_approval_and_use_has_not_approved(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        looked = []

        def observed() -> Request:
            looked.append(RM)
            if len(looked) == 2:
                o.held_acts.keys_changed(lambda key: key != ANN.shown)
            return RM

        waiting = asyncio.ensure_future(o.clear(observed))
        await eventually(lambda: o.told, "the question")
        await o.decide("approve", o.told[0][2]["id"])
        with pytest.raises(Held):
            await waiting
        assert (
            len(looked) == 2
            and o.held_acts.find(o.told[0][2]["id"]).given == ()
            and "used" not in o.events()
        )

    office(work, tmp_path)


def test_p4_an_approver_that_lost_the_right_has_not_approved(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        id = await o.ask()
        await o.decide("approve", id)
        o.lost.add(ANN.shown)
        assert await o.ask() == id and o.held_acts.find(id).given == (), (
            "it waits for another operator"
        )
        await o.decide("approve", id, BEA)
        assert (await o.clear()).approved == ("bea",)

    office(work, tmp_path)


# ------------------------------------------------------------ bounds, failures


def test_p4_a_loop_that_asks_does_not_bury_the_others(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        for n in range(PENDING_PER_OPERATOR):
            await o.ask(replace(RM, content=b"rm -rf /logs%d" % n))
        with pytest.raises(GateRefused, match="wait for approval already") as refused:
            await o.clear()
        assert refused.value.facts["how"] == "full"
        with pytest.raises(GateRefused, match="too large"):
            await o.clear(
                replace(
                    RM,
                    actor=Actor("cat", (cat := Caller("cat", "agent")).shown, "agent"),
                    content=b"rm -rf /logs # " + b"x" * 70_000,
                ),
                cat,
            )

    office(work, tmp_path)


@pytest.mark.parametrize("function", ["hang", "fail", "eat", "die", "huge", "unanswerable"])
def test_p4_a_policy_that_fails_refuses(function: str, tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        with pytest.raises(GateRefused) as refused:
            await o.clear(replace(RM, content=b"ls"))
        assert refused.value.facts["how"] == "refused" and o.told == []

    office(
        work,
        tmp_path,
        plugins=(Plugin("test", f"hostile_policies:{function}"),),
        answer_s=0.5 if function == "hang" else 20.0,
    )


def test_p4_a_gate_that_does_not_answer_refuses(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        with pytest.raises(GateRefused, match="did not decide"):
            await o.clear(replace(RM, content=b"ls"))

    office(
        work,
        tmp_path,
        plugins=(Plugin("test", "hostile_policies:hang"),),
        judge_s=0.3,
        answer_s=2.0,
    )


def test_a4_stopping_and_looking_never_wait(tmp_path: Path) -> None:
    async def work(o: Office) -> None:
        for act in ("seize", "halt", "observe"):
            assert (await o.clear(replace(RM, act=act))).verdict is Verdict.ALLOW

    office(work, tmp_path, policy="broken")


class Full(Exception):
    """The error of a full disk."""


def test_p4_an_act_that_cannot_be_stored_does_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(o: Office) -> None:
        run, post = o.store.run, o.store.post

        async def full(*_: object, **__: object) -> None:
            raise Unavailable("disk full")

        def broken(is_full: bool) -> None:
            monkeypatch.setattr(o.store, "run", full if is_full else run)

        broken(True)
        with pytest.raises(Unavailable):
            await o.clear()
        assert not o.held_acts.approvals.open
        broken(False)
        id = await o.ask()
        broken(True)
        with pytest.raises(Unavailable):
            await o.decide("approve", id)
        assert o.held_acts.find(id).state == "waiting" and o.held_acts.find(id).given == ()
        broken(False)
        await o.decide("approve", id)
        broken(True)
        with pytest.raises(Unavailable, match="not done"):
            await o.clear()
        broken(False)
        assert await o.stored() == [], "the approval is lost, not used later"
        id = await o.ask()
        broken(True)
        with pytest.raises(Unavailable, match="it is denied"):
            await o.decide("deny", id)
        with pytest.raises(GateRefused, match="denied"):
            await o.clear()
        broken(False)
        o.now += DENIED_S
        o.held_acts._lapse()
        assert await o.stored() == [] and post is not None

    office(work, tmp_path)


# ------------------------------------------------------------ over a restart


def test_p4_questions_and_approvals_outlive_the_host(tmp_path: Path) -> None:
    ids: list[str] = []

    async def before(o: Office) -> None:
        ids.append(await o.ask())
        ids.append(await o.ask(replace(RM, content=b"rm -rf /var/x")))
        await o.decide("approve", ids[1])

    async def after(o: Office) -> None:
        assert sorted(p.id for p in o.held_acts.waiting()) == sorted(ids)
        assert o.held_acts._timer is not None
        assert (await o.clear(replace(RM, content=b"rm -rf /var/x"))).approved == ("ann",)
        assert await o.ask() == ids[0]

    async def used(o: Office) -> None:
        assert [p.id for p in o.held_acts.waiting()] == ids[:1]
        assert await o.ask(replace(RM, content=b"rm -rf /var/x")) not in ids, (
            "used once, over restarts"
        )

    for work in (before, after, used):
        office(work, tmp_path)


@pytest.mark.parametrize(
    "what", ["ended", "another incarnation", "unreachable", "policy", "key", "time", "garbage"]
)
def test_p4_changes_while_there_was_no_host_count(what: str, tmp_path: Path) -> None:
    async def before(o: Office) -> None:
        await o.decide("approve", await o.ask())
        if what == "garbage":
            await o.store.run(lambda db: db.execute("UPDATE approvals SET body = '{}'"))

    async def after() -> None:
        o = Office(tmp_path, now=1_000_000.0 + (USE_WAIT_S if what == "time" else 0))
        begin = {"ended": {}, "another incarnation": {"s1": 2}, "unreachable": {"s1": None}}.get(
            what, {"s1": 1}
        )
        real, HeldActs.begin = (  # type: ignore[method-assign]
            HeldActs.begin,
            lambda held_acts, *_: real(
                held_acts, cast(Any, begin), lambda key: what != "key" or key != BOT.shown
            ),
        )
        try:
            async with o:
                left = [p.binding.session for p in o.held_acts.waiting()]
                assert left == (["s1"] if what == "unreachable" else [])
                assert (
                    o.events() == []
                    if what in ("garbage", "unreachable")
                    else o.events() in (["void"], ["expired"])
                )
        finally:
            HeldActs.begin = real  # type: ignore[method-assign]

    office(before, tmp_path)
    if what == "policy":
        (tmp_path / "policy.toml").write_text(ENDS)
    asyncio.run(after())
