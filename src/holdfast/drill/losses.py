"""The provocations that kill clients, hosts and keepers (drill/checks.py lists them)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Final

from holdfast.drill.stage import SOON_S, Stage, expect, refuses
from holdfast.model.errors import HoldfastError

LINES: Final = 20_000  # of output over which the host is killed


async def client_killed(stage: Stage) -> str:
    session = await stage.session()
    before = await session.info()
    terminal = stage.attach(session)
    await stage.until(lambda: stage.events(session, "client.attached"), "client.attached")
    async with stage.counted("holdfast_clients_left_total", how="lost"):
        terminal.process.send_signal(signal.SIGKILL)
        [left] = await stage.until(lambda: stage.events(session, "client.left"), "client.left")
    expect(left.facts["how"] == "lost", f"client.left says {left.facts['how']}, not lost")
    done = await session.run("echo still here")
    after = await session.info()
    expect(done.output == "still here\n", f"the next client got {done.output!r}")
    expect(
        before.pid == after.pid == left.facts["root_pid"], f"pid {before.pid} became {after.pid}"
    )
    starts = len(await stage.events(session, "session.started"))
    expect(starts == 1, f"{starts} starts")
    return f"pid {after.pid} before and after; client.left how=lost; one start"


async def host_killed(stage: Stage) -> str:
    session = await stage.session()
    before, go_on = await session.info(), stage.workspace() / "go-on"
    running = await session.start(
        f"seq 1 {LINES}; until [ -e {go_on} ]; do sleep 0.02; done; seq {LINES + 1} {2 * LINES}"
    )
    found = bytearray()
    async for chunk in running:
        found += chunk.data
        if not go_on.exists() and found.endswith(f"\n{LINES}\n".encode()):
            host = await stage.kill_host()
            go_on.touch()
    done = await running.wait()
    wanted = "".join(f"{number}\n" for number in range(1, 2 * LINES + 1)).encode()
    expect(done.exit_code == 0, f"the exit code is {done.exit_code}")
    expect(found == wanted, f"{len(found)} of {len(wanted)} bytes came, {done.lost} are lost")
    after = await session.info()
    expect(after.pid == before.pid, f"pid {before.pid} became {after.pid}")
    adopted = await stage.until(lambda: stage.events(session, "session.adopted"), "session.adopted")
    starts = len(await stage.events(session, "session.started"))
    expect(starts == 1, f"{starts} starts: something was run again")
    return (
        f"{len(wanted)} bytes exact over kill -9 of host {host}; term {adopted[-1].facts['term']}, "
        f"pid {after.pid}, one start"
    )


async def input_once(stage: Stage) -> str:
    session = await stage.session()
    place, line = stage.workspace() / "effects", await stage.lossy()
    theirs = await stage.client(home=line.home).sessions.get(session.id)
    await theirs.send("true", enter=True)
    count = 6
    for number in range(count):
        text = f"echo {number} >>{place}"
        if number < count // 2 or stage.live:
            line.lose_next()  # the connection is open: the answer to this act
            await theirs.send(text, enter=True)
        else:
            typed = asyncio.create_task(session.send(text, enter=True))
            await stage.kill_host()
            await typed
        await session.wait("idle", timeout=SOON_S)
    found = place.read_text().split()
    wanted = [str(number) for number in range(count)]
    expect(line.lost, "no answer was lost")
    expect(found == wanted, f"effects {found}, wanted {wanted}")
    deaths = "" if stage.live else f" and {count // 2} host deaths"
    return f"{line.lost} lost answers{deaths}: {count} lines typed, {count} effects in order"


async def keeper_killed(stage: Stage) -> str:
    session = await stage.session()
    [row] = [
        one for one in json.loads(await stage.command("ls", "--json")) if one["id"] == session.id
    ]
    async with stage.counted("holdfast_events_total", event="session.lost"):
        os.kill(row["keeper"], signal.SIGKILL)
        [lost] = await stage.until(lambda: stage.events(session, "session.lost"), "session.lost")
    [back] = await stage.until(
        lambda: stage.events(session, "session.re_established"), "session.re_established"
    )
    after = await session.info()
    expect(after.epoch == row["epoch"] + 1, f"epoch {after.epoch}")
    return (
        f"session.lost: {lost.facts['reason']}; back as epoch {after.epoch}, {back.facts['reason']}"
    )


async def power_cut(stage: Stage) -> str:
    session, place = await stage.session(), stage.workspace()
    await session.run(f"cd {place}; export DRILL=kept; echo ran >>effects")
    running = await session.start("echo ran >>effects; sleep 1000")

    async def stored() -> bool:
        return len((place / "effects").read_text().split()) == 2

    await stage.until(stored, "the command runs")
    [row] = [
        one for one in json.loads(await stage.command("ls", "--json")) if one["id"] == session.id
    ]
    await stage.kill_host()
    os.kill(row["keeper"], signal.SIGKILL)
    [back] = await stage.until(
        lambda: stage.events(session, "session.re_established"), "session.re_established"
    )
    counted = await stage.metric("holdfast_events_total", event="session.re_established")
    expect(counted, "the next host has not counted session.re_established")
    after = await session.info()
    expect(after.id == row["id"] and after.epoch == row["epoch"] + 1, f"epoch {after.epoch}")
    found = (await session.run("echo $DRILL")).output.strip()
    expect((place / "effects").read_text().split() == ["ran"] * 2, "a command was run again")
    expect(back.facts["in_flight"], "the act in flight is not named")
    lost = asyncio.wait_for(running.wait(), SOON_S)
    await refuses(lost, HoldfastError, "the command in flight has an exit code")
    return f"epoch {after.epoch} of {after.id}, variable {found or 'lost'}, no command repeated"
