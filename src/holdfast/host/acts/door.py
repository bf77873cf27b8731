"""The door: every discrete act on a session or on the machine passes here (P1, P2, P4).

    receive   verify the signature; refuse a used number
    judge     ask the policy, and another operator if the policy says so: this may take time
    commit    check the right again; write the act into the record, durably
    apply     the handler of the operation changes the session (host/requests)
    through   wraps the handler and records the outcome

A handler checks the turn before `judge` and again when it applies the act. Raw keys take a short
way (host/acts/keyboard.py): the record has ranges of keys, signed line by line. Seize, halt and
revoke take effect on arrival and depend on the envelope alone. Their record follows, because
neither a policy nor a full disk may delay them (A3, A4).

This module applies no act. An act must be signed by the key that the channel proved, for this
machine, incarnation, client, number and channel; otherwise it is refused first of all.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.contract.codec import encode
from holdfast.core.contract.message import ABSENT, Acknowledgement, Recorded, Signed
from holdfast.core.contract.table import HANDLER, OPERATIONS
from holdfast.core.originators import originators
from holdfast.core.originators.act_effects import TRACED, Shown
from holdfast.core.originators.inside import Inside
from holdfast.core.originators.originators import UNKNOWN, Shaped, foreign
from holdfast.core.people.scope import Command
from holdfast.core.policy.approvals import Pending
from holdfast.core.policy.approved_commands import Cleared
from holdfast.core.policy.conditions import Request
from holdfast.core.policy.policy import Decision, Verdict
from holdfast.core.record import acts, record
from holdfast.core.record.record import UNSEEN, Draft, Terminal, Written
from holdfast.host.acts.act_context import NOTHING, ProposedAct
from holdfast.host.acts.approvals import HeldActs
from holdfast.host.acts.once import Keys, kept, once_of
from holdfast.host.acts.under_way import UnderWay
from holdfast.host.acts.verdicts import verdict_of
from holdfast.host.people.rights import Rights
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.notify import tell
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal
from holdfast.host.storage.record_table import KeyedAct
from holdfast.host.storage.store import SessionRow
from holdfast.model import signing
from holdfast.model.errors import (
    Busy,
    GateRefused,
    Held,
    HoldfastError,
    Lost,
    NotAllowed,
    OutcomeUnknown,
    Refused,
    Stale,
    TimedOut,
    Unavailable,
    Usage,
)

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical
    from holdfast.model.jsontext import Json

SHOWN: Final[Terminal] = (True, True)  # typed at a prompt that shows the text
# Until the same refusal by the policy is told again; each is counted and recorded.
REFUSED_AGAIN_S: Final = 1.0
REFUSALS_KEPT: Final = 1024
# For `commit`: the call that applies the act checks the right at that time.
CHECKED_WHEN_APPLIED: Final = ""
CLIENTS_KEPT: Final = 4096  # clients that acted on the machine and whose last number is remembered


class Machine:
    """The target of an act that concerns no session. Its epoch never changes."""

    id = name = record.MACHINE
    epoch = 1


class Act:
    """A signed act between its arrival and its outcome."""

    def __init__(
        self,
        door: Door,
        conn: Connection,
        request: int,
        session: Session | SessionRow | Machine,
        body: dict[str, object],
        number: int,
        signed: Signed | None,
        about: str | None,
    ) -> None:
        """`body`: the request as it was sent; the signature covers neither defaults nor nulls.

        `about`: the session that the right is needed on; None: the machine.
        """
        op = str(body["op"])
        if signed is None:
            raise Usage(f"{op}: a signature has statement, signature, salt")
        self.conn, self.request, self.session, self.about = conn, request, session, about
        self.op, self.number, self.kind = op, number, acts.kind(op, body)
        self.epoch = session.record.epoch if isinstance(session, Session) else session.epoch
        self.question = ProposedAct(op)  # the last question to the policy
        self.written: Written | None = None  # the entry in the record
        self.reason = ""  # why the policy allowed the act
        # The state that the act uses, with authors; None: not determined.
        self.shaped: tuple[Shaped, ...] | None = None
        self._taken: int | None = None
        self.part: dict[str, Canonical] = {}  # how much of the act was applied, if not all
        self.outcome: dict[str, Canonical] = {}  # facts for the record, once the act is applied
        self.effects: Shown | None = None  # as the outcome has them
        self.approvers: tuple[str, ...] = ()
        self.repeat = False  # the act was submitted before this request came
        # The client and its number, by which the keeper knows the act. Of a retry under an
        # idempotency key: those of the first act.
        self.which = (conn.client, number)
        self.once, self.meant = once_of(body), acts.meant(body)  # idempotency key; intent
        self.first: KeyedAct | None = None  # the earlier act with that key
        self.reply: bytes | None = None  # the answer, kept for requests with the same key
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began = time.time_ns()  # time of arrival
        self.phases: list[tuple[str, int, int]] = []  # name, start and end of each phase so far
        self._over = False  # the outcome is recorded
        self._door = door
        self.inside = door.inside_of(conn)  # the session that the client runs in
        try:
            self.content = acts.content(op, body)
            self._statement = signed.statement.encode()
            self._signature = bytes.fromhex(signed.signature)
            self._salt = bytes.fromhex(signed.salt)
            self.said = record.read_statement(
                self._statement, self._signature, signing.show(conn.key)
            )
            record.expect(
                self.said,
                machine=door.machine,
                session=session.id,
                client=record.client_id(conn.client),
                number=self.number,
                kind=self.kind,
                binding=conn.binding,
                once=self.once,
            )
            self.intention = acts.intention(op, body) if self.once else b""
            self.same = door.journal.once.digest(self.kind, self.intention)
        except ValueError as e:
            raise NotAllowed(
                f"this is not what {conn.operator} signed: {e}",
                "sign exactly what is asked, for this connection",
            ) from e
        if self.said["epoch"] != self.epoch:
            raise Refused(
                f"it was signed for incarnation {self.said['epoch']} of {session.name}; "
                f"this is {self.epoch}",
                "look at the session first, then decide",
                epoch=self.epoch,
            )

    # ------------------------------------------------------------ while it is held

    @property
    def wait_s(self) -> float | None:
        return self.question.wait_s

    async def observe(self) -> Request:
        """The request for the policy, from the session as it is now."""
        session = self.session if isinstance(self.session, Session) else None
        return await self.question.observe(session, self.conn)

    def judged(self, decision: Decision) -> None:
        self.shaped = decision.shaped
        self._door.tell_foreign(self, decision)

    def held(self, pending: Pending) -> None:
        """Tells the record and the caller that the act waits for an approval."""
        self.refused(Held(pending.because), "hold")
        if self.wait_s != 0:  # a caller that does not wait gets an error with the same facts
            self.conn.event(
                "held",
                request=self.request,
                session=self.session.id,
                id=pending.id,
                because=pending.because,
                rule=pending.rule,
                expires_in=max(0.0, round(pending.expires - time.time(), 1)),
            )

    # ------------------------------------------------------------ what is known of it

    @property
    def shapers(self) -> int:
        """The number of operators that shaped the state the act uses; "unknown" counts as one."""
        return len(self._originators)

    @property
    def seen(self) -> str | None:
        seen: str | None = self.said["seen"]
        return seen

    @property
    def writers(self) -> tuple[str, ...]:
        """Other operators that wrote the files and variables that the act names."""
        if self.shaped is not None:
            return originators.written(self.shaped, self.conn.operator)
        return originators.UNSEEN

    @property
    def taken(self) -> int | None:
        """The session's number of the act, once the keeper has taken the act."""
        return self._taken

    @taken.setter
    def taken(self, number: int) -> None:
        before, self._taken = self._taken, number
        if self.op == "run":
            self.settle()
        if isinstance(self.session, Session):
            self.session.commands.included.expect(number)
            if self.conn.kind in TRACED:
                run, who = self.op == "run", self.conn.operator
                self.session.commands.effects.expect(number, before, who, run)
            if self.shaped is not None:
                self.session.commands.lineage.shaped(number, self._originators)

    def repeats(self, which: tuple[int, int], taken: int | None = None) -> None:
        """This is a retry of an act that the keeper took from that client, under that number."""
        self.which, self.repeat, self._taken = which, True, taken

    def settle(self) -> None:
        """The act is over, or can be followed: another request with its key may go on."""
        if not self.settled.done():
            self.settled.set_result(None)

    async def record_intent(self, terminal: Terminal = UNSEEN, owed: bool = False) -> None:
        """Writes the act into the record; durable when this returns.

        If the record is Unavailable the act must not happen, unless it is `owed`: ending a session
        that fills the disk must not fail because the disk is full. The record follows then.
        """
        if self.written is not None:
            return
        began = time.time_ns()
        if self.seen is not None and not await self._door.journal.knows(self.session.id, self.seen):
            raise Stale("much has happened in this session since you looked")
        try:
            self.written = await self._door.journal.intent(
                self._draft("intent", "allow", self.reason), terminal
            )
        except Unavailable:
            if not owed:
                raise
            self.happened()
        finally:
            self.passed("record", began)

    def passed(self, phase: str, began: int) -> None:
        """Notes the duration of a phase, for traces."""
        self.phases.append((phase, began, time.time_ns()))

    def applied(self, act: int | None = None, **facts: Canonical) -> None:
        self._became(record.APPLIED, "", **({"act": act} if act is not None else {}), **facts)

    def not_applied(self, error: BaseException) -> None:
        """Records the outcome of an act that failed after it was recorded."""
        if isinstance(error, Lost | TimedOut | OutcomeUnknown):
            result = record.UNKNOWN
        elif isinstance(error, Refused | Unavailable):
            result = record.VOID
        else:
            result = record.FAILED if isinstance(error, HoldfastError) else record.UNKNOWN
        self._became(result, error.message if isinstance(error, HoldfastError) else "")

    def _became(self, result: str, reason: str, **facts: Canonical) -> None:
        if self.written is None or self._over:
            return
        self._over = True
        included = self._included()
        if included:
            facts["included"] = [one.show(f"hf:{self.session.id}@{self.epoch}") for one in included]
        if self._taken is not None and isinstance(self.session, Session):
            ended = "exit_code" in facts
            if (effects := self.session.commands.effects_now(self._taken, ended)) is not None:
                facts["effects"] = self.effects = effects
        others = originators.names(included, self.conn.operator)
        self._door.journal.outcome(self.written, result, reason, others, self.reply, **facts)

    def _included(self) -> tuple[Shaped, ...]:
        """Files of other operators that the act's programs opened, beside the judged files."""
        if self._taken is None or not isinstance(self.session, Session):
            return ()
        commands = self.session.commands
        commands.before_marks()  # reads the reports of the kernel
        judged = {(one.name, one.actor) for one in self.shaped or ()}
        found = commands.included.take(self._taken)
        return tuple(one for one in found if (one.name, one.actor) not in judged)

    def refused(self, error: HoldfastError, verdict: str = "refuse") -> None:
        """Records that the act was refused: attempts are worth knowing too."""
        if self.written is None and not self._door.journal.failing:
            self._door.journal.post(self._fact(verdict, error.message))

    def happened(self, **facts: Canonical) -> None:
        """Records an act that has taken effect already: seize, halt, revoke."""
        draft = self._fact("allow", "")
        self._door.journal.post(replace(draft, facts=self._touches | facts))

    def acknowledgement(self) -> Acknowledgement:
        """The receipt for the client, and the foreign state that the act used."""
        recorded = shaped = None
        written, client = self.written, record.client_id(self.conn.client)
        number = self.number
        if written is None and (first := self.first) is not None and first.hash is not None:
            # The receipt names the client and the number in the entry: those of the first act.
            written = Written(self.session.id, first.seq, first.hash, 0, b"")
            client, number = first.client or client, first.number or number
        if written is not None:
            ack = self._door.journal.ack(written, client, number)
            recorded = Recorded(
                seq=written.seq,
                hash=written.hash,
                ack=ack.body.decode(),
                signature=ack.signature.hex(),
            )
        if known := known_foreign(self.shaped, self.conn.operator):
            shaped = tuple(one.show(f"hf:{self.session.id}@{self.epoch}") for one in known)
        return Acknowledgement(recorded=recorded or ABSENT, shaped=shaped or ABSENT)

    def _fact(self, verdict: str, reason: str) -> Draft:
        """An entry for an act without an outcome.

        The signed statement may name an entry of the record that is not at hand. With that
        statement the record would not verify, so the host records the act on its own word.
        """
        seen, session = self.seen, self.session.id
        if seen is None or self._door.journal.knows_now(session, seen):
            return self._draft("fact", verdict, reason)
        draft = testimony(self.conn, session, self.epoch, self.kind)
        return replace(draft, originators=self._originators, verdict=verdict, reason=reason)

    @property
    def _originators(self) -> tuple[str, ...]:
        """The operators that shaped the state the act uses; empty for an act that runs nothing.

        Operators who started a client inside a session are named too. On a machine that only ever
        knew the actor, there is no other operator to be named.
        """
        actor = self.conn.operator
        started = self.inside.others(actor) if self.inside is not None else ()
        if self.shaped is not None:
            shapers = originators.names(self.shaped, actor)
        else:
            shapers = (UNKNOWN,) if self.kind in acts.BY_KEEPER else ()
        known = dict.fromkeys(one for one in (*started, *shapers) if one != UNKNOWN)
        unseen = UNKNOWN in (*started, *shapers) and self._door.several
        return (*known, UNKNOWN) if unseen else tuple(known)

    @property
    def _touches(self) -> dict[str, Canonical]:
        """The shaped state that the act uses, and where its client runs, for the record."""
        ref = f"hf:{self.session.id}@{self.epoch}"
        return {
            **({"shaped": [one.show(ref) for one in self.shaped]} if self.shaped else {}),
            **({"inside": self.inside.show()} if self.inside is not None else {}),
            **self.meant,
        }

    def _draft(self, phase: record.Phase, verdict: str, reason: str) -> Draft:
        try:
            return record.signed_draft(
                self.said,
                self._statement,
                self._signature,
                signing.show(self.conn.key),
                phase,
                self.conn.operator,
                self.conn.modality,
                self._salt,
                self.content,
                originators=self._originators,
                verdict=verdict,
                reason=reason,
                facts=self._touches,
                keyed=(self.once, self.same) if self.once is not None else None,
            )
        except ValueError as e:
            raise NotAllowed(
                f"this is not what {self.conn.operator} signed: {e}", "sign exactly what is asked"
            ) from e


