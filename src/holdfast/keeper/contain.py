"""Contained sessions: a pid and mount namespace of its own (and a user namespace for ordinary users), and a tiny init.

    keeper ─ launcher (ends) ─ init, process 1 inside ─ the program, process 2

Order. The launcher makes the namespaces and arranges the files, then opens the terminal inside them: it belongs to a
devpts of its own, so that no other session's terminal can be opened from here. Init, the first process of the new pid
namespace, mounts /proc (it must be inside to do that), gives up what could undo all this, starts the program and
stays. The launcher learns the program's pid as it is outside from the credentials on a socket, tells the keeper, lets
the program go on and ends. Init then is the keeper's child, like any orphan.

Init does four things: it reaps orphans; it writes the program's wait status into a pipe (an init cannot die by a
signal of its own, so its own status could not tell "killed by 9" from "exit 137"); it stops everybody else when a
process outside sends HALT_SIGNAL (kill(-1) by process 1 misses nobody and cannot be outrun by forks); and it ends
when nobody is left. It holds no descriptor but that pipe: one of the terminal would hide the end of output, one of
the home would be a door to it (/proc/1/fd).

What is hidden is covered by empty read-only file systems. What can take a cover away is given up, for good and for
everything executed inside (FORBIDDEN, from the bounding set). A user namespace made inside has all capabilities
within itself, but the covers are locked there by the kernel. cgroup file systems are covered, not read-only:
CLONE_INTO_CGROUP asks only for the permissions of the directory, and so leads out of a read-only one. Root gets a
/dev of a few harmless devices, because it could read the home from the disk's own, and a read-only /sys and
/proc/sys, because some of what is there names programs that the kernel runs outside.

no_new_privs is not set: as root nothing needs it, and in a user namespace files of the machine's root have no owner,
so sudo says that it must be owned by uid 0 and ends.

Rejected: pivot_root into a tree of its own (a session is to feel like this machine); a second user namespace that
shows the user's own uid (a checkpoint could not be restored: uid 0 must exist); exec of a small program as init (there
is none everywhere; a forked interpreter shares most of its memory).
"""

from __future__ import annotations

import _socket
import ctypes
import os
import stat
import struct

from holdfast.keeper import launch, terminal
from holdfast.wire.spawning import HALT_SIGNAL, Containment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

_NEWNS, _NEWUSER, _NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = (
    1,
    2,
    4,
    8,
    0x20,
    0x1000,
    0x4000,
    1 << 18,
)
_OPTIONS = {
    b"nosuid": _NOSUID,
    b"nodev": _NODEV,
    b"noexec": _NOEXEC,
    b"noatime": 0x400,
    b"nodiratime": 0x800,
    b"relatime": 1 << 21,
}
_COVER = b"mode=0555,size=64k,nr_inodes=64"
_OWN = b"mode=0700,size=10%"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SHARED_OF_DEV = ("shm", "mqueue", "hugepages")
_LINKS_OF_DEV = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)
_READ_ONLY_OF_PROC = (b"sys", b"sysrq-trigger", b"irq", b"bus", b"fs")
_CGROUPS = b"/sys/fs/cgroup"

# DAC_READ_SEARCH (opens files by handle, covers or not), SYS_MODULE, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, SYS_BOOT,
# MKNOD, MAC_OVERRIDE, MAC_ADMIN, PERFMON, BPF, CHECKPOINT_RESTORE
FORBIDDEN = (2, 16, 17, 19, 21, 22, 27, 32, 33, 38, 39, 40)
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_CAPABILITY_HEADER = struct.pack("Ii", 0x2008_0522, 0)
_CAPABILITIES = struct.Struct(
    "6I"
)  # effective, permitted, inheritable: the lower 32, then the upper 32

_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
_SAID_BYTES = 1000
_STATUS_FD = 3
_PRIORITY = -15


class NotAllowed(Exception):
    """This machine does not allow a part of it: which, and what the kernel said."""


class Program:
    """The process inside that will be the program, as the launcher has it: it waits until it is let go."""

    def __init__(self, pid: int, line: _socket.socket, listener: int) -> None:
        self.pid, self._line = pid, line
        self.listener = listener  # of its exec gate, as launch.gated gives it

    def let_go(self) -> None:
        self._line.send(b"go")


