"""Contained sessions: namespaces, a file tree of their own, and an init that is out of reach.

    keeper ─ launcher (ends) ─ init, process 1 inside ─ hf-root, process 2 ─ the program, process 3

Order. The launcher creates a user namespace and within it pid, mount and IPC namespaces, and a
network namespace if asked for. It assembles the file tree (keeper/file_tree.py) and opens the
terminal there. Init mounts /proc, makes the tree its root and detaches the machine's files, so that
nothing outside the list can be named. Process 2 installs the seccomp filter, forks the program and
becomes hf-root (keeper/hf_root.c). The launcher learns the program's outside pid from the
credentials on a socket, reports it to the keeper, releases the program and exits. Init then becomes
the keeper's child, like any orphan.

The user namespace. An ordinary user's uid and gid map to themselves, and no other id is mapped. On
a root host every id maps to itself. So capabilities never count outside the namespace; the program
gets at most those in KEPT even inside. no_new_privs is set, and every mount is nosuid.

Init has four duties:
- It reaps orphans that hf-root did not adopt.
- It stops all other processes when the keeper orders it. kill(-1) by process 1 reaches every
  process and cannot be outrun by forks. Because a program can let the kernel continue it (a timer
  whose signal is SIGCONT), init then holds every thread by ptrace until the keeper orders the
  release. Orders come over the socket to the keeper. No signal is an order: where a queue of
  signals is full, the kernel does not tell their sender.
- When hf-root ends, it sends that wait status, which is the program's, to the keeper and exits. The
  kernel then kills every process that is left. An init cannot die by a signal of its own, so its
  own status could not distinguish "killed by 9" from "exit 137".
- It exits when the keeper dies, because no host could then halt the session.
Init is not dumpable, and its memory belongs to the machine's user namespace. So no process inside,
with any capability, can trace it or open its descriptors. Its socket to the keeper is the only one.
The filter lets no process inside change init's limits or priority, and /proc/1 is read-only.

hf-root is an ordinary process of the session. It has no descriptor and the same filter as the
program, so a process that traces it gains nothing.

Rejected: covers over known paths of the machine's own tree (a path that is absent, renamed or
created later stays open); bubblewrap (it hands over neither the terminal, the listener of the gate
nor the namespaces, and has no init that halts).
"""

from __future__ import annotations

import _socket
import ctypes
import fcntl
import os
import resource
import struct

from holdfast.keeper import file_tree, hf_root, launch, network, terminal
from holdfast.keeper import install_filter as install_filter  # the tree hides its file later
from holdfast.keeper.file_tree import NotAllowed, call
from holdfast.keeper.tree import ORDERS
from holdfast.wire.spawning import (
    HALT_SIGNAL,
    HALTED_NAME,
    INIT_NAME,
    MOUNT_FIXED,
    NET_HOST,
    Containment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal as signal

_NEWNS, _NEWIPC, _NEWUSER = 0x0002_0000, 0x0800_0000, 0x1000_0000
_NEWPID, _NEWNET = 0x2000_0000, 0x4000_0000
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_INTERFACE = struct.Struct("16sH22x")

# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT.
# Not SETFCAP. On a root host, programs in the workspace would have the capabilities outside as
# well. And without it the kernel lets no user namespace made inside map uid 0, where an overlay
# copies a setuid program of the system into the workspace, to be rewritten there.
KEPT = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18)
_KEPT_BY_INIT = (5, 19)  # KILL, SYS_PTRACE
_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_HOLDS = 0x2 | 0x4 | 0x8 | 0x40  # PTRACE_O_TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXIT
_HOLD_PASSES = 64  # over all processes, until no new one appears
AWAITED = (signal.SIGCHLD, signal.SIGIO)  # a child ended or stopped; the keeper's socket
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_HEADER = struct.pack("Ii", 0x2008_0522, 0)
# Effective, permitted, inheritable: the lower 32 bits of each, then the upper 32.
_CAPABILITIES = struct.Struct("6I")

_SO_PASSCRED, _SCM_CREDENTIALS, _O_ASYNC = 16, 2, 0o20000
_SAID_BYTES = 1000
_SIGNALS_PART = 8
_COUNTS, _COUNTED_PART = "sys/user", 4
_MOUNT_NAMESPACES, _GROUP_NAMESPACES = "max_mnt_namespaces", "max_cgroup_namespaces"
_KEEPER_FD = 3
PRIORITY = -15
_NAMESPACES = ("user", "mnt", "ipc", "net", "pid_for_children")


