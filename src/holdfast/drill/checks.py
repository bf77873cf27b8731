"""The provocations, a function for each promise: returns the evidence or raises Broken.

Each check makes a new session, so that a broken promise does not break the next check.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.drill.agent import Agent
from holdfast.drill.branches import forked
from holdfast.drill.connections import connection_reset
from holdfast.drill.elsewhere import fenced, moved, restored, taken_over
from holdfast.drill.idle import drained, reaped
from holdfast.drill.losses import client_killed, host_killed, input_once, keeper_killed, power_cut
from holdfast.drill.stage import FIRST, SOON_S, Broken, NotHere, Stage, expect, refuses
from holdfast.home import programs
from holdfast.model.errors import (
    GateRefused,
    HoldfastError,
    NotAllowed,
    TimedOut,
    TurnHeld,
)
from holdfast.sdk.session import Session

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

ROLLED: Final = 4 << 20  # bytes of output at a time, until the ring is full
ROLLS_MAX: Final = 300  # the largest ring holds 1 GiB


class Check(NamedTuple):
    """`mode`: the failure mode of docs/reference/signatures.md, or the part of the claim.

    `not_live`: why a live drill leaves the check out; empty for a check that a live drill runs.
    """

    clause: str
    mode: str
    name: str
    run: Callable[[Stage], Awaitable[str]]
    not_live: str = ""


async def two_writers(stage: Stage) -> str:
    session = await stage.session()
    bob = await stage.operator("bob", "execute,turn.seize")
    theirs = await bob.sessions.get(session.id)
    await session.send("true", enter=True)
    await refuses(theirs.send("echo intruder", enter=True), TurnHeld, "a second writer was let in")
    async with stage.counted("holdfast_turn_moves_total", how="seize"):
        seized = await theirs.seize()
    expect(seized.previous == FIRST, f"the former holder is {seized.previous}")
    await refuses(session.send("echo late", enter=True), TurnHeld, "the old holder still writes")
    await theirs.turn.release()
    actors = [entry.actor async for entry in session.log()]
    expect({FIRST, "bob"} <= set(actors), f"the record names {sorted(set(actors))}")
    refused = await stage.events(session, "turn.refused")
    return f"one writer; seize displaced {FIRST}; {len(refused)} turn.refused; both in one record"


async def halted(stage: Stage) -> str:
    session = await stage.session()
    ticks = stage.workspace() / "ticks"
    await session.run(f"(setsid bash -c 'while :; do echo >>{ticks}; sleep 0.01; done' &); true")

    async def size() -> int:
        return ticks.stat().st_size if ticks.exists() else 0

    await stage.until(size, "the daemon's first line")
    async with stage.counted("holdfast_halt_seconds_count"):
        stopped = await session.halt()
    before = await size()
    await asyncio.sleep(0.3)
    after = await size()
    await session.resume()

    async def moved() -> bool:
        return await size() > after

    await stage.until(moved, "the daemon to go on after resume")
    expect(before == after, f"{after - before} bytes were written by a halted session")
    return f"{len(stopped.processes)} processes stood still ({stopped.how}), a daemon among them"


async def revoked(stage: Stage) -> str:
    session = await stage.session()
    carol = await stage.operator("carol", "execute")
    theirs = await carol.sessions.get(session.id)
    await theirs.send("true", enter=True)
    await stage.command("operator", "revoke", "carol")
    await refuses(theirs.send("echo late", enter=True), HoldfastError, "a revoked operator writes")
    text = (await session.view()).text
    expect("late" not in text, "the input of a revoked operator reached the terminal")
    return "refused with the next input"


async def poisoned(stage: Stage) -> str:
    session = await stage.session()
    dave = await stage.operator("dave", "execute")
    trap = stage.workspace() / "bin"
    await session.run(f"mkdir -p {trap}; cp /bin/true {trap}/deploy; PATH={trap}:$PATH")
    await session.turn.release()
    await (await dave.sessions.get(session.id)).run("deploy")
    theirs = [one async for one in session.log() if (one.actor, one.kind) == ("dave", "command")]
    named = theirs[-1].originators
    expect(FIRST in named, f"{FIRST} set the trap, and the record names {named}")
    return f"trigger dave, originators {', '.join(named)}"


async def fails_closed(stage: Stage) -> str:
    session = await stage.session()
    policy, effect = stage.home / "policy.toml", stage.workspace() / "effect"
    policy.write_text("this is no policy [")
    try:
        async with stage.counted("holdfast_gate_decisions_total", verdict="refuse"):
            await refuses(session.run(f"touch {effect}"), GateRefused, "it ran without a policy")
    finally:
        policy.unlink()
    expect(not effect.exists(), "the refused act had an effect")
    return "an unreadable policy refuses, and nothing happened"


async def record_verifies(stage: Stage) -> str:
    session = await stage.session()
    await session.run("echo recorded")
    text = await stage.command("log", "export", session.id)
    honest, forged = stage.base / "record", stage.base / "forged"
    honest.write_text(text)
    await stage.command("log", "verify", str(honest))
    actor = f'\\"actor\\":\\"{stage.first}\\"'
    expect(actor in text, "the record does not name its actor")
    forged.write_text(text.replace(actor, actor.replace(stage.first, "eve"), 1))
    try:
        await stage.command("log", "verify", str(forged))
    except Broken:
        return f"{len(text.splitlines())} lines verify; one changed name does not"
    raise Broken("a forged record verifies")


async def ownerless(stage: Stage) -> str:
    erin = await stage.operator("erin", "admin")
    session = await erin.sessions.new(
        "of-erin", command=("/bin/bash",), cwd=str(stage.workspace()), env=stage.environ
    )
    pid = (await session.info()).pid
    await stage.command("operator", "revoke", "erin")
    mine = await stage.client().sessions.get("of-erin")
    done = await mine.run("echo on")
    expect(done.output == "on\n", f"the session answers {done.output!r}")
    expect((await mine.info()).pid == pid, "the program is another")
    return f"its maker erin is revoked; pid {pid} goes on"


async def history_bounded(stage: Stage) -> str:
    session = await stage.session()
    async with stage.counted("holdfast_output_rolled_bytes_total"):
        for _ in range(ROLLS_MAX):
            await session.run(f"head -c {ROLLED} /dev/zero | tr '\\0' x")
            if (kept := (await session.info()).output) is not None and kept.start > 0:
                break
    at, gap, size = 0, 0, 0
    async for chunk in session.read(0):
        expect(chunk.offset == at + chunk.gap, f"a hole at {at}: the next byte is {chunk.offset}")
        at, gap, size = chunk.end, gap + chunk.gap, size + len(chunk.data)
    info = await session.info()
    assert info.output is not None
    expect(gap > 0 and gap == info.output.start, f"gap {gap}, kept from {info.output.start}")
    return f"{gap} bytes rolled off and reported, {size} delivered"


async def references(stage: Stage) -> str:
    session = await stage.session()
    go_on = stage.workspace() / "go-on"
    running = await session.start(f"until [ -e {go_on} ]; do sleep 0.02; done; (exit 7)")
    await running.leave()
    assert running.ref is not None

    async def known() -> bool:
        found = await stage.client().resolve(running.ref or "")
        return found.known and found.exit_code == 7

    async def recorded(name: str, value: str) -> bool:
        return any([getattr(entry, name) == value async for entry in session.log()])

    await stage.until(lambda: recorded("phase", "outcome"), "the host to notice that we left")
    go_on.touch()
    await stage.until(lambda: recorded("kind", "exit"), f"the exit of {running.ref} in the record")
    await stage.kill_host()
    await stage.until(known, f"exit code 7 of {running.ref}")
    return f"{running.ref}: exit code 7, asked of the next host"


async def background_death(stage: Stage) -> str:
    session = await stage.session()
    said = json.loads(
        await stage.command("run", session.id, "--json", "--", "sleep 3600 & echo pid $!")
    )
    pid, ref = int(said["data"].split()[-1]), str(said["ref"])

    async def left() -> Json:
        """What the act has left, by the kernel; its client has exited."""
        return dict(json.loads(await stage.command("resolve", ref, "--json")))

    running = [one["pid"] for one in (await left())["running"]]
    expect(running == [pid], f"{running} runs after the client, not {pid}")
    if not await stage.metric("holdfast_process_events_told"):
        os.kill(pid, signal.SIGKILL)
        await stage.until(lambda: _not(left, "running"), f"{pid} to be gone")
        return (
            f"pid {pid} outlived its client; its end is seen on request: no reports of exits here"
        )
    async with stage.counted("holdfast_events_total", event="process.exited"):
        os.kill(pid, signal.SIGKILL)
        [died] = await stage.until(lambda: stage.events(session, "process.exited"), "its exit")
    facts = died.facts
    expect((facts["pid"], facts["signal"]) == (pid, "SIGKILL"), f"process.exited says {facts}")
    expect(facts["act"] == ref, f"process.exited names the act {facts['act']}, not {ref}")
    expect(not (await left())["running"], f"{ref} still claims that {pid} runs")
    return f"pid {pid} outlived its client; process.exited: SIGKILL, act {ref}"


async def blocked(stage: Stage) -> str:
    session = await stage.session()
    go_on = stage.workspace() / "go-on"
    running = await session.start(
        f"until [ -e {go_on} ]; do sleep 0.02; done; read -r name; read -rs word; "
        "echo $name ${#word}"
    )

    async def busy() -> bool:
        """Between two programs of the loop, no process is in the foreground for a moment."""
        waiting = (await session.view()).waiting
        return waiting is not None and waiting.for_ == "working"

    await stage.until(busy, "a busy command to read as working")
    go_on.touch()
    await session.wait("input", timeout=SOON_S)
    await session.send("ada", enter=True)
    secret = await session.wait("secret", timeout=SOON_S)
    await session.send("12345", enter=True)
    done = await running.wait()
    expect(done.output.split()[-2:] == ["ada", "5"], f"the answers gave {done.output!r}")
    return f"working, then input, then secret ({secret.seen}); both answers reached the command"


async def stale_claim(stage: Stage) -> str:
    session = await stage.session()
    place = stage.workspace() / "port"
    server = (
        'import signal, socket; made = socket.create_server(("127.0.0.1", 0)); '
        f'open("{place}", "w").write(f"{{made.getsockname()[1]}}."); signal.pause()'
    )
    await session.run(f"{sys.executable} -c '{server}' &")

    async def written() -> bool:
        return place.exists() and place.read_text().endswith(".")

    await stage.until(written, "the port of the server")
    port = int(place.read_text()[:-1])
    pid = (await session.wait(f"port:{port}", timeout=SOON_S)).pid
    assert pid is not None
    before = {one.pid for one in (await session.graph()).processes}
    expect(pid in before, f"the graph does not have {pid}, which listens on {port}")
    os.kill(pid, signal.SIGKILL)

    async def gone() -> bool:
        return pid not in _pids()

    await stage.until(gone, f"{pid} to leave /proc")
    after = {one.pid for one in (await session.graph()).processes}
    expect(pid not in after, f"the graph claims {pid}, which the kernel does not have")
    await refuses(
        session.wait(f"port:{port}", timeout=0.2), TimedOut, f"port {port} is claimed open"
    )
    return f"pid {pid} on port {port}: in the graph while it lived, in no answer after its death"


async def contained(stage: Stage) -> str:
    session = await stage.session(contained=True)
    inside = await session.run(
        f"ls {stage.home} {stage.account}; cat {stage.home}/*.db; kill -0 -1"
    )
    secrets = [name for name in ("state.db", "keys", "run") if name in inside.output]
    expect(not secrets, f"code inside sees {', '.join(secrets)} of the installation")
    return "code inside sees neither the installation nor its keys"


async def heterogeneous(stage: Stage) -> str:
    session = await stage.session()
    stage.attach(session, "--observe")
    await stage.until(lambda: stage.events(session, "client.attached"), "client.attached")
    seen = asyncio.create_task(session.wait("text:from-the-cli", timeout=SOON_S))
    await stage.command("run", session.id, "--", "echo from-the-cli")
    await seen
    await session.run("echo from-the-sdk")
    modes = {entry.modality async for entry in session.log() if entry.actor == stage.first}
    expect({"cli", "sdk"} <= modes, f"the record has the modalities {sorted(modes)}")
    return f"one execution, modalities {', '.join(sorted(modes))} and an attached terminal"


async def with_an_agent(stage: Stage) -> str:
    if find_spec("mcp") is None:
        raise NotHere("the library for MCP is not installed: `pip install 'holdfast[mcp]'`")
    session = await stage.session()
    before = await session.info()
    gus = await stage.operator("gus", "execute")
    await stage.operator("bot", "execute,plain", kind="agent")
    theirs = await gus.sessions.get(session.id)
    terminal = stage.attach(session)
    words = programs.module("holdfast", "mcp", "--as", "bot", "--session", session.id)
    bot = await Agent.start(words, stage.environ, str(stage.workspace()))
    try:
        async with theirs.attach():
            await stage.until(lambda: _attached(session, 2), "two attached terminals")
            await stage.until(terminal.raw, "the terminal to take keys")
            await _in_turn(stage, session, theirs, terminal.type, bot)
            code = await bot.leave()
        expect(code == 0, f"`holdfast mcp` ended with {code}")
    finally:
        if bot.process.returncode is None:
            bot.process.kill()
            await bot.process.wait()
    terminal.process.send_signal(signal.SIGTERM)  # the last of the three
    await stage.until(lambda: _left(session), "all clients to leave")
    done = await session.run("echo from-the-next")
    after = await session.info()
    expect(done.output == "from-the-next\n", f"the session answers {done.output!r}")
    expect(before.pid == after.pid, f"pid {before.pid} became {after.pid}")
    made = {(e.actor, e.modality) async for e in session.log() if e.kind in ("command", "keys")}
    wanted = {(FIRST, "cli"), ("gus", "sdk"), ("bot", "mcp")}
    expect(wanted <= made, f"the record attributes {sorted(made)}, not {sorted(wanted)}")
    how = ", ".join(f"{actor} by {modality}" for actor, modality in sorted(wanted))
    return f"{how}; one writer; pid {after.pid} goes on after each left"


async def _in_turn(
    stage: Stage, session: Session, theirs: Session, typed: Callable[[str], None], bot: Agent
) -> None:
    """A person types; meanwhile agent and program are kept out; then each of them writes."""
    typed("echo from-the-terminal\r")
    await session.wait("text:^from-the-terminal", timeout=SOON_S)
    await refuses(theirs.send("echo intruder", enter=True), TurnHeld, "a second writer was let in")
    waits = await bot("run", command="echo from-the-agent", wait_s=1)
    expect(waits["state"] == "waiting_for_turn", f"the agent's command is {waits['state']}")
    await session.turn.release()

    async def done() -> Json | None:
        found = await bot("read", ref=waits["ref"], wait_s=5)
        return found if found["state"] == "done" else None

    found = await stage.until(done, "the agent's command to end")
    expect(found["exit_code"] == 0, f"the agent's command ended with {found['exit_code']}")
    await refuses(theirs.send("echo intruder", enter=True), TurnHeld, "a third writer was let in")
    await bot("turn", do="release")
    ran = await theirs.run("echo from-the-program")
    expect(ran.output == "from-the-program\n", f"the program got {ran.output!r}")
    await theirs.turn.release()
    text = (await session.view()).text
    expect("intruder" not in text, "the input of a second writer reached the terminal")


async def _attached(session: Session, count: int) -> bool:
    return len((await session.info()).operators) == count


async def _left(session: Session) -> bool:
    return await _attached(session, 0)


async def reader_cannot_write(stage: Stage) -> str:
    session = await stage.session()
    theirs = await (await stage.operator("frank", "read")).sessions.get(session.id)
    await theirs.view()
    await refuses(theirs.send("echo no", enter=True), NotAllowed, "a reader writes")
    await refuses(theirs.halt(), NotAllowed, "a reader halts")
    return "may look, may not write or halt"


def _pids() -> set[int]:
    """All processes, from the kernel."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


