"""The end of a command that no client follows any more: a server that dies later, a lost run.

- When a process that outlived the command (a background job, a daemon) exits, the host reports the
  event `process.exited`. No client waits for that process, so without the event no operator would
  learn of the exit. The event has the exit code or signal, and the act and actor that started the
  process. The event names the program, but not the arguments, which may hold secrets.
- When a run finishes after the client has gone, the exit code goes into the record as the host's
  testimony (`exit`). The outcome "applied", recorded when the client went away, stays beside it.
- `left_by` lists the processes that an act has left: the running processes, from the kernel, and
  the dead processes.

The events need the kernel's reports of exits (host/processes/process_events.py). Without these
reports there are no events, and `graph` still shows the running processes. A shell that does not
mark the start of a command (POSIX sh) cannot tell which processes outlive a command: such sessions
have no events either. Names are read NAME_S after a process started; a process that dies sooner has
no name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.originators.lineage import Cause, Member
from holdfast.core.people.rate import Bucket, take
from holdfast.core.record.record import client_id, host_fact, shown
from holdfast.core.session.shell_marks import RunDone
from holdfast.host.processes import proc_scan, process
from holdfast.host.processes.argv import words
from holdfast.host.session.session import Session
from holdfast.model.errors import Unavailable
from holdfast.model.references import Ref

if TYPE_CHECKING:
    import apsw

    from holdfast.host.originators.lineage import Lineages
    from holdfast.host.storage.journal import Journal
    from holdfast.host.storage.store import Store

NAME_S: Final = 0.5  # after a fork: by then the process has executed a program
NAMES_AT_ONCE: Final = 512
# At most so many events of a session in so many seconds; the rest are counted.
REPORTED_COUNT, REPORTED_S = 32, 10
DIED_SHOWN: Final = 8
DIED_SEARCHED: Final = 500  # among the newest exits
ENTRIES: Final = 500  # newest entries of a record, searched for the intent of a run
MARKED: Final = ("bash", "zsh")  # shells that mark the start of a command


class _Session:
    """The program names of a session, and the rate limit of the session's events."""

    def __init__(self, now: float) -> None:
        self.names: dict[int, str] = {}
        self.naming: asyncio.TimerHandle | None = None
        self.bucket, self.untold = Bucket(REPORTED_COUNT, REPORTED_S, now), 0