_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, name: str, *arguments: object) -> None:
    ctypes.set_errno(0)
    if getattr(_libc, name)(*arguments) != 0:
        raise NotAllowed(f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(
    source: bytes | None,
    target: bytes,
    kind: bytes | None,
    flags: int,
    options: bytes | None = None,
) -> None:
    _call(
        f"mounting {os.fsdecode(target)}",
        "mount",
        source,
        target,
        kind,
        ctypes.c_ulong(flags),
        options,
    )


# ---------------------------------------------------------------- the launcher: namespaces and files


def enter(containment: Containment) -> bool:
    """This process: new namespaces, and the files as they are to be. Children are in the new pid namespace.

    Whether that was possible without a user namespace: then what is root inside is root outside.
    """
    as_root = _unshare()
    _mount(None, b"/", None, _REC | _PRIVATE)
    for path in containment.hide:
        _hide(os.path.realpath(path), containment.keep)
    for path in containment.fresh:
        if os.path.isdir(path):
            _mount(b"tmpfs", os.path.realpath(path), b"tmpfs", _NOSUID | _NODEV, _OWN)
    _hide(_CGROUPS, ())
    if as_root:
        _own_devices()
        _read_only(b"/sys")
    _mount(
        b"devpts", b"/dev/pts", b"devpts", _NOSUID | _NOEXEC, b"newinstance,ptmxmode=0666,mode=0600"
    )
    return as_root


def _unshare() -> bool:
    try:
        _call("a namespace", "unshare", _NEWNS | _NEWPID)
        return True
    except NotAllowed:
        pass
    uid, gid = os.geteuid(), os.getegid()
    _call("a user namespace", "unshare", _NEWUSER)
    try:
        for name, text in (
            ("setgroups", b"deny"),
            ("uid_map", b"0 %d 1" % uid),
            ("gid_map", b"0 %d 1" % gid),
        ):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, text)
            os.close(fd)
    except OSError as e:
        raise NotAllowed(f"ids in a user namespace: {e.strerror}") from e
    _call("a pid and mount namespace in a user namespace", "unshare", _NEWNS | _NEWPID)
    return False


