"""An id alone is enough: commands and programs find a session on every known machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.client.everywhere import Found, decide
from holdfast.home import Home, machines
from tests.support.commands.afar import Afar
from tests.support.installation import DEADLINE_S

T = TypeVar("T")


def together(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in this process have the login name of the commands."""
    monkeypatch.setenv("USER", "tester")


def test_s8_an_id_is_enough_and_a_name_must_be_certain() -> None:
    here = [Found("a", "id1", "work"), Found("b", "id2", "work"), Found("b", "id3", "build")]
    assert decide("id2", here, {"c": "silent"}).path == "b/work"
    assert decide("build", here, {}).id == "id3"
    with pytest.raises(holdfast.Ambiguous, match="a/work, b/work"):
        decide("work", here, {})
    with pytest.raises(holdfast.Ambiguous, match="b/build exists, and c did not answer"):
        decide("build", here, {"c": "silent"})
    with pytest.raises(holdfast.NotFound, match="c did not answer"):
        decide("buil", here, {"c": "silent"})


def test_s8_programs_find_sessions_and_references_elsewhere(far: Afar) -> None:
    made = far.there.ready("afar")  # of which this machine knows nothing

    async def work() -> None:
        async with holdfast.connect(home=str(far.here.home)) as client:
            for word in (made["id"], "afar"):
                session = await client.sessions.get(word)
                assert session.id == made["id"]
            done = await session.run("echo there; (exit 5)")
            assert (done.exit_code, done.output) == (5, "there\n")
            assert done.ref is not None
            found = await client.resolve(done.ref)
            assert (found.known, found.machine, found.exit_code) == (True, "box", 5)
            listed = await client.sessions.list()
            (one,) = [one for one in listed if one.id == made["id"]]
            assert (one.machine, one.path) == ("box", f"box/{made['id']}")
            assert (await client.sessions.get(one.path)).id == made["id"]
            assert not listed.unreachable and not await client.sessions.list("")
            (box,) = await client.machines.list()
            assert (box.name, box.presence, box.operator) == ("box", "online", "ann")
            with pytest.raises(holdfast.NotFound):
                await client.sessions.get("no-such-session")

    together(work())


def test_s8_commands_find_a_session_by_its_id(far: Afar) -> None:
    made = far.there.ready("by-id")
    assert far.here.ok("run", made["id"], "--", "echo found").out == "found\n"
    assert json.loads(far.here.quick("view", made["id"], "--json"))["id"] == made["id"]
    ref = far.here.cli("run", made["id"], "--json", "--", "(exit 4)").json["ref"]
    shown = far.here.ok("resolve", ref, "--json").json
    assert (shown["machine"], shown["exit_code"]) == ("box", 4)
    terminal = far.here.attach(made["id"])
    terminal.see("$")
    assert terminal.leave() == 0


def test_s8_a_silent_machine_is_named(far: Afar) -> None:
    far.there.new("silent-one")
    home = Home(str(far.here.home), "", True)
    box = machines.find(home, "box")
    port = box.ways[0]._replace(url="ws://127.0.0.1:9")  # where no relay listens
    machines.keep(home, box._replace(name="gone", key=bytes(31) + b"\1", ways=(port,)))
    try:
        refused = far.here.cli("run", "silent-one", "--", "true")
        assert refused.rc == 255 and "gone did not answer" in refused.err
        assert "box/silent-one" in refused.err
        by_id = far.there.get("silent-one")["id"]
        assert far.here.ok("run", by_id, "--", "echo id").out == "id\n"

        async def listed() -> None:
            async with holdfast.connect(home=str(far.here.home)) as client:
                assert list((await client.sessions.list()).unreachable) == ["gone"]
                presence = {one.name: one.presence for one in await client.machines.list()}
                assert presence == {"box": "online", "gone": "unknown"}

        together(listed())
    finally:
        machines.forget(home, "gone")
