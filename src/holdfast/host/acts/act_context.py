"""The request that the gate judges, observed from the live session just before the act.

All facts are read from the kernel at that moment; neither the keeper nor the shell is asked. That
is a few reads of /proc, some tens of microseconds, so an act that waited for approval is observed
again before it happens. Unknown facts are marked (cwd None, foreground "?"), and the policy then
asks instead of guessing.

- cwd: of the shell that would read the text: the session's own, or a foreground shell that was
  started inside. In a contained session the path is the one inside: /proc shows it up to the root
  of that mount namespace, and the gate follows no links on this side then. A shell with another
  root (chroot) and a deleted directory have no path that is valid here.
- foreground: empty only if the shell waits at its prompt with an empty line; then the shell will
  run a typed line. With text on the line, or an entered line that the shell has not begun, it is
  "?". A script goes by its own name, not by its interpreter's.
- shadowed: aliases and functions that were defined since the shell began, from the shell's last
  mark (host/originators/shell_origins.py).
- shaped: other operators that typed on the line. The rest is found by the gate, which needs the
  facts of the text for that.
- state: the shell's process, the inode of the directory, and for typed input the program that reads
  it. Work in the session does not void an approval unless one of these changes.

An act without a text (end, signal, grant) concerns the whole session. Directory and foreground are
left out; otherwise an approval to end a session would be void after a `cd` of its shell.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypedDict
from weakref import WeakKeyDictionary

from holdfast.core.originators.originators import Shaped
from holdfast.core.policy.act_facts import TEXT_ACTS
from holdfast.core.policy.approvals import state_digest
from holdfast.core.policy.conditions import Actor, Request, Walls
from holdfast.core.shellcode.interpreters import is_interpreter, is_shell
from holdfast.host.processes import proc_scan, process
from holdfast.host.runtime.connection import Connection
from holdfast.host.session.session import Session
from holdfast.model import signing

READ_ACTS: Final = frozenset((*TEXT_ACTS, "keys"))  # acts whose text a program reads
ENVIRON_BYTES: Final = 1 << 18
BOUNDS: Final = "bounds"  # of a contained session, in its label
DIRECTORY_S: Final = 2.0  # for a file system to identify a directory
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_shown = functools.lru_cache(1024)(signing.show)
_homes: WeakKeyDictionary[Session, str] = WeakKeyDictionary()
_looking: WeakKeyDictionary[Session, tuple[asyncio.Future[str | None], float]] = WeakKeyDictionary()


class Program(NamedTuple):
    """The request for a new session."""

    name: str
    cwd: str
    home: str | None
    contained: bool


@dataclass(frozen=True, slots=True)
class ProposedAct:
    """An act as a request proposes it to the policy, before the state of the session is read.

    `wait_s`: how long the caller waits for an approval; None: until the question is closed.
    `hidden`: the terminal does not show the text, so an approver must not see it either. `on_line`:
    the content continues the unfinished line of the session. `program`: for `new`, which has no
    session yet.
    """

    act: str
    content: bytes = b""
    details: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    wait_s: float | None = None
    hidden: bool = False
    on_line: bool = False
    program: Program | None = None

    async def observe(self, session: Session | None, conn: Connection) -> Request:
        """The request with the state of the session now; called again after an approval."""
        begun = session.turn.begun() if self.on_line and session is not None else b""
        asked = await situation(session, conn, self.act, begun + self.content, self.details)
        if (new := self.program) is None:
            return asked
        return replace(
            asked,
            name=new.name,
            cwd=new.cwd,
            project=new.cwd,
            home=new.home,
            contained=new.contained,
        )


class WorkingDirectory(NamedTuple):
    """Where a process is."""

    path: str | None
    inode: tuple[int, int] | None


UNKNOWN_DIRECTORY: Final = WorkingDirectory(None, None)


class Seen(NamedTuple):
    """The state of a session except the directory."""

    request: Request
    where: int | None = None  # the process that has the directory
    marks: tuple[object, ...] = ()  # that the fingerprint is made of


async def situation(
    session: Session | None,
    conn: Connection,
    act: str,
    content: bytes = b"",
    details: Mapping[str, str] = NOTHING,
) -> Request:
    """The request for an act of this connection; without a session, one on the machine.

    The directory is unknown if its file system does not answer within DIRECTORY_S.
    """
    if session is not None:
        await look_for_home(session)
    seen = _look(session, conn, act, content, details)
    if session is None or seen.where is None:
        return _at(seen, UNKNOWN_DIRECTORY)
    try:
        return _at(
            seen,
            await asyncio.wait_for(session.in_thread(_working_directory, seen.where), DIRECTORY_S),
        )
    except TimeoutError:
        return _at(seen, UNKNOWN_DIRECTORY)


def _at(seen: Seen, directory: WorkingDirectory) -> Request:
    if not seen.marks:
        return seen.request
    return replace(
        seen.request,
        cwd=directory.path,
        directory=directory.inode,
        **fingerprinted(*seen.marks, directory.inode),
    )


def _look(
    session: Session | None, conn: Connection, act: str, content: bytes, details: Mapping[str, str]
) -> Seen:
    if session is None:
        return Seen(Request(act, actor(conn, None), content=content, details=details))
    request = _request(session, conn, act, content, details)
    root = process.read_stat(session.record.root_pid)
    if root is None or root.start != session.record.root_start:
        gone = fingerprinted(session.id, session.record.epoch, "gone")
        return Seen(replace(request, foreground="?", **gone))
    who = (session.record.boot, session.record.root_pid, root.start)
    if act not in READ_ACTS:
        return Seen(replace(request, home=home_of(session), **fingerprinted(*who)))
    foreground, reader = _foreground(session, root)
    shell = (
        foreground if is_shell(foreground) and reader is not None and reader.pid != root.pid else ""
    )
    where = root.pid if session.commands.kind is not None else None
    if shell and reader is not None:
        where = reader.pid
    typed = (
        ()
        if act in ("run", "files")
        else (foreground, root.tpgid, reader.start if reader is not None else 0)
    )
    return Seen(
        replace(
            request,
            home=home_of(session),
            shell=shell or request.shell,
            foreground=foreground,
            beneath=session.commands.kind is not None,
            shadowed=session.commands.shell_state.view.shadowed(conn.operator),
            shaped=_on_the_line(session, conn.operator),
        ),
        where,
        (*who, *typed),
    )


# ------------------------------------------------------------ keys: microseconds, and no I/O


def quick_keys_request(session: Session, conn: Connection, data: bytes) -> Request:
    """The request for one keystroke, without I/O.

    The reading program is "?" unless the shell's marks say that the shell is at its prompt.
    """
    return _request(session, conn, "keys", data, NOTHING, "" if at_prompt(session) else "?")


def line_request(session: Session, conn: Connection, line: bytes) -> Request:
    """The request for a line that is entered at the shell's own prompt, without I/O."""
    view = session.commands.shell_state.view
    cwd = view.state.cwd or None if view.state is not None else None
    return replace(
        _request(session, conn, "line", line, NOTHING, ""),
        cwd=cwd,
        shadowed=view.shadowed(conn.operator),
        shaped=_on_the_line(session, conn.operator),
    )