def _hide(path: bytes, keep: tuple[bytes, ...]) -> None:
    """Covers a directory or file, if it is there. What is to stay below it is held by a descriptor meanwhile."""
    if not os.path.isdir(path):
        if os.path.lexists(path):
            _mount(b"/dev/null", path, None, _BIND)
        return
    below = [
        p for p in map(os.path.realpath, keep) if p.startswith(path + b"/") and os.path.isdir(p)
    ]
    held = [(p, os.open(p, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for p in below]
    _mount(b"tmpfs", path, b"tmpfs", _NOSUID | _NODEV | _NOEXEC, _COVER)
    for kept, fd in held:
        _directories(path, kept)
        _mount(b"/proc/self/fd/%d" % fd, kept, None, _BIND)
        os.close(fd)
    _mount(None, path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV | _NOEXEC)


def _directories(top: bytes, path: bytes) -> None:
    for name in path[len(top) + 1 :].split(b"/"):
        top += b"/" + name
        if not os.path.isdir(top):
            os.mkdir(top)
            os.chmod(top, 0o755)


def _own_devices() -> None:
    nodes = [(name, os.stat(f"/dev/{name}")) for name in _DEVICES if os.path.exists(f"/dev/{name}")]
    shared = [
        (name, os.open(f"/dev/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        for name in _SHARED_OF_DEV
        if os.path.isdir(f"/dev/{name}")
    ]
    _mount(b"tmpfs", b"/dev", b"tmpfs", _NOSUID | _NOEXEC, b"mode=0755,size=1m")
    for name, info in nodes:
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o600, info.st_rdev)
        os.chmod(f"/dev/{name}", stat.S_IMODE(info.st_mode))
    for name, fd in shared:
        os.mkdir(f"/dev/{name}")
        _mount(b"/proc/self/fd/%d" % fd, b"/dev/" + name.encode(), None, _BIND | _REC)
        os.close(fd)
    os.mkdir("/dev/pts")
    os.chmod("/dev/pts", 0o755)
    for name, target in _LINKS_OF_DEV:
        os.symlink(target, f"/dev/{name}")


def _read_only(top: bytes) -> None:
    """All mounts at and below, each with the options that it has."""
    for line in terminal.read_whole("/proc/self/mountinfo").splitlines():
        fields = line.split(b" ")
        path = fields[4].replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\")
        if path == top or (path.startswith(top + b"/") and os.path.lexists(path)):
            options = sum(_OPTIONS.get(o, 0) for o in fields[5].split(b","))
            _mount(None, path, None, _REMOUNT | _BIND | _RDONLY | options)


# ---------------------------------------------------------------- the two processes inside


def start(as_root: bool, gate: int = 0) -> tuple[Program | None, int, int | None]:
    """Starts init. Here: the program's process and the pipe with its status. In that process, once let go: what its execution is known by at its gate."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _SO_PASSCRED, 1)
    status, status_write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError as e:
        raise NotAllowed(f"a process in a new pid namespace: {e.strerror}") from e
    if pid == 0:
        ours.close()
        return None, -1, _begin_inside(theirs, status_write, as_root, gate)
    theirs.close()
    os.close(status_write)
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
    return Program(program, ours, given[0] if given else int(said[1:])), status, None


def _begin_inside(line: _socket.socket, status: int, as_root: bool, gate: int) -> int | None:
    """Returns in the program's process; the other one stays init for ever. The filter of the gate is the program's alone, and is installed while there is still
    the right to do so without no_new_privs."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setsid()
        terminal.set_title(b"hf-init")
        _own_priority(
            _PRIORITY
        )  # before the session's programs, where that is allowed: it must halt them
        _own_proc(as_root)
        signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGCHLD, HALT_SIGNAL))
        program = os.fork()
        listener, cookie = launch.gated(gate) if not program else (0, None)
        _give_up()
    except BaseException as e:
        line.send(f"{e}".encode()[:_SAID_BYTES] or b"?")
        os._exit(1)
    if program:
        try:
            _serve(program, status)
        finally:
            os._exit(1)
    _own_priority(before)
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
    os.close(status)
    return cookie


def _own_priority(value: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, value)
    except OSError:
        pass


def _own_proc(as_root: bool) -> None:
    _mount(b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC)
    if as_root:
        for name in _READ_ONLY_OF_PROC:
            path = b"/proc/" + name
            if os.path.lexists(path):
                _mount(path, path, None, _BIND | _REC)
                _mount(None, path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV | _NOEXEC)


def _give_up() -> None:
    """From the bounding set, so that nothing executed gets them back, and from this process's own sets."""
    last = int(terminal.read_whole("/proc/sys/kernel/cap_last_cap"))
    for number in FORBIDDEN:
        if number <= last:
            _call(
                f"giving up capability {number}",
                "prctl",
                _PR_CAPBSET_DROP,
                ctypes.c_ulong(number),
                0,
                0,
                0,
            )
    _call(
        "giving up ambient capabilities",
        "prctl",
        _PR_CAP_AMBIENT,
        _PR_CAP_AMBIENT_CLEAR_ALL,
        0,
        0,
        0,
    )
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    _call("reading capabilities", "capget", _CAPABILITY_HEADER, data)
    mask = sum(1 << number for number in FORBIDDEN)
    lower, upper = ~mask & 0xFFFF_FFFF, ~(mask >> 32) & 0xFFFF_FFFF
    kept = [
        word & (lower if n < 3 else upper) for n, word in enumerate(_CAPABILITIES.unpack(data.raw))
    ]
    _call("giving up capabilities", "capset", _CAPABILITY_HEADER, _CAPABILITIES.pack(*kept))


def _serve(program: int, status: int) -> NoReturn:
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(status, _STATUS_FD)
    os.closerange(_STATUS_FD + 1, 1 << 20)
    while True:
        told = signal.sigwaitinfo((signal.SIGCHLD, HALT_SIGNAL))
        if (
            told.si_signo == HALT_SIGNAL and told.si_code == 0 and told.si_pid == 0
        ):  # by a process outside
            try:
                os.kill(-1, signal.SIGSTOP)
            except ProcessLookupError:
                pass
        _reap(program)


def _reap(program: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            os._exit(0)  # nobody is left
        if pid == 0:
            return
        if pid == program:
            try:
                os.write(_STATUS_FD, status.to_bytes(4, "little"))
            except OSError:
                pass  # the keeper is no more
            os.close(_STATUS_FD)
