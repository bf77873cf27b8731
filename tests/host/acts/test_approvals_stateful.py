"""Held acts under every order of requests, departures, decisions, changes, crashes and full disks.

The model is a ledger: an act may happen as often as enough other operators approved exactly this
act, and no approval is used twice. The store equals the memory. No request waits for a closed
question.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.policy.approvals import DOMAIN, Approver, commitment
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Decision, Verdict
from holdfast.host.acts.approvals import HeldActs
from holdfast.host.policy.gate import Gate
from holdfast.host.storage.store import Store
from holdfast.model import signing
from holdfast.model.errors import GateRefused, Held, NotFound, Unavailable
from tests.support.asker import Asker, Standing
from tests.support.examples import examples
from tests.support.installed_copy import Caller

BOTS = [Caller("bot", "agent"), Caller("cat", "agent")]
PEOPLE = [Caller("ann"), Caller("bea"), Caller("bot", "human")]
ROOM = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Rules:
    """A gate that decides at once: the first byte of an act is the number of needed approvals."""

    def __init__(self) -> None:
        self.version = "v1"

    async def judge(self, request: Request) -> Decision:
        needed = int(request.content[:1])
        return Decision(
            Verdict.ASK if needed else Verdict.ALLOW,
            f"r{needed}",
            "?",
            version=self.version,
            approvals=max(1, needed),
        )


class TornStore(Store):
    """A store with a disk that is full when the test says so."""

    full = False

    async def run(self, work: Any, patient: bool = False) -> Any:
        if self.full:
            await asyncio.sleep(0)
            raise Unavailable("full")
        return await super().run(work, patient)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.mkdtemp(dir=ROOM)
        self.gate = Rules()
        self.now = 1000.0
        self.state = b"0"
        self.dead: set[str] = set()
        self.tasks: list[tuple[bytes, str, asyncio.Task[Decision]]] = []
        self.completed: Counter[tuple[bytes, str]] = (
            Counter()
        )  # (act, operator): complete approvals
        self.happened: Counter[tuple[bytes, str]] = Counter()
        self.open()

    def open(self) -> None:
        async def go() -> None:
            self.store = TornStore(f"{self.directory}/state.db")
            self.held_acts = HeldActs(
                cast(Gate, self.gate), self.store, self.note, Standing(set()), lambda: self.now
            )
            self.store.start()
            self.held_acts.begin({"s": 1}, lambda key: key not in self.dead)

        self.loop.run_until_complete(go())

    def note(self, session: str, event: str, facts: dict[str, Any]) -> None:
        assert event.removeprefix("approval.") in (
            "asked",
            "given",
            "denied",
            "expired",
            "void",
            "used",
            "withdrawn",
        )
        if event == "approval.given" and len(facts["given"]) >= facts["needed"]:
            assert facts["operator"] not in facts["given"] and len(set(facts["given"])) == len(
                facts["given"]
            )

    async def rest(self) -> None:
        """Runs the loop until no task can go on."""
        for _ in range(4):
            await Store.run(self.store, lambda db: None)
            for _ in range(6):
                await asyncio.sleep(0)
        for content, who, task in [t for t in self.tasks if t[2].done()]:
            self.tasks.remove((content, who, task))
            if not task.cancelled() and task.exception() is None:
                self.happened[content, who] += content[:1] != b"0"
            elif not task.cancelled():
                assert isinstance(task.exception(), GateRefused | Held | Unavailable), (
                    task.exception()
                )

    def go(self, work: Any = None) -> Any:
        async def all_of_it() -> Any:
            result = await work if work is not None else None
            await self.rest()
            return result

        return self.loop.run_until_complete(all_of_it())

    @rule(
        bot=st.sampled_from(BOTS),
        content=st.sampled_from([b"0", b"1a", b"1b", b"2"]),
        wait=st.sampled_from([0.0, None, None]),
    )
    def ask(self, bot: Caller, content: bytes, wait: float | None) -> None:
        if bot.shown in self.dead:
            return  # the server has dropped those connections

        async def observe() -> Request:
            return Request(
                "run",
                Actor(bot.operator, bot.shown, bot.kind),
                "s",
                "s",
                1,
                content,
                "/",
                state=self.state,
            )

        self.tasks.append(
            (
                content,
                bot.operator,
                self.loop.create_task(self.held_acts.wait_until_allowed(Asker(bot, observe, wait))),
            )
        )
        self.go()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.tasks))[2].cancel()
        self.go()

    @precondition(lambda self: self.held_acts.approvals.open)
    @rule(
        data=st.data(),
        who=st.sampled_from(PEOPLE),
        answer=st.sampled_from(["approve", "approve", "approve", "deny"]),
        right=st.sampled_from([True, True, True, False]),
    )
    def decide(self, data: st.DataObject, who: Caller, answer: str, right: bool) -> None:
        if who.shown in self.dead:
            return
        pending = data.draw(st.sampled_from(list(self.held_acts.approvals.open.values())))
        signature = signing.sign(
            who.private, DOMAIN, pending.statement(who.shown, cast(Any, answer))
        )
        approver = Approver(
            who.operator, who.shown, who.kind, frozenset({"approve"} if right else ()), False, True
        )
        try:
            done = self.loop.run_until_complete(
                getattr(self.held_acts, answer)(
                    pending.id, pending.binding.digest(), signature, who.key, approver
                )
            )
        except (GateRefused, NotFound, Unavailable):
            done = None
        if done is not None and answer == "approve":
            assert right and who.operator != pending.binding.operator
            if done.state == "approved":
                content = next(c for c in (b"1a", b"1b", b"2") if _commits(pending, c))
                self.completed[content, pending.binding.operator] += 1
        self.go()

    @rule(seconds=st.sampled_from([1.0, 61.0, 119.0, 121.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.loop.run_until_complete(_now(self.held_acts._lapse))
        self.go()

    @rule(state=st.sampled_from([b"0", b"1"]))
    def the_session_changes(self, state: bytes) -> None:
        self.state = state

    @rule(version=st.sampled_from(["v1", "v2"]))
    def the_policy_changes(self, version: str) -> None:
        if version != self.gate.version:
            self.gate.version = version
            self.loop.run_until_complete(_now(lambda: self.held_acts.policy_changed(version)))
            self.go()

    @rule()
    def the_session_ends(self) -> None:
        self.loop.run_until_complete(_now(lambda: self.held_acts.session_changed("s", None)))
        self.go()

    @rule(who=st.sampled_from([*BOTS, *PEOPLE]))
    def revoke(self, who: Caller) -> None:
        self.dead.add(who.shown)
        if len(self.dead) > 2:
            self.dead.clear()
        self.loop.run_until_complete(
            _now(lambda: self.held_acts.keys_changed(lambda key: key not in self.dead))
        )
        self.go()

    @rule(full=st.booleans())
    def the_disk(self, full: bool) -> None:
        self.store.full = full

    @rule()
    def the_host_dies(self) -> None:
        for _, _, task in self.tasks:
            task.cancel()
        self.go()
        self.held_acts.close()
        self.store.close()
        self.open()

    @invariant()
    def no_act_happens_without_enough_approvals(self) -> None:
        for act, times in self.happened.items():
            assert times <= self.completed[act], (act, times, self.completed)

    @invariant()
    def store_and_memory_agree(self) -> None:
        rows = self.loop.run_until_complete(
            Store.run(
                self.store,
                lambda db: {row[0] for row in db.execute("SELECT id FROM approvals").fetchall()},
            )
        )
        assert rows == set(self.held_acts.approvals.open)

    @invariant()
    def only_open_questions_have_waiters(self) -> None:
        assert set(self.held_acts._waiters) <= {
            p.id for p in self.held_acts.approvals.open.values() if p.state == "waiting"
        }
        assert sum(map(len, self.held_acts._waiters.values())) == len(self.tasks)
        assert (self.held_acts._timer is None) == (
            not self.held_acts.approvals.open
        ) and not self.held_acts._unwritten

    def teardown(self) -> None:
        for _, _, task in self.tasks:
            task.cancel()
        self.go()
        self.held_acts.close()
        self.store.close()
        self.loop.close()
        shutil.rmtree(self.directory)


async def _now(work: Any) -> None:
    work()


def _commits(pending: Any, content: bytes) -> bool:
    return bool(pending.binding.content == commitment(content))


Machine.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDesk = Machine.TestCase