class Door:
    def __init__(
        self,
        journal: Journal,
        held_acts: HeldActs,
        rights: Rights,
        note: Callable[[str, str, dict[str, object]], None] = lambda session, event, facts: None,
        inside_of: Callable[[Connection], Inside | None] = lambda conn: None,
        save_first: Callable[[Session, str], Awaitable[str]] | None = None,
    ) -> None:
        """`save_first`: saves a session because a rule of that name wants it before an act."""
        self.inside_of, self._save_first = inside_of, save_first
        self.journal, self.held_acts, self._rights, self._note = journal, held_acts, rights, note
        self.machine = journal.machine
        self.here = Machine()
        self.keys = Keys(journal)
        # Of clients that acted on the machine: the highest number used.
        self._numbers: dict[int, int] = {}
        self.under_way = UnderWay()
        self.verdicts: Counter[tuple[str, str]] = Counter()  # of acts that are over, by kind
        # By session, operator, kind, rule: when that was told last.
        self._refused_at: dict[tuple[str, str, str, str], float] = {}
        self.on_over: list[Callable[[Act, str], None]] = []  # called with the verdict

    @property
    def several(self) -> bool:
        """Whether the machine knows or knew an operator beside the actor."""
        return self._rights.several

    # ------------------------------------------------------------ receive

    def receive(
        self,
        conn: Connection,
        request: int,
        session: Session | SessionRow | Machine,
        body: dict[str, object],
        number: int,
        signed: Signed | None,
        about: str | None,
    ) -> Act:
        """Reads and verifies an act; refuses a wrong signature or a used number."""
        act = Act(self, conn, request, session, body, number, signed, about)
        act._draft("fact", "allow", "")  # the commitment holds
        if isinstance(session, Machine):
            if act.number <= self._numbers.get(conn.client, 0):
                raise _used(act.number)
            self.used(conn.client, act.number)
        if isinstance(session, Session):
            known = session.lane.known(conn.client, act.number)
            used = session.lane.used(conn.client, act.number)
            if (known or used) if act.kind not in acts.BY_KEEPER else (used and not known):
                raise _used(act.number)
            if act.kind not in acts.BY_KEEPER:
                session.lane.use(conn.client, act.number)
                session.keyboard.recheck()
            elif (session.id, conn.client, act.number) in self.under_way:
                raise Busy("this very act is under way", "wait for its answer")
            else:
                # decided now: a later act of the same client must not change this during the
                # judgement
                act.repeat = known
        return act

    def recorded(self, entry: dict[str, Any]) -> int:
        """Marks the number of a client's last recorded act as used, after a start."""
        self.used(int(entry["client"], 16), entry["number"])
        return 0

    def used(self, client: int, number: int) -> None:
        """Marks a number of a client as used on the machine."""
        self._numbers[client] = max(number, self._numbers.pop(client, 0))
        if len(self._numbers) > CLIENTS_KEPT:
            del self._numbers[next(iter(self._numbers))]

    # ------------------------------------------------------------ judge, commit

    async def enter(
        self, act: Act, question: ProposedAct, right: str | None = None, owed: bool = False
    ) -> None:
        """Judge, then commit: when this returns, the caller applies the act."""
        await self.judge(act, question)
        await self.commit(act, right, owed=owed)

    async def judge(self, act: Act, question: ProposedAct) -> None:
        """Returns if the policy allows the act or another operator has approved the act."""
        act.question, began = question, time.time_ns()
        try:
            judging = self._judge_hidden if question.hidden else self.held_acts.wait_until_allowed
            decision = await judging(act)
        finally:
            act.passed("gate", began)
        act.reason = decision.because
        if decision.approved:
            act.approvers = tuple(decision.approved)
            act.reason += f"; approved by {', '.join(decision.approved)}"
            if isinstance(act.session, Session):
                rules = frozenset((decision.rule, *decision.asked))
                act.session.commands.cleared(
                    (act.conn.client, act.number), Cleared(rules, decision.commands)
                )
        if decision.checkpoint and self._save_first and isinstance(act.session, Session):
            saved = await self._save_first(act.session, decision.checkpoint)
            act.reason += f"; {saved} was saved before"

    async def _judge_hidden(self, act: Act) -> Decision:
        """Allows or refuses text that the terminal hides: no approver may see such text."""
        decision = await self.held_acts.gate.judge(await act.observe())
        act.judged(decision)
        if decision.verdict is not Verdict.ALLOW:
            rule = f"the rule {decision.rule!r}" if decision.rule else "the policy"
            raise GateRefused(
                f"refused by {rule}",
                "at a prompt that hides what is typed nothing waits for approval: "
                "a person types it",
                rule=decision.rule,
            )
        return decision

    async def commit(
        self,
        act: Act,
        right: str | None = None,
        command: Command | None = None,
        terminal: Terminal = UNSEEN,
        owed: bool = False,
    ) -> None:
        """Records the act durably; checks the right before, after the wait, and after the write.

        The right is that of the operation's row. For a row with HANDLER, and only then, the handler
        names it: `right`, or CHECKED_WHEN_APPLIED.
        """
        row = OPERATIONS[act.op]
        if (right is None) == (row.who == HANDLER):
            raise TypeError(f"{act.op}: the right is named by its row or by its handler")
        self._check(act, right or row.right, command)
        await act.record_intent(terminal, owed)
        self._check(act, right or row.right, command)

    def _check(self, act: Act, right: str, command: Command | None) -> None:
        if isinstance(act.session, Session):
            act.session.stopped.refuse(act.conn.operator)
        if right:
            key, now = act.conn.key, time.time()
            self._rights.require(key, right, act.about, now, command, spend=False)

    def record_joined(self, conn: Connection, how: str, /, **facts: Canonical) -> None:
        """Records that a new key was let in: the first, a recovered or an invited one.

        The joiner signed for that in the handshake; the record has the host's word.
        """
        self.journal.post(testimony(conn, record.MACHINE, self.here.epoch, how, facts))

    # ------------------------------------------------------------ apply

    async def through(self, act: Act, applying: Callable[[], Awaitable[object]]) -> Json:
        """Runs the handler that judges, commits and applies the act; records the outcome.

        A retry under an idempotency key gets the answer of the first act instead.
        """
        async with self.keys.claimed(act) as answer:
            if answer is not None:
                return answer
            return await self._through(act, applying())

    async def _through(self, act: Act, applying: Awaitable[object]) -> Json:
        me = (act.session.id, act.conn.client, act.number)
        try:
            with self.under_way.carrying(me, act.conn):
                reply = encode(await applying)
        except BaseException as e:
            if act.taken is not None:
                act.applied(act.taken, **act.part)  # also if the caller's wait for more failed
            elif act.written is not None:
                act.not_applied(e)
            elif isinstance(e, Refused) and not isinstance(e, Stale | Held):
                act.refused(e)
            self._not_done(act, e)
            raise
        act.reply = kept(reply) if act.once is not None else None
        act.applied(act.taken, **act.outcome)
        self._end(act, record.APPLIED)
        await self.keys.keep(act)
        return reply

    def _not_done(self, act: Act, error: BaseException) -> None:
        """Counts a failed act, and notes an event if the policy or the turn was the cause."""
        session = act.session.id if not isinstance(act.session, Machine) else ""
        if isinstance(error, GateRefused):
            rule = str(error.facts.get("rule") or "")
            if self._worth_telling((session, act.conn.operator, act.kind, rule)):
                self._note(
                    session,
                    "gate.refused",
                    {
                        "operator": act.conn.operator,
                        "kind": act.conn.kind,
                        "act": act.kind,
                        "rule": rule,
                        "originators": list(act._originators),
                    },
                )
        elif isinstance(act.session, Session) and act.kind in acts.BY_KEEPER:
            act.session.turn.contended(act.conn.operator, error)
        self._end(act, record.APPLIED if act.taken is not None else verdict_of(error))

    def tell_foreign(self, act: Act, decision: Decision) -> None:
        """Notes an event if the act uses state that another known operator has shaped."""
        others = known_foreign(decision.shaped, act.conn.operator)
        names, kinds = sorted({one.actor for one in others}), sorted({one.kind for one in others})
        if others and self._worth_telling(
            (act.session.id, act.conn.operator, " ".join(kinds), " ".join(names))
        ):
            self._note(
                act.session.id,
                "originators.foreign",
                {
                    "operator": act.conn.operator,
                    "act": act.kind,
                    "originators": names,
                    "kinds": kinds,
                    "verdict": decision.verdict.value,
                },
            )

    def _worth_telling(self, what: tuple[str, str, str, str]) -> bool:
        """False for a repeat within REFUSED_AGAIN_S.

        A client that tries the same in a loop must not push all other events out of the store.
        """
        now = time.monotonic()
        if now - self._refused_at.get(what, -REFUSED_AGAIN_S) < REFUSED_AGAIN_S:
            return False
        self._refused_at.pop(what, None)
        self._refused_at[what] = now
        if len(self._refused_at) > REFUSALS_KEPT:
            del self._refused_at[next(iter(self._refused_at))]
        return True

    def _end(self, act: Act, verdict: str) -> None:
        self.verdicts[act.kind, verdict] += 1
        tell(self.on_over, act, verdict)


def known_foreign(shaped: Sequence[Shaped] | None, operator: str) -> list[Shaped]:
    """The state that other known operators have shaped."""
    return [one for one in foreign(shaped or (), operator) if one.actor != UNKNOWN]


def testimony(
    conn: Connection, session: str, epoch: int, kind: str, facts: Mapping[str, Canonical] = NOTHING
) -> Draft:
    """An entry about the operator of a connection, on the host's word."""
    who, key = (conn.operator, conn.modality), signing.show(conn.key)
    return record.host_fact(session, epoch, kind, *who, key=key, facts=facts)


def _used(number: int) -> Refused:
    return Refused(f"number {number} of this client was used already", "number every act anew")
