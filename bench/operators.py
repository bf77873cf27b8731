"""Operators among each other: seizing, halting, the cost of the door, the speed of the record.

    python -m bench.operators [--only seize,halt,door,record] [--rounds N] [--processes N]
                              [--json FILE] [--out FILE]

    seize    by a connected client, from its request. Answered: the keeper said that input on its
             way is discarded. Effective: the old holder's next input was refused; asked after the
             answer, so the figure contains the round trip of that question. On an idle session,
             while its program floods it with output that a viewer follows, and while the holder
             floods it with input. bare: a byte that goes through as many processes and back, in
             the same rounds: the least that this machine takes at that time
    halt     of a quiet session and of PROCESSES that fork all the time. took: the figure in the
             answer, until the kernel confirmed that no process runs. answered: until the client
             has the answer. last: until the last process did work, by the times that they wrote
             down themselves. late: share of halts after whose answer a process did work; complete:
             share that the kernel confirmed. The next halt waits until half of them have run again:
             a process that has not run is still frozen, and halting it would be no work
    door     one `send`, one `run`, beside tmux (door.py)
    record   appending and verifying (record.py)

An ordinary user has no control group; that halt is measured in a process that gives up root
(`halt_user`; the host's own calls, see halt.py). An unprivileged process cannot raise its priority:
with other busy programs on the machine, that figure depends on them as much as on Holdfast.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import door, halt, programs, record
from bench.halt import percentile
from bench.report import machine, number, plain_verdict, verdict_table
from bench.stage import Relay, Stage, Witnesses, refused
from bench.targets import OPERATOR_TARGETS, judge
from holdfast.client.link import Link

Values = dict[str, float | None]
Results = dict[str, dict[str, Values]]  # measure -> tool -> figures
PARTS = ("seize", "halt", "door", "record")
RUNNING_S, STEP_S = 60.0, 0.005  # for the processes to run again; between looks
LIFE_S = 300.0
NOBODY = 65534
# Never reads: input piles up
SILENT = (
    "sh",
    "-c",
    "stty raw -echo; echo READY; exec sleep 1000",
)


def spread(name: str, seconds: list[float]) -> Values:
    return {
        f"{name}_p50_ms": percentile(seconds, 0.5) * 1e3,
        f"{name}_p99_ms": percentile(seconds, 0.99) * 1e3,
    }


# ---------------------------------------------------------------- seize


def seize(stage: Stage, rounds: int) -> Results:
    data = stage.peer.path("flood")
    Path(data).write_bytes(programs.block(True))
    stage.start("silent", SILENT)
    stage.wait("silent", "text:READY")
    ann, bob = stage.link("ann"), stage.link("bob")
    try:
        results = {"seize_idle": {"holdfast": _seizures(ann, bob, "silent", rounds)}}
        stage.start("loud", ("sh", "-c", f"while :; do cat {data}; done"))
        follower = subprocess.Popen(
            stage.peer.follow_argv("loud"),
            env=stage.peer.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            results["seize_output"] = {"holdfast": _seizures(ann, bob, "loud", rounds)}
        finally:
            follower.kill()
            follower.wait()
            stage.end("loud")
        ann.request("seize", session="silent")
        with stage.flooding("ann", "silent"):
            results["seize_input"] = {"holdfast": _seizures(ann, bob, "silent", rounds)}
        return results
    finally:
        ann.close()
        bob.close()
        stage.end("silent")


def _seizures(holder: Link, other: Link, session: str, rounds: int) -> Values:
    answered, effective, bare, flushed = list[float](), list[float](), list[float](), 0
    relay = Relay()
    for _ in range(rounds):
        bare.append(relay.once())
        if holder.request("seize", session=session)["turn"]["holder"] != holder.operator:
            raise RuntimeError("who seized does not hold the turn")
        begin = time.perf_counter()
        got = other.request("seize", session=session)
        answered.append(time.perf_counter() - begin)
        if not refused(holder, session):
            raise RuntimeError("the old holder can still type")
        effective.append(time.perf_counter() - begin)
        flushed += bool(got["flushed"])
    relay.close()
    return {
        **spread("answered", answered),
        **spread("effective", effective),
        **spread("bare", bare),
        "flushed": flushed / rounds,
    }


# ---------------------------------------------------------------- halt


def halts(stage: Stage, rounds: int, count: int) -> Results:
    results: Results = {}
    for name, options, processes in (
        ("quiet", (), 1),
        ("plain", (), count),
        ("contained", ("--contained", "--cwd", stage.peer.path("contained")), count),
    ):
        os.makedirs(stage.peer.path(name))
        witnesses = Witnesses(stage.peer.path(f"{name}/seen"), processes, LIFE_S)
        stage.start(name, witnesses.argv if name != "quiet" else ("sleep", "1000"), *options)
        link = stage.link("bob")
        try:
            results[f"halt_{name}"] = {
                "holdfast": _halts(link, name, rounds, witnesses if name != "quiet" else None)
            }
        finally:
            link.request("halt", session=name)
            link.close()
            stage.end(name)
    results["halt_user"] = {"holdfast": as_user(max(2, rounds // 2), count)}
    return results


def _halts(link: Link, session: str, rounds: int, witnesses: Witnesses | None) -> Values:
    answered, took, last, resumed, late, complete = (
        list[float](),
        list[float](),
        list[float](),
        list[float](),
        0,
        0,
    )
    for _ in range(rounds):
        if witnesses is not None:
            _run_again(witnesses, time.monotonic_ns())
        begin = time.monotonic_ns()
        got = link.request("halt", session=session)
        now = time.monotonic_ns()
        answered.append((now - begin) / 1e9)
        took.append(got["took_ms"] / 1e3)
        complete += bool(got["complete"])
        if witnesses is not None:
            latest = max(witnesses.seen())
            last.append(max(0, latest - begin) / 1e9)
            late += latest > now
        begin = time.monotonic_ns()
        link.request("resume", session=session)
        resumed.append((time.monotonic_ns() - begin) / 1e9)
    return {
        **spread("took", took),
        **spread("answered", answered),
        **(spread("last", last) if last else {}),
        **spread("resume", resumed),
        "complete": complete / rounds,
        "late": late / rounds,
    }


def _run_again(witnesses: Witnesses, since: int) -> None:
    """Wait until half of the processes have run again; waiting for all would take too long.

    Where daemons are scheduled as sessions of their own (sched_autogroup), the rest get only the
    time that these leave.
    """
    end = time.monotonic() + RUNNING_S
    while statistics.median(witnesses.seen()) < since:
        if time.monotonic() > end:
            raise TimeoutError("they do not run")
        time.sleep(STEP_S)


def as_user(rounds: int, count: int) -> Values:
    """Measure in a contained session of a host without privileges.

    Empty if that cannot be measured here.
    """
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(receive)
            with contextlib.suppress(Exception):
                os.write(send, json.dumps(_halts_of_user(rounds, count)).encode())
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as f:
        said = f.read()
    os.waitpid(pid, 0)
    found: Values = json.loads(said or b"{}")
    return found


def _halts_of_user(rounds: int, count: int) -> Values:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if not os.access(sys.executable, os.X_OK) or not os.access(
        os.path.realpath(sys.executable), os.R_OK
    ):
        # For the nursery, which needs only a standard library
        sys.executable = "/usr/bin/python3"
        os.environ["PYTHONPATH"] = os.pathsep.join(
            path for path in sys.path if os.access(path, os.R_OK) and "site-packages" not in path
        )
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(
        prefix="hbench", dir="/tmp", ignore_cleanup_errors=True
    ) as top:
        Path(top, "run").mkdir(mode=0o700)
        [(_, _, figures)] = asyncio.run(halt.measure(top, rounds, count, ["contained"]))
    return {name: value for name, value in figures.items() if not name.startswith("flush")}


# ---------------------------------------------------------------- the whole run


def measure(parts: list[str], rounds: int, processes: int, acts: int) -> Results:
    results: Results = {}
    with _stage() as stage:
        if "seize" in parts:
            results |= seize(stage, rounds)
        if "halt" in parts:
            results |= halts(stage, max(2, rounds // 5), processes)
        if "door" in parts:
            results |= door.costs(stage, rounds, max(2, rounds // 20))
    if "record" in parts:
        whole = max(record.KEYS_PER_COVER, acts - acts % record.KEYS_PER_COVER)
        verified = record.verify("commands", acts, record.commands) | record.verify(
            "keys", whole, record.keys
        )
        results |= {
            "append": {"holdfast": dict(record.append(max(50, acts // 10)))},
            "verify": {"holdfast": dict(verified)},
        }
    return results


@contextlib.contextmanager
def _stage() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()
        stage.peer.forget_caches()


def markdown(before: dict[str, Any], results: Results, options: str) -> str:
    lines = [
        f"{before['system']}, {before['cpus']} processors, Python {before['python']}, "
        f"{'root' if os.geteuid() == 0 else 'an ordinary user'}, "
        f"load {before['load']} at the start, {os.getloadavg()[0]:.2f} at the end{options}.",
        "",
        verdict_table(_verdicts(results), "operators"),
        "",
    ]
    tables: dict[tuple[str, ...], list[str]] = {}
    for name, tools in results.items():
        for tool, values in tools.items():
            cells = [
                name + (f", {tool}" if len(tools) > 1 else ""),
                *(number(value) for value in values.values()),
            ]
            tables.setdefault(tuple(values), []).append(f"| {' | '.join(cells)} |")
    for metrics, rows in tables.items():
        if len(rows) == 1 and len(metrics) > 9:
            lines += ["| " + rows[0].split("|")[1].strip() + " | |", "|---|---:|"]
            lines += [
                f"| {metric} | {cell.strip()} |"
                for metric, cell in zip(metrics, rows[0].split("|")[2:-1], strict=True)
            ]
        else:
            lines += [f"| | {' | '.join(metrics)} |", "|---|" + "---:|" * len(metrics), *rows]
        lines.append("")
    return "\n".join(lines)


def _verdicts(results: Results) -> list[Any]:
    return [
        judge(target, [results[target.measure]], "holdfast")
        for target in OPERATOR_TARGETS
        if target.measure in results
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.operators", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", metavar="A,B", help=f"which parts: {','.join(PARTS)}")
    parser.add_argument(
        "--rounds",
        type=int,
        default=150,
        help="seizures, and acts at the door; a fifth of it halts",
    )
    parser.add_argument(
        "--processes", type=int, default=200, help="that fork while they are halted"
    )
    parser.add_argument("--acts", type=int, default=6000, help="of the record that is verified")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tables there too")
    args = parser.parse_args()
    parts = args.only.split(",") if args.only else list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    before = machine()
    results = measure(parts, args.rounds, args.processes, args.acts)
    text = markdown(
        before,
        results,
        f"; {args.rounds} seizures, {max(2, args.rounds // 5)} halts of {args.processes} processes",
    )
    print(text)
    if args.out:
        args.out.write_text(text)
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "machine": before,
                    "results": results,
                    "verdicts": [plain_verdict(v) for v in _verdicts(results)],
                },
                indent=1,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
