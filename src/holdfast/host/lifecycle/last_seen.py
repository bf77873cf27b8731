"""Keeps descriptions of living sessions in the store, for the next incarnation (R1).

A description has the request that made the session, and what the host last saw: the directory, the
exported variables and the running programs. It is written when the session is made, and a moment
after a command begins or ends. A program that is no known shell reports no commands: of its session
only the request is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.session.incarnation import RUNNING_CHARS, RUNNING_KEPT, LastSeen, Running
from holdfast.core.session.limits import Limits
from holdfast.host.lifecycle.contained.plan import Wanted as WantedTree
from holdfast.host.lifecycle.environment import of_account
from holdfast.host.lifecycle.limits import Wanted as WantedLimits
from holdfast.host.processes import proc_scan, process
from holdfast.host.runtime.saver import Saver
from holdfast.host.storage.store import forget_description
from holdfast.model.errors import Unavailable
from holdfast.wire.spawning import HALTED_NAME, INIT_NAME

if TYPE_CHECKING:
    from holdfast.host.lifecycle.prepare import NewSession
    from holdfast.host.session.session import Session
    from holdfast.host.storage.remembered import Remembered
    from holdfast.host.storage.store import Job, SessionRow, Store

PAUSE_SHARE: Final = 20.0  # looking takes at most this part of the time: one in twenty
_INITS: Final = (INIT_NAME.decode(), HALTED_NAME.decode()[:15], "hf-root")


class Description:
    """The stored description of a session."""

    def __init__(
        self,
        request: Mapping[str, Any],
        operator: str,
        last: LastSeen | None,
        shortened: bool = False,
    ) -> None:
        """`shortened`: variables are missing, because there were too many to store."""
        self.request, self.operator, self.last = request, operator, last
        self.shortened = shortened

    @classmethod
    def of(cls, request: NewSession, operator: str) -> Description:
        tree = request.decision.wanted if request.decision is not None else None
        return cls(
            {
                "argv": list(request.argv),
                "cwd": request.cwd,
                "env": request.env,
                "umask": request.umask,
                "contained": request.contained,
                "given": list(request.given),
                "gate": request.gate,
                "limits": [dict(request.limits.limits._asdict()), sorted(request.limits.given)],
                "tree": None
                if tree is None
                else {
                    "human": tree.human,
                    "share": list(tree.share),
                    "doors": list(tree.doors),
                    "net": tree.net,
                    "keep_home": tree.keep_home,
                    "chosen": tree.chosen,
                    "publish": list(tree.publish),
                },
                "net": "" if request.decision is None else request.decision.terms.net,
                "maker_kind": request.maker_kind,
                "clipboard": request.clipboard,
            },
            operator,
            None,
        )

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> Description:
        last = saved["last"]
        return cls(
            dict(saved["request"]),
            str(saved["operator"]),
            None if last is None else LastSeen.restore(last),
            bool(saved.get("shortened")),
        )

    def save(self) -> dict[str, Any]:
        return {
            "request": dict(self.request),
            "operator": self.operator,
            "last": None if self.last is None else self.last.save(),
            **({"shortened": True} if self.shortened else {}),
        }

    def forms(self) -> Iterator[dict[str, Any]]:
        """What can be stored, the best first; the others lack variables."""
        yield self.save()
        last = None if self.last is None else self.last._replace(environment=None)
        yield Description(self.request, self.operator, last, True).save()
        request = {**self.request, "env": of_account(), "given": []}
        yield Description(request, self.operator, last, True).save()

    def limits(self) -> WantedLimits:
        values, given = self.request["limits"]
        return WantedLimits(Limits(**values), frozenset(given))

    def tree(self) -> WantedTree | None:
        found = self.request["tree"]
        if found is None:
            return None
        return WantedTree(self.request["cwd"], self.request["env"], **found)


class Descriptions:
    def __init__(
        self, database: Store, remembered: Remembered, keeps: Callable[[SessionRow], bool]
    ) -> None:
        """`keeps`: whether an ended session can come back."""
        self._store, self._remembered, self._keeps = database, remembered, keeps
        self._of: dict[str, Description] = {}
        self._closed = False
        self._savers: dict[str, Saver] = {}
        self._environments: dict[str, Mapping[str, str]] = {}  # since the last save

    def job(self, session_id: str, description: Description) -> Job:
        """Notes the description of a new incarnation; the job stores it."""
        self._of[session_id] = description
        return self._remembered.save(session_id, description.forms())

    def has(self, session_id: str) -> bool:
        return session_id in self._of or self._remembered.has(session_id)

    def known(self, session_id: str) -> Description | None:
        """The description of a session; None if there is none, or if it cannot be read."""
        if session_id not in self._of:
            if (found := self._remembered.take(session_id)) is None:
                return None
            self._of[session_id] = Description.restore(found)
        return self._of[session_id]

    def forget(self, session_id: str) -> None:
        self._of.pop(session_id, None)
        self._store.post(forget_description(session_id))

    def begin(self, session: Session) -> None:
        if self.known(session.id) is None:
            return  # an older build made the session
        saver = self._savers[session.id] = Saver(
            lambda: self._save(session), session.spawn, PAUSE_SHARE
        )
        session.commands.listeners.append(lambda effects: saver.soon())
        session.commands.shell_state.on_environment = lambda found: self._exported(session, found)

    def end(self, session: Session) -> None:
        if (saver := self._savers.pop(session.id, None)) is not None:
            saver.close()
        environment = self._environments.pop(session.id, None)
        if session.ended.done() and not self._keeps(session.record):
            self.forget(session.id)
        elif environment is not None and not self._closed:
            self._end_between_saves(session, environment)

    def _end_between_saves(self, session: Session, environment: Mapping[str, str]) -> None:
        """The shell told its last variables, and the session ended before the next save."""
        if (known := self._of.get(session.id)) is None:
            return
        shell = session.commands.shell_state.view.state
        before = known.last or LastSeen(time.time())
        cwd = shell.cwd if shell is not None else ""
        known.last = before._replace(cwd=cwd or before.cwd, environment=environment)
        self._store.post(self._remembered.save(session.id, known.forms()))

    def close(self) -> None:
        self._closed = True
        for saver in self._savers.values():
            saver.close()

    def _exported(self, session: Session, environment: Mapping[str, bytes]) -> None:
        self._environments[session.id] = {
            name: value.decode("utf-8", "surrogateescape") for name, value in environment.items()
        }

    async def _save(self, session: Session) -> None:
        known = self._of.get(session.id)
        if known is None or session.ended.done() or self._closed:
            return
        try:
            cwd, found = await session.looked(_look, session)
        except Unavailable:
            return
        lineage, shell = session.commands.lineage, session.commands.shell_state.view.state
        cwd = cwd or (shell.cwd if shell is not None else "")  # inside, if it is contained
        before = known.last
        environment = self._environments.pop(session.id, before.environment if before else None)
        causes = [(argv, lineage.of(pid)) for pid, argv in found]
        last = LastSeen(
            time.time(),
            cwd or (before.cwd if before else ""),
            environment,
            tuple(Running(argv, cause.actor, cause.ref(session.ref)) for argv, cause in causes),
        )
        if before is not None and last._replace(at=before.at) == before:
            return
        known.last = last
        self._store.post(self._remembered.save(session.id, known.forms()))


def _look(session: Session) -> tuple[str | None, Sequence[tuple[int, str]]]:
    """The directory of the first program, and the words of the others. Runs in a thread.

    A subshell, which has executed no program, has no words.
    """
    first = session.record.root_pid
    shell = process.read_argv(first) if session.commands.kind is not None else None
    found = list[tuple[int, str]]()
    for one in proc_scan.of_session(session.keeper_pid):
        if one.pid == first or one.state == "Z" or one.comm in _INITS:
            continue
        if argv := process.read_argv(one.pid):
            found.append((one.pid, "" if argv == shell else " ".join(argv)[:RUNNING_CHARS]))
        if len(found) == RUNNING_KEPT:
            break
    return process.cwd_of(first), found