class Program:
    """The launcher's handle on the process inside that will execute the program once released."""

    def __init__(self, pid: int, line: _socket.socket, listener: int, held: tuple[int, ...]):
        self.pid, self._line = pid, line
        self.listener = listener  # of the program's exec gate, as launch.gated returns it
        self.held = held  # init's pidfd and the namespaces; a non-dumpable init hides them later

    def let_go(self) -> None:
        self._line.send(b"go")


# ---------------------------------------------------------------- namespaces


def enter(containment: Containment, connector: network.Connector | None = None) -> int:
    """Move this process into new namespaces and assemble the file tree; return its root.

    Children of this process get the pid namespace.
    """
    machine = os.uname().machine
    os.umask(0o022)
    # Programs inside must not possess the keys of the caller's session keyring.
    ctypes.CDLL(None).syscall(ctypes.c_long(_KEYCTL.get(machine, -1)), _JOIN_SESSION_KEYRING, None)
    _unshare(_NEWNET if containment.net != NET_HOST else 0)
    if containment.net != NET_HOST:
        _loopback()
    if connector is not None:
        connector.begin()  # it works while the tree is assembled
    try:
        program = hf_root.program(machine)
    except KeyError:
        raise NotAllowed(f"a contained session: not built for {machine}") from None
    return file_tree.assemble(containment.mounts, program)


def _unshare(more: int) -> None:
    # The kernel counts queued signals by account. A session gets a part of them, so that it cannot
    # keep the account's other programs from having timers and signals.
    queued, most = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (queued // _SIGNALS_PART, most))
    flags = _NEWUSER | _NEWNS | _NEWIPC | _NEWPID | more
    if os.geteuid():
        uid, gid = os.geteuid(), os.getegid()
        call("a user namespace", "unshare", flags)
        problem = _write_maps(
            "self", (("setgroups", b"deny"), ("uid_map", _same(uid)), ("gid_map", _same(gid)))
        )
    else:
        # Only a process that stays outside may map ids other than its own.
        maps = tuple((name, _every_id(name)) for name in ("uid_map", "gid_map"))
        ask, asked = os.pipe2(os.O_CLOEXEC)
        answered, answer = os.pipe2(os.O_CLOEXEC)
        parent, helper = os.getpid(), os.fork()
        if not helper:
            try:
                os.close(asked)
                if os.read(ask, 1):
                    os.write(answer, _write_maps(f"{parent}", maps).encode())
            finally:
                os._exit(0)
        os.close(answer)
        call("a user namespace", "unshare", flags)
        os.write(asked, b"!")
        problem = os.read(answered, _SAID_BYTES).decode()
        os.waitpid(helper, 0)
        for fd in (ask, asked, answered):
            os.close(fd)
    if problem:
        raise NotAllowed(f"ids in a user namespace: {problem}")


def _same(number: int) -> bytes:
    return b"%d %d 1" % (number, number)


def _every_id(name: str) -> bytes:
    """Return the map that shows each id of this namespace as itself."""
    extents = [line.split() for line in terminal.read_whole(f"/proc/self/{name}").splitlines()]
    return b"\n".join(b"%s %s %s" % (first, first, count) for first, _, count in extents)


def _write_maps(pid: str, maps: tuple[tuple[str, bytes], ...]) -> str:
    """Write a process's maps of ids; return the problem, or an empty text."""
    try:
        for name, text in maps:
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, text)
            os.close(fd)
    except OSError as e:
        return e.strerror or "refused"
    return ""


