"""What an act would meet: the request that the gate is asked about, observed from the live session just before the act.

Everything is read from the kernel at that moment, and nothing is asked of the keeper or the shell: a few reads of /proc, some tens
of microseconds, so an act that waits for approval is simply observed again when its time comes. What cannot be known is said to be
unknown (cwd None, foreground "?"), and the policy then asks rather than guesses.

- cwd: of the shell that would read the text: the session's own, or one that was started inside and is in the foreground. In a contained
  session the link reads as the path is inside, for it is printed up to the root of that mount namespace; the gate follows no links on
  this side then. A shell whose root is elsewhere (chroot), and a directory that was deleted, have no path that means anything here.
- foreground: empty only if the shell waits at its prompt and nothing stands on its line: then a typed line is what the shell will run.
  With something on the line, or a line entered that the shell has not begun, it is "?". A script goes by its own name, not its interpreter's.
- shadowed: names that are aliases or functions since the shell began, as it said itself at its last mark (host/shaping.py).
- shaped: who else typed on the line. What else the text would touch is found when it is judged, for that needs its facts.
- state: which process the shell is, the directory itself (not its name), and for what is typed also which program reads it. Somebody who
  works in the session meanwhile does not void an approval, unless one of these is another one afterwards.

An act without a text (end, signal, grant) concerns the session as a whole: directory and foreground are left out, or an approval to
end a session would be void because its shell went elsewhere meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.core.conditions import Actor, Request
from holdfast.core.gate import TEXT_ACTS
from holdfast.core.interpreters import SHELLS, is_interpreter
from holdfast.core.originators import Shaped
from holdfast.host import observe, process
from holdfast.host.connection import Connection
from holdfast.host.session import Session
from holdfast.model import signing

READ_ACTS: Final = frozenset((*TEXT_ACTS, "keys"))  # somebody reads what they carry
ENVIRON_BYTES: Final = 1 << 18
PLACE_S: Final = 2.0  # for a directory's file system to say which one it is
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_shown = functools.lru_cache(1024)(signing.show)
_homes: WeakKeyDictionary[Session, str] = WeakKeyDictionary()
_looking: WeakKeyDictionary[Session, tuple[asyncio.Future[str | None], float]] = WeakKeyDictionary()


class Place(NamedTuple):
    """Where a process is."""

    path: str | None
    inode: tuple[int, int] | None


NOWHERE: Final = Place(None, None)


class Seen(NamedTuple):
    """What is known before the directory is looked at."""

    request: Request
    where: int | None = None  # the process whose directory counts
    marks: tuple[object, ...] = ()  # that the fingerprint is made of


async def situation(
    session: Session | None,
    conn: Connection,
    act: str,
    content: bytes = b"",
    details: Mapping[str, str] = NOTHING,
) -> Request:
    """The request for an act of this connection; without a session, one on the machine. A file system that does not answer holds up nobody: of a
    directory there nothing is known."""
    if session is not None:
        await look_for_home(session)
    seen = _look(session, conn, act, content, details)
    if session is None or seen.where is None:
        return _at(seen, NOWHERE)
    try:
        return _at(seen, await asyncio.wait_for(session.in_thread(_place, seen.where), PLACE_S))
    except TimeoutError:
        return _at(seen, NOWHERE)


def observed(
    session: Session | None,
    conn: Connection,
    act: str,
    content: bytes = b"",
    details: Mapping[str, str] = NOTHING,
) -> Request:
    """The same, for whoever may wait for the file system."""
    if session is not None:
        _learn(session, _home(session.record.root_pid))
    seen = _look(session, conn, act, content, details)
    return _at(seen, NOWHERE if seen.where is None else _place(seen.where))


def _at(seen: Seen, place: Place) -> Request:
    if not seen.marks:
        return seen.request
    return replace(seen.request, cwd=place.path, state=fingerprint(*seen.marks, place.inode))


def _look(
    session: Session | None, conn: Connection, act: str, content: bytes, details: Mapping[str, str]
) -> Seen:
    if session is None:
        return Seen(Request(act, actor(conn, None), content=content, details=details))
    request = _request(session, conn, act, content, details)
    root = process.read_stat(session.record.root_pid)
    if root is None or root.start != session.record.root_start:
        return Seen(
            replace(
                request, foreground="?", state=fingerprint(session.id, session.record.epoch, "gone")
            )
        )
    who = (session.record.boot, session.record.root_pid, root.start)
    if act not in READ_ACTS:
        return Seen(replace(request, home=home_of(session), state=fingerprint(*who)))
    foreground, reader = _foreground(session, root)
    shell = (
        foreground if foreground in SHELLS and reader is not None and reader.pid != root.pid else ""
    )
    where = (
        reader.pid
        if shell and reader is not None
        else root.pid
        if session.commands.kind is not None
        else None
    )
    typed = (
        () if act == "run" else (foreground, root.tpgid, reader.start if reader is not None else 0)
    )
    return Seen(
        replace(
            request,
            home=home_of(session),
            shell=shell or request.shell,
            foreground=foreground,
            beneath=session.commands.kind is not None,
            shadowed=session.commands.shaping.view.shadowed(conn.operator),
            shaped=_on_the_line(session, conn.operator),
        ),
        where,
        (*who, *typed),
    )


# ------------------------------------------------------------ keys: microseconds, and no I/O


def quick_keys_request(session: Session, conn: Connection, data: bytes) -> Request:
    """For one stroke, from what is known already: what reads it is "?" unless the shell's own marks say that it waits at its prompt."""
    return _request(session, conn, "keys", data, NOTHING, "" if at_prompt(session) else "?")


