"""An editor's agent whose terminals are acts in sessions, by the official library (M, P4, G2).

Both ends are real: the library's client is the editor, and an agent on the library is the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agents.acp_editor import Agent, Editor, acp, connected, words
from tests.support.agents.model import Call, Model, Script, serving
from tests.support.agents.programs import needed
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.simulation.lossy_link import Namespace


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("home")
    config = f'[turn]\nidle_s = 600\n[contain]\nworkspaces = ["{base}/user/own"]\n'
    with installation(base, config) as made:
        made.people("ann")
        made.people("bot", rights="execute", kind="agent")
        yield made


@pytest.fixture
def work(house: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30]
    (house.user / name).mkdir()
    house.ready(name, "--contained", "--cwd", str(house.user / name))
    yield name
    house.quick("end", name)


def play(house: Installation, name: str, script: Callable[[Agent], Awaitable[None]]) -> None:
    async def main() -> None:
        place = house.user / name
        async with connected(house, place, "--as", "bot", "--session", name) as agent:
            await script(agent)

    asyncio.run(main())


def test_m_an_agents_terminal_is_an_act_in_the_session(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        facts = await agent.connection.ext_method("facts", {})
        assert facts["capabilities"]["terminal"] is True, "the editor itself announced none"
        exit, shown = await agent.end(await agent.create("echo hello; exit 3"))
        assert (exit["exitCode"], shown["output"], shown["truncated"]) == (3, "hello\n", False)
        _, shown = await agent.end(await agent.create("printf", args=["%s|", "a b", "$HOME", "'"]))
        assert shown["output"] == "a b|$HOME|'|", "arguments are words and no shell text"
        env = [{"name": "MODE", "value": "two words"}]
        _, shown = await agent.end(await agent.create("pwd; echo $MODE", cwd="/tmp", env=env))
        assert shown["output"] == "/tmp\ntwo words\n"
        _, shown = await agent.end(await agent.create("pwd; echo $MODE # a comment"))
        assert shown["output"] == f"{house.user / work}\n\n", "a terminal is new each time"
        exit, shown = await agent.end(await agent.create("pwd", cwd="/nonexistent"))
        assert exit["exitCode"] != 0 and "/nonexistent" in shown["output"]
        broken = await agent.create("echo 'unfinished")
        await agent.until(broken, "waits for the approval")
        await agent("release_terminal", terminal_id=broken)
        exit, _ = await agent.end(await agent.create("true"))
        assert exit["exitCode"] == 0, "the shell takes the next command"

    play(house, work, script)
    entries = house.ok("log", work, "--json", "--limit", "100").records
    ours = [e for e in entries if "echo hello" in (e["content"] or "")]
    assert {(e["actor"], e["modality"]) for e in ours} == {("bot", "acp")}


def test_m_output_is_cut_at_the_beginning(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        _, shown = await agent.end(await agent.create("seq 1 2000; echo äöü", output_byte_limit=10))
        assert shown["truncated"] is True
        assert shown["output"] == "00\näöü\n", "whole characters only"
        _, shown = await agent.end(await agent.create("echo abc", output_byte_limit=0))
        assert (shown["output"], shown["truncated"]) == ("", True)

    play(house, work, script)


def test_m_kill_and_release_end_the_command(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        slow = await agent.create("echo begun; sleep 1000")
        await agent.until(slow, "begun")
        queued = await agent.create("touch never")
        shown = await agent("terminal_output", terminal_id=queued)
        assert "waits for the session" in shown["output"] and shown.get("exitStatus") is None
        await agent("kill_terminal", terminal_id=queued)
        exit, shown = await agent.end(queued)
        assert exit["signal"] == "SIGKILL" and "before it began" in shown["output"]
        await agent("kill_terminal", terminal_id=slow)
        exit, shown = await agent.end(slow)
        assert exit["exitCode"] == 143 and shown["output"].startswith("begun\n"), shown
        stubborn = await agent.create("trap '' TERM; echo begun; while :; do sleep 1000; done")
        await agent.until(stubborn, "begun")
        assert await agent("release_terminal", terminal_id=stubborn) in ({}, {"_meta": None})
        gone = await agent("terminal_output", terminal_id=stubborn)
        assert gone["error"]["data"]["name"] == "not_found", gone
        exit, _ = await agent.end(await agent.create("true"))
        assert exit["exitCode"] == 0, "the session is free again"

    play(house, work, script)
    assert not (house.user / work / "never").exists()


def test_p4_a_held_terminal_waits_for_the_decision(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        def question() -> str:
            (found,) = house.ok("--as", "ann", "approvals", work, "--json").json
            assert "git worktree remove" in found["text"]
            return str(found["id"])

        held = await agent.create("git worktree remove --force gone")
        await agent.connection.ext_method("show", {"terminal": held, "session": agent.session})
        waiting = asyncio.ensure_future(agent("wait_for_terminal_exit", terminal_id=held))
        shown = await agent.until(held, "waits for the approval")
        assert shown.get("exitStatus") is None and not waiting.done()
        await agent.editor.shows("waits for the approval")
        id = await asyncio.to_thread(question)
        binding = house.ok("--as", "ann", "approvals", work, "--json").json[0]["binding"]
        await asyncio.to_thread(
            house.ok, "--as", "ann", "approve", id, "--yes", "--binding", binding
        )
        assert (await waiting)["exitCode"] == 128, "git's own code: this is no repository"
        assert "not a git repository" in (await agent.end(held))[1]["output"]
        seen = await agent.editor.shows("not a git repository")
        assert "call1" in seen and f"holdfast attach {work}" in seen, "the editor sees it too"

        denied = await agent.create("git worktree remove --force more")
        await agent.until(denied, "waits for the approval")
        await asyncio.to_thread(house.ok, "--as", "ann", "deny", await asyncio.to_thread(question))
        exit, shown = await agent.end(denied)
        assert exit["exitCode"] == 255 and "[holdfast: refused: " in shown["output"], shown
        assert "`holdfast" not in shown["output"], "an agent has no commands of ours"

    play(house, work, script)


def test_a1_a_human_takes_over_and_hands_back(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        asks = await agent.create("read -p 'name? ' x; echo got $x")
        await agent.until(asks, "name? ")
        await asyncio.to_thread(house.quick, "--as", "ann", "seize", work)
        await asyncio.to_thread(house.quick, "--as", "ann", "send", work, "ann", "--enter")
        exit, shown = await agent.end(asks)
        assert exit["exitCode"] == 0 and "got ann" in shown["output"]
        waits = await agent.create("echo mine")
        shown = await agent.until(waits, "another operator has the turn")
        await asyncio.to_thread(house.quick, "--as", "ann", "turn", work, "hand", "bot")
        assert (await agent.end(waits))[1]["output"] == "mine\n"

    play(house, work, script)


def test_m_wrong_requests_are_refused_with_the_reason(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        for name, arguments, what in (
            ("create_terminal", {"command": "true", "cwd": "here"}, "usage"),
            ("create_terminal", {"command": "x", "env": [{"name": "a-b", "value": ""}]}, "usage"),
            (
                "create_terminal",
                {"command": "x", "env": [{"name": "API_TOKEN", "value": "s"}]},
                "refused",
            ),
            ("terminal_output", {"terminal_id": "hf-99"}, "not_found"),
            ("kill_terminal", {"terminal_id": "hf-99"}, "not_found"),
        ):
            error = (await agent(name, **arguments))["error"]
            assert error["data"]["name"] == what and error["data"]["recover"], error
        term = await agent.create("true")
        params = {"session_id": "another", "terminal_id": term}
        stolen = await agent.connection.ext_method(
            "call", {"name": "terminal_output", "arguments": params}
        )
        assert stolen["error"]["data"]["name"] == "not_found", "of another session of the editor"

    play(house, work, script)


def test_m_everything_else_passes(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        text = "ä" * 200_000  # longer than a pipe's buffer
        await agent.connection.prompt(session_id=agent.session, prompt=[acp.text_block(text)])
        await agent.editor.shows("agent_message_chunk")
        assert agent.editor.updates[0]["content"]["text"] == text
        found = await agent.connection.ext_method("ask", {"n": 1})
        assert found == {"editor": {"n": 1}} and agent.editor.asked == ["hello"]
        await agent.connection.ext_method("print", {"line": "careless words"})
        exit, _ = await agent.end(await agent.create("true"))
        assert exit["exitCode"] == 0, "a line that is no message harms nothing"

    play(house, work, script)


def test_m_without_a_session_each_busy_terminal_gets_another(house: Installation) -> None:
    async def main() -> None:
        place = house.user / "own"
        place.mkdir()
        before = {one["id"] for one in house.ls()}
        async with connected(house, place, "--as", "bot") as agent:
            server = await agent.create("echo up; sleep 1000")
            await agent.until(server, "up")
            exit, shown = await agent.end(await agent.create("pwd"))
            assert (exit["exitCode"], shown["output"]) == (0, f"{place}\n")
            made = [one for one in house.ls() if one["id"] not in before]
            assert [one["layout"] for one in made] == ["contained", "contained"]
            await agent.end(await agent.create("true"))
            assert len(house.ls()) == len(before) + 2, "an idle session is used again"
        assert len(house.ls()) == len(before) + 2, "sessions outlive the editor"
        for one in made:
            house.quick("end", one["id"])

    asyncio.run(main())


def test_s3_the_agent_ends_with_the_editor_and_the_session_goes_on(
    house: Installation, work: str
) -> None:
    async def main() -> None:
        place = house.user / work
        async with connected(house, place, "--as", "bot", "--session", work) as agent:
            facts = await agent.connection.ext_method("facts", {})
            child = await agent.connection.ext_method("spawn", {})
            server = await agent.create("echo up; sleep 1000")
            await agent.until(server, "up")
        assert agent.process.returncode is not None
        for pid in (facts["pid"], child["pid"]):
            eventually(lambda: _gone(pid), "the agent and its child to end")

    asyncio.run(main())
    graph = house.ok("graph", work, "--json").json
    assert any("sleep" in one["argv"] for one in graph["processes"]), "the command goes on"
    house.quick("--as", "ann", "seize", work)
    house.quick("--as", "ann", "send", work, "--key", "C-c")
    house.wait(work, "idle")


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_m_the_agents_exit_code_is_the_commands(house: Installation, work: str) -> None:
    async def main() -> None:
        place = house.user / work
        async with connected(house, place, "--as", "bot", "--session", work) as agent:
            await agent.connection.ext_method("exit", {"code": 7})
            assert await asyncio.wait_for(agent.process.wait(), DEADLINE_S) == 7

    asyncio.run(main())


class Echo:
    """The proxy with `cat` as the agent: a line of the editor comes back as one of the agent."""

    def __init__(self, house: Installation, session: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words("--as", "bot", "--session", session, "--", "cat")],
            env={**os.environ, **house.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ask(self, line: bytes) -> bytes:
        assert self.process.stdout is not None
        self.send(line)
        return self.process.stdout.readline()


def test_m_a_request_for_a_terminal_can_be_cancelled(house: Installation, work: str) -> None:
    """By bytes: the library sends no such notification."""
    echo = Echo(house, work)

    def message(method: str, id: int | None = None, **params: object) -> bytes:
        body = {"jsonrpc": "2.0", "method": method, "params": {"sessionId": "s", **params}}
        return json.dumps(body if id is None else {**body, "id": id}).encode() + b"\n"

    made = json.loads(echo.ask(message("terminal/create", 1, command="sleep 1000")))
    terminal = made["result"]["terminalId"]
    echo.send(message("terminal/wait_for_exit", 2, terminalId=terminal))
    answer = json.loads(echo.ask(message("$/cancel_request", requestId=2)))
    assert (answer["id"], answer["error"]["code"]) == (2, -32800)
    foreign = message("$/cancel_request", requestId=77)
    assert echo.ask(foreign) == foreign, "that request is not ours"
    released = json.loads(echo.ask(message("terminal/release", 3, terminalId=terminal)))
    assert released["result"] == {}
    echo.process.communicate(timeout=DEADLINE_S)
    assert echo.process.returncode == 0


def test_m_lines_that_are_no_messages_are_refused(house: Installation, work: str) -> None:
    """By bytes: no library sends such lines."""
    echo = Echo(house, work)
    odd = b'{ "method":"x",  "params": {"a": 1.50} }\n'
    for line, reply in (
        (odd, odd),
        (b"no json\n", None),
        (b"[1]\n", None),
        (b"[" * 100_000 + b"\n", None),
        (odd, odd),
    ):
        got = echo.ask(line)
        if reply is not None:
            assert got == reply, "byte for byte"
        else:
            assert json.loads(got)["error"]["code"] == -32700
    _, said = echo.process.communicate(b"x" * (33 << 20), timeout=DEADLINE_S)
    assert echo.process.returncode == 5 and b"more than 33554432 bytes" in said
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--as", "bot"), 2, "needs the agent's command"),
        (("--", "cat"), 2, "needs the agent's operator"),
        (("--as", "bot", "--session", "nosuch", "--", "cat"), 3, "nosuch"),
        (("--as", "bot", "--", "/no/such/agent"), 7, "does not start"),
    ],
)
def test_m_a_start_that_cannot_work_says_why(
    house: Installation, options: tuple[str, ...], code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, *words(*options)],
        env={**os.environ, **house.env},
        input="",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == code and said in done.stderr, done


def test_m_a_real_agent_works_through_the_proxy(house: Installation, work: str) -> None:
    """opencode has a shell of its own and asks its editor for no terminal."""
    program, place, editor = needed("opencode"), house.user / work, Editor()
    account = house.base / "opencode"
    account.mkdir()

    def script() -> Script:
        result = yield Call("bash", {"command": "echo made > here; pwd", "description": "d"})
        assert str(place) in result, result
        yield "All is done."

    async def main(url: str) -> None:
        ours = {**house.env, "HOME": str(account), **program.environ(url)}
        agent = str(program.place / "node_modules/.bin/opencode")
        command = words("--as", "bot", "--session", work, "--", agent, "acp")
        async with (
            asyncio.timeout(DEADLINE_S),
            acp.spawn_agent_process(
                editor,
                sys.executable,
                *command,
                env=ours,
                cwd=place,
                transport_kwargs={"limit": 1 << 24},
            ) as (connection, _),
        ):
            await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            made = await connection.new_session(cwd=str(place), mcp_servers=[])
            answer = await connection.prompt(
                session_id=made.session_id, prompt=[acp.text_block("Begin.")]
            )
            assert answer.stop_reason == "end_turn"
            await editor.shows("All is done.")

    model = Model(script())
    with (
        Namespace() as alone,
        alone.inside(),
        serving(model, socket.create_server(("127.0.0.1", 0))) as url,
    ):
        asyncio.run(main(url))
    assert model.failed is None and (place / "here").read_text() == "made\n"
    kinds = {one.get("sessionUpdate") for one in editor.updates}
    assert {"tool_call", "tool_call_update", "agent_message_chunk"} <= kinds
    entries = house.ok("log", work, "--json", "--limit", "100").records
    assert not [e for e in entries if e["actor"] == "bot"], "it asked for no terminal"
