"""What is measured of tools that nobody looks at: memory, idle CPU, wake-ups; and survival.

    memory      PSS of the tool's own processes with 1, a quarter of, and all idle detached sessions; per
                session from the slope, so that a server's fixed cost is not spread over them; then CPU and
                wake-ups of all of them while nobody is attached
    survival    kill -9 of client after client while the session counts every 2 ms: is it alive, and how
                long was it ever held up

The counter numbers its own log, so no gap in it proves anything; being alive and the pauses do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time

from bench import processes, programs
from bench.measures import ATTACH_S, Bench, Values, session
from bench.peers import Peer
from bench.terminal import ClientEnded, Terminal, TooLong, read_until

ALIVE_S, LOOK_S = 3.0, 0.05


def own_processes(peer: Peer) -> list[int]:
    """The tool's own, without what its sessions run."""
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
