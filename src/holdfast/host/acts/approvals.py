"""Held acts: acts that the policy asks about wait here for the decision of another operator.

    observe ── judge ──► allow: returns
                 ├──────► refuse: GateRefused
                 └──────► ask ── approved ── observe and judge again ── use ──► returns
                           ├── denied, lapsed, void: GateRefused
                           └── no answer in time: Held

`core/policy/approvals.py` decides; this module sequences, stores and announces. Its decisions:

- A question is durable before it is announced, an approval before it counts, and its use before the
  act. So a host that dies at any point neither forgets a question nor lets an approval be used
  twice. If the use cannot be written, the approval is lost and the act does not happen. A denial
  takes effect first and is written then, like a revocation.
- The caller says how long it waits (`wait_s`); the question stays until it lapses. The same act,
  asked again, joins the question, also on another connection or after a restart of the host, and
  uses the approval if there is one. So an agent need not keep a socket open for ten minutes. A
  caller that waits and gives up (Ctrl-C, a lost client) withdraws its question. A connection that
  the host closes does not.
- An approval holds for the act as it was judged. Before its use the act is observed and judged
  again. The approval is void if the directory, the shell, the policy or the target of a link in the
  text has changed, or if the policy now refuses the act or asks for another reason.
- An approver must still have the right when the act happens; otherwise the question stays open.
- A question about a program is void when its operator may not act in the session any more (revoked,
  or the grant has ended). No new question of that operator's programs is opened.
- Two simultaneous requests for the same act share one question and one approval; one of them
  happens.
- No wait here holds a resource of a session. Seize, halt and observation never wait here: no policy
  is asked about them.

Rights are not checked here, neither before nor after the wait: the door checks them again before
the act. Events (`approval.asked`, `given`, `denied`, `expired`, `void`, `withdrawn`, `used`) name
the operator, the kind of act and the reason, never the text. `given` has the approver's signature
and the signed statement.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, Protocol

from holdfast.core.policy.approvals import (
    DOMAIN,
    Answer,
    Approvals,
    Approved,
    Approver,
    Asked,
    Closed,
    Effect,
    Pending,
    Rejected,
    objection,
    restore,
    saved,
)
from holdfast.core.policy.conditions import Request
from holdfast.core.policy.policy import UNGATED, Decision, Verdict, explain
from holdfast.host.policy.gate import Gate
from holdfast.host.runtime.connection import GAVE_UP, Connection
from holdfast.host.runtime.notify import tell
from holdfast.host.storage.store import Job, Store, statement, together
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

ID_BYTES: Final = 5
Note = Callable[[str, str, dict[str, object]], None]  # session, event, facts
Observe = Callable[[], Awaitable[Request]]
Judge = Callable[[Request], Awaitable[Decision]]


class Standing(Protocol):
    """The rights of operators, now."""

    def approves(self, shown: str, session: str, now: float) -> bool:
        """Whether the key may approve on a session."""

    def ended(self, name: str, session: str, now: float) -> str:
        """Why an operator may not act in a session any more; "" if it may."""


class Asker(Protocol):
    """An act that the gate judges and that may have to wait."""

    @property
    def conn(self) -> Connection: ...

    @property
    def wait_s(self) -> float | None:
        """How long the caller waits for an approval; None: until the question is closed."""

    async def observe(self) -> Request:
        """The request for the policy, from the session as it is now."""

    def judged(self, decision: Decision) -> None:
        """Called with each decision of the gate."""

    def held(self, pending: Pending) -> None:
        """Called if the act has to wait."""


class HeldActs:
    def __init__(
        self,
        gate: Gate,
        store: Store,
        note: Note,
        standing: Standing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads the store in this thread: make it before the store's own thread starts."""
        self.gate, self._store, self._note, self._clock = gate, store, note, clock
        self._approves, self._ended = standing.approves, standing.ended
        self.approvals = _restore(store)
        self.on_change: list[Callable[[], None]] = []  # called when a question changes
        self._waiters: dict[str, set[asyncio.Future[Closed | None]]] = {}
        self._unwritten: Counter[str] = Counter()  # approvals that are not durable yet
        # Questions that are not durable yet. No approver sees them, because the host may still die.
        self._unwritten_questions: set[str] = set()
        self._kept = set(self.approvals.open)  # ids of the questions in the store
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ waiting

    async def wait_until_allowed(self, asker: Asker) -> Decision:
        """Judges an act and waits for an approval if needed; returns if the act may happen once."""
        request = await asker.observe()
        conn = asker.conn
        if request.actor.key != signing.show(conn.key) or request.actor.operator != conn.operator:
            raise NotAllowed("the act is not of the operator that sent it")
        decision = await self._judge(asker, request)
        if decision.verdict is Verdict.ALLOW or request.act in UNGATED:
            return decision
        if decision.verdict is not Verdict.ASK:
            raise _refused(decision)
        pending, waiter = await self._ask(_judged(request, decision), decision)
        if not waiter.done():
            asker.held(pending)
        await self._answered(pending, waiter, asker.wait_s)
        request = await asker.observe()
        return await self._use(pending, request, await self._judge(asker, request))

    async def hold(
        self, request: Request, decision: Decision, observe: Observe, judge: Judge
    ) -> Decision:
        """As `wait_until_allowed`, for an exec; a caller that gives up cancels with GAVE_UP."""
        self._may_go_on(request, decision)
        pending, waiter = await self._ask(_judged(request, decision), decision)
        await self._answered(pending, waiter, None)
        request = await observe()
        decision = await judge(request)
        self._may_go_on(request, decision)
        return await self._use(pending, request, decision)

    def _may_go_on(self, request: Request, decision: Decision) -> None:
        """Refuses the exec of an operator that may not act in the session any more."""
        self.void_ended()
        if why := self._ended(request.actor.operator, request.session, self._clock()):
            raise GateRefused(f"not done: {why}", how="ended", rule=decision.rule)

    async def _judge(self, asker: Asker, request: Request) -> Decision:
        decision = await self.gate.judge(request)
        asker.judged(decision)
        return decision

    async def _answered(
        self, pending: Pending, waiter: asyncio.Future[Closed | None], wait_s: float | None
    ) -> None:
        """Returns when the question is approved; raises otherwise, or when the time is over."""
        try:
            await asyncio.wait({waiter}, timeout=wait_s)
        except asyncio.CancelledError as e:
            self._leave(pending.id, waiter)
            self._gave_up(pending, e)
            raise
        finally:
            self._leave(pending.id, waiter)
        if not waiter.done():
            raise self._held(pending)
        closed = waiter.result()
        if closed is not None:
            raise _no(closed)

    async def _ask(
        self, request: Request, decision: Decision
    ) -> tuple[Pending, asyncio.Future[Closed | None]]:
        """Makes the question durable; gives the question and the future of the answer."""
        *others, last = self.approvals.ask(_new_id(), request, decision, self._clock())
        self._settle(others)
        if isinstance(last, Rejected):
            raise refusal(last, decision.rule)
        assert isinstance(last, Asked)
        pending = last.pending
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(pending.id, set()).add(waiter)
        if pending.state == "approved" and not self._unwritten[pending.id]:
            waiter.set_result(None)
        if last.new:
            self._unwritten_questions.add(pending.id)
            try:
                await self._store.run(self._rows([pending.id]))
            except Unavailable:
                self._leave(pending.id, waiter)
                if self.approvals.open.pop(pending.id, None) is not None:
                    self._settle([Closed(pending, "void", "it could not be written down")])
                raise
            except asyncio.CancelledError as e:  # the write of the question has begun
                self._leave(pending.id, waiter)
                self._settle([last])
                self._gave_up(pending, e)
                raise
            finally:
                self._unwritten_questions.discard(pending.id)
            self._settle([last])
        return pending, waiter

    def _gave_up(self, asked: Pending, left: asyncio.CancelledError) -> None:
        """Withdraws a question after its last caller gave up; an approved question stays."""
        pending = self.approvals.open.get(asked.id)
        if (
            left.args == (GAVE_UP,)
            and pending is not None
            and pending.state == "waiting"
            and asked.id not in self._waiters
        ):
            operator, why = asked.binding.operator, "whoever asked gave up"
            self._settle(self.approvals.withdraw(asked.id, operator, self._clock(), why))

    async def _use(self, asked: Pending, request: Request, decision: Decision) -> Decision:
        """Uses up the approval for the act as it was just judged."""
        if decision.verdict is Verdict.REFUSE:
            raise _refused(decision)
        pending = self.approvals.open.get(asked.id, asked)
        if decision.verdict is Verdict.ASK and (decision.rule, decision.by, decision.approvals) != (
            pending.rule,
            pending.by,
            pending.needed,
        ):
            raise GateRefused(
                f"not done: the policy asks about it for another reason now: {decision.because}",
                "do the same again: it is a new question",
                how="void",
                rule=decision.rule,
            )
        lost = [
            key
            for _, key in pending.given
            if not self._approves(key, pending.binding.session, self._clock())
        ]
        if lost and asked.id in self.approvals.open:
            for key in lost:
                self.approvals.retract(asked.id, key)
            self._store.post(self._rows([asked.id]))
            self._arm()
            raise self._held(self.approvals.open[asked.id])
        version = self.gate.version
        *others, last = self.approvals.use(
            asked.id, _judged(request, decision), version, self._clock()
        )
        self._settle(others)
        if isinstance(last, Rejected):
            raise self._held(pending) if last.code == "waiting" else refusal(last, decision.rule)
        assert isinstance(last, Closed)
        used = last.pending
        try:
            await self._store.run(self._rows([used.id]))
        except Unavailable as e:
            self._store.post(self._rows([used.id]))
            self._settle(
                [replace(last, how="void", why="that it is used could not be written down")]
            )
            raise Unavailable(
                f"not done: that the approval is used could not be written down: {e.message}",
                e.recover,
            ) from e
        self._settle([last])
        return replace(
            decision,
            verdict=Verdict.ALLOW,
            rule=used.rule,
            because=used.because,
            approved=tuple(name for name, _ in used.given),
        )

    def _held(self, pending: Pending) -> Held:
        return Held(
            f"waits for approval: {pending.because}",
            f"somebody else decides it: `holdfast approve {pending.id}`; then do the same again",
            id=pending.id,
            rule=pending.rule,
            expires_in=round(pending.expires - self._clock(), 1),
        )

    # ------------------------------------------------------------ deciding

    def find(self, id: str) -> Pending:
        _ = self.gate.version  # reading the version voids questions of an older policy
        self._settle(self.approvals.expire(self._clock()))
        self.void_ended()
        pending = self.approvals.open.get(id)
        if pending is None or pending.state == "denied" or id in self._unwritten_questions:
            raise NotFound(
                f"no question {id[:40]!a} waits", "`holdfast approvals` lists what waits"
            )
        return pending

    def waiting(self) -> Iterator[Pending]:
        _ = self.gate.version
        self._settle(self.approvals.expire(self._clock()))
        self.void_ended()
        return self._durable()

    def _durable(self) -> Iterator[Pending]:
        return (p for p in self.approvals.waiting() if p.id not in self._unwritten_questions)

    def greet(self, conn: Connection, session: str) -> None:
        """Tells a client that attaches which questions wait in the session."""
        for pending in self._durable():
            if pending.binding.session == session and pending.state == "waiting":
                conn.event(
                    "approval",
                    what="asked",
                    session=session,
                    **facts(pending),
                    **self.deciding_facts(conn, pending.id),
                )

    def deciding_facts(self, conn: Connection, id: str) -> dict[str, object]:
        """Whether a viewer may decide a question, or why not, for the event about it.

        Whether code could read the viewer's key is checked when the viewer decides.
        """
        pending = self.approvals.open.get(id)
        if pending is None or pending.state != "waiting":
            return {}
        key = signing.show(conn.key)
        rights = frozenset(
            {"approve"} if self._approves(key, pending.binding.session, self._clock()) else ()
        )
        why = objection(pending, Approver(conn.operator, key, conn.kind, rights, False, False))
        return {"decides": why is None, **({"why_not": why.why} if why is not None else {})}

    async def approve(
        self, id: str, binding: str, signature: bytes, key: bytes, approver: Approver
    ) -> Pending:
        """Returns when the approval is durable.

        The signature covers only the question as it was shown.
        """
        before = self.find(id)
        by = approver.operator
        signed = self._signed(before, binding, signature, key, by, approver.key, "approve")
        *others, last = self.approvals.approve(id, approver, self._clock())
        self._settle(others)
        if isinstance(last, Rejected):
            raise refusal(last, before.rule)
        assert isinstance(last, Approved)
        self._unwritten[id] += 1
        try:
            await self._store.run(self._rows([id]))
        except BaseException:
            if self.approvals.open.get(id) is last.pending:
                self.approvals.open[id] = before
            self._store.post(self._rows([id]))
            raise
        finally:
            self._unwritten[id] -= 1
            self._unwritten = +self._unwritten
        self._settle([last], **signed)
        return last.pending

    async def deny(
        self, id: str, binding: str, signature: bytes, key: bytes, approver: Approver
    ) -> Pending:
        """Takes effect at once and is written then."""
        pending = self.find(id)
        by = approver.operator
        signed = self._signed(pending, binding, signature, key, by, approver.key, "deny")
        effects = self.approvals.deny(id, approver, self._clock())
        return await self._close(pending, effects, "denied", signed)

    async def withdraw(
        self, id: str, binding: str, signature: bytes, key: bytes, operator: str
    ) -> Pending:
        """Withdraws a question of the caller's own; that needs no right."""
        pending = self.find(id)
        shown = signing.show(key)
        signed = self._signed(pending, binding, signature, key, operator, shown, "withdraw")
        effects = self.approvals.withdraw(id, operator, self._clock(), f"by {operator}")
        return await self._close(pending, effects, "withdrawn", signed)

    async def _close(
        self, pending: Pending, effects: list[Effect], how: str, signed: dict[str, str]
    ) -> Pending:
        *others, last = effects
        self._settle(others)
        if isinstance(last, Rejected):
            raise refusal(last, pending.rule)
        self._settle([last], **signed)
        try:
            await self._store.run(self._rows([pending.id]))
        except Unavailable as e:
            self._store.post(self._rows([pending.id]))
            raise Unavailable(
                f"it is {how}, but that could not be written down: {e.message}", e.recover
            ) from e
        return pending

    def _signed(
        self,
        pending: Pending,
        binding: str,
        signature: bytes,
        key: bytes,
        by: str,
        shown: str,
        answer: Answer,
    ) -> dict[str, str]:
        """Checks the signature over an answer; gives the facts about it for the event."""
        if binding != pending.binding.digest():
            raise Refused("it is not what you were shown", "look again: `holdfast approvals`")
        statement = pending.statement(shown, answer)
        if shown != signing.show(key) or not signing.verify(key, DOMAIN, statement, signature):
            raise Usage(
                "the answer is not signed with the key of whoever gives it",
                "this client may be of another release",
            )
        hexes = {"signature": signature.hex(), "statement": statement.hex()}
        return {"by": by, "key": shown, **hexes}

    # ------------------------------------------------------------ the world changes

    def begin(self, epochs: dict[str, int | None], known: Callable[[str], bool]) -> None:
        """After a start: drops questions of the last host that do not hold any more.

        `epochs` has every session that may run; None: its incarnation is not known yet.
        """
        self._settle(self.approvals.expire(self._clock()))
        for session in {p.binding.session for p in self.approvals.open.values()}:
            if session and (session not in epochs or epochs[session] is not None):
                self.session_changed(session, epochs.get(session))
        self.keys_changed(known)
        self.policy_changed(self.gate.version)

    def policy_changed(self, version: str) -> None:
        self._settle(self.approvals.policy_changed(version))

    def session_changed(self, session: str, epoch: int | None) -> None:
        self._settle(self.approvals.session_changed(session, epoch))

    def keys_changed(self, known: Callable[[str], bool]) -> None:
        """Voids the questions of keys that do not count any more, and approvals by such keys."""
        for key in {
            k
            for p in self.approvals.open.values()
            for k in (p.binding.key, *(k for _, k in p.given))
        }:
            if key and not known(key):
                before = dict(self.approvals.open)
                self._settle(self.approvals.revoked(key))
                now = self.approvals.open
                self._store.post(
                    self._rows([id for id, p in before.items() if now.get(id, p) is not p])
                )
        self.void_ended()
        self._arm()

    def void_ended(self) -> None:
        """Voids questions about programs of operators that may not act any more."""
        now = self._clock()
        self._settle(
            self.approvals.ended(lambda p: self._ended(p.binding.operator, p.binding.session, now))
        )

    def close(self) -> None:
        """Leaves every question open for the next host."""
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ telling and keeping

    def _settle(self, effects: Iterable[Effect], **more: object) -> None:
        """Sends the events, wakes waiting callers, sets the timer, and drops closed questions."""
        done = [e for e in effects if not isinstance(e, Rejected)]
        # Includes denied questions that are forgotten now.
        if gone := self._kept - self.approvals.open.keys():
            self._store.post(self._rows(gone))
        for effect in done:
            pending, outcome = effect.pending, None
            if isinstance(effect, Closed):
                self._tell(
                    effect.how, pending, **({"why": effect.why} if effect.why else {}), **more
                )
                outcome = effect
            elif isinstance(effect, Approved):
                self._tell("given", pending, **more)
            else:
                self._tell("asked", pending)
            if isinstance(effect, Closed) or (isinstance(effect, Approved) and effect.complete):
                for waiter in self._waiters.pop(pending.id, ()):
                    if not waiter.done():
                        waiter.set_result(outcome)
        self._arm()
        if done:
            tell(self.on_change)

    def _tell(self, what: str, pending: Pending, **more: object) -> None:
        self._note(pending.binding.session, f"approval.{what}", {**facts(pending), **more})

    def _arm(self) -> None:
        """Sets one timer for the next question that lapses."""
        if self._timer is not None:
            self._timer.cancel()
        at, self._timer = self.approvals.deadline(), None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(
                max(0.0, at - self._clock()), self._lapse
            )

    def _lapse(self) -> None:
        self._settle(self.approvals.expire(self._clock()))

    def _leave(self, id: str, waiter: asyncio.Future[Closed | None]) -> None:
        waiters = self._waiters.get(id)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[id]

    def _rows(self, ids: Iterable[str]) -> Job:
        """A job that brings the rows of these questions up to date."""
        rows = [
            (id, json.dumps(saved(p)) if (p := self.approvals.open.get(id)) is not None else None)
            for id in ids
        ]
        gone = [id for id, body in rows if body is None]
        self._kept = (self._kept | {id for id, _ in rows}) - {*gone}
        save = statement(
            "INSERT INTO approvals VALUES (?,?) ON CONFLICT(id) DO UPDATE SET body=excluded.body",
            *(row for row in rows if row[1] is not None),
        )
        drop = statement("DELETE FROM approvals WHERE id = ?", *((id,) for id in gone))
        return together(save, drop)


