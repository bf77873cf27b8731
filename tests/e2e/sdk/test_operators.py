"""Programs manage operators and rights with their own key, and decide acts that wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import home as homes
from holdfast.home import keys
from holdfast.model import signing
from tests.support.commands.programs import client, together
from tests.support.installation import Installation, eventually

ASKED = """version = 1
extends = "default"
[[rule]]
name = "watched"
verdict = "ask"
because = "it is watched"
when = { act = ["run"], session = ["watched"] }
"""


def test_a5_a_program_adds_grants_and_revokes(hf: Installation) -> None:
    hf.ready("sdk-granted")

    async def work() -> None:
        async with client(hf) as c:
            added = await c.operators.add("sdk-eve", kind="agent")
            assert (added.kind, added.added_by, added.envelopes) == ("agent", "tester", ())
            session = await c.sessions.get("sdk-granted")
            given = await c.operators.grant(
                "sdk-eve", "read", session="sdk-granted", expires=3600, rate=(100, 1)
            )
            assert given.rights == ("log", "observe") and given.scope.session == session.id
            assert given.scope.expires is not None and given.scope.rate == (100, 1)
            assert 3500 < given.scope.expires - time.time() <= 3600
            async with client(hf, "sdk-eve") as eve:
                theirs = await eve.sessions.get("sdk-granted")
                await theirs.view()
                with pytest.raises(holdfast.NotAllowed):
                    await theirs.run("true")
                with pytest.raises(holdfast.NotAllowed):
                    await eve.operators.add("sdk-friend")
                with pytest.raises(holdfast.NotAllowed):
                    await eve.operators.grant("sdk-eve", "admin")
                shown = await c.operators.show("sdk-eve")
                (held,) = shown.envelopes
                assert (held.state, held.given_by, held.id) == ("valid", "tester", given.id)
                assert held.scope == given.scope and held.holder == shown.keys[0].key
                revoked = await c.operators.revoke("sdk-eve")
                assert revoked.revoked is not None and revoked.revoked_by == "tester"
                with pytest.raises(holdfast.NotAllowed):
                    await theirs.view()
            listed = {one.name: one for one in await c.operators.list()}
            assert listed["sdk-eve"].revoked and not listed["tester"].revoked
            with pytest.raises(holdfast.NotFound):
                await c.operators.show("sdk-friend")
            with pytest.raises(holdfast.NotFound):
                keys.load(homes.resolve(hf.env), "sdk-friend")  # a refused add leaves no key

    together(work())


def test_a5_a_program_without_manage_hands_its_rights_on_with_its_own_key(
    fresh: Installation,
) -> None:
    fresh.people("lead", rights="execute,grant")
    fresh.ready("handed")
    made = signing.show(signing.public(signing.generate()))

    async def work() -> None:
        async with client(fresh) as c, client(fresh, "lead") as lead:
            bot = await c.operators.add("bot", kind="service", key=made)
            assert [one.key for one in bot.keys] == [made]
            with pytest.raises(holdfast.NotAllowed):
                await lead.operators.grant("bot", "read")
            given = await lead.operators.grant(
                "bot", "run", session="handed", commands=["git"], own_key=True
            )
            assert given.name == "bot" and given.scope.commands == ("git",)
            with pytest.raises(holdfast.NotAllowed):
                await lead.operators.grant("bot", "halt", own_key=True)
            (held,) = (await c.operators.show("bot")).envelopes
            assert held.through == ("machine", "lead") and held.rights == ("run",)
            await c.operators.revoke("lead", grants=True, force=True)
            (held,) = (await c.operators.show("bot")).envelopes
            assert held.state != "valid"
            with pytest.raises(holdfast.Refused):
                await c.operators.revoke("tester")  # no operator could manage the machine then

    together(work())


def test_p4_a_program_denies_withdraws_and_waits_no_longer_than_it_wants(
    fresh: Installation,
) -> None:
    fresh.home.mkdir(mode=0o700)
    (fresh.home / "policy.toml").write_text(ASKED)
    fresh.people("ann")
    fresh.new("watched", "--contained")

    async def asked() -> None:
        await asyncio.to_thread(eventually, lambda: fresh.ask("approvals")["approvals"], "it")

    async def work() -> None:
        async with client(fresh) as c, client(fresh, "ann") as ann:
            session = await c.sessions.get("watched")
            with pytest.raises(holdfast.Held):
                await session.run("echo later", hold=0.0)
            (question,) = await c.approvals.list()
            with pytest.raises(holdfast.HoldfastError):
                await ann.approvals.withdraw(question.id)
            await c.approvals.withdraw(question.id)
            assert await c.approvals.list() == []
            waiting = asyncio.create_task(session.run("echo no"))
            await asked()
            (question,) = await ann.approvals.list()
            await ann.approvals.deny(question.id)
            with pytest.raises(holdfast.GateRefused):
                await waiting
            with pytest.raises(holdfast.NotFound):
                await ann.approvals.deny(question.id)

    together(work())


def test_a5_a_sealed_key_needs_its_passphrase(hf: Installation) -> None:
    home = homes.resolve(hf.env)
    sealed = keys.make(home, "sdk-sealed", "human", time.time(), lambda name: "open sesame")
    asked = list[str]()

    def ask(name: str) -> str:
        asked.append(name)
        return "open sesame"

    async def work() -> None:
        async with client(hf) as c:
            await c.operators.add("sdk-sealed", key=signing.show(sealed.public))
            await c.operators.grant("sdk-sealed", "admin")
        async with client(hf, "sdk-sealed") as locked:
            with pytest.raises(holdfast.Refused):
                await locked.sessions.list("")
        opened = holdfast.connect(operator="sdk-sealed", home=str(hf.home), passphrase=ask)
        async with opened as c:
            await c.sessions.list("")
        assert asked == ["sdk-sealed"]

    together(work())


def test_t8_a_program_searches_and_streams_files(hf: Installation, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import os\nneedle = 1\n")
    (tmp_path / "two.txt").write_text("needle\n")
    hf.ready("sdk-files", f"--cwd={tmp_path}")

    async def work() -> None:
        async with client(hf) as c:
            files = (await c.sessions.get("sdk-files")).files
            found = await files.search("*.py", text="needle")
            assert [(one.path, one.line) for one in found.matches] == [("one.py", 2)]
            assert (found.cut, found.unreadable) == ("", 0)
            content = b"".join([piece async for piece in files.stream("two.txt")])
            assert content == b"needle\n"

    together(work())
