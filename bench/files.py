"""The cost of kernel notices about file writes: a build-like load with and without them.

    python -m bench.files [--files 10000] [--out FILE]

Also measures whether the notices block the host's loop. The load is a tree of processes. Each
writes a source, an object (by a new file that is renamed) and a log that all append to, as
compilers and linkers do. The host's part runs in this process: lineages and writers as in a host,
with the load as a session. Every millisecond the loop notes how late it is. Root only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.core.originators.lineage import Cause
from holdfast.host.originators.lineage import Lineages
from holdfast.host.originators.writers import Writers
from holdfast.host.processes import process
from holdfast.host.session.commands import Commands
from holdfast.host.shell import SessionDirectories

ROUNDS = 3
TICK_S = 0.001
SETTLE_S = 1.5  # includes the time until the known writers are stored
READY_S = 30.0  # at most, until the kernel reports writes below the session's directory
WORKERS = 40
Figures = dict[str, float | None]
_LOAD = """
import os, sys
count, workers = int(sys.argv[1]), int(sys.argv[2])
sys.stdin.readline()
for w in range(workers):
    if os.fork() == 0:
        os.mkdir(str(w))
        for n in range(count // workers // 2):
            with open(f"{w}/{n}.c", "w") as f:
                f.write("x" * 2000)
            with open(f"{w}/{n}.tmp", "w") as f:
                for _ in range(4):
                    f.write("y" * 3000)
                    f.flush()
            os.rename(f"{w}/{n}.tmp", f"{w}/{n}.o")
            with open("log", "a") as f:
                f.write("done\\n")
        os._exit(0)
    if w % 2:
        os.wait()
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def load(directory: str, count: int) -> subprocess.Popen[bytes]:
    os.makedirs(directory)
    return subprocess.Popen(
        [sys.executable, "-c", _LOAD, str(count), str(WORKERS)],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _seconds(child: subprocess.Popen[bytes]) -> float:
    assert child.stdin is not None and child.stdout is not None
    began = time.perf_counter()
    child.stdin.write(b"go\n")
    child.stdin.flush()
    child.stdout.readline()
    return time.perf_counter() - began


class Turns(asyncio.SelectorEventLoop):
    """Notes the processor time of its longest turn.

    This is how long one callback blocks all other callbacks, independent of other load on the
    machine.
    """

    longest = 0.0

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - before)


def _session(directory: str, child: subprocess.Popen[bytes]) -> Any:
    loop, facts = asyncio.get_running_loop(), process.read_stat(child.pid)
    assert facts is not None
    commands = Commands(
        {"shell": None, "nonce": "n" * 16, "by": "ann"},
        SessionDirectories.as_outside(Path(directory), Path(directory)),
        directory,
        {},
        root=child.pid,
    )
    commands.lineage._members[child.pid] = commands.lineage._members[child.pid]._replace(
        cause=Cause("ann", 1)
    )
    record = SimpleNamespace(root_pid=child.pid, root_start=facts.start, created=time.time())
    return SimpleNamespace(
        id="bench",
        loop=loop,
        keeper_pid=child.pid,
        commands=commands,
        writable_directory=directory,
        host_only_directory=directory,
        ring=SimpleNamespace(accepted=0),
        record=record,
        ended=loop.create_future(),
        spawn=loop.create_task,
    )


async def _late(late: list[float], over: asyncio.Event) -> None:
    while not over.is_set():
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late.append(time.perf_counter() - due)


async def _told(directory: str, count: int, files: bool) -> Figures:
    os.makedirs(f"{directory}/state")
    lineages = Lineages()
    writers = Writers(lineages, f"{directory}/state")
    if files:
        lineages.wire(observers=(writers,), changed=(writers.process_changed,))
    lineages.open()
    child, late, over = load(f"{directory}/load", count), list[float](), asyncio.Event()
    session = _session(directory, child)
    lineages.begin(session)
    try:
        if files:
            await writers._tasks.wait(READY_S)
        while not lineages.told:
            await asyncio.sleep(0.01)
        watch = asyncio.create_task(_late(late, over))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Turns)
        before, loop.longest = time.process_time(), 0.0
        seconds = await asyncio.to_thread(_seconds, child)
        await asyncio.sleep(SETTLE_S)
        spent, turn = time.process_time() - before, loop.longest
        over.set()
        await watch
        late.sort()
        found: Figures = {
            "seconds": seconds,
            "host_cpu_ms": 1000 * spent,
            "longest_turn_ms": 1000 * turn,
            "late_p50_ms": 1000 * late[len(late) // 2],
            "late_p99_ms": 1000 * late[len(late) * 99 // 100],
            "late_max_ms": 1000 * late[-1],
        }
        if files:
            right = await writers.authors(
                session, [f"{directory}/load/{w}/0.o" for w in range(WORKERS)]
            )
            assert writers._events is not None
            found |= {
                "known": float(len(writers.table)),
                "right": float(sum(one.actor == "ann" for one in right)),
                "lost": float(writers._events.lost),
            }
        return found
    finally:
        child.communicate()
        lineages.end(session)
        lineages.close()
        session.commands.close()


def _run(directory: str, count: int, files: bool) -> Figures:
    with asyncio.Runner(loop_factory=Turns) as runner:
        return runner.run(_told(directory, count, files))


def measured(count: int) -> Figures:
    """The median round of each load, by time."""
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as directory:
        rounds = [
            (
                _run(f"{directory}/without{n}", count, False),
                _run(f"{directory}/with{n}", count, True),
            )
            for n in range(ROUNDS)
        ]
    without, told = (
        sorted((pair[side] for pair in rounds), key=lambda one: one["seconds"] or 0)[ROUNDS // 2]
        for side in (0, 1)
    )
    return {
        **{f"without_{name}": value for name, value in without.items()},
        **{f"with_{name}": value for name, value in told.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.files", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    figures = measured(args.files)
    for name, value in figures.items():
        print(f"{name:22} {'no figure' if value is None else f'{value:,.2f}'}")
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
