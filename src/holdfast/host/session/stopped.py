"""The operators that are stopped in a session: their processes stand still, their acts are refused.

A stop lasts until a resume, also when the host dies. So the stops are saved before the kernel is
asked to stop a process, and the next host stops the processes again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Final

from holdfast.core.session.stopping import refused
from holdfast.host.runtime import handover_file
from holdfast.model.errors import OperatorStopped, Refused

FILE: Final = "stopped"  # in the session's directory
FILE_BYTES: Final = 4 << 20
STOPPED_MAX: Final = 64  # operators of a session


@dataclass(frozen=True, slots=True)
class Stop:
    operator: str
    by: str
    since: float
    how: str = ""
    group: str = ""  # the directory of the frozen group; empty: stopped by signals
    processes: tuple[tuple[int, int], ...] = ()  # pid and start time
    signalled: tuple[tuple[int, int], ...] = ()  # of these, those that a resume has to signal


class StoppedOperators:
    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{FILE}"
        self._stops: dict[str, Stop] = {}
        try:
            saved = json.loads(handover_file.read(self._path, FILE_BYTES))
            for operator, by, since, how, group, *lists in saved:
                found = [tuple((int(pid), int(start)) for pid, start in one) for one in lists]
                self._stops[operator] = Stop(operator, by, since, how, group, *found)
        except (OSError, ValueError, TypeError):
            pass

    def take_over(self, before: StoppedOperators) -> None:
        """Keeps the stops of a lost incarnation, whose processes are gone."""
        for stop in before:
            self._put(Stop(stop.operator, stop.by, stop.since))

    def __bool__(self) -> bool:
        return bool(self._stops)

    def __iter__(self) -> Iterator[Stop]:
        return iter([*self._stops.values()])

    def get(self, operator: str) -> Stop | None:
        return self._stops.get(operator)

    def begin(self, operator: str, by: str, how: str, group: str) -> None:
        if operator not in self._stops and len(self._stops) >= STOPPED_MAX:
            raise Refused(f"{STOPPED_MAX} operators are stopped already", "`holdfast halt SESSION`")
        self._put(Stop(operator, by, time.time(), how, group))

    def found(
        self,
        operator: str,
        processes: tuple[tuple[int, int], ...],
        signalled: tuple[tuple[int, int], ...],
    ) -> None:
        """Notes which processes stand still; those of an earlier look stay known."""
        if (stop := self._stops.get(operator)) is not None:
            known = dict.fromkeys((*stop.processes, *processes))
            signals = dict.fromkeys((*stop.signalled, *signalled))
            self._put(replace(stop, processes=tuple(known), signalled=tuple(signals)))

    def remove(self, operator: str) -> None:
        if self._stops.pop(operator, None) is not None:
            self._save()

    def refuse(self, operator: str, kind: str = "", act: str = "") -> None:
        """Raises OperatorStopped for an act of an operator that another operator stopped here.

        `kind` and `act` matter only for the acts that a stop may leave to an operator.
        """
        stop = self._stops.get(operator)
        if stop is not None and refused(act, operator, kind, stop.by):
            raise OperatorStopped(
                f"{stop.by} stopped {operator} in this session",
                f"another operator resumes: `holdfast resume SESSION --operator {operator}`",
                operator=operator,
                by=stop.by,
            )

    def _put(self, stop: Stop) -> None:
        self._stops[stop.operator] = stop
        self._save()

    def _save(self) -> None:
        handover_file.write(self._path, (json.dumps([*map(astuple, self._stops.values())]),))
