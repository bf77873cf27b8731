"""Finds CRIU, and tries whether it serves here.

The first of these counts: what HOLDFAST_CRIU names (a program, or a directory that `scripts/criu`
made), `.cache/criu` of this checkout, and `criu` in PATH or in the system's directories. CRIU is
executed by its own loader with named directories of libraries, because a session may have others.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

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
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_ELF_HEADER = struct.Struct("<16xHHIQQ8xIHHH")  # e_phoff, e_phentsize and e_phnum count
_PROGRAM_HEADER = struct.Struct("<IIQQQQ")
_PT_INTERP = 3


def find(named: str = "") -> Criu:
    """CRIU with its version; Impossible, with the reason and the remedy, if there is none.

    `named`: the value of HOLDFAST_CRIU.
    """
    path = named or (str(_CHECKOUT) if (_CHECKOUT / "state").exists() else "")
    path = path or shutil.which("criu") or shutil.which("criu", path=_SYSTEM) or ""
    if not path:
        raise Impossible("CRIU is not installed", INSTALL)
    try:
        found = _of_directory(Path(path)) or _of_program(path)
        version = _asked(found.argv("--version"))
    except (OSError, ValueError, struct.error, subprocess.SubprocessError) as e:
        raise Impossible(f"CRIU at {path} does not run: {e}", INSTALL) from e
    said = re.search(r"Version:\s*(\d+(?:\.\d+)*)", version)
    if said is None:
        raise Impossible(f"{path} does not say CRIU's version", INSTALL)
    number = tuple(map(int, said[1].split(".")))
    if number < OLDEST:
        raise Impossible(f"CRIU {said[1]} at {path} is too old", INSTALL)
    return Criu(found.program, found.loader, found.libraries, said[1])


def check(criu: Criu, ordinary: bool) -> str:
    """What CRIU says about this kernel; empty if all is well."""
    try:
        said = _asked(criu.argv(*(["--unprivileged"] if ordinary else []), "check"))
    except (OSError, subprocess.SubprocessError) as e:
        return str(e)
    lines = said.strip().splitlines()
    return "" if "Looks good" in said else lines[-1] if lines else "criu check said nothing"


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


def _of_program(path: str) -> Criu:
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
