"""The desk: every act passes it; what the policy asks about waits here until somebody else decides.

    clear ── observe ── judge ──► allow: returns
                          ├─────► refuse: GateRefused
                          └─────► ask: a question ── approved ── observe and judge again ── use ──► returns
                                              └── denied, lapsed, void: GateRefused; nobody yet: Held

What decides is `core/gate.py`; this sequences it, writes it down and tells it. Decisions made here:

- A question is durable before anybody hears of it, an approval before it is acted upon, and its use before the act: a host that dies
  at any point neither forgets a question nor lets one approval be used twice. If the use cannot be written, the approval is lost and
  the act does not happen. A denial bites first and is written then, like a revocation.
- Who asked need not wait here: it says for how long it does (`wait_s`), and the question stays until it lapses. The same act asked again
  joins it, also on another connection or after a restart of the host, and uses the approval if it has come. So an agent need not hang on a
  socket for ten minutes. Who waits here and gives up (Ctrl-C, a client that is gone) withdraws its question: nobody is to decide about
  what nobody wants any more. A connection that the host ends is not that.
- What was approved is what was judged. At its use the act is observed and judged anew: another directory, shell or policy voids it, a
  link in its text that points elsewhere by now, and a policy that refuses it or asks for another reason.
- Whoever approved must still have the right to when the act happens; otherwise it waits for somebody else.
- Two requests for the same act at once are one question and one approval, and one of them happens.
- Nothing here waits with anything of a session in its hands. Seizing, halting and looking never wait here: no policy is asked about them.

Rights are not looked at here, neither before nor after the wait: the door asks the authority again when the act's turn comes.
Events (`approval.asked`, `given`, `denied`, `expired`, `void`, `withdrawn`, `used`) name who, what kind of act and why, never its text; `given` has the
approver's signature and what was signed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Final

import apsw

from holdfast.core.conditions import Request
from holdfast.core.gate import (
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
)
from holdfast.core.policy import UNGATED, Decision, Verdict, explain
from holdfast.host.connection import GAVE_UP, Connection
from holdfast.host.gate import Gate
from holdfast.host.store import Store
from holdfast.host.telling import tell
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
Note = Callable[[str, str, dict[str, Any]], None]  # session, event, facts
Approves = Callable[[str, str, float], bool]  # key, session, now
Observe = Callable[[], Awaitable[Request]]
Judge = Callable[[Request], Awaitable[Decision]]


class Desk:
    def __init__(
        self,
        gate: Gate,
        store: Store,
        note: Note,
        approves: Approves = lambda key, session, now: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Before the store's thread starts. `approves`: whether a key has the right to approve there and then."""
        self.gate, self._store, self._note, self._clock = gate, store, note, clock
        self._approves = approves
        self.approvals = _restore(store)
        self.on_change: list[Callable[[], None]] = []  # who shows what waits
        self._waiters: dict[str, set[asyncio.Future[Closed | None]]] = {}
        self._unwritten: Counter[str] = Counter()  # approvals that are not durable yet
        self._kept = set(self.approvals.open)  # what the store has
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ passing it

    async def clear(
        self,
        conn: Connection,
        observe: Observe,
        held: Callable[[Pending], None] | None = None,
        wait_s: float | None = None,
        judged: Callable[[Decision], None] = lambda decision: None,
    ) -> Decision:
        """Returns if the act may happen now, once. `held` is called if it has to wait, `wait_s` is how long it waits here (None: until
        the question is closed), `judged` is told each decision of the gate."""
        request = await observe()
        if request.actor.key != signing.show(conn.key) or request.actor.operator != conn.operator:
            raise NotAllowed("the act is not of whoever sent it")

        async def judge(asked: Request) -> Decision:
            decision = await self.gate.judge(asked)
            judged(decision)
            return decision

        decision = await judge(request)
        if decision.verdict is Verdict.ALLOW or request.act in UNGATED:
            return decision
        if decision.verdict is not Verdict.ASK:
            raise _refused(decision)
        return await self._answered(request, decision, observe, judge, held, wait_s)

    async def hold(
        self, request: Request, decision: Decision, observe: Observe, judge: Judge
    ) -> Decision:
        """The same for what nobody sent: an exec that the policy asks about. Whoever waits for it gives up by cancelling with GAVE_UP."""
        return await self._answered(request, decision, observe, judge, None, None)

    async def _answered(
        self,
        request: Request,
        decision: Decision,
        observe: Observe,
        judge: Judge,
        held: Callable[[Pending], None] | None,
        wait_s: float | None,
    ) -> Decision:
        pending, waiter = await self._ask(_judged(request, decision), decision)
        try:
            if not waiter.done() and held is not None:
                held(pending)
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
        return await self._use(pending, observe, judge)

    async def _ask(
        self, request: Request, decision: Decision
    ) -> tuple[Pending, asyncio.Future[Closed | None]]:
        """The question, durable, and what says how it went."""
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
            try:
                await self._store.write(self._rows([pending.id]))
            except Unavailable:
                self._leave(pending.id, waiter)
                if self.approvals.open.pop(pending.id, None) is not None:
                    self._settle([Closed(pending, "void", "it could not be written down")])
                raise
            except asyncio.CancelledError as e:  # the question is on its way to the store
                self._leave(pending.id, waiter)
                self._settle([last])
                self._gave_up(pending, e)
                raise
            self._settle([last])
        return pending, waiter

    def _gave_up(self, asked: Pending, left: asyncio.CancelledError) -> None:
        """Nobody waits for the answer any more, by their own choice: it is not a question any longer. What is approved already stays."""
        pending = self.approvals.open.get(asked.id)
        if (
            left.args == (GAVE_UP,)
            and pending is not None
            and pending.state == "waiting"
            and asked.id not in self._waiters
        ):
            self._settle(
                self.approvals.withdraw(
                    asked.id, asked.binding.operator, self._clock(), "whoever asked gave up"
                )
            )

    async def _use(self, asked: Pending, observe: Observe, judge: Judge) -> Decision:
        request = await observe()
        decision = await judge(request)
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
            await self._store.write(self._rows([used.id]))
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
        _ = (
            self.gate.version
        )  # a policy that changed meanwhile voids what was asked under the old one
        self._settle(self.approvals.expire(self._clock()))
        pending = self.approvals.open.get(id)
        if pending is None or pending.state == "denied":
            raise NotFound(
                f"no question {id[:40]!a} waits", "`holdfast approvals` lists what waits"
            )
        return pending

    def waiting(self) -> Iterator[Pending]:
        _ = self.gate.version
        self._settle(self.approvals.expire(self._clock()))
        return self.approvals.waiting()

    def greet(self, conn: Connection, session: str) -> None:
        """Whoever attaches is told what waits there."""
        for pending in self.approvals.waiting():
            if pending.binding.session == session and pending.state == "waiting":
                conn.event(
                    "approval",
                    what="asked",
                    session=session,
                    **facts(pending),
                    **self.stands(conn, pending.id),
                )

    def stands(self, conn: Connection, id: str) -> dict[str, Any]:
        """For one who is told of a question: may they decide it, or why not? Whether code could read their key is asked when they do."""
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
        """Returns when it is durable. The signature is over what was shown, so what has changed since cannot be meant by it."""
        before = self.find(id)
        statement = self._signed(before, binding, signature, key, approver.key, "approve")
        *others, last = self.approvals.approve(id, approver, self._clock())
        self._settle(others)
        if isinstance(last, Rejected):
            raise refusal(last, before.rule)
        assert isinstance(last, Approved)
        self._unwritten[id] += 1
        try:
            await self._store.write(self._rows([id]))
        except BaseException:
            if self.approvals.open.get(id) is last.pending:
                self.approvals.open[id] = before
            self._store.post(self._rows([id]))
            raise
        finally:
            self._unwritten[id] -= 1
            self._unwritten = +self._unwritten
        self._settle(
            [last],
            by=approver.operator,
            key=approver.key,
            signature=signature.hex(),
            statement=statement.hex(),
        )
        return last.pending

    async def deny(
        self, id: str, binding: str, signature: bytes, key: bytes, approver: Approver
    ) -> Pending:
        """Bites at once, then it is written."""
        pending = self.find(id)
        statement = self._signed(pending, binding, signature, key, approver.key, "deny")
        return await self._close(
            pending,
            self.approvals.deny(id, approver, self._clock()),
            "denied",
            approver.operator,
            approver.key,
            signature,
            statement,
        )

    async def withdraw(
        self, id: str, binding: str, signature: bytes, key: bytes, operator: str
    ) -> Pending:
        """By whoever asked. It needs no right: nobody is kept from wanting something no longer."""
        pending = self.find(id)
        statement = self._signed(pending, binding, signature, key, signing.show(key), "withdraw")
        return await self._close(
            pending,
            self.approvals.withdraw(id, operator, self._clock(), f"by {operator}"),
            "withdrawn",
            operator,
            signing.show(key),
            signature,
            statement,
        )

    async def _close(
        self,
        pending: Pending,
        effects: list[Effect],
        how: str,
        by: str,
        key: str,
        signature: bytes,
        statement: bytes,
    ) -> Pending:
        *others, last = effects
        self._settle(others)
        if isinstance(last, Rejected):
            raise refusal(last, pending.rule)
        self._settle([last], by=by, key=key, signature=signature.hex(), statement=statement.hex())
        try:
            await self._store.write(self._rows([pending.id]))
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
        shown: str,
        answer: Answer,
    ) -> bytes:
        if binding != pending.binding.digest():
            raise Refused("it is not what you were shown", "look again: `holdfast approvals`")
        statement = pending.statement(shown, answer)
        if shown != signing.show(key) or not signing.verify(key, DOMAIN, statement, signature):
            raise Usage(
                "the answer is not signed with the key of whoever gives it",
                "this client may be of another release",
            )
        return statement

    # ------------------------------------------------------------ the world changes

    def begin(self, epochs: dict[str, int | None], known: Callable[[str], bool]) -> None:
        """After a start: what still stands of what the last host knew. Sessions that are not named have ended; None: not known yet."""
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
        """Some keys may count no more: their questions are void, and so is what they approved."""
        for key in {
            k
            for p in self.approvals.open.values()
            for k in (p.binding.key, *(k for _, k in p.given))
        }:
            if key and not known(key):
                before = dict(self.approvals.open)
                self._settle(self.approvals.revoked(key))
                self._store.post(
                    self._rows(
                        [id for id, p in before.items() if self.approvals.open.get(id, p) is not p]
                    )
                )
        self._arm()

    def close(self) -> None:
        """Leaves every question as it is, for the next host."""
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ telling and keeping

    def _settle(self, effects: Iterable[Effect], **more: Any) -> None:
        """Events, whoever waits, the timer; and what is closed is gone from the store."""
        done = [e for e in effects if not isinstance(e, Rejected)]
        if (
            gone := self._kept - self.approvals.open.keys()
        ):  # also what was denied, and is forgotten now
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

    def _tell(self, what: str, pending: Pending, **more: Any) -> None:
        self._note(pending.binding.session, f"approval.{what}", {**facts(pending), **more})

    def _arm(self) -> None:
        """One timer, for the next question that lapses; none if there is no question."""
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

    def _rows(self, ids: Iterable[str]) -> Callable[[apsw.Connection], None]:
        """Makes the store say of these what is so now."""
        rows = [
            (id, json.dumps(asdict(p)) if (p := self.approvals.open.get(id)) is not None else None)
            for id in ids
        ]
        self._kept |= {id for id, body in rows if body is not None}
        self._kept -= {id for id, body in rows if body is None}

        def job(db: apsw.Connection) -> None:
            for id, body in rows:
                if body is None:
                    db.execute("DELETE FROM approvals WHERE id = ?", (id,))
                else:
                    db.execute(
                        "INSERT INTO approvals VALUES (?,?) ON CONFLICT(id) DO UPDATE SET body=excluded.body",
                        (id, body),
                    )

        return job


def facts(pending: Pending) -> dict[str, Any]:
    """Of a question, for everybody who may look at the session: who and why, not what."""
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
    """With what it was found to mean: the approval is bound to that, too."""
    return replace(request, state=request.state + decision.seen, shaped=decision.shaped or ())


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
    broken = (
        "`holdfast policy check` says what is wrong with it"
        if decision.because.startswith("the policy cannot be used")
        else None
    )
    return GateRefused(
        explain(decision), broken, how="refused", rule=decision.rule, because=decision.because
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
        "right": "whoever has `approve` on that session decides; `holdfast operator ls` lists who is known",
        "kind": "somebody of that kind has to decide it",
        "twice": "somebody else has to approve it, too"
        if "you have" in why.why
        else "it happens when it is asked for again",
    }.get(why.code, "")
    how = {"changed": "void"}.get(why.code, why.code)
    return GateRefused(f"not done: {why.why}", recover, how=how, rule=rule)
