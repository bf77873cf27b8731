"""The provocations of checkpoints, moves and fences (drill/checks.py lists them).

The other machine is a second throw-away home on this machine, which is reached through its relay on
loopback. Both homes share the SQLite store of leases.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.drill.idle import savable
from holdfast.drill.stage import LEASE_DRIFT, LEASE_TERM_S, SOON_S, Stage, expect
from holdfast.sdk.session import Session

VAULT: Final = "vault"  # the name of the second home
WAIT_S: Final = LEASE_TERM_S * (1 + LEASE_DRIFT)  # before a successor may begin
STILL_S: Final = 2.0  # a program that counts every 20 ms stands still if it says nothing meanwhile
SAYS: Final = "echo $DRILL $(jobs -p)"


async def restored(stage: Stage) -> str:
    session = await savable(stage)
    await session.run("sleep 1000 &")
    before, said = await session.info(), (await session.run(SAYS)).output
    assert before.epoch is not None
    saved = await session.checkpoint(stop=True)
    listed = await _row(stage, session)
    expect(listed["state"] != before.state, f"a stopped session is {listed['state']}")
    back = await session.restore()
    after, again = await session.info(), (await session.run(SAYS)).output
    expect(after.id == before.id and after.epoch == before.epoch + 1, f"epoch {after.epoch}")
    expect(said == again, f"variable and job {said!r} came back as {again!r}")
    return f"{saved.bytes} bytes; back as epoch {back.epoch} with variable and job"


async def moved(stage: Stage) -> str:
    session, home = await savable(stage), await _vault(stage)
    await session.run("sleep 1000 &")
    before, said = await session.info(), (await session.run(SAYS)).output
    assert before.epoch is not None
    move = json.loads(await stage.command("move", session.id, VAULT, "--json"))
    there = await stage.client(home=home).sessions.get(session.id)
    after, again = await there.info(), (await there.run(SAYS)).output
    expect(after.id == before.id and after.epoch == before.epoch + 1, f"epoch {after.epoch}")
    expect(said == again, f"variable and job {said!r} came as {again!r}")
    await stage.command("restore", session.id, code=4)
    left = await _row(stage, session)
    expect(left["state"] == "moved", f"the first home lists the session as {left['state']}")
    await there.end()
    return (
        f"epoch {after.epoch} in a second home, {move['sent']} bytes travelled, it stood still for "
        f"{move['stood_ms']:.0f} ms; `restore` in the first home is refused"
    )


async def fenced(stage: Stage) -> str:
    session = await stage.session()
    ticks = await _counting(stage, session)
    async with _host_stopped(stage) as since:

        async def still() -> bool:
            return _now() - _ticks(ticks)[-1] > STILL_S

        await stage.until(still, "the program to stand still")
        stood = _ticks(ticks)[-1] - since
        expect(stood <= WAIT_S, f"the program went on for {stood:.1f} s without a host")

    async def goes_on() -> bool:
        return _now() - _ticks(ticks)[-1] < STILL_S

    await stage.until(goes_on, "the program to go on when the lease is back")
    return (
        f"the host was stopped; the program stood still {max(0.0, stood):.1f} s later (term "
        f"{LEASE_TERM_S:g} s, a successor waits {WAIT_S:g} s), and went on with the lease"
    )


async def taken_over(stage: Stage) -> str:
    session, home = await savable(stage), await _vault(stage)
    ticks = await _counting(stage, session)
    await stage.command("checkpoint", session.id, "--to", VAULT)
    async with _host_stopped(stage) as since:

        async def taken() -> str:
            code, out, _ = await stage.attempt("restore", session.id, "--json", home=home)
            return "" if code else out

        back = json.loads(await stage.until(taken, "a takeover"))
        copies = list((home / "arrived").rglob(ticks.name))
        expect(len(copies) == 1, f"{len(copies)} workspaces arrived")

        async def acts() -> float:
            return next((at for at in _ticks(copies[0]) if at > since), 0.0)

        first = await stage.until(acts, "an act of the new incarnation")
        last = _ticks(ticks)[-1]
        expect(last < first, f"both incarnations acted for {last - first:.2f} s")

    async def gone() -> bool:
        return bool((await _row(stage, session))["state"] in ("ended", "moved"))

    await stage.until(gone, "the end of the old incarnation")
    there = await stage.client(home=home).sessions.get(session.id)
    await there.end()
    return (
        f"host stopped, takeover asked at once: the old incarnation acted until "
        f"{max(0.0, last - since):.1f} s, epoch {back['epoch']} from {first - since:.1f} s; the "
        "old one was ended when its host went on"
    )


async def _vault(stage: Stage) -> Path:
    """The second home, which may take over sessions of the first one."""
    home = stage.base / VAULT
    if home in stage.homes:
        return home
    stage.prepare(home, 'listen = "127.0.0.1:0"')
    stage.homes.append(home)
    await stage.command("up", "--detach", home=home)
    link = json.loads(await stage.command("device", "add", "--no-wait", "--json", home=home))
    joined = json.loads(await stage.command("join", link["url"], "--json"))
    await stage.command("machines", "rename", joined["as"], VAULT)
    await stage.command("machines", "trust", VAULT)
    return home


async def _row(stage: Stage, session: Session) -> dict[str, object]:
    """The session as the first home lists it."""
    listed = json.loads(await stage.command("ls", "--all", "--local", "--json"))
    return dict(next(one for one in listed if one["id"] == session.id))


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _ticks(place: Path) -> list[float]:
    """The complete lines that a counting program has written."""
    return [float(line) for line in place.read_text().splitlines(True) if line.endswith("\n")]


async def _counting(stage: Stage, session: Session) -> Path:
    """A re-homable session whose shell writes the time into a file, without other programs."""
    place = stage.workspace() / "ticks"
    os.mkfifo(f"{place}.fifo")
    await session.send(f"exec 9<>{place}.fifo", enter=True)
    await stage.command("rehome", session.id, "on")
    loop = (
        f"while :; do read -r up rest </proc/uptime; echo $up >>{place}; read -rt 0.02 -u 9; done"
    )
    await session.send(loop, enter=True)

    async def counts() -> bool:
        return place.exists() and bool(_ticks(place))

    await stage.until(counts, f"the program to count within {SOON_S:g} s")
    return place


@asynccontextmanager
async def _host_stopped(stage: Stage) -> AsyncIterator[float]:
    """The time at which the host was stopped; it goes on at the end of the block."""
    pid = await stage.host_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield _now()
    finally:
        os.kill(pid, signal.SIGCONT)
