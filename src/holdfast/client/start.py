"""Start the host when none runs.

A client that needs a host starts the host, after a crash, a kill or a reboot. A host that a person
stopped with `holdfast down` stays down until `up` or `new`; a marker in the run directory says so.
Where a service manager runs the host (the home remembers this), the client asks the manager. If the
manager does not start the host, the client does.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model.errors import HoldfastError, Impossible, Unavailable, Usage
from holdfast.model.limits import START_WAIT_S
from holdfast.transport import unix

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

SAYS = "holdfast host: "
ANOTHER_SERVES = 3  # exit code of a host that found a running host
HOST_UNIT = "holdfast-host.service"
# Time for a manager to notice that the host died. A host that we start would lock the manager's
# host out of this home.
NOTICE_S = 3.0
END_S = 5.0  # for a process to end
# For another client that starts the host. That client may be stopped before it does.
OTHER_CLIENT_S = 3.0
MANAGER_S = 20.0  # for a service manager to report success or failure


class Killed(Unavailable):
    """The host was killed while it started; the next attempt may succeed."""


def is_stopped(home: Home) -> bool:
    return os.path.exists(home.stopped)


def mark_stopped(home: Home, stopped: bool) -> None:
    try:
        if stopped:
            os.close(os.open(home.stopped, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        else:
            os.unlink(home.stopped)
    except OSError:
        pass


def start_host(home: Home, environ: dict[str, str] | None = None) -> None:
    """Start a host, detached from this process, and return when it answers.

    Of several callers, one starts a host and the others wait for it. If a second host is started
    nevertheless, only the faster host serves, and all callers succeed. If that host is killed
    before it serves, a new host is started.
    """

    def begin() -> subprocess.Popen[bytes]:
        try:
            return launch("holdfast.host.main", None, err_w, environ)
        except OSError as e:
            raise Unavailable(f"cannot start the host: {e}") from e

    homes.prepare(home)
    if _by_manager(home):
        return
    err_r, err_w = os.pipe()
    os.set_blocking(err_r, False)
    deadline = time.monotonic() + START_WAIT_S
    alone = time.monotonic() + OTHER_CLIENT_S
    pause = 0.005
    process: subprocess.Popen[bytes] | None = None
    turn = _turn_file(home)
    try:
        while time.monotonic() < deadline:
            try:
                unix.connect(home.host_socket).close()
                return
            except OSError:
                pass
            if process is None and (_is_our_turn(turn) or time.monotonic() > alone):
                process = begin()
            code = process.poll() if process is not None else None
            if code == ANOTHER_SERVES and not is_stopped(home):
                # That host waited for the other host, and so would the next.
                process = begin()
            elif code is not None and code < 0:
                raise Killed(
                    f"the host was killed by signal {-code} while it started", f"look at {home.log}"
                )
            elif code not in (None, ANOTHER_SERVES):
                raise _complaint(err_r, code, home)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
    finally:
        for fd in (err_r, err_w, turn):
            if fd is not None:
                os.close(fd)
    raise Unavailable("the host does not answer", f"look at {home.log}")


def _turn_file(home: Home) -> int | None:
    """A file whose lock the client has that starts the host. None if no file can be made."""
    try:
        return os.open(f"{home.run}/start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _is_our_turn(fd: int | None) -> bool:
    import fcntl  # late: only Unix has it

    try:
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True


def launch(
    module: str, stdout: int | None, stderr: int, environ: dict[str, str] | None
) -> subprocess.Popen[bytes]:
    """Run a module as a process that is detached from this one."""
    import subprocess  # late: the import takes as long as all other work of an attach

    from holdfast.home import cores, programs

    with cores.original_limit():
        return subprocess.Popen(
            programs.module(module),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=stderr,
            start_new_session=True,
            cwd="/",
            env=environ,
        )


def await_end(pid: int, *signals: int) -> bool:
    """Wait for the end of a process after each of these signals; False if the process goes on."""
    import select
    import signal

    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        for number in signals or (None,):
            if number is not None:
                signal.pidfd_send_signal(handle, number)
            if poll.poll(END_S * 1000):
                return True
        return False
    except OSError:
        return False
    finally:
        os.close(handle)


def _complaint(fd: int, code: int, home: Home) -> HoldfastError:
    """The error that a host printed when it could not start."""
    try:
        lines = os.read(fd, 16_000).decode("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    cls = {Usage.exit_code: Usage, Impossible.exit_code: Impossible}.get(code, Unavailable)
    said = [n for n, line in enumerate(lines) if line.startswith(SAYS)]
    if not said:
        return Unavailable(
            lines[-1] if lines else f"the host ended with {code}", f"look at {home.log}"
        )
    recover = lines[said[-1] + 1].strip() if said[-1] + 1 < len(lines) else f"look at {home.log}"
    return cls(lines[said[-1]].removeprefix(SAYS), recover)


# ---------------------------------------------------------------- a service manager


def managed(home: Home) -> str | None:
    """The manager that runs the host of this home: "user", "system" or None."""
    try:
        with open(home.service) as file:
            kind = file.read(16)
    except OSError:
        return None
    return kind if kind in ("user", "system") else None


def systemctl(kind: str, *words: str) -> list[str]:
    """A systemctl command line; works without the session's environment (cron, su)."""
    command = [
        "systemctl",
        *(("--user",) if kind == "user" else ()),
        "--no-ask-password",
        "--no-pager",
        *words,
    ]
    return (
        command if kind != "user" else ["env", f"XDG_RUNTIME_DIR=/run/user/{os.getuid()}", *command]
    )


def start_unit(kind: str, unit: str) -> bool:
    """Let the service manager start a unit; False if the manager does not."""
    import subprocess

    try:
        done = subprocess.run(
            systemctl(kind, "start", unit),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=MANAGER_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _by_manager(home: Home) -> bool:
    kind = managed(home)
    if kind is None:
        return False
    end = time.monotonic() + NOTICE_S
    while start_unit(kind, HOST_UNIT):
        try:
            unix.connect(home.host_socket).close()
            return True
        except OSError:  # the manager may not have noticed yet that the host died
            if time.monotonic() > end:
                break
        time.sleep(0.05)
    return False


def take_over(home: Home, kind: str, pids: Sequence[int]) -> None:
    """End a host and a nursery that were started by hand, so that the manager can start both.

    As after a crash, clients reconnect (now to the manager's host) and sessions go on.
    """
    import signal

    fresh = f"{home.service}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(kind)
        os.rename(fresh, home.service)
    for pid in pids:
        await_end(pid, signal.SIGKILL)


def serving(home: Home) -> dict[str, int]:
    """The pids that serve this home, from the kernel: "host" and "nursery"."""
    found: dict[str, int] = {}
    for name in ("nursery", "host"):
        with (
            contextlib.suppress(OSError),
            unix.connect(f"{home.run}/{name}.sock", blocking=False) as sock,
        ):
            found[name] = unix.peer(sock)[0]
    return found
