"""How quickly a session is halted, and its holder's input withdrawn, under the worst load.

    python -m bench.halt [--rounds N] [--processes N] [--out FILE]

The session runs PROCESSES processes that fork all the time; every third has left the terminal's
session and forked twice. Each round halts and resumes the session; other rounds flush the terminal
while the holder's input fills the keeper's queue and the kernel's.

    halt      from the call to the kernel's confirmation that no process runs
              (core/session/halt.py: three ways)
    resume    until all have been continued
    flush     from sending FLUSH to the keeper's answer: a seize waits for this answer before it
              can promise that no input of the old holder will reach a program

The calls are the host's own. The figure of halt is the one in its answer (`took_ms`). Resume and
flush end when this loop is told, and among so many busy processes the loop waits to be scheduled.
The available ways depend on the account: root has control groups, an ordinary user usually none.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.report import machine, number
from holdfast.host.lifecycle.nursery import Nursery
from holdfast.host.processes.halt import Execution, Halter
from holdfast.host.session.keeper_link import KeeperLink
from holdfast.model.limits import INPUT_QUEUE_BYTES
from holdfast.wire import keeper as wire
from holdfast.wire.ring import FLAG_EXITED
from tests.support.workload import FORKING

INTERPRETER = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PIECE = b"x" * 8191 + b"\n"
LAYOUTS = {
    "plain,group": (False, True),
    "contained,group": (True, True),
    "contained": (True, False),
    "plain": (False, False),
}
START_S = 60.0
# Between a resume and the next halt: a process that has not run since is still frozen, and would
# make halting look quick
RUN_S = 0.3
Row = tuple[str, str, dict[str, float]]  # layout, way, figures


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


class Session:
    """One session of forking processes, with its keeper connection."""

    def __init__(self, execution: Execution, link: KeeperLink) -> None:
        self.execution, self.link = execution, link
        self._answer: asyncio.Future[bytes] | None = None
        link.on_packet = self._packet

    @classmethod
    async def start(
        cls,
        nursery: Nursery,
        halter: Halter,
        name: str,
        processes: int,
        contained: bool,
        group: bool,
    ) -> Session:
        cgroup = halter.groups.make(name) if group else ""
        await nursery.spawn(
            wire.Spawn(
                name,
                1,
                f"{name}.keeper",
                80,
                24,
                1 << 16,
                1000,
                argv=(
                    INTERPRETER.encode(),
                    b"-c",
                    FORKING.encode(),
                    str(processes).encode(),
                    b"120",
                ),
                env=(b"PATH=/usr/bin:/bin",),
                cgroup=os.fsencode(cgroup),
                containment=wire.Containment() if contained else None,
            )
        )
        link = await KeeperLink.open(f"{nursery.run}/{name}.keeper", 1)
        return cls(Execution(name, link.peer_pid, link.welcome.root_pid), link)

    async def forking(self) -> None:
        """Return when all processes run."""
        ring = self.link.ring
        async with asyncio.timeout(START_S):
            while b"FORKING" not in (ring.copy(ring.start, ring.head) or b""):
                await asyncio.sleep(0.01)

    def _packet(self, kind: int, packet: bytes) -> None:
        if kind == wire.WITHDRAWN and self._answer is not None:
            self._answer.set_result(packet)

    def _act(self, kind: int, body: bytes, flags: int) -> None:
        self.link.send(
            wire.act(
                kind,
                (
                    1,
                    self.link.ring.accepted + 1 if kind == wire.FLUSH else self._next(),
                    0,
                    0,
                    flags,
                ),
                body,
            )
        )

    def _next(self) -> int:
        self._sequence = max(getattr(self, "_sequence", 0), self.link.ring.accepted) + 1
        return self._sequence

    async def flush(self) -> tuple[float, int]:
        """Fill the queues, then discard the input: milliseconds, and acts withdrawn."""
        for _ in range(INPUT_QUEUE_BYTES // len(PIECE) // 2):
            self._act(wire.INPUT, PIECE, 0)
        while self.link.ring.accepted < self._sequence:
            await asyncio.sleep(0.001)
        self._answer = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        self._act(wire.FLUSH, b"", wire.ACT_REPORT)
        packet = await self._answer
        took = (time.perf_counter() - begin) * 1000
        return took, len(wire.read_withdrawn(packet))


async def measure(top: str, rounds: int, processes: int, only: list[str]) -> list[Row]:
    nursery, halter, rows = Nursery(f"{top}/run"), Halter(top), list[Row]()
    try:
        for at, (contained, group) in enumerate(LAYOUTS[name] for name in only):
            session = await Session.start(nursery, halter, f"s{at}", processes, contained, group)
            try:
                how, _, _ = halter.way(session.execution)
                layout = "contained" if contained else "plain"
                if not any(row[:2] == (layout, how) for row in rows):
                    await session.forking()
                    rows.append((layout, how, await _rounds(session, halter, rounds)))
            finally:
                await halter.end(session.execution)
                while not session.link.ring.flags & FLAG_EXITED:
                    await asyncio.sleep(0.005)
                session.link.send(wire.release())
                session.link.dispose()
                halter.groups.remove(session.execution.session)
    finally:
        nursery.dismiss()
        halter.close()
    return rows


async def _rounds(session: Session, halter: Halter, rounds: int) -> dict[str, float]:
    halts, resumes, flushes, caught, complete = (
        list[float](),
        list[float](),
        list[float](),
        list[int](),
        0,
    )
    for _ in range(rounds):
        await asyncio.sleep(RUN_S)
        halted = await halter.halt(session.execution)
        halts.append(halted.took_ms)
        complete += halted.complete
        caught.append(len(halted.pids))
        begin = time.perf_counter()
        await halter.resume(session.execution)
        resumes.append((time.perf_counter() - begin) * 1000)
    for _ in range(rounds):  # apart: half a megabyte of echo keeps the kernel busy for a while
        flushes.append((await session.flush())[0])
    figures = {
        f"{name}_p{share}_ms": percentile(values, share / 100)
        for name, values in (("halt", halts), ("resume", resumes), ("flush", flushes))
        for share in (50, 99)
    }
    return {**figures, "caught": percentile(caught, 0.5), "complete": complete / rounds}


def main() -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.halt",
        description="halt, resume and flush of a session that forks all the time",
    )
    p.add_argument("--rounds", type=int, default=50)
    p.add_argument("--processes", type=int, default=200)
    p.add_argument(
        "--only",
        metavar="LAYOUT",
        action="append",
        choices=LAYOUTS,
        help=f"which: {' '.join(LAYOUTS)}",
    )
    p.add_argument("--out", metavar="FILE", help="writes the table there too")
    args = p.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory(
        prefix="hbench", dir="/tmp", ignore_cleanup_errors=True
    ) as top:
        Path(top, "run").mkdir(mode=0o700)
        rows = asyncio.run(measure(top, args.rounds, args.processes, args.only or list(LAYOUTS)))
    lines = [
        f"### halt of {args.processes} forking processes ({args.rounds} rounds)",
        "",
        f"{before['system']}, {before['cpus']} processors, Python {before['python']}, "
        f"load {before['load']} at the start, "
        f"{'root' if os.geteuid() == 0 else 'an ordinary user'}. Milliseconds.",
        "",
        "| layout | way | halt p50 | p99 | resume p50 | p99 "
        "| flush p50 | p99 | caught | complete |",
        "|---|---|" + "---:|" * 8,
    ]
    lines += [
        f"| {layout} | {way} | {' | '.join(map(number, figures.values()))} |"
        for layout, way, figures in rows
    ]
    print("\n".join(lines))
    if args.out:
        Path(args.out).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