def facts(pending: Pending) -> dict[str, object]:
    """A question for all that may observe the session: never the text of the act."""
    b = pending.binding
    return {
        "id": pending.id,
        "operator": b.operator,
        "act": b.act,
        "rule": pending.rule,
        "because": pending.because,
        "needed": pending.needed,
        "given": [name for name, _ in pending.given],
        "expires": pending.expires,
    }


def _judged(request: Request, decision: Decision) -> Request:
    """The request with the resolved meaning of the text: the approval is bound to that too."""
    facts = (*request.state_facts, *((decision.seen_facts,) if decision.seen_facts else ()))
    return replace(
        request,
        state=request.state + decision.seen,
        state_facts=facts,
        shaped=decision.shaped or (),
    )


def _new_id() -> str:
    return "q" + secrets.token_hex(ID_BYTES)


def _restore(store: Store) -> Approvals:
    found = Approvals()
    for (body,) in store.rows("SELECT body FROM approvals"):
        try:
            found.open.update(restore([json.loads(str(body))]).open)
        except (ValueError, TypeError, KeyError):
            store.failures += 1
            store.last_failure = "a row of the approvals is unreadable"
    return found


def _refused(decision: Decision) -> GateRefused:
    recover = None
    if decision.because.startswith("the policy cannot be used"):
        recover = "`holdfast policy check` says what is wrong with it"
    return GateRefused(
        explain(decision), recover, how="refused", rule=decision.rule, because=decision.because
    )