class BackgroundExits:
    """One per host."""

    def __init__(self, lineages: Lineages, journal: Journal, store: Store) -> None:
        self._lineages, self._journal, self._store = lineages, journal, store
        self._sessions: dict[str, _Session] = {}

    def begin(self, session: Session) -> None:
        known = self._sessions[session.id] = _Session(session.loop.time())
        session.commands.on_alone = lambda run: self._finished_alone(session, run)
        if session.commands.kind in MARKED:
            self._name_soon(session, known)

    def end(self, session: Session) -> None:
        known = self._sessions.pop(session.id, None)
        if known is not None and known.naming is not None:
            known.naming.cancel()

    # ------------------------------------------------------------ processes

    def name_of(self, session: str, pid: int) -> str:
        """The program of a process, also if the process has just exited; empty: not known."""
        known = self._sessions.get(session)
        return known.names.get(pid, "") if known is not None else ""

    def process_changed(
        self, session: Session, what: str, pid: int, status: int | None, was: Member | None
    ) -> None:
        known = self._sessions.get(session.id)
        if known is None or session.commands.kind not in MARKED:
            return
        if what == "started":
            self._name_soon(session, known)
            return
        name = known.names.pop(pid, "")
        lineage = session.commands.lineage
        if was is None or status is None or not lineage.over(was.cause) or session.ending:
            return
        if was.parent != lineage.root and was.parent in lineage.members:
            return  # the parent lives and collects the exit code
        if take([known.bucket], session.loop.time()) > 0:
            known.untold += 1
            return
        untold, known.untold = known.untold, 0
        session.event(
            "process.exited",
            pid=pid,
            program=name,
            **process.ended(status),
            actor=was.cause.actor,
            act=was.cause.ref(session.ref),
            **({"untold": untold} if untold else {}),
        )

    def _name_soon(self, session: Session, known: _Session) -> None:
        if known.naming is None:
            known.naming = session.loop.call_later(NAME_S, self._name, session, known)

    def _name(self, session: Session, known: _Session) -> None:
        known.naming = None
        if not session.ended.done():
            lineage = session.commands.lineage
            unnamed = [
                pid for pid in lineage.members if pid not in known.names and pid != lineage.root
            ][:NAMES_AT_ONCE]
            if unnamed:
                session.spawn(self._read_names(session, known, unnamed))

    async def _read_names(self, session: Session, known: _Session, pids: list[int]) -> None:
        names = await asyncio.to_thread(
            lambda: {pid: one.comm for pid in pids if (one := process.read_stat(pid)) is not None}
        )
        members = session.commands.lineage.members
        known.names = {pid: name for pid, name in (known.names | names).items() if pid in members}

    # ------------------------------------------------------------ runs

    def _finished_alone(self, session: Session, run: RunDone) -> None:
        cause = session.commands.lineage.now if not session.commands.lineage.already_known else None
        session.spawn(self._record(session, run, cause))

    async def _record(self, session: Session, run: RunDone, cause: Cause | None) -> None:
        """Record the exit code of a run once: the next host may see the run's mark again."""
        client, _, number = run.run.partition("-")
        if not number.isdigit():
            return
        run_client, journal = client_id(int(client, 16)), self._journal
        await journal.settled()
        entries = [
            shown(written) for written in await journal.read(session.id, limit=ENTRIES, newest=True)
        ]
        wanted = ("intent", run_client, int(number))
        mine = next((e for e in entries if (e["phase"], e["client"], e["number"]) == wanted), None)
        if mine is None or any(
            e["intent"] == mine["seq"] and "exit_code" in e["facts"]
            for e in entries
            if e["phase"] == "outcome"
        ):
            return
        if any(e["kind"] == "exit" and e["facts"].get("of") == mine["seq"] for e in entries):
            return
        act = cause.ref(session.ref) if cause is not None else None
        kernel = session.commands.kernel_exits.get(run.run)
        said = session.commands.contradicted.get(run.run)
        facts = {
            "of": mine["seq"],
            "exit_code": run.exit,
            "act": act,
            **({} if kernel is None else {"kernel_exit": kernel}),
            **({} if said is None else {"shell_exit": said.shell}),
        }
        who = (mine["actor"], mine["modality"])
        journal.post(host_fact(session.id, session.record.epoch, "exit", *who, facts=facts))

    # ------------------------------------------------------------ the processes of an act

    async def left_by(self, session: Session, act: int) -> dict[str, Any]:
        """The running and dead processes of an act, and the command's exit code if known."""
        lineages, lineage = self._lineages, session.commands.lineage
        before = lineages.looking(session)
        living = await asyncio.to_thread(proc_scan.of_session, session.keeper_pid)
        lineages.seen(session, {one.pid: (one.start, one.ppid) for one in living}, before)
        mine = [
            one
            for one in living
            if one.state != "Z" and one.pid != lineage.root and lineage.of(one.pid).act == act
        ]
        said = await words(session, [one.pid for one in mine])
        running = [{"pid": one.pid, "command": said.get(one.pid, one.comm)} for one in mine]
        now, idle = lineage.now, session.commands.shell.at_prompt
        code = lineage.exits.get(act)
        if code is None:  # the last host learned the exit code and died before it saved the lineage
            code = await self.recorded_exit(session.id, session.record.epoch, act)
        return {
            "under_way": False
            if idle or code is not None
            else now.act == act
            if now is not None
            else None,
            "exit_code": code,
            "running": running,
            "died": await self._died(session, f"{session.ref}#{act}"),
        }

    async def recorded_exit(self, session: str, epoch: int, act: int) -> int | None:
        """The exit code of an act by the record; None: not recorded."""
        await self._journal.settled()
        # In the outcome, and in the testimony `exit`, which a later incarnation may have given.
        named, intent = (act, str(Ref(session, epoch, act))), None
        after = 0
        while found := await self._journal.read(session, after):
            for entry in map(shown, found):
                facts = entry["facts"]
                ours = entry["epoch"] == epoch and facts.get("act") in named
                if ours and entry["phase"] == "outcome":
                    intent = entry["intent"]
                ours = ours or (intent is not None and facts.get("of") == intent)
                if ours and isinstance(facts.get("exit_code"), int):
                    return int(facts["exit_code"])
            after = found[-1].seq
        return None

    async def _died(self, session: Session, act: str) -> list[dict[str, Any]]:
        try:
            found = await self._store.run(_exits_of(session.id))
        except Unavailable:
            return []
        return [one for one in found if one["act"] == act][:DIED_SHOWN]


def _exits_of(session: str) -> Callable[[apsw.Connection], list[dict[str, Any]]]:
    def job(db: apsw.Connection) -> list[dict[str, Any]]:
        rows = db.execute(
            "SELECT at, body FROM events WHERE session = ? AND event = 'process.exited' "
            "ORDER BY number DESC LIMIT ?",
            (session, DIED_SEARCHED),
        ).fetchall()
        return [{"time": at, **json.loads(str(body))} for at, body in rows]

    return job