def at_prompt(session: Session) -> bool:
    return session.commands.kind is not None and session.commands.shell.ready


# ------------------------------------------------------------ parts


def actor(conn: Connection, session: Session | None) -> Actor:
    there = session is not None and attached(session, conn.operator)
    return Actor(conn.operator, _shown(conn.key), conn.kind, there)


def attached(session: Session, operator: str) -> bool:
    """Whether a terminal of this operator is there that could type."""
    return any(v.conn.operator == operator and not v.observe for v in session.viewers)


def _request(
    session: Session,
    conn: Connection,
    act: str,
    content: bytes,
    details: Mapping[str, str],
    foreground: str = "?",
) -> Request:
    kind = session.commands.kind
    return Request(
        act,
        actor(conn, session),
        session=session.id,
        name=session.name,
        epoch=session.record.epoch,
        content=content,
        project=session.record.cwd or None,
        shell="sh" if kind == "posix" else kind or "bash",
        foreground=foreground,
        contained=session.layout.get("layout") == "contained",
        details=details,
        walls=walls_of(session),
        gate=session.layout.get("gate", "input"),
        first=first_process(session),
    )


def first_process(session: Session) -> tuple[int, int] | None:
    """The first process of a contained session, whose links the gate follows."""
    if session.layout.get("layout") != "contained":
        return None
    return session.record.root_pid, session.record.root_start


