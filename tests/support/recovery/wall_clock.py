"""A wall clock for the programs of a test, which the test can set (wall_clock.c)."""

from __future__ import annotations

import contextlib
import mmap
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
SECONDS = struct.Struct("q")


@contextlib.contextmanager
def wall_clock(directory: Path) -> Iterator[tuple[dict[str, str], Callable[[int], None]]]:
    """Yield the environment of such programs, and the function that sets their clock.

    The function takes the seconds by which the clock is ahead of the machine's.
    """
    library, file = directory / "wall_clock.so", directory / "wall_clock"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE], check=True)
    file.write_bytes(SECONDS.pack(0))
    with open(file, "r+b") as f, mmap.mmap(f.fileno(), SECONDS.size) as shared:
        environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(file)}
        yield environment, lambda seconds: SECONDS.pack_into(shared, 0, seconds)
