"""What is decided about halting: which words are used, who is continued and in which order, which group is a session's.

Pure. The kernel is asked in host/halt.py and host/groups.py.

Who was stopped before (a job put aside with Ctrl-Z) must stay so after a resume. A halt without a control group marks them: a
stop signal other than SIGSTOP, which a stopped process does not take and so keeps pending. Thus the kernel itself remembers,
and no file or table of ours can be wrong or lost about it. Continued later by its shell, such a process loses the mark: SIGCONT
discards pending stop signals. (One that ignores all three of them cannot be marked, and is continued.)

Shells first, children first. A shell that runs after its child was stopped sees it, says so and gives up its job (measured: "[1]+
Stopped", status 147). So who waits for jobs is stopped before all others, and continued after them, and never knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

How = Literal["cgroup freeze", "pid namespace stop", "best effort"]
FREEZE: Final[How] = "cgroup freeze"
NAMESPACE: Final[How] = "pid namespace stop"
BEST_EFFORT: Final[How] = "best effort"

SAYS: Final[dict[How, str]] = {
    FREEZE: "halt freezes every process of it, by the kernel",
    NAMESPACE: "halt stops every process of it, by process 1 of its pid namespace",
    BEST_EFFORT: "halt is best effort: a walk over its processes that quick forking can outrun",
}

MARKS: Final = (22, 21, 20)  # SIGTTOU, SIGTTIN, SIGTSTP
_SIGSTOP: Final = 1 << 18  # signal 19
_MARKED: Final = sum(1 << (number - 1) for number in MARKS)
RUNS_NOT: Final = frozenset("TtZX")  # stopped, traced, dead


class Member(NamedTuple):
    """A process of a session, as /proc/PID/status has it."""

    pid: int
    parent: int
    state: str
    pending: int  # signals sent to the process as a whole and not taken, as a bit set
    namespaced: tuple[int, ...] = ()  # its pids, from the reader's namespace inward
    group: int = 0
    session: int = 0
    ignored: int = 0

    @property
    def running(self) -> bool:
        """Not so in an uninterruptible wait with a SIGSTOP to come: it stops before it does anything. (A shell whose child was
        stopped before its exec waits so: vfork.)"""
        return self.state not in RUNS_NOT and not (self.state == "D" and self.pending & _SIGSTOP)

    @property
    def stopped_before(self) -> bool:
        """Before the halt, by somebody else, and marked."""
        return self.state == "T" and bool(self.pending & _MARKED)

    @property
    def mark(self) -> int:
        """The signal to mark it with; 0 if it ignores them all."""
        return next((number for number in MARKS if not self.ignored >> (number - 1) & 1), 0)


def member(pid: int, status: str) -> Member:
    """From the text of /proc/PID/status. ValueError: that is not one."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    try:
        group, session = (
            int((fields.get(name, "").split() or ("0",))[0]) for name in ("NSpgid", "NSsid")
        )
        return Member(
            pid,
            int(fields["PPid"]),
            fields["State"].strip()[0],
            int(fields["ShdPnd"], 16),
            tuple(map(int, fields.get("NSpid", "").split())),
            group,
            session,
            int(fields["SigIgn"], 16),
        )
    except (KeyError, IndexError) as e:
        raise ValueError(f"no status of a process: {e}") from e


def to_continue(members: Sequence[Member]) -> list[int]:
    """Whom a resume continues, children before their parents."""
    meant = [one for one in members if one.state not in "ZX" and not one.stopped_before]
    depth = _depths(members)
    return [one.pid for one in sorted(meant, key=lambda one: -depth[one.pid])]


def _depths(members: Sequence[Member]) -> dict[int, int]:
    """How many of the others are above each."""
    parents = {one.pid: one.parent for one in members}
    found: dict[int, int] = {}
    for pid in parents:
        way = [pid]
        while (
            way[-1] not in found and parents.get(way[-1]) in parents and parents[way[-1]] not in way
        ):
            way.append(parents[way[-1]])
        depth = found.get(way[-1], 0)
        for above, one in enumerate(reversed(way)):
            found[one] = depth + above
    return found


def all_stopped(members: Iterable[Member]) -> bool:
    """Whether there is somebody and nobody runs."""
    alive = [one for one in members if one.state not in "ZX"]
    return bool(alive) and not any(one.running for one in alive)


def group_of(cgroup: str, home: str, session: str) -> str | None:
    """The session's group, from the text of /proc/PID/cgroup of one of its processes. None: that one is elsewhere."""
    for line in cgroup.splitlines():
        if line.startswith("0::/"):
            parts = line[4:].split("/")
            for at in range(len(parts) - 1):
                if parts[at : at + 2] == [home, session]:
                    return "/" + "/".join(parts[: at + 2])
    return None


def flag(events: str, name: str) -> bool:
    """A line of cgroup.events."""
    return f"{name} 1" in events.splitlines()


def says(contained: bool, mapped: bool, how: How) -> str:
    """One sentence for whoever makes a session or attaches to it (A4, A5, T4)."""
    if not contained:
        return (
            f"plain: its programs run as the host's own account and can reach its keys; {SAYS[how]}"
        )
    uid = ", and your uid shows as 0 inside" if mapped else ""
    return (
        f"contained: its programs see neither the host's processes nor its keys{uid}; {SAYS[how]}"
    )
