"""The right of an act comes from the operation's row, or from the handler if the row says so."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.core.contract.table import HANDLER, OPERATIONS
from holdfast.host.acts.door import CHECKED_WHEN_APPLIED, Act, Door


@pytest.mark.parametrize("op", [row.name for row in OPERATIONS.values() if row.act])
def test_p1_no_handler_can_forget_or_replace_the_right_of_an_act(op: str) -> None:
    wrong = None if OPERATIONS[op].who == HANDLER else CHECKED_WHEN_APPLIED
    act = cast(Act, SimpleNamespace(op=op))
    with pytest.raises(TypeError, match="the right is named"):
        asyncio.run(Door.commit(cast(Door, None), act, wrong))
