"""The session's processes: the root, its descendants, and orphans, which the keeper adopts.

The root is the keeper's child, with three exceptions. After a restore (adopt) it has another
parent: a pidfd reports its end, and its exit code stays unknown. In a contained session its parent
is that session's init (keeper/contain.py), which sends the wait status over a socket. A socket that
ends without a status means that init was killed; the kernel then killed the whole session. In a
plain session of root its parent is hf-root (keeper/plain.py), which ends as the root ended. If
hf-root is killed, the root becomes the keeper's child.

The connector (keeper/network.py) and hf-root are children too, but no processes of the session: no
signal to the session reaches them. They end with the root.
"""

from __future__ import annotations

import os

from holdfast.keeper import terminal
from holdfast.model.limits import REAPED_KEPT, SIGNAL_ROUNDS
from holdfast.wire import keeper as wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

STATUS_BYTES = 4  # a wait status from init
# Orders to init, by the signal with which the host asks for them.
ORDERS = {wire.HALT_SIGNAL: b"h", wire.RELEASE_SIGNAL: b"r"}
_STATUS_UNKNOWN = 0xFF00  # like an exit with 255
_STATUS_KILLED = 9  # by SIGKILL


class Tree:
    __slots__ = (
        "adopted",
        "connector",
        "cut_off",
        "holder",
        "reaped",
        "root",
        "start",
        "status",
        "watch",
    )

    def __init__(
        self,
        root: int,
        start: int,
        status: int,
        adopted: bool,
        watch: int,
        connector: int,
        holder: int = 0,
    ) -> None:
        self.root, self.start = root, start
        self.status = status  # wait status of the root process; -1 while it lives
        # init's socket or the root's pidfd, while it lives and is no child of ours
        self.watch = watch
        self.adopted = adopted
        self.connector = connector  # 0: none, or it has ended
        self.holder = holder  # hf-root; 0: none, or it has ended
        self.cut_off = -1  # wait status of a connector that ended before the root
        self.reaped: list[tuple[int, int]] = []  # orphans: pid, wait status
        if adopted and status < 0:
            try:
                self.watch = os.pidfd_open(root)
            except OSError:
                self.status = _STATUS_UNKNOWN

    def elsewhere_ended(self) -> None:
        """Handle the end of a root process that is not our child."""
        if self.adopted:
            self.status = _STATUS_UNKNOWN
        else:
            said = os.read(self.watch, STATUS_BYTES)
            self.status = int.from_bytes(said, "little") if said else _STATUS_KILLED
        os.close(self.watch)
        self.watch = -1

    def order(self, number: int) -> None:
        """Pass an order of the host on to init."""
        if self.watch >= 0 and not self.adopted:
            try:
                os.write(self.watch, ORDERS[number])
            except OSError:
                pass  # init has just ended, or has many orders to read

    def stop(self) -> None:
        """Stop all processes, without a control group: the fence has fallen."""
        if self.watch >= 0 and not self.adopted:
            self.order(wire.HALT_SIGNAL)
        else:
            self.signal(signal.SIGSTOP, wire.SCOPE_ALL, 0, 0, 0)

    def reap(self) -> bool:
        """Collect available exit codes. Return whether the root's was among them."""
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
            elif pid == self.holder:
                self.holder = 0
                if self.status < 0 and not _is_child(self.root):
                    self.status, ended = status, True
            elif pid == self.connector:
                self.connector = 0
                if self.status < 0:
                    self.cut_off = status
            else:
                self.reaped.append((pid, status))
                del self.reaped[:-REAPED_KEPT]

    def end_connector(self) -> None:
        if self.connector:
            terminal.send_signal(self.connector, 0, signal.SIGKILL)

    def processes(self) -> list[int]:
        found = terminal.descendants(os.getpid())
        for helper in (self.connector, self.holder):
            if helper in found:
                found.remove(helper)
        if self.adopted and self.watch >= 0:
            found += [self.root, *terminal.descendants(self.root)]
        return found

    def signal(self, number: int, scope: int, pid: int, start: int, foreground: int) -> None:
        if scope == wire.SCOPE_PROCESS:
            if pid in self.processes():
                terminal.send_signal(pid, start, number)
        elif scope == wire.SCOPE_ALL:
            told: set[int] = set()
            for _ in range(SIGNAL_ROUNDS):  # repeat for processes forked meanwhile
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


def _is_child(pid: int) -> bool:
    """Tell whether a process is a child of this one, dead or alive."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    except ChildProcessError:
        return False
