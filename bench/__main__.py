"""The command line of the bench: which tools, which measures, how much, and where the tables go."""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench import measures, peers, programs, report, standing
from bench.measures import Bench, Sizes, Values
from bench.terminal import ClientEnded, TooLong

PR_SET_CHILD_SUBREAPER = 36
Maker = Callable[[int | None], peers.Peer]  # from the scrollback asked for to an adapter


@dataclass(frozen=True)
class Measure:
    run: Callable[[peers.Peer, Bench], Values]
    rounds_max: int | None = None  # for measures that take long
    scrollback: bool = False  # whether tools are asked to keep all the lines


MEASURES = {
    "echo": Measure(measures.echo),
    "bulk_plain_1": Measure(measures.bulk(False, 1)),
    "bulk_ansi_1": Measure(measures.bulk(True, 1)),
    "bulk_plain_0": Measure(measures.bulk(False, 0)),
    "bulk_ansi_0": Measure(measures.bulk(True, 0)),
    "bulk_plain_8": Measure(measures.bulk(False, 8)),
    "commands": Measure(measures.commands, 3),
    "create": Measure(measures.create),
    "create_cold": Measure(measures.create_cold),
    "reattach_live": Measure(measures.reattach("live"), 5, scrollback=True),
    "reattach_static": Measure(measures.reattach("static"), 5, scrollback=True),
    "stall": Measure(measures.stall, 3),
    "memory": Measure(standing.memory, 1),
    "survival": Measure(standing.survival, 1),
}
FAILURES = (TooLong, ClientEnded, OSError, RuntimeError, TimeoutError)


def main() -> int:
    if sys.argv[1:2] == ["scale"]:
        return standing.scale_main(sys.argv[2:])
    args = _arguments().parse_args()
    wanted = args.only.split(",") if args.only else list(MEASURES)
    if unknown := [m for m in wanted if m not in MEASURES]:
        print(
            f"no such measure: {', '.join(unknown)}; there are {', '.join(MEASURES)}",
            file=sys.stderr,
        )
        return 2
    makers = _makers(args.peers.split(",") if args.peers else None, args.tree)
    # Daemons that tools leave become ours to collect
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    sizes = Sizes(**{f.name: getattr(args, f.name) for f in fields(Sizes)})
    bench = Bench(sizes, tempfile.mkdtemp(prefix="hbench"))
    before, results, failed = report.machine(), dict[str, list[dict[str, Values]]](), 0
    tools, judged = list(makers), [t for t in makers if t.startswith("holdfast")]
    stem = Path(args.out).with_suffix("") if args.out else None
    try:
        for name in wanted:
            begin = time.perf_counter()
            results[name], wrong = _rounds(MEASURES[name], name, makers, bench, args.rounds)
            failed += wrong
            print(report.table(name, tools, results[name]))
            print(
                f"({time.perf_counter() - begin:.0f} s, load {os.getloadavg()[0]:.2f})\n",
                flush=True,
            )
            if stem is not None:
                stem.with_suffix(".md").write_text(
                    report.markdown(before, tools, results, judged, asdict(sizes))
                )
                stem.with_suffix(".json").write_text(
                    report.as_json(before, tools, results, judged, asdict(sizes))
                )
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)
        peers.Holdfast.forget_caches()
    for tool in judged:
        print(report.verdict_table(report.verdicts(results, tool), tool), end="\n\n")
    return 1 if failed else 0


def _rounds(
    measure: Measure, name: str, makers: dict[str, Maker], bench: Bench, count: int
) -> tuple[list[dict[str, Values]], int]:
    """Run the rounds of one measure. The tools stay up in between, each with one idle session."""
    up: list[peers.Peer] = []
    rounds: list[dict[str, Values]] = []
    failed = 0
    try:
        for make in makers.values():
            up.append(make(bench.sizes.lines if measure.scrollback else None))
            up[-1].warm_up()
            if up[-1].keeps_sessions:
                up[-1].start("idle", programs.IDLE)
        for _ in range(min(count, measure.rounds_max or count)):
            one: dict[str, Values] = {}
            for peer in random.sample(up, len(up)):
                try:
                    one[peer.label] = measure.run(peer, bench)
                except FAILURES as e:
                    failed += 1
                    one[peer.label] = {}
                    print(
                        f"{name}, {peer.label}: {type(e).__name__}: {e}"[:500],
                        file=sys.stderr,
                        flush=True,
                    )
            rounds.append(one)
    finally:
        for peer in up:
            peer.close()
    return rounds, failed


def _makers(wanted: list[str] | None, trees: list[str]) -> dict[str, Maker]:
    """Label -> factory of the tool's adapter; missing tools are named and left out."""
    makers: dict[str, Maker] = {}
    known = [cls.name for cls in (*peers.ALL, *peers.FROM_ELSEWHERE)]
    for unknown in [w for w in wanted or () if w not in known]:
        print(f"no such tool: {unknown}; there are {', '.join(known)}", file=sys.stderr)
    for cls in (*peers.ALL, *peers.FROM_ELSEWHERE):
        if cls.name in wanted if wanted is not None else cls in peers.ALL:
            if cls.available():
                makers[cls.name] = cls
            else:
                print(f"not installed: {cls.name}", file=sys.stderr)
    for tree in trees:
        label, _, path = tree.partition("=")
        for cls in (peers.Holdfast, *([peers.Relayed] if peers.Relayed.name in makers else [])):
            makers[f"{cls.name}:{label}"] = _tree_maker(
                cls, f"{cls.name}:{label}", os.path.abspath(path)
            )
    return makers


def _tree_maker(kind: type[peers.Holdfast], label: str, path: str) -> Maker:
    return lambda scrollback: kind(scrollback, path, label)


def _arguments() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench", description="terminal-session tools side by side, in one run"
    )
    known = ",".join(c.name for c in peers.ALL)
    p.add_argument("--peers", metavar="A,B", help=f"which tools (default: all installed): {known}")
    p.add_argument(
        "--tree",
        metavar="LABEL=SRC",
        action="append",
        default=[],
        help=(
            "Holdfast from another source tree, as one more tool"
            " (two, if it is measured through a relay)"
        ),
    )
    p.add_argument("--only", metavar="A,B", help=f"which measures: {','.join(MEASURES)}")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", metavar="FILE", help="writes FILE.md and FILE.json")
    helps: dict[str, str] = {
        "mb": "size of bulk output (8 viewers and stall: half of it)",
        "keys": "keystrokes per round of echo",
        "lines": "scrollback before a reattach",
        "viewers": "how many `8 viewers` are",
        "sessions": "idle sessions for memory",
        "kills": "clients killed for survival",
        "idle_s": "how long idling is watched",
        "away_s": "seconds between the loss of a client and its return",
        "settle_s": "seconds after the last session came, for snapshots and timers of its start",
    }
    defaults: dict[str, Any] = asdict(Sizes())
    for name, value in defaults.items():
        p.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            type=type(value),
            default=value,
            help=f"{helps[name]} (default {value:g})",
        )
    return p


if __name__ == "__main__":
    sys.exit(main())
