"""A save that ends the session keeps a halt that came during the dump (A4, R2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.checkpoints import save
from holdfast.model.errors import Refused


def saving(halted: bool, saved_halted: str) -> Any:
    one: Any = save._Saving.__new__(save._Saving)
    one.id, one.manifest = "cp-1", None
    one.session = SimpleNamespace(name="s", halted=False, end_of=SimpleNamespace(saved_as=""))

    async def store(made: object) -> SimpleNamespace:
        one.session.halted = halted  # while the images are packed
        return SimpleNamespace(halted=saved_halted)

    one._store = store
    return one


@pytest.mark.parametrize(("halted", "saved_halted"), [(False, ""), (True, "freeze")])
def test_r2_a_stored_checkpoint_ends_the_session(halted: bool, saved_halted: str) -> None:
    one = saving(halted, saved_halted)
    asyncio.run(one._keep(None))
    assert one.session.end_of.saved_as == "cp-1" and one.manifest is not None


def test_a4_a_session_that_was_halted_during_the_dump_does_not_end() -> None:
    one = saving(True, "")
    with pytest.raises(Refused, match="halted meanwhile"):
        asyncio.run(one._keep(None))
    assert one.session.end_of.saved_as == "" and one.manifest is None
