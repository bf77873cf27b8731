"""A keeper whose program runs contained, without a host."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from holdfast.wire import keeper as wire
from tests.support.keeper import Link, Nursery

ROOT = os.getuid() == 0


SECRET = "the machine's key"


PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/opt")


def system() -> tuple[wire.Mount, ...]:
    """The system's directories, read-only; links stay links."""
    return tuple(
        wire.Mount(wire.MOUNT_LINK, path.encode(), os.readlink(path).encode())
        if os.path.islink(path)
        else wire.Mount(wire.MOUNT_READ, path.encode(), path.encode())
        for path in SYSTEM
        if os.path.exists(path)
    )


class Contained:
    """A home as a host has it, a nursery in this home, and sessions that must not see the home."""

    def __init__(self, top: Path) -> None:
        self.home = top / "home"
        self.run_directory = self.home / "run"
        self.own = self.run_directory / "s" / "a"
        self.own.mkdir(parents=True)
        for directory in (self.home, self.run_directory):
            directory.chmod(0o700)
        (self.home / "key").write_text(SECRET)
        (self.own / "rc").write_text("kept")
        self.door = top / "door.sock"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.door))
        self.shown = top / "shown"
        self.shown.mkdir()
        (self.shown / "old").touch()
        self.nursery = Nursery(self.run_directory)
        self.containment = wire.Containment(
            (
                *system(),
                wire.Mount(wire.MOUNT_WRITE, bytes(self.own), bytes(self.own)),
                wire.Mount(wire.MOUNT_READ, bytes(self.shown), bytes(self.shown)),
                wire.Mount(wire.MOUNT_MEMORY, b"/tmp/memory", b"1m"),
            )
        )

    def run(self, *argv: str, name: str = "a", **more: object) -> Link:
        return self.nursery.run(name, list(argv), containment=self.containment, **more)

    def says(self, script: str, end: str = "END") -> str:
        """The output of a shell script inside."""
        link = self.run("sh", "-c", f"{script}\necho {end[:1]}''{end[1:]}; exec sleep 600")
        return link.wait_for(end.encode()).decode(errors="replace").replace("\r\n", "\n")

    def tries(self, body: str) -> str:
        """The output of Python code inside; an exception is printed as a type."""
        script = (
            "import ctypes, os, sys, socket, struct\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "def check(r):\n"
            "    if r == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\n"
            "    return r\n"
            f"try:\n{''.join('    ' + line + chr(10) for line in body.splitlines())}"
            "except Exception as e:\n    print(type(e).__name__, e)\n"
        )
        (self.own / "try.py").write_text(script)
        return self.says(f"{PYTHON} {self.own}/try.py")

    def close(self) -> None:
        self.listener.close()
        self.nursery.close()
