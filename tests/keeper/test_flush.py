"""FLUSH: afterwards no earlier unread input reaches a program (A3), in both modes of a terminal."""

from __future__ import annotations

import fcntl
import os
import random
import termios
from pathlib import Path

import pytest

from holdfast.keeper import terminal
from holdfast.wire import keeper as wire
from tests.support.keeper import Link, Nursery, until

RAW, LINES = "stty raw -echo; ", "stty icanon echo; "
BOTH = pytest.mark.parametrize("mode", [RAW, LINES], ids=["raw", "lines"])


def gated(mode: str, gate: Path, out: Path) -> list[str]:
    """A program that reads no input until a file appears, then all."""
    return [
        "sh",
        "-c",
        f"{mode} echo READY; while [ ! -e {gate} ]; do sleep 0.02; done; exec cat >{out}",
    ]


def flush(link: Link, origin: int = 0) -> list[tuple[int, int, int]]:
    link.act(wire.FLUSH, wire.flush_body(origin), flags=wire.ACT_ACK | wire.ACT_REPORT)
    return wire.read_withdrawn(link.packet(wire.WITHDRAWN))


def arrived(link: Link, gate: Path, out: Path, mark: bytes = b"mark\n") -> bytes:
    """The input that reaches the program, up to a mark typed now."""
    gate.touch()
    link.type(mark)
    until(lambda: out.exists() and out.read_bytes().endswith(mark), "the input after the flush")
    return out.read_bytes()


@BOTH
@pytest.mark.parametrize(
    "typed",
    [b"rm -rf x", b"rm -rf x\n", b"one\ntwo\nthree", b"a\n" * 1500],
    ids=["part", "line", "lines", "many"],
)
def test_a3_input_in_the_kernel_does_not_reach_the_program(
    nursery: Nursery, tmp_path: Path, mode: str, typed: bytes
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", gated(mode, gate, out))
    link.wait_for(b"READY")
    link.type(typed)
    link.written()
    if mode == LINES:
        link.wait_for(typed.split(b"\n")[0])  # the kernel has echoed the input
    assert flush(link) == [], "the terminal had taken all of it"
    assert arrived(link, gate, out) == b"mark\n"


@BOTH
def test_a3_input_that_waits_for_room_is_named_and_gone(
    nursery: Nursery, tmp_path: Path, mode: str
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", gated(mode, gate, out))
    link.wait_for(b"READY")
    line = b"x" * 99 + b"\n"
    while not link.state().queued_input:
        link.type(line * 300, flags=0)
    last = link.type(b"last\n")
    link.taken()
    first = link.ring.written + 1
    entries = flush(link)
    assert [e[0] for e in entries] == list(range(first, last + 1)), (
        "each act that had not wholly gone to the terminal"
    )
    assert 0 <= entries[0][1] < entries[0][2] == 30_000 and entries[-1] == (last, 0, 5)
    assert link.state().queued_input == 0 and link.ring.written == link.sequence
    assert arrived(link, gate, out) == b"mark\n"


def test_a3_a_flush_of_one_client_keeps_the_input_of_others(
    nursery: Nursery, tmp_path: Path
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", gated(RAW, gate, out))
    link.wait_for(b"READY")
    filled = link.fill()  # nobody's; the first piece is partly in the terminal
    mine = link.type(b"mine", origin=7, number=1)
    link.type(b"theirs", origin=8, number=1)
    also_mine = link.type(b"mine too", origin=7, number=2)
    link.taken()
    entries = flush(link, 7)
    assert {e[0] for e in entries} == {filled[0], mine, also_mine} and entries[0][1] > 0
    left = len(filled) - 1
    assert arrived(link, gate, out) == bytes(range(32, 96)) * 512 * left + b"theirs" + b"mark\n"


@BOTH
def test_a3_no_gap_is_followed_by_withdrawn_input(
    nursery: Nursery, tmp_path: Path, mode: str
) -> None:
    """A program reads while a client floods it; after each flush only newly typed input arrives."""
    out = tmp_path / "out"
    link = nursery.run("a", ["sh", "-c", f"{mode} echo READY; exec cat >{out}"])
    link.wait_for(b"READY")
    choose = random.Random(3)
    number = 0
    for turn in range(12):
        first = number
        for _ in range(choose.randrange(20, 120)):
            link.type(b"%d.%d\n" % (turn, number), flags=0)
            number += 1
        if choose.random() < 0.5:
            link.written()
        flush(link)
        mark = b"mark%d\n" % turn
        link.type(mark)
        until(lambda mark=mark: mark in out.read_bytes(), "the mark")  # type: ignore[misc]
        between = out.read_bytes().split(b"mark%d\n" % (turn - 1))[-1].removesuffix(mark)
        sent = b"".join(b"%d.%d\n" % (turn, n) for n in range(first, number))
        assert sent.startswith(between), (
            "the input before the mark is a prefix of the typed input, with no byte after a gap"
        )


def test_a3_a_program_that_closed_its_terminal_to_others_cannot_keep_its_input() -> None:
    """TIOCEXCL forbids all users but root to open the terminal: then the flush uses the master."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"failed"
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
            master, slave = os.openpty()
            if os.getuid() == 0:
                os.fchmod(slave, 0o666)
                os.setresuid(65534, 65534, 65534)
            os.set_blocking(slave, False)
            fcntl.ioctl(slave, termios.TIOCEXCL)
            for raw in (False, True):
                if raw:
                    modes = termios.tcgetattr(slave)
                    modes[3] &= ~termios.ICANON
                    termios.tcsetattr(slave, termios.TCSANOW, modes)
                before = termios.tcgetattr(slave)
                os.write(master, b"old\n")
                try:
                    os.close(terminal.open_slave(master))
                    raise AssertionError("it could be opened")
                except OSError:
                    pass
                terminal.flush_input(master)
                os.write(master, b"new\n")
                assert os.read(slave, 100) == b"new\n" and termios.tcgetattr(slave) == before
            answer = b"good"
        finally:
            os.write(tell, answer)
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    said = os.read(told, 100)
    os.close(told)
    assert said == b"good"
