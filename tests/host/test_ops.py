"""The checks in front of every operation, and what answers are cut to."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.link import REPEATABLE
from holdfast.host import describing, looking, steering
from holdfast.host.ops import OPS, Field, check
from holdfast.model.errors import Usage
from holdfast.model.limits import FRAME_BYTES
from holdfast.wire import frames

FIELDS = {
    "session": Field(str),
    "count": Field(int, 3),
    "limit": Field(float, 0.0),
    "size": Field(list, None),
    "all": Field(bool, False),
}


def test_defaults_are_filled_in_and_numbers_widened() -> None:
    assert check(FIELDS, {"op": "x", "session": "s"}) == {
        "session": "s",
        "count": 3,
        "limit": 0.0,
        "size": None,
        "all": False,
    }
    assert check(FIELDS, {"op": "x", "session": "s", "limit": 5, "size": None})["limit"] == 5.0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"session": None}, "session"),
        ({"session": 1}, "session"),
        ({"count": "3"}, "count"),
        ({"count": True}, "count"),
        ({"count": -1}, "count"),
        ({"count": 1 << 63}, "count"),
        ({"count": 1.0}, "count"),
        ({"count": None}, "count"),
        ({"limit": float("nan")}, "limit"),
        ({"limit": float("inf")}, "limit"),
        ({"limit": -0.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "1"}, "limit"),
        ({"size": {}}, "size"),
        ({"size": "80x24"}, "size"),
        ({"all": 1}, "all"),
        ({"all": None}, "all"),
        ({"extra": 1}, "extra"),
        ({"Session": "s"}, "Session"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Usage, match=word) as refused:
        check(FIELDS, {"op": "x", "session": "s", **change})
    assert "x" in refused.value.message


def test_a_missing_field_is_refused_by_its_name() -> None:
    with pytest.raises(Usage, match="session"):
        check(FIELDS, {"op": "x"})


def test_every_operation_has_a_handler_and_fields_with_defaults_of_their_kind() -> None:
    for name, op in OPS.items():
        assert op.handler.__name__ == name.replace(".", "_") or op.handler.__module__.endswith(
            (".people", ".invitations", ".uplinks")
        )
        for field in op.fields.values():
            assert field.default in (..., None) or isinstance(field.default, field.kind)


def test_clients_repeat_only_operations_that_exist() -> None:
    assert set(OPS) >= REPEATABLE
    assert not REPEATABLE & {"down", "attach", "detach", "refresh"}


def test_arguments_in_a_listing_are_short_and_say_that_they_are() -> None:
    assert describing._short(["sh", "-c", "true"]) == ["sh", "-c", "true"]
    cut = describing._short(["sh", "x" * 100_000, *["y"] * 1000])
    assert (
        cut[0] == "sh"
        and cut[-1] == "..."
        and sum(map(len, cut)) <= 2 * describing.ARGV_SHOWN_CHARS
    )


@pytest.mark.parametrize("line", ["0" * 1000, "é" * 1000, "\\" * 1000, '"' * 1000, ""])
def test_history_fits_into_a_frame_and_keeps_the_newest(line: str) -> None:
    lines = [f"{n:06d}{line}" for n in range(10_000)]
    kept = looking._newest(lines)
    assert kept == lines[len(lines) - len(kept) :] and len(kept) > 500
    assert len(frames.reply(1, {"history": kept})) < FRAME_BYTES - 100_000


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("plain", True),
        ("é€😀", True),
        ("\udc80\udcff", True),
        ("\ud800", False),
        ("\udfff", False),
        ("a\udc00", False),
    ],
)
def test_text_is_bytes_in_disguise_or_refused(text: str, good: bool) -> None:
    assert steering._is_bytes(text) is good
    if good:
        assert steering._bytes(text) == text.encode("utf-8", "surrogateescape")
    else:
        with pytest.raises(Usage):
            steering._bytes(text)