def line_request(session: Session, conn: Connection, line: bytes) -> Request:
    """For a line that is entered at the shell's own prompt just now, from what is known already."""
    view = session.commands.shaping.view
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
    return Actor(
        conn.operator,
        _shown(conn.key),
        conn.kind,
        session is not None and attached(session, conn.operator),
    )


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
        session.id,
        session.name,
        session.record.epoch,
        content,
        None,
        session.record.cwd or None,
        None,
        "sh" if kind == "posix" else kind or "bash",
        foreground,
        session.layout.get("layout") == "contained",
        details=details,
    )


def _on_the_line(session: Session, operator: str) -> tuple[Shaped, ...]:
    """Who else has typed on the line that this goes on with."""
    return tuple(Shaped("line", "", who) for who in session.turn.begun_by() if who != operator)


def _foreground(session: Session, root: process.Stat) -> tuple[str, process.Stat | None]:
    """The program that would read what is typed now, and its process."""
    if root.tpgid == root.pgrp:
        if session.commands.kind is None or not session.commands.shell.at_prompt:
            return root.comm, root
        return ("" if session.commands.shell.ready else "?"), root
    if root.tpgid <= 0:
        return "?", None
    leader = process.read_stat(root.tpgid)
    if leader is not None and leader.pgrp == root.tpgid and leader.state not in "ZX":
        return leader.comm, leader
    group = [
        p
        for p in observe.group(observe.descendants(session.keeper_pid, with_argv=False), root.tpgid)
        if p.state not in "ZX"
    ]  # the first of a pipeline has ended
    chosen = next((p for p in group if is_interpreter(p.comm)), group[0] if group else None)
    return ("?", None) if chosen is None else (chosen.comm, process.read_stat(chosen.pid))


def _place(pid: int) -> Place:
    try:
        if process.half(pid) or os.readlink(f"/proc/{pid}/root") != "/":
            return NOWHERE
        path, info = os.readlink(f"/proc/{pid}/cwd"), os.stat(f"/proc/{pid}/cwd")
    except OSError:
        return NOWHERE
    if not info.st_nlink or not os.path.isabs(path):
        return NOWHERE
    return Place(path, (info.st_dev, info.st_ino))


def home_of(session: Session) -> str | None:
    """Of the session's account, as its first process was started with, if that is known already."""
    return _homes.get(session)


async def look_for_home(session: Session) -> None:
    """Once. In a thread: a program whose memory is locked, because it hangs at a file system, holds up whoever reads what it was started with. Nobody waits a second time for the same look."""
    if session in _homes:
        return
    if (known := _looking.get(session)) is None or known[0].done():
        known = _looking[session] = (
            asyncio.ensure_future(session.in_thread(_home, session.record.root_pid)),
            session.loop.time() + PLACE_S,
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


def fingerprint(*facts: object) -> bytes:
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).digest()
