"""Decisions about halting: the wording, the order of continuation, and the group of a session.

Pure. The kernel interface is in host/processes/halt.py and host/processes/cgroups.py.

A process that was stopped before the halt (a job suspended with Ctrl-Z) must stay stopped after a
resume. A halt without a control group marks such processes with a stop signal other than SIGSTOP,
which stays pending in a stopped process. So the kernel keeps the mark, and no file can be wrong or
lost. If the shell continues the process later, the mark vanishes, because SIGCONT discards pending
stop signals. (A process that ignores all three signals of MARKS cannot be marked, and a resume
continues it.)

The order is: shells first, children first. A shell that still runs after its child was stopped
notices the stop, reports it and gives up the job (measured: "[1]+ Stopped", status 147). So
processes that wait for jobs are stopped before all other processes and continued after them, and
notice nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

How = Literal["cgroup freeze", "pid namespace stop", "best effort"]
FREEZE: Final[How] = "cgroup freeze"
NAMESPACE: Final[How] = "pid namespace stop"
BEST_EFFORT: Final[How] = "best effort"

SAYS: Final[dict[How, str]] = {
    FREEZE: "halt freezes all its processes by the kernel",
    NAMESPACE: "halt stops all its processes by process 1 of its pid namespace",
    BEST_EFFORT: "halt is best effort: a scan of its processes, which fast forking can outrun",
}

MARKS: Final = (22, 21, 20)  # SIGTTOU, SIGTTIN, SIGTSTP
SIGSTOP_BIT: Final = 1 << 18  # of signal 19
_MARKED: Final = sum(1 << (number - 1) for number in MARKS)
RUNS_NOT: Final = frozenset("TtZX")  # stopped, traced, dead


class Member(NamedTuple):
    """A process of a session, as /proc/PID/status has it."""

    pid: int
    parent: int
    state: str
    pending: int  # pending signals of the process, as a bit set
    namespaced: tuple[int, ...] = ()  # pids from the reader's namespace inward
    group: int = 0
    session: int = 0
    ignored: int = 0
    threads: int = 1

    @property
    def running(self) -> bool:
        """The process runs.

        A process in an uninterruptible wait with a pending SIGSTOP does not: the process stops
        before the next step. (A shell waits so in vfork if the child was stopped before the exec.)
        """
        return self.state not in RUNS_NOT and not (self.state == "D" and self.pending & SIGSTOP_BIT)

    @property
    def stopped_before(self) -> bool:
        """The process was stopped before the halt, and marked."""
        return self.state == "T" and bool(self.pending & _MARKED)

    @property
    def mark(self) -> int:
        """The signal to mark the process with; 0 if all are ignored."""
        return next((number for number in MARKS if not self.ignored >> (number - 1) & 1), 0)


def member(pid: int, status: str) -> Member:
    """Parse /proc/PID/status; ValueError if the text is not one."""
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
            int(fields.get("Threads", "1")),
        )
    except (KeyError, IndexError) as e:
        raise ValueError(f"no status of a process: {e}") from e


def with_threads(one: Member, states: Iterable[str]) -> Member:
    """Give a process that seems to stand still the state of a thread that runs, if there is one.

    /proc/PID/status has the state of the first thread only. That thread can be stopped for its
    tracer, or have ended, while others run. If it is stopped by a signal, the whole process is:
    a thread in an uninterruptible wait then stops before its next step.
    """
    still = RUNS_NOT | {"D"} if one.state == "T" else RUNS_NOT
    return one._replace(state=next((state for state in states if state not in still), one.state))


def to_continue(members: Sequence[Member]) -> list[int]:
    """Return the processes that a resume continues, children before their parents."""
    meant = [one for one in members if one.state not in "ZX" and not one.stopped_before]
    depth = _depths(members)
    return [one.pid for one in sorted(meant, key=lambda one: -depth[one.pid])]


def _depths(members: Sequence[Member]) -> dict[int, int]:
    """Return the number of ancestors of each process."""
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
    """Say whether there are processes and none of them runs."""
    alive = [one for one in members if one.state not in "ZX"]
    return bool(alive) and not any(one.running for one in alive)


def group_of(cgroup: str, home: str, session: str) -> str | None:
    """Return the session's group from /proc/PID/cgroup; None if the process is elsewhere."""
    for line in cgroup.splitlines():
        if line.startswith("0::/"):
            parts = line[4:].split("/")
            for at in range(len(parts) - 1):
                if parts[at : at + 2] == [home, session]:
                    return "/" + "/".join(parts[: at + 2])
    return None


def flag(events: str, name: str) -> bool:
    """Return a flag of cgroup.events."""
    return f"{name} 1" in events.splitlines()


# Of a plain session at input depth, where the kernel allows the call.
TYPES_PAST_HOST: Final = "a program can put input into its terminal past the host (TIOCSTI)"


def says(contained: bool, how: How) -> str:
    """Return one sentence about isolation and halt for creation and attach (A4, A5, T4)."""
    if contained:
        return f"sandboxed: its programs cannot see the host's processes or keys; {SAYS[how]}"
    return (
        f"not sandboxed: its programs run as the host's account and can reach its keys; {SAYS[how]}"
    )
