"""Hosts come and go: terms, acts applied once, exits kept until collected (S4)."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import socket
import struct
from pathlib import Path

import pytest

from holdfast.model.limits import KEEPER_BACKLOG, LABEL_BYTES
from holdfast.wire import keeper as wire
from holdfast.wire import snapshot
from tests.support.keeper import RAW, Link, Nursery, below, start_of, stop, until
from tests.support.recovery.checkpoint import unsavable


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
    link.act(wire.INPUT, b"one;", 7, 1, sequence=link.sequence)  # the same packet again
    link.type(b"two;", origin=7, number=2)
    until(lambda: link.ring.accepted == link.sequence, "both acts to be taken")
    again = nursery.link("a")  # the host died; the client asks the next one
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
    later = nursery.link("a")  # much later, another host
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
    """Without hf-root, which reaps those of root's sessions."""
    nursery.spawn("a", ["sh", "-c", "read X; (setsid sh -c 'exit 5' &) ; echo READY; exec cat"])
    link = nursery.link("a")
    unsavable(nursery.keepers["a"])
    link.type(b"\r")
    link.wait_for(b"READY")
    until(
        lambda: any(os.waitstatus_to_exitcode(s) == 5 for _, s in nursery.link("a").welcome.reaped),
        "the orphan's exit code",
    )


def test_a_stray_signal_does_not_end_a_session(nursery: Nursery) -> None:
    _, _, pid, _ = nursery.spawn("a", ["cat"])
    deadly = {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGSTKFLT,
    }
    for number in set(signal.Signals) - deadly - {signal.SIGRTMIN, signal.SIGRTMAX}:
        os.kill(pid, number)
    link = nursery.link("a")
    link.type(b"alive\n")
    link.wait_for(b"alive")


def test_silent_connections_do_not_lock_a_host_out(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    silent = []
    for _ in range(5 * KEEPER_BACKLOG):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(nursery.path("a")))
        silent.append(sock)
    link = nursery.link("a")
    link.type(b"here\n")
    link.wait_for(b"here")
    open_ones = len(os.listdir(f"/proc/{nursery.keepers['a']}/fd"))
    assert open_ones < 16 + KEEPER_BACKLOG, "and they cost a bounded number of descriptors"
    for sock in silent:
        sock.close()
    until(
        lambda: (
            len(os.listdir(f"/proc/{nursery.keepers['a']}/fd")) < open_ones - KEEPER_BACKLOG + 2
        ),
        "them to be forgotten",
    )


def test_a_host_that_reads_no_answers_is_dropped_and_the_session_goes_on(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    try:
        while True:
            link.sock.send(wire.query(1))
    except (BrokenPipeError, ConnectionResetError):
        pass
    again = nursery.link("a")
    again.type(b"goes on\n")
    again.wait_for(b"goes on")


def test_s4_a_removed_socket_comes_back_at_a_hangup(nursery: Nursery) -> None:
    """A socket that a cleaner of old files removed is not lost.

    A host that knows the keeper's pid asks the keeper to listen anew.
    """
    _, _, pid, _ = nursery.spawn("a", ["cat"])
    first = nursery.link("a")
    os.unlink(nursery.path("a"))
    os.kill(pid, signal.SIGHUP)
    until(nursery.path("a").exists, "the socket to come back")
    assert not first.closed(), "the host that is there stays"
    link = nursery.link("a")
    link.type(b"found\n")
    link.wait_for(b"found")


def test_s4_a_removed_run_directory_comes_back_at_a_hangup(nursery: Nursery) -> None:
    _, _, pid, _ = nursery.spawn("a", ["cat"])
    shutil.rmtree(nursery.directory)
    os.kill(pid, signal.SIGHUP)
    nursery.directory.mkdir()
    os.kill(pid, signal.SIGHUP)
    until(nursery.path("a").exists, "the socket to come back")
    link = nursery.link("a")
    link.type(b"found\n")
    link.wait_for(b"found")


def test_s4_a_paused_keeper_loses_nothing(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", RAW + "exec cat"])
    link.wait_for(b"READY")
    stop(nursery.keepers["a"])
    for n in range(50):
        link.type(b"%d;" % n, origin=1, number=n + 1)
    os.kill(nursery.keepers["a"], signal.SIGCONT)
    link.written()
    assert link.wait_for(b";49;") == b"READY\n" + b"".join(b"%d;" % n for n in range(50))


def test_the_socket_credentials_name_the_keeper(nursery: Nursery) -> None:
    """A host learns the pid from the credentials of the socket: they must name the keeper."""
    link = nursery.run("a", ["cat"])
    pid, uid, _ = struct.unpack(
        "3i", link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    assert (pid, uid) == (nursery.keepers["a"], os.geteuid())
    assert Path(f"/proc/{pid}/comm").read_text() == "hf-keeper\n"
    assert (
        link.welcome.root_pid in below(pid)
        and start_of(link.welcome.root_pid) == link.welcome.root_start
    )


def test_s4_the_label_is_kept_for_the_next_host(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    assert link.welcome.label == b"label" and link.welcome.session == "a"
    for label in (b"", os.urandom(LABEL_BYTES)):
        link.sock.send(wire.label(label))
        link.state()
        link = nursery.link("a")
        assert link.welcome.label == label
    link.sock.send(bytes([wire.LABEL]) + bytes(LABEL_BYTES + 1))
    until(link.closed, "a label that is too long to end the connection")


def test_versions_are_negotiated(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    for lowest, highest, fits in ((1, 1, True), (1, 9, True), (2, 9, False), (0, 0, False)):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(nursery.path("a")))
        nursery.term += 1
        sock.send(wire.hello(nursery.term, lowest, highest))
        packet = sock.recv(1 << 17)
        if fits:
            assert wire.read_welcome(packet).version == wire.VERSION
        else:
            assert wire.read_refused(packet) == (wire.REFUSED_VERSION, wire.VERSION)
        sock.close()


def test_s4_readers_cannot_write_the_ring(nursery: Nursery) -> None:
    """The shared memory is sealed: no reader, viewer or host can change history or its size."""
    link = nursery.run("a", ["cat"])
    for attempt in (
        lambda: os.pwrite(link.ring_fd, b"x", 0),
        lambda: os.ftruncate(link.ring_fd, 0),
        lambda: os.ftruncate(link.ring_fd, 1 << 30),
        lambda: mmap.mmap(link.ring_fd, 4096),
    ):
        with pytest.raises(PermissionError):
            attempt()


def test_s6_the_snapshot_outlives_its_host(nursery: Nursery) -> None:
    link = nursery.run("a", ["cat"])
    snapshot.store(link.snapshot, 42, b"a screen")
    link.close()
    again = nursery.link("a")  # held, since it closes its descriptors when it is freed
    assert snapshot.load(again.snapshot) == (42, b"a screen")


def test_garbage_ends_the_connection_never_the_session(nursery: Nursery) -> None:
    nursery.spawn("a", ["cat"])
    for garbage in (
        b"\xff",
        b"\x02",
        b"\x01" * 200,
        b"\xee" + os.urandom(5000),
        bytes([wire.QUERY]) * 34,
    ):
        link = nursery.link("a")
        link.sock.send(garbage)
        until(link.closed, f"the connection to end after {garbage[:8]!r}")
    link = nursery.link("a")
    link.type(b"unharmed\n")
    link.wait_for(b"unharmed")
