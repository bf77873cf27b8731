"""A warm process that forks hosts and command-line clients.

Killing two hundred of each then does not cost two hundred starts. The forked program is real: the
same `main()` in a separate process, with a separate session, terminal, environment and pid to kill.
Only the half second of interpreter start and imports is shared. (Other tests, in which clients
start the host by themselves, prove that host and client also start from nothing.)

    request:  JSON {"do": "host" | "cli", "env": {..}, "argv": [..]} -> {"pid": N}
              (with the terminal as a descriptor for a cli)
              JSON {"do": "wait", "pid": N} -> {"status": exit code, negative: signal}
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any, NoReturn

REQUEST_BYTES = 1 << 20


class Forge:
    """The test's end."""

    def __init__(self, env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
        self._sock = ours
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=env,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.pid = self._process.pid
        self.made: set[int] = set()

    def _ask(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
        answer: dict[str, Any] = json.loads(self._sock.recv(4096))
        return answer

    def host(self, env: dict[str, str]) -> int:
        return self._made({"do": "host", "env": env}, [])

    def cli(self, env: dict[str, str], argv: list[str], terminal: int) -> int:
        return self._made({"do": "cli", "env": env, "argv": argv}, [terminal])

    def _made(self, request: dict[str, Any], fds: list[int]) -> int:
        pid = int(self._ask(request, fds)["pid"])
        self.made.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Exit code of a process that is ending or has ended; negative for a signal."""
        self.made.discard(pid)
        return int(self._ask({"do": "wait", "pid": pid}, [])["status"])

    def close(self) -> None:
        for pid in list(self.made):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)
        self._sock.close()
        self._process.wait(120)


# ---------------------------------------------------------------- the process


def _serve(sock: socket.socket) -> None:
    import holdfast.client.attach.loop
    import holdfast.faces.cli.main
    import holdfast.faces.cli.sessions
    import holdfast.home.config
    import holdfast.host.main  # noqa: F401

    while True:
        data, fds, _, _ = socket.recv_fds(sock, REQUEST_BYTES, 1)
        if not data:
            return
        request = json.loads(data)
        if request["do"] == "wait":
            _, status = os.waitpid(request["pid"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                sock.close()
                _become(request, fds)
            answer = {"pid": pid}
        for fd in fds:
            os.close(fd)
        sock.send(json.dumps(answer).encode())


def _become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    code = 99
    try:
        os.environ.clear()
        os.environ.update(request["env"])
        if request["do"] == "host":
            os.setsid()
            os.chdir("/")
            from holdfast.host.main import main

            code = main()
        else:
            os.login_tty(fds[0])
            from holdfast.faces.cli.main import run as command

            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            code = command(request["argv"])
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
