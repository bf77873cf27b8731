"""The measures of detached tools: memory, idle CPU, wake-ups; and survival.

    memory      PSS of the tool's own processes with 1, a quarter of, and all idle detached
                sessions; per session from the slope, so that a server's fixed cost is not spread
                over them; then CPU and wake-ups of all of them while no client is attached
    survival    kill -9 of client after client while the session counts every 2 ms: is the session
                alive, and how long was its longest pause

    scale       `python -m bench scale`, of Holdfast alone: how its costs grow with the number of
                sessions. Each figure is taken with that many idle sessions in one home: memory per
                session, the time of one `new`, `ls` and `view` on an open connection, the time
                from `kill -9` of the host until the next host answers, answers for a given
                session, and has adopted all; and the host's share of a processor when idle and
                beside a build (many forks a second). With --contained, the sessions are contained
                and gated, each with a workspace of its own. Further columns have the memory that
                the machine lost per session, with the kernel's part, the start of the last session
                beside a plain one, and 500 execs inside beside outside

The counter numbers its own log, so a log without gaps proves nothing; being alive and the pauses
do.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import itertools
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import execgate, processes, programs
from bench.measures import ATTACH_S, Bench, Values, session
from bench.peers import Holdfast, Peer
from bench.terminal import ClientEnded, Terminal, TooLong, read_until
from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError

ALIVE_S, LOOK_S = 3.0, 0.05


def own_processes(peer: Peer) -> list[int]:
    """The tool's own processes, without the programs of its sessions."""
    return [pid for pid in processes.tagged([peer.tag]) if not processes.runs_in_session(pid)]


