"""S3: hundreds of clients are killed at any byte, under flood and while typing, unnoticed."""

from __future__ import annotations

import os
import pty
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support import workload
from tests.support.busy_machine import Busy, stripped
from tests.support.checkers.history import (
    Kind,
    Outcome,
    Sent,
    check_input,
    check_output,
    check_processes,
    difference,
)
from tests.support.clients import Attached, Lean
from tests.support.stage import DEADLINE_S, Stage

PATIENT = "[session]\npace_s = 60.0\n"  # a slow test process misses no output


class Typist:
    """A real attach client that types small tokens and is killed after a given number of bytes."""

    def __init__(self, stage: Stage, session: str, number: int, rng: random.Random) -> None:
        self.number = number
        self.client = Attached(stage, session, eye=False)
        self.typing = rng.random() < 0.6
        self.bytes_until = rng.choice((0, rng.randrange(600), rng.randrange(100_000)))
        self.typed_until = rng.randint(1, 12)
        self.tokens: list[bytes] = []
        self.until = time.monotonic() + 8.0

    def due(self) -> bool:
        """Type on; return whether the client is due to be killed."""
        if self.typing and len(self.client.data) > 200 and len(self.tokens) < self.typed_until:
            token = workload.tagged(self.number, len(self.tokens) + 1, 10)
            self.tokens.append(token)
            self.client.type(token)
        enough = (
            len(self.tokens) >= self.typed_until
            if self.typing
            else len(self.client.data) >= self.bytes_until
        )
        return enough or time.monotonic() > self.until

    def history(self) -> list[Sent]:
        return [
            Sent(self.number, n, token, Outcome.UNKNOWN) for n, token in enumerate(self.tokens, 1)
        ]


def kill_attach_clients(stage: Stage, kills: int, seed: int, at_once: int = 4) -> int:
    """Kill so many real clients beside two that stay, and judge.

    Returns how many bytes a staying client was shown.
    """
    rng = random.Random(seed)
    stage.start_host()
    busy = Busy(stage, "busy", 7, burst=8, pause_ms=30, viewers=1)
    host = stage.host
    killed: list[Typist] = []
    live: list[Typist] = []
    while len(killed) < kills:
        while len(live) < at_once and len(killed) + len(live) < kills:
            live.append(Typist(stage, "busy", 1000 + len(killed) + len(live), rng))
        stage.pump.turn(0.004)
        if rng.random() < 0.1:
            busy.type(rng)
        for one in [t for t in live if t.due()]:
            assert one.client.kill() == -signal.SIGKILL
            one.client.close()
            live.remove(one)
            killed.append(one)
    assert stage.host == host and stage.running(host)
    assert check_processes(busy.identity, {"busy": stage.identity("busy")}) == []
    stage.pump.until(
        lambda: not [o for o in stage.session("busy")["operators"] if o["pid"] != os.getpid()],
        "dead clients are gone",
    )
    faults = busy.stop()
    raw = workload.flood(int(Path(busy.path + ".count").read_text()))
    received = Path(busy.path).read_bytes()
    # `stop` judged without the killed clients' tokens: judged again with them
    faults = [f for f in faults if f.kind not in (Kind.UNASKED, Kind.TORN)]
    history = [one for t in killed for one in t.history()] + [
        one for v in busy.viewers for one in v.history()
    ]
    faults += check_input(history, received)
    assert len(busy.viewers[0].screens) == 1, "the one that stays was repainted"
    assert [str(f) for f in faults] == []
    return len(raw)


