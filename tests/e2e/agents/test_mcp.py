"""An AI agent at a session through MCP, by the official client library (M, P4, G2)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.faces.mcp import acts
from tests.support.installation import DEADLINE_S, Installation, eventually

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

import httpx2
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextResourceContents

from holdfast.faces.mcp.calls import Calls
from tests.support.agents.tools import Agent, connected, play, program


def test_m_an_agent_runs_commands_and_asks_again(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        tools = await agent.session.list_tools()
        assert [one.name for one in tools.tools] == [
            *("run", "read", "send", "wait", "screen", "sessions", "graph", "turn", "stop")
        ]
        done = await agent("run", command="cd /tmp && echo hello; (exit 3)")
        assert (done["state"], done["exit_code"], done["output"]) == ("done", 3, "hello\n")
        assert (await agent("run", command="pwd"))["output"] == "/tmp\n", "the directory persists"
        listed = (await agent("sessions"))["sessions"]
        assert [one["name"] for one in listed if one["name"] == work] == [work]

    play(house, work, script)


def test_m_a_command_goes_on_after_its_call(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        assert (await agent("run", command="mkfifo gate"))["exit_code"] == 0
        slow = await agent("run", command="cat gate; echo over; (exit 4)", wait_s=0.2)
        assert (slow["state"], slow["exit_code"]) == ("running", None)
        busy = await agent("run", command="true", wait_s=1)
        assert busy["state"] == "refused" and busy["error"].startswith("busy")
        (house.user / work / "gate").write_text("open\n")
        done = await agent.until(slow["ref"], "done")
        assert (done["exit_code"], done["output"]) == (4, "open\nover\n")
        later = await agent("read", ref=done["ref"])
        assert later["exit_code"] == 4, "the same answer again"

    play(house, work, script)

    async def another(agent: Agent) -> None:
        ref = f"{house.get(work)['ref']}#2"
        assert (await agent("read", ref=ref))["exit_code"] == 4, "from another process too"

    play(house, work, another)


def test_m_a_program_that_asks_is_told_from_one_that_works(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        asks = await agent("run", command="read -p 'name? ' x; echo got $x", wait_s=30)
        assert asks["state"] == "needs_input" and asks["output"].endswith("name? ")
        sent = await agent("send", text="bob", keys=["Enter"])
        assert "got bob" in sent["output"]
        assert (await agent.until(asks["ref"], "done"))["exit_code"] == 0
        secret = await agent("run", command="read -s -p 'password: ' x; echo", wait_s=30)
        assert secret["state"] == "needs_secret"
        stopped = await agent("stop", signal="INT")
        assert stopped["signalled"] >= 0
        await agent("send", keys=["C-c"])
        assert (await agent("wait", until=["idle"], wait_s=30))["met"] == "idle"

    play(house, work, script)


def test_p4_a_held_act_finishes_after_its_approval(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        command = "git worktree remove --force gone"
        held = await agent("run", command=command, intent="clean up", expects="no tree")
        assert held["state"] == "held" and held["approval"].startswith("q")
        again = await agent("read", ref=held["ref"])
        assert again["state"] == "held", "polling does not answer the question"
        question = held["approval"].partition(":")[0]
        async with holdfast.connect(home=str(house.home), operator="ann") as ann:
            await ann.approvals.approve(question)
        after = await agent.until(held["ref"], "done", "refused")
        assert after["state"] == "done", after
        typed = await agent("send", text="git worktree remove --force typed", keys=["Enter"])
        assert typed["state"] == "held" and typed["recover"], "the call does not wait for a person"
        denied = await agent("run", command="git worktree remove --force more")
        question = denied["approval"].partition(":")[0]
        await asyncio.to_thread(house.ok, "--as", "ann", "deny", question)
        over = await agent.until(denied["ref"], "done", "refused")
        assert over["state"] == "refused" and over["retry_safe"] is False, over

    play(house, work, script)
    entries = house.ok("log", work, "--json", "--limit", "100").records
    meant = [e["facts"].get("intent") for e in entries if "remove" in (e["content"] or "")]
    assert "clean up" in meant, "the record has the agent's word"
    house.quick("--as", "ann", "seize", work)
    house.quick("--as", "ann", "run", work, "--", "true")
    shown = house.ok("log", work, "--agent", "bot").out
    assert "[intent: clean up; expects: no tree" in shown
    assert {line.split()[3] for line in shown.splitlines()} == {"bot", "ann"}
    assert "command: true" not in shown, "of ann only her decisions"


def test_a1_an_agent_waits_for_the_program_of_the_turn_s_holder(
    house: Installation, work: str
) -> None:
    gate = house.gate(f"{work}/gate")

    async def script(agent: Agent) -> None:
        await asyncio.to_thread(house.quick, "--as", "ann", "seize", work)
        busy = house.start("--as", "ann", "run", work, "--", "cat gate")
        await asyncio.to_thread(house.under_way, "run", 1)
        waits = await agent("run", command="echo mine", wait_s=5)
        assert waits["state"] == "waiting_for_turn", waits
        await asyncio.to_thread(gate.open)
        assert await asyncio.to_thread(busy.wait, DEADLINE_S) == 0
        await asyncio.to_thread(house.quick, "--as", "ann", "turn", work, "release")
        done = await agent.until(waits["ref"], "done")
        assert (done["exit_code"], done["output"]) == (0, "mine\n"), done

    play(house, work, script)


def test_a1_an_agent_waits_longer_than_one_request_for_the_turn(
    house: Installation, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "TURN_WAIT_S", 0.05)
    house.quick("--as", "ann", "seize", work)

    def asked() -> int:
        entries = house.ok("log", work, "--json", "--limit", "100").records
        return sum(e["kind"] == "turn" and e["actor"] == "bot" for e in entries)

    async def main() -> None:
        async with holdfast.connect(home=str(house.home), operator="bot") as client:
            calls = Calls(client, "bot", work)
            waits = await calls.call("run", {"command": "echo mine", "wait_s": 0})
            await asyncio.to_thread(eventually, lambda: asked() > 2, "three requests")
            still = await calls.call("read", {"ref": waits["ref"]})
            assert still["state"] == "waiting_for_turn", still
            await asyncio.to_thread(house.ok, "--as", "ann", "turn", work, "hand", "bot")
            output, state = "", "waiting_for_turn"
            while state in ("waiting_for_turn", "running"):
                found = await calls.call("read", {"ref": waits["ref"], "wait_s": 5})
                output, state = output + found["output"], found["state"]
            assert (state, output) == ("done", "mine\n"), found
            await calls.close()

    asyncio.run(main())


def test_m_a_server_that_starts_later_tells_what_changed_since_the_agent_s_last_act(
    house: Installation, work: str
) -> None:
    async def before(agent: Agent) -> None:
        assert (await agent("run", command="true"))["exit_code"] == 0

    play(house, work, before)
    house.quick("--as", "ann", "seize", work)
    house.quick("--as", "ann", "run", work, "--", "cd /usr")
    house.quick("--as", "ann", "turn", work, "release")

    async def after(agent: Agent) -> None:
        first = await agent("run", command="pwd")
        changed = first["changed_by_others"]
        assert "ann: command cd /usr" in changed and first["output"] == "/usr\n", first

    play(house, work, after)


def test_a1_an_agent_waits_for_the_turn_and_learns_of_changes(
    house: Installation, work: str
) -> None:
    async def script(agent: Agent) -> None:
        assert (await agent("run", command="true"))["exit_code"] == 0
        await asyncio.to_thread(house.quick, "--as", "ann", "seize", work)
        waits = await agent("run", command="echo mine", wait_s=1)
        assert waits["state"] == "waiting_for_turn"
        await asyncio.to_thread(
            house.quick, "--as", "ann", "run", work, "--", "cd /; export MODE=careful"
        )
        await asyncio.to_thread(house.quick, "--as", "ann", "turn", work, "hand", "bot")
        done = await agent.until(waits["ref"], "done", "refused")
        assert done["output"] == "mine\n"
        changed = "\n".join(done["changed_by_others"])
        assert "ann's variable MODE" in changed and "ann's change of directory" in changed, done

    play(house, work, script)


def test_a6_input_also_tells_what_changed_meanwhile(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        assert (await agent("run", command="true"))["exit_code"] == 0
        away = "cd /; export A=1 B=2 C=3 D=4; (exec sleep 1000) &"
        await asyncio.to_thread(house.quick, "--as", "ann", "seize", work)
        await asyncio.to_thread(house.quick, "--as", "ann", "run", work, "--", away)
        await asyncio.to_thread(house.quick, "--as", "ann", "turn", work, "hand", "bot")
        sent = await agent("send", text="pwd", keys=["Enter"])
        assert next(iter(sent)) == "changed_by_others", "the host tells it once"
        changed = "\n".join(sent["changed_by_others"])
        facts = [f"ann's variable {name}" for name in "ABCD"]
        for fact in (*facts, "ann's change of directory", "'sleep 1000' by ann", "ann: seize"):
            assert fact in changed, changed
        assert "changed_by_others" not in await agent("run", command="true")

    play(house, work, script)


def test_p4_a_command_is_held_while_its_program_is_asked_about(
    house: Installation, work: str
) -> None:
    async def script(agent: Agent) -> None:
        program = "import os; os.execvp('git', 'git worktree remove --force gone'.split())"
        (house.user / work / "clean.py").write_text(program)  # the text does not show the command
        held = await agent("run", command="python3 clean.py", wait_s=1)
        while held["state"] == "running":
            held = await agent("read", ref=held["ref"], wait_s=1)
        assert held["state"] == "held", held
        question = held["approval"].partition(":")[0]
        await asyncio.to_thread(house.ok, "--as", "ann", "deny", question)
        over = await agent.until(held["ref"], "done", "refused")
        assert over["state"] == "done" and over["exit_code"] != 0, over

    play(house, work, script)


def test_a9_a_retry_with_a_key_acts_once(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        command = "echo line >> file; wc -l < file"
        first = await agent("run", command=command, once="k1")
        second = await agent("run", command=command, once="k1")
        assert first["exit_code"] == second["exit_code"] == 0
        count = await agent("run", command="wc -l < file")
        assert count["output"].strip() == "1"

    play(house, work, script)


def test_m_a_poll_gives_only_news(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        await agent("run", command="mkfifo gate")
        loop = "while read line; do printf '%s\\n' \"$line\"; done < gate; (exit 5)"
        slow = await agent("run", command=loop, wait_s=0.2)
        begin = slow["cursor"]
        with await asyncio.to_thread(open, house.user / work / "gate", "w") as gate:
            for word in ("one", "two"):
                print(word, file=gate, flush=True)
                await agent("wait", until=[f"text:{word}"], since=begin, wait_s=30)
                async with asyncio.timeout(DEADLINE_S):
                    while not (news := await agent("read", ref=slow["ref"]))["output"]:
                        pass
                assert (news["state"], news["output"]) == ("running", f"{word}\n")
                assert (await agent("read", ref=slow["ref"]))["output"] == "", "given already"
        done = await agent.until(slow["ref"], "done")
        assert (done["exit_code"], done["output"]) == (5, "")
        again = await agent("read", ref=slow["ref"], cursor=begin)
        assert again["exit_code"] == 5 and again["output"].startswith("one\ntwo\n")
        page = await agent("read", cursor=begin)
        assert page["output"].startswith("one\ntwo\n") and page["more"] is False

    play(house, work, script)


def test_m_a_cursor_pages_through_long_output(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        start = (await agent("screen"))["cursor"]
        await agent("run", command="seq 1 20000; printf '\\033[31mé%.0s' {1..3000}", max_chars=200)
        text, more, cursor = "", True, start
        while more:
            page = await agent("read", cursor=cursor, max_chars=50_000)
            text, more, cursor = text + page["output"], page["more"], page["cursor"]
        assert "\n".join(map(str, range(1, 20001))) in text
        assert "é" * 3000 in text, "no character and no sequence is cut"

    play(house, work, script)


def test_a9_a_repeat_finds_the_first_that_still_runs(house: Installation, work: str) -> None:
    command = "echo begun >> file; echo out; cat gate; (exit 6)"

    async def first(agent: Agent) -> None:
        await agent("run", command="mkfifo gate")
        slow = await agent("run", command=command, once="k2", wait_s=0.2)
        said = slow["output"]
        async with asyncio.timeout(DEADLINE_S):
            while said != "out\n":
                slow = await agent("read", ref=slow["ref"], wait_s=1)
                said += slow["output"]
        again = await agent("run", command=command, once="k2", wait_s=0.2)
        assert again["state"] == slow["state"] == "running" and again["ref"] == slow["ref"]
        assert again["output"] == "out\n", "the first answer may be lost: all output"
        other = await agent("run", command="true", once="k2")
        assert other["error"].startswith("once_used"), other

    async def second(agent: Agent) -> None:
        """From a new server, which knows nothing of the first."""
        again = await agent("run", command=command, once="k2", wait_s=2)
        assert again["state"] == "running" and again["ref"].startswith("hf:"), again
        assert again["output"] == "out\n"
        await asyncio.to_thread((house.user / work / "gate").write_text, "open\n")
        done = await agent.until(again["ref"], "done")
        assert (done["exit_code"], done["output"]) == (6, "open\n")
        result = await agent("run", command=command, once="k2")
        assert (result["state"], result["exit_code"]) == ("done", 6)
        assert result["output"] == "out\nopen\n" and result["ref"] == again["ref"]
        assert (await agent("run", command="cat file"))["output"] == "begun\n"

    play(house, work, first)
    play(house, work, second)


def test_m_a_name_reaches_the_new_session_and_a_ref_the_old(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        old = await agent("run", command="echo old; (exit 7)")
        last = await agent("run", command="exit 9")
        assert (last["state"], last["exit_code"]) == ("done", 9), last
        place = str(house.user / work)
        await asyncio.to_thread(house.ready, work, "--contained", "--cwd", place)
        new = await agent("run", command="echo new", session=work)
        assert (new["state"], new["output"]) == ("done", "new\n"), new
        assert new["cursor"].partition(":")[0] != old["cursor"].partition(":")[0]
        for ref, code in ((old["ref"], 7), (last["ref"], 9), (new["ref"], 0)):
            found = await agent("read", ref=ref)
            assert (found["state"], found["exit_code"], found["output"]) == ("done", code, "")
        gone = await agent("read", cursor=old["cursor"])
        assert gone["error"].startswith("not_found") and gone["recover"], gone

        async def another(other: Agent) -> None:
            for ref, code in ((old["ref"], 7), (last["ref"], 9)):
                found = await other("read", ref=ref)
                assert (found["state"], found["exit_code"]) == ("done", code), found

        async with connected(house, "--as", "bot", "--session", work) as other:
            await another(other)
            unknown = await other("read", ref="hf:" + "0" * 26 + "@1#1")
            assert unknown["state"] == "refused" and unknown["recover"], unknown

    play(house, work, script)


def test_m_wrong_calls_say_how_to_go_on(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        for tool, arguments in (
            ("run", {}),
            ("run", {"command": 5}),
            ("run", {"command": "true", "nonsense": 1}),
            ("run", {"command": "true", "session": "nosuch"}),
            ("read", {}),
            ("read", {"cursor": "x"}),
            ("send", {}),
            ("stop", {"signal": "HUP"}),
            ("turn", {"do": "hand"}),
            ("wait", {"until": ["nonsense"]}),
            ("nothing", {}),
        ):
            body = await agent(tool, **arguments)
            assert body["state"] == "refused" and body["error"] and body["recover"], (tool, body)
            assert "`holdfast" not in body["recover"], "an agent has tools, not commands"

    play(house, work, script)


def test_m_long_output_is_cut_in_the_middle_and_can_be_read(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        done = await agent("run", command="seq 1 20000", max_chars=1000)
        assert done["output"].startswith("1\n2\n") and done["output"].endswith("\n20000\n")
        assert len(done["output"]) < 1200 and "left out" in done["output"]
        session, _, end = done["cursor"].rpartition(":")
        part = await agent("read", cursor=f"{session}:{int(end) - 40}")
        assert "20000" in part["output"] and part["gap"] == 0

    play(house, work, script)


def test_m_secrets_of_the_server_are_hidden(house: Installation, work: str) -> None:
    async def main() -> None:
        hf = house
        hf.env["DEPLOY_TOKEN"] = "hunter2-hunter2"
        try:
            async with connected(hf, "--as", "bot", "--session", work) as agent:
                done = await agent("run", command="echo hunter2-hunter2")
                assert done["output"] == "[DEPLOY_TOKEN]\n"
        finally:
            del hf.env["DEPLOY_TOKEN"]

    asyncio.run(main())


def test_m_an_agent_without_a_session_gets_one_of_its_own(house: Installation) -> None:
    async def main() -> None:
        place = house.user / "own"
        place.mkdir()
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "holdfast", "mcp", "--as", "bot"],
            env=house.env,
            cwd=str(place),
        )
        async with stdio_client(program) as streams, ClientSession(*streams) as session:
            await session.initialize()
            agent = Agent(session)
            assert (await agent("run", command="true"))["exit_code"] == 0
            made = (await agent("sessions"))["sessions"]
            own = [one for one in made if one["turn"] == "bot"]
            assert [one["layout"] for one in own] == ["contained"]
            house.quick("end", own[0]["id"])

    asyncio.run(main())


def test_m_the_tools_in_both_eras_of_the_protocol(house: Installation, work: str) -> None:
    words = ("--as", "bot", "--session", work, "--tools", "forward")

    async def main(mode: str) -> None:
        async with Client(program(house, *words), mode=mode) as client:
            tools = [one.name for one in (await client.list_tools()).tools]
            assert (tools[0], tools[-1]) == ("run", "forward")
            done = await Agent(client)("run", command="echo hello; (exit 3)")
            assert (done["state"], done["exit_code"], done["output"]) == ("done", 3, "hello\n")
            wrong = await Agent(client)("run", nonsense=1)
            assert wrong["state"] == "refused" and wrong["recover"]
            (guide,) = (await client.read_resource("holdfast://guide")).contents
            assert isinstance(guide, TextResourceContents) and "`held`" in guide.text

    for mode in ("legacy", "2026-07-28", "auto"):
        asyncio.run(main(mode))


def test_m_the_tools_over_http_need_the_token(house: Installation, work: str) -> None:
    words = ("--as", "bot", "mcp", "--session", work, "--listen", "127.0.0.1:0", "--json")
    server = house.start(*words)
    assert server.stdout is not None
    facts = json.loads(server.stdout.readline())
    url, file = facts["url"], Path(facts["token_file"])
    assert file.stat().st_mode & 0o777 == 0o600 and file.is_relative_to(house.home)
    right = {"Authorization": f"Bearer {file.read_text().strip()}"}

    async def main() -> None:
        async with (
            httpx2.AsyncClient(headers=right) as http,
            streamable_http_client(url, http_client=http) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            done = await Agent(session)("run", command="echo by http")
            assert (done["exit_code"], done["output"]) == (0, "by http\n")
        async with (
            httpx2.AsyncClient(headers=right) as http,
            Client(streamable_http_client(url, http_client=http), mode="2026-07-28") as client,
        ):
            done = await Agent(client)("run", command="echo by http; (exit 4)")
            assert (done["exit_code"], done["output"]) == (4, "by http\n")
        async with httpx2.AsyncClient() as http:
            for headers in ({}, {"Authorization": "Bearer hf_wrong"}):
                assert (await http.post(url, json={}, headers=headers)).status_code == 401
            foreign = await http.post(url, json={}, headers={**right, "Host": "evil.example"})
            assert foreign.status_code == 421
            crossed = await http.post(url, json={}, headers={**right, "Origin": "http://evil"})
            assert crossed.status_code == 403

    try:
        asyncio.run(main())
    finally:
        server.terminate()
        server.wait(DEADLINE_S)
    exposed = house.cli("--as", "bot", "mcp", "--listen", "0.0.0.0:0")
    assert exposed.rc == 4 and "other machines" in exposed.err
