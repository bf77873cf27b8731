"""Hosts come and go: terms, acts applied once, exits kept until collected (S4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast.wire import keeper as wire
from tests.keeper.harness import Link, Nursery, until


def test_s4_a_newer_term_closes_the_older_and_an_older_is_refused(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    path = nursery.directory / "a.keeper"
    first = Link(path, 5)
    stale = Link(path, 5)
    assert wire.read_refused(stale.first) == (wire.REFUSED_TERM, 5)
    second = Link(path, 6)
    assert second.welcome.term == 6
    until(first.closed, "the older host to be dropped")
    nursery.term = 6


def test_s4_an_act_is_applied_once(nursery: Nursery, tmp_path: Path) -> None:
    nursery.spawn("a", ["sh", "-c", "stty raw -echo; echo READY; exec cat"])
    link = nursery.link("a")
    link.wait_for(b"READY")
    link.type(b"one;", origin=7, number=1)
    link.act(wire.INPUT, b"one;", 7, 1, sequence=link.sequence)        # the same packet again
    link.type(b"two;", origin=7, number=2)
    until(lambda: link.ring.accepted == link.sequence, "both acts to be taken")
    again = nursery.link("a")                                           # the host died; the client asks the next one
    assert wire.Origin(7, 2, again.ring.accepted) in again.welcome.origins
    again.type(b"two;", origin=7, number=2)
    again.type(b"three;", origin=7, number=3)
    again.wait_for(b"three;")
    assert again.all().endswith(b"one;two;three;")


def test_s4_a_stale_epoch_and_a_gap_in_the_sequence_are_rejected(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"], epoch=3)
    link = nursery.link("a")
    link.act(wire.INPUT, b"x", epoch=2)
    assert wire.read_rejected(link.packet(wire.REJECTED)) == (1, wire.REJECT_EPOCH, 3)
    link.act(wire.INPUT, b"x", sequence=5)
    assert wire.read_rejected(link.packet(wire.REJECTED)) == (5, wire.REJECT_SEQUENCE, 0)


def test_s4_exit_codes_are_kept_until_collected(nursery: Nursery) -> None:
    _, _, pid, _ = nursery.spawn("a", ["sh", "-c", "exit 37"])
    path = nursery.directory / "a.keeper"
    link = nursery.link("a")
    if link.welcome.status < 0:
        link.packet(wire.EXITED)
    link.close()
    later = nursery.link("a")                                           # much later, another host
    assert os.waitstatus_to_exitcode(later.welcome.status) == 37
    later.sock.send(wire.release())
    until(lambda: not path.exists() and not os.path.exists(f"/proc/{pid}"), "the keeper to go")


def test_release_before_the_end_is_ignored(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    link = nursery.link("a")
    link.sock.send(wire.release())
    link.type(b"still here\n")
    link.wait_for(b"still here")


def test_s4_the_death_of_the_nursery_changes_nothing(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    nursery.process.send_signal(signal.SIGKILL)
    nursery.process.wait()
    link = nursery.link("a")
    link.type(b"alive\n")
    link.wait_for(b"alive\r\nalive\r\n")


def test_orphans_are_reaped_and_their_codes_kept(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", "(setsid sh -c 'exit 5' &) ; echo READY; exec cat"])
    link = nursery.link("a")
    link.wait_for(b"READY")
    until(lambda: any(os.waitstatus_to_exitcode(s) == 5 for _, s in nursery.link("a").welcome.reaped), "the orphan's exit code")


def test_a_stray_terminate_does_not_end_a_session(nursery: Nursery) -> None:
    _, _, pid, _ = nursery.spawn("a", ["cat"])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(pid, number)
    link = nursery.link("a")
    link.type(b"alive\n")
    link.wait_for(b"alive")


def test_garbage_ends_the_connection_never_the_session(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    for garbage in (b"\xff", b"\x02", b"\x01" * 200, b"\xee" + os.urandom(5000), bytes([wire.QUERY]) * 34):
        link = nursery.link("a")
        link.sock.send(garbage)
        until(link.closed, f"the connection to end after {garbage[:8]!r}")
    link = nursery.link("a")
    link.type(b"unharmed\n")
    link.wait_for(b"unharmed")


def test_what_cannot_be_started_is_said(nursery: Nursery) -> None:
    result, number, _, text = nursery.spawn("a", ["/no/such/program"])
    assert (result, number) == (wire.SPAWN_FAILED, 2) and "/no/such/program" in text
    result, number, _, text = nursery.spawn("b", ["sh"], cwd="/no/such/place")
    assert (result, number) == (wire.SPAWN_FAILED, 2) and "/no/such/place" in text


def test_the_program_gets_three_descriptors_and_a_sane_world(nursery: Nursery) -> None:
    nursery.spawn("a", ["sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; echo END; grep Sig[IB] /proc/self/status; exec cat"])
    link = nursery.link("a")
    out = link.wait_for(b"SigIgn")
    assert out.startswith((b"0 1 2 3 END", b"0 1 2 END"))       # 3 is ls reading the directory
    assert b"SigBlk:\t0000000000000000" in out and b"SigIgn:\t0000000000000000" in out
