"""Where Holdfast's own time goes: by hop of an echoed key, process of a flood, and function.

    python -m bench.profile [--tree SRC] [--relay] [--keys 500] [--mb 20] [--ansi] [--functions]
                            [--out FILE]

    key ->  client -> host -> keeper -> program -> keeper -> host -> client  -> screen

    with --relay:
    key ->  client -> line -> relay -> host (-> itself) -> keeper -> program
        ->  keeper -> host (-> itself) -> relay -> line -> client  -> screen

Three ways to look, from the surest to the most detailed:
1. Cost: time on a processor and wake-ups of each process, per key and per MB, from /proc. Does not
   disturb the run.
2. Hops: when each process woke and when it handed on, from the kernel's tracepoints (perf). About a
   microsecond per system call. A hop is split into waiting (from the sender's call until the
   receiver runs: the scheduler's part) and working (from there until the receiver hands on: our
   part).
3. Functions (--functions): cProfile inside client, host and keeper, in runs of their own. Distorts;
   good for ranking only.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import os
import pstats
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import measures, processes, programs
from bench.measures import Bench, Sizes
from bench.peers import Holdfast, Relayed
from bench.terminal import Terminal, read_until, read_until_quiet

ROLES = ("harness", "client", "line", "relay", "host", "keeper", "program")
CALLS = (
    "read",
    "write",
    "readv",
    "sendto",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "poll",
    "epoll_wait",
    "epoll_ctl",
    "futex",
    "mmap",
    "munmap",
    "mremap",
)
PERF_START_S = 1.5
TOP_FUNCTIONS = 18
# The way of a key: (role, which calls, entering or leaving them). Each step is the first such event
# after the previous step.
Way = tuple[tuple[str, tuple[str, ...], str], ...]
_IN: Way = (
    ("harness", ("write",), "enter"),
    ("client", ("poll",), "exit"),
    ("client", ("sendto",), "enter"),
    ("host", ("epoll_wait",), "exit"),
    ("host", ("sendto",), "enter"),
    ("keeper", ("epoll_wait",), "exit"),
    ("keeper", ("write",), "enter"),
    ("program", ("read",), "exit"),
    ("program", ("write",), "enter"),
    ("keeper", ("epoll_wait",), "exit"),
    ("keeper", ("write",), "enter"),
)
_BACK: Way = (
    ("client", ("poll",), "exit"),
    ("client", ("write",), "enter"),
    ("harness", ("read",), "exit"),
)
WAYS: dict[str, Way] = {
    "output straight from the keeper's ring": (*_IN, *_BACK),
    "output by the host": (
        *_IN,
        ("host", ("epoll_wait",), "exit"),
        ("host", ("sendmsg", "sendto"), "enter"),
        *_BACK,
    ),
}
_SENDS = ("sendto", "sendmsg", "write")
RELAYED: dict[str, Way] = {
    "through a relay": (
        ("harness", ("write",), "enter"),
        ("client", ("poll",), "exit"),
        ("client", ("sendto",), "enter"),
        ("line", ("poll",), "exit"),
        ("line", ("sendto",), "enter"),
        ("relay", ("epoll_wait",), "exit"),
        ("relay", _SENDS, "enter"),
        ("host", ("epoll_wait",), "exit"),
        ("host", ("sendto",), "enter"),
        ("host", ("epoll_wait",), "exit"),
        ("host", ("sendto",), "enter"),
        *_IN[5:],
        ("host", ("epoll_wait",), "exit"),
        ("host", _SENDS, "enter"),
        ("host", ("epoll_wait",), "exit"),
        ("host", _SENDS, "enter"),
        ("relay", ("epoll_wait",), "exit"),
        ("relay", _SENDS, "enter"),
        ("line", ("poll",), "exit"),
        ("line", ("sendto",), "enter"),
        *_BACK,
    ),
}
_EVENT = re.compile(
    r"^\s*(\d+)/(\d+)\s+(\d+\.\d+):\s+syscalls:sys_(enter|exit)_(\w+):", re.MULTILINE
)


@dataclass(frozen=True)
class Cast:
    """The processes of one session, by role.

    A thread that is a role of its own is known by its number.
    """

    pids: dict[str, int]
    threads: dict[int, str] = field(default_factory=dict)

    def cost(self) -> dict[str, tuple[int, int]]:
        """Processor time and wake-ups so far; work outside the main thread is listed apart."""
        found = {}
        for role, pid in self.pids.items():
            cpu, woken = processes.cpu_ns([pid]), processes.wakeups([pid])
            found[role] = main = processes.main_thread(pid)
            beside = (
                "line"
                if role == "client" and self.threads
                else "host, other threads"
                if role == "host"
                else ""
            )
            if beside:
                found[beside] = cpu - main[0], woken - main[1]
        return found


@dataclass(frozen=True)
class Event:
    at: float
    role: str
    call: str
    edge: str


def cast_of(peer: Holdfast, name: str, terminal: Terminal, program: str) -> Cast:
    host = peer.host_pid()
    of_session = processes.tagged([peer.tag, f"BENCH_SESSION={name}"])
    running = [p for p in of_session if os.path.basename(processes.argv(p)[0]) == program]
    with open(f"/proc/{running[0]}/stat") as f:
        keeper = int(f.read().rpartition(")")[2].split()[1])
    pids = {
        "harness": os.getpid(),
        "client": terminal.pid,
        "host": host,
        "keeper": keeper,
        "program": running[0],
    }
    if not isinstance(peer, Relayed):
        return Cast(pids)
    lines = [int(t) for t in os.listdir(f"/proc/{terminal.pid}/task") if int(t) != terminal.pid]
    return Cast({**pids, "relay": peer.relay_pid()}, dict.fromkeys(lines, "line"))


# ---------------------------------------------------------------- tracing


class Trace:
    """System calls of the cast while it runs; `events` has them afterwards, in order of time."""

    def __init__(self, cast: Cast, directory: str) -> None:
        self.events: list[Event] = []
        self._cast = cast
        self._path = os.path.join(directory, "trace")
        events = [f"-esyscalls:sys_{edge}_{call}" for call in CALLS for edge in ("enter", "exit")]
        pids = ",".join(str(p) for p in cast.pids.values())
        self._perf = subprocess.Popen(
            ["perf", "record", "-q", *events, "-p", pids, "-o", self._path],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        time.sleep(PERF_START_S)

    def stop(self) -> None:
        self._perf.send_signal(signal.SIGINT)
        _, complaint = self._perf.communicate()
        script = subprocess.run(
            ["perf", "script", "-i", self._path, "-F", "pid,tid,time,event", "--ns"],
            capture_output=True,
            text=True,
            check=False,
        )
        roles = {pid: role for role, pid in self._cast.pids.items()}
        for pid, tid, at, edge, call in _EVENT.findall(script.stdout):
            role = roles.get(int(pid))
            role = role if pid == tid else self._cast.threads.get(int(tid))
            if role is not None:
                self.events.append(Event(float(at), role, call, edge))
        if not self.events:
            raise RuntimeError(
                f"perf gave nothing: {complaint.decode()[-300:]} {script.stderr[-300:]}"
            )
        self.events.sort(key=lambda e: e.at)


@contextlib.contextmanager
def traced(cast: Cast, directory: str) -> Iterator[Trace]:
    trace = Trace(cast, directory)
    try:
        yield trace
    finally:
        trace.stop()


def keys_on(way: Way, events: Sequence[Event]) -> list[list[float]]:
    """The times of each step, one list per key that went all the way before the next was typed."""
    starts = [
        i for i, e in enumerate(events) if (e.role, e.call, e.edge) == ("harness", "write", "enter")
    ]
    found = []
    for begin, end in zip(starts, [*starts[1:], len(events)], strict=True):
        times, at = [events[begin].at], begin + 1
        for role, calls, edge in way[1:]:
            while at < end and not (
                events[at].role == role and events[at].call in calls and events[at].edge == edge
            ):
                at += 1
            if at == end:
                break
            times.append(events[at].at)
            at += 1
        if len(times) == len(way):
            found.append(times)
    return found


def hop_table(events: Sequence[Event], ways: Mapping[str, Way] = WAYS) -> str:
    """The way that most keys took, step by step; if both ways fit, the one with more steps."""
    name, way = max(ways.items(), key=lambda w: (len(keys_on(w[1], events)), len(w[1])))
    if not (found := keys_on(way, events)):
        return "no key went the whole way that is known"
    lines = [
        f"{name}:",
        "",
        "| from | to | what | p50 us | p90 us | share |",
        "|---|---|---|---:|---:|---:|",
    ]
    whole, waiting = statistics.median(w[-1] - w[0] for w in found), 0.0
    for i in range(1, len(way)):
        spans = sorted(w[i] - w[i - 1] for w in found)
        sender, receiver = way[i - 1][0], way[i][0]
        middle, late = spans[len(spans) // 2], spans[int(len(spans) * 0.9)]
        waiting += middle if sender != receiver else 0.0
        lines.append(
            f"| {sender} | {receiver} | {'works' if sender == receiver else 'waits to run'} "
            f"| {middle * 1e6:.1f} | {late * 1e6:.1f} | {middle / whole:.0%} |"
        )
    lines += [
        "",
        f"whole way {whole * 1e6:.0f} us over {len(found)} keys; "
        f"of it waiting to run {waiting * 1e6:.0f} us",
    ]
    return "\n".join(lines)


def call_table(events: Sequence[Event], units: float, unit: str) -> str:
    counts = Counter((e.role, e.call) for e in events if e.edge == "enter")
    calls = [c for c in CALLS if any(counts[r, c] for r in ROLES)]
    lines = [f"| system calls per {unit} | {' | '.join(calls)} |", "|---|" + "---:|" * len(calls)]
    lines += [
        f"| {role} | {' | '.join(f'{counts[role, c] / units:.3g}' for c in calls)} |"
        for role in ROLES
    ]
    return "\n".join(lines)


def cost_table(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], units: float, unit: str
) -> str:
    lines = [f"| | us of processor per {unit} | wake-ups per {unit} |", "|---|---:|---:|"]
    for role in before:
        cpu, woken = after[role][0] - before[role][0], after[role][1] - before[role][1]
        lines.append(f"| {role} | {cpu / 1e3 / units:.4g} | {woken / units:.3g} |")
    total = sum(after[r][0] - before[r][0] for r in before if r != "harness")
    lines.append(f"| all but the harness | {total / 1e3 / units:.4g} | |")
    return "\n".join(lines)


# ---------------------------------------------------------------- the two paths


def echo_path(peer: Holdfast, bench: Bench, keys: int, perf: bool) -> Iterator[str]:
    ready = bench.fifo("ready")
    name = "echo"
    peer.start(name, programs.echo(ready.path))
    terminal = peer.attach(name)
    try:
        ready.wait(measures.ATTACH_S)
        measures.greet([terminal], b"~", b"~")
        cast = cast_of(peer, name, terminal, "cat")
        before = cast.cost()
        times = measures.keystrokes(terminal, keys)
        median = statistics.median(times) * 1e6
        yield f"## A key and its echo\n\n{len(times)} keys, p50 {median:.0f} us\n"
        yield cost_table(before, cast.cost(), len(times), "key") + "\n"
        if perf:
            with traced(cast, bench.dir) as trace:
                times = measures.keystrokes(terminal, keys)
            median = statistics.median(times) * 1e6
            ways = RELAYED if isinstance(peer, Relayed) else WAYS
            yield f"traced: p50 {median:.0f} us, {hop_table(trace.events, ways)}\n"
            yield call_table(trace.events, len(times), "key") + "\n"
    finally:
        terminal.close()
        peer.end(name)
        ready.close()


def bulk_path(peer: Holdfast, bench: Bench, mb: float, ansi: bool, perf: bool) -> Iterator[str]:
    """The flood to one viewer.

    The cost and the system calls come from two floods, since tracing slows the second.
    """
    kind = "ANSI" if ansi else "plain"
    for tracing in (False, True) if perf else (False,):
        size = mb / 4 if tracing else mb
        path, written, _ = bench.data(ansi, size)
        go = os.path.join(bench.dir, "go")
        os.mkfifo(go)
        done, name = bench.fifo("done"), f"bulk{int(tracing)}"
        peer.start(name, programs.flood(path, go, done.path, True))
        terminal = peer.attach(name)
        try:
            measures.greet([terminal], b"\n", programs.READY)
            terminal.send(b"go\n")
            read_until_quiet([terminal])
            cast = cast_of(peer, name, terminal, "sh")
            watched = traced(cast, bench.dir) if tracing else contextlib.nullcontext()
            with watched as trace:
                before = cast.cost()
                with open(go, "w") as fifo:
                    begin = time.perf_counter()
                    fifo.write("go\n")
                seconds = read_until([terminal], [programs.END.encode()], measures.FLOOD_S) - begin
                after = cast.cost()
            units = written / 1e6
            if trace is None:
                rate = units / seconds
                yield (
                    f"## A flood to one viewer, {kind}\n\n"
                    f"{units:.0f} MB in {seconds:.2f} s, {rate:.1f} MB/s\n"
                )
                # The shell only; cat is a child that has ended
                del (
                    before["program"],
                    after["program"],
                )
                yield cost_table(before, after, units, "MB") + "\n"
            else:
                yield call_table(trace.events, units, "MB") + "\n"
        finally:
            terminal.close()
            peer.end(name)
            done.close()
            os.unlink(go)


# ---------------------------------------------------------------- functions


def functions(
    path: str, tree: str | None, bench: Bench, keys: int, mb: float, ansi: bool
) -> Iterator[str]:
    """A path once more, with profilers inside client, host and keeper."""
    peer = Holdfast(None, tree)
    try:
        what = "a key" if path == "echo" else "a flood"
        yield f"## Functions on the way of {what} (cProfile: shares, not times)\n"
        yield from _functions(peer, bench, path, keys, mb, ansi)
    finally:
        peer.close()


def _functions(
    peer: Holdfast, bench: Bench, path: str, keys: int, mb: float, ansi: bool
) -> Iterator[str]:
    root = str(Path(__file__).resolve().parent.parent)
    out = os.path.join(bench.dir, f"profile-{path}")
    peer.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (peer.tree, root)))
    runner = [sys.executable, "-m", "bench.profiled"]
    host = subprocess.Popen(
        [*runner, "host", out],
        env=peer.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    end = time.monotonic() + measures.ATTACH_S
    while not os.path.exists(peer.path("home/run/host.sock")) and time.monotonic() < end:
        time.sleep(0.02)
    signals, go = bench.fifo("signals"), os.path.join(bench.dir, "go")
    os.mkfifo(go)
    data = bench.data(ansi, mb)[0]
    peer.start(
        path,
        programs.echo(signals.path)
        if path == "echo"
        else programs.flood(data, go, signals.path, True),
    )
    terminal = Terminal([*runner, "client", out, "attach", path], peer.environ)
    try:
        if path == "echo":
            measures.greet([terminal], b"~", b"~")
            measures.keystrokes(terminal, keys)
        else:
            measures.greet([terminal], b"\n", programs.READY)
            terminal.send(b"go\n")
            read_until_quiet([terminal])
            with open(go, "w") as fifo:
                fifo.write("go\n")
            read_until([terminal], [programs.END.encode()], measures.FLOOD_S)
        os.kill(terminal.pid, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(terminal.pid, 0)
        peer.end(path)
        peer.shut_down()
        host.wait(measures.ATTACH_S)
    finally:
        terminal.close()
        signals.close()
        os.unlink(go)
    for found in sorted(glob.glob(f"{out}.*")):
        text = io.StringIO()
        pstats.Stats(found, stream=text).strip_dirs().sort_stats("tottime").print_stats(
            TOP_FUNCTIONS
        )
        body = [
            line
            for line in text.getvalue().splitlines()
            if line.strip() and "Ordered by" not in line
        ]
        role = os.path.basename(found).removeprefix(f"profile-{path}.").split(".")[0]
        yield f"{role}:\n\n```\n" + "\n".join(body[1:]) + "\n```\n"


# ---------------------------------------------------------------- command


def main() -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.profile", description="where Holdfast's own time goes"
    )
    p.add_argument("--tree", metavar="SRC", help="another source tree of Holdfast")
    p.add_argument(
        "--relay",
        action="store_true",
        help="from another home, through a relay (not with --functions)",
    )
    p.add_argument("--keys", type=int, default=500)
    p.add_argument("--mb", type=float, default=20.0)
    p.add_argument("--ansi", action="store_true", help="flood with colours")
    p.add_argument("--only", choices=("echo", "bulk"), help="one of the two paths")
    p.add_argument("--functions", action="store_true", help="profile inside the programs too")
    p.add_argument("--out", metavar="FILE", help="writes FILE too")
    args = p.parse_args()
    tree = os.path.abspath(args.tree) if args.tree else None
    perf = shutil.which("perf") is not None
    bench = Bench(Sizes(), tempfile.mkdtemp(prefix="hbench"))
    parts: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        parts.append(text)

    if not perf:
        say("(no perf here: no hops and no system calls)\n")
    peer = (Relayed if args.relay else Holdfast)(None, tree)
    try:
        peer.warm_up()
        paths = (args.only,) if args.only else ("echo", "bulk")
        if "echo" in paths:
            for text in echo_path(peer, bench, args.keys, perf):
                say(text)
        if "bulk" in paths:
            for text in bulk_path(peer, bench, args.mb, args.ansi, perf):
                say(text)
        for path in paths if args.functions else ():
            for text in functions(path, tree, bench, args.keys, args.mb, args.ansi):
                say(text)
    finally:
        peer.close()
        shutil.rmtree(bench.dir, ignore_errors=True)
        Holdfast.forget_caches()
    if args.out:
        Path(args.out).write_text("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
