"""Open files and credentials of a session, from /proc, for an operator that inherits them (A6).

The reader runs in a thread. It reads names of environment variables and never keeps a value. An ssh
agent counts as reachable if its socket accepts a connection.
"""

from __future__ import annotations

import os
import socket
from typing import Final, NamedTuple

from holdfast.core.session.graph import Graph
from holdfast.core.session.inheritance import Credential, names_a_secret
from holdfast.host.processes import graph
from holdfast.host.processes.process import half, read_proc

ENVIRONMENTS_MAX: Final = 64  # processes with an environment that is read
PROCESSES_MAX: Final = 1024
CONNECT_S: Final = 0.1  # for the socket of an agent
AGENT: Final = "SSH_AUTH_SOCK"


class OpenState(NamedTuple):
    graph: Graph
    secrets: tuple[Credential, ...]  # variables, and the sockets of reachable agents


def read(keeper: int, root: int) -> OpenState:
    seen = graph.look(keeper, root, most=PROCESSES_MAX, words=False)
    found: dict[tuple[str, str], Credential] = {}
    pids = [root, *(one.pid for one in seen.processes if one.pid != root and one.start)]
    for pid in pids[:ENVIRONMENTS_MAX]:
        for name, value in _environment(pid):
            if names_a_secret(name):
                found.setdefault(("variable", name), Credential("variable", name, pid))
            elif name == AGENT and ("agent", value) not in found and _answers(pid, value):
                found["agent", value] = Credential("agent", value, pid)
    return OpenState(seen, tuple(found.values()))


def _environment(pid: int) -> list[tuple[str, str]]:
    if half(pid):
        return []
    try:
        data = read_proc(f"/proc/{pid}/environ")
    except OSError:
        return []
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0"))
    return [(name, value) for name, equals, value in pairs if equals]


def _answers(pid: int, path: str) -> bool:
    """Whether a program listens on the socket, as this process would reach it."""
    try:
        # The short path through a descriptor: the kernel takes 107 bytes.
        folder = os.open(f"/proc/{pid}/root{os.path.dirname(path)}", os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(CONNECT_S)
            one.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except (OSError, ValueError):
        return False
    finally:
        os.close(folder)
    return True
