"""One operator with a thousand connections, requests or unread answers costs the others nothing.

They can connect, watch, write and halt.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from holdfast import home as homes
from holdfast.client.identity import identity
from holdfast.model.errors import HoldfastError, NotAllowed
from holdfast.model.limits import CLIENTS_MAX, HELLO_WAIT_S, OPERATOR_CLIENTS_MAX, REQUEST_BYTES
from holdfast.wire import frames
from tests.support.installation import SOON_S, Installation, eventually, installation
from tests.support.peers.hostile_client import Lines, Wire
from tests.support.peers.introduction import Introduction


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("evil", "ann")
        yield made


@pytest.fixture(scope="module")
def room(hf: Installation) -> Lines:
    return Lines(hf, "room")


@pytest.fixture(autouse=True)
def served(hf: Installation, room: Lines) -> Iterator[None]:
    """Afterwards: the same host, the same session, no traceback, and a quick halt."""
    pid = hf.host_pid
    yield
    ann = Wire(hf, "ann", random.getrandbits(60) | 2)
    ann.request("halt", session="room")
    ann.request("resume", session="room")
    ann.close()
    assert hf.host_pid == pid and "Traceback" not in (hf.home / "host.log").read_text()


def test_t4_one_operator_with_a_thousand_connections_keeps_no_other_out(hf: Installation) -> None:
    home = homes.resolve(hf.env)
    identity(home, "evil")
    mine: list[Wire] = []
    try:
        with pytest.raises(NotAllowed, match="connections"):
            for n in range(CLIENTS_MAX):
                mine.append(Wire(hf, "evil", 1000 + n))
        assert len(mine) == OPERATOR_CLIENTS_MAX < CLIENTS_MAX
        begun = time.monotonic()
        ann = Wire(hf, "ann", 80)
        assert ann.request("seize", session="room")["turn"]["holder"] == "ann"
        assert time.monotonic() - begun < SOON_S
        ann.close()
        mine.pop().close()
        eventually(lambda: not isinstance(_try(hf), NotAllowed), "room for one more of the same")
    finally:
        for wire in mine:
            wire.close()


def _try(hf: Installation) -> HoldfastError | None:
    try:
        Wire(hf, "evil", 999).close()
    except HoldfastError as e:
        return e
    return None


def test_t4_connections_that_say_nothing_give_way_to_those_that_do(hf: Installation) -> None:
    """At once, not only after the time limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < CLIENTS_MAX + 400:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    silent: list[socket.socket] = []
    try:
        for _ in range(CLIENTS_MAX + 200):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(hf.home / "run/host.sock"))
            silent.append(sock)
        for n in range(5):
            begun = time.monotonic()
            ann = Wire(hf, "ann", 81 + n)
            ann.request("ping")
            assert time.monotonic() - begun < HELLO_WAIT_S - 1, (
                "they went because their time was over"
            )
            ann.close()
    finally:
        for sock in silent:
            sock.close()


def test_a4_requests_of_one_operator_do_not_delay_those_of_another(hf: Installation) -> None:
    evil = Wire(hf, "evil", 90)
    for n in range(2000):
        evil.say(frames.request(n + 10, {"op": "wait", "session": "room", "for": "exit"}))
    ann = Wire(hf, "ann", 91)
    begun = time.monotonic()
    ann.request("seize", session="room")
    assert time.monotonic() - begun < SOON_S
    ann.close()
    evil.close()


def test_s6_a_client_that_never_reads_does_not_block_the_others(hf: Installation) -> None:
    """The client watches a flood and has queued answers, and reads neither.

    (That the host drops such a client: tests/e2e/sessions/test_bad_input.py.)
    """
    hf.new(
        "flood",
        "--",
        "sh",
        "-c",
        "while :; do echo a line of output that goes on and on and on; done",
    )
    evil = [Wire(hf, "evil", 920 + n) for n in range(20)]
    for wire in evil:
        wire.attach("flood")
        wire.say(
            *(
                frames.request(n + 10, {"op": "view", "session": "flood", "ansi": True})
                for n in range(50)
            )
        )
    ann = Wire(hf, "ann", 93)
    begun = time.monotonic()
    assert ann.request("seize", session="flood")["flushed"] is True
    ann.request("halt", session="flood")
    assert time.monotonic() - begun < SOON_S
    ann.request("end", session="flood")
    for wire in (*evil, ann):
        wire.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<IB", REQUEST_BYTES + 1, frames.REQUEST),
        struct.pack("<IB", 0xFFFFFFFF, frames.INPUT),
        frames.frame(frames.INPUT, b"short"),
        frames.frame(frames.RESIZE, bytes(3)),
        frames.frame(frames.CANCEL, b""),
        frames.frame(frames.SEEN, bytes(9)),
        frames.frame(frames.REQUEST, b"\0\0\0\0[1]"),
        frames.frame(frames.REQUEST, b"\0\0\0\0" + b"[" * 50_000),
        frames.frame(frames.PROOF, b"{}"),
        *(frames.frame(kind, b"{}") for kind in sorted(frames.FROM_HOST)),
        frames.frame(0, b""),
    ],
    ids=lambda b: repr(b[:9]),
)
def test_p1_garbage_from_an_attached_operator_ends_only_its_connection(
    hf: Installation, room: Lines, garbage: bytes
) -> None:
    evil, ann = Wire(hf, "evil", 94), Wire(hf, "ann", 95)
    evil.attach("room")
    ann.attach("room", observe=True)
    evil.say(garbage)
    assert evil.dropped()
    assert ann.until("left", operator="evil")
    assert room.lines == []
    evil.close()
    ann.close()


def test_p1_a_proof_for_one_machine_is_worth_nothing_on_another(
    hf: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same key, known on both machines, and a relay between them that replays the proof."""
    with installation(tmp_path_factory.mktemp("other")) as other:
        other.quick("ls")
        here, there = homes.resolve(hf.env), homes.resolve(other.env)
        public = identity(here, "ann").public
        with contextlib.closing(Wire(other, "tester", 96)) as friend:
            from holdfast.model import signing

            friend.request("operator.add", name="ann", kind="human", key=signing.show(public))
        introduction = Introduction(here, 97, "ann")
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            for sock, home in ((one, here), (two, there)):
                sock.settimeout(120)
                sock.connect(home.host_socket)
                sock.sendall(introduction.hello)
            kinds = []
            challenges = []
            for sock in (one, two):
                kind, payload = _frame(sock)
                kinds.append(kind)
                challenges.append(payload)
            assert kinds == [frames.CHALLENGE] * 2
            two.sendall(introduction.proof(challenges[0]))  # her proof for the first
            kind, payload = _frame(two)
            assert kind == frames.BYE and frames.read_json(payload)["reason"] == "admission"


def _frame(sock: socket.socket) -> tuple[int, bytes]:
    splitter = frames.Splitter(frames.FROM_HOST)
    while True:
        data = sock.recv(1 << 16)
        assert data
        for one in splitter.feed(data):
            return one
