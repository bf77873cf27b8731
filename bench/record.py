"""How quick the record is: appending, and verifying an export.

    python -m bench.record [--acts 20000] [--out FILE]

    append     one act after another (an intent that is durable, then its outcome), and 64
               operators at once; the cost of a key for the host's loop before the key is handed to
               the writer
    verify     acts verified per second: commands, each signed (two entries: intent and outcome),
               and raw keys, of which one signature covers 64. By one process, and by as many as
               there are processors

Signatures are made before the timing starts, since clients make them. Per processor means: divided
by the CPU seconds of all processes, so that the figure does not depend on other load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.record import audit, record
from holdfast.faces.verification import spread
from holdfast.host.storage.journal import Journal, Typist
from holdfast.host.storage.store import Store
from tests.support.checkers.records import Scribe

KEYS_PER_COVER = record.COVER_KEYS
AT_ONCE = 64
ROUNDS = 3  # the median of these
Figures = dict[str, float]


def _cpu() -> float:
    spent = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(s.ru_utime + s.ru_stime for s in spent)


# ---------------------------------------------------------------- append


async def _append(acts: int, path: str) -> Figures:
    store = Store(path)
    store.start()
    scribe = Scribe()
    journal = Journal(store, scribe.private)
    drafts = [
        scribe.draft(scribe.ann, "intent", "command", b"make test %d" % n) for n in range(2 * acts)
    ]
    times = []

    async def act(draft: record.Draft) -> None:
        begin = time.perf_counter()
        written = await journal.intent(draft)
        times.append(time.perf_counter() - begin)
        journal.outcome(written, record.APPLIED, exit_code=0)

    try:
        begin, cpu = time.perf_counter(), _cpu()
        for draft in drafts[:acts]:
            await act(draft)
        await journal.settled()
        figures = {
            "one_by_one_per_s": acts / (time.perf_counter() - begin),
            "one_by_one_cpu_us": (_cpu() - cpu) / acts * 1e6,
            "intent_p50_us": statistics.median(times) * 1e6,
            "intent_p99_us": statistics.quantiles(times, n=100)[98] * 1e6,
        }
        rest = drafts[acts:]
        begin, cpu = time.perf_counter(), _cpu()

        async def operator(mine: list[record.Draft]) -> None:
            for draft in mine:
                await act(draft)

        await asyncio.gather(*(operator(rest[n::AT_ONCE]) for n in range(AT_ONCE)))
        await journal.settled()
        figures |= {
            f"{AT_ONCE}_at_once_per_s": acts / (time.perf_counter() - begin),
            f"{AT_ONCE}_at_once_cpu_us": (_cpu() - cpu) / acts * 1e6,
        }
        typist = Typist(
            scribe.session, 1, scribe.ann.name, scribe.ann.key, "cli", scribe.ann.client
        )
        first, keys = scribe.ann.number + 1, 20 * acts
        begin = time.perf_counter()
        for number in range(first, first + keys):
            journal.keys(typist, number)
        figures["key_ns"] = (time.perf_counter() - begin) / keys * 1e9
    finally:
        await journal.close()
        store.close()
    return figures


def append(acts: int) -> Figures:
    with tempfile.TemporaryDirectory(
        prefix="hbrecord", dir=os.environ.get("BENCH_DIR")
    ) as directory:
        return asyncio.run(_append(acts, f"{directory}/state.db"))


# ---------------------------------------------------------------- verify


def commands(acts: int) -> list[bytes]:
    scribe = Scribe()
    for n in range(acts):
        scribe.act(scribe.ann, b"make test %d" % n)
    return scribe.export()


def keys(acts: int) -> list[bytes]:
    scribe = Scribe()
    for _ in range(acts // KEYS_PER_COVER):
        scribe.keys(scribe.ann, [b"k"] * KEYS_PER_COVER)
    return scribe.export()


def verify(name: str, acts: int, make: Callable[[int], list[bytes]]) -> Figures:
    lines = make(acts)
    figures: Figures = {f"{name}_bytes_per_act": sum(map(len, lines)) / acts}
    for how, way in (("one", audit.one_by_one), ("all", spread)):
        rounds = [_round(lines, way) for _ in range(ROUNDS)]
        figures |= {
            f"{name}_{how}_per_s": acts / statistics.median(wall for wall, _ in rounds),
            f"{name}_{how}_per_cpu_s": acts / statistics.median(spent for _, spent in rounds),
        }
    return figures


def _round(lines: list[bytes], way: audit.Spread) -> tuple[float, float]:
    """Seconds, and seconds of processors."""
    begin, cpu = time.perf_counter(), _cpu()
    findings = audit.verify(lines, spread=way)
    if audit.broken(findings):
        raise RuntimeError(f"the record of the bench does not verify: {findings[:3]}")
    return time.perf_counter() - begin, _cpu() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--acts", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="also as JSON, to this file")
    args = parser.parse_args()
    figures = {
        "append": append(max(200, args.acts // 10)),
        "verify": verify("commands", args.acts, commands)
        | verify("keys", args.acts - args.acts % KEYS_PER_COVER, keys),
    }
    for part, values in figures.items():
        print(f"{part}:")
        for name, value in values.items():
            print(f"  {name:<26} {value:>12,.0f}")
    print(f"({len(os.sched_getaffinity(0))} processors, load {os.getloadavg()[0]:.2f})")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
