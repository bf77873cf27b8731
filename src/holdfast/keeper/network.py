"""The connector: the program outside that connects a contained session's own network.

    keeper ─┬─ launcher ─ starter (both end) ─ (ends) ┐
            ├─ connector (pasta or slirp4netns)  <────┘ adopted by the keeper
            └─ init of the session

The connector opens the session's network namespace, makes a tap device there, and answers packets
of the device with sockets of the machine's namespace. The command of the connector comes from the
request (wire/spawning.py, CONNECT).

- The starter is forked before the launcher joins the session's control group and namespaces, so the
  connector is in none of them, and a halt does not depend on the connector. pasta joins the
  session's user namespace. No process inside can trace or signal pasta even so: pasta stays in the
  keeper's pid namespace and has no pid inside.
- The keeper is the parent and kills the connector when the session ends. The kernel kills the
  connector when the keeper dies (PR_SET_PDEATHSIG).
- The connector stays in the keeper's kernel session (setsid), which no program of the session can
  join. So the host can tell the connector from the session's processes (host/processes).
- The connector gets an empty environment, no descriptor but /dev/null and a file for errors, and
  the priority of the session's programs with the scheduler and the OOM killer.
- The connector must confine itself by a system call filter before the session's program starts.
- A connector that died is not started again: a packet of hostile code may have killed it, and each
  restart would be another try. The keeper reports the death to the host (CUT_OFF).

PR_SET_PDEATHSIG refers to the parent at that moment, and the launcher ends soon. So the connector's
process first waits until the keeper is the parent, and then executes the program.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import time

from holdfast.keeper import launch, terminal
from holdfast.keeper.file_tree import NotAllowed, call
from holdfast.model.limits import CONNECT_WAIT_S
from holdfast.wire.spawning import NO_NETWORK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.001  # the kernel has no event for the filter of another process
_ERROR_BYTES = 65536
_ERROR_CHARS = 300
_LINE_BYTES = 16


class Connector:
    """The launcher's handle on the connector."""

    def __init__(self, commands: tuple[bytes, ...], limits: tuple[tuple[int, int], ...]) -> None:
        """Fork the starter. To be called before this process joins a group or a namespace."""
        self._left = list(range(len(commands)))
        self._pid, self._since, self._watch = 0, 0.0, -1
        launcher, keeper = os.getpid(), os.getppid()
        self._line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._errors = _error_file()
        self._starter = os.fork()
        if not self._starter:
            try:
                words = tuple(_words(command, launcher) for command in commands)
                _serve(theirs, self._errors, keeper, words, limits)
            finally:
                os._exit(1)
        theirs.close()

    def begin(self) -> None:
        """Start the next alternative. The namespaces of this process must exist."""
        self._line.send(b"%d" % self._left.pop(0))
        self._pid = int(self._line.recv(_LINE_BYTES) or b"0")
        if not self._pid:
            raise NotAllowed(f"{NO_NETWORK}no process for it")
        self._watch = os.pidfd_open(self._pid)
        self._since = time.monotonic()

    def wait(self, proc: int) -> int:
        """Return the connector's pid once the network works; `proc` is the machine's own /proc."""
        ended = select.poll()
        ended.register(self._watch, select.POLLIN)
        while not (_routed(proc) and _confined(self._pid, proc)):
            late = time.monotonic() > self._since + CONNECT_WAIT_S
            if late or ended.poll(_PAUSE_S * 1000):
                signal.pidfd_send_signal(self._watch, signal.SIGKILL)
                ended.poll()  # its device disappears with it
                os.close(self._watch)
                if not self._left:
                    raise NotAllowed(NO_NETWORK + self._why(late))
                self.begin()
                return self.wait(proc)
        self._close()
        return self._pid

    def _why(self, late: bool) -> str:
        said = os.pread(self._errors, _ERROR_BYTES, 0).rstrip(b"\0").decode("utf-8", "replace")
        lines = [line.strip() for line in said.splitlines() if "to syslog" not in line]
        told = "; ".join(dict.fromkeys(filter(None, lines)))[-_ERROR_CHARS:]
        return told or ("no route in time" if late else "the program that connects it failed")

    def _close(self) -> None:
        """End the starter. A process inside has a copy of the line, so closing does not suffice."""
        os.close(self._watch)
        os.close(self._errors)
        self._line.shutdown(_socket.SHUT_RDWR)
        self._line.close()
        os.waitpid(self._starter, 0)


def _error_file() -> int:
    """Make a file in memory that cannot grow: packets from inside can make a connector complain."""
    fd = os.memfd_create("errors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _ERROR_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _words(command: bytes, launcher: int) -> tuple[bytes, ...]:
    return tuple(word.replace(b"{pid}", b"%d" % launcher) for word in command.split(b"\0"))


# ---------------------------------------------------------------- readiness


def _routed(proc: int) -> bool:
    """Tell whether the network namespace of this process has a default route."""
    for line in terminal.read_whole("self/net/route", proc).splitlines()[1:]:
        if line.split()[1] == b"00000000":
            return True
    try:
        table = terminal.read_whole("self/net/ipv6_route", proc)
    except FileNotFoundError:
        return False
    # The kernel's own entry, which refuses, is on the loopback interface.
    return any(
        line.startswith(b"0" * 32 + b" 00 ") and not line.endswith(b" lo")
        for line in table.splitlines()
    )


def _confined(pid: int, proc: int) -> bool:
    """Tell whether a process has a system call filter more than this process."""
    try:
        return _filters(b"%d" % pid, proc) > _filters(b"self", proc)
    except (OSError, ValueError):
        return False


def _filters(pid: bytes, proc: int) -> int:
    status = terminal.read_whole(f"{pid.decode()}/status", proc)
    return int(status.partition(b"Seccomp_filters:")[2].split(None, 1)[0])


# ---------------------------------------------------------------- the starter


def _serve(
    line: _socket.socket,
    error: int,
    keeper: int,
    commands: tuple[tuple[bytes, ...], ...],
    limits: tuple[tuple[int, int], ...],
) -> NoReturn:
    """Start the asked-for alternative, until the launcher hangs up."""
    first, second = sorted((line.fileno(), error))
    os.closerange(3, first)
    os.closerange(first + 1, second)
    os.closerange(second + 1, 1 << 20)
    while asked := line.recv(_LINE_BYTES):
        middle = os.fork()
        if not middle:
            connector = os.fork()
            if not connector:
                _become(commands[int(asked)], error, keeper, limits)
            line.send(b"%d" % connector)
            os._exit(0)
        os.waitpid(middle, 0)
    os._exit(0)


def _become(
    command: tuple[bytes, ...], error: int, keeper: int, limits: tuple[tuple[int, int], ...]
) -> NoReturn:
    try:
        os.dup2(error, 2)  # 0 and 1 are /dev/null, as the nursery left them
        os.closerange(3, 1 << 20)
        middle = os.getppid()
        while os.getppid() == middle != keeper:
            time.sleep(_PAUSE_S / 4)
        call("to end with the keeper", "prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == keeper:
            os.chdir("/")
            os.umask(0o077)
            launch.prefer(limits)
            launch.reset_signals()  # pasta refuses to start if SIGPIPE is ignored
            os.execve(command[0], command, {})
    except BaseException as e:
        os.write(2, f"{command[0].decode('utf-8', 'replace')}: {e}\n".encode())
    finally:
        os._exit(1)
