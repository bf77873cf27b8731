"""Programs save sessions to disk and bring them back. All tests need CRIU (scripts/criu)."""

from __future__ import annotations

import pytest

import holdfast
import holdfast.sync
from tests.support.commands.programs import client, together
from tests.support.installation import DEADLINE_S, Installation
from tests.support.recovery.checkpoint import criu


def test_r2_a_program_saves_a_session_and_restores_it(hf: Installation) -> None:
    criu()
    hf.ready("sdk-saved", "--contained")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-saved")
            await session.run("X=kept")
            found = await session.preflight()
            assert found.possible and found.bytes > 100_000 and not found.blockers
            assert await session.checkpoints() == []
            running = await session.checkpoint()
            assert not running.ended and running.frozen_ms > 0 and running.epoch == 1
            saved = await session.checkpoint(stop=True, hold=1.0)
            assert saved.ended and saved.checkpoint != running.checkpoint
            listed = [one.checkpoint for one in await session.checkpoints()]
            assert listed == [running.checkpoint, saved.checkpoint]
            with pytest.raises(holdfast.Saved):
                await session.run("true", turn="fail")
            back = await session.restore(fallback=False, hold=1.0)
            assert (back.id, back.checkpoint, back.epoch) == (session.id, saved.checkpoint, 2)
            assert back.re_established is None
            assert session.ref is not None and "@2" in session.ref
            done = await session.run("echo $X", timeout=DEADLINE_S)
            assert done.output == "kept\n"
            with pytest.raises(holdfast.Refused, match="is running"):
                await session.restore(running.checkpoint)

    together(work())


def test_r2_a_program_is_told_why_a_session_cannot_be_saved(hf: Installation) -> None:
    hf.ready("sdk-unsaved", "--plain")
    hf.ok("run", "sdk-unsaved", "--", "unshare -Ur sleep 1000 &")
    hf.ok("wait", "sdk-unsaved", "--for", "idle")
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        session = c.sessions.get("sdk-unsaved")
        found = session.preflight()
        assert not found.possible and found.blockers
        with pytest.raises(holdfast.Impossible) as refused:
            session.checkpoint()
        assert refused.value.facts["blockers"] == list(found.blockers)


def test_a9_an_act_meant_for_a_lost_incarnation_is_refused_and_the_next_is_not(
    hf: Installation,
) -> None:
    """A program that goes on after a restore by another operator is told once."""
    criu()
    hf.ready("sdk-followed", "--contained")

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-followed")
            await session.run("X=kept")
            hf.ok("checkpoint", "sdk-followed", "--stop")
            hf.ok("restore", "sdk-followed")
            with pytest.raises(holdfast.Refused, match="incarnation 1 of sdk-followed; this is 2"):
                await session.run("echo never")
            assert (await session.run("echo $X", timeout=DEADLINE_S)).output == "kept\n"

    together(work())
