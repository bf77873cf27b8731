"""The cost of one look at a session, beside psutil, and the delay until a new process is reported.

    python -m bench.graph [--processes 1000] [--out FILE]

Each process holds seven descriptors: three for the terminal, two files, one end of a pipe, one
listening socket. psutil is asked in its cheapest way: children of one process, the attributes of
each in one go (`oneshot`), its open files, and all sockets of the machine once. psutil gives no
offsets of pipes, no locks and no peers of pipes. Both are timed by the processor time they spend.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from holdfast.host.processes import process_events
from holdfast.host.processes.graph import look

ROUNDS = 5
EVENTS = 200
TOLD_S = 5.0  # then the kernel does not tell here
Figures = dict[str, float | None]
_PARENT = """
import os, socket, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        r, w = os.pipe()
        os.close(r)
        held = [open("/etc/passwd"), open("/etc/hosts"), socket.create_server(("127.0.0.1", 0))]
        sys.stdin.read()
        os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def crowd(count: int) -> Iterator[int]:
    """Start this many processes below one parent; yield the pid of the parent."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # It stands for a keeper, whose own kernel session does not count.
        process_group=0,
    ) as parent:
        assert parent.stdout is not None
        if parent.stdout.readline() != b"ready\n":
            raise RuntimeError("the processes to look at could not be made")
        try:
            while sum(s.state == "listen" for s in look(parent.pid, parent.pid).sockets) < count:
                pass
            yield parent.pid
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def looks(count: int) -> Figures:
    with crowd(count) as pid:
        found = look(pid, pid)
        figures: Figures = {
            "processes": float(len(found.processes)),
            "descriptors": float(
                len(found.files)
                + len(found.sockets)
                + sum(len(p.writers) + len(p.readers) for p in found.pipes)
            ),
            "whole_ms": _spent(lambda: look(pid, pid)),
            "processes_only_ms": _spent(lambda: look(pid, pid, files=False)),
            "psutil_ms": None,
            "ratio": None,
        }
        if find_spec("psutil") is None:
            return figures
        psutil = import_module("psutil")

        def theirs() -> None:
            for one in psutil.Process(pid).children(recursive=True):
                with one.oneshot():
                    for ask in (
                        one.cmdline,
                        one.cwd,
                        one.exe,
                        one.status,
                        one.cpu_times,
                        one.memory_info,
                        one.create_time,
                        one.uids,
                        one.num_threads,
                    ):
                        ask()
                one.open_files()
            psutil.net_connections("all")

        figures["psutil_ms"] = _spent(theirs)
        figures["ratio"] = (
            figures["psutil_ms"] / figures["whole_ms"]
            if figures["psutil_ms"] and figures["whole_ms"]
            else None
        )
        return figures


def _spent(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return statistics.median(times) * 1000


def _begin() -> int:
    return os.posix_spawn("/bin/true", ["true"], {})


def _collect(pid: int) -> None:
    os.waitpid(pid, 0)


async def _told() -> Figures:
    """From just before a fork until the loop knows of the new process."""
    forked = asyncio.Event()
    events = process_events.Events(
        lambda parent, child: forked.set() if parent == os.getpid() else None,
        lambda pid, status: None,
        lambda: None,
    )
    events.watch((os.getpid(),))
    times = []
    try:
        for _ in range(EVENTS):
            forked.clear()
            begin = time.perf_counter()
            pid = _begin()
            await asyncio.wait_for(forked.wait(), TOLD_S)
            times.append(time.perf_counter() - begin)
            _collect(pid)
    finally:
        events.close()
    times.sort()
    return {
        "event_p50_us": times[len(times) // 2] * 1e6,
        "event_p99_us": times[len(times) * 99 // 100] * 1e6,
        "events_lost": float(events.lost),
    }


def told() -> Figures:
    try:
        return asyncio.run(_told())
    except (OSError, TimeoutError):
        return {"event_p50_us": None, "event_p99_us": None, "events_lost": None}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.graph", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = {**looks(args.processes), **told()}
    for name, value in figures.items():
        print(f"{name:20} {'no figure' if value is None else f'{value:,.1f}'}")
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
