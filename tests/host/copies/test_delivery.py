"""What a receiving machine answers to the courier may be anything (courier/delivery.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.engine.parts import Event, Reply
from holdfast.courier.delivery import Delivery
from holdfast.host.copies import errands
from holdfast.model.errors import PeerFault

SHA = "ab" * 32


class Receiver:
    """A machine that always answers the same."""

    def __init__(self, lacking: Any) -> None:
        self.lacking, self.got = lacking, b""
        self.rounds = 0

    async def ask(self, op: str, wait_s: float, **fields: Any) -> Any:
        return self.lacking if op == "copies.missing" else {}

    async def stream(self, op: str, first: Any, feed: Any, **fields: Any) -> AsyncIterator[Any]:
        self.rounds += 1
        yield Event("began", {})
        await feed(self)
        yield Reply({"taken": 0})

    async def send(self, data: bytes) -> bool:
        self.got += data
        return True


def delivered(tmp_path: Path, receiver: Receiver) -> Any:
    (tmp_path / "objects").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "objects" / SHA).write_text("content")
    errand: Any = {
        "machine": {"name": "vault"},
        "session": "0123456789ab",
        "checkpoint": "cp-0123456789ab",
        "name": "work",
        "epoch": 1,
        "description": str(tmp_path / "objects" / ("cd" * 32)),
        "size": 1,
        "objects": str(tmp_path / "objects"),
    }
    engine: Any = receiver
    return asyncio.run(Delivery(engine, errand, lambda line: None).run())


@pytest.mark.parametrize(
    "objects",
    [
        [["../secret", 6, 0]],
        [["/etc/passwd", 6, 0]],
        [[SHA, 7, 8]],
        [[SHA, 7, -1]],
        [[SHA, 1 << 70, 0]],
        [[SHA]],
        [1],
        "x",
        None,
    ],
)
def test_t4_a_list_that_names_no_contents_sends_nothing(tmp_path: Path, objects: Any) -> None:
    receiver = Receiver({"objects": objects, "bytes": 6, "more": False})
    with pytest.raises(PeerFault):
        delivered(tmp_path, receiver)
    assert receiver.got == b""


def test_t4_a_receiver_that_always_lacks_contents_gets_them_once(tmp_path: Path) -> None:
    receiver = Receiver({"objects": [[SHA, 7, 0]], "bytes": 7, "more": False})
    with pytest.raises(PeerFault, match="does not keep"):
        delivered(tmp_path, receiver)
    assert receiver.rounds == 1 and receiver.got.count(b"content") == 1


@pytest.mark.parametrize(
    "said", [{}, {"epoch": None}, {"epoch": "1"}, {"epoch": -1}, {"epoch": 0.5}]
)
def test_t4_an_answer_without_an_incarnation_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(PeerFault):
        errands.epoch_of(said)
