"""Acts: each taken once, in order; waiting, overtaking and withdrawn acts (S4, A3)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.model.limits import INPUT_QUEUE_ACTS, INPUT_QUEUE_BYTES, ORIGINS_KEPT
from holdfast.wire import keeper as wire
from tests.support.keeper import RAW, Nursery, below, gone, start_of, state_of, until

DEAF = RAW + "exec sleep 600"  # a program that never reads


def reader(gate: Path, out: Path) -> str:
    """A program that reads no input until the gate exists, and then all input, into a file."""
    return f"{RAW} while [ ! -e {gate} ]; do sleep 0.02; done; exec cat > {out}"


def test_s4_a_resize_does_not_wait_behind_unread_input(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", DEAF])
    link.wait_for(b"READY")
    first = link.fill()[0]
    link.act(wire.RESIZE, wire.resize_body(132, 43))
    link.taken()
    state = link.state()
    assert (state.cols, state.rows) == (132, 43)
    assert link.ring.resized[1:] == (132, 43)
    assert link.ring.written == first - 1, "WRITTEN passes nothing that is incomplete"


def test_s4_a_host_that_asked_is_told_when_the_effect_is_complete(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The bell rings when an act is taken, and on request when WRITTEN passes the act."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", ["sh", "-c", reader(gate, out)])
    link.wait_for(b"READY")
    waiting = link.fill()
    link.act(wire.RESIZE, wire.resize_body(90, 30))  # asks
    link.type(b"end", flags=0)  # does not
    link.taken()
    link.state()
    link.rung()
    assert link.ring.written < waiting[0]
    gate.touch()
    until(link.rung, "the bell")
    link.written()
    until(lambda: out.read_bytes().endswith(b"end"), "all of it to arrive")


def test_s4_written_is_exact_while_input_waits(nursery: Nursery, tmp_path: Path) -> None:
    """After the first of two waiting inputs is through, WRITTEN includes the acts between them."""
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run(
        "a",
        [
            "sh",
            "-c",
            f"{RAW} while [ ! -e {gate} ]; do sleep 0.02; done; "
            f"dd of={out} bs=1 count=40000 2>/dev/null; echo HALF; exec sleep 600",
        ],
    )
    link.wait_for(b"READY")
    first = link.type(b"a" * 40_000)
    between = link.act(wire.RESIZE, wire.resize_body(91, 31))
    link.type(b"b" * 60_000)
    link.taken()
    assert link.ring.written == first - 1
    gate.touch()
    link.wait_for(b"HALF")
    until(lambda: link.ring.written == between, f"WRITTEN to be {between}, not {link.ring.written}")


def test_s4_input_in_pieces_arrives_whole_and_in_order(nursery: Nursery, tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", ["sh", "-c", reader(gate, out)])
    link.wait_for(b"READY")
    sent = b""
    for n in range(30):
        piece = bytes([65 + n % 26]) * (n * 997 % 30_000)  # the first has no byte at all
        sent += piece
        link.type(piece)
    link.taken()
    gate.touch()
    link.written()
    until(lambda: out.exists() and out.stat().st_size >= len(sent), "all of it to arrive")
    assert out.read_bytes() == sent


def test_s4_input_of_no_bytes_is_an_act_like_any_other(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    link.type(b"", origin=3, number=9)
    link.written()
    assert wire.Origin(3, 9, link.sequence) in nursery.link("a").welcome.origins


@pytest.mark.parametrize("piece", [32768, 0], ids=["bytes", "acts"])
def test_unread_input_is_bounded(nursery: Nursery, piece: int) -> None:
    """Beyond the bound an act is refused, and its number stays free."""
    link = nursery.run("a", ["sh", "-c", DEAF])
    link.wait_for(b"READY")
    link.fill()
    bound = INPUT_QUEUE_ACTS if not piece else INPUT_QUEUE_BYTES // piece
    for _ in range(bound + 2):
        link.type(b"x" * piece, origin=5, number=link.sequence, flags=0)
        if link.sequence % 100 == 0:
            link.state()  # reads along, so that nobody's buffer is full
    sequence, reason, value = link.rejected()
    assert reason == wire.REJECT_FULL and value <= INPUT_QUEUE_BYTES
    assert link.rejected()[:2] == (sequence + 1, wire.REJECT_SEQUENCE)
    state = link.state()
    assert state.queued_input <= INPUT_QUEUE_BYTES and link.ring.accepted == sequence - 1
    link.sock.send(wire.withdraw(1, 0))
    entries = wire.read_withdrawn(link.packet(wire.WITHDRAWN))
    assert len(entries) <= INPUT_QUEUE_ACTS and entries[-1][0] == sequence - 1
    link.type(b"x", origin=5, number=10**9)
    assert link.rejected()[1] == wire.REJECT_SEQUENCE, (
        "withdrawn numbers are used up, refused ones are not"
    )
    link.act(wire.INPUT, b"x", 5, 10**9, sequence=sequence)
    link.taken()


def test_a3_withdrawn_input_reaches_no_program_and_the_delivered_part_is_exact(
    nursery: Nursery, tmp_path: Path
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", ["sh", "-c", reader(gate, out)])
    link.wait_for(b"READY")
    waiting = link.fill()
    link.type(b"never")
    link.taken()
    link.sock.send(wire.withdraw(1, waiting[0]))
    entries = wire.read_withdrawn(link.packet(wire.WITHDRAWN))
    assert [e[0] for e in entries] == [*waiting, link.sequence]
    assert 0 <= entries[0][1] < entries[0][2] == 32768 and entries[-1][1:] == (0, 5)
    assert link.ring.written == link.sequence, "nothing waits any more"
    handed = 32768 * (waiting[0] - 1) + entries[0][1]
    gate.touch()
    link.type(b"after")
    until(lambda: out.exists() and out.read_bytes().endswith(b"after"), "the later input")
    assert out.stat().st_size == handed + 5 and b"never" not in out.read_bytes()


def test_a3_withdrawing_is_bound_to_the_epoch_and_to_where_it_begins(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", DEAF], epoch=4)
    link.wait_for(b"READY")
    link.fill()
    last = link.type(b"last")
    link.taken()
    link.sock.send(wire.withdraw(3, 0))
    assert wire.read_withdrawn(link.packet(wire.WITHDRAWN)) == []
    link.sock.send(wire.withdraw(4, last))
    assert wire.read_withdrawn(link.packet(wire.WITHDRAWN)) == [(last, 0, 4)]
    assert link.ring.written < last - 1, "earlier input still waits"


def test_a3_a_flush_discards_input_waiting_in_keeper_and_kernel(
    nursery: Nursery, tmp_path: Path
) -> None:
    gate, out = tmp_path / "gate", tmp_path / "out"
    link = nursery.run("a", ["sh", "-c", reader(gate, out)])
    link.wait_for(b"READY")
    link.type(b"o" * 3000)  # in the kernel
    link.written()
    link.fill()  # here
    link.act(wire.FLUSH)
    link.written()
    assert link.state().queued_input == 0
    gate.touch()
    link.type(b"new")
    until(lambda: out.exists() and out.read_bytes().endswith(b"new"), "the later input")
    assert out.read_bytes() == b"new"


def test_s4_a_known_act_after_a_gap_is_a_gap(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    link.type(b"x\n", origin=7, number=1)
    link.act(wire.INPUT, b"x\n", 7, 1, sequence=9)
    assert link.rejected() == (9, wire.REJECT_SEQUENCE, 1)


def test_s4_a_known_act_under_a_new_number_uses_it_up(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", RAW + "exec cat"])
    link.wait_for(b"READY")
    link.type(b"once", origin=7, number=4)
    link.type(b"once", origin=7, number=4)
    link.type(b"once", origin=7, number=3)  # older numbers too
    link.type(b"twice", origin=7, number=5)
    link.wait_for(b"twice")
    assert link.all().endswith(b"oncetwice") and link.ring.written == 4
    assert nursery.link("a").welcome.origins == (wire.Origin(7, 5, 4),)


def test_s4_the_longest_silent_client_is_forgotten_first(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    for origin in range(1, ORIGINS_KEPT + 1):
        link.type(b"", origin=origin, number=1, flags=0)
    link.type(b"", origin=1, number=2)  # not the longest silent any more
    link.type(b"", origin=10**12, number=1)
    link.written()
    kept = {o.origin: o.origin_sequence for o in nursery.link("a").welcome.origins}
    assert len(kept) == ORIGINS_KEPT and kept[1] == 2 and 2 not in kept and kept[10**12] == 1


@pytest.mark.parametrize(
    "kind, body",
    [
        (wire.RESIZE, wire.resize_body(1, 24)),
        (wire.RESIZE, wire.resize_body(80, 60000)),
        (wire.RESIZE, b"\x50\x00"),
        (wire.SIGNAL, wire.signal_body(65, 0)),
        (wire.SIGNAL, wire.signal_body(9, 4)),
        (wire.SIGNAL, b""),
        (wire.SIGNAL, wire.signal_body(9, wire.SCOPE_PROCESS, 2**32 - 1)),
        (wire.FLUSH, b"x"),
    ],
)
def test_a_malformed_act_is_not_applied_and_not_remembered(
    nursery: Nursery, kind: int, body: bytes
) -> None:
    link = nursery.run("a", ["cat"])
    link.act(kind, body, origin=7, number=1)
    assert wire.read_refused(link.packet(wire.REFUSED)) == (wire.REFUSED_PACKET, kind)
    until(link.closed, "the connection to end")
    after = nursery.link("a")
    assert (
        after.ring.accepted == 0
        and after.welcome.origins == ()
        and (after.state().cols, after.state().rows) == (80, 24)
    )


def test_after_the_end_only_signals_are_taken(nursery: Nursery) -> None:
    """Waiting acts can still be withdrawn, so that a host knows how far the program got."""
    link = nursery.run("a", ["sh", "-c", RAW + "(trap '' HUP; exec sleep 600) & exec sleep 600"])
    link.wait_for(b"READY")
    waiting = link.fill()
    link.signal(signal.SIGKILL, wire.SCOPE_ROOT_GROUP)
    link.packet(wire.EXITED)
    for kind, body in (
        (wire.INPUT, b"x"),
        (wire.RESIZE, wire.resize_body(90, 30)),
        (wire.FLUSH, b""),
    ):
        link.act(kind, body)
        link.sequence -= 1
        assert link.rejected()[1] == wire.REJECT_CLOSED
    link.sock.send(wire.withdraw(1, 0))
    assert [e[0] for e in wire.read_withdrawn(link.packet(wire.WITHDRAWN))] == waiting
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    link.taken()


# ---------------------------------------------------------------- signals

TREE = (
    "sleep 601 & setsid sleep 602 & (setsid sh -c 'sleep 603 & exec sleep 604' &) ; "
    "echo READY; exec sleep 605"
)


def tree(nursery: Nursery) -> tuple[int, dict[str, int]]:
    """Keeper, and the session's processes by their sleep argument."""
    keeper = nursery.keepers["a"]
    found: dict[str, int] = {}

    def look() -> bool:
        for pid in below(keeper):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == b"sleep":
                found[words[1].decode()] = pid
        return len(found) == 5

    until(look, "the tree to stand")
    return keeper, found


