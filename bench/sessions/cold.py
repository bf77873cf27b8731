"""Cold recovery: all sessions of a home after `kill -9` of the host and of every keeper (R1).

    python -m bench.sessions.cold [--sessions N] [--rounds N]

Each session is a bash in a directory of its own with an exported variable and 100 lines of output.
From the start of the next host:

    answers    until the host answers
    first      until a session that was asked for can be attached, in its next incarnation
    all        until every session is back
    cpu        processor time of the host per session, until then

The directory and the variable of every session are compared afterwards, and no session may be
missing. Absolute times depend on the other work of the machine, so its load is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from bench import processes
from bench.report import machine
from tests.support.stage import Stage

COMMAND = "mkdir -p d{0} && cd d{0}; export ROUND={1}; seq 100"
ASKED = "pwd; echo $ROUND"


def filled(stage: Stage, count: int) -> None:
    for number in range(count):
        stage.new(f"s{number}", ["/bin/bash"])


def prepared(stage: Stage, count: int, number: int) -> None:
    """Give every session a directory and a variable, and wait until both are stored."""
    for one in range(count):
        text = f"cd {stage.directory}; " + COMMAND.format(one, number)
        stage.ask("run", session=f"s{one}", text=text)
    for one in range(count):
        wanted = f'"ROUND": "{number}"'
        stage.pump.until(lambda one=one, wanted=wanted: stored(stage, one, wanted), "it is stored")  # type: ignore[misc]


def stored(stage: Stage, one: int, wanted: str) -> bool:
    return wanted.replace('"', "'") in str(stage.description(f"s{one}"))


def recovered(stage: Stage, count: int, epoch: int) -> dict[str, float]:
    stage.cut_power()
    begin = time.perf_counter()
    host = stage.start_host()
    answers = time.perf_counter() - begin
    assert stage.session(f"s{count - 1}")["epoch"] == epoch
    first = time.perf_counter() - begin
    found = stage.ask("ls")["sessions"]  # waits for all
    everything = time.perf_counter() - begin
    cpu = processes.cpu_ns([host]) / 1e6 / count
    assert [one["epoch"] for one in found] == [epoch] * count, "every session is back"
    return {"answers_s": answers, "first_s": first, "all_s": everything, "cpu_ms": cpu}


def told(stage: Stage, one: int) -> str:
    """What the session says about its directory and variable."""
    said = bytearray()
    link = stage.link()
    link.request(
        "run",
        session=f"s{one}",
        text=ASKED,
        on_data=lambda start, end, data: said.extend(data),
    )
    return said.decode().replace("\r\n", "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stage, rows, loads = Stage(), list[dict[str, float]](), list[float]()
    try:
        stage.start_host()
        filled(stage, args.sessions)
        for number in range(args.rounds):
            prepared(stage, args.sessions, number)
            loads.append(os.getloadavg()[0])
            rows.append(recovered(stage, args.sessions, number + 2))
            loads.append(os.getloadavg()[0])
            for one in range(args.sessions):
                said = told(stage, one)
                assert said == f"{stage.directory}/d{one}\n{number}\n", said
                if one % 20 == 19:
                    print(f"\r{number + 1}: {one + 1} compared", end="", file=sys.stderr)
    finally:
        stage.close()
    on, load = machine(), f"load {min(loads):.1f} to {max(loads):.1f}"
    print(f"\n{on['system']}, {on['cpus']} processors, Python {on['python']}, {load}.")
    print(f"{args.sessions} sessions, {args.rounds} rounds.\n")
    print("| figure | median | from - to |\n|---|---:|---:|")
    for name in rows[0]:
        values = sorted(row[name] for row in rows)
        print(f"| {name} | {statistics.median(values):.2f} | {values[0]:.2f} - {values[-1]:.2f} |")
    per = sorted(1e3 * row["all_s"] / args.sessions for row in rows)
    print(f"| all, ms per session | {statistics.median(per):.1f} | {per[0]:.1f} - {per[-1]:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
