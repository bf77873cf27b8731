"""The live shells' own word on what they are made of, read at each of their marks and given to `core/shaping.py`; and what of it an act would touch.

A shell writes what it is made of beside a mark, before the mark (`_hf_shape` in host/shell). When the mark comes the file is read at once, on the loop: it is small and bounded, and
whoever waits for a run to end must not be asked about the next one with older knowledge. What cannot be read is missed, and what was missed is unknown; so is, as root, what anybody but the shell
may have written there (host/witness.py).

Functions are listed only when a file asks for it (`bodies`), because hundreds of them take the shell milliseconds. It is there before a line is typed that may define some: the host
knows every line before the shell does.

Values are secrets. Only digests are kept, with a key that lies beside them, for the next host, where programs of a contained session do not get; and what finding a program needs. A file that has been read is
replaced by an empty one once what it said is written down: a host that dies before that leaves it to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.core import execution
from holdfast.core.conditions import Request
from holdfast.core.facts import Facts
from holdfast.core.implied import implied
from holdfast.core.lineage import Cause
from holdfast.core.originators import UNKNOWN, UNSEEN, Shaped, bounded
from holdfast.core.shaping import NOTHING, Shape, View
from holdfast.core.shellstate import SNAPSHOT_BYTES, read, sealed
from holdfast.core.touching import World, kinds_of_others, shaped, touched, touched_by_program
from holdfast.host import kept
from holdfast.host.shell.files import write_private
from holdfast.host.shell.launch import BODIES, SLOT, SLOTS
from holdfast.host.witness import SCARCE, Witness

if TYPE_CHECKING:
    from holdfast.host.session import Session

SAVE_S: Final = 0.5  # after a change
FILE: Final = "shaping"  # in the session's memory
FILE_BYTES: Final = 4 << 20
KEY_BYTES: Final = 32
HEAD_BYTES: Final = 64  # of a file: which mark it is of
STAGED_BYTES: Final = 1000  # of a line: a longer one is not known whole
SHOWN_MAX: Final = 16  # pieces that whoever takes over is shown

WritersOf = Callable[["Session", Sequence[str]], Iterable[Shaped]]


class Shaping:
    """Of one shell. It belongs to the loop's thread, except `view`."""

    def __init__(self, directory: str, kind: str | None, label: Mapping[str, Any]) -> None:
        """`kind`: of the shell; None: there is none. The session's `label` says which variables its maker set for it."""
        self.directory, self.listens, self._posix = directory, kind is not None, kind == "posix"
        self.shape = Shape(
            {str(name): str(label.get("by") or UNKNOWN) for name in label.get("given") or ()}
        )
        self.begun: Callable[[], bytes] = bytes  # what stands on the line already
        self.genuine: Callable[[int, int], bool] = lambda slot, fd: (
            True
        )  # whether the shell itself wrote what is open there
        self.on_change: Callable[[], None] = lambda: None
        self.taken: set[int] = set()  # marks whose files are not emptied yet
        self.key = secrets.token_bytes(KEY_BYTES)
        self._entered: bool | None = (
            None  # whether what was entered since the prompt may define functions; None: nothing was
        )
        self._asks = self._asks_before = 0
        self._through: tuple[str, ...] | None = (
            None  # whose aliases and functions what was entered may run through; None: nothing was
        )

    @property
    def view(self) -> View:
        return self.shape.view

    # ------------------------------------------------------------ before the shell reads it

    def typed(self, data: bytes, writers: Iterable[str] = UNSEEN) -> None:
        """Bytes with a line end in them, about to be written to the terminal. `writers`: whose files and variables it names; nobody has looked at what is typed by hand."""
        line = self.begun() + data
        text = _edited(line).decode("utf-8", "replace").replace("\r", "\n").rstrip("\n")
        self.entered(text if len(line) < STAGED_BYTES else None, writers)

    def entered(self, text: str | None, writers: Iterable[str] = UNSEEN) -> None:
        """A text that the shell will run; None: not known."""
        if self.listens:
            defines = text is None or self.shape.may_define(text)
            self._entered = bool(self._entered) or defines
            self._through = (
                *(self._through or ()),
                *self.shape.through(text),
                *(writers if self.shape.reads_in(text) else ()),
            )
            if defines:
                self._ask()

    def _ask(self) -> None:
        self._asks += 1
        with contextlib.suppress(OSError):
            os.close(
                os.open(
                    f"{self.directory}/{BODIES}",
                    os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
                    0o600,
                )
            )

    # ------------------------------------------------------------ the shell's marks

    def began(self, cause: Cause, seq: int, over: bool) -> None:
        """`over`: a POSIX shell says only at the next prompt that there was a command."""
        if self.listens and seq > self.shape.seq:
            self._asks_before = self._asks
            defines = self._entered is not False
            self.shape.began(
                cause,
                seq,
                defines,
                self.shape.through(None) if self._through is None else self._through,
                over,
            )
            if self._entered is None:
                self._ask()
            self.on_change()

    def mark(self, seq: int, prompt: bool) -> None:
        """A mark that has a snapshot beside it. A POSIX shell has none beside a prompt, except the first: what was typed there it never says."""
        if (
            not self.listens
            or seq <= self.shape.seq
            or (self._posix and prompt and seq > 1 and self.shape.quiet)
        ):
            return
        data = _slot(
            f"{self.directory}/{SLOT}{seq % SLOTS}",
            SNAPSHOT_BYTES + 1,
            lambda fd: self.genuine(seq % SLOTS, fd),
        )
        found = read(data) if data is not None else None
        if found is None or found.seq != seq:
            self.shape.missed(seq)
        else:
            self.shape.snapshot(sealed(found, self.key), prompt)
            if found.functions and self._asks == self._asks_before:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{BODIES}")
        self.taken.add(seq)
        if prompt:
            self._entered = self._through = None
        self.on_change()

    # ------------------------------------------------------------ for the next host

    def save(self) -> dict[str, Any]:
        return {"key": self.key.hex(), "shape": self.shape.save()}

    def restore(self, saved: dict[str, Any]) -> None:
        key = bytes.fromhex(saved["key"])
        if len(key) != KEY_BYTES:
            raise ValueError("no key")
        self.shape.restore(saved["shape"])
        self.key = key


