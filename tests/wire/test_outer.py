"""Outer frames: golden bytes, every bound, and that no ambiguous message is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from holdfast.model import limits
from holdfast.model.errors import PeerFault
from holdfast.wire import contract_pb2, outer
from holdfast.wire.outer import (
    Accept,
    Credit,
    Data,
    Hello,
    Incoming,
    Open,
    Passes,
    Ping,
    Pong,
    Presence,
    Register,
    Registered,
    Watch,
    Welcome,
)
from tests.support.peers.outer_frames import GOOD, MARK, NONCE, PASS, ROUTE

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors" / "outer.json"


def test_t6_golden_bytes_do_not_change() -> None:
    """A changed byte here changes the wire: add a version, and keep the words of older peers."""
    stored = json.loads(VECTORS.read_text())
    assert stored["version"] == outer.VERSION
    assert {name: outer.encode(frame).hex() for name, frame in GOOD.items()} == stored["frames"]


@pytest.mark.parametrize("name", GOOD)
def test_frames_come_out_as_they_went_in(name: str) -> None:
    frame = GOOD[name]
    assert outer.decode(outer.encode(frame)) == frame
    assert type(outer.decode(outer.encode(frame))) is type(frame)


def test_every_kind_of_the_contract_is_known_and_has_a_vector() -> None:
    kinds = {f.name for f in contract_pb2.Frame.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert (
        kinds
        == {type(f).__name__.lower() for f in GOOD.values()}
        == {t.__name__.lower() for t in outer.ANY}
    )
    assert {v.number for v in contract_pb2.CloseCode.DESCRIPTOR.values} == {0, *outer.CODES}
    assert {
        v.name.removeprefix("CLOSE_CODE_").lower(): v.number
        for v in contract_pb2.CloseCode.DESCRIPTOR.values
        if v.number
    } == {n: c for c, n in outer.CODES.items()}
    assert {v.number for v in contract_pb2.Role.DESCRIPTOR.values} == {0, *outer.ROLES}


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no lowest": ("hello", {"highest": 1, "role": 1}),
    "lowest above highest": ("hello", {"lowest": 2, "highest": 1, "role": 1}),
    "no role": ("hello", {"lowest": 1, "highest": 1}),
    "unknown role": ("hello", {"lowest": 1, "highest": 1, "role": 3}),
    "long software": ("hello", {"lowest": 1, "highest": 1, "role": 1, "software": "x" * 65}),
    "two lines": ("hello", {"lowest": 1, "highest": 1, "role": 1, "software": "a\nb"}),
    "escapes": ("close", {"code": 1, "reason": "\x1b[2J"}),
    "bidi": ("close", {"code": 1, "reason": "\u202eabc"}),
    "no version": (
        "welcome",
        {"nonce": NONCE, "frame_bytes": limits.OUTER_BYTES, "streams": 1, "ping_s": 1},
    ),
    "short nonce": (
        "welcome",
        {
            "version": 1,
            "nonce": NONCE[1:],
            "frame_bytes": limits.OUTER_BYTES,
            "streams": 1,
            "ping_s": 1,
        },
    ),
    "small frames": (
        "welcome",
        {
            "version": 1,
            "nonce": NONCE,
            "frame_bytes": limits.OUTER_BYTES - 1,
            "streams": 1,
            "ping_s": 1,
        },
    ),
    "no streams": (
        "welcome",
        {"version": 1, "nonce": NONCE, "frame_bytes": limits.OUTER_BYTES, "ping_s": 1},
    ),
    "too many streams": (
        "welcome",
        {
            "version": 1,
            "nonce": NONCE,
            "frame_bytes": limits.OUTER_BYTES,
            "streams": limits.STREAMS_MAX + 1,
            "ping_s": 1,
        },
    ),
    "no pings": (
        "welcome",
        {"version": 1, "nonce": NONCE, "frame_bytes": limits.OUTER_BYTES, "streams": 1},
    ),
    "short key": ("register", {"route_key": b"k" * 31, "generation": 1, "signature": b"s" * 64}),
    "no generation": ("register", {"route_key": b"k" * 32, "signature": b"s" * 64}),
    "a generation beyond 63 bits": (
        "register",
        {"route_key": b"k" * 32, "signature": b"s" * 64, "generation": 2**63},
    ),
    "short signature": (
        "register",
        {"route_key": b"k" * 32, "generation": 1, "signature": b"s" * 63},
    ),
    "short pass": (
        "register",
        {"route_key": b"k" * 32, "generation": 1, "signature": b"s" * 64, "passes": [b"p"]},
    ),
    "the same pass twice": ("passes", {"passes": [PASS, PASS]}),
    "too many passes": (
        "passes",
        {"passes": [i.to_bytes(32, "big") for i in range(limits.PASSES_MAX + 1)]},
    ),
    "short route": ("registered", {"route": b"r" * 15}),
    "no stream": ("open", {"route": ROUTE, "pass": PASS}),
    "no pass": ("open", {"stream": 1, "route": ROUTE}),
    "incoming without stream": ("incoming", {}),
    "accept without stream": ("accept", {}),
    "data without stream": ("data", {"payload": b"x"}),
    "data without payload": ("data", {"stream": 1}),
    "long data": ("data", {"stream": 1, "payload": bytes(limits.SEALED_BYTES + 1)}),
    "no credit": ("credit", {"stream": 1}),
    "more credit than a window": (
        "credit",
        {"stream": 1, "amount": limits.STREAM_WINDOW_BYTES + 1},
    ),
    "no code": ("close", {"stream": 1}),
    "unknown code": ("close", {"stream": 1, "code": 14}),
    "long reason": ("close", {"code": 1, "reason": "x" * 201}),
    "short mark": ("ping", {"mark": b"1234567"}),
    "long mark": ("pong", {"mark": b"123456789"}),
    "watch without pass": ("watch", {"route": ROUTE}),
    "presence without route": ("presence", {"online": True}),
    "since for ever": ("presence", {"route": ROUTE, "since": 2**63}),
}


@pytest.mark.parametrize("name", BAD)
def test_values_out_of_bounds_are_neither_read_nor_written(name: str) -> None:
    kind, fields = BAD[name]
    message = getattr(contract_pb2, kind.capitalize())(**fields)
    with pytest.raises(PeerFault):
        outer.decode(contract_pb2.Frame(**{kind: message}).SerializeToString())
    made: Any = getattr(outer, kind.capitalize())
    values = {
        f: (
            tuple(v)
            if isinstance(v := getattr(message, f.rstrip("_")), list) or f == "passes"
            else v
        )
        for f in made._fields
    }
    with pytest.raises(ValueError):
        outer.encode(made(**values))


@pytest.mark.parametrize("name", GOOD)
def test_padding_and_unknown_fields_are_refused(name: str) -> None:
    data = outer.encode(GOOD[name])
    for more in (
        b"\x80\x01\x00",
        b"\xf8\x07\x01",
        b"\xfa\x07\x01x",
        data,
    ):  # field 16 and 127; the whole once more
        with pytest.raises(PeerFault):
            outer.decode(data + more)
    kind, _, body = data[0], data[1], b""
    frame = contract_pb2.Frame.FromString(data)
    body = (
        getattr(frame, str(frame.WhichOneof("kind"))).SerializeToString() + b"\xf8\x07\x01"
    )  # unknown, one level deeper
    size = len(body)
    header = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    with pytest.raises(PeerFault):
        outer.decode(bytes((kind,)) + header + body)


def test_other_spellings_of_the_same_data_are_refused() -> None:
    inner = b"\x08\x01\x12\x01x"
    assert outer.decode(b"\x4a" + bytes((len(inner),)) + inner) == Data(1, b"x")
    for spelled in (
        b"\x08\x81\x00\x12\x01x",
        b"\x08\x01\x12\x81\x00x",
        b"\x08\x02\x08\x01\x12\x01x",
        b"\x08\x01\x12\x01y\x12\x01x",
    ):
        with pytest.raises(PeerFault):
            outer.decode(b"\x4a" + bytes((len(spelled),)) + spelled)
    with pytest.raises(PeerFault):
        outer.decode(b"\x4a\x85\x00" + inner)
    turned = b"\x12\x01x\x08\x01"  # the order of fields is free in protobuf, without a meaning
    assert outer.decode(b"\x4a" + bytes((len(turned),)) + turned) == Data(1, b"x")


def test_empty_and_garbled_data_is_no_frame() -> None:
    for data in (
        b"",
        b"\x00",
        bytes(limits.OUTER_BYTES + 1),
        b"\x80\x01\x00",
        b"not protobuf",
        b"\x4a",
        b"\x4a\x05",
    ):
        with pytest.raises(PeerFault):
            outer.decode(data)


def test_two_kinds_are_no_frame() -> None:
    with pytest.raises(PeerFault):
        outer.decode(outer.encode(Ping(MARK)) + outer.encode(Pong(MARK)))


def test_kinds_come_from_where_they_belong() -> None:
    sides = {
        "from host": outer.FROM_HOST,
        "from client": outer.FROM_CLIENT,
        "to host": outer.TO_HOST,
        "to client": outer.TO_CLIENT,
    }
    table = {
        Hello: "from host, from client",
        Welcome: "to host, to client",
        Register: "from host",
        Registered: "to host",
        Passes: "from host",
        Open: "from client",
        Incoming: "to host",
        Accept: "from host, to client",
        Watch: "from client",
        Presence: "to client",
    }
    for frame in GOOD.values():
        expected = table.get(type(frame), "from host, from client, to host, to client")
        for side, allowed in sides.items():
            if side in expected:
                assert outer.decode(outer.encode(frame), allowed) == frame
            else:
                with pytest.raises(PeerFault, match="this side"):
                    outer.decode(outer.encode(frame), allowed)


def test_before_the_welcome_not_even_data_is_taken() -> None:
    with pytest.raises(PeerFault, match="this side"):
        outer.decode(outer.encode(Data(1, b"x")), frozenset((Hello,)))


def test_the_largest_frames_fit() -> None:
    for frame in (
        Data(2**32 - 1, bytes(limits.SEALED_BYTES)),
        Register(
            b"k" * 32,
            2**63 - 1,
            b"s" * 64,
            tuple(i.to_bytes(32, "big") for i in range(limits.PASSES_MAX)),
        ),
    ):
        assert outer.decode(outer.encode(frame)) == frame


def test_secrets_are_not_shown() -> None:
    """A frame ends up in logs and tracebacks; a pass or a payload must not."""
    for frame in (Open(1, ROUTE, PASS), Watch(ROUTE, PASS), Data(1, PASS)):
        assert PASS.hex() not in repr(frame) and repr(PASS)[2:10] not in repr(frame)


def test_versions() -> None:
    assert outer.choose(Hello(1, 9, outer.HOST, ""), 1, 3) == 3
    assert outer.choose(Hello(1, 2, outer.HOST, ""), 1, 3) == 2
    assert outer.choose(Hello(4, 9, outer.HOST, ""), 1, 3) is None
    assert outer.choose(Hello(1, 1, outer.HOST, ""), 2, 3) is None
    assert outer.chosen(Welcome(2, NONCE, 0, 0, 0, ""), 1, 3) == 2
    with pytest.raises(PeerFault):
        outer.chosen(Welcome(4, NONCE, 0, 0, 0, ""), 1, 3)


def test_the_generated_contract_is_current() -> None:
    fresh = subprocess.run(
        [sys.executable, "scripts/render_contract.py", "--check"], cwd=ROOT, check=False
    ).returncode
    assert fresh == 0, "run: python scripts/render_contract.py"


def test_the_door_for_grpc_carries_the_same_frames() -> None:
    contract = FileDescriptorProto.FromString(contract_pb2.DESCRIPTOR.serialized_pb)
    (method,) = contract.service[0].method
    assert (contract.service[0].name, method.name) == ("Relay", "Connect")
    assert method.input_type == method.output_type == ".holdfast.v1.Frame"
    assert method.client_streaming and method.server_streaming


@pytest.mark.parametrize("stream", [1, 127, 128, 2**32 - 1])
@pytest.mark.parametrize("amount", [1, 127, 16_384, limits.STREAM_WINDOW_BYTES])
def test_credit_is_spelled_as_the_library_spells_it(stream: int, amount: int) -> None:
    by_library = contract_pb2.Frame(
        credit=contract_pb2.Credit(stream=stream, amount=amount)
    ).SerializeToString()
    assert outer.encode(Credit(stream, amount)) == by_library
    assert outer.decode(by_library) == Credit(stream, amount)
    for at in range(1, len(by_library)):  # the library reads the same as the quick reader
        for value in range(256):
            bent = by_library[:at] + bytes((value,)) + by_library[at + 1 :]
            if (quick := outer._quick_credit(bent)) is not None:
                read = contract_pb2.Frame.FromString(bent)
                assert (
                    read.credit.stream,
                    read.credit.amount,
                ) == quick and read.SerializeToString() == bent