def _no(closed: Closed) -> GateRefused:
    said = {
        "denied": f"denied {closed.why}",
        "expired": "nobody decided in time",
        "void": f"void: {closed.why}",
        "used": "the approval was used by another request for the same act",
        "withdrawn": "it was withdrawn",
    }[closed.how]
    recover = {"denied": "do something else, or ask whoever denied it"}.get(
        closed.how, "do the same again: it is a new question"
    )
    return GateRefused(
        f"not done: {said}", recover, how=closed.how, rule=closed.pending.rule, id=closed.pending.id
    )


def refusal(why: Rejected, rule: str) -> Refused:
    recover = {
        "denied": "do something else, or ask whoever denied it",
        "full": "wait until some of them are decided: `holdfast approvals`",
        "size": "put it into a file, have that looked at, and run the file",
        "changed": "do the same again: it is a new question",
        "expired": "do the same again: it is a new question",
        "not_found": "do the same again: it is a new question",
        "own": "somebody else has to decide it",
        "right": "an operator with `approve` on that session decides; "
        "`holdfast operator ls` lists the operators",
        "kind": "somebody of that kind has to decide it",
        "twice": "somebody else has to approve it, too"
        if "you have" in why.why
        else "it happens when it is asked for again",
    }.get(why.code, "")
    how = {"changed": "void"}.get(why.code, why.code)
    return GateRefused(f"not done: {why.why}", recover, how=how, rule=rule)