def memory(peer: Peer, bench: Bench) -> Values:
    if not peer.keeps_sessions:
        return {}
    values: Values = {}
    steps = sorted({1, max(1, bench.sizes.sessions // 4), bench.sizes.sessions})
    fresh, pss, held, started = peer.fresh(), list[int](), list[int](), 0
    try:
        for step in steps:
            while started < step:
                fresh.start(f"m{started}", programs.IDLE)
                started += 1
            time.sleep(bench.sizes.settle_s)
            own = own_processes(fresh)
            pss.append(processes.pss_kb(own))
            held.append(processes.memfd_kb(own))
            values[f"pss_kb_{step}"] = pss[-1]
        listed = len(fresh.names())
        if listed < started:
            raise RuntimeError(f"{listed} of {started} sessions are left")
        if len(steps) > 1:
            values["kb_per_session"] = (pss[-1] - pss[-2]) / (steps[-1] - steps[-2])
            values["memfd_kb_per_session"] = (held[-1] - held[-2]) / (steps[-1] - steps[-2])
        own = own_processes(fresh)
        values["processes"] = len(own)
        time.sleep(bench.sizes.settle_s)
        cpu, woken, begin = processes.cpu_ns(own), processes.wakeups(own), time.perf_counter()
        time.sleep(bench.sizes.idle_s)
        seconds = time.perf_counter() - begin
        values["idle_cpu_ms_per_s"] = (processes.cpu_ns(own) - cpu) / 1e6 / seconds
        per_s = (processes.wakeups(own) - woken) / seconds
        values["wakeups_per_s"] = per_s
        values["wakeups_per_s_per_session"] = per_s / started
        return values
    finally:
        fresh.close()


def survival(peer: Peer, bench: Bench) -> Values:
    log = os.path.join(bench.dir, "count")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(log)
    kills = 0
    with session(peer, programs.counter(log), 0) as (name, terminals):
        for _ in range(bench.sizes.kills if peer.keeps_sessions else 1):
            terminal: Terminal = terminals.pop() if terminals else peer.attach(name)
            try:
                read_until([terminal], [b"tick"], ATTACH_S)
            except (TooLong, ClientEnded):
                break
            finally:
                terminal.close()
            kills += 1
        before = os.path.getsize(log)
        end = time.monotonic() + ALIVE_S
        while not (alive := os.path.getsize(log) > before) and time.monotonic() < end:
            time.sleep(LOOK_S)
    with open(log) as f:
        at = [float(line.split()[1]) for line in f.read().splitlines()[:-1]]
    pauses = sorted(b - a for a, b in itertools.pairwise(at)) or [0.0]
    return {
        "kills": float(kills),
        "alive": float(alive),
        "p99_tick_ms": pauses[int(len(pauses) * 0.99)] * 1e3,
        "longest_ms": pauses[-1] * 1e3,
    }


# ------------------------------------------------------------ scale

SCALE = (10, 100, 300, 1000)
ASKED = 5  # times each question is asked; the median counts
RESTARTS = 3
PAUSE_S = 0.005
FORKS_PER_S = 1400
BUILD = """
import os, sys, time
rate, end, done, begin = int(sys.argv[1]), float(sys.argv[2]), 0, time.monotonic()
while (now := time.monotonic() - begin) < end:
    if done >= now * rate:
        time.sleep(0.001)
        continue
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    done += 1
print(done / (time.monotonic() - begin))
"""
COLUMNS = {
    "sessions": "sessions",
    "kb_per_session": "KiB per session",
    "new_ms": "new, ms",
    "ls_ms": "ls, ms",
    "view_ms": "view, ms",
    "answers_s": "restart: first answer, s",
    "session_s": "restart: given session, s",
    "adopted_s": "restart: all adopted, s",
    "adopt_cpu_ms": "adoption, CPU ms each",
    "idle_percent": "idle, %",
    "build_percent": "beside a build, %",
    "forks_per_s": "forks/s",
}
CONTAINED = {
    "machine_kb": "machine, KiB per session",
    "new_x": "new x plain",
    "exec_x": "exec inside x outside",
}


class Crowd:
    """A host with many idle sessions, asked over one connection.

    `net`: the network of contained sessions; None: the sessions are plain.
    """

    def __init__(self, net: str | None = None) -> None:
        self.peer, self._net = Holdfast(), net
        self.peer.names()  # starts the host
        self.home = homes.resolve(self.peer.environ)
        self.link = self._connected()
        self.count = 0
        self._host: subprocess.Popen[bytes] | None = None  # if this class started the host

    def _connected(self) -> Link:
        link = Link(self.home, getpass.getuser(), autostart=False)
        link.connect()
        return link

    def ask(self, op: str, **fields: Any) -> float:
        """Milliseconds until the answer."""
        begin = time.perf_counter()
        self.link.request(op, **fields)
        return (time.perf_counter() - begin) * 1e3

    def grow(self, count: int) -> float:
        """Up to so many sessions; milliseconds of the last creations (median)."""
        took = [self.new(f"s{n}", programs.IDLE) for n in range(self.count, count)]
        self.count = count
        return statistics.median(took[-10:])

    def new(self, name: str, argv: Sequence[str], plain: bool = False) -> float:
        """Milliseconds of the creation."""
        cwd, more = "/", dict[str, Any]()
        if self._net is not None and not plain:
            cwd, more = self.peer.path(f"work/{name}"), {"contained": True, "net": self._net}
            os.makedirs(cwd, exist_ok=True)
        environ = {k: v for k, v in self.peer.environ.items() if not k.startswith("HOLDFAST_")}
        return self.ask(
            "new", name=name, argv=list(argv), cwd=cwd, env=environ, size=[80, 24], **more
        )

    def beside_plain(self) -> Values:
        """One more contained session beside a plain one, and execs in it beside outside."""
        starts, execs = list[float](), list[float]()
        storm = execgate.TIMED.format(work=execgate.WORK["storm"])
        self.new("shell", ("bash",))
        for n in range(ASKED):
            contained, plain = self.new(f"c{n}", programs.IDLE), self.new("p", programs.IDLE, True)
            starts.append(contained / plain)
            self.peer.end(f"c{n}")
            self.peer.end("p")
            inside = self.peer.ask("run", "shell", "--", storm)
            outside = subprocess.check_output(["bash", "-c", storm], text=True)
            took = [int(out.rpartition("TOOK")[2]) for out in (inside, outside)]
            execs.append(took[0] / took[1])
        self.peer.end("shell")
        return {"new_x": statistics.median(starts), "exec_x": statistics.median(execs)}

    def restart(self) -> Values:
        """From the start of the next host, after the last host was killed."""
        self.link.close()
        last = self.peer.host_pid()
        os.kill(last, signal.SIGKILL)
        if self._host is not None:
            self._host.wait()
        while os.path.exists(f"/proc/{last}"):
            time.sleep(PAUSE_S)
        begin = time.perf_counter()
        self._host = host = subprocess.Popen(
            [sys.executable, "-m", "holdfast.host.main"],
            env=self.peer.environ,
            start_new_session=True,
        )
        while True:
            with contextlib.suppress(HoldfastError, OSError):
                self.link = self._connected()
                self.link.request("ping")
                break
            time.sleep(PAUSE_S)
        answers, cpu = time.perf_counter() - begin, processes.cpu_ns([host.pid])
        self.link.request("view", session=f"s{self.count - 1}")
        of_one = time.perf_counter() - begin
        while len(self.link.request("ls")["sessions"]) < self.count:
            time.sleep(PAUSE_S)
        return {
            "answers_s": answers,
            "session_s": of_one,
            "adopted_s": time.perf_counter() - begin,
            "adopt_cpu_ms": (processes.cpu_ns([host.pid]) - cpu) / 1e6 / self.count,
        }

    def share(self, seconds: float) -> float:
        """Per cent of a processor that the host uses meanwhile."""
        pids = [self.peer.host_pid()]
        before, begin = processes.cpu_ns(pids), time.perf_counter()
        time.sleep(seconds)
        return (processes.cpu_ns(pids) - before) / 1e7 / (time.perf_counter() - begin)

    def beside_a_build(self, seconds: float) -> Values:
        with subprocess.Popen(
            [sys.executable, "-c", BUILD, str(FORKS_PER_S), str(seconds + 1)],
            stdout=subprocess.PIPE,
            text=True,
        ) as build:
            time.sleep(0.5)
            share = self.share(seconds)
            out, _ = build.communicate()
        return {"build_percent": share, "forks_per_s": float(out)}


def scale(
    counts: Sequence[int],
    seconds: float,
    settle_s: float = 5.0,
    restarts: int = RESTARTS,
    net: str | None = None,
) -> list[Values]:
    """One row for each number of sessions."""
    crowd, rows = Crowd(net), list[Values]()
    try:
        empty, free = processes.pss_kb(own_processes(crowd.peer)), processes.available_kb()
        for count in counts:
            new = crowd.grow(count)
            time.sleep(settle_s)
            own = own_processes(crowd.peer)
            held = processes.pss_kb(own) + processes.memfd_kb(own) - empty
            lost = free - processes.available_kb()
            row: Values = {
                "sessions": count,
                "kb_per_session": held / count,
                "new_ms": new,
                "ls_ms": statistics.median(crowd.ask("ls") for _ in range(ASKED)),
                "view_ms": statistics.median(
                    crowd.ask("view", session=f"s{n * (count - 1) // ASKED}") for n in range(ASKED)
                ),
                "idle_percent": crowd.share(seconds),
                **crowd.beside_a_build(seconds),
            }
            if net is not None:
                row |= {"machine_kb": lost / count, **crowd.beside_plain()}
            took = [crowd.restart() for _ in range(restarts)]
            rows.append(
                row | {k: statistics.median(one[k] or 0.0 for one in took) for k in took[0]}
            )
    finally:
        crowd.link.close()
        crowd.peer.close()
    return rows


def scale_table(rows: Sequence[Values]) -> str:
    columns = COLUMNS | {name: words for name, words in CONTAINED.items() if name in rows[0]}
    lines = [
        f"| {' | '.join(columns.values())} |",
        f"|{'---:|' * len(columns)}",
        *(f"| {' | '.join(f'{row[name] or 0.0:.3g}' for name in columns)} |" for row in rows),
    ]
    return "\n".join(lines)


def scale_main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench scale", description="how the costs grow with the number of sessions"
    )
    parser.add_argument("--sessions", default=",".join(map(str, SCALE)))
    parser.add_argument("--seconds", type=float, default=10.0, help="of idling, and of the build")
    parser.add_argument("--contained", choices=("none", "own"), metavar="none|own", help="network")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(words)
    begin, counts = os.getloadavg()[0], [int(n) for n in args.sessions.split(",")]
    table = scale_table(scale(counts, args.seconds, net=args.contained))
    text = (
        f"{table}\n\n{time.strftime('%Y-%m-%d')}, {platform.platform()}, "
        f"{os.cpu_count()} processors, "
        f"Python {platform.python_version()}, load {begin:.1f} at the start.\n"
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text)
    return 0