def _loopback() -> None:
    """Start the loopback interface of a new network namespace."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", _IFF_UP))
    sock.close()


def counts(proc: int) -> dict[str, int]:
    """Return the kernel's limits of what it counts by account: namespaces, inotify."""
    listed = os.open(_COUNTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return {n: int(terminal.read_whole(f"{_COUNTS}/{n}", proc)) for n in os.listdir(listed)}
    finally:
        os.close(listed)


def leave_a_part(counted: dict[str, int], containment: Containment, proc: int) -> None:
    """Give the session a part of each limit, so that it cannot take all from the account.

    There is no further control group namespace, in which root inside could mount the groups and
    undo a freeze. With a FIXED entry in the list there is no further mount namespace either. The
    kernel counts the objects of nested user namespaces too. To be called after `enter`; programs
    inside lack CAP_SYS_RESOURCE, which raising a limit needs.
    """
    fixed = any(mount.kind == MOUNT_FIXED for mount in containment.mounts)
    none = (_GROUP_NAMESPACES, *((_MOUNT_NAMESPACES,) if fixed else ()))
    for name, most in counted.items():
        part = 0 if name in none else most // _COUNTED_PART
        try:
            fd = os.open(f"{_COUNTS}/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
            os.write(fd, b"%d" % part)
            os.close(fd)
        except OSError as e:
            raise NotAllowed(f"the limit {name}: {e.strerror}") from e


# ---------------------------------------------------------------- the processes inside


def start(
    root: int, proc: int, limit: Callable[[], None], gate: int = 0
) -> tuple[Program | None, int, int | None]:
    """Start init, with the tree at `root`; `proc` is the machine's own /proc.

    `limit` bounds the resources of process 2. The program's process must do the same itself.

    In the launcher: returns the program's process and the socket to init. In the program's
    process, once released: returns the cookie that marks its own exec at the gate.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _SO_PASSCRED, 1)
    keeper, init = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError as e:
        raise NotAllowed(f"a process in a new pid namespace: {e.strerror}") from e
    if pid == 0:
        ours.close()
        keeper.close()
        return None, -1, _begin_inside(theirs, init, root, limit, gate)
    theirs.close()
    init.close()
    held = hold(pid, proc)
    said, ancillary, _, _ = ours.recvmsg(
        _SAID_BYTES, _socket.CMSG_SPACE(12) + _socket.CMSG_SPACE(4), _socket.MSG_CMSG_CLOEXEC
    )
    if said[:1] != b"+":
        raise NotAllowed(said.decode("utf-8", "replace") or "init died")
    (program,) = (
        struct.unpack("3i", data)[0] for _, kind, data in ancillary if kind == _SCM_CREDENTIALS
    )
    given = [
        struct.unpack("i", data)[0] for _, kind, data in ancillary if kind == _socket.SCM_RIGHTS
    ]
    listener = given[0] if given else int(said[1:])
    return Program(program, ours, listener, held), keeper.detach(), None


def hold(init: int, proc: int) -> tuple[int, ...]:
    """Open init's pidfd and the namespaces of this launcher, which become the keeper's."""
    namespaces = (
        os.open(f"self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc) for name in _NAMESPACES
    )
    return os.pidfd_open(init), *namespaces


def _begin_inside(
    line: _socket.socket, keeper: _socket.socket, root: int, limit: Callable[[], None], gate: int
) -> int | None:
    """Return in the program's process; init and hf-root never return."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        # An exec makes a process dumpable again: hf-root and the program are ordinary processes.
        call("an init out of reach", "prctl", _PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)
        os.setsid()
        terminal.set_title(INIT_NAME)
        # Init must be able to halt the session's programs, so it runs before them if allowed.
        own_priority(PRIORITY)
        file_tree.enter(root)
        signal.pthread_sigmask(signal.SIG_SETMASK, AWAITED)
        second = os.fork()
        if second:
            serve(second, keeper)
        keeper.close()
        return _begin_second(line, before, limit, gate)
    except BaseException as e:
        line.send(f"{e}".encode()[:_SAID_BYTES] or b"?")
        os._exit(1)


def _begin_second(
    line: _socket.socket, priority: int, limit: Callable[[], None], gate: int
) -> int | None:
    """In process 2: fork the program's process, which returns, and become hf-root."""
    own_priority(priority)
    os.setsid()
    call("no new privileges", "prctl", _PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    listener, cookie = launch.gated(gate, contained=True)
    _give_up(KEPT)
    wait, failed = os.pipe2(os.O_CLOEXEC)
    program = os.fork()
    if program:
        launch.reset_signals()
        # The program begins while this process executes hf-root: no signal of it may end hf-root.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        os.closerange(0, failed)
        os.closerange(failed + 1, 1 << 20)
        name = (b"/.holdfast/hf-root", (b"hf-root", b"%d" % program), dict[bytes, bytes]())
        try:
            limit()  # code inside can trace hf-root, and fork in its name
            launch.execve(*name, cookie)
        except (OSError, launch.CannotStart) as e:
            os.write(failed, f"{e}".encode()[:_SAID_BYTES])
        os._exit(1)
    os.close(failed)
    if problem := os.read(wait, _SAID_BYTES):
        raise NotAllowed(f"process 2: {problem.decode()}")
    os.close(wait)
    line.sendmsg(
        [b"+%d" % listener],
        [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener))]
        if listener > 0
        else [],
    )
    if listener > 0:
        os.close(listener)
    if line.recv(2) != b"go":
        os._exit(1)
    line.close()
    return cookie


def own_priority(value: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, value)
    except OSError:
        pass


def _give_up(kept: tuple[int, ...]) -> None:
    """Drop all other capabilities from the bounding set and from our own sets."""
    last = int(terminal.read_whole("/proc/sys/kernel/cap_last_cap"))
    for number in range(last + 1):
        if number not in kept:
            step = f"giving up capability {number}"
            call(step, "prctl", _PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    step = "giving up capabilities"
    call(step, "prctl", _PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    lower = sum(1 << number for number in kept)
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    call(step, "capget", _CAPABILITY_HEADER, data)
    words = [w & lower if n < 3 else 0 for n, w in enumerate(_CAPABILITIES.unpack(data.raw))]
    call(step, "capset", _CAPABILITY_HEADER, _CAPABILITIES.pack(*words))


# ---------------------------------------------------------------- init


def serve(second: int, keeper: _socket.socket) -> NoReturn:
    """Be init: obey the keeper, and report how process 2 ended."""
    try:
        _give_up(_KEPT_BY_INIT)
        os.dup2(keeper.detach(), _KEEPER_FD)
        os.closerange(0, _KEEPER_FD)
        os.closerange(_KEEPER_FD + 1, 1 << 20)
        fcntl.fcntl(_KEEPER_FD, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(_KEEPER_FD, fcntl.F_SETFL, os.O_NONBLOCK | _O_ASYNC)  # SIGIO when it changes
        held = _Held()
        while True:
            while order := _order():
                held.take() if order == ORDERS[HALT_SIGNAL] else held.release()
                terminal.set_title(HALTED_NAME if held.halted else INIT_NAME)
            _reap(second, held)
            signal.sigwaitinfo(AWAITED)  # code inside may send them too: they only wake init
    finally:
        os._exit(1)


class _Held:
    """The threads that init holds during a halt. A held thread does not run, whatever signal comes.

    A thread that a process inside already traces cannot be held. The thread waits for that tracer,
    and the tracer is held. The kernel may kill a held tracer (a timer, a pipe or a child whose
    signal is SIGKILL). With TRACEEXIT the tracer then stops in its exit, before it releases the
    threads, until the resume.
    """

    def __init__(self) -> None:
        self.halted = False
        self._signals: dict[int, int] = {}  # thread -> the signal that it was about to get

    def take(self) -> None:
        self.halted = True
        try:
            os.kill(-1, signal.SIGSTOP)
        except ProcessLookupError:
            return
        taken = set[int]()
        for _ in range(_HOLD_PASSES):
            fresh = [thread for thread in _threads() if thread not in taken]
            for thread in fresh:
                if _ptrace(_PTRACE_SEIZE, thread, _HOLDS):
                    _ptrace(_PTRACE_INTERRUPT, thread, 0)
            taken.update(fresh)
            if not fresh:
                return

    def release(self) -> None:
        self.halted = False
        for thread in _threads():
            _ptrace(_PTRACE_DETACH, thread, self._signals.get(thread, 0))
        self._signals.clear()

    def stopped(self, thread: int, status: int) -> None:
        """A held thread reported a stop."""
        number = 0 if status >> 16 else os.WSTOPSIG(status)
        if self.halted:
            self._signals[thread] = number
        else:  # the thread stopped after the release
            _ptrace(_PTRACE_DETACH, thread, number)


def _threads() -> list[int]:
    found = list[int]()
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                found += map(int, os.listdir(f"/proc/{name}/task"))
            except OSError:
                pass
    return found


def _ptrace(request: int, thread: int, data: int) -> bool:
    libc = ctypes.CDLL(None)
    return not libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, ctypes.c_long(data))


def _order() -> bytes:
    """Return the keeper's next order, if any. Exit, and so end the session, if it is gone."""
    try:
        return os.read(_KEEPER_FD, 1) or os._exit(1)
    except BlockingIOError:
        return b""


def _reap(second: int, held: _Held) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            held.stopped(pid, status)
        elif pid == second:
            try:
                os.write(_KEEPER_FD, status.to_bytes(4, "little"))
            finally:
                os._exit(0)  # and the kernel ends every process inside
