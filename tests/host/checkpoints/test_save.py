"""A save that ends the session keeps a halt or stop that came during the dump (A4, A8, R2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.host.checkpoints import save
from holdfast.host.requests import turn_and_halt
from holdfast.model.errors import Refused


def saving(
    halted: bool, saved_halted: str, stopped: tuple[str, ...] = (), saved: tuple[str, ...] = ()
) -> Any:
    one: Any = save._Saving.__new__(save._Saving)
    one.id, one.by, one.manifest = "cp-1", "ann", None
    end_of = SimpleNamespace(saved_as="", saved_by="")
    one.session = SimpleNamespace(name="s", halted=False, stopped=(), end_of=end_of)

    async def store(made: object) -> SimpleNamespace:
        one.session.halted = halted  # while the images are packed
        one.session.stopped = [SimpleNamespace(operator=name) for name in stopped]
        stops = [{"operator": name} for name in saved]
        return SimpleNamespace(halted=saved_halted, stops=stops)

    one._store = store
    return one


@pytest.mark.parametrize(("halted", "saved_halted"), [(False, ""), (True, "freeze")])
def test_r2_a_stored_checkpoint_ends_the_session(halted: bool, saved_halted: str) -> None:
    one = saving(halted, saved_halted)
    asyncio.run(one._keep(None))
    assert one.session.end_of.saved_as == "cp-1" and one.manifest is not None
    assert one.session.end_of.saved_by == "ann"


def test_a4_a_session_that_was_halted_during_the_dump_does_not_end() -> None:
    one = saving(True, "")
    with pytest.raises(Refused, match="halted meanwhile"):
        asyncio.run(one._keep(None))
    assert one.session.end_of.saved_as == "" and one.manifest is None


def test_a8_an_operator_that_was_stopped_during_the_dump_stays_stopped() -> None:
    """A stop waits for a dump for some seconds only."""
    one = saving(False, "", ("ann", "bot"), ("bot",))
    with pytest.raises(Refused, match="ann was stopped in s meanwhile"):
        asyncio.run(one._keep(None))
    assert one.session.end_of.saved_as == "" and one.manifest is None
    one = saving(False, "", ("bot",), ("bot",))
    asyncio.run(one._keep(None))
    assert one.manifest is not None


def test_a8_a_stop_that_was_too_late_for_the_checkpoint_is_refused() -> None:
    """The dump took longer than the stop waited, and the processes ended with the checkpoint."""
    stops = dict[str, object]()

    async def go() -> None:
        ended = asyncio.get_running_loop().create_future()
        ended.set_result(None)
        session: Any = SimpleNamespace(
            id="s",
            name="s",
            ended=ended,
            ending=True,
            end_of=SimpleNamespace(saved_as=""),
            stopped=SimpleNamespace(get=stops.get, remove=lambda name: stops.pop(name)),
        )

        async def stop(session: Any, operator: str, by: str) -> None:
            stops[operator] = by
            session.end_of.saved_as = "cp-1"

        engine = SimpleNamespace(
            halter=SimpleNamespace(quiet=lambda session: asyncio.sleep(0)),
            operator_stops=SimpleNamespace(stop=stop),
        )
        host: Any = SimpleNamespace(engine=engine)
        ctx: Any = SimpleNamespace(conn=SimpleNamespace(operator="ann"))
        with pytest.raises(Refused, match="saved meanwhile"):
            await turn_and_halt._stop(host, ctx, session, "bot")

    asyncio.run(go())
    assert not stops, "the restored session does not have it either"
