"""The relay of this installation: started by `up`, stopped by `down`, a process of its own that outlives both and the terminal they ran in.

What `up` finds running in the relay's directory, started by hand or by a unit, it uses and leaves alone; so does `down`. Where a unit is installed, the service manager is asked
to start it, and nothing else is: two of them would fight for the directory. This machine's host is let in by its route key; the token that it
gets besides is for the places where it waits for whoever has a typed code, which have keys of their own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import __version__
from holdfast import home as homes
from holdfast.client import start
from holdfast.home import config, keys, relays
from holdfast.model import address, signing
from holdfast.model.errors import HoldfastError, Impossible, NotAllowed, Unavailable
from holdfast.model.limits import START_WAIT_S

if TYPE_CHECKING:
    import subprocess

    from holdfast.client.link import Link
    from holdfast.home import Home

UNIT = "holdfast-relay.service"
LOG_BYTES = 4 * 1024 * 1024
SAYS = "holdfast relay: "
SETTLE_S = 5.0  # that `up` waits for the host to be registered
STOP_S = 5.0
LOOK_S = 0.05
ATTEMPTS = 3
NEEDED = ("websockets", "google.protobuf", "apsw")


class Nearby(NamedTuple):
    url: str
    pid: int
    release: str
    by: str  # up, or hand: somebody else's doing

    def shown(self) -> dict[str, Any]:
        return self._asdict()


def found(home: Home) -> Nearby | None:
    """The one that runs; None if none does, or none that can be asked."""
    try:
        from holdfast.relay import control

        said = control.status(home.relay)
        return (
            None
            if said is None
            else Nearby(
                said["urls"]["websocket"], int(said["pid"]), str(said["release"]), str(said["by"])
            )
        )
    except (ImportError, HoldfastError, KeyError, TypeError, ValueError):
        return None


# ---------------------------------------------------------------- up


class Launch:
    """One on its way. Begun beside the host, for each takes its half second."""

    def __init__(self, home: Home) -> None:
        self.home, self._left, self._since = home, ATTEMPTS, 0
        with contextlib.suppress(OSError):
            if os.path.getsize(home.relay_log) > LOG_BYTES:
                os.replace(home.relay_log, f"{home.relay_log}.1")
        with contextlib.suppress(OSError):
            self._since = os.path.getsize(home.relay_log)
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        import subprocess

        from holdfast.home import cores

        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NOTIFY_SOCKET", "HOLDFAST_PROBE")
        }
        try:
            log = os.open(
                self.home.relay_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                with cores.as_before():
                    return subprocess.Popen(
                        [sys.executable, "-m", "holdfast.relay.own"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        cwd="/",
                        env=environ,
                    )
            finally:
                os.close(log)
        except OSError as e:
            raise Unavailable(
                f"cannot start it: {e}", "free disk space or make the directory writable"
            ) from e

    def ready(self) -> Nearby:
        """Waits until it, or one that was quicker, answers."""
        end = time.monotonic() + START_WAIT_S
        while time.monotonic() < end:
            code = self._process.poll()
            if (running := found(self.home)) is not None:
                return running
            if (
                code == Unavailable.exit_code and self._left
            ):  # another one is quicker, or `relay token` has the directory for a moment
                self._process, self._left = self._begin(), self._left - 1
            elif code is not None:
                raise Unavailable(
                    f"it does not start: {_complaint(self.home.relay_log, self._since) or f'exit code {code}'}",
                    f"look at {self.home.relay_log}",
                )
            time.sleep(LOOK_S)
        raise Unavailable("it does not answer", f"look at {self.home.relay_log}")

    def abandon(self) -> None:
        """There is no host for it after all."""
        if self._process.poll() is None:
            _end(self._process.pid)


def launch(home: Home) -> Launch | None:
    """Begins it, if that is all there is to do. Whatever else is to be said or done is for `up`, once there is a host."""
    try:
        if (
            not config.value(home, "relay.start")
            or missing()
            or _managed(home)
            or found(home) is not None
        ):
            return None
        homes.prepare(home)
        return Launch(home)
    except HoldfastError:
        return None


def up(connection: Link, begun: Launch | None) -> dict[str, Any] | None:
    """Starts it if it is wanted and not there, and has the host register. What it came to, for `up` to tell; None if there is to be none. Never an error: the host is
    up all the same."""
    home = connection.home
    told: dict[str, Any] = {
        "url": None,
        "pid": None,
        "release": None,
        "by": None,
        "started": False,
        "state": "none",
        "why": "",
    }
    try:
        if not config.value(home, "relay.start"):
            _off(connection)
            return None
        running, told["started"] = begin(home) if begun is None else (begun.ready(), True)
        told |= running.shown()
        told |= _register(connection, running, told["started"])
    except HoldfastError as e:
        told["why"] = e.message
    return told


def begin(home: Home) -> tuple[Nearby, bool]:
    """The one that runs, and whether it had to be started."""
    running = found(home)
    if running is not None and (running.release == __version__ or running.by != "up"):
        return running, False
    if lacking := missing():
        raise Impossible(
            f"a relay needs {lacking}, which is not installed", "install holdfast with all it needs"
        )
    if running is not None:
        _end(running.pid)  # of another release; who is connected comes back by itself
    return (_by_manager(home) if _managed(home) else Launch(home).ready()), True


def missing() -> str:
    from importlib.util import find_spec

    for name in NEEDED:
        try:
            if find_spec(name) is None:
                return name
        except (ImportError, ValueError):
            return name
    return ""


def _complaint(path: str, since: int) -> str:
    """What one that could not start said last."""
    try:
        with open(path, errors="replace") as file:
            file.seek(since)
            lines = file.read(65536).splitlines()
    except OSError:
        return ""
    said = [line.removeprefix(SAYS) for line in lines if line.startswith(SAYS)]
    return (
        said[-1] if said else next((line.strip() for line in reversed(lines) if line.strip()), "")
    )


def _register(connection: Link, running: Nearby, started: bool) -> dict[str, Any]:
    """The host of this home dials it. Who runs `up` may not be somebody who may change that."""
    from holdfast.relay import control, office

    home = connection.home
    try:
        line = _line(connection, running.url)
    except NotAllowed as e:
        return {"state": "unknown", "why": e.message}
    if started or line is None or line["state"] == "refused":
        key = signing.public(keys.route_key(keys.load_machine(home), address.name(running.url)))
        control.ask(home.relay, {"act": "admit", "key": signing.show(key), "tenant": office.TENANT})
    if (
        relays.keep_own(home, running.url, _token(home))
        or line is None
        or line["state"] != "registered"
    ):
        connection.request("relays.changed")
    end = time.monotonic() + SETTLE_S
    while (
        (line := _line(connection, running.url)) is not None
        and line["state"] == "connecting"
        and time.monotonic() < end
    ):
        time.sleep(LOOK_S)
    return (
        {"state": "none", "why": "the host does not dial it"}
        if line is None
        else {
            "state": line["state"],
            "why": line["detail"] if line["state"] != "registered" else "",
        }
    )


def _token(home: Home) -> str:
    """What admits the host's meeting places: the one it has, if it counts there."""
    from holdfast.relay import control, office

    kept = next((one.token for one in relays.listing(home) if one.own), None)
    if kept is not None:
        digest = office.digest(kept).hex()
        if any(
            one["state"] == "valid" and digest.startswith(one["id"])
            for one in control.ask(home.relay, {"act": "token.ls"})
        ):
            return kept
    token, hash = office.make()
    control.ask(
        home.relay,
        {"act": "token.new", "digest": hash.hex(), "tenant": office.TENANT, "expires": None},
    )
    return token


