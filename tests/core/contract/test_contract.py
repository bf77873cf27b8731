"""The table of operations, and the strict reading and writing of messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.contract.codec import decode, encode, request_fields
from holdfast.core.contract.message import ABSENT, Absent, Size, checked, message
from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record import acts
from holdfast.model.errors import Usage
from holdfast.model.rights import RIGHTS

ROOT = Path(__file__).parents[3]


@message
class Sample:
    session: str
    count: int = 3
    limit: float = 0.0
    size: tuple[int, int] | None = None
    all: bool = False
    words: tuple[str, ...] = checked("words of {op} are words", "write words", default=())


@message
class Shown:
    for_: str
    size: Size
    many: tuple[Size, ...]
    nothing: str | None = None
    left_out: str | Absent = ABSENT


def test_defaults_are_filled_in_and_numbers_widened() -> None:
    taken = decode(Sample, "x", {"op": "x", "session": "s"})
    assert taken == Sample(session="s") and type(taken.limit) is float
    assert decode(Sample, "x", {"session": "s", "limit": 5, "size": None}).limit == 5.0
    assert decode(Sample, "x", {"session": "s", "size": [1, 2]}).size == (1, 2)


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
        ({"size": [80]}, "size"),
        ({"size": [80, True]}, "size"),
        ({"size": [80, 24.0]}, "size"),
        ({"words": [None]}, "words of x are words"),
        ({"all": 1}, "all"),
        ({"all": None}, "all"),
        ({"extra": 1}, "extra"),
        ({"Session": "s"}, "Session"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(Usage, match=word) as refused:
        decode(Sample, "x", {"op": "x", "session": "s", **change})
    assert "x" in refused.value.message


def test_a_missing_field_is_refused_by_its_name() -> None:
    with pytest.raises(Usage, match="session"):
        decode(Sample, "x", {"op": "x"})


def test_absent_fields_are_left_out_and_null_fields_are_written() -> None:
    one = Size(cols=80, rows=24)
    shown = {"cols": 80, "rows": 24}
    found = encode(Shown(for_="idle", size=one, many=(one, one)))
    assert found == {"for": "idle", "size": shown, "many": [shown, shown], "nothing": None}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_of_the_table_is_whole(name: str) -> None:
    row = OPERATIONS[name]
    assert row.name == name and row.help.endswith(".") and row.help[0].isupper()
    assert (row.who == "right") == bool(row.right) and (not row.right or row.right in RIGHTS)
    assert (row.place in ("session", "machine")) == row.act
    assert not row.harmless or not row.act or (row.kind == "files" and row.repeatable)
    assert {"seq", "signed", "hold"} <= set(request_fields(row.request)) or not row.act
    assert ("session" in request_fields(row.request)) or row.place != "session"
    for cls in (row.request, row.reply):
        assert is_dataclass(cls) and cls.__doc__ and not cls.__doc__.startswith(cls.__name__ + "(")
        assert "__slots__" in vars(cls)


def test_defaults_have_the_type_of_their_field() -> None:
    for row in OPERATIONS.values():
        for field in request_fields(row.request).values():
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert field.required or default in (None, ABSENT) or isinstance(default, field.kinds)
        assert fields(row.reply) is not None


def test_acts_that_keep_their_number_are_of_kinds_that_a_keeper_applies() -> None:
    kept = {row.kind for row in OPERATIONS.values() if row.same_number}
    assert kept | {"paste"} == acts.BY_KEEPER


def test_operations_bound_to_a_connection_are_not_repeated() -> None:
    repeatable = {row.name for row in OPERATIONS.values() if row.repeatable}
    assert not repeatable & {"down", "attach", "detach", "refresh"}


def test_the_table_costs_a_command_no_message_classes() -> None:
    """Every command imports the table: 100 dataclasses would cost 3 ms each time."""
    code = (
        "import sys; import holdfast.client.link;"
        "print([m for m in sys.modules if m == 'dataclasses' or 'core.contract' in m])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['holdfast.core.contract', 'holdfast.core.contract.table']"


def test_the_reference_and_the_schema_are_rendered_from_the_table() -> None:
    run = [sys.executable, "scripts/render_operations.py", "--check"]
    fresh = subprocess.run(run, cwd=ROOT, check=False).returncode == 0
    assert fresh, "run: python scripts/render_operations.py"


def test_every_reference_of_the_schema_is_defined() -> None:
    text = (ROOT / "docs" / "reference" / "contract.schema.json").read_text()
    schema = json.loads(text)
    assert schema["operations"].keys() == OPERATIONS.keys()
    named = set(re.findall(r'"#/\$defs/([\w.]+)"', text))
    assert named == schema["$defs"].keys()
