"""Measures through a relay, besides echo and bulk: reconnecting, and many viewers.

For echo and bulk: `python -m bench --peers raw,ssh+tmux,holdfast,holdfast-relay`.

    python -m bench.elsewhere [--only reconnect,viewers] [--rounds 5] [--viewers 100] [--mb 2]
                              [--out FILE]

    reconnect   a client is attached through a relay, which is ended and started again at once on
                the same address. Measured: from the moment the relay listens until the client's
                terminal shows output that the program printed after that moment; and from the end
                of the old relay, which includes the start of the new relay. By SIGTERM (the relay
                says goodbye), by SIGKILL, and once with five seconds in between, in which both
                ends retry in vain
    viewers     one program prints to this many attached clients, each on its own terminal.
                Measured: until the last client has seen the end, whether each got every byte,
                memory of the host and of the relay before and at most; and the same again with
                one more viewer that has stopped reading. Locally and through a relay; as a
                comparison the bare copy into one pipe per viewer, and tmux

All viewers are real clients. They and their terminals run on this machine, so their processor time
is part of every figure, including the bare copy.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import re
import select
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import measures, peers, processes, programs, report
from bench.__main__ import FAILURES, PR_SET_CHILD_SUBREAPER
from bench.measures import Bench, Sizes, Values
from bench.peers import Holdfast, Peer, Raw, Relayed, Tmux
from bench.targets import ELSEWHERE_TARGETS, Rounds, judge
from bench.terminal import ClientEnded, Terminal, deadline
from holdfast.core.sealed.backoff import STEADY_S

SHOWN_S, SAMPLE_S, RESTS_S = 60.0, 0.2, 1.0
AWAY_S = 5.0
DRAIN_MS = 2
TIME = re.compile(rb"<(\d+)>")
WAYS: dict[str, tuple[signal.Signals, float]] = {
    "reconnect_term": (signal.SIGTERM, 0.0),
    "reconnect_kill": (signal.SIGKILL, 0.0),
    "reconnect_away": (signal.SIGKILL, AWAY_S),
}


# ---------------------------------------------------------------- reconnect


def shown_after(terminal: Terminal, moment: int) -> int:
    """Read until the terminal shows output printed after the given moment; return when that was.

    Both times are ns of the monotonic clock.
    """
    tail = b""
    with deadline(SHOWN_S):
        while True:
            data = terminal.read()
            if not data:
                raise ClientEnded("the client ended")
            tail = (tail + data)[-4096:]
            if any(int(found) > moment for found in TIME.findall(tail)):
                return time.monotonic_ns()


def reconnect(peer: Relayed, number: signal.Signals, away_s: float) -> Values:
    with measures.session(peer, programs.clock(), 1) as (_, [terminal]):
        steady = time.monotonic_ns()
        while shown_after(terminal, time.monotonic_ns()) < steady + int(STEADY_S * 1.1e9):
            pass
        begin, reading = time.monotonic_ns(), threading.Event()

        # While the relay starts; otherwise the client's messages would fill its terminal
        def drain() -> None:
            poll = select.poll()
            poll.register(terminal.fd, select.POLLIN)
            while not reading.is_set():
                if poll.poll(DRAIN_MS):
                    terminal.read()

        drained = threading.Thread(target=drain)
        drained.start()
        try:
            peer.restart_relay(number, away_s)
        finally:
            there = time.monotonic_ns()
            reading.set()
            drained.join()
        back = shown_after(terminal, there)
    return {
        "back_ms": (back - there) / 1e6,
        "since_end_ms": (back - begin) / 1e6,
        "relay_start_ms": (there - begin) / 1e6 - away_s * 1e3,
    }


# ---------------------------------------------------------------- viewers


class Growth:
    """How large processes become."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.first = self._look()
        self.most = dict(self.first)

    def _look(self) -> dict[str, int]:
        return {role: processes.own_kb(pid) for role, pid in self._pids.items()}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_S):
                for role, kb in self._look().items():
                    self.most[role] = max(self.most[role], kb)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def values(self) -> Values:
        return {
            f"{role}_mib{when}": kb / 1024
            for role in self._pids
            for when, kb in (("", self.first[role]), ("_most", self.most[role]))
        }


