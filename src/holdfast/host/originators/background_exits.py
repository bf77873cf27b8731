"""What becomes of a command after whoever gave it has stopped looking: a server that dies later, a run whose client was killed in the middle of it.

- A process that outlived the command which started it (a background job, a daemon) and exits is an event, `process.exited`: with its exit code or signal, the act that started it and whose
  that was. Nobody waits for such a one, so without the event nobody would know. Its program is named, not its arguments: those may hold what nobody wants to be kept.
- A run that finishes when nobody follows it any more has its exit code in the record, as the host's word (`exit`), beside the outcome that said "applied" when its client went away.
- What an act has left can be asked (`left_by`): what of it runs now, from the kernel, and what of it has died.

It needs the kernel's word about exits (host/procevents.py); where that cannot be had there are no such events, and `graph` still says what runs. A shell without marks for its commands' beginnings
(POSIX sh) does not say what outlives them: there are none of it either. Names are read NAME_S after something was started: what dies sooner has none.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.commands import RunDone
from holdfast.core.lineage import Cause, Member
from holdfast.core.rate import Bucket, take
from holdfast.core.record import HOST, Draft, client_id, shown
from holdfast.host import observe, process
from holdfast.host.session import Session
from holdfast.host.words import words
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    import apsw

    from holdfast.host.engine import Engine

NAME_S: Final = 0.5  # after something was started: it has become its program by then
NAMES_AT_ONCE: Final = 512
TOLD_COUNT, TOLD_S = 32, 10  # such events of one session in so many seconds; the rest are counted
DIED_SHOWN: Final = 8
DIED_SEARCHED: Final = 500  # of the newest
ENTRIES: Final = 500  # of a record, among which a run's own is looked for
MARKED: Final = ("bash", "zsh")  # shells that say when they begin a command


class _Left:
    """What is known of one session."""

    def __init__(self, now: float) -> None:
        self.names: dict[int, str] = {}
        self.naming: asyncio.TimerHandle | None = None
        self.bucket, self.untold = Bucket(TOLD_COUNT, TOLD_S, now), 0


class Aftermath:
    """One per host."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: dict[str, _Left] = {}
        engine.kin.on_change.append(self._changed)

    def begin(self, session: Session) -> None:
        left = self._left[session.id] = _Left(session.loop.time())
        session.commands.on_alone = lambda run: self._alone(session, run)
        if session.commands.kind in MARKED:
            self._name_soon(session, left)

    def end(self, session: Session) -> None:
        if (left := self._left.pop(session.id, None)) is not None and left.naming is not None:
            left.naming.cancel()

    # ------------------------------------------------------------ processes

    def _changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        left = self._left.get(session.id)
        if left is None or session.commands.kind not in MARKED:
            return
        if what == "started":
            self._name_soon(session, left)
            return
        name = left.names.pop(pid, "")
        lineage = session.commands.lineage
        if was is None or status is None or not lineage.over(was.cause) or session.ending:
            return
        if was.parent != lineage.root and was.parent in lineage.members:
            return  # whoever started it lives, and learns it
        if take([left.bucket], session.loop.time()) > 0:
            left.untold += 1
            return
        untold, left.untold = left.untold, 0
        session.event(
            "process.exited",
            pid=pid,
            program=name,
            **ended(status),
            actor=was.cause.actor,
            act=was.cause.ref(session.ref),
            **({"untold": untold} if untold else {}),
        )

    def _name_soon(self, session: Session, left: _Left) -> None:
        if left.naming is None:
            left.naming = session.loop.call_later(NAME_S, self._name, session, left)

    def _name(self, session: Session, left: _Left) -> None:
        left.naming = None
        if not session.ended.done():
            lineage = session.commands.lineage
            unnamed = [
                pid for pid in lineage.members if pid not in left.names and pid != lineage.root
            ][:NAMES_AT_ONCE]
            if unnamed:
                session.spawn(self._read(session, left, unnamed))

    async def _read(self, session: Session, left: _Left, pids: list[int]) -> None:
        names = await asyncio.to_thread(
            lambda: {pid: one.comm for pid in pids if (one := process.read_stat(pid)) is not None}
        )
        members = session.commands.lineage.members
        left.names = {pid: name for pid, name in left.names.items() if pid in members} | {
            pid: name for pid, name in names.items() if pid in members
        }

    # ------------------------------------------------------------ runs

    def _alone(self, session: Session, run: RunDone) -> None:
        cause = session.commands.lineage.now if not session.commands.lineage.again else None
        session.spawn(self._record(session, run, cause))

    async def _record(self, session: Session, run: RunDone, cause: Cause | None) -> None:
        """A mark may be seen again by the next host: what is recorded already is not recorded twice."""
        client, _, number = run.run.partition("-")
        if not number.isdigit():
            return
        whose, journal = client_id(int(client, 16)), self._engine.journal
        await journal.settled()
        entries = [
            shown(written) for written in await journal.read(session.id, limit=ENTRIES, newest=True)
        ]
        mine = next(
            (
                e
                for e in entries
                if e["phase"] == "intent" and e["client"] == whose and e["number"] == int(number)
            ),
            None,
        )
        if mine is None or any(
            e["intent"] == mine["seq"] and "exit_code" in e["facts"]
            for e in entries
            if e["phase"] == "outcome"
        ):
            return
        if any(e["kind"] == "exit" and e["facts"].get("of") == mine["seq"] for e in entries):
            return
        journal.post(
            Draft(
                session.id,
                session.record.epoch,
                "fact",
                "exit",
                mine["actor"],
                mine["modality"],
                HOST,
                originators=(),
                facts={
                    "of": mine["seq"],
                    "exit_code": run.exit,
                    "act": cause.ref(session.ref) if cause is not None else None,
                },
            )
        )

    # ------------------------------------------------------------ what an act has left

    async def left_by(self, session: Session, act: int) -> dict[str, Any]:
        """What of it runs, what of it has died, and how the command itself exited, as far as that is known."""
        kin, lineage = self._engine.kin, session.commands.lineage
        before = kin.looking(session)
        living = await asyncio.to_thread(observe.descendants, session.keeper_pid, False)
        kin.seen(session, {one.pid: (one.start, one.ppid) for one in living}, before)
        mine = [
            one
            for one in living
            if one.state != "Z" and one.pid != lineage.root and lineage.of(one.pid).act == act
        ]
        said = await words(session, [one.pid for one in mine])
        running = [{"pid": one.pid, "command": said.get(one.pid, one.comm)} for one in mine]
        now, idle = lineage.now, session.commands.shell.at_prompt
        return {
            "under_way": False
            if idle or act in lineage.exits
            else now.act == act
            if now is not None
            else None,
            "exit_code": lineage.exits.get(act),
            "running": running,
            "died": await self._died(session, f"{session.ref}#{act}"),
        }

    async def _died(self, session: Session, act: str) -> list[dict[str, Any]]:
        try:
            found = await self._engine.store.write(_exits_of(session.id))
        except Unavailable:
            return []
        return [one for one in found if one["act"] == act][:DIED_SHOWN]


def _exits_of(session: str) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    def job(db: apsw.Connection) -> list[dict[str, Any]]:
        rows = db.execute(
            "SELECT at, body FROM events WHERE session = ? AND event = 'process.exited' ORDER BY number DESC LIMIT ?",
            (session, DIED_SEARCHED),
        ).fetchall()
        return [{"time": at, **json.loads(str(body))} for at, body in rows]

    return job


def ended(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status & 0xFFFF)
    if code >= 0:
        return {"exit_code": code, "signal": None}
    try:
        return {"exit_code": None, "signal": signal.Signals(-code).name}
    except ValueError:
        return {"exit_code": None, "signal": f"signal {-code}"}
