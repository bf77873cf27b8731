"""Adds to the request about an exec what the file system says about the program.

All functions wait for file systems: call them in a thread.
"""

from __future__ import annotations

import hmac
import os
import shlex
from dataclasses import replace

from holdfast.core.originators.shell_state import environment_digest
from holdfast.core.policy import command_limit, execution
from holdfast.core.policy.conditions import Request
from holdfast.core.policy.execution import Program
from holdfast.host.exec_gate import file_view, path_lookup
from holdfast.host.exec_gate.exec_request import Notification, ProgramReader
from holdfast.host.exec_gate.file_view import FileView
from holdfast.host.exec_gate.path_lookup import Script
from holdfast.host.session.session import Session

UNREAD = "(not readable)"  # in place of a name


def resolved(
    exec: Notification,
    request: Request,
    program: Program,
    session: Session,
    own: FileView | None,
) -> tuple[Request, Script | None]:
    """`own`: the files that the session's programs see; None: not known."""
    script = path_lookup.script(exec.thread, program.way)
    file = path_lookup.resolved(exec.thread, program.path, program.way)
    request = with_file(request, program.path, file, script)
    return with_names(request, exec, program, script, session, own), script


def with_names(
    request: Request,
    exec: Notification,
    program: Program,
    script: Script | None,
    session: Session,
    own: FileView | None,
) -> Request:
    """The request with the names and variables of the program, if a list is asked for them.

    A task that sees other files than the session, `own`, has no program with a known name.
    """
    if not request.limits:
        return request
    if not file_view.sees(exec.thread, own):
        return replace(request, names=(), other_files=True)
    file = path_lookup.certain(exec.thread, program.way)
    names = command_limit.names(
        command_limit.Program(
            program.path,
            path_lookup.is_literal(exec.thread, program.path, program.way),
            program.argv0,
            file if isinstance(file, str) else None,
            *(script or ()),
        )
    )
    return replace(request, names=names, variables=foreign_variables(exec, request, session))


def foreign_variables(exec: Notification, request: Request, session: Session) -> tuple[str, ...]:
    """The variables that the session did not have, and that may make the program load code.

    The session's own program gets the variables that the host gave to the session.
    """
    root = session.commands.lineage.root
    if exec.thread == root or not any(one.limits_variables for one in request.limits):
        return ()
    with ProgramReader(exec) as reader:
        found = reader.environment()
    if found is None:
        return (UNREAD,)
    state = session.commands.shell_state
    view, key = state.view, state.key
    known = view.state.environment if view.state is not None else {}
    limited = {one.operator for one in request.limits}
    first = _initial(root)

    def is_given(name: str, value: bytes) -> bool:
        if (name, value) in first:
            return True
        by = {hand.actor for hand in view.authors.get(("variable", name), ())}
        same = hmac.compare_digest(known.get(name, b""), environment_digest(value, key))
        return same and by.isdisjoint(limited)

    return command_limit.foreign(found, is_given)


def _initial(root: int) -> set[tuple[str, bytes]]:
    """The variables with which the session's program began."""
    try:
        fd = os.open(f"/proc/{root}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
        finally:
            os.close(fd)
    except OSError:
        return set()
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {(os.fsdecode(name), value) for name, _, value in pairs}


def with_file(request: Request, path: str, file: str | int, script: Script | None) -> Request:
    """The request with the file behind links and the interpreter added to the details."""
    more = {execution.FILE: file} if isinstance(file, str) and file not in (path, "?") else {}
    if script is not None:
        more |= {execution.SCRIPT: shlex.join(script.by), execution.SCRIPT_FILE: script.file}
    if not more:
        return request
    legible = {name: execution.legible(value) for name, value in more.items()}
    return replace(request, details={**request.details, **legible})
