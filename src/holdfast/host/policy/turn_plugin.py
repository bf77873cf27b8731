"""A turn policy that a package provides (A2): found by the entry point group `holdfast.turn`.

The plug-in runs in a worker process with the limits of a policy plug-in (host/policy/plugins.py). A
plug-in that gives no valid answer decides nothing: the caller then uses the built-in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from holdfast.core.session.turn import NoAnswer, Placed, Request
from holdfast.host.policy.plugins import Failed, Plugin, Worker, discover
from holdfast.host.runtime.threads import Quota, Stuck, Threads

GROUP: Final = "holdfast.turn"
QUOTA: Final = Quota("turn plug-in", 2)  # threads that wait for an answer


class TurnPlugin:
    def __init__(
        self, name: str, threads: Threads, worker: Callable[[Plugin], Worker] = Worker
    ) -> None:
        self.name, self._threads = name, threads
        found = next((one for one in discover(GROUP) if one.name == name), None)
        self._worker = None if found is None else worker(found)
        if self._worker is not None:
            threads.pool.submit(self._worker.start)

    async def place(
        self, facts: Mapping[str, object], queue: Sequence[Request], request: Request
    ) -> Placed | None:
        """The queue that the plug-in wants; None: no opinion. NoAnswer: no valid answer."""
        if self._worker is None:
            raise NoAnswer(f"no plug-in of the group {GROUP} has this name")
        question = {**facts, "queue": list(map(_shown, queue)), "request": _shown(request)}
        try:
            said = await self._threads.do((QUOTA,), self._worker.ask, question)
        except Stuck as e:
            raise NoAnswer("it was busy for too long") from e
        except Failed as e:
            raise NoAnswer(str(e)) from e
        if said is None:
            return None
        known = {one.operator for one in (*queue, request)}
        if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
            raise NoAnswer("its answer is no list of operators")
        if len(set(said)) != len(said) or not known.issuperset(said):
            raise NoAnswer("its answer names an operator twice, or one that does not wait")
        return Placed(tuple(said))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def _shown(request: Request) -> dict[str, object]:
    return {"operator": request.operator, "kind": request.kind, "since": request.at}
