"""Steps of a restore: the images, the call of CRIU, numbers of processes and terminals."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.checkpointer import images, rpc
from holdfast.checkpointer.criu import Call, Failed, Opened
from holdfast.keeper import thaw
from holdfast.wire import checkpointing as wire
from holdfast.wire import protobuf_fields as pb

MAGIC = bytes(8)
TIOCGPTN = 0x8004_5430


def write(path: Path, *entries: tuple[tuple[int, int | bytes], ...]) -> None:
    messages = [pb.encode(pb.field(*one) for one in entry) for entry in entries]
    path.write_bytes(MAGIC + b"".join(len(m).to_bytes(4, "little") + m for m in messages))


@pytest.mark.parametrize(
    ("front", "then"),
    [
        pytest.param(7, 7, id="a living group"),
        pytest.param(8, 3, id="an ended group"),
        pytest.param(9, 3, id="a number that a group of another kernel session has now"),
    ],
)
def test_only_a_living_group_of_the_session_is_in_the_foreground(
    tmp_path: Path, front: int, then: int
) -> None:
    """An entry of pstree.img: 1 process, 3 group, 4 kernel session."""
    processes = [(3, 3, 3), (7, 7, 3), (9, 9, 9)]
    write(tmp_path / "pstree.img", *(((1, p), (3, g), (4, s)) for p, g, s in processes))
    terminal = ((6, 3), (7, front), (12, pb.encode([pb.field(1, 5)])))
    write(tmp_path / "tty-info.img", terminal)
    write(tmp_path / "files.img")
    (tmp_path / wire.PROGRAM_FILE).write_bytes(wire.pack_program(wire.Program(3, front, 5)))
    for _ in range(2):
        images.prepare(tmp_path)
        [entry] = images._entries(tmp_path / "tty-info.img")
        assert (pb.number_of(entry, 6), pb.number_of(entry, 7)) == (3, then)
        assert images.terminal(tmp_path).foreground == then


class Stub:
    """What a call needs of CRIU's files."""

    opener = None
    pipes = ()

    def command(self, *more: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        return b"criu", more


def test_the_end_of_criu_ends_the_call_though_another_process_has_the_socket(
    tmp_path: Path,
) -> None:
    """As when the kernel kills CRIU for memory while it restores processes."""
    reader, writer = os.pipe()

    def execute(path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes]) -> None:
        restored = os.fork()
        while not restored:
            signal.pause()
        os.write(writer, b"%d" % restored)
        os.kill(os.getpid(), signal.SIGKILL)

    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    criu = cast(Opened, Stub())
    try:
        with pytest.raises(Failed, match="CRIU ended without an answer"):
            Call(criu, directory, rpc.RESTORE, {}, execute=execute).run()
    finally:
        os.kill(int(os.read(reader, 20)), signal.SIGKILL)
        for fd in (reader, writer, directory):
            os.close(fd)


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
