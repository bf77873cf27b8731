"""The relay of this installation: a separate process that `up` starts and `down` stops.

A relay that already runs in the relay's directory, started by hand or by a unit, is used and left
alone. Where a unit is installed, only the service manager starts the relay: two relays would
compete for the directory. The relay admits this machine's host by the host's route key. The host
also gets a token, for the meeting places of typed codes, which have separate keys.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

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
    from holdfast.model.jsontext import Json

UNIT = "holdfast-relay.service"
LISTENED = "listen"  # written by relay/local.py
LOG_BYTES = 4 * 1024 * 1024
SAYS = "holdfast relay: "
SETTLE_S = 5.0  # how long `up` waits for the host to register
LOOK_S = 0.05
ATTEMPTS = 3
NEEDED = ("websockets", "google.protobuf", "apsw")


class LocalRelay(NamedTuple):
    url: str
    pid: int
    release: str
    by: str  # "up", or "hand" if a person or a unit started it

    def shown(self) -> Json:
        return self._asdict()


def found(home: Home) -> LocalRelay | None:
    """The running relay; None if none runs or answers."""
    try:
        from holdfast.relay import control

        said = control.status(home.relay)
        if said is None:
            return None
        return LocalRelay(
            said["urls"]["websocket"], int(said["pid"]), str(said["release"]), str(said["by"])
        )
    except (ImportError, HoldfastError, KeyError, TypeError, ValueError):
        return None


def started(home: Home) -> bool:
    """Whether `up` ever started a relay here: that relay remembers where it listened."""
    return os.path.exists(f"{home.relay}/{LISTENED}")


# ---------------------------------------------------------------- up


class Launch:
    """A relay that is starting, in parallel with the host: each takes half a second."""

    def __init__(self, home: Home) -> None:
        self.home, self._left, self._since = home, ATTEMPTS, 0
        with contextlib.suppress(OSError):
            if os.path.getsize(home.relay_log) > LOG_BYTES:
                os.replace(home.relay_log, f"{home.relay_log}.1")
        with contextlib.suppress(OSError):
            self._since = os.path.getsize(home.relay_log)
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        environ = dict(os.environ)
        for name in ("NOTIFY_SOCKET", "HOLDFAST_PROBE"):
            environ.pop(name, None)
        try:
            log = os.open(
                self.home.relay_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                return start.launch("holdfast.relay.local", log, log, environ)
            finally:
                os.close(log)
        except OSError as e:
            raise Unavailable(
                f"cannot start it: {e}", "free disk space or make the directory writable"
            ) from e

    def ready(self) -> LocalRelay:
        """Wait until this relay, or a relay that was faster, answers."""
        end = time.monotonic() + START_WAIT_S
        while time.monotonic() < end:
            code = self._process.poll()
            if (running := found(self.home)) is not None:
                return running
            if code == Unavailable.exit_code and self._left:
                # A second relay is faster, or `relay token` holds the directory for a moment.
                self._process, self._left = self._begin(), self._left - 1
            elif code is not None:
                why = _complaint(self.home.relay_log, self._since) or f"exit code {code}"
                raise Unavailable(f"it does not start: {why}", f"look at {self.home.relay_log}")
            time.sleep(LOOK_S)
        raise Unavailable("it does not answer", f"look at {self.home.relay_log}")

    def abandon(self) -> None:
        """End the relay, because no host came up."""
        if self._process.poll() is None:
            _end(self._process.pid)


def launch(home: Home) -> Launch | None:
    """Begin a start if no decision must come first; `up` does the rest with a host."""
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


def up(connection: Link, begun: Launch | None) -> Json | None:
    """Start the relay if wanted and missing, and let the host register.

    Returns the outcome for `up` to print, or None if no relay is wanted. Never raises: the host is
    up in any case.
    """
    home = connection.home
    told: Json = dict.fromkeys(LocalRelay._fields) | {"started": False, "state": "none", "why": ""}
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


def begin(home: Home) -> tuple[LocalRelay, bool]:
    """The running relay, and whether this call started the relay."""
    running = found(home)
    if running is not None and (running.release == __version__ or running.by != "up"):
        return running, False
    if lacking := missing():
        raise Impossible(
            f"a relay needs {lacking}, which is not installed",
            "install holdfast with all its dependencies",
        )
    if running is not None:
        _end(running.pid)  # of a different release; the clients reconnect by themselves
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
    """The last error in the log of a relay that could not start."""
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


def _register(connection: Link, running: LocalRelay, started: bool) -> Json:
    """Let the host of this home dial the relay. The caller of `up` may lack the right for that."""
    from holdfast.relay import admin, control

    home = connection.home
    try:
        line = _line(connection, running.url)
    except NotAllowed as e:
        return {"state": "unknown", "why": e.message}
    if started or line is None or line["state"] == "refused":
        key = signing.public(keys.route_key(keys.load_machine(home), address.name(running.url)))
        control.ask(home.relay, {"act": "admit", "key": signing.show(key), "tenant": admin.TENANT})
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
    if line is None:
        return {"state": "none", "why": "the host does not dial it"}
    why = line["detail"] if line["state"] != "registered" else ""
    return {"state": line["state"], "why": why}


def _token(home: Home) -> str:
    """The token for the host's meeting places: a present token if the relay accepts that."""
    from holdfast.relay import admin, control

    kept = next((one.token for one in relays.listing(home) if one.own), None)
    if kept is not None:
        digest = admin.digest(kept).hex()
        if any(
            one["state"] == "valid" and digest.startswith(one["id"])
            for one in control.ask(home.relay, {"act": "token.ls"})
        ):
            return kept
    token, hash = admin.make()
    control.ask(
        home.relay,
        {"act": "token.new", "digest": hash.hex(), "tenant": admin.TENANT, "expires": None},
    )
    return token


def _line(connection: Link, url: str) -> Json | None:
    return next((one for one in connection.request("relays")["relays"] if one["url"] == url), None)


def _off(connection: Link) -> None:
    """End a relay that `up` started before the configuration turned the relay off."""
    home = connection.home
    if any(one.own for one in relays.listing(home)) and relays.keep_own(home, None):
        connection.request("relays.changed")
    down(home)


# ---------------------------------------------------------------- down


def down(home: Home) -> tuple[LocalRelay | None, bool]:
    """End a relay that `up` started. Returns the relay that ran, and whether that relay ended."""
    running = found(home)
    if running is None or running.by != "up":
        return running, False
    return running, _end(running.pid)


def _end(pid: int) -> bool:
    """Ask the relay to end; the relay then tells all clients."""
    import signal

    return start.await_end(pid, signal.SIGTERM, signal.SIGKILL)


# ---------------------------------------------------------------- a service manager


def _managed(home: Home) -> bool:
    """Whether a unit of this account runs the relay of this home."""
    return os.path.exists(f"{home.relay}/service")


def mark_managed(home: Home, managed: bool) -> None:
    """Set by `service install --relay` and `uninstall`."""
    with contextlib.suppress(OSError):
        if managed:
            os.makedirs(home.relay, mode=0o700, exist_ok=True)
            os.close(
                os.open(f"{home.relay}/service", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
        else:
            os.unlink(f"{home.relay}/service")


def _by_manager(home: Home) -> LocalRelay:
    start.start_unit("user", UNIT)
    running = found(home)
    if running is None:
        raise Unavailable(
            f"its unit {UNIT} does not run",
            f"`systemctl --user status {UNIT}`; `holdfast service uninstall --relay` removes it",
        )
    return running
