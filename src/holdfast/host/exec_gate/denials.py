"""Denied execs of a session, remembered for a minute.

After EACCES a search along PATH tries the same name in the next directory. That is not a new
question: one denial counts for the act and the name of the program.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from holdfast.core.policy.approvals import DENIED_S
from holdfast.core.policy.policy import Decision
from holdfast.host.exec_gate.verify_exec import AllowedExec

DENIED_MAX: Final = 64

# Operator, act, process if there is no act, rule, name of the program, and its words.
Attempt = tuple[str, int | None, int, str, str, tuple[str, ...]]


class Denials:
    def __init__(self) -> None:
        self._until: OrderedDict[Attempt, tuple[float, str]] = OrderedDict()

    def add(self, asked: AllowedExec, decision: Decision, why: str) -> None:
        self._until[_attempt(asked, decision)] = (time.monotonic() + DENIED_S, why)
        if len(self._until) > DENIED_MAX:
            self._until.popitem(last=False)

    def why(self, asked: AllowedExec, decision: Decision) -> str:
        """The reason of a denial that counts for this exec too; "" if there is none."""
        until, why = self._until.get(_attempt(asked, decision), (0.0, ""))
        return why if time.monotonic() < until else ""


def _attempt(asked: AllowedExec, decision: Decision) -> Attempt:
    cause, program = asked.cause, asked.program
    process = asked.pid if cause.act is None else 0
    name = program.path.rpartition("/")[2]
    return cause.actor, cause.act, process, decision.rule, name, program.argv[1:]
