"""Programs and devices of this machine that connect a session's own network."""

from __future__ import annotations

import os

from holdfast.core.containment import network
from holdfast.core.containment.network import Program
from holdfast.model.errors import Impossible

RESOLV_CONF = "/etc/resolv.conf"
WHY_CHARS = 160
ROUTES_CHARS = 1 << 20


def installed() -> list[Program]:
    """The programs in directories that belong to the system, best first."""
    found = []
    for name in network.PROGRAMS:
        places = (f"{directory}/{name}" for directory in network.DIRECTORIES)
        if path := next((p for p in places if os.access(p, os.X_OK)), ""):
            found.append(Program(name, path))
    return found


def no_device() -> tuple[str, str]:
    """The reason why this account cannot make a tap device, and the remedy; empty if it can."""
    if not os.path.exists(network.TUN):
        return (
            f"there is no {network.TUN}",
            f"`modprobe tun`; a container needs `--device {network.TUN}`",
        )
    if not os.access(network.TUN, os.R_OK | os.W_OK):
        mode = os.stat(network.TUN).st_mode & 0o777
        return (
            f"this account may not open {network.TUN} (mode {mode:04o})",
            f"`chmod 0666 {network.TUN}` as root, the mode that udev gives it",
        )
    return "", ""


def check(programs: list[Program], publish: tuple[int, ...] = ()) -> None:
    """Refuse a network of its own that cannot be connected here."""
    if not programs:
        raise Impossible(
            "a network of its own needs a program that connects it, and none is installed",
            f"install the package {network.PACKAGES}, or choose --net host or --net none",
        )
    if publish and network.PASTA not in {program.name for program in programs}:
        raise Impossible(
            "--publish needs pasta, which is not installed",
            "install the package passt, or leave out --publish",
        )
    why, remedy = no_device()
    if why:
        raise Impossible(
            f"a network of its own cannot be connected: {why}",
            f"{remedy}; or choose --net host or --net none",
        )


def usable() -> bool:
    return bool(installed()) and not no_device()[0]


def advice() -> str:
    """A sentence for sessions that got the machine's network because no connector is usable."""
    remedy = no_device()[1] if installed() else "install passt"
    return f"servers on the machine's loopback are within reach ({remedy} for a network of its own)"


def sharing(why: str) -> str:
    """A sentence for sessions that got the machine's network because no connector started."""
    said = "".join(c if c.isprintable() else " " for c in why)[:WHY_CHARS]
    return f"servers on the machine's loopback are within reach (no network of its own: {said})"


def routed() -> bool:
    """Tell whether this machine has a default route, without which old versions of pasta end."""
    return network.has_default_route(_table("route"), _table("ipv6_route"))


def _table(name: str) -> str:
    try:
        with open(f"/proc/net/{name}", errors="replace") as file:
            return file.read(ROUTES_CHARS)
    except OSError:
        return ""


def resolver(directory: str) -> list[tuple[str, str]]:
    """Write the session's resolv.conf; return the path inside and the file, or nothing."""
    target = os.path.realpath(RESOLV_CONF)
    try:
        with open(target, errors="replace") as file:
            machine = file.read(network.RESOLV_CONF_BYTES)
    except OSError:
        return []
    source = f"{directory}/resolv.conf"
    with open(source, "w") as file:
        file.write(network.resolv_conf(machine))
    os.chmod(source, 0o644)
    return [(target, source)]
