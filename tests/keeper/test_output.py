"""The keeper drains the terminal; what it read has one offset for ever (S4, S5)."""

from __future__ import annotations

import os

from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout
from tests.keeper.harness import Nursery, until

COUNT = "i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; done; echo FINISHED; exec sleep 600"


def expected(count: int) -> bytes:
    return b"".join(b"line %d\r\n" % i for i in range(1, count + 1)) + b"FINISHED\r\n"


def test_s4_output_is_byte_identical_over_changes_of_host(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", COUNT % 20_000])
    got = b""
    while not got.endswith(b"FINISHED\r\n"):
        link = nursery.link("a")                       # a new host each time; the old one is just dropped
        until(lambda link=link: link.ring.head > len(got), "more output")  # type: ignore[misc]
        piece = link.ring.copy(len(got), link.ring.head)
        assert piece is not None
        got += piece
        link.sock.send(wire.consumed(len(got)))
        link.close()
    assert got == expected(20_000)


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
    assert got == expected(30_000)


def test_s5_a_host_that_stays_away_does_not_hold_the_program_and_the_gap_is_exact(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", COUNT % 30_000], ring=65536, away_ms=100)
    link = nursery.link("a")
    want = expected(30_000)
    until(lambda: link.ring.head == len(want), "the program to finish without us")
    assert link.ring.flags & layout.FLAG_ROLLING
    start = link.ring.start
    assert start > 0 and link.ring.copy(start - 1, link.ring.head) is None
    assert link.ring.copy(start, link.ring.head) == want[start:]


def test_output_of_a_program_that_ends_at_once_is_complete(nursery: Nursery) -> None:
    for n in range(20):
        nursery.spawn(f"s{n}", ["sh", "-c", f"echo {n} last words; exit {n}"])
        link = nursery.link(f"s{n}")
        until(lambda link=link: link.ring.flags & layout.FLAG_EOF, "the end of output")  # type: ignore[misc]
        assert link.all() == b"%d last words\r\n" % n
        status = link.welcome.status if link.welcome.status >= 0 else wire.read_exited(link.packet(wire.EXITED))[0]
        assert os.waitstatus_to_exitcode(status) == n


def test_a_program_that_closes_its_terminal_is_not_an_end_and_costs_nothing(nursery: Nursery) -> None:
    _, _, pid, _ = nursery.spawn("a", ["sh", "-c", "echo before; exec 0<&- 1<&- 2<&-; sleep 600"])
    link = nursery.link("a")
    link.wait_for(b"before")

    def ticks() -> int:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    first = ticks()
    link.type(b"x")                                     # a round trip through the keeper's loop
    until(lambda: link.ring.accepted == link.sequence, "the act to be taken")
    assert ticks() - first < 20, "the keeper spins"
    assert not link.ring.flags & (layout.FLAG_EOF | layout.FLAG_EXITED)
