"""Adds to the request about an exec where the program would run, and with which variables (P4).

An approval is for the directory and the variables that the approver saw
(core/policy/approved_commands.py). All functions may wait for file systems: call them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.policy import environment, execution
from holdfast.core.policy.conditions import Request
from holdfast.host.acts.act_context import fingerprinted
from holdfast.host.exec_gate import exec_request
from holdfast.host.exec_gate.exec_request import Notification
from holdfast.host.processes import stat_nowait

Variables = Sequence[tuple[str, bytes]]


class Baseline(NamedTuple):
    """The state of a session with which an exec is compared."""

    root: int  # the first process of the session
    # Digests of the values at the first prompt; empty: not known, or an agent's files set them.
    environment: Mapping[str, bytes]
    digest: Callable[[bytes], bytes]
    given: frozenset[str] = frozenset()  # variables that an agent set for the new session


def added(request: Request, exec: Notification, path: str, baseline: Baseline) -> Request:
    """The request with the directory, and the variables that may redirect the program."""
    request = with_directory(request, exec.thread, baseline.root)
    return with_environment(request, exec_request.read_environment(exec), path, baseline)


def with_directory(request: Request, thread: int, root: int) -> Request:
    """The request with the identity of the directory in which the program would run.

    No identity if the task sees other mounts than the session's first process, `root`. There the
    same path may be another file.
    """
    try:
        same = os.readlink(f"/proc/{thread}/ns/mnt") == os.readlink(f"/proc/{root}/ns/mnt")
        found = stat_nowait.known(f"/proc/{thread}/cwd")
    except OSError:
        return request
    return replace(request, directory=(found.device, found.inode)) if same else request


def with_environment(
    request: Request, now: Variables | None, path: str, baseline: Baseline
) -> Request:
    """The request with the variables that differ from the first prompt of the session's shell.

    If these are not known, the variables with which the session was started take their place.
    """
    known = baseline.environment or _initial(baseline)
    if now is None or known is None:
        return request
    known = {name: one for name, one in known.items() if name not in baseline.given}
    changes = environment.changes(now, known, baseline.digest)
    counted = environment.counted(changes, execution.name_of(path))
    request = replace(request, environment=changes)
    if not counted:
        return request
    said = execution.legible(environment.shown(counted))
    request = replace(request, details={**request.details, execution.ENVIRONMENT: said})
    marked = fingerprinted("variables", environment.fingerprint(counted, baseline.digest))
    facts = marked["state_facts"]
    if facts[0] in request.state_facts:  # an exec that is judged again
        return request
    return replace(
        request, state=request.state + marked["state"], state_facts=request.state_facts + facts
    )


def _initial(baseline: Baseline) -> Mapping[str, bytes] | None:
    found = exec_request.running_environment(baseline.root)
    if found is None:
        return None
    return {name: baseline.digest(value) for name, value in found}
