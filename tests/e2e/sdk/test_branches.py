"""Programs fork sessions, compare and keep branches. All tests need CRIU (scripts/criu)."""

from __future__ import annotations

import holdfast
import holdfast.sync
from tests.support.commands.programs import client, together
from tests.support.installation import DEADLINE_S, Installation
from tests.support.recovery.checkpoint import criu


def test_r5_a_program_tries_two_ways_and_keeps_one(hf: Installation) -> None:
    criu()
    place = hf.user / "sdk-tries"
    place.mkdir()
    (place / "file").write_text("base\n")
    hf.ready("sdk-tries", "--contained", "--cwd", str(place))

    asked = list[holdfast.Question]()

    async def work() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-tries")
            await session.run("X=kept", timeout=DEADLINE_S)
            assert (await session.can_fork(2)).possible
            made = await session.fork(2, once="try-1")
            assert (await session.fork(2, once="try-1")).branches == made.branches
            assert [one.name for one in made.branches] == ["sdk-tries-1", "sdk-tries-2"]
            one, two = [await c.sessions.get(branch.id) for branch in made.branches]
            done = await one.run("echo $X; echo one > file", timeout=DEADLINE_S)
            assert done.output == "kept\n"
            await two.run("echo two > file; touch new", timeout=DEADLINE_S)
            found = await two.diff()
            assert [(file.what, file.path) for file in found.files] == [
                ("changed", f"{place}/file"),
                ("added", f"{place}/new"),
            ]
            assert "+two" in found.files[0].text
            assert [branch.id for branch in await session.branches()] == [one.id, two.id]
            (place / "file").write_text("later\n")
            assert not (await two.diff(f"{place}/new", every=True, texts=False)).files[0].text
            assert not (await two.keep(check=True, leave=[f"{place}/file"])).done
            clash = await two.keep(others=False, hold=1.0, on_held=asked.append)
            assert not clash.done and clash.conflicts[0].path == f"{place}/file"
            kept = await two.keep(take=[f"{place}/file"])
            assert kept.done and [left.id for left in kept.discarded] == [one.id]
            assert (place / "file").read_text() == "two\n"
            left = await two.discard(hold=1.0, on_held=asked.append)
            assert left.id == two.id and left.acts >= 2 and await session.branches() == []
            named = await session.fork(name="named", hold=1.0, on_held=asked.append)
            assert [branch.name for branch in named.branches] == ["named"] and not asked

    together(work())


def test_r5_a_synchronous_program_is_told_why_a_session_cannot_be_forked(hf: Installation) -> None:
    hf.ready("sdk-unforked", "--plain")
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        found = c.sessions.get("sdk-unforked").can_fork()
        assert not found.possible and "plain session" in found.blockers[0]