def _line(connection: Link, url: str) -> dict[str, Any] | None:
    return next((one for one in connection.request("relays")["relays"] if one["url"] == url), None)


def _off(connection: Link) -> None:
    """Turned off in the configuration: what was begun before ends."""
    home = connection.home
    if any(one.own for one in relays.listing(home)) and relays.keep_own(home, None):
        connection.request("relays.changed")
    down(home)


# ---------------------------------------------------------------- down


def down(home: Home) -> tuple[Nearby | None, bool]:
    """Ends it, if `up` began it. What ran, and whether it was ended."""
    running = found(home)
    if running is None or running.by != "up":
        return running, False
    return running, _end(running.pid)


def _end(pid: int) -> bool:
    """By its word: it tells whoever is connected."""
    import select
    import signal

    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if poll.poll(STOP_S * 1000):
            return True
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return bool(poll.poll(STOP_S * 1000))
    except OSError:
        return False
    finally:
        os.close(handle)


# ---------------------------------------------------------------- a service manager


def _managed(home: Home) -> bool:
    """Whether a unit of this account runs the relay of this home."""
    return os.path.exists(f"{home.relay}/service")


def mark_managed(home: Home, managed: bool) -> None:
    """Said by `service install --relay` and `uninstall`."""
    with contextlib.suppress(OSError):
        if managed:
            os.makedirs(home.relay, mode=0o700, exist_ok=True)
            os.close(
                os.open(f"{home.relay}/service", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
        else:
            os.unlink(f"{home.relay}/service")


def _by_manager(home: Home) -> Nearby:
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            start.systemctl("user", "start", UNIT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=start.MANAGER_S,
            check=False,
        )
    running = found(home)
    if running is None:
        raise Unavailable(
            f"its unit {UNIT} does not run",
            f"`systemctl --user status {UNIT}`; `holdfast service uninstall --relay` if it is not wanted any more",
        )
    return running