def viewers(peer: Peer, bench: Bench) -> Values:
    count, mb = bench.sizes.viewers, bench.sizes.mb
    if not peer.keeps_sessions:
        return measures.bare_fan_out(bench, False, mb, count)
    pids: dict[str, int] = {}
    if isinstance(peer, Holdfast):
        peer.start("first", programs.IDLE)
        pids["host"] = peer.host_pid()
        if isinstance(peer, Relayed):
            pids["relay"] = peer.relay_pid()
    growth = Growth(pids)
    with growth.watched():
        got = measures.flood(peer, bench, False, mb, count)
    assert got.seen_s is not None
    values: Values = {
        "MBps": got.written / 1e6 / got.seen_s,
        "received": got.received,
        "exact": float(bool(got.exact)),
        "cpu_ms_per_MB_each": got.cpu_s * 1e3 / (got.written / 1e6) / count,
        **growth.values(),
    }
    time.sleep(RESTS_S)
    beside = measures.flood(peer, bench, False, mb, count, stopped=1)
    assert beside.seen_s is not None
    return {
        **values,
        "slowdown": beside.seen_s / got.seen_s,
        "exact_beside": float(bool(beside.exact)),
    }


# ---------------------------------------------------------------- the whole run


def coming_back(
    rounds: int, ways: Sequence[str] = tuple(WAYS)
) -> dict[str, list[dict[str, Values]]]:
    peer, found = Relayed(), dict[str, list[dict[str, Values]]]()
    try:
        peer.warm_up()
        for way in ways:
            found[way] = [{peer.label: reconnect(peer, *WAYS[way])} for _ in range(rounds)]
    finally:
        peer.close()
    return found


def watching(
    bench: Bench, kinds: Sequence[type[Peer]] = (Raw, Tmux, Holdfast, Relayed)
) -> list[dict[str, Values]]:
    """Run one round, which takes long."""
    one: dict[str, Values] = {}
    for kind in [k for k in kinds if k.available()]:
        peer = kind()
        try:
            peer.warm_up()
            one[peer.label] = viewers(peer, bench)
        except FAILURES as e:
            one[peer.label] = {}
            print(
                f"viewers, {peer.label}: {type(e).__name__}: {e}"[:500], file=sys.stderr, flush=True
            )
        finally:
            peer.close()
    return [one]


def main() -> int:
    p = argparse.ArgumentParser(
        prog="python -m bench.elsewhere",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "--only", default="reconnect,viewers", help="which measures (default: %(default)s)"
    )
    p.add_argument(
        "--rounds", type=int, default=5, help="of each way to come back (default: %(default)s)"
    )
    p.add_argument("--viewers", type=int, default=100)
    p.add_argument(
        "--mb", type=float, default=2.0, help="printed to each viewer (default: %(default)s)"
    )
    p.add_argument("--out", type=Path, help="write the tables to FILE and the figures to FILE.json")
    args = p.parse_args()
    wanted = args.only.split(",")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    bench = Bench(Sizes(mb=args.mb, viewers=args.viewers), tempfile.mkdtemp(prefix="hbench"))
    machine, results = report.machine(), dict[str, Rounds]()
    try:
        if "reconnect" in wanted:
            results |= coming_back(args.rounds)
        if "viewers" in wanted:
            results["viewers"] = watching(bench)
    finally:
        shutil.rmtree(bench.dir, ignore_errors=True)
        peers.Holdfast.forget_caches()
    page = "\n\n".join(
        [
            report.verdict_table(
                [
                    judge(t, results[t.measure], Relayed.name)
                    for t in ELSEWHERE_TARGETS
                    if t.measure in results
                ],
                Relayed.name,
            ),
            *_tables(results),
        ]
    )
    print(page)
    if args.out:
        args.out.write_text(page + "\n")
        args.out.with_name(args.out.name + ".json").write_text(
            json.dumps({"machine": machine, "rounds": results}, indent=1) + "\n"
        )
    return 0


def _tables(results: dict[str, Rounds]) -> Iterator[str]:
    back = {way: rounds for way, rounds in results.items() if way in WAYS}
    if back:
        names = list(back[next(iter(back))][0][Relayed.name])
        lines = [
            "### reconnect (median, and the longest)",
            "",
            f"| | {' | '.join(names)} |",
            "|---|" + "---:|" * len(names),
        ]
        for way, rounds in back.items():
            cells: list[Any] = [
                [float(one[Relayed.name][name] or 0.0) for one in rounds] for name in names
            ]
            lines.append(
                f"| {way.removeprefix('reconnect_')} | "
                + " | ".join(
                    f"{report.number(statistics.median(c))} ({report.number(max(c))})"
                    for c in cells
                )
                + " |"
            )
        yield "\n".join(lines)
    if "viewers" in results:
        yield report.table("viewers", list(results["viewers"][0]), results["viewers"])


if __name__ == "__main__":
    sys.exit(main())
