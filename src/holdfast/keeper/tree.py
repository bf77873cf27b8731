"""The session's processes: the root, all below it, and orphans of them, which become children of the keeper.

The root is the keeper's child, with one exception: after a restore (adopt) something else is its parent. Then a
pidfd tells when it has ended, and its exit code stays unknown.
"""

from __future__ import annotations

import os

from holdfast.keeper import terminal
from holdfast.model.limits import REAPED_KEPT, SIGNAL_ROUNDS
from holdfast.wire import keeper as wire

_STATUS_UNKNOWN = 0xFF00                    # as if it had exited with 255


class Tree:
    __slots__ = ("reaped", "root", "start", "status", "watch")

    def __init__(self, root: int, start: int, status: int, adopted: bool) -> None:
        self.root, self.start = root, start
        self.status = status                # wait status of the root process; -1 while it lives
        self.watch = -1                     # its pidfd, while it lives and is no child of ours
        self.reaped: list[tuple[int, int]] = []     # orphans: pid, wait status
        if adopted and status < 0:
            try:
                self.watch = os.pidfd_open(root)
            except OSError:
                self.status = _STATUS_UNKNOWN

    def adopted_ended(self) -> None:
        os.close(self.watch)
        self.watch = -1
        self.status = _STATUS_UNKNOWN

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
        if self.watch >= 0:
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
