"""The state of a live shell, with authors: variables, aliases, functions, directory.

Before each mark the shell writes a snapshot of its state into a file (`_hf_shape` in host/shell).
When the mark arrives, the host reads that file at once, on the loop: it is small and bounded, and
a caller that waits for a run must not be judged by an older state on its next act. The authors are
worked out by `core/originators/shell_authors.py`. A snapshot that cannot be read was missed, and
what changed since the last one has an unknown author. As root, the same holds for a snapshot that
a process other than the shell may have written (host/originators/snapshot_guard.py).

The shell lists its functions only while the file `bodies` exists, because hundreds of them take
milliseconds. The host creates that file before it sends a line that may define a function.

Values are secrets: only keyed digests are kept, and what is needed to find a program.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.core.originators.lineage import Cause
from holdfast.core.originators.originators import UNKNOWN, UNSEEN
from holdfast.core.originators.shell_authors import Shape, View
from holdfast.core.originators.shell_state import SNAPSHOT_BYTES, read, sealed
from holdfast.host.runtime import handover_file
from holdfast.host.shell import SessionDirectories
from holdfast.host.shell.launch import BODIES, SLOT, SLOTS

KEY_BYTES: Final = 32
LINE_BYTES: Final = 1000  # of a longer line the host does not know the whole text


class ShellState:
    """Belongs to the loop's thread, except `view`."""

    def __init__(
        self, directories: SessionDirectories, kind: str | None, label: Mapping[str, Any]
    ) -> None:
        """`kind`: of the shell, or None if the session runs another program.

        The session's `label` names the variables that the creator set.
        """
        self.listens, self._posix = kind is not None, kind == "posix"
        self._slots, self._bodies = directories.writable, directories.readable / BODIES
        self.shape = Shape(
            {str(name): str(label.get("by") or UNKNOWN) for name in label.get("given") or ()}
            # Of variables that a lost incarnation exported, the author is not known any more.
            | {str(name): UNKNOWN for name in label.get("brought_back") or ()}
        )
        # What already stands on the line before the bytes typed next.
        self.begun: Callable[[], bytes] = bytes
        # Whether the shell itself wrote the open file of this slot.
        self.genuine: Callable[[int, int], bool] = lambda slot, fd: True
        self.on_change: Callable[[], None] = lambda: None
        # Gets the exported variables of each snapshot, with their values.
        self.on_environment: Callable[[Mapping[str, bytes]], None] = lambda environment: None
        self.taken: set[int] = set()  # marks whose files were read and not emptied yet
        self.key = secrets.token_bytes(KEY_BYTES)
        # Whether text entered since the prompt may define functions; None: none was entered.
        self._entered: bool | None = None
        self._asks = self._asks_before = 0
        # Authors of the aliases and functions that text entered since the prompt may run through.
        self._through: tuple[str, ...] | None = None

    @property
    def view(self) -> View:
        return self.shape.view

    # ------------------------------------------------------------ before the shell reads it

    def typed(self, data: bytes, writers: Iterable[str] = UNSEEN) -> None:
        """Bytes with a line end are about to be written to the terminal.

        `writers`: the authors of the files and variables they name. They are unknown for keys.
        """
        line = self.begun() + data
        text = _edited(line).decode("utf-8", "replace").replace("\r", "\n").rstrip("\n")
        self.entered(text if len(line) < LINE_BYTES else None, writers)

    def entered(self, text: str | None, writers: Iterable[str] = UNSEEN) -> None:
        """Notes a text that the shell will run; None: the text is not known."""
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
        """Makes the shell list its functions in the next snapshot."""
        self._asks += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with contextlib.suppress(OSError):
            os.close(os.open(self._bodies, flags, 0o600))

    # ------------------------------------------------------------ the shell's marks

    def began(self, cause: Cause, seq: int, over: bool) -> None:
        """A command began. `over`: a POSIX shell reports a command only at the next prompt."""
        if self.listens and seq > self.shape.seq:
            self._asks_before = self._asks
            defines = self._entered is not False
            through = self.shape.through(None) if self._through is None else self._through
            self.shape.began(cause, seq, defines, through, over)
            if self._entered is None:
                self._ask()
            self.on_change()

    def mark(self, seq: int, prompt: bool) -> None:
        """Reads the snapshot of a mark.

        A POSIX shell writes none at a prompt, except at the first: it never reports what was typed
        there.
        """
        if (
            not self.listens
            or seq <= self.shape.seq
            or (self._posix and prompt and seq > 1 and self.shape.quiet)
        ):
            return
        data = read_file(
            f"{self._slots}/{SLOT}{seq % SLOTS}",
            SNAPSHOT_BYTES + 1,
            lambda fd: self.genuine(seq % SLOTS, fd),
        )
        found = read(data) if data is not None else None
        if found is None or found.seq != seq:
            self.shape.missed(seq)
        else:
            self.on_environment(found.environment)
            self.shape.snapshot(sealed(found, self.key), prompt)
            if found.functions and self._asks == self._asks_before:
                with contextlib.suppress(OSError):
                    os.unlink(self._bodies)
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


def _edited(line: bytes) -> bytes:
    """The text that a line editor makes of these keys; only Backspace is followed."""
    if b"\x7f" not in line:
        return line
    made = bytearray()
    for byte in line:
        if byte != 0x7F:
            made.append(byte)
        elif made and made[-1] < 0x80:
            made.pop()
        elif made:
            return line  # the end of a longer character: not followed
    return bytes(made)


def read_file(
    path: str, most: int, genuine: Callable[[int], bool] = lambda fd: True
) -> bytes | None:
    """The file's content without waiting; None if there is no such file or it is not `genuine`."""
    try:
        return handover_file.read(path, most, genuine)
    except OSError:
        return None
