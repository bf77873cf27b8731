"""A keeper that starts from saved state, around a tree that another process launched (R2)."""

from __future__ import annotations

import errno
import os
import pty
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout
from tests.support.keeper import Link, Nursery, end, gone, start_of, until

BASE = 2**40 + 12345  # far beyond 32 bits


class Tree:
    """A program on a terminal, launched here, as a restore would."""

    def __init__(self, command: str) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execv("/bin/sh", ["sh", "-c", command])
        self.start = start_of(self.pid)

    def reap(self) -> None:
        end(self.pid)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree("stty raw -echo; echo READY; sleep 601 & exec cat")
    yield made
    made.reap()


def adopt(nursery: Nursery, tree: Tree, **saved: Any) -> tuple[int, int, int, str]:
    request = wire.Spawn(
        "a", 9, "a.keeper", 100, 40, 70_001, 10_000, b"saved label", adopt_pid=tree.pid
    )._replace(**saved)
    answer = nursery.ask(wire.spawn(request), "a", [tree.master])
    os.close(tree.master)
    return answer


def adopted(nursery: Nursery, tree: Tree, **saved: Any) -> Link:
    result, _, _, text = adopt(nursery, tree, **saved)
    assert result == wire.SPAWN_OK, text
    return nursery.link("a")


def test_r2_a_running_tree_is_taken_over_with_all_that_was_saved(
    nursery: Nursery, tree: Tree
) -> None:
    tail = bytes(n % 251 for n in range(60_000))
    origins = tuple(wire.Origin(n, 10 * n, n) for n in range(1, 200))
    link = adopted(nursery, tree, base=BASE, ring_tail=tail, accepted=5000, origins=origins)
    assert (
        link.welcome.epoch == 9
        and link.welcome.label == b"saved label"
        and link.welcome.origins == origins
    )
    assert (link.welcome.root_pid, link.welcome.root_start, link.welcome.status) == (
        tree.pid,
        tree.start,
        -1,
    )
    assert link.welcome.consumed == BASE and link.ring.accepted == link.ring.written == 5000
    assert link.ring.start == BASE - len(tail) and link.ring.resized == (BASE, 100, 40)
    assert link.ring.copy(BASE - len(tail), BASE) == tail
    until(lambda: link.ring.head == BASE + 6, "its output to follow at once")
    assert link.ring.copy(BASE, BASE + 6) == b"READY\n"
    link.type(b"again", origin=7, number=70)  # done before the save
    link.type(b"new", origin=7, number=71)
    until(lambda: link.ring.head == BASE + 9, "the echo of the new input")
    assert link.ring.copy(BASE + 6, BASE + 9) == b"new" and link.ring.accepted == 5002
    link.sock.send(wire.consumed(BASE + 9))
    link.state()
    assert nursery.link("a").welcome.consumed == BASE + 9


def test_r2_of_more_history_than_the_ring_has_the_last_is_kept(
    nursery: Nursery, tree: Tree
) -> None:
    tail = bytes(n % 253 for n in range(100_000))
    link = adopted(nursery, tree, base=BASE, ring_tail=tail)
    until(lambda: link.ring.head == BASE + 6, "its first words")
    assert link.ring.start == BASE + 6 - 70_001
    assert link.ring.copy(link.ring.start, BASE) == tail[-(70_001 - 6) :]


def test_r2_the_end_of_a_root_that_is_no_child_is_seen(nursery: Nursery, tree: Tree) -> None:
    link = adopted(nursery, tree)
    link.wait_for(b"READY")
    os.kill(tree.pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(wire.read_exited(link.packet(wire.EXITED))[0]) == 255, (
        "its code is its parent's to know"
    )
    assert link.ring.flags & layout.FLAG_EXITED
    link.sock.send(wire.release())
    until(lambda: gone(nursery.keepers["a"]), "the keeper to go")


def test_r2_its_whole_tree_can_be_signalled(nursery: Nursery, tree: Tree) -> None:
    link = adopted(nursery, tree)
    link.wait_for(b"READY")
    child = next(
        int(p) for p in Path(f"/proc/{tree.pid}/task/{tree.pid}/children").read_text().split()
    )
    link.signal(signal.SIGSTOP, wire.SCOPE_PROCESS, os.getpid())
    link.signal(signal.SIGKILL, wire.SCOPE_ALL)
    for pid in (tree.pid, child):
        until(lambda pid=pid: gone(pid), f"the end of {pid}")  # type: ignore[misc]


def test_r2_the_launcher_is_no_orphan_of_the_session(nursery: Nursery, tree: Tree) -> None:
    assert adopted(nursery, tree).welcome.reaped == ()


def test_r2_a_root_that_ended_before_it_was_saved(nursery: Nursery, tree: Tree) -> None:
    link = adopted(nursery, tree, status=7 << 8, base=3, ring_tail=b"end")
    assert link.welcome.status == 7 << 8 and link.ring.flags & layout.FLAG_EXITED
    link.sock.send(wire.release())
    until(lambda: gone(nursery.keepers["a"]), "the keeper to go")


def test_r2_a_root_that_ended_meanwhile(nursery: Nursery, tree: Tree) -> None:
    tree.reap()
    link = adopted(nursery, tree)
    assert (
        os.waitstatus_to_exitcode(link.welcome.status) == 255
        and link.ring.flags & layout.FLAG_EXITED
    )


def test_r2_an_adoption_without_the_terminal_is_refused(nursery: Nursery, tree: Tree) -> None:
    request = wire.spawn(wire.Spawn("a", 1, "a.keeper", 80, 24, 1 << 16, 1000, adopt_pid=tree.pid))
    null = os.open(os.devnull, os.O_RDWR)
    for fds in (None, [null]):
        result, number, _, text = nursery.ask(request, "a", fds)
        assert (result, number) == (wire.SPAWN_FAILED, errno.EINVAL) and "terminal" in text
    os.close(null)
    os.close(tree.master)
