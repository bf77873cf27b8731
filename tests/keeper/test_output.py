"""The keeper drains the terminal; each byte read has one offset for ever (S4, S5)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from holdfast.model.limits import BELLS_MAX
from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout
from tests.support.checkers.history import difference
from tests.support.keeper import Link, Nursery, cpu_ns, until

COUNT = "i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; done; echo FINISHED; exec sleep 600"


def expected(count: int) -> bytes:
    return b"".join(b"line %d\r\n" % i for i in range(1, count + 1)) + b"FINISHED\r\n"


def test_s4_output_is_byte_identical_over_changes_of_host(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", COUNT % 20_000])
    got = b""
    while not got.endswith(b"FINISHED\r\n"):
        link = nursery.link("a")  # a new host each time; the old one is just dropped
        until(lambda link=link: link.ring.head > len(got), "more output")  # type: ignore[misc]
        piece = link.ring.copy(len(got), link.ring.head)
        assert piece is not None
        got += piece
        link.sock.send(wire.consumed(len(got)))
        link.close()
    assert difference(got, expected(20_000)) == ""


def test_s4_a_full_ring_waits_for_its_host_and_loses_nothing(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", COUNT % 30_000], ring=65536, away_ms=60_000)
    link = nursery.link("a")
    until(lambda: link.ring.head == 65536, "the ring to be full")
    assert link.ring.start == 0 and not link.ring.flags & layout.FLAG_ROLLING
    got = b""
    while not got.endswith(b"FINISHED\r\n"):
        until(lambda: link.ring.head > len(got), "more output")
        piece = link.ring.copy(len(got), link.ring.head)
        assert piece is not None
        got += piece
        link.sock.send(wire.consumed(len(got)))
    assert difference(got, expected(30_000)) == ""


def test_s5_a_host_that_stays_away_does_not_hold_the_program_and_the_gap_is_exact(
    nursery: Nursery,
) -> None:
    nursery.spawn("a", ["sh", "-c", COUNT % 30_000], ring=65536, away_ms=100)
    link = nursery.link("a")
    want = expected(30_000)
    until(lambda: link.ring.head == len(want), "the program to finish without us")
    assert link.ring.flags & layout.FLAG_ROLLING
    start = len(want) - 65536
    until(
        lambda: link.ring.start == start, "the ring to come to rest: full, exactly its size is kept"
    )
    assert link.ring.copy(start - 1, link.ring.head) is None
    assert link.ring.copy(start, link.ring.head) == want[start:]


def test_output_of_a_program_that_ends_at_once_is_complete(nursery: Nursery) -> None:
    for n in range(20):
        nursery.spawn(f"s{n}", ["sh", "-c", f"echo {n} last words; exit {n}"])
        link = nursery.link(f"s{n}")
        until(lambda link=link: link.ring.flags & layout.FLAG_EOF, "the end of output")  # type: ignore[misc]
        assert link.all() == b"%d last words\r\n" % n
        status = (
            link.welcome.status
            if link.welcome.status >= 0
            else wire.read_exited(link.packet(wire.EXITED))[0]
        )
        assert os.waitstatus_to_exitcode(status) == n


def test_a_program_that_closes_its_terminal_is_not_an_end_and_costs_nothing(
    nursery: Nursery,
) -> None:
    _, _, pid, _ = nursery.spawn("a", ["sh", "-c", "echo before; exec 0<&- 1<&- 2<&-; sleep 600"])
    link = nursery.link("a")
    link.wait_for(b"before")
    first = cpu_ns(pid)
    for _ in range(10):
        link.state()  # round trips through the keeper's loop
    assert cpu_ns(pid) - first < 50_000_000, "the keeper spins"
    assert not link.ring.flags & (layout.FLAG_EOF | layout.FLAG_EXITED)


def test_a_program_that_opens_its_terminal_again_goes_on(nursery: Nursery, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    link = nursery.run(
        "a",
        [
            "sh",
            "-c",
            "tty=$(tty); echo before; exec 0<&- 1<&- 2<&-; "
            f"while [ ! -e {gate} ]; do sleep 0.02; done; "
            "exec 0<>$tty 1>&0 2>&0; echo after; read line; echo got $line; exec sleep 600",
        ],
    )
    link.wait_for(b"before")
    link.state()
    link.type(b"typed meanwhile\n")
    gate.touch()
    out = link.wait_for(b"got typed meanwhile")
    assert out.startswith(b"before\r\n") and b"after" in out
    assert not link.ring.flags & layout.FLAG_EOF


@pytest.mark.parametrize("size", [1000, 5003, 65537, 100_000])
def test_s5_rings_of_any_size(nursery: Nursery, size: int) -> None:
    """Smaller than one read, no power of two: exactly the last `size` bytes at their offsets."""
    link = nursery.run("a", ["sh", "-c", COUNT % 20_000], ring=size, away_ms=0)
    want = expected(20_000)
    until(lambda: link.ring.head == len(want), "the program to finish")
    until(lambda: link.ring.start == len(want) - size, "the ring to come to rest")
    assert link.ring.size == size
    assert link.ring.copy(link.ring.start, link.ring.head) == want[-size:]


def test_s5_a_host_that_comes_back_is_waited_for_again(nursery: Nursery, tmp_path: Path) -> None:
    """A host away for too long lets output roll off.

    Progress below the oldest kept byte changes nothing; progress beyond it does.
    """
    gate = tmp_path / "gate"
    link = nursery.run(
        "a",
        [
            "sh",
            "-c",
            f"{(COUNT % 20_000).removesuffix('exec sleep 600')} "
            f"while [ ! -e {gate} ]; do sleep 0.02; done; {COUNT % 20_000}",
        ],
        ring=65536,
        away_ms=200,
    )
    link.wait_for(b"FINISHED")
    assert link.ring.flags & layout.FLAG_ROLLING
    head = link.ring.head
    link.sock.send(wire.consumed(1))
    link.state()
    assert link.ring.flags & layout.FLAG_ROLLING, (
        "the next needed byte is gone: waiting does not help"
    )
    link.sock.send(wire.consumed(head))
    link.state()
    assert not link.ring.flags & layout.FLAG_ROLLING
    gate.touch()
    got = b""
    while not got.endswith(b"FINISHED\r\n"):
        until(lambda: link.ring.head > head + len(got), "more output")
        piece = link.ring.copy(head + len(got), link.ring.head)
        assert piece is not None
        got += piece
        link.sock.send(wire.consumed(head + len(got)))
    assert difference(got, expected(20_000)) == ""


def test_s5_a_host_cannot_consume_beyond_the_end_nor_give_back(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", COUNT % 10])
    link.wait_for(b"FINISHED")
    head = link.ring.head
    for offset, consumed in (
        (head + 1, 0),
        (5, 5),
        (2**64 - 1, 5),
        (4, 5),
        (head, head),
        (0, head),
    ):
        link.sock.send(wire.consumed(offset))
        link.state()
        link = nursery.link("a")
        assert link.welcome.consumed == consumed


def test_s4_the_exit_of_a_program_behind_a_full_ring_is_told_and_its_output_complete(
    nursery: Nursery,
) -> None:
    """The root process ends with output still in the terminal: no haste, no loss, no spin."""
    link = nursery.run(
        "a",
        ["sh", "-c", "head -c 65536 /dev/zero | tr '\\0' x; printf 'last words'; exit 7"],
        ring=65536,
        away_ms=600_000,
    )
    assert os.waitstatus_to_exitcode(link.exit_status()) == 7
    until(lambda: link.ring.head == 65536, "the ring to be full")
    assert link.ring.flags & (layout.FLAG_EXITED | layout.FLAG_EOF) == layout.FLAG_EXITED
    pid = nursery.keepers["a"]
    first = cpu_ns(pid)
    for _ in range(10):
        link.state()
    assert cpu_ns(pid) - first < 50_000_000, "the keeper spins"
    link.sock.send(wire.consumed(65536))
    link.flag(layout.FLAG_EOF)
    assert link.ring.copy(65536, link.ring.head) == b"last words"


def test_a_hang_up_behind_a_full_ring_with_input_waiting_does_not_spin(
    nursery: Nursery, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    link = nursery.run(
        "a",
        [
            "sh",
            "-c",
            f"stty raw -echo; printf READY; while [ ! -e {gate} ]; do sleep 0.02; done; "
            "head -c 70000 /dev/zero | tr '\\0' x; exec 0<&- 1<&- 2<&-; exec sleep 600",
        ],
        ring=65536,
        away_ms=600_000,
    )
    link.wait_for(b"READY")
    link.fill()
    gate.touch()
    until(lambda: link.ring.head == 65536, "the ring to be full")
    comm = Path(f"/proc/{link.welcome.root_pid}/comm")
    until(lambda: comm.read_text() == "sleep\n", "no process to have the terminal open")
    pid = nursery.keepers["a"]
    first = cpu_ns(pid)
    for _ in range(20):
        link.state()
    assert cpu_ns(pid) - first < 50_000_000, "the keeper spins"
    assert not link.ring.flags & layout.FLAG_EOF
    link.sock.send(wire.consumed(65536))
    until(lambda: link.ring.head == 70005, "the rest")


def test_s6_output_for_the_old_size_lies_before_the_change_of_size(nursery: Nursery) -> None:
    """The offset of a change of size lies behind all earlier output of the program."""
    link = nursery.run(
        "a", ["sh", "-c", "trap 'echo NEW' WINCH; echo OLD; while :; do sleep 0.02; done"]
    )
    link.wait_for(b"OLD")
    link.act(wire.RESIZE, wire.resize_body(100, 40))
    out = link.wait_for(b"NEW")
    offset, cols, rows = link.ring.resized
    assert (cols, rows) == (100, 40) and out.index(b"OLD\r\n") + 5 <= offset <= out.index(b"NEW")


# ---------------------------------------------------------------- bells of viewers of the ring


def rung(bell: int) -> bool:
    try:
        os.read(bell, 8)
        return True
    except BlockingIOError:
        return False


def listen(link: Link, tag: int) -> int:
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    socket.send_fds(link.sock, [wire.listen(tag)], [bell])
    return bell


def test_viewers_bells_ring_at_output_until_silenced(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    first, second = listen(link, 1), listen(link, 2)
    link.state()
    assert rung(first) and rung(second), "once at the beginning: there may be output already"
    link.sock.send(wire.silence(2))
    link.type(b"x")
    link.wait_for(b"x")
    until(lambda: rung(first), "the bell")
    assert not rung(second)
    nursery.link("a").close()  # another host: bells belong to the older host's viewers
    link = nursery.link("a")
    link.type(b"y")
    link.wait_for(b"y")
    link.state()
    assert not rung(first)


def test_a_full_or_closed_bell_disturbs_no_other_viewer(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    full = listen(link, 1)
    link.state()
    assert rung(full)
    os.write(full, (2**64 - 2).to_bytes(8, "little"))
    read_end, write_end = os.pipe()
    socket.send_fds(link.sock, [wire.listen(2)], [write_end])
    os.close(read_end)
    os.close(write_end)
    link.type(b"still here\n")
    link.wait_for(b"still here")


def test_bells_are_bounded_and_need_a_descriptor(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    for tag in range(BELLS_MAX):
        os.close(listen(link, tag))
    link.state()
    os.close(listen(link, BELLS_MAX))
    until(link.closed, "one bell too many to end the connection")
    link = nursery.link("a")
    link.sock.send(wire.listen(1))
    until(link.closed, "a bell without a descriptor to end the connection")
    assert nursery.link("a").state().tag == 1
