"""Runs command lines in forks of one warm interpreter: real processes without their start-up.

A test process starts one server on first use, and one in each network namespace. A request names
arguments, environment and working directory; the server forks, and the fork becomes the command
line with the descriptors that came with the request. `/proc/PID/cmdline` and `/proc/PID/environ`
of such a process tell the server's.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIPE_BYTES = 1 << 16  # a pipe holds that much without a reader
COLD = ("LANG", "LC_", "PYTHON")  # variables that an interpreter reads while it starts
HERE = Path(__file__).resolve().parents[3]
SOURCE = str(HERE / "src")


@dataclass(frozen=True)
class Finished:
    code: int
    out: bytes
    err: bytes


def fits(args: tuple[str | bytes, ...], stdin: bytes, env: dict[str, str]) -> bool:
    """Whether a fork behaves as a new interpreter would."""
    usual: dict[str, set[str | None]] = {
        "LANG": {"C.UTF-8"},
        "PYTHONPATH": {SOURCE, os.environ.get("PYTHONPATH")},
    }
    return (
        all(isinstance(arg, str) for arg in args)
        and len(stdin) <= PIPE_BYTES
        and all(
            value in usual.get(name, set()) for name, value in env.items() if name.startswith(COLD)
        )
    )


def run(
    args: tuple[str | bytes, ...], stdin: bytes, env: dict[str, str], cwd: str, timeout: float
) -> Finished:
    """Runs `holdfast ARGS` to its end."""
    order = os.memfd_create("order")
    out, err = os.memfd_create("out"), os.memfd_create("err")
    source = _input(stdin)
    ended, tell = os.pipe()
    try:
        os.write(order, json.dumps({"args": args, "env": env, "cwd": cwd}).encode())
        socket.send_fds(_server(), [b"."], [order, source, out, err, tell])
        os.close(tell)
        pid = int(os.read(ended, 8))
        if not select.select([ended], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("holdfast", timeout, _read(out), _read(err))
        return Finished(int(os.read(ended, 8)), _read(out), _read(err))
    finally:
        for fd in (order, out, err, source, ended):
            os.close(fd)


def _input(stdin: bytes) -> int:
    """A pipe with these bytes; /dev/null for none."""
    if not stdin:
        return os.open(os.devnull, os.O_RDONLY)
    source, sink = os.pipe()
    os.write(sink, stdin)
    os.close(sink)
    return source


def _read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


_started: dict[tuple[int, str], socket.socket] = {}  # by process and network namespace


def _server() -> socket.socket:
    key = os.getpid(), os.readlink("/proc/thread-self/ns/net")
    if key not in _started:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath, "PYTHONPATH": path, "LANG": "C.UTF-8"},
                cwd=HERE,
            )
        _started[key] = ours
        atexit.register(process.wait)
        atexit.register(ours.close)  # runs first, and ends the server
    return _started[key]


def serve(requests: socket.socket) -> None:
    _preload()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}  # by pidfd: (pid, where its exit code is told)
    while True:
        for fd, _ in poll.poll():
            if fd == requests.fileno():
                _, fds, _, _ = socket.recv_fds(requests, 1, 5)
                if not fds:
                    return
                pid = os.fork()
                if pid == 0:
                    for pidfd, (_, told) in running.items():
                        os.close(pidfd)
                        os.close(told)
                    requests.close()
                    _become(fds)
                *used, tell = fds
                for other in used:
                    os.close(other)
                os.write(tell, b"%8d" % pid)
                pidfd = os.pidfd_open(pid)
                running[pidfd] = pid, tell
                poll.register(pidfd, select.POLLIN)
            else:
                poll.unregister(fd)
                pid, tell = running.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(tell, b"%8d" % code)
                os.close(fd)
                os.close(tell)


def _preload() -> None:
    """Imports the modules of the command line and of the client."""
    import importlib
    import pkgutil

    import holdfast.client
    import holdfast.faces.cli

    for package in (holdfast.faces.cli, holdfast.client):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.freeze()  # a collection in a fork would copy every page of the modules


def _become(fds: list[int]) -> None:
    """Makes this fork the process of one command line."""
    order, source, out, err, tell = fds
    os.close(tell)
    wanted: dict[str, Any] = json.loads(_read(order))
    os.close(order)
    for standard, fd in enumerate((source, out, err)):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    sys.argv = ["holdfast", *wanted["args"]]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        errors="backslashreplace",
        line_buffering=True,
    )
    from holdfast.faces.cli.main import main

    main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