def test_s3_attach_clients_killed_at_random_bytes(stage: Stage) -> None:
    shown = kill_attach_clients(stage, 200, 3)
    print(f"200 attach clients killed while {shown >> 10} KiB were shown")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_s3_attach_clients_killed_for_long(stage: Stage) -> None:
    kill_attach_clients(stage, 1000, 4)


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s3_connections_cut_at_random_bytes(stage: Stage) -> None:
    """Clients of the wire: half of them die, half reconnect and continue; 240 cuts in all."""
    rng = random.Random(6)
    stage.start_host()
    busy = Busy(stage, "busy", 9, burst=8, pause_ms=10, viewers=6)
    steady = busy.viewers[0]
    due = {v: rng.randrange(300_000) for v in busy.viewers[1:]}
    cuts = 0
    end = time.monotonic() + 2 * DEADLINE_S
    while cuts < 240:
        assert time.monotonic() < end, f"{cuts} cuts"
        stage.pump.turn(0.004)
        if rng.random() < 0.3:
            busy.type(rng)
        for viewer in [v for v, at in due.items() if v.live and (v.position or 0) >= at]:
            cuts += 1
            if rng.random() < 0.5:
                viewer.cut()
                due[viewer] = (viewer.position or 0) + rng.randrange(100_000)
            else:
                del due[viewer]
                fresh = busy.replace(viewer)
                due[fresh] = (steady.position or 0) + rng.randrange(100_000)
    assert [str(f) for f in busy.stop()] == []
    assert len(steady.screens) == 1 and all(
        len(v.screens) <= 1 for v in (*busy.viewers, *busy.dead)
    ), "a viewer was repainted"


def test_s3_a_half_sent_frame_and_garbage_cost_only_their_sender(stage: Stage) -> None:
    """A client that dies inside a frame, at every byte of the frame."""
    from holdfast.transport import unix
    from holdfast.wire import frames
    from tests.support.peers.introduction import Introduction

    stage.start_host()
    path = f"{stage.directory}/typed"
    stage.work("quiet", "record", path, 5)
    other = Lean(stage, "quiet").attached()
    introduction = Introduction(stage.home, 77)
    attach = frames.request(1, {"op": "attach", "session": "quiet", "cols": 80, "rows": 24})
    keys = frames.input_(1, b"<torn>")
    proof = len(
        introduction.proof(
            frames.pack_json(frames.CHALLENGE, {"version": 2, "machine": "m", "nonce": "n"})[
                frames.HEADER.size :
            ]
        )
    )
    for cut in range(1, len(introduction.hello) + proof + len(attach) + len(keys), 3):
        sock = unix.connect(stage.home.host_socket)
        sock.sendall(introduction.hello[:cut])
        if (left := cut - len(introduction.hello)) > 0:
            splitter = frames.Splitter(frames.FROM_HOST)
            [(kind, challenge)] = splitter.feed(sock.recv(1 << 16))
            assert kind == frames.CHALLENGE
            sock.sendall((introduction.proof(challenge))[:left])
            if left > proof:
                assert [kind for kind, _ in splitter.feed(sock.recv(1 << 16))] == [frames.WELCOME]
                sock.sendall((attach + keys)[: left - proof])
        sock.close()
    other.type(b"<whole>")
    stage.pump.until(lambda: other.settled, "the other client is served")
    other.type(workload.STOP)
    assert stage.exit_code("quiet") == 5
    assert Path(path).read_bytes() == b"<whole>"


def test_s4_the_reference_is_what_a_direct_run_prints(stage: Stage) -> None:
    """The reference of all other tests equals the program's output on a plain terminal.

    A session's raw output equals the same reference.
    """
    argv = workload.command("flood", 3000, 11)
    pid, master = pty.fork()
    if pid == 0:
        try:
            os.execv(argv[0], argv)
        finally:
            os._exit(99)
    direct = bytearray()
    try:
        while piece := os.read(master, 65536):
            direct += piece
    except OSError:
        pass
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
    reference = workload.flood(3000)
    assert difference(bytes(direct), reference) == ""
    stage.start_host()
    stage.new("gate", ["sh", "-c", "read go; exec " + " ".join(argv)])
    viewer = Lean(stage, "gate").attached()
    before = viewer.position
    viewer.type(b"\r")
    stage.pump.until(lambda: viewer.ended, "the flood ends")
    assert before == 0
    echo = b"\r\n"
    assert (
        check_output(viewer.log, echo + reference, strip=stripped, until=len(echo) + len(reference))
        == []
    )
    assert stage.exit_code("gate") == 11
