"""Named probes for fault tests: the armed side of model/probe.py.

`HOLDFAST_PROBE` holds directives separated by commas. A program's composition root reads them:

    kill@NAME#N      SIGKILL this process when NAME is passed for the Nth time (default: first)
    stop@NAME#N      SIGSTOP this process there; a test inspects state T, then continues or kills
    log:PATH         append every passed name to PATH, a line each
    random:SEED:P    SIGKILL at any probe with probability P, reproducible for a seed
    when:PATH        pass over all of the above until PATH exists. A host passes some probes while
                     it starts (it journals its own facts); a test means those of a later act
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading

from holdfast.model import probe


def arm_from(text: str) -> None:
    """Arm this process. An unreadable directive is an error, so that a typo fails a test."""
    acts: dict[str, tuple[int, int]] = {}
    log, gate = -1, ""
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
        elif verb == "when":
            gate = rest
        elif verb == "random":
            seed, _, chance = rest.partition(":")
            dice = (random.Random(seed), float(chance))
        else:
            raise ValueError(f"bad probe directive {directive!r}")
    passed: dict[str, int] = {}
    # So that the last name in the log is the probe at which the program died
    one_at_a_time = threading.Lock()

    def hook(name: str) -> None:
        with one_at_a_time:
            if gate and not os.path.exists(gate):
                return
            if log >= 0:
                os.write(log, f"{name}\n".encode())
            passed[name] = count = passed.get(name, 0) + 1
            if name in acts and acts[name][1] == count:
                os.kill(os.getpid(), acts[name][0])
            if dice is not None and dice[0].random() < dice[1]:
                os.kill(os.getpid(), signal.SIGKILL)

    probe.arm(hook)
