"""Committed vectors: what goes in, and the bytes that came out when they were frozen.

    FILE ::= {about, version, cases: [{name, of, input, expected}]}

Bytes are in hex. Each test module has one function for each `of`, from the input to what is
expected; `scripts/render_vectors.py` writes `expected` for new cases with the same functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Make = Callable[[Any], Any]
FOLDER = Path(__file__).parent


def load(file: str, of: str | None = None) -> list[Case]:
    """The cases of a file, or those of one kind."""
    found: list[Case] = json.loads((FOLDER / file).read_text())["cases"]
    return [case for case in found if of in (None, case["of"])]


def name(case: Case) -> str:
    """What a test of this case is called."""
    return f"{case['of']}-{case['name']}".replace(" ", "_")


def made(make: Mapping[str, Make], case: Case) -> Any:
    """What today's code makes of the input, as JSON has it; a refusal is its kind."""
    try:
        result = make[case["of"]](case["input"])
    except ValueError:
        result = {"refused": "ValueError"}
    return json.loads(json.dumps(result))


def bare(value: Any) -> Any:
    """Bytes as hex, also inside of tuples and lists."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [bare(one) for one in value]
    return value
