"""The session's processes: the root, all below it, and orphans of them, which become children of the keeper.

The root is the keeper's child, with two exceptions. After a restore (adopt) something else is its parent: a pidfd
tells when it has ended, and its exit code stays unknown. In a contained session it is the child of that session's
init (keeper/contain.py), which writes the wait status into a pipe; a pipe that ends without one means that init was
killed, and with it the kernel killed them all.
"""

from __future__ import annotations

import os

from holdfast.keeper import terminal
from holdfast.model.limits import REAPED_KEPT, SIGNAL_ROUNDS
from holdfast.wire import keeper as wire

STATUS_BYTES = 4  # a wait status in init's pipe
_STATUS_UNKNOWN = 0xFF00  # as if it had exited with 255
_STATUS_KILLED = 9  # by SIGKILL


class Tree:
    __slots__ = ("adopted", "reaped", "root", "start", "status", "watch")

    def __init__(self, root: int, start: int, status: int, adopted: bool, watch: int) -> None:
        self.root, self.start = root, start
        self.status = status  # wait status of the root process; -1 while it lives
        self.watch = (
            watch  # init's pipe or the root's pidfd, while it lives and is no child of ours
        )
        self.adopted = adopted
        self.reaped: list[tuple[int, int]] = []  # orphans: pid, wait status
        if adopted and status < 0:
            try:
                self.watch = os.pidfd_open(root)
            except OSError:
                self.status = _STATUS_UNKNOWN

    def elsewhere_ended(self) -> None:
        """The root, which is no child of ours."""
        if self.adopted:
            self.status = _STATUS_UNKNOWN
        else:
            said = os.read(self.watch, STATUS_BYTES)
            self.status = int.from_bytes(said, "little") if said else _STATUS_KILLED
        os.close(self.watch)
        self.watch = -1

    def reap(self) -> bool:
        """Collects the exit codes there are; whether the root's was among them."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self.root and self.status < 0:
                self.status, ended = status, True
            else:
                self.reaped.append((pid, status))
                del self.reaped[:-REAPED_KEPT]

    def processes(self) -> list[int]:
        found = terminal.descendants(os.getpid())
        if self.adopted and self.watch >= 0:
            found += [self.root, *terminal.descendants(self.root)]
        return found

    def signal(self, number: int, scope: int, pid: int, start: int, foreground: int) -> None:
        if scope == wire.SCOPE_PROCESS:
            if pid in self.processes():
                terminal.send_signal(pid, start, number)
        elif scope == wire.SCOPE_ALL:
            told: set[int] = set()
            for _ in range(SIGNAL_ROUNDS):  # again for those that were born meanwhile
                born = [member for member in self.processes() if member not in told]
                if not born:
                    break
                for member in born:
                    terminal.send_signal(member, 0, number)
                told.update(born)
        else:
            group = foreground if scope == wire.SCOPE_FOREGROUND else self.root
            if group > 1 and (scope == wire.SCOPE_FOREGROUND or self.status < 0):
                try:
                    os.killpg(group, number)
                except OSError:
                    pass
