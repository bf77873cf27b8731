"""Doors: servers and devices of the machine that a human opens to a contained session by name.

A session gets the sockets that exist when the session starts. A socket that is made again later, by
a new login or a restarted server, is not inside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from holdfast.core.containment.entries import Entry, Files, Kind, shares
from holdfast.model.contained import SSH_AGENT
from holdfast.model.errors import Refused

DOCKER_WARNING: Final = (
    "docker's socket is open inside: code there can mount and change every file of this machine, "
    "so this session has no wall"
)
_DOCKER: Final = "/run/docker.sock"
_X11: Final = "/tmp/.X11-unix"
_GPU_SYS: Final = ("/sys/class/drm", "/sys/dev/char", "/sys/bus/pci")


class Opened(NamedTuple):
    entries: tuple[Entry, ...] = ()
    variables: dict[str, str] = {}
    warning: str = ""


def open_doors(
    names: tuple[str, ...], files: Files, env: Mapping[str, str], agent: str | None, uid: int
) -> Opened:
    """The entries and variables of these doors. `env`: of the human or the host."""
    entries, variables = list[Entry](), dict[str, str]()
    for name in names:
        if name == SSH_AGENT:
            found, more = _ssh_agent(files, agent or env.get("SSH_AUTH_SOCK", ""))
        elif name == "dbus":
            found, more = _dbus(files, env, uid)
        elif name == "docker":
            found, more = _docker(files, env)
        elif name == "display":
            found, more = _display(files, env, uid)
        else:
            found, more = _gpu(files)
        entries += found
        variables |= more
    return Opened(tuple(entries), variables, DOCKER_WARNING if "docker" in names else "")


def _socket(files: Files, path: str, target: str, door: str) -> Entry:
    real = files.real(path) if path.startswith("/") else ""
    if files.kind(real) != "socket":
        raise Refused(
            f"the door {door} leads nowhere: there is no socket {path or 'in the environment'}",
            "start its server first, or leave out --door",
        )
    return Entry(Kind.READ, target, real)


def _ssh_agent(files: Files, path: str) -> tuple[list[Entry], dict[str, str]]:
    target = "/run/doors/ssh-agent"
    return [_socket(files, path, target, SSH_AGENT)], {"SSH_AUTH_SOCK": target}


def _dbus(files: Files, env: Mapping[str, str], uid: int) -> tuple[list[Entry], dict[str, str]]:
    address = env.get("DBUS_SESSION_BUS_ADDRESS", f"unix:path=/run/user/{uid}/bus")
    path = address.removeprefix("unix:path=").split(",")[0]
    target = f"/run/user/{uid}/bus"
    entry = _socket(files, path, target, "dbus")
    return [entry], {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={target}"}


def _docker(files: Files, env: Mapping[str, str]) -> tuple[list[Entry], dict[str, str]]:
    path = env.get("DOCKER_HOST", f"unix://{_DOCKER}").removeprefix("unix://")
    return [_socket(files, path, _DOCKER, "docker")], {"DOCKER_HOST": f"unix://{_DOCKER}"}


def _display(files: Files, env: Mapping[str, str], uid: int) -> tuple[list[Entry], dict[str, str]]:
    entries, variables = list[Entry](), dict[str, str]()
    if wayland := env.get("WAYLAND_DISPLAY"):
        path = os.path.join(env.get("XDG_RUNTIME_DIR", f"/run/user/{uid}"), wayland)
        entries.append(_socket(files, path, f"/run/user/{uid}/wayland-0", "display"))
        variables["WAYLAND_DISPLAY"] = "wayland-0"
    host, colon, number = env.get("DISPLAY", "").partition(":")
    number = number.partition(".")[0]
    if colon and host in ("", "unix") and number.isdigit():
        target = f"{_X11}/X{number}"
        entries.append(_socket(files, target, target, "display"))
        variables["DISPLAY"] = f":{number}"
        cookie = files.real(env.get("XAUTHORITY", ""))
        if env.get("XAUTHORITY") and files.kind(cookie) == "file":
            variables["XAUTHORITY"] = f"/run/user/{uid}/xauthority"
            entries.append(Entry(Kind.READ, variables["XAUTHORITY"], cookie))
    if not entries:
        raise Refused(
            "the door display leads nowhere: neither WAYLAND_DISPLAY nor a local DISPLAY is set",
            "make the session in a terminal of that display",
        )
    return entries, variables


def _gpu(files: Files) -> tuple[list[Entry], dict[str, str]]:
    dri = [f"/dev/dri/{name}" for name in files.names("/dev/dri")]
    others = [
        f"/dev/{name}" for name in files.names("/dev") if name.startswith("nvidia") or name == "kfd"
    ]
    nodes = [path for path in (*dri, *others) if files.kind(path) == "device"]
    if not nodes:
        raise Refused(
            "the door gpu leads nowhere: there is no graphics device in /dev", "leave out --door"
        )
    pci = [f"/sys/devices/{n}" for n in files.names("/sys/devices") if n.startswith("pci")]
    shown = [shares(path) for path in (*_GPU_SYS, *pci) if files.kind(path) == "dir"]
    return [*(Entry(Kind.DEVICE, path, path) for path in nodes), *shown], {}
