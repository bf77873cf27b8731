"""Every frame that a relay sees from named parts, and back (outer_messages.json)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.wire import outer
from tests.vectors import cases

FILE = "outer_messages.json"
RAW = ("route", "pass_", "route_key", "signature", "nonce", "mark", "payload")
CODES = range(1, 14)  # reasons of a close


def frame(given: dict[str, Any]) -> str:
    def raw(name: str, value: Any) -> Any:
        if name == "passes":
            return tuple(map(bytes.fromhex, value))
        return bytes.fromhex(value) if name in RAW else value

    made = getattr(outer, given["frame"])
    return outer.encode(made(**{n: raw(n, v) for n, v in given["parts"].items()})).hex()


MAKE = {"frame": frame}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_t6_an_outer_frame_has_the_bytes_that_it_had(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_t6_an_outer_frame_is_read_back_unchanged(case: cases.Case) -> None:
    found = outer.decode(bytes.fromhex(case["expected"]))
    assert type(found).__name__ == case["input"]["frame"]
    assert cases.bare(tuple(found)) == list(case["input"]["parts"].values())


def test_t6_every_outer_frame_and_every_code_has_a_vector() -> None:
    given = [case["input"] for case in cases.load(FILE)]
    assert {one["frame"] for one in given} == {kind.__name__ for kind in outer.ANY}
    closed = {one["parts"]["code"] for one in given if one["frame"] == "Close"}
    assert closed == set(CODES) == set(outer.CODES)
