"""Finds CRIU, and tries whether it serves here.

The first of these counts: what HOLDFAST_CRIU names (a program, or a directory that `scripts/criu`
made), `.cache/criu` of this checkout, and `criu` in PATH or in the system's directories. CRIU is
executed by its own loader with named directories of libraries, because a session may have others.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from holdfast.home import programs
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.model.errors import Impossible
from holdfast.wire.checkpointing import Criu

VARIABLE: Final = "HOLDFAST_CRIU"
OLDEST: Final = (4, 2, 1)  # earlier ones fail with any INET socket on recent kernels
INSTALL: Final = (
    f"install CRIU {'.'.join(map(str, OLDEST))} or later; in a checkout, scripts/criu fetches one; "
    f"or let {VARIABLE} name it"
)
_CHECKOUT: Final = Path(__file__).resolve().parents[4] / ".cache" / "criu"
_SYSTEM: Final = "/usr/local/sbin:/usr/sbin:/sbin"
_TRIAL_S: Final = 10.0
Stamp = tuple[int, int, int, int]  # of a file, until it is replaced or changed
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_ELF_HEADER = struct.Struct("<16xHHIQQ8xIHHH")  # e_phoff, e_phentsize and e_phnum count
_PROGRAM_HEADER = struct.Struct("<IIQQQQ")
_PT_INTERP = 3
_NEW_USER, _NEW_NETWORK, _NEW_IPC = 0x1000_0000, 0x4000_0000, 0x0800_0000
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP: CRIU tries TCP on loopback


def find(named: str = "") -> Criu:
    """CRIU with its version; Impossible, with the reason and the remedy, if there is none.

    `named`: the value of HOLDFAST_CRIU.
    """
    path = named or (str(_CHECKOUT) if (_CHECKOUT / "state").exists() else "")
    path = path or shutil.which("criu") or shutil.which("criu", path=_SYSTEM) or ""
    if not path:
        raise Impossible("CRIU is not installed", INSTALL)
    try:
        found = _of_directory(Path(path)) or _of_program(path, _stamp(path))
        version = _version(found, _stamp(found.program), _stamp(found.loader))
    except (OSError, ValueError, struct.error, subprocess.SubprocessError) as e:
        raise Impossible(f"CRIU at {path} does not run: {e}", INSTALL) from e
    if tuple(map(int, version.split("."))) < OLDEST:
        raise Impossible(f"CRIU {version} at {path} is too old", INSTALL)
    return Criu(found.program, found.loader, found.libraries, version)


def _stamp(path: str) -> Stamp:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(8)
def _version(criu: Criu, *stamps: Stamp) -> str:
    """CRIU's version; CRIU is asked again if a file was replaced (`stamps`)."""
    said = re.search(r"Version:\s*(\d+(?:\.\d+)*)", _asked(criu.argv("--version")))
    if said is None:
        raise Impossible(f"{criu.program} does not say CRIU's version", INSTALL)
    return said[1]


def check(criu: Criu, ordinary: bool) -> str:
    """What CRIU says about this kernel; empty if all is well.

    A worker asks CRIU: in a hardened unit CRIU could try nothing. For an ordinary user it asks in
    namespaces, as a save does, because outside CRIU refuses a user without capabilities.
    """
    command = programs.module(__name__, str(int(ordinary)), *criu.argv())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            worker = WorkerProgram(command, (theirs.fileno(),))
        except OSError as e:
            return f"CRIU cannot be started: {e.strerror or e}"
        theirs.close()
        try:
            said = _until_end(ours)
        except OSError as e:
            late = isinstance(e, TimeoutError)
            return f"CRIU does not answer{f' within {_TRIAL_S:g} s' if late else f': {e}'}"
        finally:
            worker.kill()
            worker.wait()
    lines = said.strip().splitlines()
    return "" if "Looks good" in said else lines[-1] if lines else "criu check said nothing"


def _until_end(line: socket.socket) -> str:
    until = time.monotonic() + _TRIAL_S
    said = b""
    while True:
        line.settimeout(max(until - time.monotonic(), 0.001))
        if not (piece := line.recv(1 << 16)):
            return said.decode("utf-8", "replace")
        said += piece


def main(ordinary: int, program: list[str], fd: int) -> None:
    """Become `criu check`, with its output to `fd`."""
    if ordinary:
        libc = ctypes.CDLL(None, use_errno=True)
        uid, gid = os.geteuid(), os.getegid()
        if libc.unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC) == 0:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"0 {uid} 1"),
                ("gid_map", f"0 {gid} 1"),
            ):
                Path(f"/proc/self/{name}").write_text(text)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
        program = [*program, "--unprivileged"]
    for number in (1, 2):
        os.dup2(fd, number)
    os.execv(program[0], [*program, "check"])


def _asked(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TRIAL_S
    )
    return done.stdout + done.stderr


def _of_directory(path: Path) -> Criu | None:
    """What `scripts/criu` made: the directory itself, or the program `bin/criu` in it."""
    for place in (path, path.parent.parent):
        if (place / "loader").exists() and (place / "root").is_dir():
            loader = place / "root" / (place / "loader").read_text().strip()
            program = place / "root" / "usr" / "sbin" / "criu"
            return Criu(str(program), str(loader), (str(loader.parent),))
    return None


@lru_cache(8)
def _of_program(path: str, stamp: Stamp) -> Criu:
    """A program of the system: its loader, and the directories of the libraries it would load."""
    path = os.path.realpath(path)
    loader = os.path.realpath(_loader(path))
    listed = _asked([loader, "--list", path])
    libraries = {os.path.realpath(os.path.dirname(one)) for one in _LIBRARY.findall(listed)}
    return Criu(path, loader, tuple(sorted(libraries)))


def _loader(path: str) -> str:
    """The program interpreter that an ELF file names."""
    with open(path, "rb") as f:
        head = f.read(_ELF_HEADER.size)
        if head[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF program")
        *_, offset, _, _, size, count = _ELF_HEADER.unpack(head)
        for index in range(count):
            f.seek(offset + index * size)
            kind, _, at, _, _, length = _PROGRAM_HEADER.unpack(f.read(_PROGRAM_HEADER.size))
            if kind == _PT_INTERP:
                f.seek(at)
                return f.read(length).rstrip(b"\0").decode()
    raise ValueError("it is linked statically, so the library of Holdfast cannot be loaded")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:-1], int(sys.argv[-1]))
