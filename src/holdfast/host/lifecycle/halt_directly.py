"""Halts a session without the host: for `holdfast halt` when no host answers.

    python -m holdfast.host.lifecycle.halt_directly STATE SESSION

A host that is stopped, frozen or busy must not keep a person from halting a session. This program
does what the host does (host/processes/halt.py), as the account of the host. It finds the session
by the keeper's socket and by the name that the host left beside it. The kernel remembers the halt.
A host that is there is told to restart (SIGHUP), so that it finds the session halted as soon as it
runs again. Only a host writes the record: no entry names who halted the session this way, and the
command says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys

from holdfast.home import Home
from holdfast.host.lifecycle.prepare import HOST_ONLY, KEEPER_SUFFIX
from holdfast.host.processes.halt import Execution, Halter, of_session
from holdfast.host.runtime import handover_file
from holdfast.host.runtime.handover_file import NAME
from holdfast.model.errors import HoldfastError, NotFound, Unavailable

NAME_BYTES = 1000


def main() -> int:
    state, given = sys.argv[1:]
    try:
        print(json.dumps(halt(Home(state, "", False), given)))
    except HoldfastError as e:
        print(json.dumps({"error": {"name": type(e).__name__, "message": e.message}}))
        return 1
    return 0


def halt(home: Home, given: str) -> dict[str, object]:
    name, session = _session(home, given)
    keeper = _listener(f"{home.run}/{session}{KEEPER_SUFFIX}", socket.SOCK_SEQPACKET)
    if not keeper:
        raise Unavailable(f"the keeper of session {name} is gone")
    below = of_session(keeper)
    if not below:
        raise NotFound(f"session {name} has no process")
    done = Halter(home.state).halt_now(Execution(session, keeper, below[0]))
    if host := _listener(home.host_socket, socket.SOCK_STREAM):
        os.kill(host, signal.SIGHUP)
    return {
        "id": session,
        "name": name,
        "how": done.how,
        "processes": list(done.pids),
        "took_ms": done.took_ms,
        "complete": done.complete,
        "missed": list(done.missed),
    }


def _session(home: Home, given: str) -> tuple[str, str]:
    """The name and the id of a living session that was given by either."""
    for session in (n.removesuffix(KEEPER_SUFFIX) for n in os.listdir(home.run)):
        if os.path.exists(f"{home.run}/{session}{KEEPER_SUFFIX}"):
            name = session
            with contextlib.suppress(OSError):
                path = f"{home.run}/{HOST_ONLY}/{session}/{NAME}"
                name = handover_file.read(path, NAME_BYTES).decode("utf-8", "replace")
            if given in (session, name):
                return name, session
    raise NotFound(f"no running session {given!a}")


def _listener(path: str, kind: int) -> int:
    """The pid of the process that listens there, or 0. Nothing is said to it."""
    with socket.socket(socket.AF_UNIX, kind) as sock:
        try:
            sock.connect(path)
        except OSError:
            return 0
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])


if __name__ == "__main__":
    sys.exit(main())
