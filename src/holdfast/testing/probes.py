"""Acts on named probes: the armed side of model/probe.py.

`HOLDFAST_PROBE` holds directives separated by commas, read by a program's composition root:

    kill@NAME#N      SIGKILL itself the Nth time it passes NAME (default: the first)
    stop@NAME#N      SIGSTOP itself there (a test sees state T, inspects, and continues or kills it)
    log:PATH         append every passed name to PATH, one per line
    random:SEED:P    SIGKILL itself at any probe with probability P, reproducibly for a seed (all keepers throw the same dice)
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading

from holdfast.model import probe


def arm_from(text: str) -> None:
    """Arms this process as the directives say. An unreadable directive is an error: a test must not pass by typo."""
    acts: dict[str, tuple[int, int]] = {}
    log = -1
    dice: tuple[random.Random, float] | None = None
    for directive in filter(None, text.split(",")):
        verb, mark, rest = (
            re.split("([@:])", directive, maxsplit=1)
            if re.search("[@:]", directive)
            else (directive, "", "")
        )
        if verb in ("kill", "stop") and mark == "@":
            name, _, nth = rest.partition("#")
            acts[name] = (signal.SIGKILL if verb == "kill" else signal.SIGSTOP, int(nth or 1))
        elif verb == "log":
            log = os.open(rest, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        elif verb == "random":
            seed, _, chance = rest.partition(":")
            dice = (random.Random(seed), float(chance))
        else:
            raise ValueError(f"bad probe directive {directive!r}")
    passed: dict[str, int] = {}
    one_at_a_time = (
        threading.Lock()
    )  # the name at which a program died is the last one in its log, whatever its other threads do

    def hook(name: str) -> None:
        with one_at_a_time:
            if log >= 0:
                os.write(log, f"{name}\n".encode())
            passed[name] = count = passed.get(name, 0) + 1
            if name in acts and acts[name][1] == count:
                os.kill(os.getpid(), acts[name][0])
            if dice is not None and dice[0].random() < dice[1]:
                os.kill(os.getpid(), signal.SIGKILL)

    probe.arm(hook)
