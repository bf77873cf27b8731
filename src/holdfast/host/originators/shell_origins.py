"""Saves the state of every session's shell, and finds the parts that an act would use.

host/session/shell_state.py keeps the state of a shell and the authors of that state. For the next
host, the state is written to a file beside the key of the digests, where programs of a contained
session cannot reach. When the content of a snapshot file is saved, an empty file replaces the
snapshot. If the host dies before that, the next host reads the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.originators.originators import UNKNOWN, Shaped, bounded
from holdfast.core.originators.shell_authors import View
from holdfast.core.originators.used_state import (
    World,
    kinds_of_others,
    used_by_line,
    used_by_program,
)
from holdfast.core.policy import execution
from holdfast.core.policy.conditions import Request
from holdfast.core.shellcode.facts import Facts
from holdfast.core.shellcode.further import further, searched
from holdfast.core.shellcode.implied import implied
from holdfast.host.originators.snapshot_guard import SCARCE, STATE_FILE, SnapshotGuard
from holdfast.host.runtime import handover_file
from holdfast.host.runtime.saver import Saver
from holdfast.host.session.shell_state import read_file
from holdfast.host.shell.files import write_private
from holdfast.host.shell.launch import SLOT, SLOTS

if TYPE_CHECKING:
    from holdfast.host.session.session import Session

FILE: Final = "shaping"  # in the session's memory
FILE_BYTES: Final = 4 << 20
HEAD_BYTES: Final = 64  # the start of a snapshot, with the number of the mark

AuthorsOf = Callable[["Session", Sequence[str]], Iterable[Shaped]]
Includes = Callable[["Session", str, Sequence[str], tuple[str, ...]], bool]


class ShellOrigins:
    """One per host, for the shells of all sessions."""

    def __init__(
        self, find: Callable[[str], Session | None], authors: AuthorsOf, includes: Includes
    ) -> None:
        """`find`: a session by id; `authors`: the authors of files (host/originators/writers.py).

        `includes`: whether a program may include a file of another operator. All three are called
        in threads.
        """
        self._find, self._authors, self._includes = find, authors, includes
        self._guard: SnapshotGuard | None = None
        self._missing = ""  # why there is no guard, though the kernel supports guards
        self._savers: dict[str, Saver] = {}
        self._pen = threading.Lock()

    def open(self) -> None:
        try:
            self._guard, self._missing = SnapshotGuard(), ""
        except AttributeError:  # a C library without fanotify
            pass
        except OSError as e:
            self._missing = str(e.strerror) if e.errno in SCARCE and os.geteuid() == 0 else ""

    def begin(self, session: Session) -> None:
        state = session.commands.shell_state
        if self._missing:
            self.open()
        if (guard := self._guard) is not None and state.listens:
            guard.begin(session)
            state.genuine = lambda slot, fd: guard.is_genuine(session, slot, fd)
        elif self._missing and state.listens:
            # A program of a session may have used up the resources on purpose: trust no file.
            state.genuine = lambda slot, fd: False
            session.event(
                "originators.doubted",
                operator="unknown",
                because=f"the kernel does not report who opens {STATE_FILE}: {self._missing}",
            )
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            if (
                saved := read_file(f"{session.host_only_directory}/{FILE}", FILE_BYTES)
            ) is not None:
                state.restore(json.loads(saved))
        state.begun = session.turn.begun
        saver = self._savers[session.id] = Saver(lambda: self._save(session), session.spawn)
        state.on_change = lambda: None if session.ended.done() else saver.soon()

    def end(self, session: Session) -> None:
        if (saver := self._savers.pop(session.id, None)) is not None:
            saver.close()
        if self._guard is not None:
            self._guard.end(session)

    def close(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if (saver := self._savers.get(session.id)) is not None and saver.unsaved:
                self._write(
                    session, session.commands.shell_state.save(), session.commands.shell_state.taken
                )
            self.end(session)
        if self._guard is not None:
            self._guard.close()

    # ------------------------------------------------------------ what an act would use

    def used_state(
        self, request: Request, facts: Facts | None, view: View | None = None
    ) -> tuple[Shaped, ...]:
        """The state that an act would use and that other operators shaped.

        `view`: the state of the shell to assume, instead of the present state. In a thread: this
        function asks file systems.
        """
        session = self._find(request.session)
        if session is None:
            return request.shaped
        if request.act == execution.ACT:
            return self._by_program(session, request, facts)
        view = view or session.commands.shell_state.view
        text = request.content.decode("utf-8", "replace")
        reader = request.foreground if request.act != "run" else ""
        return bounded(
            (
                *request.shaped,
                *self._further(session, request, facts),
                *used_by_line(
                    view,
                    facts,
                    text,
                    request.actor.operator,
                    request.cwd,
                    (),
                    reader,
                    self._world(session, request),
                ),
            ),
            request.actor.operator,
        )

    def _further(self, session: Session, request: Request, facts: Facts | None) -> Iterator[Shaped]:
        """An unknown author, if a program may include a file of another operator unseen."""
        for command in facts.commands if facts is not None else ():
            if (ends := further(command)) is not None:
                places = searched(command, request.cwd)
                if self._includes(session, request.actor.operator, places, ends):
                    yield Shaped("file", f"files that {command.name} may include", UNKNOWN)
                    return

    def kinds(self, session: Session, actor: str) -> frozenset[str]:
        """The kinds of state that other operators may have shaped. Files are always included."""
        return kinds_of_others(session.commands.shell_state.view, actor) | {"file"}

    def _by_program(
        self, session: Session, request: Request, facts: Facts | None
    ) -> tuple[Shaped, ...]:
        """The same for a program that is about to be executed."""
        world = self._world(session, request)
        files = [
            path
            for command in (facts.commands if facts is not None else ())
            for path in (
                *(place.path for item in command.paths for place in item if not place.glob),
                *world.implied(command, request.cwd),
            )
        ]
        path = request.content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        return bounded(
            (
                *request.shaped,
                *self._further(session, request, facts),
                *used_by_program(
                    session.commands.shell_state.view,
                    path,
                    [*dict.fromkeys(files)],
                    request.actor.operator,
                    (),
                    world,
                ),
            ),
            request.actor.operator,
        )

    def _world(self, session: Session, request: Request) -> World:
        contained = request.contained
        root = f"/proc/{session.record.root_pid}/root" if contained else ""

        def exists(path: str) -> bool:
            if contained:
                return os.path.lexists(root + path)
            return os.access(path, os.X_OK) and os.path.isfile(path)

        return World(
            exists,
            lambda names: self._authors(session, names),
            lambda command, cwd: implied(command, cwd, request.home),
        )

    # ------------------------------------------------------------ for the next host

    async def _save(self, session: Session) -> None:
        state, shell, taken = session.commands.shell_state, session.commands.shell, set[int]()
        if shell.at_prompt and not shell.submitted:  # else the shell may be writing
            taken, state.taken = state.taken, taken
        await asyncio.to_thread(self._write, session, state.save(), taken)

    def _write(self, session: Session, known: dict[str, Any], taken: Iterable[int]) -> None:
        """Save, then empty the snapshots that were read. If saving fails, the snapshots stay."""
        with self._pen, contextlib.suppress(OSError):
            if handover_file.write(f"{session.host_only_directory}/{FILE}", (json.dumps(known),)):
                doubted = self._guard.doubted_slots(session) if self._guard is not None else ()
                for slot, mark in (
                    *((seq % SLOTS, seq) for seq in taken),
                    *((slot, None) for slot in doubted),
                ):
                    # A program may have replaced a snapshot by a directory, for example.
                    with contextlib.suppress(OSError):
                        self._empty(session, slot, mark)

    def _empty(self, session: Session, slot: int, seq: int | None) -> None:
        """Replace a snapshot by a new file, if the snapshot still belongs to mark `seq`.

        Some file systems write a truncated file to disk at once, and the shell would wait for that.
        """
        path = f"{session.writable_directory}/{SLOT}{slot}"

        def still() -> bool:
            return seq is None or (
                (head := read_file(path, HEAD_BYTES)) is not None
                and head.split(b"\0")[2:3] == [b"%d" % seq]
            )

        if still():
            if self._guard is not None:
                self._guard.replace(session, slot, still)
            else:
                write_private(Path(path), b"")
