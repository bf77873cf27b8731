"""The process that runs CRIU inside a session's namespaces; checkpoint.py starts it.

It reads one request with descriptors from a socket, whose descriptor is its argument. To dump, it
enters the namespaces that the keeper holds; a child of it, which is in the pid namespace, starts
CRIU. To restore, it is the launcher: it makes namespaces and a file tree as for a new session and
starts init; a child of init starts CRIU.

CRIU cannot be named inside: its directory and that of the images are descriptors, reached by
/proc/self/fd. CRIU has every capability of the user namespace, so that no program inside can trace
it or open its descriptors: they have fewer.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from holdfast.keeper import contain, file_tree, launch, terminal
from holdfast.keeper import install_filter as install_filter  # the tree hides its file later
from holdfast.wire import notification
from holdfast.wire.spawning import NET_HOST, Containment
from tests.support.criu import memory, rpc

PROGRAM = 3  # the session's program, as it is numbered inside
HF_ROOT = 2
NAMESPACES = {"user": 0x1000_0000, "ipc": 0x0800_0000, "net": 0x4000_0000}
NAMESPACES |= {"pid": 0x2000_0000, "mnt": 0x0002_0000}
_CAP_SETUID = 7
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_PR_SET_DUMPABLE = 4
_SCM_CREDENTIALS, _SO_PASSCRED = 2, 16
_CREDENTIALS = struct.Struct("3i")
_CAPABILITY_HEADER = struct.pack("Ii", 0x2008_0522, 0)
_CAPABILITIES = struct.Struct("6I")
MEMORY_FILE = "memory.tar"
PACKET_BYTES = 1 << 18
DESCRIPTORS_MAX = 16
# CRIU must not find helper programs: inside, they are the session's.
_ENVIRONMENT = {b"PATH": b"/nonexistent"}
_LAST_PID = "/proc/sys/kernel/ns_last_pid"


class Failed(Exception):
    """CRIU could not do it."""


@dataclass(frozen=True, slots=True)
class Dump:
    """Descriptors: CRIU's directory, the images' directory, then the namespaces in order."""

    namespaces: tuple[str, ...]
    kill: bool
    watched: tuple[str, ...]  # where files are that programs watch
    memory: tuple[str, ...]  # where memory file systems are


@dataclass(frozen=True, slots=True)
class Restore:
    """Descriptors: CRIU's directory, the images' directory."""

    containment: Containment
    gate: int
    highest_pid: int


@dataclass(slots=True)
class Outcome:
    """What happened. With a restore come descriptors: the keeper's socket to init, init's pidfd,
    the namespaces, the terminal's master side, and the exec gate's listener if there is a gate.
    """

    problem: str = ""
    program: int = 0
    seconds: float = 0.0
    steps: list[tuple[str, float]] = field(default_factory=list)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    packet, fds, _, _ = socket.recv_fds(control, PACKET_BYTES, DESCRIPTORS_MAX)
    job = pickle.loads(packet)
    try:
        if isinstance(job, Dump):
            dump(control, job, fds)
        else:
            restore(control, job, fds)
    except Exception as e:
        control.send(pickle.dumps(Outcome(f"{type(e).__name__}: {e}")))


# ---------------------------------------------------------------- dump


def dump(control: socket.socket, job: Dump, fds: list[int]) -> None:
    criu, images, *namespaces = fds
    network = namespaces[job.namespaces.index("net")]
    own_network = os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino
    for name, fd in zip(job.namespaces, namespaces, strict=True):
        if os.fstat(fd).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            file_tree.call(f"the namespace {name}", "setns", fd, NAMESPACES[name])
    pid = os.fork()  # in the session's pid namespace
    if pid:
        os.waitpid(pid, 0)
        return
    outcome = Outcome()
    try:
        options: rpc.Options = {
            "pid": HF_ROOT,
            "leave_running": not job.kill,
            "orphan_pts_master": True,
            # Inside a user namespace a watched file cannot be opened by its handle.
            "force_irmap": True,
            "irmap_scan_paths": job.watched,
            **_connections(own_network),
        }
        Call(criu, images, rpc.DUMP, options, outcome, memory_at=job.memory).run()
    except Exception as e:
        outcome.problem = f"{type(e).__name__}: {e}"
    control.send(pickle.dumps(outcome))
    os._exit(0)


def only_our_filter() -> str:
    """Return the name of a process with a second seccomp filter, or an empty text."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (1, os.getpid()):
            continue
        for thread in os.listdir(f"/proc/{entry}/task"):
            with open(f"/proc/{entry}/task/{thread}/status") as f:
                status = dict(line.split(":\t", 1) for line in f.read().splitlines())
            if int(status.get("Seccomp_filters", "1")) > 1:
                return f"{status['Name']} ({entry})"
    return ""


