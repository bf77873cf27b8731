"""Garbage at a live keeper or nursery costs only its sender the connection."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.wire import keeper as wire
from tests.support.keeper import RAW, Link, Nursery, below, end, gone, hf_root, until

EPOCH = 0x5EED5EED5EED5EED
PACKETS, REQUESTS = 1500, 150


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


def sound(rng: random.Random) -> bytes:
    """A valid packet of another incarnation or without meaning now: no effect on the program."""
    act = wire.Act(
        rng.getrandbits(63),
        rng.choice((0, 1, 2, rng.getrandbits(64))),
        rng.getrandbits(64),
        rng.getrandbits(64),
        rng.getrandbits(8),
    )
    return rng.choice(
        (
            wire.act(wire.INPUT, act, rng.randbytes(rng.randrange(200))),
            wire.resize(act, rng.randrange(1, 65536), rng.randrange(1, 65536)),
            wire.signal(
                act,
                rng.randrange(256),
                rng.randrange(256),
                rng.getrandbits(32),
                rng.getrandbits(64),
            ),
            wire.act(wire.FLUSH, act),
            wire.withdraw(rng.getrandbits(63), rng.getrandbits(64)),
            wire.consumed(rng.getrandbits(64)),
            wire.query(rng.getrandbits(32)),
            wire.release(),
            wire.fence(rng.getrandbits(63), rng.getrandbits(64)),
            wire.label(rng.randbytes(rng.randrange(300))),
            wire.listen(rng.randrange(100)),
            wire.silence(rng.randrange(100)),
            wire.hello(1, rng.randrange(2, 65536), rng.randrange(65536)),
        )
    )


def garbage(rng: random.Random) -> bytes:
    packet = bytearray(sound(rng))
    how = rng.randrange(5)
    if how == 0:
        packet = bytearray(rng.randbytes(rng.choice((1, 2, 13, 34, 500, 70_000))))
    elif how == 1:
        packet = packet[: rng.randrange(1, len(packet) + 1)]
    elif how == 2:
        packet += rng.randbytes(rng.randrange(1, 50))
    elif how == 3:
        packet[0] = rng.randrange(256)
    if packet[0] == wire.HELLO and len(packet) == len(wire.hello(1)):
        packet[0] = 0  # a claim is the one packet that may succeed
    return bytes(packet)


@pytest.mark.parametrize("seed", range(3))
def test_s4_a_session_lives_through_garbage(nursery: Nursery, seed: int) -> None:
    rng = random.Random(seed)
    link = nursery.run("a", ["sh", "-c", RAW + "exec cat"], epoch=EPOCH)
    link.wait_for(b"READY")
    before = (
        link.ring.accepted,
        link.ring.head,
        link.welcome.root_pid,
        len(os.listdir(f"/proc/{nursery.keepers['a']}/fd")),
    )
    null = os.open(os.devnull, os.O_RDWR)
    strangers: list[socket.socket] = []
    for _ in range(PACKETS):
        if rng.random() < 0.1:
            strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            strangers[-1].connect(str(nursery.path("a")))
        target = rng.choice([link.sock, *strangers[-3:]])
        try:
            if rng.random() < 0.2:
                socket.send_fds(target, [garbage(rng)], [null] * rng.randrange(1, 4))
            else:
                target.send(garbage(rng))
        except OSError:
            pass
        if link.closed():
            link = nursery.link("a")
    for sock in strangers:
        sock.close()
    os.close(null)
    link = nursery.link("a")
    fds = f"/proc/{nursery.keepers['a']}/fd"
    until(lambda: len(os.listdir(fds)) <= before[3], f"no descriptor to be left: {os.listdir(fds)}")
    assert (link.ring.accepted, link.ring.head, link.welcome.root_pid) == before[:3]
    state = link.state()
    assert (state.cols, state.rows, state.queued_input) == (80, 24, 0) and not gone(
        link.welcome.root_pid
    )
    link.type(b"unharmed", origin=1, number=1)
    link.wait_for(b"unharmed")
    assert not (nursery.directory / "nursery.log").read_text(), (
        "nothing in it was a surprise to the keeper"
    )


def mutated(rng: random.Random) -> bytes:
    request = bytearray(
        wire.spawn(
            wire.Spawn(
                "f",
                1,
                f"f{rng.getrandbits(30)}.keeper",
                80,
                24,
                1 << 16,
                1000,
                argv=(b"true",),
                env=(b"A=B",),
                ring_tail=b"xyz",
                base=5,
            )
        )
    )
    how = rng.randrange(5)
    if how == 0:
        return rng.randbytes(rng.choice((1, 3, 4, 10, 500, 100_000)))
    if how == 1:
        return bytes(request[: rng.randrange(1, len(request))])
    if how == 2:
        return wire.SPAWN_HEADER.pack(
            wire.SPAWN_MAGIC, rng.choice((0, 1, 2)), rng.choice((0, 5, 2**32 - 1))
        ) + rng.randbytes(5)
    for _ in range(rng.randrange(1, 5)):
        request[rng.randrange(len(request))] = rng.randrange(256)
    return bytes(request)


def test_s4_a_nursery_lives_through_garbage(nursery: Nursery) -> None:
    rng = random.Random(4)
    kept = nursery.run("kept", ["cat"])
    made: list[int] = []
    for _ in range(REQUESTS):
        sock = nursery.connect()
        try:
            sock.sendall(mutated(rng))
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := sock.recv(4096):
                answer += piece
        except OSError:
            pass
        finally:
            sock.close()
        if answer:
            result, _, pid, length = wire.SPAWN_REPLY.unpack_from(answer)
            assert len(answer) == wire.SPAWN_REPLY.size + length
            made += [pid] if result == wire.SPAWN_OK else []
    for pid in made:
        end(pid)
    until(lambda: all(gone(pid) for pid in made), "accidentally started keepers to be gone")
    keeper = nursery.keepers["kept"]
    held = {keeper, kept.welcome.root_pid, hf_root(keeper)} - {0}
    until(lambda: set(below(nursery.process.pid)) == held, "nothing of it to be left")
    kept.type(b"unharmed\n")
    kept.wait_for(b"unharmed")
    fresh: Link = nursery.run("fresh", ["cat"])
    assert fresh.state().tag == 1
    assert not (nursery.directory / "nursery.log").read_text()
