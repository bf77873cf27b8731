"""Plain sessions of root: hf-root between the keeper and the program.

    keeper ─ hf-root ─ the program

CRIU saves a process with all processes below it. Here that process is hf-root (keeper/hf_root.c):
it adopts daemons, and leads a kernel session of its own, so that no leader is missing in the
images. The keeper takes the program for the session's root, and hf-root for the messenger of the
program's wait status. When hf-root ends with the program, the keeper adopts the orphans.

CRIU opens the file of hf-root again at a restore. So the file has a lasting path in the nursery's
directory, with the hash of its content, and files of other releases stay. If it cannot be executed
there (a mount with noexec), the session works without hf-root and cannot be saved.
"""

from __future__ import annotations

import os

from holdfast.keeper import hf_root, launch, listening

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_HASH_CHARS = 12
_MODE = 0o500


def file() -> bytes:
    """Return the path of hf-root's file, which is made if missing; empty if it cannot be run."""
    try:
        program = hf_root.program(os.uname().machine)
    except KeyError:
        return b""
    directory = f"hf-root-{hf_root.SOURCE_SHA256[:_HASH_CHARS]}"
    path = f"{directory}/hf-root"
    try:
        if not _is_whole(path, len(program)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            _write(path, program)
        allowed = not os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError:
        return b""
    return os.path.join(os.getcwdb(), path.encode()) if allowed else b""


def _is_whole(path: str, length: int) -> bool:
    try:
        return os.stat(path).st_size == length
    except OSError:
        return False


def _write(path: str, program: bytes) -> None:
    fresh = f"{path}.{os.getpid()}"
    listening.forget(fresh)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        os.write(fd, program)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, path)


def begin(cookie: int | None) -> int:
    """Return in a child, which becomes the program; this process becomes hf-root.

    Returns the pid of hf-root. If hf-root cannot be executed, this process ends, the child becomes
    the keeper's, and the result is 0. `cookie`: of the exec gate.
    """
    path = file() if os.geteuid() == 0 else b""
    if not path:
        return 0
    wait, failed = os.pipe2(os.O_CLOEXEC)
    program = os.fork()
    if program:
        _become_hf_root(path, program, cookie, failed)
    os.close(failed)
    works = not os.read(wait, 1)
    os.close(wait)
    return os.getppid() if works else 0


def _become_hf_root(path: bytes, program: int, cookie: int | None, failed: int) -> None:
    try:
        signal.alarm(0)
        os.setsid()
        os.chdir("/")
        launch.reset_signals()
        # The program may end before hf-root begins: no signal of it may end hf-root.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        os.closerange(0, failed)
        os.closerange(failed + 1, 1 << 20)
        launch.execve(path, (b"hf-root", b"%d" % program), {}, cookie)
    finally:
        os.write(failed, b"!")
        os._exit(1)
