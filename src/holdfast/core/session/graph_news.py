"""Which changes of a session's graph are news to a follower that reconnects. Pure.

After each connection the host sends `present`, the whole state, and then that state as changes.
A follower that lost its host reports what vanished meanwhile, and nothing a second time.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.model.jsontext import Json

SAME_START_S = 1.0  # the start of a process, as two hosts compute it from the time of the boot
BLOCKED = ("input", "secret")


class GraphNews:
    """The processes, listeners and waits that a follower has reported."""

    def __init__(self) -> None:
        self._processes: dict[int, Json] = {}  # by pid
        self._listening: dict[tuple[object, object], Json] = {}
        self._blocked = ""

    def is_news(self, change: Json) -> bool:
        """Take note of a change; whether the follower has to report the change."""
        what, pid = change["change"], change.get("pid")
        if what == "started" and isinstance(pid, int):
            known = self._processes.get(pid)
            self._processes[pid] = change
            return known is None or not _same(known["started"], change["started"])
        if what == "listening":
            place = (pid, change["local"])
            known = self._listening.get(place)
            self._listening[place] = change
            return known is None
        if what == "exited" and isinstance(pid, int):
            self._processes.pop(pid, None)
        elif what == "closed":
            self._listening.pop((pid, change["local"]), None)
        elif what in ("blocked", "unblocked"):
            before, now = self._blocked, change["waiting"]["for"] if what == "blocked" else ""
            self._blocked = now
            return bool(before != now)
        return True

    def returned(self, present: Json) -> Iterator[Json]:
        """The changes that happened while no host was there, from the host's `present`."""
        living: dict[int, float] = {int(pid): start for pid, start in present["processes"]}
        listening = {(pid, local) for pid, local in present["listening"]}
        for pid, one in list(self._processes.items()):
            if pid not in living or not _same(one["started"], living[pid]):
                yield self._gone(one, "exited", present, {"exit_code": None, "signal": None})
        for place, one in list(self._listening.items()):
            if place not in listening:
                yield self._gone(one, "closed", present, {})
        if self._blocked and present["waiting"]["for"] not in BLOCKED:
            more = {"waiting": present["waiting"], "command": present["command"]}
            yield {"change": "unblocked", "time": present["time"], **more}

    def _gone(self, one: Json, change: str, present: Json, more: Json) -> Json:
        facts = {name: value for name, value in one.items() if name != "was"}
        return {**facts, "change": change, "time": present["time"], **more}


def _same(one: float, other: float) -> bool:
    return abs(one - other) < SAME_START_S


def present(
    processes: Sequence[tuple[int, float]],
    listening: Sequence[tuple[int, str]],
    waits: tuple[str, str, str],
) -> Json:
    """The body of the event `present`."""
    return {
        "processes": [[pid, started] for pid, started in processes],
        "listening": [[pid, local] for pid, local in listening],
        "waiting": {"for": waits[0], "why": waits[1]},
        "command": waits[2],
    }
