"""What a contained session costs at its start, beside a plain one.

    python -m bench.sessions.contained [--rounds N]

Each round makes one session of each kind with the command line of a process that already runs, and
ends it. The figure is the time from the command to its answer: the program has been executed then.
The workspace is an empty directory. Ordinary users and root have different ways for limits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench.report import number
from tests.support.installation import installation

KINDS = {
    "plain": (),
    "contained, `--net none`": ("--contained", "--net", "none"),
    "contained, `--net own`": ("--contained", "--net", "own"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as base, installation(Path(base)) as hf:
        hf.ok("up", "--detach")
        for count in range(rounds + 1):
            for kind, options in KINDS.items():
                began = time.perf_counter()
                hf.quick("new", "s", "--json", *options, "--", "sh")
                if count:  # the first round warms up
                    took[kind].append((time.perf_counter() - began) * 1000)
                hf.end("s")
    print("| session | p50, ms | p90, ms | x plain |\n|---|---:|---:|---:|")
    plain = statistics.median(took["plain"])
    for kind, values in took.items():
        middle, high = statistics.median(values), statistics.quantiles(values, n=10)[-1]
        print(f"| {kind} | {number(middle)} | {number(high)} | {number(middle / plain)} |")
    print(f"({rounds} rounds, load {os.getloadavg()[0]:.2f})")


if __name__ == "__main__":
    main()
