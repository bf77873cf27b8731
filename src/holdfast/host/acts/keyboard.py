"""Raw keys of attached clients: the short way through the door (A1, P1, P4).

A key needs the same checks as any act: signature, repeat, right, turn, policy. Doing them for every
keystroke would cost more than the keystroke, and the answers rarely change. So a viewer that passed
keeps its pass (`passed`) until an answer could change: rights, the turn, the policy, the session's
state or size, the end of a line. A pass ends after PASS_S at the latest, because files and clocks
change without notice. A right with a rate is checked each time.

A key is recorded as part of a range, and signed when its line is done (core/record/uncovered.py).
The content of keys is never recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.core.contract.message import Signed
from holdfast.core.originators.inside import Inside
from holdfast.core.policy.policy import Decision, Verdict, explain
from holdfast.core.record import record
from holdfast.core.record.record import Written
from holdfast.core.record.uncovered import Uncovered
from holdfast.host.acts.act_context import quick_keys_request, situation
from holdfast.host.acts.entered_lines import EnteredLines
from holdfast.host.people.rights import Rights
from holdfast.host.policy.gate import Gate
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.turn import HELD_INPUTS_MAX
from holdfast.host.session.viewer import Viewer
from holdfast.host.storage.journal import Journal, Typist
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
    from holdfast.host.session.session import Session

PASS_S: Final = 1.0
_LINE_END: Final = (b"\r", b"\n", b"\x03", b"\x04")


class Insiders(Protocol):
    """Knows the clients that run inside a session (host/originators/insiders.py)."""

    def of(self, conn: Connection) -> Inside | None: ...
    def check(self, conn: Connection, op: str) -> None: ...


class Keyboard:
    def __init__(
        self, session: Session, journal: Journal, rights: Rights, gate: Gate, insiders: Insiders
    ) -> None:
        self._session, self._journal, self._rights, self._gate = session, journal, rights, gate
        self._insiders = insiders
        self._lines = EnteredLines(session, gate, journal)
        self.passed: Viewer | None = None  # the viewer whose keys need no check now
        self._until = 0.0
        self.taken = self.not_taken = 0  # inputs
        self._typists: dict[Viewer, tuple[Typist, Uncovered]] = {}
        # Viewers when the session ended: the signatures over their last keys are still to come.
        self._last: dict[Viewer, tuple[Typist, Uncovered]] = {}

    # ------------------------------------------------------------ who is there

    def begin(self, viewer: Viewer) -> None:
        conn, session = viewer.conn, self._session
        key, client = signing.show(conn.key), record.client_id(conn.client)
        epoch = session.record.epoch
        typist = Typist(session.id, epoch, conn.operator, key, conn.modality, client)
        self._typists[viewer] = typist, Uncovered()
        self._told(viewer, "client.attached", observe=viewer.observe)
        number = session.lane.acked(conn.client)
        facts: dict[str, object] = {"observe": viewer.observe}
        others: tuple[str, ...] = ()
        if (inside := self._insiders.of(conn)) is not None:
            facts["inside"], others = inside.show(), inside.others(conn.operator)
        self._journal.post(typist.fact("attach", number=number, facts=facts, originators=others))

    def end(self, viewer: Viewer, how: str) -> None:
        viewer.held.clear()
        typist, _ = known = self._typists.pop(viewer)
        if how == "ended":
            self._last[viewer] = known
        self._told(viewer, "client.left", how=how)
        self._journal.post(typist.fact("leave", facts={"how": how}))
        self.recheck()

    def _told(self, viewer: Viewer, event: str, **facts: object) -> None:
        """Notes that a client attached or left, with facts that identify the execution."""
        session, conn = self._session, viewer.conn
        session.event(
            event,
            operator=conn.operator,
            kind=conn.kind,
            modality=conn.modality,
            **facts,
            **session.position,
        )

    def recheck(self) -> None:
        """Withdraws the pass: the next key is checked."""
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
            # Without the right the error is NotAllowed.
            self._rights.require(
                viewer.conn.key, "input", self._session.id, time.time(), spend=False
            )
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
            return  # a repeat: sent before, or waiting
        if session.lane.used(conn.client, number):
            raise Refused(
                f"number {number} of this client was used already", "number every act anew"
            )
        if viewer not in self._typists:
            raise Refused("not attached any more", "attach again")
        self._insiders.check(conn, "keys")
        now = time.time()
        self._rights.require(conn.key, "input", session.id, now)
        session.turn.check(conn.operator, take=False)
        if not judged:
            self._judge(viewer, data)
        session.turn.check(conn.operator)
        if viewer.size != session.size:
            session.viewers.follow_size(viewer)
        self._send(viewer, number, data, ack, mono := time.monotonic())
        lasts = self._rights.lasts(conn.key, "input", session.id, now)
        # Every key of other kinds is judged, by the program that reads the key.
        free = lasts > 0 and conn.kind == "human" and data[-1:] not in _LINE_END
        if free and viewer.inside is None:
            self.passed, self._until = viewer, mono + min(PASS_S, lasts)

    def _judge(self, viewer: Viewer, data: bytes) -> None:
        """Judges a person's key at once, by rules alone; for others it finds the reader first."""
        if (decision := self._quick(viewer, data)) is None:
            raise _Wait
        self._gate.decisions["keys", decision.verdict.value] += 1
        if decision.verdict is not Verdict.ALLOW:
            raise refusal(decision)

    def _quick(self, viewer: Viewer, data: bytes) -> Decision | None:
        """The decision on a person's key, if no parser, plug-in or look at the reader is needed."""
        if viewer.conn.kind != "human":
            return None
        return self._gate.quick(quick_keys_request(self._session, viewer.conn, data))

    def _send(self, viewer: Viewer, number: int, data: bytes, ack: bool, now: float) -> None:
        session = self._session
        conn = viewer.conn
        viewer.typed_at = now
        if b"\r" in data or b"\n" in data:
            typist = self._typists[viewer][0]
            self._lines.look(conn, typist, number, data, self._rights.several)
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
        """Tells the sender."""
        self.not_taken += 1
        self._session.turn.contended(viewer.conn.operator, error)
        viewer.conn.event("refused", number=number, **error.to_wire())

    async def _look_then_type(self, viewer: Viewer) -> None:
        """Waits for another operator's line or a slow policy, then handles the keys in order."""
        refused: HoldfastError | None = None
        with contextlib.suppress(Unavailable):
            await self._session.turn.look()
        while viewer.held:
            number, data, ack = viewer.held[0]
            try:
                slow = self._quick(viewer, data) is None
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

    async def cover(self, viewer: Viewer, signed: Signed) -> Written:
        """Checks the actor's signature over typed keys and records the signature."""
        if (known := self._typists.get(viewer) or self._last.get(viewer)) is None:
            raise Refused("not attached any more", "attach again")
        typist, uncovered = known
        try:
            body, signature = signed.statement.encode(), bytes.fromhex(signed.signature)
            said = record.read_statement(body, signature, typist.key or "")
            record.expect(
                said,
                machine=self._journal.machine,
                session=typist.session,
                epoch=typist.epoch,
                client=typist.client,
                binding=viewer.conn.binding,
            )
            salt = bytes.fromhex(signed.salt)
        except ValueError as e:
            raise NotAllowed(f"this is not what {viewer.conn.operator} signed: {e}") from e
        return await asyncio.shield(
            self._session.spawn(self._cover(typist, uncovered, said, salt, body, signature))
        )

    async def _cover(
        self,
        typist: Typist,
        uncovered: Uncovered,
        said: dict[str, Any],
        salt: bytes,
        body: bytes,
        signature: bytes,
    ) -> Written:
        if said["seen"] is not None and not await self._journal.knows(typist.session, said["seen"]):
            raise Stale("much has happened in this session since you looked")
        if not uncovered.cover(said, salt):
            raise Usage("these are not the keys that came", "they stay covered by the channel only")
        return await self._journal.cover(typist, body, signature)


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
