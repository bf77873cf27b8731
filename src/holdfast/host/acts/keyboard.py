"""Raw keys of attached clients: the short way through the door (A1, P1, P4).

A key is asked the same questions as any act: who, repeat, right, turn, policy. Asking them for every stroke would cost more than the stroke, and
the answers change seldom. So who was let through stays let through (`passed`) until something changes that could change an answer: rights,
the turn, the policy, the session's state or size, a line that ends; and for PASS_S at most, because files are looked at and clocks run on.
What has a rate is asked each time.

A key is recorded as part of a range, and signed for when its line is done (core/uncovered.py); its content is never recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import record
from holdfast.core.policy import Decision, Verdict, explain
from holdfast.core.uncovered import Uncovered
from holdfast.host import entering
from holdfast.host.gate import Gate
from holdfast.host.journal import Journal, Typist
from holdfast.host.situation import quick_keys_request, situation
from holdfast.host.standing import Standing
from holdfast.host.turn import HELD_INPUTS_MAX
from holdfast.host.viewer import Viewer
from holdfast.model import signing
from holdfast.model.errors import (
    Busy,
    GateRefused,
    HoldfastError,
    NotAllowed,
    Refused,
    Stale,
    Unavailable,
    Unfinished,
    Usage,
)

if TYPE_CHECKING:
    from holdfast.host.session import Session

PASS_S: Final = 1.0
_LINE_END: Final = (b"\r", b"\n", b"\x03", b"\x04")


class Keyboard:
    def __init__(self, session: Session, journal: Journal, standing: Standing, gate: Gate) -> None:
        self._session, self._journal, self._standing, self._gate = session, journal, standing, gate
        self.passed: Viewer | None = None  # whose keys need no question now
        self._until = 0.0
        self.taken = self.not_taken = 0  # inputs
        self._typists: dict[Viewer, tuple[Typist, Uncovered]] = {}
        self._last: dict[
            Viewer, tuple[Typist, Uncovered]
        ] = {}  # who was there when the session ended: the word for their last keys is still to come

    # ------------------------------------------------------------ who is there

    def begin(self, viewer: Viewer) -> None:
        conn, session = viewer.conn, self._session
        client = record.client_id(conn.client)
        typist = Typist(
            session.id,
            session.record.epoch,
            conn.operator,
            signing.show(conn.key),
            conn.modality,
            client,
        )
        self._typists[viewer] = typist, Uncovered()
        self._told(viewer, "client.attached", observe=viewer.observe)
        self._journal.post(
            record.Draft(
                session.id,
                session.record.epoch,
                "fact",
                "attach",
                conn.operator,
                conn.modality,
                record.HOST,
                typist.key,
                client,
                number=session.lane.acked(conn.client),
                originators=(),
                facts={"observe": viewer.observe},
            )
        )

    def end(self, viewer: Viewer, how: str) -> None:
        viewer.held.clear()
        typist, _ = known = self._typists.pop(viewer)
        if how == "ended":
            self._last[viewer] = known
        self._told(viewer, "client.left", how=how)
        self._journal.post(
            record.Draft(
                typist.session,
                typist.epoch,
                "fact",
                "leave",
                typist.actor,
                typist.modality,
                record.HOST,
                typist.key,
                typist.client,
                originators=(),
                facts={"how": how},
            )
        )
        self.again()

    def _told(self, viewer: Viewer, event: str, **facts: Any) -> None:
        """Each client's gap, also while others are attached: with what shows that it is the same execution."""
        session, conn = self._session, viewer.conn
        session.event(
            event,
            operator=conn.operator,
            kind=conn.kind,
            modality=conn.modality,
            **facts,
            root_pid=session.record.root_pid,
            output=session.ring.head,
        )

    def again(self) -> None:
        """Something changed: the next key is asked about."""
        self.passed = None

    # ------------------------------------------------------------ a key

    def keys(self, viewer: Viewer, number: int, data: bytes, ack: bool) -> None:
        if (
            viewer is self.passed
            and (now := time.monotonic()) < self._until
            and not self._session.lane.known(viewer.conn.client, number)
        ):
            return self._send(viewer, number, data, ack, now)
        if viewer.observe:
            self._standing.may(
                viewer.conn.key, "input", self._session.id, time.time(), spend=False
            )  # who lacks the right is told that
            raise Refused("attached to observe only", "attach again without --observe")
        if viewer.held:
            if len(viewer.held) >= HELD_INPUTS_MAX:
                raise Busy("too many keys wait for somebody's unfinished line")
            return viewer.held.append((number, data, ack))
        try:
            self._ask(viewer, number, data, ack)
        except (Unfinished, _Wait):
            viewer.held.append((number, data, ack))
            self._session.spawn(self._look_then_type(viewer))

    def _ask(
        self, viewer: Viewer, number: int, data: bytes, ack: bool, judged: bool = False
    ) -> None:
        session, conn = self._session, viewer.conn
        if session.lane.known(conn.client, number):
            return  # a repeat: it was sent, or waits
        if session.lane.used(conn.client, number):
            raise Refused(
                f"number {number} of this client was used already", "number every act anew"
            )
        if viewer not in self._typists:
            raise Refused("not attached any more", "attach again")
        now = time.time()
        self._standing.may(conn.key, "input", session.id, now)
        session.may_write(conn.operator, take=False)
        if not judged:
            self._judge(viewer, data)
        session.may_write(conn.operator)
        if viewer.size != session.size:
            session.follow_size(viewer)
        self._send(viewer, number, data, ack, mono := time.monotonic())
        lasts = self._standing.lasts(conn.key, "input", session.id, now)
        if (
            lasts > 0 and conn.kind == "human" and data[-1:] not in _LINE_END
        ):  # of others every key is judged: it depends on what reads it
            self.passed, self._until = viewer, mono + min(PASS_S, lasts)

    def _judge(self, viewer: Viewer, data: bytes) -> None:
        """A person at the keyboard is decided about at once, by rules alone; for anybody else it is looked at first what reads the keys."""
        decision = (
            self._gate.quick(quick_keys_request(self._session, viewer.conn, data))
            if viewer.conn.kind == "human"
            else None
        )
        if decision is None:
            raise _Wait
        self._gate.decisions["keys", decision.verdict.value] += 1
        if decision.verdict is not Verdict.ALLOW:
            raise refusal(decision)

    def _send(self, viewer: Viewer, number: int, data: bytes, ack: bool, now: float) -> None:
        session = self._session
        conn = viewer.conn
        if b"\r" in data or b"\n" in data:
            entering.look(
                session,
                conn,
                self._gate,
                self._journal,
                self._typists[viewer][0],
                number,
                data,
                self._standing.several,
            )
        session.commands.typed(conn.operator, data, session.lane.next, session.scanned)
        session.submit_keys(conn.client, number, data, ack)
        session.turn.typed(conn.operator, data, now, conn.key)
        typist, uncovered = self._typists[viewer]
        self.taken += 1
        self._journal.keys(typist, number)
        uncovered.add(number, data, 0)
        session.last_activity = now
        if data[-1:] in _LINE_END:
            self.passed = None

    def refused(self, viewer: Viewer, number: int, error: HoldfastError) -> None:
        """Its sender is told."""
        self.not_taken += 1
        self._session.turn.contended(viewer.conn.operator, error)
        viewer.conn.event("refused", number=number, **error.to_wire())

    async def _look_then_type(self, viewer: Viewer) -> None:
        """Somebody's line seems to be in the way, or the policy takes its time: it is looked, and the keys go on or are refused, in their order."""
        refused: HoldfastError | None = None
        with contextlib.suppress(Unavailable):
            await self._session.turn.look()
        while viewer.held:
            number, data, ack = viewer.held[0]
            try:
                slow = (
                    viewer.conn.kind != "human"
                    or self._gate.quick(quick_keys_request(self._session, viewer.conn, data))
                    is None
                )
                if slow:
                    decision = await self._gate.judge(
                        await situation(self._session, viewer.conn, "keys", data)
                    )
                    if decision.verdict is not Verdict.ALLOW:
                        raise refusal(decision)
                self._ask(viewer, number, data, ack, judged=slow)
            except HoldfastError as e:
                refused = e
            if viewer.held:
                viewer.held.popleft()
            if refused is not None:
                self.refused(viewer, number, refused)
                refused = None

    # ------------------------------------------------------------ signatures

    async def cover(
        self, viewer: Viewer, statement: str, signature: str, salt: str
    ) -> dict[str, str | int]:
        """The actor's signature over keys that came: checked against them, and recorded, also if who sent it does not wait for that."""
        if (known := self._typists.get(viewer) or self._last.get(viewer)) is None:
            raise Refused("not attached any more", "attach again")
        typist, uncovered = known
        try:
            body, signed = statement.encode(), bytes.fromhex(signature)
            said = record.read_statement(body, signed, typist.key or "")
            record.expect(
                said,
                machine=self._journal.machine,
                session=typist.session,
                epoch=typist.epoch,
                client=typist.client,
                binding=viewer.conn.binding,
            )
            grains = bytes.fromhex(salt)
        except ValueError as e:
            raise NotAllowed(f"this is not what {viewer.conn.operator} signed: {e}") from e
        return await asyncio.shield(
            self._session.spawn(self._cover(typist, uncovered, said, grains, body, signed))
        )

    async def _cover(
        self,
        typist: Typist,
        uncovered: Uncovered,
        said: dict[str, Any],
        salt: bytes,
        body: bytes,
        signature: bytes,
    ) -> dict[str, str | int]:
        if said["seen"] is not None and not await self._journal.knows(typist.session, said["seen"]):
            raise Stale("much has happened in this session since you looked")
        if not uncovered.cover(said, salt):
            raise Usage("these are not the keys that came", "they stay covered by the channel only")
        written = await self._journal.cover(typist, body, signature)
        return {"seq": written.seq, "hash": written.hash}


class _Wait(Exception):
    """The policy cannot say at once."""


def refusal(decision: Decision) -> GateRefused:
    if decision.verdict is Verdict.ASK:
        return GateRefused(
            f"keys cannot wait for approval: {decision.because}",
            "give the command whole: `holdfast run` or `holdfast send --enter` can wait",
            rule=decision.rule,
        )
    return GateRefused(explain(decision), rule=decision.rule, because=decision.because)
