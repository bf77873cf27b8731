"""The environment of a contained session: variables that name absent things are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.core.containment.entries import within

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Names of sockets, directories or servers outside. A door sets the right variables again.
DROPPED: Final = frozenset(
    (
        *("TMPDIR", "TMP", "TEMP", "TEMPDIR", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "SSH_AGENT_PID"),
        *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST"),
        *("DBUS_SYSTEM_BUS_ADDRESS", "CONTAINER_HOST", "GPG_AGENT_INFO", "GNOME_KEYRING_CONTROL"),
        *("SESSION_MANAGER", "PULSE_SERVER", "ICEAUTHORITY", "TMUX_TMPDIR", "HOLDFAST_HOME"),
        *("HOLDFAST_AS", "GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "XDG_SESSION_ID"),
    )
)
DROPPED_PREFIXES: Final = ("VSCODE_", "WSL_INTEROP", "CONDA_PREFIX_", "SUDO_")
# Directories that programs make themselves. Outside of the home they do not exist inside.
_OWN_DIRECTORIES: Final = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


# Programs that are installed inside go to this directory of the session's own home. The places that
# the installers choose by default are behind PATH, so they may be read-only inside.
INSTALLED: Final = ".local/session"
PREFIX_OF_NPM: Final = "NPM_CONFIG_PREFIX"
_INSTALLERS: Final = (
    *(("PYTHONUSERBASE", ""), (PREFIX_OF_NPM, ""), ("CARGO_INSTALL_ROOT", ""), ("GOBIN", "/bin")),
    *(("UV_TOOL_DIR", "/uv"), ("UV_TOOL_BIN_DIR", "/bin")),
    *(("PIPX_HOME", "/pipx"), ("PIPX_BIN_DIR", "/bin")),
)


def installers(home: str, nvm: bool) -> dict[str, str]:
    """Variables that make installers use a directory of the session's own home.

    nvm refuses to work with a prefix of npm. `nvm`: nvm is shown inside.
    """
    found = {name: f"{home}/{INSTALLED}{place}" for name, place in _INSTALLERS}
    if nvm:
        del found[PREFIX_OF_NPM]
    return found


def inside(
    given: Mapping[str, str], home: str, uid: int, visible: Callable[[str], bool]
) -> dict[str, str]:
    """The variables as they are true inside. `visible`: whether a path exists there."""
    kept = {
        name: value
        for name, value in given.items()
        if name not in DROPPED
        and not name.startswith(DROPPED_PREFIXES)
        and (name not in _OWN_DIRECTORIES or within(value, home))
    }
    entries = kept.get("PATH", DEFAULT_PATH).split(":")
    shown = ":".join(e for e in entries if e.startswith("/") and visible(e)) or DEFAULT_PATH
    # Last: a program that code inside installs does not replace a program of the machine.
    kept["PATH"] = f"{shown}:{home}/{INSTALLED}/bin"
    kept["HOME"] = home
    kept["XDG_RUNTIME_DIR"] = f"/run/user/{uid}"
    return kept
