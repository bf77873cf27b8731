"""The arguments of the API that other tests do not give, against a real host and a real relay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

import holdfast
import holdfast.sync
from holdfast.model import signing
from tests.support.commands.afar import Afar
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


def test_m_a_client_names_its_modality_and_starts_no_host_unless_asked(
    fresh: Installation,
) -> None:
    fresh.home.mkdir(mode=0o700)
    absent = holdfast.sync.connect(operator="tester", home=str(fresh.home), start=False)
    with absent as c, pytest.raises(holdfast.Unavailable):
        c.sessions.list("")
    with holdfast.sync.connect(operator="tester", home=str(fresh.home), modality="ci") as c:
        session = c.sessions.new("named", command=["cat"])
        for _ in range(2):
            session.send(
                "x", enter=True, hold=1.0, once="first", intent="say x", prompt="message 1"
            )
        lines = [one for one in session.log() if one.kind == "line" and one.phase == "intent"]
        assert [one.modality for one in lines] == ["ci"], "one effect, by this client"
        assert lines[0].facts["prompt"] == "message 1"


def test_m_a_new_session_is_as_asked(
    hf: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(hf.account))  # no start-up file of this account
    shared, work = tmp_path / "shared", tmp_path / "work"
    shared.mkdir()
    work.mkdir()
    (shared / "note").write_text("seen\n")

    async def go() -> None:
        async with client(hf) as c:
            session = await c.sessions.new(
                "sdk-made",
                cwd=str(work),
                env={"SDK_MADE": "yes"},
                size=(90, 30),
                contained=True,
                share=[str(shared)],
                net="none",
                once="sdk-made",
            )
            again = await c.sessions.new("sdk-made", exist_ok=True)
            assert again.id == session.id
            info = await session.info()
            assert info.cwd == str(work) and info.size == holdfast.Size(90, 30)
            done = await session.run(f"echo $SDK_MADE; cat {shared}/note; grep -c : /proc/net/dev")
            assert done.output.split() == ["yes", "seen", "1"], "loopback is the only network"
            with pytest.raises(holdfast.Refused):
                await c.sessions.new("sdk-made")
            plain = await c.terminal.execute("", f"ls {hf.home}/keys", contained=False)
            assert "tester.key" in plain.output
            await session.end()

    together(go())


def test_m_a_start_fails_waits_or_repeats_as_asked(hf: Installation) -> None:
    hf.people("sdk-first")
    hf.ready("sdk-begun")
    gate = hf.gate("sdk-begun.gate")

    async def go() -> None:
        async with client(hf) as c, client(hf, "sdk-first") as other:
            session = await c.sessions.get("sdk-begun")
            theirs = await other.sessions.get("sdk-begun")
            await theirs.seize()
            with pytest.raises(holdfast.TurnHeld):
                await session.start("true", turn="fail")
            await theirs.turn.release()
            text = f"cat {gate.path}; (exit 3)"
            running = await session.start(text, timeout=0.5, hold=1.0, once="sdk-begun")
            assert (await running.wait()).state == "running" and running.over
            repeat = asyncio.create_task(session.start(text, once="sdk-begun"))
            await asyncio.to_thread(hf.under_way, "run", 1)
            gate.open()
            assert (await (await repeat).wait()).exit_code == 3

    together(go())


def test_s2_one_process_or_its_tree_is_signalled(hf: Installation) -> None:
    hf.ready("sdk-signalled")

    async def go() -> None:
        async with client(hf) as c:
            session = await c.sessions.get("sdk-signalled")
            async with contextlib.aclosing(session.changes()) as changes:

                async def two(change: str) -> list[int]:
                    found: list[int] = []
                    async for one in changes:
                        if one.change == change and "4321" in " ".join(one.argv):
                            found += [one.pid or 0]
                        if len(found) == 2:
                            break
                    return found

                await session.run("sh -c 'sleep 4321; :' &")
                tree = await two("started")
                assert await session.signal(min(tree), signal="KILL", tree=True) == 2
                assert sorted(await two("exited")) == sorted(tree)

    together(go())


def test_t8_a_port_of_all_addresses_has_to_be_meant(hf: Installation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    hf.ready("sdk-exposed")
    serve = f"python3 -m http.server --bind 127.0.0.1 {number} >/dev/null 2>&1 &"
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        session = c.sessions.get("sdk-exposed")
        session.run(serve)
        session.wait(f"port:{number}")
        with pytest.raises(holdfast.HoldfastError), session.forward(number, "0.0.0.0:0"):
            pass
        with session.forward(number, "0.0.0.0:0", expose=True) as forward:
            assert forward.host == "0.0.0.0" and forward.port == number
            assert forward.connections == 0
        session.end()


def test_t8_files_are_paged_bounded_and_changed_once(hf: Installation, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name * 10)
    hf.ready("sdk-paged", f"--cwd={tmp_path}")
    with holdfast.sync.connect(operator="tester", home=str(hf.home)) as c:
        files = c.sessions.get("sdk-paged").files
        assert [one.name for one in files.ls(after="a", limit=1)] == ["b"]
        found = files.search("*", limit=1)
        assert len(found.matches) == 1 and found.cut
        with pytest.raises(holdfast.Impossible):
            files.read_bytes("a", limit=9)
        assert files.read_bytes("a", limit=10) == b"a" * 10
        for _ in range(2):  # the second has no effect of its own
            files.put(str(tmp_path / "a"), "deep/er/a", parents=True, once="put")
            files.write_bytes("written", b"once", once="write")
            files.mv("b", "moved", once="mv")
            files.rm("c", once="rm")
        names = [one.name for one in files.walk()]
        assert names == ["a", "deep", "moved", "written"]


def test_t3_operators_and_approvals_of_another_machine(
    far: Afar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "tester")
    far.there.new("watched", "--contained")
    (far.there.home / "policy.toml").write_text(ASKED)
    made = signing.show(signing.public(signing.generate()))

    async def question(c: holdfast.Client) -> holdfast.Approval:
        await asyncio.to_thread(eventually, lambda: far.there.ask("approvals")["approvals"], "it")
        (found,) = await c.approvals.list("box")
        return found

    async def go() -> None:
        there = holdfast.connect(operator="tester", home=str(far.there.home))
        async with holdfast.connect(home=str(far.here.home)) as c, there as t:
            operators = c.operators
            await operators.add("ci", kind="service", key=made, hold=1.0, machine="box")
            given = await operators.grant("ci", "read", hold=1.0, machine="box")
            (held,) = (await operators.show("ci", machine="box")).envelopes
            assert (held.id, held.given_by) == (given.id, "ann")
            assert (await operators.revoke("ci", machine="box")).revoked_by == "ann"
            assert "ci" in [one.name for one in await operators.list("box")]
            with pytest.raises(holdfast.Usage):
                await operators.add("no-key", machine="box")

            session = await t.sessions.get("watched")
            asked = list[holdfast.Question]()
            run = session.run(
                "echo yes",
                intent="greet",
                expects="a line",
                prompt="message 2",
                on_held=asked.append,
            )
            waiting = asyncio.create_task(run)
            await c.approvals.approve((await question(c)).id, machine="box")
            assert (await waiting).output == "yes\n"
            (newest,) = [one async for one in session.log(-2) if one.phase == "intent"]
            assert newest.facts["expects"] == "a line" and asked[0].because == "it is watched"
            start = session.start(
                "echo no", intent="x", expects="y", prompt="message 3", on_held=asked.append
            )
            refused = asyncio.create_task(start)
            await c.approvals.deny((await question(c)).id, machine="box")
            with pytest.raises(holdfast.GateRefused):
                await refused
            assert len(asked) == 2
            mine = await c.sessions.get("box/watched")
            with pytest.raises(holdfast.Held):
                await mine.run("echo mine", hold=0.0)
            await c.approvals.withdraw((await question(c)).id, machine="box")
            made_there = await c.sessions.new("there", command=["cat"], machine="box")
            assert made_there.id in [one.id for one in await t.sessions.list("")]

    together(go())
