"""Assertions about the output of one command."""

from __future__ import annotations

import json
from typing import Any

from tests.support.installation import Result


def the_error(result: Result, code: int, rc: int | None = None) -> dict[str, Any]:
    """A typed error as JSON."""
    assert result.rc == (code if rc is None else rc), result
    body: dict[str, Any] = json.loads(result.err)["error"]
    assert not result.raw or json.loads(result.raw.splitlines()[-1])["error"] == body
    assert body["code"] == code
    assert (
        body["message"]
        and isinstance(body["recover"], str)
        and isinstance(body["retry_safe"], bool)
    )
    assert "\n" not in body["message"]
    return body


def the_line(result: Result, rc: int) -> str:
    """The same for people: one plain line, then how to recover."""
    assert result.rc == rc, result
    lines = result.err.splitlines()
    assert 1 <= len(lines) <= 2 and lines[0].startswith("holdfast: "), result
    assert "Traceback" not in result.err and "\x1b" not in result.err
    if len(lines) == 2:
        assert lines[1].startswith("  ")
    return result.err
