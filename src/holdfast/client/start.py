"""Starting the host when there is none.

A host that died (killed, crashed, machine rebooted) is started again by whoever needs it. One that a person stopped with
`holdfast down` stays down until `up` or `new`: a marker in the run directory says so. Where a service manager runs the host (the home remembers),
it is asked to; if it does not, a host is started as anywhere else.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model.errors import HoldfastError, Impossible, Unavailable, Usage
from holdfast.model.limits import START_WAIT_S
from holdfast.transport import unix

SAYS = "holdfast host: "
OTHER_QUICKER = 3  # exit code of a host that found another one in charge
HOST_UNIT = "holdfast-host.service"
NOTICE_S = (
    3.0  # for it to notice that its host died. A host of ours would keep its own from the home
)
MANAGER_S = 20.0  # for a service manager to say that the host is there, or that it will not be


class Killed(Unavailable):
    """The host was killed while it started: not its fault, and the next one may have better luck."""


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
    """Starts a host apart from this process and returns when it answers. Two callers at once: one host wins, both succeed. If
    that one is killed before it serves, there is another."""
    import subprocess  # only here: it takes as long to import as an attach has for everything else

    from holdfast.home import cores

    def begin() -> subprocess.Popen[bytes]:
        try:
            with cores.as_before():
                return subprocess.Popen(
                    [sys.executable, "-m", "holdfast.host.main"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=err_w,
                    start_new_session=True,
                    cwd="/",
                    env=environ,
                )
        except OSError as e:
            raise Unavailable(f"cannot start the host: {e}") from e

    homes.prepare(home)
    if _by_manager(home):
        return
    err_r, err_w = os.pipe()
    os.set_blocking(err_r, False)
    deadline = time.monotonic() + START_WAIT_S
    pause = 0.005
    try:
        process = begin()
        while time.monotonic() < deadline:
            try:
                unix.connect(home.host_socket).close()
                return
            except OSError:
                pass
            code = process.poll()
            if code == OTHER_QUICKER and not is_stopped(
                home
            ):  # it waited for that one, and so would the next
                process = begin()
            elif code is not None and code < 0:
                raise Killed(
                    f"the host was ended by signal {-code} while it started", f"look at {home.log}"
                )
            elif code not in (None, OTHER_QUICKER):
                raise _complaint(err_r, code, home)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
    finally:
        os.close(err_r)
        os.close(err_w)
    raise Unavailable("the host does not answer", f"look at {home.log}")


def _complaint(fd: int, code: int, home: Home) -> HoldfastError:
    """What a host that could not start said: the error it ended with, as if it were ours."""
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
    """Which manager runs the host of this home: "user", "system", or none."""
    try:
        with open(home.service) as file:
            kind = file.read(16)
    except OSError:
        return None
    return kind if kind in ("user", "system") else None


def systemctl(kind: str, *words: str) -> list[str]:
    """A command line; also for who came by a way that does not say where its manager is (cron, su)."""
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


def _by_manager(home: Home) -> bool:
    kind = managed(home)
    if kind is None:
        return False
    import subprocess

    end = time.monotonic() + NOTICE_S
    while True:
        try:
            subprocess.run(
                systemctl(kind, "start", HOST_UNIT),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MANAGER_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        try:
            unix.connect(home.host_socket).close()
            return True
        except OSError:  # it may not have noticed yet that its host died, and says that all is well
            if time.monotonic() > end:
                return False
        time.sleep(0.05)


def take_over(home: Home, kind: str, pids: Sequence[int]) -> None:
    """Ends a host and a nursery that were started by hand, so that a manager can start its own. As after a crash, clients come
    back by themselves (now by the manager) and sessions go on."""
    import signal

    fresh = f"{home.service}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(kind)
        os.rename(fresh, home.service)
    for pid in pids:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _wait_end(handle)


def serving(home: Home) -> dict[str, int]:
    """Who answers for this home, by the kernel's word: "host" and "nursery"."""
    found: dict[str, int] = {}
    for name in ("nursery", "host"):
        with (
            contextlib.suppress(OSError),
            unix.connect(f"{home.run}/{name}.sock", blocking=False) as sock,
        ):
            found[name] = unix.peer(sock)[0]
    return found


def _wait_end(handle: int) -> None:
    import select

    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(5000)
    finally:
        os.close(handle)
