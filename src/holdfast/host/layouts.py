"""What a contained session does not see of this machine: the home, and the doors by which other servers take orders.

The keeper covers what it is told to (keeper/contain.py); which paths is decided here. A namespace stops nobody from asking a
server outside to run something: the service manager, a container engine, a tmux of the same account. The well-known ones are
hidden, where they are. There may be others: any server of the same account that takes orders by a socket is one
(docs/containment.md says so).
"""

from __future__ import annotations

import os

from holdfast.home import Home
from holdfast.wire.keeper import Containment

# Sockets and directories of sockets; of root and of whoever is in their group.
DOORS = (
    "/run/docker.sock",
    "/run/docker",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/libvirt",
    "/run/lxd.socket",
    "/run/snapd.socket",
    "/var/lib/lxd",
    "/var/snap/lxd/common/lxd",
)
DOORS_OF_ROOT = ("/run/systemd", "/run/dbus", "/run/screen")


def containment(home: Home, directory: str) -> Containment:
    """For a session whose own files are in `directory`, below the home."""
    uid = os.geteuid()
    hide = [home.state, *DOORS, f"/tmp/tmux-{uid}"]
    if not home.explicit:
        hide.append(os.path.dirname(home.config))
    hide += DOORS_OF_ROOT if uid == 0 else [f"/run/screen/S-{uid}"]
    return Containment(
        tuple(os.fsencode(p) for p in hide if os.path.lexists(p)),
        (os.fsencode(f"/run/user/{uid}"),),
        (os.fsencode(directory),),
    )


def environment(directory: str) -> dict[str, str]:
    """A tmux started inside is this session's own: its server is found here and not outside."""
    return {"TMUX_TMPDIR": directory}
