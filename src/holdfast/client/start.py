"""Starting the host when there is none.

A host that died (killed, crashed, machine rebooted) is started again by whoever needs it. One that a person stopped with
`holdfast down` stays down until `up` or `new`: a marker in the run directory says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model.errors import Unavailable
from holdfast.model.limits import CONNECT_WAIT_S
from holdfast.transport import unix


def stopped_marker(home: Home) -> str:
    return f"{home.run}/stopped"


def is_stopped(home: Home) -> bool:
    return os.path.exists(stopped_marker(home))


def mark_stopped(home: Home, stopped: bool) -> None:
    try:
        if stopped:
            os.close(os.open(stopped_marker(home), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        else:
            os.unlink(stopped_marker(home))
    except OSError:
        pass


def start_host(home: Home, environ: dict[str, str] | None = None) -> None:
    """Starts a host apart from this process and returns when it answers. Two callers at once: one host wins, both succeed."""
    homes.prepare(home)
    err_r, err_w = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-m", "holdfast.host.main"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=err_w, start_new_session=True, cwd="/", env=environ)
    except OSError as e:
        os.close(err_r)
        raise Unavailable(f"cannot start the host: {e}") from e
    finally:
        os.close(err_w)
    os.set_blocking(err_r, False)
    deadline = time.monotonic() + CONNECT_WAIT_S
    pause = 0.005
    try:
        while time.monotonic() < deadline:
            try:
                unix.connect(home.host_socket).close()
                return
            except OSError:
                pass
            code = process.poll()
            if code is not None and code != 3:       # 3: another host was quicker
                raise Unavailable(_complaint(err_r) or f"the host ended with {code}", f"look at {home.log}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
    finally:
        os.close(err_r)
    raise Unavailable("the host does not answer", f"look at {home.log}")


def _complaint(fd: int) -> str:
    try:
        text = os.read(fd, 4000).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-2 if len(text.splitlines()) > 1 and text.splitlines()[-1].startswith("  ") else -1] if text else ""
