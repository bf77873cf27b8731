"""One request to CRIU, which this process starts inside a session's namespaces.

Those of a plain session are the machine's. In others nothing of the machine can be named: CRIU, its
libraries and the images are descriptors, reached by /proc/self/fd. CRIU has every capability of the
user namespace. Programs inside have fewer, so that none can trace it or open its descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
from typing import NamedTuple

from holdfast.checkpointer import rpc, shim
from holdfast.wire import notification
from holdfast.wire.checkpointing import PACKET_BYTES, Criu

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Final, NoReturn
else:
    import _socket as socket

PROGRAM = 3  # the program of a contained session, as it is numbered inside
HF_ROOT = 2
LOGS: Final = {rpc.DUMP: "dump.log", rpc.RESTORE: "restore.log"}
# CRIU must not find helper programs: inside, they are the session's.
_ENVIRONMENT = {b"PATH": b"/nonexistent"}
# For the shim: one byte for each descriptor, and numbers.
_FREEZERS, _PIPES = b"HOLDFAST_FREEZERS", b"HOLDFAST_PIPES"
_OPENER = b"HOLDFAST_OPENER"
_PIPES_MADE, _PIPE_BYTES, _F_SETPIPE_SZ = 12, 1 << 20, 1031
_CAP_SETUID = 7
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_HEADER = struct.pack("Ii", 0x2008_0522, 0)
_CAPABILITIES = struct.Struct("6I")
_SHOWN_ERRORS = 6
_INT = struct.Struct("i")
_libc = ctypes.CDLL(None, use_errno=True)

if TYPE_CHECKING:
    Execute = Callable[[bytes, tuple[bytes, ...], dict[bytes, bytes]], None]


class Failed(Exception):
    """CRIU failed; the text is for the user."""


class Terminal(NamedTuple):
    """The program's terminal at a restore. All but `number` goes to the shim (shim.c).

    `descriptor`: a number that no process needs; 0: the program has no terminal. `foreground`: the
    group in the foreground. `starter` has it open as the descriptor `master`; 0: the program makes
    it. `number`: among the terminals (keeper/thaw.py reads it). `masters`: descriptors of all the
    session's terminals, in the order of their numbers. `root`: hf-root, which adopts orphans.
    """

    program: int = PROGRAM
    descriptor: int = 0
    foreground: int = 0
    starter: int = 0
    master: int = 0
    masters: bytes = b""
    number: int = 0
    root: int = HF_ROOT

    def variables(self) -> dict[bytes, bytes]:
        return {
            b"HOLDFAST_PROGRAM": b"%d" % self.program,
            b"HOLDFAST_TERMINAL": b"%d" % self.descriptor,
            b"HOLDFAST_FOREGROUND": b"%d" % self.foreground,
            b"HOLDFAST_STARTER": b"%d" % self.starter,
            b"HOLDFAST_MASTER": b"%d" % self.master,
            b"HOLDFAST_MASTERS": self.masters,
            b"HOLDFAST_ROOT": b"%d" % self.root,
        }


NO_TERMINAL: Final = Terminal()


class Opened:
    """CRIU's files as descriptors, which lead out of a mount namespace that hides them."""

    def __init__(self, criu: Criu) -> None:
        self.program = os.open(criu.program, os.O_RDONLY | os.O_CLOEXEC)
        self.loader = os.open(criu.loader, os.O_RDONLY | os.O_CLOEXEC)
        self.libraries = [
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in criu.libraries
        ]
        self.shim = os.memfd_create("holdfast-shim", os.MFD_CLOEXEC)
        os.write(self.shim, shim.library(os.uname().machine))
        self.pipes = list[int]()  # as large_pipes makes them
        self.opener: socket.socket | None = None  # as mapped_files.opener makes it

    def command(self, *more: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        """The file to execute, and its arguments; the descriptors become inheritable."""
        for fd in (self.program, self.loader, self.shim, *self.libraries):
            os.set_inheritable(fd, True)
        libraries = b":".join(map(_path, self.libraries))
        options = (b"--library-path", libraries, b"--argv0", b"criu", b"--preload")
        name = _path(self.loader)
        return name, (name, *options, _path(self.shim), _path(self.program), *more)


def large_pipes() -> list[int]:
    """Pipes for the memory, if this process may make large ones."""
    made = list[int]()
    for _ in range(_PIPES_MADE):
        made += (ends := os.pipe2(os.O_CLOEXEC))
        try:
            fcntl.fcntl(ends[0], _F_SETPIPE_SZ, _PIPE_BYTES)
        except PermissionError:
            for fd in made:
                os.close(fd)
            return []
    return made


def _path(fd: int) -> bytes:
    return b"/proc/self/fd/%d" % fd


class Call:
    """One request. CRIU's steps are shown to `agrees`, which may refuse a dump with a reason.

    `listener`: of the exec gate, behind which CRIU runs; its own helper programs are let pass.
    `execute` runs CRIU, by default with execve(2). `freezers`: the files `cgroup.freeze` of frozen
    groups, which are thawed while CRIU holds all processes. `terminal`: for a restore. `no_stops`:
    send no stop signals after a dump.
    """

    def __init__(
        self,
        criu: Opened,
        images: int,
        kind: int,
        options: rpc.Options,
        agrees: Callable[[str], str] = lambda step: "",
        listener: int = 0,
        execute: Execute = os.execve,
        freezers: Sequence[int] = (),
        terminal: Terminal = NO_TERMINAL,
        no_stops: bool = False,
    ) -> None:
        self.criu, self.images, self.kind = criu, images, kind
        self.options, self._agrees, self._execute = options, agrees, execute
        self.listener, self.freezers, self.terminal = listener, freezers, terminal
        self.no_stops = no_stops
        self.master = -1  # of the restored terminal
        self._refused = ""

    def run(self) -> None:
        options: rpc.Options = {
            "images_dir_fd": -1,
            "images_dir": f"/proc/self/fd/{self.images}",
            "log_file": LOGS[self.kind],
            "log_level": 2,
            "notify_scripts": True,
            "unprivileged": True,
            "file_locks": True,
            "manage_cgroups_mode": rpc.IGNORE_CGROUPS,
            "network_lock": rpc.SKIP_NETWORK_LOCK,
            "orphan_pts_master": True,
            **self.options,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._become(theirs)
        theirs.close()
        ours.send(rpc.request(self.kind, options))
        try:
            final = self._converse(ours, pid)
        finally:
            self._write_freezers(b"1")  # CRIU did so, unless it was killed
            ours.close()
        os.waitpid(pid, 0)
        if not final.success:
            raise Failed(self._refused or self._why() or final.text or "CRIU gave no reason")

    def _converse(self, line: socket.socket, pid: int) -> rpc.Message:
        """Answer notifications until the response comes, or CRIU ends.

        The end of CRIU is not the end of the line: restored processes have the socket too.
        """
        ended = os.pidfd_open(pid)
        try:
            return self._answer(line, ended)
        finally:
            os.close(ended)

    def _answer(self, line: socket.socket, ended: int) -> rpc.Message:
        poll = select.poll()
        poll.register(line, select.POLLIN)
        poll.register(ended, select.POLLIN)
        if self.listener > 0:
            poll.register(self.listener, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self.listener in ready:
                self._let_pass()
            if ended in ready:  # all that CRIU has sent is there
                line.setblocking(False)
            elif line.fileno() not in ready:
                continue
            packet, fds = b"", list[int]()
            with contextlib.suppress(BlockingIOError):
                packet, fds = received(line, 1)
            if not packet:
                raise Failed(self._why() or "CRIU ended without an answer")
            message = rpc.read(packet)
            if message.kind != rpc.NOTIFY:
                return message
            if fds:
                self.master = fds[0]
            self._refused = self._agrees(message.script)
            if message.script == "query-ext-files":  # all threads are seized
                self._write_freezers(b"0")
            with contextlib.suppress(BrokenPipeError):  # CRIU has ended, as the next look shows
                line.send(rpc.answer(not self._refused), socket.MSG_NOSIGNAL)
            if message.script == "pre-resume" and self.listener > 0:
                poll.unregister(self.listener)  # the next exec is a restored program's

    def _write_freezers(self, value: bytes) -> None:
        for fd in self.freezers:
            with contextlib.suppress(OSError):  # the group is gone with its processes
                os.pwrite(fd, value, 0)

    def _let_pass(self) -> None:
        """Let CRIU execute a helper program."""
        asked = bytearray(notification.NOTIFICATION.size)
        fcntl.ioctl(self.listener, notification.RECV, asked)
        (number,) = notification.ID.unpack_from(asked)
        reply = notification.ANSWER.pack(number, 0, 0, notification.CONTINUE)
        fcntl.ioctl(self.listener, notification.SEND, reply)

    def _why(self) -> str:
        """Return the last errors of the log; the response has the first, which is often noise."""
        try:
            fd = os.open(LOGS[self.kind], os.O_RDONLY, dir_fd=self.images)
        except OSError:
            return ""
        with open(fd, errors="replace") as f:
            errors = [line.strip() for line in f if "Error" in line]
        return "; ".join(errors[-_SHOWN_ERRORS:])

    def _become(self, line: socket.socket) -> NoReturn:
        try:
            opener = self.criu.opener.fileno() if self.criu.opener is not None else 0
            for fd in (self.images, line.fileno(), opener, *self.freezers, *self.criu.pipes):
                os.set_inheritable(fd, True)
            _pass_on_capabilities()
            path, argv = self.criu.command(b"swrk", b"%d" % line.fileno())
            more = {_FREEZERS: bytes(self.freezers), _PIPES: bytes(self.criu.pipes)}
            more[_OPENER] = b"%d" % opener
            more[b"HOLDFAST_NO_STOPS"] = b"%d" % self.no_stops
            self._execute(path, argv, {**_ENVIRONMENT, **more, **self.terminal.variables()})
        except BaseException as e:
            os.write(2, f"CRIU: {e}\n".encode())
        os._exit(127)


def received(line: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """A packet, and at most so many descriptors."""
    packet, ancillary, _, _ = line.recvmsg(PACKET_BYTES, socket.CMSG_LEN(_INT.size * most))
    return packet, [fd for _, _, data in ancillary for (fd,) in _INT.iter_unpack(data)]


def connections(own_network: bool) -> rpc.Options:
    """Keep TCP connections if both ends are saved together, in a network of the session's own.

    On the machine's network they are closed at the restore: only the machine's root may keep them.
    """
    return {"tcp_established" if own_network else "tcp_close": True}


def call(step: str, name: str, *arguments: object) -> None:
    """Call a function of libc; Failed with the step's name if it returns an error."""
    if getattr(_libc, name)(*arguments):
        raise Failed(f"{step}: {os.strerror(ctypes.get_errno())}")


def _pass_on_capabilities() -> None:
    """Keep the capabilities of the user namespace across an exec, if not uid 0.

    Without CAP_SETUID: with it, CRIU would become uid 0, which the namespace does not map.
    """
    if not os.getuid():
        return
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    call("capabilities", "capget", _CAPABILITY_HEADER, data)
    words = list(_CAPABILITIES.unpack(data.raw))
    words[0] &= ~(1 << _CAP_SETUID)
    words[1] &= ~(1 << _CAP_SETUID)
    words[2], words[5] = words[1], words[4]
    call("capabilities", "capset", _CAPABILITY_HEADER, _CAPABILITIES.pack(*words))
    for number in range(64):
        if (words[1] | words[4] << 32) >> number & 1:
            one = ctypes.c_ulong(number)
            raised = ctypes.c_ulong(_PR_CAP_AMBIENT_RAISE)
            call("capabilities", "prctl", _PR_CAP_AMBIENT, raised, one, 0, 0)
