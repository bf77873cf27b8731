"""Each call of the client names an operation of the contract and fields that its request has."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.core.contract.table import OPERATIONS

SOURCE = Path(__file__).resolve().parents[2] / "src/holdfast"
OF_THE_LINK = {"wait_s", "on_data", "on_gap", "on_event"}  # arguments that are not sent
LINK_ADDS = {"seq", "signed", "hold"}


class Call(NamedTuple):
    place: str
    operation: str
    fields: frozenset[str]
    whole: bool  # no `**` hides further fields


def calls() -> list[Call]:
    """The calls of `request` with an operation as a literal."""
    found = []
    for path in sorted([*SOURCE.glob("client/**/*.py"), *SOURCE.glob("faces/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="request"), args=[ast.Constant(value=str(operation))]
                ):
                    names = [keyword.arg for keyword in node.keywords]
                    found.append(
                        Call(
                            f"{path.relative_to(SOURCE)}:{node.lineno}",
                            operation,
                            frozenset(name for name in names if name) - OF_THE_LINK,
                            None not in names,
                        )
                    )
    return found


CALLS = calls()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.place}:{call.operation}")
def test_a_call_agrees_with_the_contract(call: Call) -> None:
    declared = fields(OPERATIONS[call.operation].request)
    names = {field.name.rstrip("_") for field in declared}
    assert call.fields <= names, "the request has no such field"
    needed = {
        field.name.rstrip("_")
        for field in declared
        if field.default is field.default_factory  # both are MISSING
    }
    assert not call.whole or needed - LINK_ADDS <= call.fields, "the request needs more fields"


def test_most_operations_are_called_by_name() -> None:
    """Otherwise this file would check nothing."""
    assert len({call.operation for call in CALLS}) > len(OPERATIONS) / 2