def test_p5_a_signal_to_all_reaches_daemons_too(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", TREE])
    link.wait_for(b"READY")
    _, found = tree(nursery)
    link.signal(signal.SIGTERM, wire.SCOPE_ALL)
    for pid in found.values():
        until(lambda pid=pid: gone(pid), f"the end of {pid}")  # type: ignore[misc]


def test_p5_one_process_is_signalled_by_pid_and_start(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", TREE])
    link.wait_for(b"READY")
    _, found = tree(nursery)
    one, other = found["603"], found["601"]
    link.signal(signal.SIGTERM, wire.SCOPE_PROCESS, one, start_of(one) + 1)  # a pid that was reused
    link.signal(
        signal.SIGTERM, wire.SCOPE_PROCESS, os.getpid(), start_of(os.getpid())
    )  # not of this session
    link.taken()
    assert state_of(one) in ("S", "R", "D")
    link.signal(signal.SIGTERM, wire.SCOPE_PROCESS, one, start_of(one))
    until(lambda: gone(one), "its end")
    assert state_of(other) in ("S", "R", "D")


def test_p5_groups_are_signalled_as_such(nursery: Nursery) -> None:
    link = nursery.run(
        "a",
        [
            "bash",
            "-i",
            "-c",
            "set -m; trap 'echo ROOT' USR1; sleep 600; echo DONE $?; exec sleep 600",
        ],
    )
    until(
        lambda: link.state().foreground not in (0, link.welcome.root_pid),
        "the job to be in the foreground",
    )
    link.signal(signal.SIGTERM, wire.SCOPE_FOREGROUND)
    link.wait_for(b"DONE 143")
    link.signal(signal.SIGKILL, wire.SCOPE_ROOT_GROUP)
    assert wire.read_exited(link.packet(wire.EXITED))[0] == signal.SIGKILL


def test_a_program_that_ignores_a_hangup_outlives_it(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "trap '' HUP; echo READY; exec sleep 600"])
    link.wait_for(b"READY")
    link.signal(signal.SIGHUP, wire.SCOPE_ALL)
    link.taken()
    assert state_of(link.welcome.root_pid) in ("S", "R", "D")
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    assert wire.read_exited(link.packet(wire.EXITED))[0] == signal.SIGKILL
