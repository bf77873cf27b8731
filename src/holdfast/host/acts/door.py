"""The door: every discrete act on a session or on the machine passes here, whoever it comes from and by whichever face (P1, P2, P4).

    who signed it -> was it done before -> may they -> whose turn -> what the policy says (may take time)
    -> recorded, durably -> may they still, whose turn now -> done -> what became of it is recorded

Raw keys take the short way (host/keyboard.py): they are recorded as ranges and signed for line by line. Seize and halt take effect on arrival
and answer to the envelope alone; their record follows, because neither a policy nor a full disk may delay them (A3, A4).

Nothing here does an act: it says whether it may be done, and writes down that it was. What is not signed by the key that the channel
proved, for this machine, incarnation, client, number and channel, is refused before anything else is asked.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.core import acts, originators, record
from holdfast.core.conditions import Request
from holdfast.core.gate import Pending
from holdfast.core.originators import UNKNOWN, Shaped, foreign
from holdfast.core.policy import Decision, Verdict
from holdfast.core.record import UNSEEN, Draft, Terminal, Written
from holdfast.host.approvals import Desk
from holdfast.host.connection import Connection
from holdfast.host.journal import Journal
from holdfast.host.lane import TYPED
from holdfast.host.session import Session
from holdfast.host.situation import NOTHING, situation
from holdfast.host.store import Record
from holdfast.model import signing
from holdfast.model.errors import (
    Busy,
    GateRefused,
    Held,
    HoldfastError,
    Lost,
    NotAllowed,
    Refused,
    Stale,
    TimedOut,
    Unavailable,
    Usage,
)

SHOWN: Final[Terminal] = (True, True)  # typed at a prompt that shows what is typed
REFUSED_AGAIN_S: Final = (
    1.0  # until the same refusal by the policy is told again; each is counted and recorded
)
REFUSALS_KEPT: Final = 1024
CLIENTS_KEPT: Final = 4096  # that acted on the machine, and whose numbers are known


class Machine:
    """What an act on no session is on: the machine itself. It has one incarnation."""

    id = name = record.MACHINE
    epoch = 1


class Act:
    """One signed act on its way through the door."""

    def __init__(
        self,
        door: Door,
        conn: Connection,
        session: Session | Record | Machine,
        op: str,
        q: dict[str, Any],
    ) -> None:
        self.conn, self.session, self.op, self.number = conn, session, op, int(q["seq"])
        self.epoch = session.record.epoch if isinstance(session, Session) else session.epoch
        self.written: Written | None = None  # its intent
        self.reason = ""  # of the verdict
        self.shaped: tuple[Shaped, ...] | None = (
            None  # what it would touch that somebody shaped, as it was judged
        )
        self._taken: int | None = None
        self.part: dict[str, int] = {}  # how much of it, if not all
        self.repeat = False  # it was submitted before it was asked for now
        self.began = time.time_ns()  # when it came to the door
        self.phases: list[tuple[str, int, int]] = []  # what it went through, from when to when
        self._over = False  # its outcome is recorded
        self._door = door
        try:
            statement, signature, salt = acts.parts(q["signed"])
        except ValueError as e:
            raise Usage(f"{op}: {e}") from e
        self.kind = acts.kind(op, q)
        try:
            self.content = acts.content(op, q.get("asked!", q))
            self._statement, self._signature = statement.encode(), bytes.fromhex(signature)
            self._salt = bytes.fromhex(salt)
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
            )
        except ValueError as e:
            raise NotAllowed(
                f"this is not what {conn.operator} signed: {e}",
                "sign exactly what is asked, for this connection",
            ) from e
        if self.said["epoch"] != self.epoch:
            raise Refused(
                f"it was signed for incarnation {self.said['epoch']} of {session.name}; this is {self.epoch}",
                "look at the session first, then decide",
            )

    @property
    def shapers(self) -> int:
        """How many shaped the state that it runs on, "unknown" counted as one."""
        return len(self._originators)

    @property
    def seen(self) -> str | None:
        seen: str | None = self.said["seen"]
        return seen

    @property
    def writers(self) -> tuple[str, ...]:
        """Who else wrote the files and variables that it names."""
        return (
            originators.written(self.shaped, self.conn.operator)
            if self.shaped is not None
            else originators.UNSEEN
        )

    @property
    def taken(self) -> int | None:
        """The session's number of it, once the keeper has it."""
        return self._taken

    @taken.setter
    def taken(self, number: int) -> None:
        self._taken = number
        if isinstance(self.session, Session) and self.shaped is not None:
            self.session.commands.lineage.shaped(number, self._originators)

    async def intend(self, terminal: Terminal = UNSEEN, owed: bool = False) -> None:
        """It is about to be done: durable when this returns. Unavailable: it must not be done, unless it is `owed`: what makes an end of a
        session that fills the disk is not to be refused because the disk is full. Its record follows then."""
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
        """Another part of its way is behind it."""
        self.phases.append((phase, began, time.time_ns()))

    def applied(self, act: int | None = None, **facts: Any) -> None:
        self._became(record.APPLIED, "", **({"act": act} if act is not None else {}), **facts)

    def not_applied(self, error: BaseException) -> None:
        """What is known of an act that was recorded and did not go through."""
        if isinstance(error, Lost | TimedOut):
            result = record.UNKNOWN
        elif isinstance(error, Refused | Unavailable):
            result = record.VOID
        else:
            result = record.FAILED if isinstance(error, HoldfastError) else record.UNKNOWN
        self._became(result, error.message if isinstance(error, HoldfastError) else "")

    def _became(self, result: str, reason: str, **facts: Any) -> None:
        if self.written is not None and not self._over:
            self._over = True
            self._door.journal.outcome(self.written, result, reason, **facts)

    def refused(self, error: HoldfastError, verdict: str = "refuse") -> None:
        """It was not let through, and the record says so: also that somebody tried is worth knowing."""
        if self.written is None and not self._door.journal.failing:
            self._door.journal.post(
                self._host_draft(verdict, error.message)
                if self._unknown_seen()
                else self._draft("fact", verdict, error.message)
            )

    def happened(self, **facts: Any) -> None:
        """Seize, halt and revoke: it has taken effect, the record follows."""
        draft = (
            self._host_draft("allow", "")
            if self._unknown_seen()
            else self._draft("fact", "allow", "")
        )
        self._door.journal.post(replace(draft, facts=self._touches | facts))

    def recorded(self) -> dict[str, Any]:
        """For its client: where it is in the record, signed by the machine, so that it can be shown later that it was there."""
        if self.written is None:
            return {}
        ack = self._door.journal.ack(self.written, record.client_id(self.conn.client), self.number)
        return {
            "recorded": {
                "seq": self.written.seq,
                "hash": self.written.hash,
                "ack": ack.body.decode(),
                "signature": ack.signature.hex(),
            }
        }

    def ran_on(self) -> dict[str, Any]:
        """For its client: what others made of the state it ran on, as far as it is known whose that is."""
        known = [
            one
            for one in originators.foreign(self.shaped or (), self.conn.operator)
            if one.actor != originators.UNKNOWN
        ]
        return (
            {"shaped": [one.show(f"hf:{self.session.id}@{self.epoch}") for one in known]}
            if known
            else {}
        )

    def _unknown_seen(self) -> bool:
        """Whether its statement names an entry that is not at hand: with it the record would not verify, so the host's word must do."""
        return self.seen is not None and not self._door.journal.knows_now(
            self.session.id, self.seen
        )

    @property
    def _originators(self) -> tuple[str, ...]:
        """Who shaped the state that it runs on; what does not run anything has none."""
        return (
            originators.names(self.shaped, self.conn.operator)
            if self.shaped is not None
            else ("unknown",)
            if self.kind in TYPED
            else ()
        )

    @property
    def _touches(self) -> dict[str, Any]:
        """For its record: the state that it runs on, as far as somebody shaped it."""
        ref = f"hf:{self.session.id}@{self.epoch}"
        return {"shaped": [one.show(ref) for one in self.shaped]} if self.shaped else {}

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
            )
        except ValueError as e:
            raise NotAllowed(
                f"this is not what {self.conn.operator} signed: {e}", "sign exactly what is asked"
            ) from e

    def _host_draft(self, verdict: str, reason: str) -> Draft:
        return Draft(
            self.session.id,
            self.epoch,
            "fact",
            self.kind,
            self.conn.operator,
            self.conn.modality,
            record.HOST,
            signing.show(self.conn.key),
            originators=self._originators,
            verdict=verdict,
            reason=reason,
        )


