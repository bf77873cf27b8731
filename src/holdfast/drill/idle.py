"""The provocations of idle sessions: reaped by policy, and drained (drill/checks.py lists them)."""

from __future__ import annotations

import json
import os
from typing import Final

from holdfast.drill.stage import NotHere, Stage, expect
from holdfast.sdk.session import Session

LIMIT: Final = '[reaper]\nidle = "1s"\nwarn = "1s"\n'
BUSY: Final = "while :; do :; done"


async def savable(stage: Stage) -> Session:
    """A contained session with a variable; NotHere if this machine cannot save it."""
    session = await stage.session(contained=True)
    found = await session.preflight()
    if not found.possible:
        raise NotHere(f"no session can be saved here: {'; '.join(found.blockers)}")
    await session.run("DRILL=kept")
    return session


async def reaped(stage: Stage) -> str:
    idle = await savable(stage)
    busy = await stage.session(contained=True)
    await busy.send(BUSY, enter=True)
    before = await idle.info()
    stage.prepare(stage.home, "start = false", LIMIT)
    try:
        await stage.kill_host()
        async with stage.counted("holdfast_events_total", event="session.evicted"):
            [evicted] = await stage.until(
                lambda: stage.events(idle, "session.evicted"), "session.evicted"
            )
        warned = await stage.events(idle, "session.reap_warned")
        expect(warned and warned[0].number < evicted.number, "no warning came before")
        done = await idle.run("echo $DRILL")
        expect(done.output == "kept\n", f"the session came back with {done.output!r}")
        expect((await busy.info()).state == "detached", "a busy session was reaped")
        expect(not await stage.events(busy, "session.evicted"), "a busy session was evicted")
    finally:
        stage.prepare(stage.home, "start = false")
        await stage.kill_host()
    after = await idle.info()
    return (
        f"warned, then evicted with {evicted.facts['bytes']} bytes; back by `run` as epoch "
        f"{after.epoch} of {before.id}; a busy session stayed"
    )


async def drained(stage: Stage) -> str:
    saved, plain = await savable(stage), await stage.session()
    root = os.geteuid() == 0  # root's plain sessions can be saved too
    code = 0 if root else 7
    said = json.loads(await stage.command("drain", "--notice", "60s", "--json", code=code))
    try:
        by_id = {one["id"]: one for one in said["sessions"]}
        expect(by_id[saved.id]["saved"], f"not saved: {by_id[saved.id].get('why')}")
        found = by_id[plain.id]
        expect(root == found["saved"] and (root or found["why"]), f"the plain one: {found}")
        await stage.command("new", "late", "--no-attach", code=4)
    finally:
        await stage.command("drain", "--cancel")
    done = await saved.run("echo $DRILL")
    expect(done.output == "kept\n", f"the session came back with {done.output!r}")
    return (
        f"{said['saved']} saved in {said['took_s']} s, {said['left']} named with the reason; a new "
        "session was refused meanwhile"
    )
