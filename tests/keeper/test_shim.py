"""The library that CRIU is loaded with is the one of the source."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpointer import shim
from tests.support.keeper import state_of, until

HERE = Path(shim.__file__).parent


def test_the_shim_is_compiled_from_its_source() -> None:
    source = hashlib.sha256((HERE / "shim.c").read_bytes()).hexdigest()
    assert source == shim.SOURCE_SHA256, "run scripts/build_shim"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_there_is_a_shim_for_each_machine(machine: str) -> None:
    assert shim.library(machine).startswith(b"\x7fELF")


# ---------------------------------------------------------------- stopped processes

SEIZE, INTERRUPT, GETSIGINFO, DETACH = 0x4206, 0x4207, 0x4202, 17


class Tracer:
    """The calls with which CRIU seizes a process, through the shim."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        library = os.memfd_create("shim")
        os.write(library, shim.library(os.uname().machine))
        self.shim = ctypes.CDLL(f"/proc/self/fd/{library}")
        os.close(library)

    def ptrace(self, request: int, data: int = 0) -> None:
        words = (ctypes.c_long(word) for word in (request, self.pid, 0, data))
        assert not self.shim.ptrace(*words)

    def seize(self) -> int:
        """Returns the signal that CRIU takes for the cause of the stop."""
        self.ptrace(SEIZE)
        self.ptrace(INTERRUPT)
        assert os.WIFSTOPPED(os.waitpid(self.pid, 0)[1])
        info = ctypes.create_string_buffer(128)
        self.ptrace(GETSIGINFO, ctypes.addressof(info))
        (number,) = struct.unpack_from("i", info)
        return int(number)

    def let_go(self) -> None:
        """As CRIU after the dump of a process that it takes for a stopped one."""
        assert not self.shim.kill(self.pid, int(signal.SIGSTOP))
        self.ptrace(DETACH)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process of a plain session, in a group of its own."""
    monkeypatch.setenv("HOLDFAST_NO_STOPS", "1")
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    os.setpgid(pid, 0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU])
def test_a_stopped_process_stays_so_without_another_signal(
    process: int, number: signal.Signals
) -> None:
    os.kill(process, number)
    until(lambda: state_of(process) == "T", "the stop")
    tracer = Tracer(process)
    assert tracer.seize() == signal.SIGSTOP
    tracer.let_go()
    until(lambda: state_of(process) == "T", "the stop")
    status = Path(f"/proc/{process}/status").read_text()
    assert int(status.partition("ShdPnd:")[2].split()[0], 16) == 0, "nothing is pending"


def test_a_process_whose_stop_signal_criu_took_away_gets_it_again(process: int) -> None:
    tracer = Tracer(process)
    assert tracer.seize() == signal.SIGTRAP
    tracer.let_go()
    until(lambda: state_of(process) == "T", "the stop")
