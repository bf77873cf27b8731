"""The provocation of a fork (drill/checks.py lists it)."""

from __future__ import annotations

from holdfast.drill.stage import SOON_S, NotHere, Stage, expect
from holdfast.sdk.session import Session


async def forked(stage: Stage) -> str:
    session, place = await stage.session(contained=True), stage.workspace()
    file = place / "branch"
    file.write_text("base\n")
    possible = await session.can_fork(2)
    if not possible.possible:
        raise NotHere("; ".join(possible.blockers))
    await session.run("DRILL=kept; echo ran >>once", once="drill", timeout=SOON_S)
    made = await session.fork(2)
    one, two = [await stage.branch(branch.id) for branch in made.branches]
    for branch in (one, two):
        seen = await _says(branch, "echo $DRILL $(<branch)")
        expect(seen == "kept base\n", f"{branch.name} has {seen!r}")
        await branch.run("DRILL=kept; echo ran >>once", once="drill", timeout=SOON_S)
        ran = (await _says(branch, "mapfile lines <once; echo ${#lines[@]}")).strip()
        expect(ran == "1", f"an act of the parent ran {ran!r} times in a branch, not once")
        await branch.run(f"echo {branch.name} >branch", timeout=SOON_S)
    file.write_text("later\n")
    other = await _says(two, "echo $(<branch)")
    expect(other == f"{two.name}\n", f"a branch sees {other!r}")
    clash = await two.keep()
    expect(clash.conflicts and file.read_text() == "later\n", "keep overwrote a later file")
    kept = await two.keep(take=[str(file)])
    expect(kept.done and file.read_text() == f"{two.name}\n", "keep wrote no file")
    expect([left.id for left in kept.discarded] == [one.id], "the other branch is still there")
    await two.discard()
    return f"2 branches, {made.frozen_ms:.0f} ms of standing still; 1 kept, 1 discarded"


async def _says(branch: Session, command: str) -> str:
    """The output of a command that ended.

    The commands start no program: who typed in a branch before the fork is not known. With an agent
    among the operators the exec gate may ask a person about a branch's programs, and they wait.
    """
    done = await branch.run(command, timeout=SOON_S)
    expect(done.state == "done", f"{branch.name}: `{command}` is {done.state} after {SOON_S:g} s")
    return done.output