class Shapes:
    """Of all sessions of this host."""

    def __init__(self, find: Callable[[str], Session | None], writers: WritersOf) -> None:
        """`find`: a session by its id; `writers`: who wrote these files (host/writers.py). Both are called in threads."""
        self._find, self._writers = find, writers
        self._witness: Witness | None = None
        self._wants = ""  # why there is none, though there could be
        self._saving: dict[str, asyncio.TimerHandle] = {}
        self._writing: set[str] = set()
        self._pen = threading.Lock()

    def open(self) -> None:
        try:
            self._witness, self._wants = Witness(), ""
        except AttributeError:  # a C library without it
            pass
        except OSError as e:
            self._wants = str(e.strerror) if e.errno in SCARCE and os.geteuid() == 0 else ""

    def begin(self, session: Session) -> None:
        shaping = session.commands.shaping
        if self._wants:
            self.open()
        if (witness := self._witness) is not None and shaping.listens:
            witness.begin(session)
            shaping.genuine = lambda slot, fd: witness.genuine(session, slot, fd)
        elif self._wants and shaping.listens:  # a program may have seen to that
            shaping.genuine = lambda slot, fd: False
            session.event(
                "originators.doubted",
                operator="unknown",
                because=f"the kernel does not tell who opens the files in which the shell says what it is made of: {self._wants}",
            )
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            if (saved := _slot(f"{session.memory}/{FILE}", FILE_BYTES)) is not None:
                shaping.restore(json.loads(saved))
        shaping.begun = session.turn.begun
        shaping.on_change = lambda: self._save_soon(session)

    def end(self, session: Session) -> None:
        if (timer := self._saving.pop(session.id, None)) is not None:
            timer.cancel()
        if self._witness is not None:
            self._witness.end(session)

    def close(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            if session.id in self._saving or session.id in self._writing:
                self._write(
                    session, session.commands.shaping.save(), session.commands.shaping.taken
                )
            self.end(session)
        if self._witness is not None:
            self._witness.close()

    # ------------------------------------------------------------ what an act would touch

    def touched(
        self, request: Request, facts: Facts | None, view: View | None = None
    ) -> tuple[Shaped, ...]:
        """Of the shell as it is, or was in `view`. In a thread: files are looked at."""
        session = self._find(request.session)
        if session is None:
            return request.shaped
        if request.act == execution.ACT:
            return self._by_program(session, request, facts)
        view = view or session.commands.shaping.view
        text = request.content.decode("utf-8", "replace")
        reader = request.foreground if request.act != "run" else ""
        return bounded(
            (
                *request.shaped,
                *touched(
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

    def kinds(self, session: Session, actor: str) -> frozenset[str]:
        """Of which kinds something there may be another's. Files always may."""
        return kinds_of_others(session.commands.shaping.view, actor) | {"file"}

    def _by_program(
        self, session: Session, request: Request, facts: Facts | None
    ) -> tuple[Shaped, ...]:
        """Of a program that is about to be executed in the session."""
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
                *touched_by_program(
                    session.commands.shaping.view,
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
            return (
                os.path.lexists(root + path)
                if contained
                else os.access(path, os.X_OK) and os.path.isfile(path)
            )

        return World(
            exists,
            lambda names: self._writers(session, names),
            lambda command, cwd: implied(command, cwd, request.home),
        )

    # ------------------------------------------------------------ writing it down

    def _save_soon(self, session: Session) -> None:
        if session.id not in self._saving and not session.ended.done():
            self._saving[session.id] = session.loop.call_later(SAVE_S, self._begin_save, session)

    def _begin_save(self, session: Session) -> None:
        self._saving.pop(session.id, None)
        if session.id in self._writing:
            return self._save_soon(session)
        self._writing.add(session.id)
        session.spawn(self._save(session))

    async def _save(self, session: Session) -> None:
        shaping, shell, taken = session.commands.shaping, session.commands.shell, set[int]()
        if (
            shell.at_prompt and not shell.submitted
        ):  # else it may be about to write into one of them
            taken, shaping.taken = shaping.taken, taken
        try:
            await asyncio.to_thread(self._write, session, shaping.save(), taken)
        finally:
            self._writing.discard(session.id)

    def _write(self, session: Session, known: dict[str, Any], taken: Iterable[int]) -> None:
        """One that cannot be written costs what is known now: then it is unknown to the next host, and the shell's own files stay."""
        with self._pen, contextlib.suppress(OSError):
            if kept.write(f"{session.memory}/{FILE}", (json.dumps(known),)):
                doubted = self._witness.doubted(session) if self._witness is not None else ()
                for slot, mark in (
                    *((seq % SLOTS, seq) for seq in taken),
                    *((slot, None) for slot in doubted),
                ):
                    with contextlib.suppress(
                        OSError
                    ):  # one of them may have been made something else
                        self._empty(session, slot, mark)

    def _empty(self, session: Session, slot: int, seq: int | None) -> None:
        """Another file, rather than an empty one: what is written into one that was emptied goes to the disk at once on some file systems, while the shell waits. `seq`: if it is still of that mark."""
        path = f"{session.directory}/{SLOT}{slot}"

        def still() -> bool:
            return seq is None or (
                (head := _slot(path, HEAD_BYTES)) is not None
                and head.split(b"\0")[2:3] == [b"%d" % seq]
            )

        if still():
            if self._witness is not None:
                self._witness.replace(session, slot, still)
            else:
                write_private(Path(path), b"")


def changes(session: Session) -> list[dict[str, Any]]:
    """What is not as it was in its shell, and whose doing that is, for whoever takes over (A6)."""
    view = session.commands.shaping.view
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
    return [one.show(session.ref) for one in found[:SHOWN_MAX]]


def _edited(line: bytes) -> bytes:
    """What a line editor makes of bytes, as far as one key goes: the one that takes back a character."""
    if b"\x7f" not in line:
        return line
    made = bytearray()
    for byte in line:
        if byte != 0x7F:
            made.append(byte)
        elif made and made[-1] < 0x80:
            made.pop()
        elif made:
            return line  # part of a character: not followed
    return bytes(made)


def _slot(path: str, most: int, genuine: Callable[[int], bool] = lambda fd: True) -> bytes | None:
    """Whatever is there: it is not waited for."""
    try:
        return kept.read(path, most, genuine)
    except OSError:
        return None


__all__ = ["NOTHING", "Shapes", "Shaping", "changes"]
