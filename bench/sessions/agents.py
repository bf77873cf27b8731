"""What the tools of `holdfast mcp` cost a real agent.

    scripts/agents; python -m bench.sessions.agents [--rounds N]

    list      the bytes of our tools in each request that the agent sends to its model, as JSON
    first     from the start of the agent to its first request to the model with our tools
    without   the same without our configuration: the agent's own part of `first`

The model is the scripted one of the tests, on the loopback of a network namespace (root).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench.report import machine, number
from tests.support.agents.model import Asked, Model, Script
from tests.support.agents.programs import PROGRAMS, Program, play
from tests.support.installation import Installation, installation


def _silent() -> Script:
    yield "Nothing to do."


def _size(asked: Asked) -> int:
    ours = [{k: v for k, v in one.items() if k != "namespace"} for one in asked.ours().values()]
    return len(json.dumps(ours, separators=(",", ":"), ensure_ascii=False).encode())


def measure(house: Installation, program: Program, rounds: int) -> tuple[float, ...]:
    sizes, first, without = list[int](), list[float](), list[float]()
    place, bare = house.user / program.agent, house.user / f"bare-{program.agent}"
    for directory in (place, bare):
        directory.mkdir()
    house.ok("agent", "add", program.agent, "--cwd", str(place))
    for turn in range(rounds):
        for directory, times in ((place, first), (bare, without)):
            model = Model(_silent())
            play(program, model, directory, house.base / f"{directory.name}-{turn}")
            asked = next(one for one in model.asked if one.ours() or directory is bare)
            times.append(1000 * (asked.at - model.started))
            if directory is place:
                sizes.append(_size(asked))
    return max(sizes), statistics.median(first), statistics.median(without)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    before = machine()
    print(f"{before['system']}, {before['cpus']} processors, load {before['load']}. Medians.\n")
    print("| agent | list, bytes | first, ms | without, ms |\n|---|---:|---:|---:|")
    with (
        tempfile.TemporaryDirectory(prefix="hbench", dir="/tmp") as top,
        installation(Path(top)) as h,
    ):
        for name, program in PROGRAMS.items():
            if program.offers:
                figures = measure(h, program, args.rounds)
                print(f"| {name} | {' | '.join(map(number, figures))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
