"""Restores a checkpoint as the program of a new keeper. Loaded by the launcher only.

    keeper ─ launcher (ends) ─ init, process 1 inside ─ hf-root, process 2 ─ the program, process 3

The launcher makes the namespaces and the file tree as for a new session (keeper/contain.py) and
starts init. A child of init starts CRIU, which restores hf-root with its tree and the terminal.
When that child ends, init adopts hf-root. From then on there is no difference to a session that
was never saved: init sends the keeper the wait status, obeys halts, and ends with the keeper.

The exec gate. The images have lost the session's filter. The child installs a new one before CRIU,
and the restored processes inherit it. CRIU's own helper programs are let pass.

The images are edited in their directory, which is the caller's copy.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import os
import struct
from pathlib import Path

from holdfast.checkpointer import images, memory, rpc
from holdfast.checkpointer.criu import HF_ROOT, PROGRAM, Call, Opened, connections
from holdfast.keeper import contain, file_tree, launch, outside, terminal
from holdfast.keeper import install_filter as install_filter  # the tree hides its file later
from holdfast.wire import checkpointing
from holdfast.wire.spawning import INIT_NAME, NET_HOST, Containment, Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_PR_SET_DUMPABLE = 4
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
_CREDENTIALS = struct.Struct("3i")
_SAID_BYTES = 2000


class Saved:
    """A checkpoint to restore, opened while the machine's files can be named."""

    def __init__(self, request: Spawn) -> None:
        self.images = os.open(request.thaw, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        program, loader, *libraries = map(os.fsdecode, request.criu)
        self.criu = Opened(checkpointing.Criu(program, loader, tuple(libraries)))
        directory = Path(os.fsdecode(request.thaw))
        self.output = (directory / checkpointing.OUTPUT_FILE).read_bytes()
        images.prepare(directory)
        self.highest_pid = images.highest_pid(directory)
        self.terminal = images.terminal(directory, PROGRAM)
        self.halted = Halted(directory)
        self.replaced = os.open(
            directory / checkpointing.REPLACED_FILE,
            os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
        )


class Halted:
    """Which processes begin stopped.

    Each thread gets a signal of its own while CRIU still holds all threads. So none of them runs an
    instruction.
    """

    def __init__(self, directory: Path) -> None:
        try:
            said = checkpointing.read_halted((directory / checkpointing.HALTED_FILE).read_bytes())
        except FileNotFoundError:
            said = checkpointing.Halted()
        self._threads = images.tasks(directory)
        meant = {*self._threads} if said.all else {*said.stopped}
        self._marked = meant & {*images.stopped(directory)}  # CRIU stops these
        self._stopped = meant - self._marked
        self._marks = said.marks

    def agrees(self, step: str) -> str:
        if step == "pre-resume":
            libc = ctypes.CDLL(None)
            for pid in self._stopped:
                for thread in self._threads.get(pid, []):
                    libc.tgkill(pid, thread, int(signal.SIGSTOP))
            for pid in self._marked:
                if mark := next((n for n in self._marks if not _ignores(pid, n)), 0):
                    libc.kill(pid, mark)
        return ""


def _ignores(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as f:
        ignored = next(line for line in f if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


class Restored:
    """The launcher's handle on the restored processes, as contain.Program."""

    def __init__(self, pid: int, master: int, listener: int, held: tuple[int, ...]) -> None:
        self.pid, self.master, self.listener, self.held = pid, master, listener, held


def start(saved: Saved, request: Spawn, root: int, proc: int) -> tuple[Restored, int]:
    """Restore the session below a new init; return its program and the socket to init."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _SO_PASSCRED, 1)
    keeper, init = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        keeper.close()
        _begin_init(theirs, init, root, saved, request)
    theirs.close()
    init.close()
    held = contain.hold(pid, proc)
    space = _socket.CMSG_SPACE(_CREDENTIALS.size) + _socket.CMSG_SPACE(8)
    said, ancillary, _, _ = ours.recvmsg(_SAID_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
    program, given = 0, list[int]()
    for _, kind, data in ancillary:
        if kind == _socket.SCM_RIGHTS:
            given += struct.unpack(f"{len(data) // 4}i", data)
        elif kind == _SCM_CREDENTIALS:
            program = _CREDENTIALS.unpack(data)[0]
    if said != b"+":
        raise launch.CannotStart(0, said.decode("utf-8", "replace") or "init died")
    master, *listener = given
    return Restored(program, master, listener[0] if listener else 0, held), keeper.detach()


def _begin_init(
    line: _socket.socket, keeper: _socket.socket, root: int, saved: Saved, request: Spawn
) -> NoReturn:
    """Become process 1, with a child that restores the others; as contain._begin_inside."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        signal.alarm(0)
        step = "an init out of reach"
        file_tree.call(step, "prctl", _PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)
        os.setsid()
        terminal.set_title(INIT_NAME)
        contain.own_priority(contain.PRIORITY)
        # CRIU and its helpers must not get the number of a process in the image. The kernel
        # applies this to the writer's pid namespace, whichever /proc it is.
        fd = os.open(_LAST_PID, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"%d" % saved.highest_pid)
        os.close(fd)
        file_tree.enter(root)
        signal.pthread_sigmask(signal.SIG_SETMASK, contain.AWAITED)
        if os.fork():
            contain.serve(HF_ROOT, keeper)
        keeper.close()
        contain.own_priority(before)
        launch.reset_signals()
        _restore(line, saved, request)
        os._exit(0)
    except BaseException as e:
        line.send(f"{e}".encode()[:_SAID_BYTES] or b"?")
        os._exit(1)


def _restore(line: _socket.socket, saved: Saved, request: Spawn) -> None:
    """Restore hf-root and its tree as children of this process; init adopts them afterwards."""
    containment = request.containment
    assert containment is not None
    with open(os.open(checkpointing.MEMORY_FILE, os.O_RDONLY, dir_fd=saved.images), "rb") as f:
        memory.unpack(f)
    with (
        open(os.open(checkpointing.WRITTEN_FILE, os.O_RDONLY, dir_fd=saved.images), "rb") as f,
        open(saved.replaced, "w+b") as replaced,
    ):
        made = memory.put_back(f, replaced)
        try:
            _run(line, saved, request, containment)
        except BaseException:
            memory.take_back(replaced, made)
            raise


def _run(line: _socket.socket, saved: Saved, request: Spawn, containment: Containment) -> None:
    listener, cookie = launch.gated(request.gate, contained=True)
    options: rpc.Options = {
        "rst_sibling": True,
        **connections(containment.net != NET_HOST),
    }
    call = Call(
        saved.criu,
        saved.images,
        rpc.RESTORE,
        options,
        saved.halted.agrees,
        listener,
        execute=lambda path, argv, environ: launch.execve(path, argv, environ, cookie),
        terminal=saved.terminal,
    )
    call.run()
    if containment.net != NET_HOST:
        with contextlib.suppress(OSError):  # a kernel without that leaves them as they are
            outside.close_connections()
    # The kernel translates the program's number for the receiver.
    credentials = _CREDENTIALS.pack(PROGRAM, os.getuid(), os.getgid())
    given = [call.master, *([listener] if listener > 0 else [])]
    line.sendmsg(
        [b"+"],
        [
            (_socket.SOL_SOCKET, _SCM_CREDENTIALS, credentials),
            (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(given)}i", *given)),
        ],
    )
