"""`holdfast doctor`: which features work on this machine, which do not, why, and the fix.

This module runs the checks and defines the form of the answers. It prints nothing.

Each check is tried in a separate process, all at the same time. Asking the kernel for the version
or a config option was rejected: containers, seccomp profiles and security modules forbid features
that the version promises, so only trying gives the answer. Trying in this process, or in a thread,
was rejected too: unshare, seccomp filters and the subreaper bit cannot be undone, and a call that
hangs would hang the doctor. So each check is forked and answers through a pipe. At the deadline the
check's process group is killed, and the check's `cleanup` runs here.

A check that raises, dies or takes too long is "unknown" with that reason, never a failure of the
doctor.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.host.doctor import gates, home, isolation, machine
from holdfast.host.doctor.check import Check, Derived, Outcome, Surroundings, readable

ANSWER_BYTES_MAX = 65_536

CHECKS: tuple[Check | Derived, ...] = (
    *machine.CHECKS,
    *home.CHECKS,
    *isolation.CHECKS,
    *gates.CHECKS,
)


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    title: str
    ok: bool | None  # None: could not be found out
    detail: str
    fix: str
    needed_for: str


def run_doctor(
    home: Path | None,
    checks: Sequence[Check | Derived] = CHECKS,
    criu: str = "",
    config: str = "",
) -> list[Finding]:
    """Runs every check once, in the order of `checks`. Leaves no traces, never raises."""
    surroundings = Surroundings(
        home.absolute() if home else None,
        os.getuid(),
        f"holdfast-doctor-{os.getpid()}-{secrets.token_hex(4)}",
        criu,
        config,
    )
    trials = [_start(check, surroundings) for check in checks if isinstance(check, Check)]
    outcomes = {trial.check.id: _collect(trial, surroundings) for trial in trials}
    for check in checks:
        if isinstance(check, Derived):
            outcomes[check.id] = _derive(check, outcomes)
    return [_finding(check, outcomes[check.id]) for check in checks]


def _finding(check: Check | Derived, outcome: Outcome) -> Finding:
    return Finding(
        id=check.id,
        title=check.title,
        ok=outcome.ok,
        detail=outcome.detail,
        fix=outcome.fix,
        needed_for=check.needed_for,
    )


@dataclass(slots=True)
class _Trial:
    check: Check
    deadline: float
    pid: int = 0
    reader: int = -1
    failure: str = ""


def _start(check: Check, surroundings: Surroundings) -> _Trial:
    trial = _Trial(check, time.monotonic() + check.limit_s)
    reader, writer = os.pipe()
    try:
        trial.pid = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        trial.failure = f"no process could be started to try it: {error.strerror}"
        return trial
    if trial.pid == 0:
        try:
            _answer(check, surroundings, writer)
        finally:
            os._exit(0)
    with contextlib.suppress(OSError):
        os.setpgid(trial.pid, trial.pid)  # parent and child both call setpgid, in any order
    os.close(writer)
    trial.reader = reader
    return trial


def _answer(check: Check, surroundings: Surroundings, writer: int) -> None:
    """In the child: run the check and write the outcome as a JSON object."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    try:
        outcome = check.run(surroundings)
    except Exception as error:  # this is the answer of the check
        outcome = Outcome(None, f"the check failed: {type(error).__name__}: {error}")
    os.write(writer, json.dumps(asdict(outcome)).encode()[:ANSWER_BYTES_MAX])


def _collect(trial: _Trial, surroundings: Surroundings) -> Outcome:
    if trial.failure:
        return Outcome(None, trial.failure)
    said = b""
    complete = False
    # An answer given in time counts, even if the doctor reads the answer late.
    while readable(trial.reader, max(0.0, trial.deadline - time.monotonic())):
        part = os.read(trial.reader, ANSWER_BYTES_MAX)
        if not part:
            complete = True
            break
        said += part
    os.close(trial.reader)
    with contextlib.suppress(OSError):
        os.killpg(trial.pid, signal.SIGKILL)
    _, status = os.waitpid(trial.pid, 0)
    with contextlib.suppress(OSError):
        trial.check.cleanup(surroundings)
    if said:
        with contextlib.suppress(ValueError, TypeError):  # cut short by the kill
            return Outcome(**json.loads(said))
    if not complete:
        return Outcome(
            None, f"no answer within {trial.check.limit_s:g} s", "try again on a quieter machine"
        )
    return Outcome(None, f"the check died (status {os.waitstatus_to_exitcode(status)})")


def _derive(check: Derived, outcomes: dict[str, Outcome]) -> Outcome:
    try:
        return check.derive(outcomes)
    except KeyError as missing:
        return Outcome(None, f"it follows from {missing}, which was not checked")


# --- output ---------------------------------------------------------------------------------------

_GROUPS: tuple[tuple[bool | None, str, str, str], ...] = (
    (True, "works", "+", "32"),
    (False, "does not work here", "-", "31"),
    (None, "unknown", "?", "33"),
)


def format_findings(findings: Sequence[Finding], color: bool) -> str:
    """Text in three groups. A failed check comes with the affected features and the fix."""
    width = max((len(finding.title) for finding in findings), default=0)
    lines: list[str] = []
    for ok, heading, sign, code in _GROUPS:
        group = [finding for finding in findings if finding.ok is ok]
        if not group:
            continue
        lines += [*([""] if lines else []), f"\x1b[1m{heading}\x1b[0m" if color else heading]
        for finding in group:
            mark = f"\x1b[{code}m{sign}\x1b[0m" if color else sign
            lines.append(f"  {mark} {finding.title:<{width}}  {finding.detail}")
            if ok is not True:
                lines.append(f"    {'':<{width}}  needed for: {finding.needed_for}")
                if finding.fix:
                    lines.append(f"    {'':<{width}}  fix: {finding.fix}")
    return "\n".join(lines) + "\n"


def to_json(findings: Sequence[Finding]) -> list[dict[str, str | bool | None]]:
    """Objects with exactly the keys id, title, ok, detail, fix, needed_for."""
    return [asdict(finding) for finding in findings]
