"""The state that an operator inherits by taking over a session, with its authors (A6).

Jobs and changes are facts that the host has already. A thread reads open files and credentials
from /proc, for OPEN_S at most. The turn has moved before, and no key waits for the look.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.core.originators.used_state import shaped
from holdfast.core.session import inheritance
from holdfast.core.session.inheritance import Credential
from holdfast.host.processes import open_state
from holdfast.host.processes.argv import words
from holdfast.host.processes.process import read_stat
from holdfast.model.errors import Unavailable

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

Shown = dict[str, Any]  # facts as JSON

JOBS_SHOWN: Final = 16  # the newest
CHANGES_SHOWN: Final = 16
COMMAND_CHARS: Final = 120
CREDENTIALS_SHOWN: Final = 16
FILES_SHOWN: Final = 16
PATH_CHARS: Final = 240
OPEN_S: Final = 2.0  # for the look at open files and credentials


async def jobs(session: Session) -> list[Shown]:
    """Jobs that still run, newest first.

    If the kernel does not report processes, the answer is that of the host's last scan.
    """
    lineage, found = session.commands.lineage, list[Shown]()
    above = _above(session.record.root_pid, session.keeper_pid)
    for pid in reversed(lineage.tops()):
        stat = read_stat(pid)
        if pid in above or stat is None or stat.state in "ZX" or not lineage.same(pid, stat.start):
            continue
        cause = lineage.of(pid)
        found.append(
            {"pid": pid, "command": stat.comm, "actor": cause.actor, "act": cause.ref(session.ref)}
        )
        if len(found) == JOBS_SHOWN:
            break
    said = await words(session, [one["pid"] for one in found])
    for one in found:
        one["command"] = str(said.get(one["pid"], one["command"]))[:COMMAND_CHARS]
    return found


def _above(pid: int, keeper: int) -> set[int]:
    """The processes between the keeper and the first program: init and hf-root."""
    found = set[int]()
    while (stat := read_stat(pid)) is not None and stat.ppid not in (0, 1, keeper):
        pid = stat.ppid
        found.add(pid)
    return found


def changes(session: Session) -> list[Shown]:
    """Changes in the session's shell since the start, with their authors."""
    view = session.commands.shell_state.view
    found = [
        one
        for piece, author in view.authors.items()
        if piece[0] != "hash"
        for one in shaped(
            piece,
            author,
            name=view.state.cwd if piece[0] == "cwd" and view.state is not None else None,
        )
    ]
    if view.blind and session.commands.kind is not None:
        found.insert(0, Shaped("shell", view.blind, UNKNOWN))
    return [one.show(session.ref) for one in found[:CHANGES_SHOWN]]


async def opened(session: Session) -> tuple[list[Shown], list[Shown]]:
    """Open credentials and files of interest, each with the operator behind it."""
    try:
        async with asyncio.timeout(OPEN_S):
            found = await session.looked(
                open_state.read, session.keeper_pid, session.record.root_pid
            )
    except (TimeoutError, Unavailable):
        return [_unseen("the look at open files took too long")], []
    directories = (session.host_only_directory, *map(str, session.directories))
    graph = found.graph
    open_credentials = [
        *_variables(session, found.secrets),
        *(
            _credential(session, one)
            for one in (
                *(one for one in found.secrets if one.kind != "variable"),
                *inheritance.credentials(graph, session.record.root_pid),
            )
        ),
    ]
    if graph.unreadable:
        open_credentials.insert(0, _unseen(f"{len(graph.unreadable)} processes are closed to us"))
    files = [
        {"path": one.path[:PATH_CHARS], "pid": one.pid, "write": one.write, "lock": one.lock}
        | _opener(session, one.pid)
        for one in inheritance.files(graph, directories)
    ]
    return open_credentials[:CREDENTIALS_SHOWN], files[:FILES_SHOWN]


def _variables(session: Session, secrets: tuple[Credential, ...]) -> list[Shown]:
    """Variables that look like keys or tokens: of the shell now, and of running programs."""
    view, root = session.commands.shell_state.view, session.record.root_pid
    now = view.state.environment if view.state is not None else {}
    pids = {one.name: one.pid for one in secrets if one.kind == "variable"}
    if now:  # the first environment of the shell is history
        pids = {name: pid for name, pid in pids.items() if pid != root}
        pids |= {name: root for name in now if inheritance.names_a_secret(name)}
    found = list[Shown]()
    for name, pid in pids.items():
        author = view.authors.get(("variable", name), ()) if pid == root else ()
        made = [one.show(session.ref) for one in shaped(("variable", name), author)]
        one = _credential(session, Credential("variable", name, pid))
        found += [one | {"actor": by["actor"], "act": by["act"]} for by in made] or [one]
    return found


def _credential(session: Session, one: Credential) -> Shown:
    cause = _opener if one.kind == "file" else _cause
    return one._asdict() | {"name": one.name[:PATH_CHARS]} | cause(session, one.pid)


def _opener(session: Session, pid: int) -> Shown:
    """As `_cause`. Any operator's line may have opened a file of the shared shell."""
    shell = session.commands.kind is not None and pid == session.record.root_pid
    return {"actor": UNKNOWN, "act": None} if shell else _cause(session, pid)


def _cause(session: Session, pid: int) -> Shown:
    cause = session.commands.lineage.of(pid)
    return {"actor": cause.actor, "act": cause.ref(session.ref)}


def _unseen(why: str) -> Shown:
    return {"kind": UNKNOWN, "name": why, "pid": 0, "actor": UNKNOWN, "act": None}