# ---------------------------------------------------------------- restore


def restore(control: socket.socket, job: Restore, fds: list[int]) -> None:
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = contain.enter(job.containment)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
    keeper, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        keeper.close()
        control.close()
        _begin_init(theirs, init, root, job, fds)
    theirs.close()
    init.close()
    held = [
        os.pidfd_open(pid),
        *(
            os.open(f"self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
            for name in ("user", "mnt", "ipc", "net", "pid_for_children")
        ),
    ]
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(8)
    packet, ancillary, _, _ = ours.recvmsg(PACKET_BYTES, space)
    if not packet:
        raise Failed("init died")
    outcome = pickle.loads(packet)
    given: list[int] = []
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            given += struct.unpack(f"{len(data) // 4}i", data)
        elif kind == _SCM_CREDENTIALS and not outcome.problem:
            outcome.program = _CREDENTIALS.unpack(data)[0]
    socket.send_fds(control, [pickle.dumps(outcome)], [keeper.fileno(), *held, *given])


def _begin_init(
    line: socket.socket, keeper: socket.socket, root: int, job: Restore, fds: list[int]
) -> NoReturn:
    """Become process 1, with a child that restores the others; as contain._begin_inside."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        call = file_tree.call
        call("an init out of reach", "prctl", _PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)
        os.setsid()
        terminal.set_title(b"hf-init")
        contain._own_priority(contain._PRIORITY)
        # CRIU and its helpers must not get the number of a process in the image. The kernel
        # applies this to the writer's pid namespace, whichever /proc it is.
        with open(_LAST_PID, "w") as f:
            f.write(f"{job.highest_pid}")
        file_tree.enter(root)
        signal.pthread_sigmask(signal.SIG_SETMASK, contain.AWAITED)
        if os.fork():
            contain._give_up(contain._KEPT_BY_INIT)
            contain._serve(HF_ROOT, keeper)
        keeper.close()
        contain._own_priority(before)
        launch.reset_signals()
        _restore_inside(line, job, fds)
        os._exit(0)
    except BaseException as e:
        line.send(pickle.dumps(Outcome(f"{type(e).__name__}: {e}")))
        os._exit(1)


def _restore_inside(line: socket.socket, job: Restore, fds: list[int]) -> None:
    """Restore hf-root and its tree as children of this process; init adopts them afterwards."""
    listener, cookie = launch.gated(job.gate, contained=True)
    outcome = Outcome()
    options: rpc.Options = {
        "orphan_pts_master": True,
        "rst_sibling": True,
        **_connections(job.containment.net != NET_HOST),
    }
    criu, images = fds
    with open(os.open(MEMORY_FILE, os.O_RDONLY, dir_fd=images), "rb") as f:
        memory.unpack(f)
    call = Call(criu, images, rpc.RESTORE, options, outcome, listener, cookie)
    call.run()
    # The kernel translates the program's number for the receiver.
    credentials = _CREDENTIALS.pack(PROGRAM, os.getuid(), os.getgid())
    given = [call.master, *([listener] if listener > 0 else [])]
    line.sendmsg(
        [pickle.dumps(outcome)],
        [
            (socket.SOL_SOCKET, _SCM_CREDENTIALS, credentials),
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(given)}i", *given)),
        ],
    )


# ---------------------------------------------------------------- CRIU


def _connections(own_network: bool) -> rpc.Options:
    """Keep TCP connections if both ends are saved together, in a network of the session's own.

    On the machine's network they are closed at the restore: only the machine's root may keep them.
    """
    return {"tcp_established" if own_network else "tcp_close": True}


class Call:
    """One request to CRIU."""

    def __init__(
        self,
        criu: int,
        images: int,
        kind: int,
        options: rpc.Options,
        outcome: Outcome,
        listener: int = 0,
        cookie: int | None = None,
        memory_at: tuple[str, ...] = (),
    ) -> None:
        self.criu, self.images, self.kind = criu, images, kind
        self.options = options
        self.outcome = outcome
        self.memory_at = memory_at
        self.listener, self.cookie = listener, cookie
        self.master = -1  # of the restored terminal
        self.refused = ""  # the reason, if this side stopped the dump
        self.began = time.monotonic()

    def run(self) -> None:
        log = "dump.log" if self.kind == rpc.DUMP else "restore.log"
        options: rpc.Options = {
            "images_dir_fd": -1,
            "images_dir": f"/proc/self/fd/{self.images}",
            "log_file": log,
            "log_level": 2,
            "notify_scripts": True,
            "unprivileged": True,
            "file_locks": True,
            "manage_cgroups_mode": rpc.IGNORE_CGROUPS,
            "network_lock": rpc.SKIP_NETWORK_LOCK,
            **self.options,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._become(theirs)
        theirs.close()
        ours.send(rpc.request(self.kind, options))
        try:
            final = self._converse(ours)
        finally:
            self.outcome.seconds = time.monotonic() - self.began
            ours.close()
        os.waitpid(pid, 0)
        if not final.success:
            raise Failed(self.refused or self._why(log) or final.text)

    def _converse(self, line: socket.socket) -> rpc.Message:
        """Answer notifications until the response comes."""
        poll = select.poll()
        poll.register(line, select.POLLIN)
        if self.listener > 0:
            poll.register(self.listener, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self.listener in ready:
                self._let_pass()
            if line.fileno() not in ready:
                continue
            packet, fds, _, _ = socket.recv_fds(line, PACKET_BYTES, 1)
            if not packet:
                raise Failed("CRIU ended without an answer")
            message = rpc.read(packet)
            if message.kind != rpc.NOTIFY:
                return message
            if fds:
                self.master = fds[0]
            elapsed = time.monotonic() - self.began
            self.outcome.steps.append((message.script, elapsed))
            line.send(rpc.answer(self._agrees(message.script)))
            if message.script == "pre-resume" and self.listener > 0:
                poll.unregister(self.listener)  # the next exec is a restored program's

    def _agrees(self, script: str) -> bool:
        """At the end of a dump, check the frozen processes and save their memory files."""
        if script != "post-dump":
            return True
        if found := only_our_filter():
            self.refused = f"{found} has a seccomp filter of its own"
            return False
        fd = os.open(MEMORY_FILE, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600, dir_fd=self.images)
        try:
            with open(fd, "wb") as f:
                memory.pack(self.memory_at, f)
        except OSError as e:
            self.refused = f"files in memory: {e}"
        return not self.refused

    def _let_pass(self) -> None:
        """Let CRIU execute a helper program."""
        asked = bytearray(notification.NOTIFICATION.size)
        fcntl.ioctl(self.listener, notification.RECV, asked)
        (number,) = notification.ID.unpack_from(asked)
        reply = notification.ANSWER.pack(number, 0, 0, notification.CONTINUE)
        fcntl.ioctl(self.listener, notification.SEND, reply)

    def _why(self, log: str) -> str:
        """Return the last errors of the log; the response has the first, which is often noise."""
        fd = os.open(log, os.O_RDONLY, dir_fd=self.images)
        with open(fd, errors="replace") as f:
            return "; ".join([line.strip() for line in f if "Error" in line][-6:])

    def _become(self, line: socket.socket) -> NoReturn:
        try:
            for fd in (self.criu, self.images, line.fileno()):
                os.set_inheritable(fd, True)
            _pass_on_capabilities()
            top = b"/proc/self/fd/%d" % self.criu
            with open(top + b"/loader", "rb") as f:
                loader = top + b"/root/" + f.read().strip()
            libraries = os.path.dirname(loader)
            argv = (
                *(loader, b"--library-path", libraries, b"--argv0", b"criu"),
                *(b"--preload", top + b"/shim.so", top + b"/root/usr/sbin/criu"),
                *(b"swrk", b"%d" % line.fileno()),
            )
            launch.execve(loader, argv, _ENVIRONMENT, self.cookie)
        except BaseException as e:
            os.write(2, f"CRIU: {e}\n".encode())
        os._exit(127)


def _pass_on_capabilities() -> None:
    """Keep the capabilities of the user namespace across an exec, if not uid 0.

    Without CAP_SETUID: with it, CRIU would become uid 0, which the namespace does not map.
    """
    if not os.getuid():
        return
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    file_tree.call("capabilities", "capget", _CAPABILITY_HEADER, data)
    words = list(_CAPABILITIES.unpack(data.raw))
    words[0] &= ~(1 << _CAP_SETUID)
    words[1] &= ~(1 << _CAP_SETUID)
    words[2], words[5] = words[1], words[4]
    file_tree.call("capabilities", "capset", _CAPABILITY_HEADER, _CAPABILITIES.pack(*words))
    for number in range(64):
        if (words[1] | words[4] << 32) >> number & 1:
            one = ctypes.c_ulong(number)
            raised = ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE)
            file_tree.call("capabilities", "prctl", _PR_CAP_AMBIENT, raised, one, 0, 0)