class Door:
    def __init__(
        self,
        journal: Journal,
        desk: Desk,
        note: Callable[[str, str, dict[str, Any]], None] = lambda session, event, facts: None,
    ) -> None:
        self.journal, self.desk, self._note = journal, desk, note
        self.machine = journal.machine
        self.here = Machine()
        self._numbers: dict[
            int, int
        ] = {}  # of clients that acted on the machine: the highest they used
        self._under_way: set[tuple[str, int, int]] = set()  # session, client, number
        self.verdicts: Counter[tuple[str, str]] = (
            Counter()
        )  # by kind: what became of those that came to their end
        self._refused_at: dict[
            tuple[str, str, str, str], float
        ] = {}  # session, operator, kind, rule: when that was told last
        self.on_over: Callable[[Act, str], None] | None = None  # with its verdict; must not raise

    def act(
        self, conn: Connection, session: Session | Record | Machine, op: str, q: dict[str, Any]
    ) -> Act:
        """Reads and verifies; refuses what is not its sender's own word."""
        act = Act(self, conn, session, op, q)
        act._draft("fact", "allow", "")  # the commitment holds
        if isinstance(session, Machine):
            if act.number <= self._numbers.get(conn.client, 0):
                raise _used(act.number)
            self.used(conn.client, act.number)
        if isinstance(session, Session):
            known, used = (
                session.lane.known(conn.client, act.number),
                session.lane.used(conn.client, act.number),
            )
            if (known or used) if act.kind not in TYPED else (used and not known):
                raise _used(act.number)
            if act.kind not in TYPED:
                session.lane.use(conn.client, act.number)
                session.keyboard.again()
            elif (session.id, conn.client, act.number) in self._under_way:
                raise Busy("this very act is under way", "wait for its answer")
            else:
                act.repeat = known  # decided now: what a later one of this client makes of its number while it is judged does not count
        return act

    def recorded(self, entry: dict[str, Any]) -> int:
        """After a start, of each client's last entry in the machine's record: its number is used."""
        self.used(int(entry["client"], 16), entry["number"])
        return 0

    def used(self, client: int, number: int) -> None:
        """An act on the machine with this number is in its record, or is about to be."""
        self._numbers[client] = max(number, self._numbers.pop(client, 0))
        if len(self._numbers) > CLIENTS_KEPT:
            del self._numbers[next(iter(self._numbers))]

    async def clear(
        self,
        act: Act,
        request: int,
        what: str,
        content: Callable[[], bytes] = bytes,
        details: Mapping[str, str] = NOTHING,
        wait_s: float | None = None,
        secret: bool = False,
    ) -> None:
        """The policy's word on it, or an approval. Whoever waits for one is told so, and the record says that it was held. What is typed where the
        terminal hides it is not held: whoever decides would be shown it."""
        session = act.session if isinstance(act.session, Session) else None

        async def observe() -> Request:
            return await situation(session, act.conn, what, content(), details)

        await self.judged(act, request, observe, wait_s, secret)

    async def judged(
        self,
        act: Act,
        request: int,
        observe: Callable[[], Awaitable[Request]],
        wait_s: float | None,
        secret: bool = False,
    ) -> None:
        """The same, of what `observe` says is asked."""

        def held(pending: Pending) -> None:
            act.refused(Held(pending.because), "hold")
            if wait_s != 0:  # who does not wait is told by the error
                act.conn.event(
                    "held",
                    request=request,
                    session=act.session.id,
                    id=pending.id,
                    because=pending.because,
                    rule=pending.rule,
                    expires_in=round(pending.expires - pending.asked, 1),
                )

        began = time.time_ns()
        try:
            await self._judged(act, observe, held, wait_s, secret)
        finally:
            act.passed("gate", began)

    async def _judged(
        self,
        act: Act,
        observe: Callable[[], Awaitable[Request]],
        held: Callable[[Pending], None],
        wait_s: float | None,
        secret: bool,
    ) -> None:
        def look(decision: Decision) -> None:
            act.shaped = decision.shaped
            self._tell_foreign(act, decision)

        if secret:
            decision = await self.desk.gate.judge(await observe())
            look(decision)
            if decision.verdict is not Verdict.ALLOW:
                raise GateRefused(
                    f"refused by the rule {decision.rule!r}"
                    if decision.rule
                    else "refused by the policy",
                    "at a prompt that hides what is typed nothing waits for approval: a person types it",
                    rule=decision.rule,
                )
        else:
            decision = await self.desk.clear(act.conn, observe, held, wait_s, look)
        if decision.approved and isinstance(act.session, Session):
            act.session.commands.cleared(
                (act.conn.client, act.number), frozenset((decision.rule, *decision.asked))
            )
        act.reason = decision.because + (
            f"; approved by {', '.join(decision.approved)}" if decision.approved else ""
        )

    def came(self, conn: Connection, how: str, /, **facts: Any) -> None:
        """Somebody is known here from now on who was not: they have signed for it in their introduction, the record has the host's word."""
        self.journal.post(
            Draft(
                record.MACHINE,
                self.here.epoch,
                "fact",
                how,
                conn.operator,
                conn.modality,
                record.HOST,
                signing.show(conn.key),
                originators=(),
                facts=facts,
            )
        )

    async def through(
        self, act: Act, effect: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Recorded, done, and what became of it. The effect calls `act.intend` itself if it has to ask more before."""
        me = (act.session.id, act.conn.client, act.number)
        self._under_way.add(me)
        try:
            answer = await effect()
        except BaseException as e:
            if act.taken is not None:
                act.applied(act.taken, **act.part)  # whatever became of whoever waited for more
            elif act.written is not None:
                act.not_applied(e)
            elif isinstance(e, Refused) and not isinstance(e, Stale | Held):
                act.refused(e)
            self._not_done(act, e)
            raise
        finally:
            self._under_way.discard(me)
        act.applied(act.taken, **answer.pop("outcome", {}))
        self._end(act, record.APPLIED)
        return {**answer, **act.recorded(), **act.ran_on()}

    def _not_done(self, act: Act, error: BaseException) -> None:
        """Counted; and told if the policy or somebody else was in its way."""
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
        elif isinstance(act.session, Session) and act.kind in TYPED:
            act.session.turn.contended(act.conn.operator, error)
        self._end(act, record.APPLIED if act.taken is not None else verdict_of(error))

    def _tell_foreign(self, act: Act, decision: Decision) -> None:
        """That it runs on what another, who is known, has shaped."""
        others = [
            one for one in foreign(decision.shaped or (), act.conn.operator) if one.actor != UNKNOWN
        ]
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
        """Not again within a moment: whoever tries the same in a circle must not push everything else out of the events that are kept."""
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
        if self.on_over is not None:
            self.on_over(act, verdict)


VERDICTS: Final = (record.APPLIED, "held", "refused", "failed", record.UNKNOWN, "abandoned")


def verdict_of(error: BaseException) -> str:
    """What became of an act that ended so, in one of VERDICTS."""
    if isinstance(error, Held):
        return "held"
    if isinstance(error, Refused):
        return "refused"
    if isinstance(error, Lost | TimedOut):
        return record.UNKNOWN
    return "failed" if isinstance(error, Exception) else "abandoned"


def _used(number: int) -> Refused:
    return Refused(f"number {number} of this client was used already", "number every act anew")
