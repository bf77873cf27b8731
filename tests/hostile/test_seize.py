"""A seize takes the turn from any holder: flooding, gone, or with a megabyte on its way (A3)."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from holdfast.wire import frames
from tests.support.installation import DEADLINE_S, SOON_S, Installation, eventually
from tests.support.peers.hostile_client import Wire, crash

# Reads no input until the gate is written to
GATED = "stty raw -echo; echo READY; read -r go < {gate}; exec cat > {got}"


class Gated:
    """A session whose program reads no input until the test opens the gate."""

    def __init__(self, hf: Installation, name: str) -> None:
        self.gate, self.got = Path(hf.user, f"{name}.gate"), Path(hf.user, f"{name}.got")
        os.mkfifo(self.gate)
        hf.new(name, "--", "sh", "-c", GATED.format(gate=self.gate, got=self.got))
        hf.wait(name, "text:READY")

    def opened(self) -> None:
        self.gate.write_text("go\n")
        eventually(self.got.exists, "the program to read")

    def became(self, *ends: bytes) -> bytes:
        eventually(lambda: self.got.read_bytes().endswith(ends), f"{ends} at the end")
        return self.got.read_bytes()


class Flood(threading.Thread):
    """Types as fast as the socket allows, and never reads an answer."""

    def __init__(self, wire: Wire, session: str) -> None:
        super().__init__(daemon=True)
        self.wire, self.number = wire, 0
        wire.attach(session)
        assert wire.sock is not None
        self.sock = wire.sock
        self.sock.settimeout(None)
        self.start()

    def run(self) -> None:
        try:
            while True:
                self.number += 1
                self.sock.sendall(frames.input_(self.number, b"EVIL" * 64))
        except OSError:
            return

    def stop(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.join(DEADLINE_S)
        self.wire.close()


def test_a3_a_flood_from_the_holder_does_not_outlive_a_seizure(fresh: Installation) -> None:
    """No flood byte is read after the first byte of the new holder, though the flood continues."""
    fresh.people("evil", "ann")
    got = Path(fresh.user, "got")
    fresh.new("flooded", "--", "sh", "-c", f"stty raw -echo; echo READY; exec cat > {got}")
    fresh.wait("flooded", "text:READY")
    flood = Flood(Wire(fresh, "evil", 60), "flooded")
    try:
        eventually(lambda: got.exists() and got.stat().st_size > 100_000, "the flood")
        ann = Wire(fresh, "ann", 61)
        begun = time.monotonic()
        took = ann.request("seize", session="flooded")
        elapsed = time.monotonic() - begun
        assert (
            took["previous"] == "evil"
            and took["flushed"] is True
            and took["turn"]["holder"] == "ann"
        )
        before = flood.number
        for n in range(20):
            ann.request("send", session="flooded", text=f"<{n}>")
        eventually(lambda: flood.number > before + 100, "the flood to go on")
        eventually(lambda: got.read_bytes().endswith(b"<19>"), "her input")
        text = got.read_bytes()
        assert text[text.index(b"<0>") :] == b"".join(b"<%d>" % n for n in range(20))
        assert elapsed < SOON_S, elapsed  # milliseconds on an idle machine: bench/ has the figure
    finally:
        flood.stop()


def test_a3_unread_input_of_the_last_holder_is_discarded_though_the_turn_was_free(
    fresh: Installation,
) -> None:
    """The holder detached, gave the turn back, or the host died.

    The old bytes are still in the terminal, and the next holder's program does not read them.
    """
    fresh.people("evil", "ann")
    for name, leaves in (("released", True), ("crashed", False)):
        session = Gated(fresh, name)
        evil = Wire(fresh, "evil", 62)
        evil.request("send", session=name, text="EVIL" * 500)
        if leaves:
            evil.request("turn", session=name, act="release")
        else:
            crash(fresh)
        assert fresh.get(name)["turn"] is None
        ann = Wire(fresh, "ann", 63)
        took = ann.request("seize", session=name)
        assert took["previous"] is None and took["flushed"] is True
        ann.request("send", session=name, text="mine")
        session.opened()
        assert session.became(b"mine") == b"mine", name


def test_a3_a_seize_by_the_holder_keeps_its_own_unread_input(fresh: Installation) -> None:
    fresh.people("ann")
    session = Gated(fresh, "own")
    ann = Wire(fresh, "ann", 64)
    ann.request("send", session="own", text="first ")
    ann.request("turn", session="own", act="release")
    ann.request("seize", session="own")
    ann.request("send", session="own", text="second")
    session.opened()
    assert session.became(b"second") == b"first second"


def test_a3_input_waiting_in_the_host_is_refused_and_not_taken_for_done(
    fresh: Installation,
) -> None:
    """More than the terminal takes waits in the host.

    The old holder is told of the loss, also when the same number is asked again.
    """
    fresh.people("evil", "ann")
    session = Gated(fresh, "waiting")
    evil = Wire(fresh, "evil", 65)
    evil.attach("waiting")
    chunk = b"E" * (32 << 10)
    for number in range(1, 29):  # 896 KiB: more than may be on its way at once
        evil.say(frames.input_(number, chunk, frames.INPUT_ACK))
    evil.request("ping")
    ann = Wire(fresh, "ann", 66)
    assert ann.request("seize", session="waiting")["flushed"] is True
    refused = evil.until("refused")
    assert refused["name"] == "turn_held" and refused["number"] > 1
    again = frames.input_(refused["number"], b"again", frames.INPUT_ACK)
    assert evil.say(again).until("refused", number=refused["number"])["name"] == "turn_held"
    ann.request("send", session="waiting", text="mine")
    session.opened()
    assert session.became(b"mine") == b"mine"


def test_a2_the_turn_is_handed_only_to_a_known_operator(fresh: Installation) -> None:
    """A turn held by an unknown operator would keep all operators out."""
    fresh.people("ann")
    fresh.new("ghost", "--", "cat")
    fresh.quick("--as", "ann", "send", "ghost", "x", "--enter")
    result = fresh.attempt("--as", "ann", "turn", "ghost", "hand", "nobody-here", "--json")
    assert result.rc == 3, result
    turn = fresh.get("ghost")["turn"]
    assert turn is not None and turn["holder"] == "ann"
