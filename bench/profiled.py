"""Runs one of Holdfast's programs under cProfile and writes the profile when the program ends.

    python -m bench.profiled host OUT            OUT.host; also its keepers: OUT.keeper.PID
    python -m bench.profiled client OUT ARGS     OUT.client; ARGS as for `holdfast`

A profiler slows Python code down several times and system calls not at all. So the profile says
where Python time goes, not how much of the whole that is. Only a program's main thread is profiled;
the emulator's thread works without the interpreter anyway.
"""

from __future__ import annotations

import cProfile
import os
import signal
import sys
from collections.abc import Callable


def measured(run: Callable[[], int], path: str) -> int:
    profiler = cProfile.Profile()
    try:
        return profiler.runcall(run)
    finally:
        profiler.dump_stats(path)


def host(out: str) -> int:
    from holdfast.host import main
    from holdfast.host.lifecycle import nursery

    nursery.nursery_command = lambda run: [
        sys.executable,
        "-m",
        "bench.profiled",
        "nursery",
        out,
        run,
    ]
    return measured(main.main, f"{out}.host")


def keepers(out: str, run: str) -> int:
    from holdfast.keeper import nursery
    from holdfast.keeper.loop import Keeper

    hold = Keeper.run

    def measured_run(self: Keeper) -> None:
        def until_told() -> int:
            hold(self)
            return 0

        measured(until_told, f"{out}.keeper.{os.getpid()}")

    Keeper.run = measured_run  # type: ignore[method-assign]
    sys.argv[1:] = [run]
    return nursery.main()


def client(out: str, args: list[str]) -> int:
    from holdfast.faces.cli.main import run

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return measured(lambda: run(args), f"{out}.client")


if __name__ == "__main__":
    role, target, *rest = sys.argv[1:]
    if role == "host":
        sys.exit(host(target))
    sys.exit(keepers(target, rest[0]) if role == "nursery" else client(target, rest))