async def _not(found: Callable[[], Awaitable[Json]], name: str) -> bool:
    return not (await found())[name]


KILLS: Final = "it kills the host"
DRAINS: Final = "it saves and ends all sessions"
ADMITS: Final = "it admits and revokes operators"
SECOND: Final = "it needs a second home, which may take over sessions"
STOPS: Final = "it stops the host for seconds"
POLICY: Final = "it breaks the policy for a moment"
CHECKS: Final = (
    Check("S3", "mode 1", "a client is killed", client_killed),
    Check("S4", "modes 1a, 5", "the host is killed under output", host_killed, KILLS),
    Check("S4", "mode 6", "input is applied once over lost answers and host deaths", input_once),
    Check("S2", "part 2", "a blocked command says what it waits for", blocked),
    Check("S2", "part 2", "a claim of the past is not an answer of the kernel", stale_claim),
    Check("S9", "part 2", "a background process does not die silently", background_death),
    Check("S5", "mode 1", "lost history is stated exactly", history_bounded),
    Check("S7", "claim: ownerless", "the maker of a session is revoked", ownerless, ADMITS),
    Check("S8", "part 2", "a reference outlives client and host", references, KILLS),
    Check(
        "M",
        "claim: heterogeneous",
        "terminal, command line and SDK on one execution",
        heterogeneous,
    ),
    Check(
        "M",
        "claim: heterogeneous",
        "a person, a program and an agent at once, one writer",
        with_an_agent,
        ADMITS,
    ),
    Check(
        "A3", "mode 7, claim: authority", "two writers; one seizes the turn", two_writers, ADMITS
    ),
    Check("A4", "halt", "a halt stops a daemon", halted),
    Check("A5", "envelopes", "a reader cannot write", reader_cannot_write, ADMITS),
    Check("A5", "envelopes", "a revocation takes effect with the next input", revoked, ADMITS),
    Check("P2", "record", "the record verifies, a forged one does not", record_verifies),
    Check("P3", "mode 8", "a poisoned PATH names its author", poisoned, ADMITS),
    Check("P4", "gate", "a policy that fails refuses", fails_closed, POLICY),
    Check("T4", "containment", "code in a contained session sees no keys", contained),
    Check(
        "S9",
        "mode 2",
        "the loss of a keeper is reported, and the session comes back",
        keeper_killed,
    ),
    Check("R4", "mode 3", "a dropped external connection is an event", connection_reset),
    Check("R5", "mode 4", "a session is forked; one branch is kept", forked),
    Check(
        "R1", "mode 2, mode 5", "a session comes back after keeper and host died", power_cut, KILLS
    ),
    Check("R8", "mode 9", "an idle session leaves the memory and comes back", reaped, KILLS),
    Check("R9", "mode 2", "a drained machine has its sessions on the disk", drained, DRAINS),
    Check("R2", "mode 2", "a saved session comes back with its programs", restored),
    Check("R2", "mode 2", "a session goes on in a second home", moved, SECOND),
    Check("R3", "mode 2", "without a renewal a re-homable session freezes", fenced, STOPS),
    Check("R3", "mode 2", "a takeover waits, and the old incarnation ends", taken_over, SECOND),
)
