"""Every frame from named parts, and back, as in tests/vectors/messages.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.wire import frames, version
from tests.vectors import cases

FILE = "messages.json"
KINDS = {
    "hello": 0x01,
    "request": 0x02,
    "input": 0x03,
    "resize": 0x04,
    "cancel": 0x05,
    "seen": 0x06,
    "stdin": 0x08,
    "credit": 0x09,
    "proof": 0x07,
    "welcome": 0x81,
    "reply": 0x82,
    "output": 0x83,
    "screen": 0x84,
    "event": 0x85,
    "data": 0x86,
    "gap": 0x87,
    "bye": 0x88,
    "challenge": 0x89,
}
BUILD: dict[str, Callable[..., bytes]] = {
    "request": frames.request,
    "cancel": frames.cancel,
    "seen": frames.seen,
    "stdin": frames.stdin,
    "credit": frames.credit,
    "resize": frames.resize,
    "reply": frames.reply,
    "gap": frames.gap,
    "screen": frames.screen,
    "input": lambda sequence, flags, data: frames.input_(sequence, data, flags),
    "output": lambda start, end, acked, data: (
        frames.output_header(start, end, acked, len(data)) + data
    ),
    "data": lambda number, start, end, data: (
        frames.data_header(number, start, end, len(data)) + data
    ),
}
READ: dict[str, Callable[[bytes], Any]] = {
    "request": frames.read_request,
    "input": frames.read_input,
    "resize": frames.read_resize,
    "cancel": lambda payload: [frames.read_cancel(payload)],
    "seen": lambda payload: [frames.read_seen(payload)],
    "stdin": frames.read_stdin,
    "credit": frames.read_credit,
    "output": frames.read_output,
    "screen": frames.read_screen,
    "data": lambda payload: frames.read_data(memoryview(payload)),
    "gap": lambda payload: frames.read_data(memoryview(payload))[:3],
}


def parts(given: dict[str, Any]) -> list[Any]:
    """The values in the order of the layout; bytes are hex under `data`."""
    return [
        bytes.fromhex(value) if name == "data" else value
        for name, value in given.items()
        if name != "frame"
    ]


def message(given: dict[str, Any]) -> str:
    kind = given["frame"]
    if kind in BUILD:
        made = BUILD[kind](*parts(given))
    else:
        made = frames.pack_json(KINDS[kind], given["body"])
    return made.hex()


def chosen(given: dict[str, Any]) -> int | None:
    return version.choose(given["lowest"], given["highest"])


MAKE = {"frame": message, "version": chosen}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_a_frame_has_the_bytes_that_it_had(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "frame"), ids=cases.name)
def test_a_frame_is_read_back_unchanged(case: cases.Case) -> None:
    given = case["input"]
    splitter = frames.Splitter(frames.FROM_CLIENT | frames.FROM_HOST)
    ((kind, payload),) = splitter.feed(bytes.fromhex(case["expected"]))
    assert kind == KINDS[given["frame"]]
    if given["frame"] == "reply":
        number, ok, body = frames.read_reply(payload)
        assert [number, body, ok] == parts(given)
    elif given["frame"] in READ:
        found, wanted = cases.bare(READ[given["frame"]](payload)), cases.bare(parts(given))
        assert found == wanted
    else:
        assert frames.read_json(payload) == given["body"]


def test_every_kind_of_frame_has_a_vector() -> None:
    found = {bytes.fromhex(case["expected"])[4] for case in cases.load(FILE, "frame")}
    assert found == set(KINDS.values()) == frames.FROM_CLIENT | frames.FROM_HOST
