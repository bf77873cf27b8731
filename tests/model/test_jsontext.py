"""model/jsontext.py gives the same results as `json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import jsontext

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def outcome(call: Callable[[], Any]) -> str:
    try:
        return repr(call())
    except (ValueError, TypeError, RecursionError) as e:
        return repr(e)


@given(values, st.booleans(), st.booleans(), st.booleans())
def test_a_value_is_written_as_json_writes_it(
    value: Any, ascii: bool, sort: bool, allow_nan: bool
) -> None:
    for separators in ((", ", ": "), (",", ":")):
        write = jsontext.encoder(separators, ascii, sort, allow_nan)
        assert outcome(lambda write=write: write(value)) == outcome(  # type: ignore[misc]
            lambda separators=separators: json.dumps(  # type: ignore[misc]
                value,
                separators=separators,
                ensure_ascii=ascii,
                sort_keys=sort,
                allow_nan=allow_nan,
            )
        )


@given(
    values.map(json.dumps) | st.text('{}[]",:0123456789.-+eE \\u\n\tNaInfityrulsd\x00\ufeff\ud800')
)
def test_a_text_is_read_as_json_reads_it(text: str) -> None:
    assert outcome(lambda: jsontext.loads(text)) == outcome(lambda: json.loads(text))


@given(
    st.binary() | values.map(json.dumps).map(str.encode),
    st.sampled_from(("utf-8", "utf-16", "utf-16-be", "utf-32-le", "utf-8-sig")),
    st.booleans(),
)
def test_bytes_are_read_as_json_reads_them(data: bytes, encoding: str, encode: bool) -> None:
    if encode:
        data = data.decode("latin-1").encode(encoding)
    assert outcome(lambda: jsontext.load(data)) == outcome(lambda: json.loads(data))


def test_a_circular_value_and_an_unknown_type_are_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        jsontext.dumps(circle)
    with pytest.raises(TypeError, match="set is not JSON"):
        jsontext.dumps({"a": set()})


def test_hooks_see_numbers_and_constants() -> None:
    read = jsontext.decoder(parse_int=str, parse_float=str, parse_constant=str)
    assert read('[1, 2.5, NaN, {"a": -0}]') == ["1", "2.5", "NaN", {"a": "-0"}]


def test_without_the_compiled_parts_the_json_module_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jsontext, "_json", None)
    assert jsontext.encoder(sort_keys=True)({"b": 1, "a": 2}) == '{"a": 2, "b": 1}'
    assert jsontext.decoder(parse_int=str)("[1]") == ["1"]
