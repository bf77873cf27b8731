"""Restores a checkpoint as the program of a new keeper. Loaded by the launcher only.

    keeper ─ launcher (ends) ─ init, process 1 inside ─ hf-root, process 2 ─ the program, process 3

The launcher makes the namespaces and the file tree as for a new session (keeper/contain.py) and
starts init. A child of init starts CRIU, which restores hf-root with its tree and the terminal.
When that child ends, init adopts hf-root. From then on there is no difference to a session that
was never saved: init sends the keeper the wait status, obeys halts, and ends with the keeper.

The exec gate. The images have lost the session's filter. The child installs a new one before CRIU,
and the restored processes inherit it. CRIU's own helper programs are let pass.

A plain session of root (keeper/plain.py) has no init. The launcher itself starts CRIU, in the
machine's namespaces:

    keeper ─ launcher (ends) ─ hf-root ─ the program

Its processes get the numbers that they had. Its terminal gets its former number among the machine's
terminals if that is free; else its name is another one. The launcher makes the terminal, because
CRIU would only look for the former number.

The images are edited in their directory, which is the caller's copy.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import fcntl
import os
import struct
from pathlib import Path

from holdfast.checkpointer import images, memory, rpc
from holdfast.checkpointer.criu import HF_ROOT, PROGRAM, Call, Opened, connections
from holdfast.keeper import contain, file_tree, launch, outside, plain, terminal
from holdfast.keeper import install_filter as install_filter  # the tree hides its file later
from holdfast.wire import checkpointing
from holdfast.wire.spawning import INIT_NAME, NET_HOST, Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from typing import NoReturn
else:
    import _signal as signal

_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_MARGIN = 1000  # more than the processes that begin on the machine during a restore
_TIOCGPTN = 0x8004_5430
_NEAR = 32  # CRIU tries as many masters, and gives up where numbers differ by more
_LOOKED_FOR = 200  # terminals opened to reach a number; descriptors are given to CRIU as bytes
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
        self.top = images.top(directory)
        self.terminal = images.terminal(directory)._replace(root=self.top)
        self.directory = directory
        self.halted = Halted(directory, 0 if request.containment is not None else self.top)
        self.replaced = os.open(
            directory / checkpointing.REPLACED_FILE,
            os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
        )


class Halted:
    """Which processes begin stopped.

    Each thread gets a signal of its own while CRIU still holds all threads. So none of them runs an
    instruction. hf-root of a plain session (`spared`) goes on.
    """

    def __init__(self, directory: Path, spared: int) -> None:
        try:
            said = checkpointing.read_halted((directory / checkpointing.HALTED_FILE).read_bytes())
        except FileNotFoundError:
            said = checkpointing.Halted()
        self._threads = images.tasks(directory)
        meant = {*self._threads} - {spared} if said.all else {*said.stopped}
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


@contextlib.contextmanager
def start_plain(saved: Saved, request: Spawn) -> Iterator[Restored]:
    """Restore a plain session as children of this process, which the keeper adopts later.

    An error in the body ends them again.
    """
    if os.geteuid():
        raise launch.CannotStart(0, "only root can restore a plain session")
    plain.file()  # CRIU opens it
    _spare_numbers(saved)
    launch.reset_signals()
    master = _renumber_terminals(saved)
    terminal.be_subreaper(1)
    with _criu(saved, request) as (call, listener):
        if call.master >= 0:
            os.close(master)  # CRIU returned the same
            master = call.master
        yield Restored(saved.terminal.program, master, listener, ())


def _end_all() -> None:
    """Leave no process of a failed restore, not even a dead one: it would keep its number."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in terminal.descendants(os.getpid()):
                terminal.send_signal(pid, 0, signal.SIGKILL)
            os.waitpid(-1, 0)


def _spare_numbers(saved: Saved) -> None:
    """Let processes that begin now not take the number of a process in the images.

    In a container /proc/sys can be read-only. CRIU asks the kernel for each number in any case.
    """
    with contextlib.suppress(OSError), open(_LAST_PID, "rb+", buffering=0) as file:
        last = int(file.read(20))
        if saved.top - _MARGIN <= last < saved.highest_pid:
            os.pwrite(file.fileno(), b"%d" % saved.highest_pid, 0)


def _renumber_terminals(saved: Saved) -> int:
    """Make the session's terminals, with their former numbers if these are free.

    Returns the master of the program's.
    """
    found = saved.terminal
    wanted = {found.number, *images.terminals(saved.directory)}
    fresh, masters = _new_terminals(wanted)
    images.renumber_terminals(saved.directory, fresh)
    own = fresh[found.number]
    saved.terminal = found._replace(
        number=own,
        starter=os.getpid(),
        master=masters[own],
        masters=bytes(masters[number] for number in sorted(masters)),
    )
    return masters[own]


def _new_terminals(wanted: set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Open as many new terminals, with these numbers as far as they are free and close together.

    Returns their numbers by the wanted ones, and their masters by number. The kernel gives the
    lowest free number, so that all lower ones are taken for a moment.
    """
    if len(wanted) > _NEAR:
        raise launch.CannotStart(0, f"the session has more than {_NEAR} terminals")
    near = max(wanted) - min(wanted) < _NEAR
    opened = dict[int, int]()
    try:
        while len(opened) < len(wanted) or (
            near and max(opened) < max(wanted) and len(opened) < _LOOKED_FOR
        ):
            try:
                master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            except OSError:  # a limit of terminals or descriptors
                if len(opened) < len(wanted):
                    raise
                break
            opened[struct.unpack("I", fcntl.ioctl(master, _TIOCGPTN, bytes(4)))[0]] = master
        kept = wanted & opened.keys() if near else set[int]()
        others = sorted(opened.keys() - kept, key=lambda number: abs(number - max(wanted)))
        fresh = {number: number for number in kept}
        fresh |= dict(zip(sorted(wanted - kept), others, strict=False))
        masters = {number: opened.pop(number) for number in fresh.values()}
        return fresh, masters
    finally:
        for fd in opened.values():
            os.close(fd)


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
    with _criu(saved, request) as (call, listener):
        pass
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


@contextlib.contextmanager
def _criu(saved: Saved, request: Spawn) -> Iterator[tuple[Call, int]]:
    """Put files back and run CRIU; yields the finished call and the exec gate's listener.

    If that fails, or the body, the processes of a plain session end and the files change back.
    Those of a contained session end with init.
    """
    with (
        open(os.open(checkpointing.WRITTEN_FILE, os.O_RDONLY, dir_fd=saved.images), "rb") as f,
        open(saved.replaced, "w+b") as replaced,
    ):
        made = memory.put_back(f, replaced)
        try:
            yield _run(saved, request)
        except BaseException:
            if request.containment is None:
                _end_all()
            memory.take_back(replaced, made)
            raise


def _run(saved: Saved, request: Spawn) -> tuple[Call, int]:
    containment = request.containment
    listener, cookie = launch.gated(request.gate, contained=containment is not None)
    options: rpc.Options = {
        "rst_sibling": True,
        **connections(containment is not None and containment.net != NET_HOST),
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
    return call, listener