def walls_of(session: Session) -> Walls | None:
    """The bounds of a contained session; None if its label does not say them."""
    label = session.label.get(BOUNDS)
    if session.layout.get("layout") != "contained" or not isinstance(label, dict):
        return None
    return Walls(
        own=tuple(map(str, label.get("own", ()))),
        given=tuple(map(str, label.get("given", ()))),
        workspace=str(label.get("workspace", "")),
        net=str(label.get("net", "host")),
        tools=tuple(map(str, label.get("tools", ()))),
        shares=tuple(map(str, label["shares"])) if "shares" in label else None,
    )


def _on_the_line(session: Session, operator: str) -> tuple[Shaped, ...]:
    """Other operators that typed on the unfinished line."""
    return tuple(Shaped("line", "", who) for who in session.turn.begun_by() if who != operator)


def _foreground(session: Session, root: process.Stat) -> tuple[str, process.Stat | None]:
    """The program that would read typed input now, and its process."""
    if root.tpgid == root.pgrp:
        if session.commands.kind is None or not session.commands.shell.at_prompt:
            return root.comm, root
        return ("" if session.commands.shell.ready else "?"), root
    if root.tpgid <= 0:
        return "?", None
    leader = process.read_stat(root.tpgid)
    if leader is not None and leader.pgrp == root.tpgid and leader.state not in "ZX":
        return leader.comm, leader
    # The first of a pipeline has ended.
    tree = proc_scan.of_session(session.keeper_pid)
    group = [p for p in proc_scan.group(tree, root.tpgid) if p.state not in "ZX"]
    chosen = next((p for p in group if is_interpreter(p.comm)), group[0] if group else None)
    return ("?", None) if chosen is None else (chosen.comm, process.read_stat(chosen.pid))


def _working_directory(pid: int) -> WorkingDirectory:
    try:
        if process.half(pid) or os.readlink(f"/proc/{pid}/root") != "/":
            return UNKNOWN_DIRECTORY
        path, info = os.readlink(f"/proc/{pid}/cwd"), os.stat(f"/proc/{pid}/cwd")
    except OSError:
        return UNKNOWN_DIRECTORY
    if not info.st_nlink or not os.path.isabs(path):
        return UNKNOWN_DIRECTORY
    return WorkingDirectory(path, (info.st_dev, info.st_ino))


def home_of(session: Session) -> str | None:
    """HOME of the session's first process, if `look_for_home` has found it."""
    return _homes.get(session)


async def look_for_home(session: Session) -> None:
    """Reads HOME of the session's first process, once.

    The read is in a thread: it blocks if a program hangs in a file system with its memory locked.
    No caller waits twice for the same read.
    """
    if session in _homes:
        return
    if (known := _looking.get(session)) is None or known[0].done():
        known = _looking[session] = (
            asyncio.ensure_future(session.in_thread(_home, session.record.root_pid)),
            session.loop.time() + DIRECTORY_S,
        )
        known[0].add_done_callback(
            lambda look: _learn(
                session,
                look.result() if not look.cancelled() and look.exception() is None else None,
            )
        )
    await asyncio.wait({known[0]}, timeout=max(0.0, known[1] - session.loop.time()))


def _learn(session: Session, home: str | None) -> None:
    if home is not None:
        _homes.setdefault(session, home)


def _home(pid: int) -> str | None:
    if process.half(pid):
        return None
    try:
        for entry in process.read_proc(f"/proc/{pid}/environ", ENVIRON_BYTES).split(b"\0"):
            if entry.startswith(b"HOME=/"):
                return os.fsdecode(os.path.normpath(entry[5:]))
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_dir
    except (OSError, KeyError):
        return None


class Fingerprinted(TypedDict):
    """The fields of a request that say on which state it is judged."""

    state: bytes
    state_facts: tuple[str, ...]


def fingerprinted(*facts: object) -> Fingerprinted:
    said = repr(facts)
    return {"state": state_digest(said), "state_facts": (said,)}
