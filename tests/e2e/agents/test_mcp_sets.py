"""The tool sets `files` and `forward` of `holdfast mcp` (M, P4, T8, A9)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.installation import DEADLINE_S, Installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

from tests.support.agents.tools import Agent, connected, play
from tests.support.recovery.checkpoint import criu

Json = dict[str, Any]
FILES, FORWARD = ("--tools", "files"), ("--tools", "forward")
SERVER = """import socket, os
server = socket.create_server(("127.0.0.1", 0))
open("port.new", "w").write(str(server.getsockname()[1])); os.rename("port.new", "port")
while True:
    caller, _ = server.accept()
    caller.sendall(b"hello from inside\\n"); caller.close()
"""


async def served(agent: Agent, place: Path) -> int:
    """The port on which a server of the session listens."""
    (place / "server.py").write_text(SERVER)
    await agent("run", command="python3 server.py &")
    async with asyncio.timeout(DEADLINE_S):
        while not (place / "port").exists():
            await agent("graph")
    return int((place / "port").read_text())


def test_m_further_tools_are_served_only_if_asked_for(house: Installation, work: str) -> None:
    async def names(*words: str) -> list[str]:
        async with connected(house, "--as", "bot", "--session", work, *words) as agent:
            return [one.name for one in (await agent.session.list_tools()).tools]

    files = ["find_files", "read_file", "write_file", "edit_file"]
    least = asyncio.run(names())
    assert not {*files, "forward"} & {*least}
    assert asyncio.run(names(*FILES)) == [*least, *files]
    assert asyncio.run(names("--tools", "files,forward")) == [*least, *files, "forward"]
    wrong = house.cli("--as", "bot", "mcp", "--tools", "files,nonsense")
    assert wrong.rc == 2 and "nonsense" in wrong.err

    async def without(agent: Agent) -> None:
        refused = await agent("read_file", path="x")
        assert refused["state"] == "refused" and "no tool" in refused["error"]

    play(house, work, without)


def test_t8_an_agent_lists_reads_writes_edits_and_searches(house: Installation, work: str) -> None:
    place = house.user / work

    async def script(agent: Agent) -> None:
        made = await agent("write_file", path="src/one.py", text="a = 1\nb = 2\nc = 1\n")
        assert (made["state"], made["bytes"], made["replaced"]) == ("done", 18, False), made
        assert made["path"] == str(place / "src/one.py")
        (place / "src" / "one.py").chmod(0o755)
        edited = await agent("edit_file", path="src/one.py", old="b = 2", new="b = 3")
        assert (edited["state"], edited["replacements"], edited["line"]) == ("done", 1, 2)
        assert (place / "src/one.py").read_text() == "a = 1\nb = 3\nc = 1\n"
        assert (place / "src/one.py").stat().st_mode & 0o777 == 0o755, "an edit keeps the mode"
        twice = await agent("edit_file", path="src/one.py", old="= 1", new="= 4")
        assert twice["state"] == "refused" and "2 times" in twice["error"] and twice["recover"]
        every = await agent("edit_file", path="src/one.py", old="= 1", new="= 4", all=True)
        assert (every["replacements"], every["line"]) == (2, 1)
        stale = await agent("edit_file", path="src/one.py", old="b = 2", new="b = 3")
        assert stale["state"] == "refused" and "new is there already" in stale["error"]

        part = await agent("read_file", path="src/one.py", line=2, lines=1)
        assert (part["text"], part["line"], part["lines"], part["next"]) == ("b = 3\n", 2, 3, 3)
        last = await agent("read_file", path="src/one.py", line=part["next"])
        assert last["text"] == "c = 4\n" and "next" not in last
        listed = await agent("find_files")
        assert listed["found"] == ["src/"] and "more" not in listed
        assert (await agent("find_files", path="src"))["found"] == ["one.py 18"]
        assert (await agent("find_files", pattern="*.py"))["found"] == ["src/one.py"]
        assert (await agent("find_files", text="b ="))["found"] == ["src/one.py:2: b = 3"]
        (place / "other").symlink_to("src")
        assert "other -> src" in (await agent("find_files"))["found"]

    play(house, work, script, *FILES)


def test_t8_answers_about_files_are_bounded(house: Installation, work: str) -> None:
    place = house.user / work

    async def script(agent: Agent) -> None:
        lines = "".join(f"line {n}\n" for n in range(1, 5001))
        (place / "long").write_text(lines)
        text, at = "", 1
        while at:
            page = await agent("read_file", path="long", line=at, max_chars=20_000)
            assert len(page["text"]) <= 20_000 and page["lines"] == 5000
            text, at = text + page["text"], page.get("next", 0)
        assert text == lines, "pages are whole lines, each once"
        (place / "wide").write_text("x" * 60_000 + "\nnext\n")
        wide = await agent("read_file", path="wide", max_chars=1000)
        assert len(wide["text"]) < 1200 and "left out" in wide["text"] and wide["next"] == 2
        (place / "binary").write_bytes(b"a\0b")
        binary = await agent("read_file", path="binary")
        assert binary["state"] == "refused" and "no text" in binary["error"] and binary["recover"]
        with (place / "huge").open("wb") as huge:
            huge.truncate(5 << 20)
        large = await agent("read_file", path="huge")
        assert large["state"] == "refused" and "more than" in large["error"] and large["recover"]
        for number in range(600):
            (place / f"file-{number:03}").touch()
        many = await agent("find_files")
        assert 0 < len(many["found"]) <= 500 and many["more"]

    play(house, work, script, *FILES)


def test_t8_wrong_calls_about_files_say_how_to_go_on(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        for tool, arguments in (
            ("read_file", {"path": "nothing"}),
            ("read_file", {"path": "x", "line": 0}),
            ("edit_file", {"path": "nothing", "old": "a", "new": "b"}),
            ("edit_file", {"path": "x", "old": "", "new": "b"}),
            ("find_files", {"path": "nothing"}),
            ("write_file", {"path": ".", "text": "x"}),
            ("write_file", {"path": "x"}),
            ("forward", {"do": "open"}),
            ("forward", {"do": "open", "port": 1}),
        ):
            body = await agent(tool, **arguments)
            assert body["state"] == "refused" and body["error"] and body["recover"], (tool, body)
            assert "holdfast " not in body["recover"], "an agent has tools, not commands"

    play(house, work, script, "--tools", "files,forward")


def test_p1_acts_on_files_are_recorded_with_their_intent(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        key = {"once": "w1", "intent": "say hello"}
        first = await agent("write_file", path="note", text="hello", **key)
        (house.user / work / "note").write_text("changed by another")
        again = await agent("write_file", path="note", text="hello", **key)
        assert again == first, "the answer of the first"
        assert (house.user / work / "note").read_text() == "changed by another", "a single effect"
        other = await agent("write_file", path="note", text="other", once="w1")
        assert other["error"].startswith("once_used") and other["recover"]

    play(house, work, script, *FILES)

    async def another(agent: Agent) -> None:
        again = await agent("write_file", path="note", text="hello", once="w1")
        assert again["state"] == "done", again
        assert (house.user / work / "note").read_text() == "changed by another"

    play(house, work, another, *FILES)
    entries = house.ok("log", work, "--json", "--limit", "100").records
    (put,) = [e for e in entries if "files.put" in (e["content"] or "") and e["phase"] == "intent"]
    assert (put["actor"], put["modality"], put["facts"]["intent"]) == ("bot", "mcp", "say hello")


HELD = """version = 1
extends = "default"
[[rule]]
name = "files and ports"
verdict = "ask"
because = "a person decides about files and ports"
when = { act = ["files", "forward"] }
"""


def test_p4_a_held_act_on_files_finishes_after_its_approval(house: Installation, work: str) -> None:
    policy = house.home / "policy.toml"

    async def decide(agent: Agent, held: Json, verdict: str) -> Json:
        assert held["state"] == "held" and held["approval"].startswith("q"), held
        assert (await agent("read", ref=held["ref"]))["state"] == "held"
        question = held["approval"].partition(":")[0]
        async with holdfast.connect(home=str(house.home), operator="ann") as ann:
            await getattr(ann.approvals, verdict)(question)
        return await agent.until(held["ref"], "done", "refused")

    async def script(agent: Agent) -> None:
        held = await agent("write_file", path="kept", text="mine", intent="keep it")
        done = await decide(agent, held, "approve")
        assert (done["state"], done["bytes"]) == ("done", 4), done
        assert (house.user / work / "kept").read_text() == "mine"
        denied = await agent("write_file", path="kept", text="other")
        over = await decide(agent, denied, "deny")
        assert over["state"] == "refused" and over["recover"], over
        assert (house.user / work / "kept").read_text() == "mine"

        port = await served(agent, house.user / work)
        opened = await decide(agent, await agent("forward", do="open", port=port), "approve")
        assert (opened["state"], opened["address"][:10]) == ("done", "127.0.0.1:"), opened

    try:
        policy.write_text(HELD)
        house.ok("policy", "show")
        play(house, work, script, "--tools", "files,forward")
    finally:
        policy.unlink()


def test_t8_an_agent_opens_a_port_of_its_session(house: Installation, work: str) -> None:
    place = house.user / work

    async def heard(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        data = await reader.read()
        writer.close()
        return data

    async def script(agent: Agent) -> None:
        port = await served(agent, place)
        opened = await agent("forward", do="open", port=port, intent="look at the page")
        assert opened["state"] == "done" and opened["address"].startswith("127.0.0.1:"), opened
        assert await heard(opened["address"]) == b"hello from inside\n"
        again = await agent("forward", do="open", port=port)
        assert again["address"] == opened["address"], "the same forward"
        (listed,) = (await agent("forward", do="list"))["forwards"]
        assert (listed["port"], listed["address"]) == (port, opened["address"])
        assert listed["connections"] == 1
        assert (await agent("forward", do="close", port=port))["closed"] is True
        assert (await agent("forward", do="list"))["forwards"] == []
        with pytest.raises(OSError):
            await heard(opened["address"])
        assert (await agent("forward", do="close", port=port))["closed"] is False

    play(house, work, script, *FORWARD)
    entries = house.ok("log", work, "--json", "--limit", "100").records
    (act,) = [e for e in entries if (e["kind"], e["phase"]) == ("forward", "intent")]
    assert (act["actor"], act["facts"]["intent"]) == ("bot", "look at the page")


def test_t8_the_sets_over_http(house: Installation, work: str) -> None:
    words = ("--as", "bot", "mcp", "--session", work, "--tools", "files", "--listen", "127.0.0.1:0")
    server = house.start(*words, "--json")
    assert server.stdout is not None
    facts = json.loads(server.stdout.readline())
    token = Path(facts["token_file"]).read_text().strip()

    async def main() -> None:
        import httpx2
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            streamable_http_client(facts["url"], http_client=http) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            assert "edit_file" in [one.name for one in (await session.list_tools()).tools]
            done = await Agent(session)("write_file", path="by-http", text="x")
            assert done["state"] == "done", done

    try:
        asyncio.run(main())
    finally:
        server.terminate()
        server.wait(DEADLINE_S)


def test_r5_an_agent_tries_in_branches_and_keeps_one(house: Installation) -> None:
    criu()
    place = house.user / "mcp-tries"
    place.mkdir()
    (place / "file").write_text("base\n")
    house.ready("mcp-tries", "--contained", "--cwd", str(place))
    house.ok("grant", "bot", "--rights", "execute,fork")
    house.ok("turn", "mcp-tries", "release")

    async def tries() -> None:
        words = ("--as", "bot", "--session", "mcp-tries", "--tools", "branches")
        async with connected(house, *words) as agent:
            made = await agent("branch", do="fork", n=2, once="try")
            assert made["branches"] == ["mcp-tries-1", "mcp-tries-2"], made
            ran = await agent("run", command="echo better > file", session="mcp-tries-2")
            assert ran["state"] == "done", ran
            found = await agent("branch", do="diff", session="mcp-tries-2")
            assert [one["what"] for one in found["files"]] == ["changed"]
            assert "+better" in found["files"][0]["text"]
            listed = await agent("branch", do="list", session="mcp-tries")
            assert [one["parent"] for one in listed["branches"]] == ["mcp-tries"] * 2
            kept = await agent("branch", do="keep", session="mcp-tries-2")
            assert kept["done"] and len(kept["discarded"]) == 1, kept
            gone = await agent("branch", do="discard", session="mcp-tries-2")
            assert gone["state"] == "held", "the default policy asks a person"

    asyncio.run(tries())
    assert (place / "file").read_text() == "better\n"
