"""The paths of an installation: state, configuration and sockets.

With HOLDFAST_HOME all files are in that directory. Without HOLDFAST_HOME, state and sockets are
under XDG_STATE_HOME and the configuration under XDG_CONFIG_HOME. Sockets are not in
XDG_RUNTIME_DIR: the system removes that directory when the user's last login ends, and sessions
must outlive the login. Directories have mode 0700 and belong to this user. Any other owner or mode
is refused, because a process that can reach the sockets can type.
"""

from __future__ import annotations

import os
import stat

from holdfast.model.errors import Impossible, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Home:
    """The paths of an installation.

    A plain class: `NamedTuple` would cost every command 8 ms for `typing`.
    """

    __slots__ = ("config", "explicit", "state")

    def __init__(self, state: str, config: str, explicit: bool) -> None:
        self.state, self.config = state, config
        self.explicit = explicit  # HOLDFAST_HOME was given

    @property
    def run(self) -> str:
        return f"{self.state}/run"

    @property
    def host_socket(self) -> str:
        return f"{self.state}/run/host.sock"

    @property
    def stopped(self) -> str:
        """Marks that a person stopped the host; clients then do not start the host."""
        return f"{self.state}/run/stopped"

    @property
    def service(self) -> str:
        """Exists where a service manager runs the host; contains `user` or `system`."""
        return f"{self.state}/run/service"

    @property
    def reserved_names(self) -> str:
        """Written by the host at its start: operators with a name that has another meaning."""
        return f"{self.state}/run/reserved-names"

    @property
    def database(self) -> str:
        return f"{self.state}/state.db"

    @property
    def spool(self) -> str:
        """The directory of what sessions need for a cold start (host/storage/spool.py)."""
        return f"{self.state}/spool"

    @property
    def log(self) -> str:
        return f"{self.state}/host.log"

    @property
    def relay(self) -> str:
        """The directory of this installation's own relay."""
        return f"{self.state}/relay"

    @property
    def machines(self) -> str:
        """The list of machines that this home can reach (home/machines.py)."""
        return f"{self.state}/machines.json"

    @property
    def public_relay(self) -> str:
        """The directory of a relay for other machines, which `relay serve` runs beside it."""
        return f"{self.state}/public-relay"

    @property
    def relay_log(self) -> str:
        return f"{self.state}/relay.log"

    @property
    def policy(self) -> str:
        """The policy file, next to the configuration."""
        return f"{self.config.rpartition('/')[0]}/policy.toml"


def resolve(environ: Mapping[str, str]) -> Home:
    """The home that this environment names. Creates no file."""
    given = environ.get("HOLDFAST_HOME")
    if given:
        base = os.path.abspath(os.path.expanduser(given))
        return Home(base, f"{base}/config.toml", True)
    user = environ.get("HOME") or os.path.expanduser("~")
    state = environ.get("XDG_STATE_HOME") or f"{user}/.local/state"
    config = environ.get("XDG_CONFIG_HOME") or f"{user}/.config"
    return Home(f"{state}/holdfast", f"{config}/holdfast/config.toml", False)


def prepare(home: Home) -> None:
    """Create the directories. Refuses directories that are not private to this user."""
    for path in (home.state, home.run):
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as e:
            raise Impossible(
                f"{path} cannot be a directory: {e.strerror} ({e.filename})",
                "remove that file, or set HOLDFAST_HOME to another directory",
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
    if stat.S_IMODE(info.st_mode) == 0o555:  # the cover that containment mounts over the home
        raise Impossible(
            f"{path} is closed: a contained session cannot reach Holdfast, on purpose",
            f"use another terminal; outside of a contained session: chmod 700 {path}",
        )
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise Impossible(
            f"other users can reach {path} (mode {mode:04o})",
            "set HOLDFAST_HOME to a directory of your own"
            if mode & stat.S_ISVTX
            else f"chmod 700 {path}",
        )
