"""Steps of a restore that a limited machine must not keep from it."""

from __future__ import annotations

import fcntl
import os
import resource
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.keeper import thaw

TIOCGPTN = 0x8004_5430


def test_process_numbers_that_the_machine_does_not_let_us_spare_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container /proc/sys can be read-only."""
    saved = cast(thaw.Saved, SimpleNamespace(top=100, highest_pid=200))
    last = tmp_path / "last"
    last.write_text("150")
    monkeypatch.setattr(thaw, "_LAST_PID", str(last))
    thaw._spare_numbers(saved)
    assert last.read_text() == "200"
    monkeypatch.setattr(thaw, "_LAST_PID", str(tmp_path))
    thaw._spare_numbers(saved)


def test_a_terminal_gets_another_number_if_its_own_is_out_of_reach() -> None:
    first = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        (number,) = struct.unpack("I", fcntl.ioctl(first, TIOCGPTN, bytes(4)))
        wanted = {number + thaw._LOOKED_FOR // 2}
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + 4, hard))
        fresh, masters = thaw._new_terminals(wanted)
        assert fresh.keys() == wanted and masters.keys() == set(fresh.values()) != wanted
        for fd in masters.values():
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(OSError, match="Too many open files"):
            thaw._new_terminals(wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(first)
