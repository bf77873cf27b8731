"""The wire between client and host: golden bytes, round trips, refusals."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import PeerFault
from holdfast.model.limits import FRAME_BYTES
from holdfast.wire import frames, version

KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"  # RFC 8032, the first
VECTORS = Path(__file__).parents[1] / "vectors" / "frames.json"


def built() -> dict[str, bytes]:
    """One frame of every kind; the same values as in the vectors."""
    return {
        "hello": frames.pack_json(
            frames.HELLO,
            {
                "version": 2,
                "lowest": 2,
                "client": 81985529216486895,
                "operator": "ann",
                "modality": "cli",
                "key": KEY,
            },
        ),
        "request": frames.request(
            7, {"op": "send", "session": "work", "text": "é\udcff", "keys": ["Enter"], "seq": 1}
        ),
        "input": frames.input_(258, b"\x00\x1b[A\xff", frames.INPUT_ACK),
        "paste": frames.input_(1, b"two\nlines", frames.INPUT_PASTE),
        "resize": frames.resize(3, 120, 40),
        "cancel": frames.cancel(0xDEADBEEF),
        "seen": frames.seen(1 << 40),
        "stdin": frames.stdin(7, 1 << 40, b"\x00\xff"),
        "credit": frames.credit(7, 1 << 40),
        "proof": frames.pack_json(frames.PROOF, {"signature": "00" * 64}),
        "challenge": frames.pack_json(
            frames.CHALLENGE, {"version": 2, "machine": KEY, "nonce": "11" * 32}
        ),
        "welcome": frames.pack_json(
            frames.WELCOME,
            {"version": 2, "host": "box", "home": "/h", "pid": 42, "release": "0.1.0"},
        ),
        "reply": frames.reply(7, {"id": "0123456789ab"}),
        "error": frames.reply(
            8,
            {"name": "busy", "code": 4, "message": "m", "recover": "r", "retry_safe": True},
            ok=False,
        ),
        "output": frames.output_header(1000, 1010, 5, 3) + b"abc",
        "screen": frames.screen(99, 4, frames.SCREEN_LAG, 80, 24, b"\x1b[H"),
        "event": frames.pack_json(frames.EVENT, {"event": "turn", "holder": None}),
        "data": frames.data_header(7, 1, 4, 3) + b"xyz",
        "gap": frames.gap(7, 0, 1 << 33),
        "bye": frames.pack_json(frames.BYE, {"reason": "down", "message": "stopped"}),
    }


def test_t6_golden_bytes_do_not_change() -> None:
    """A changed byte here changes the wire: bump VERSION, and keep the words of older peers."""
    stored = json.loads(VECTORS.read_text())
    assert stored["version"] == frames.VERSION
    assert {name: data.hex() for name, data in built().items()} == stored["frames"]


def test_every_kind_has_a_vector() -> None:
    assert {data[4] for data in built().values()} == frames.FROM_CLIENT | frames.FROM_HOST


def payload(name: str) -> bytes:
    data = built()[name]
    length, _ = frames.HEADER.unpack_from(data)
    assert len(data) == frames.HEADER.size + length
    return data[frames.HEADER.size :]


def test_packed_frames_are_read_back() -> None:
    assert frames.read_request(payload("request")) == (
        7,
        {"op": "send", "session": "work", "text": "é\udcff", "keys": ["Enter"], "seq": 1},
    )
    assert frames.read_input(payload("input")) == (258, frames.INPUT_ACK, b"\x00\x1b[A\xff")
    assert frames.read_resize(payload("resize")) == (3, 120, 40)
    assert frames.read_cancel(payload("cancel")) == 0xDEADBEEF
    assert frames.read_seen(payload("seen")) == 1 << 40
    assert frames.read_stdin(payload("stdin")) == (7, 1 << 40, b"\x00\xff")
    assert frames.read_credit(payload("credit")) == (7, 1 << 40)
    assert frames.read_reply(payload("reply")) == (7, True, {"id": "0123456789ab"})
    assert frames.read_reply(payload("error"))[:2] == (8, False)
    start, end, acked, data = frames.read_output(payload("output"))
    assert (start, end, acked, bytes(data)) == (1000, 1010, 5, b"abc")
    offset, acked, reason, cols, rows, data = frames.read_screen(payload("screen"))
    assert (offset, acked, reason, cols, rows, bytes(data)) == (
        99,
        4,
        frames.SCREEN_LAG,
        80,
        24,
        b"\x1b[H",
    )
    number, start, end, data = frames.read_data(memoryview(payload("data")))
    assert (number, start, end, bytes(data)) == (7, 1, 4, b"xyz")


@pytest.mark.parametrize(
    ("read", "size", "exact"),
    [
        (frames.read_input, 9, False),
        (frames.read_resize, 12, True),
        (frames.read_cancel, 4, True),
        (frames.read_seen, 8, True),
        (frames.read_stdin, 12, False),
        (frames.read_output, 24, False),
        (frames.read_screen, 21, False),
        (lambda p: frames.read_data(memoryview(p)), 20, False),
    ],
)
def test_short_and_long_payloads_are_refused(read: Any, size: int, exact: bool) -> None:
    read(b"\1" * size)
    for length in range(size):
        with pytest.raises(PeerFault):
            read(b"\1" * length)
    if exact:
        with pytest.raises(PeerFault):
            read(b"\1" * (size + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"x"',
        b"\xff\xfe\xfd",
        b"{" * 10_000,
        b"[" * 100_000,
        b"9" * 5000,
        b"{'a': 1}",
    ],
)
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(PeerFault):
        frames.read_json(body)


def test_json_in_utf8_with_bytes_that_are_no_text_survives() -> None:
    odd = {"path": b"/tmp/\xff\xfe".decode("utf-8", "surrogateescape"), "text": "😀"}
    assert frames.read_json(frames.pack_json(frames.EVENT, odd)[frames.HEADER.size :]) == odd


# ---------------------------------------------------------------- cutting the stream


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 100_000])
def test_both_cutters_find_the_same_frames_in_any_pieces(step: int) -> None:
    wanted = [(data[4], data[5:]) for data in built().values() if data[4] in frames.FROM_HOST]
    stream = b"".join(frames.frame(kind, body) for kind, body in wanted)
    splitter, reader = frames.Splitter(frames.FROM_HOST), frames.Reader(frames.FROM_HOST, size=16)
    split: list[tuple[int, bytes]] = []
    read: list[tuple[int, bytes]] = []
    for at in range(0, len(stream), step):
        piece = stream[at : at + step]
        split += splitter.feed(piece)
        while piece:
            space = reader.space()
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            reader.received(count)
            piece = piece[count:]
            while (one := reader.next()) is not None:
                read.append((one[0], bytes(one[1])))
    assert split == read == wanted
    assert splitter.pending == 0 and reader.rest() == b"" and splitter.take() == b""


@pytest.mark.parametrize("kind", [0, 7, 0x7F, 0x80, 0x8A, 0xFF, frames.INPUT])
def test_kinds_of_the_other_direction_and_unknown_ones_are_refused_at_once(kind: int) -> None:
    """By the header alone: the sender does not get to send the payload first."""
    header = struct.pack("<IB", 1000, kind)
    with pytest.raises(PeerFault, match="unknown frame kind"):
        list(frames.Splitter(frames.FROM_HOST).feed(header))
    reader = frames.Reader(frames.FROM_HOST)
    reader.space()[:5] = header
    reader.received(5)
    with pytest.raises(PeerFault, match="unknown frame kind"):
        reader.next()


def test_an_oversize_frame_is_refused_by_its_header() -> None:
    for length in (FRAME_BYTES + 1, 0xFFFFFFFF):
        header = struct.pack("<IB", length, frames.OUTPUT)
        with pytest.raises(PeerFault, match="at most"):
            list(frames.Splitter(frames.FROM_HOST).feed(header))
        reader = frames.Reader(frames.FROM_HOST)
        reader.space()[:5] = header
        reader.received(5)
        with pytest.raises(PeerFault, match="at most"):
            reader.next()


def test_frames_before_a_bad_one_are_still_given() -> None:
    splitter = frames.Splitter(frames.FROM_CLIENT)
    got: list[tuple[int, bytes]] = []
    with pytest.raises(PeerFault):
        for one in splitter.feed(frames.cancel(1) + b"\0\0\0\0\x77"):
            got.append(one)
    assert got == [(frames.CANCEL, b"\1\0\0\0")]


def test_a_single_key_is_recognised_and_nothing_else_is() -> None:
    assert frames.single(frames.input_(1, b"x")) == frames.INPUT
    assert frames.single(frames.input_(1, b"")) == frames.INPUT
    for other in (
        b"",
        b"\1",
        frames.input_(1, b"x") + b"y",
        frames.input_(1, b"x")[:-1],
        frames.input_(1, b"x") * 2,
        frames.resize(1, 2, 3),
    ):
        assert frames.single(other) is None


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    "lowest, highest, chosen",
    [
        (2, 2, 2),
        (1, 99, 2),
        (0, 2, 2),
        (3, 4, None),
        (1, 1, None),
        (0, 0, None),
        (3, 2, None),
        (None, 2, None),
        (2, None, None),
        ("2", 2, None),
        (2, 2.0, None),
        (True, True, None),
        (-5, 5, 2),
    ],
)
def test_the_highest_common_version_is_spoken_or_none(
    lowest: Any, highest: Any, chosen: int | None
) -> None:
    assert version.choose(lowest, highest) == chosen
