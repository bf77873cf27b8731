"""A9: a retry under an idempotency key from a new process gets the outcome of the first attempt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.installation import Installation


def outcome(hf: Installation, *words: str) -> Any:
    """The answer; the host signs its acknowledgement of the same entry anew."""
    answer = hf.ok(*words, "--json").json
    if "recorded" in answer:
        answer["recorded"] = answer["recorded"]["seq"]
    return answer


def test_a9_a_retried_operator_add_gets_the_first_operator(hf: Installation) -> None:
    add = ("operator", "add", "ann", "--once", "ann-1")
    first = outcome(hf, *add)
    assert outcome(hf, *add) == first
    shown = hf.ok("operator", "show", "ann", "--json").json
    assert shown["keys"] == first["keys"]
    other = hf.cli("operator", "add", "ann", "--kind", "agent", "--once", "ann-1", "--json")
    assert (other.rc, other.json["error"]["name"]) == (4, "once_used")
    assert hf.cli("operator", "add", "ann").rc == 4


@pytest.mark.parametrize("wish", ["--kind=human", "--device"])
def test_a9_a_retried_invite_gets_the_first_code(hf: Installation, wish: str) -> None:
    invite = ("invite", "--no-wait", wish, "--once", f"code{wish}")
    first = outcome(hf, *invite)
    assert outcome(hf, *invite) == first
    ids = [one["id"] for one in hf.ok("invite", "ls", "--json").json]
    assert ids.count(first["id"]) == 1
    assert outcome(hf, "invite", "--no-wait", wish, "--once", f"new{wish}")["code"] != first["code"]


def test_a9_a_retry_gets_the_end_that_the_first_attempt_asked_for(hf: Installation) -> None:
    # Other lengths stand for the clock, which has moved on when a command is repeated.
    hf.ok("operator", "add", "bob")
    for act in (("grant", "bob", "--rights", "read"), ("invite", "--no-wait")):
        retry = [
            outcome(hf, *act, "--expires", span, "--once", f"{act[0]}-1") for span in ("1h", "2h")
        ]
        assert retry[0] == retry[1]
    shown = hf.ok("operator", "show", "bob", "--json").json
    assert len(shown["envelopes"]) == 1
