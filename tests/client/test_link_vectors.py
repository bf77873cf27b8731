"""The frames of a client that acts, byte for byte as in tests/vectors/conversations.json."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.questions import signed
from holdfast.core.record.uncovered import Uncovered
from holdfast.home import keys
from holdfast.model import signing
from holdfast.wire import frames
from tests.support.peers.scripted_host import Peer, host
from tests.vectors import cases

FILE = "conversations.json"
WELCOME = {"version": 2, "host": "h", "home": "/h", "pid": 1, "release": "0"}


def conversation(given: dict[str, Any]) -> list[str]:
    """Every frame of a client that connects to a host and makes a request."""
    sent: list[str] = []

    def take(peer: Peer) -> tuple[int, bytes]:
        kind, payload = peer.next()
        sent.append(frames.frame(kind, payload).hex())
        return kind, payload

    def play(peer: Peer) -> None:
        _, payload = take(peer)
        peer.sock.sendall(frames.pack_json(0x89, given["challenge"]))
        take(peer)
        told = {"place": given["place"]} if "about" in frames.read_json(payload) else {}
        peer.sock.sendall(frames.pack_json(0x81, {**WELCOME, **told}))
        number, _ = frames.read_request(take(peer)[1])
        peer.sock.sendall(frames.reply(number, {}))

    with (
        tempfile.TemporaryDirectory() as folder,
        host(Path(folder), play) as link,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(signing, "generate", lambda: bytes.fromhex(given["private"]))
        os.makedirs(keys.directory(link.home), 0o700, exist_ok=True)
        link.identity = keys.make(link.home, "vectors", "human", 0.0)
        link.client = given["client"]
        patch.setattr(os, "urandom", lambda count: b"\xc0" * count)
        fields = {key: value for key, value in given["request"].items() if key != "op"}
        link.request(given["request"]["op"], **fields)
        if given.get("keys"):
            gathered = Uncovered()
            for number, data in given["keys"]:
                gathered.add(number, bytes.fromhex(data), 0)
            found = gathered.take()
            assert found is not None
            place = link.acting.learn("work", given["place"])
            covering = {
                "op": "cover",
                "session": place.session,
                "signed": link.acting.cover(place, found),
            }
            sent.append(frames.request(9, covering).hex())
        if given.get("decides"):
            for what in ("approve", "deny", "withdraw"):
                sent.append(frames.request(9, signed(link, given["decides"], what)).hex())
    return sent


MAKE = {"conversation": conversation}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_the_frames_of_a_client_do_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]
