"""Any bytes in the spool's files: an answer in words, never a traceback or a wrong byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.host.storage import spool_format as sealed
from holdfast.host.storage.spool import Spool
from holdfast.model.errors import Impossible

KEY, SESSION = bytes(range(32)), "0123456789ab"
RECORDS = ((0, b"the first record"), (16, b"the second"), (1000, b"after a gap"))


def sound() -> bytes:
    sealer = sealed.Sealer(KEY, sealed.OUTPUT, SESSION, 1, bytes(16))
    return sealer.header() + b"".join(sealer.record(*one) for one in RECORDS)


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A sound file with some bytes changed, moved, cut or added."""
    data = bytearray(sound())
    for _ in range(draw(st.integers(1, 4))):
        at, to = (draw(st.integers(0, len(data))) for _ in range(2))
        match draw(st.sampled_from("xcdmz")):
            case "x" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "c":
                del data[at:]
            case "d":
                data[at:at] = draw(st.binary(max_size=30))
            case "m":
                data[to:to] = data[at : at + draw(st.integers(0, 60))]
            case _:
                data[at : at + 20] = bytes(20)
    return bytes(data)


def check(data: bytes) -> None:
    try:
        found = sealed.read(KEY, sealed.OUTPUT, SESSION, data)
    except (sealed.Foreign, sealed.OtherVersion) as e:
        assert str(e)
    else:
        assert found is None or found.records == RECORDS[: len(found.records)]


@given(st.binary(max_size=400))
def test_any_bytes_are_no_file(data: bytes) -> None:
    check(data)
    check(sound()[: sealed.HEADER_BYTES] + data)


@given(changed())
def test_a_changed_file_gives_its_first_records_or_a_reason(data: bytes) -> None:
    check(data)


@given(st.binary(max_size=400) | changed())
def test_r1_a_spool_of_any_bytes_is_refused_in_words(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as top:
        one = Spool(top, SESSION, 2, KEY)
        Path(one.directory).mkdir()
        (Path(one.directory) / "output-00000001").write_bytes(data)
        try:
            one.load()
        except Impossible as e:
            assert one.directory in e.message and e.recover
        one.append(5000, b"new output")
        assert one.load().pieces[-1] == (5000, b"new output")
