"""Clients inside a session: which operators count, and which operations are refused (A7)."""

from __future__ import annotations

import pytest

from holdfast.core.originators.inside import Inside, refuses, starters
from holdfast.core.originators.lineage import SHELL, UNKNOWN, Cause


@pytest.mark.parametrize(
    ("cause", "inputs_of", "expected"),
    [
        (Cause("bob", 3), {"ann", "bob"}, ("bob",)),
        (Cause("bob", 3, ("ann",)), {"ann", "bob"}, ("bob", "ann")),
        (UNKNOWN, {"ann"}, ("ann",)),
        (SHELL, {"ann"}, ("ann",)),
        (UNKNOWN, {"ann", "bob"}, ("unknown",)),
        (UNKNOWN, None, ("unknown",)),
        (Cause("bob", 3, ("unknown",)), {"ann", "bob"}, ("bob", "unknown")),
    ],
)
def test_a7_the_operators_who_may_have_started_a_client(
    cause: Cause, inputs_of: set[str] | None, expected: tuple[str, ...]
) -> None:
    assert starters(cause, inputs_of) == expected


@pytest.mark.parametrize(
    ("operators", "op", "harmless", "refused"),
    [
        (("ann",), "run", False, False),
        (("bob",), "run", False, True),
        (("ann", "bob"), "run", False, True),
        (("bob",), "log", True, True),
        (("bob",), "halt", False, True),
        (("bob",), "cover", False, False),
        (("unknown",), "run", False, True),
        (("unknown",), "log", True, False),
        (("unknown",), "halt", False, False),
        (("ann", "unknown"), "keys", False, True),
    ],
)
def test_a7_an_operation_in_the_name_of_ann(
    operators: tuple[str, ...], op: str, harmless: bool, refused: bool
) -> None:
    assert refuses(Inside("hf:s@1", operators), "ann", op, harmless) is refused
