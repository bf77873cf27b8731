"""Where one installation lives: its state, its configuration and its sockets.

With HOLDFAST_HOME everything lies in that one directory. Without it: state and sockets under XDG_STATE_HOME, the configuration
under XDG_CONFIG_HOME. Sockets are deliberately not in XDG_RUNTIME_DIR: that directory is removed when the user's last login
ends, and sessions must outlive exactly that. Directories are 0700 and must belong to this user; anything else is refused,
because whoever can reach the sockets can type.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.model.errors import Impossible, Unavailable


class Home(NamedTuple):
    state: str
    config: str
    explicit: bool  # HOLDFAST_HOME was given

    @property
    def run(self) -> str:
        return f"{self.state}/run"

    @property
    def host_socket(self) -> str:
        return f"{self.state}/run/host.sock"

    @property
    def stopped(self) -> str:
        """Exists while a person wants no host: whoever finds none then starts none."""
        return f"{self.state}/run/stopped"

    @property
    def service(self) -> str:
        """Exists where a service manager runs the host, and says which: `user` or `system`."""
        return f"{self.state}/run/service"

    @property
    def database(self) -> str:
        return f"{self.state}/state.db"

    @property
    def log(self) -> str:
        return f"{self.state}/host.log"

    @property
    def relay(self) -> str:
        """The directory of this installation's own relay."""
        return f"{self.state}/relay"

    @property
    def relay_log(self) -> str:
        return f"{self.state}/relay.log"

    @property
    def policy(self) -> str:
        """Beside the configuration."""
        return f"{self.config.rpartition('/')[0]}/policy.toml"


def resolve(environ: Mapping[str, str]) -> Home:
    """The home that this environment means; creates nothing."""
    given = environ.get("HOLDFAST_HOME")
    if given:
        base = os.path.abspath(os.path.expanduser(given))
        return Home(base, f"{base}/config.toml", True)
    user = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME") or f"{user}/.local/state"
    config = environ.get("XDG_CONFIG_HOME") or f"{user}/.config"
    return Home(f"{state}/holdfast", f"{config}/holdfast/config.toml", False)


def prepare(home: Home) -> None:
    """Creates the directories; refuses what is not private to this user."""
    for path in (home.state, home.run):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as e:
            raise Impossible(
                f"{path} cannot be a directory: {e.strerror} ({e.filename})",
                "remove what is there, or set HOLDFAST_HOME to another directory",
            ) from e
        except OSError as e:
            raise Unavailable(
                f"cannot create {path}: {e.strerror}",
                "make that directory writable, or set HOLDFAST_HOME to another one",
            ) from e
        check_private(path)


def check_private(path: str) -> None:
    info = os.stat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise Impossible(
            f"{path} is not a directory", "remove it, or set HOLDFAST_HOME to another directory"
        )
    if info.st_uid != os.geteuid():
        raise Impossible(
            f"{path} belongs to user {info.st_uid}, not to you",
            "set HOLDFAST_HOME to a directory of your own",
        )
    if stat.S_IMODE(info.st_mode) == 0o555:  # as containment covers it
        raise Impossible(
            f"{path} is closed; inside of a contained session Holdfast is out of reach, on purpose",
            f"use another terminal; outside: chmod 700 {path}",
        )
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise Impossible(
            f"{path} can be reached by others (mode {mode:04o})",
            "set HOLDFAST_HOME to a directory of your own"
            if mode & stat.S_ISVTX
            else f"chmod 700 {path}",
        )
