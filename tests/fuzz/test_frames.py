"""Parsers of a stranger's bytes: only the typed exception, bounded memory, any split."""

from __future__ import annotations

import json
import math
import struct
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.contract.codec import SECONDS_MAX, decode, encode, request_fields
from holdfast.core.contract.message import ABSENT
from holdfast.core.contract.table import OPERATIONS
from holdfast.model.errors import PeerFault, Usage
from holdfast.wire import frames
from tests.support.examples import examples

KINDS = st.sampled_from(sorted(frames.FROM_CLIENT))
SOUND = st.lists(st.tuples(KINDS, st.binary(max_size=60)), max_size=8)
LIMIT = 1000


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in pairwise(marks)]


def through_splitter(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    splitter = frames.Splitter(frames.FROM_CLIENT, LIMIT)
    got: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            for one in splitter.feed(piece):
                got.append(one)
            assert splitter.pending < LIMIT + frames.HEADER.size
    except PeerFault:
        return got, False
    return got, True


def through_reader(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    reader = frames.Reader(frames.FROM_CLIENT, LIMIT, size=32)
    got: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            while piece:
                space = reader.space()
                assert 0 < len(space) <= LIMIT + (1 << 17)
                count = min(len(space), len(piece))
                space[:count] = piece[:count]
                reader.received(count)
                piece = piece[count:]
                while (one := reader.next()) is not None:
                    got.append((one[0], bytes(one[1])))
    except PeerFault:
        return got, False
    return got, True


@given(SOUND, st.lists(st.integers(0, 10_000), max_size=10))
def test_sound_frames_come_out_as_they_went_in(
    sent: list[tuple[int, bytes]], places: list[int]
) -> None:
    pieces = cut(b"".join(frames.frame(kind, body) for kind, body in sent), places)
    assert through_splitter(pieces) == through_reader(pieces) == (sent, True)


@given(SOUND, st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=10))
def test_a_stream_is_judged_alike_in_any_pieces(
    sent: list[tuple[int, bytes]], noise: bytes, places: list[int]
) -> None:
    data = b"".join(frames.frame(kind, body) for kind, body in sent) + noise
    whole = through_splitter([data])
    assert through_splitter(cut(data, places)) == whole == through_reader(cut(data, places))


@given(st.binary(max_size=100))
def test_no_payload_raises_anything_but_the_typed_error(data: bytes) -> None:
    for read in (
        frames.read_json,
        frames.read_request,
        frames.read_input,
        frames.read_resize,
        frames.read_cancel,
        frames.read_seen,
        frames.read_stdin,
        frames.read_reply,
        frames.read_output,
        frames.read_screen,
        lambda p: frames.read_data(memoryview(p)),
        frames.single,
    ):
        try:
            read(data)
        except PeerFault as e:
            assert e.message and len(e.message) < 500


@given(
    st.integers(0, 2**32 - 1),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=10,
    ),
)
def test_requests_survive_the_wire(number: int, value: Any) -> None:
    body = {"op": "x", "value": value}
    data = frames.request(number, body)
    again, read = frames.read_request(data[frames.HEADER.size :])
    assert again == number and json.dumps(read) == json.dumps(body)
    assert struct.unpack_from("<I", data)[0] == len(data) - frames.HEADER.size


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "cat", "\ud800", "\0"]),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(OPERATIONS)), st.data())
@settings(max_examples=examples(400))
def test_a_request_is_refused_by_name_or_has_exactly_the_promised_fields(
    op: str, data: st.DataObject
) -> None:
    operation = OPERATIONS[op]
    fields = request_fields(operation.request)
    names = st.sampled_from([*fields, "nonsense"]) if fields else st.just("nonsense")
    body = {"op": op, **data.draw(st.dictionaries(names, JSON, max_size=6))}
    try:
        out = encode(decode(operation.request, op, body))
    except Usage as e:
        known = [field.wrong[0].format(op=op) for field in fields.values()]
        assert op in e.message or e.message in known
        return
    optional = {name for name, field in fields.items() if field.default is ABSENT}
    assert fields.keys() - out.keys() == optional - body.keys(), "a field was dropped or invented"
    assert set(body) <= {"op", *fields}
    for name, value in out.items():
        assert (value is None and fields[name].default is None) or isinstance(
            value, fields[name].kinds
        )
        assert not isinstance(value, float) or (math.isfinite(value) and 0 <= value < SECONDS_MAX)
        assert type(value) is not int or 0 <= value < 2**63
