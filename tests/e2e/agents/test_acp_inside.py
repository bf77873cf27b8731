"""An agent of an editor whose program itself runs in a session (M, T4, G2)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agents.acp_editor import AGENT, Agent, Editor, acp, connected, words
from tests.support.agents.model import Call, Model, Script, serving
from tests.support.agents.programs import needed
from tests.support.installation import DEADLINE_S, Installation, installation
from tests.support.simulation.lossy_link import network_of


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        made.people("bot", rights="execute", kind="agent", plain=False)
        yield made


@pytest.fixture
def work(house: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30]
    (house.user / name).mkdir()
    shares = [f"--share={Path(AGENT).parent}"]
    if not sys.base_prefix.startswith("/usr"):  # the system's directories are inside anyway
        shares.append(f"--share={sys.base_prefix}")
    house.ready(name, "--contained", "--net", "none", *shares, "--cwd", str(house.user / name))
    yield name
    house.quick("end", name)


def play(house: Installation, name: str, script: Callable[[Agent], Awaitable[None]]) -> None:
    async def main() -> None:
        place = house.user / name
        options = ("--as", "bot", "--session", name, "--inside")
        async with connected(house, place, *options) as agent:
            await script(agent)

    asyncio.run(main())


def start(house: Installation, *options: str) -> subprocess.Popen[str]:
    """`holdfast acp` by itself, for the test to be the editor."""
    return subprocess.Popen(
        [sys.executable, *words(*options)],
        env={**os.environ, **house.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_m_the_agents_program_is_an_act_in_the_session(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        facts = await agent.connection.ext_method("facts", {})
        offered = facts["capabilities"]
        assert offered["terminal"] is False
        assert offered["fs"]["readTextFile"] is offered["fs"]["writeTextFile"] is False
        for name, arguments in (
            ("create_terminal", {"command": "true"}),
            ("read_text_file", {"path": "/etc/passwd"}),
        ):
            assert (await agent(name, **arguments))["error"]["code"] == -32601
        text = "ä" * 200_000  # longer than a line of a terminal and than a pipe's buffer
        await agent.connection.prompt(session_id=agent.session, prompt=[acp.text_block(text)])
        await agent.editor.shows("agent_message_chunk")
        assert agent.editor.updates[0]["content"]["text"] == text
        await agent.connection.ext_method("spawn", {})
        graph = await asyncio.to_thread(lambda: house.ok("graph", work, "--json").json)
        started = {" ".join(one["argv"][:2]): one["actor"] for one in graph["processes"]}
        assert started["sleep 1000"] == "bot"
        assert any("acp_agent" in one and actor == "bot" for one, actor in started.items())

    play(house, work, script)
    after = house.ok("graph", work, "--json").json["processes"]
    assert not [one for one in after if one["actor"] == "bot"], "it ends with its editor"
    assert "-echo " not in house.ok("run", work, "--", "stty -a").out.replace("\n", " ")
    entries = house.ok("log", work, "--json", "--limit", "100").records
    acts = [e for e in entries if "acp_agent.py" in (e["content"] or "")]
    assert {(e["actor"], e["modality"]) for e in acts} == {("bot", "acp")}


def test_a3_a_person_takes_over_and_stops_the_agent(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        await asyncio.to_thread(house.quick, "--as", "ann", "seize", work)
        await asyncio.to_thread(house.quick, "--as", "ann", "send", work, "typed")
        async with asyncio.timeout(DEADLINE_S):
            found = await agent.connection.ext_method("ask", {"n": 1})
        assert found == {"editor": {"n": 1}}, "typed text does not mix with messages"
        await asyncio.to_thread(house.quick, "--as", "ann", "send", work, "--key", "C-c")
        await asyncio.wait_for(agent.process.wait(), DEADLINE_S)

    play(house, work, script)
    after = house.ok("graph", work, "--json").json["processes"]
    assert not [one for one in after if one["actor"] == "bot"], after


def test_m_the_agents_exit_code_is_the_commands(house: Installation, work: str) -> None:
    async def script(agent: Agent) -> None:
        await agent.connection.ext_method("exit", {"code": 7})
        assert await asyncio.wait_for(agent.process.wait(), DEADLINE_S) == 7

    play(house, work, script)


def test_s4_a_new_host_ends_the_agent_and_says_why(house: Installation, work: str) -> None:
    agent = (sys.executable, AGENT)
    process = start(house, "--as", "bot", "--session", work, "--inside", "--", *agent)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write('{"jsonrpc":"2.0","id":1,"method":"initialize","params":')
    process.stdin.write('{"protocolVersion":1}}\n')
    process.stdin.flush()
    assert '"protocolVersion":1' in process.stdout.readline()
    os.kill(house.host_pid, signal.SIGKILL)
    assert "the connection to the host was lost" in process.stderr.readline()
    process.wait(DEADLINE_S)
    assert house.ok("run", work, "--", "echo the session goes on").rc == 0


def test_p4_the_policy_judges_the_agents_program(house: Installation, work: str) -> None:
    held = ("git", "worktree", "remove", "--force", "x")
    process = start(house, "--as", "bot", "--session", work, "--inside", "--", *held)
    assert process.stderr is not None and "waits for the approval" in process.stderr.readline()
    (question,) = house.ok("--as", "ann", "approvals", work, "--json").json
    house.ok("--as", "ann", "deny", question["id"])
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 4 and "denied" in said, said


def test_t4_a_start_that_cannot_work_says_why(house: Installation, work: str) -> None:
    house.ready("plain-one", "--plain")
    for options, code, said in (
        (("--as", "bot", "--inside", "--", "cat"), 2, "--inside needs a session"),
        (("--as", "ann", "--session", "plain-one", "--inside", "--", "cat"), 4, "not contained"),
        (("--as", "bot", "--session", work, "--inside", "--", "/no/agent"), 127, ""),
    ):
        process = start(house, *options)
        assert process.wait(DEADLINE_S) == code, "also while the editor goes on"
        assert said in process.communicate()[1]
    assert "/no/agent" in house.ok("run", work, "--", "cat /tmp/holdfast-acp.log").out
    house.end("plain-one")


def test_t4_a_real_agent_works_behind_the_wall(house: Installation) -> None:
    """opencode with its own shell, and a model that listens on the session's own loopback."""
    program, name, editor = needed("opencode"), "opencode", Editor()
    place = house.user / name
    place.mkdir()
    (house.user / "secret").write_text("outside")
    session = house.ready(
        name,
        *("--contained", "--net", "none", "--cwd", str(place)),
        *("--share", str(program.place.resolve())),
    )

    def script() -> Script:
        tried = f"echo made > here; cat {house.user}/secret || echo closed; id -un"
        result = yield Call("bash", {"command": tried, "description": "d"})
        assert "closed" in result and "outside" not in result, result
        yield "All is done."

    with network_of(session["pid"]):
        listening = socket.create_server(("127.0.0.1", 0))
    model = Model(script())
    with serving(model, listening) as url:
        given = (f"{key}={value}" for key, value in program.environ(url).items())
        agent = ["env", *given, str(program.place.resolve() / "node_modules/.bin/opencode"), "acp"]
        command = words("--as", "bot", "--session", name, "--inside", "--", *agent)

        async def main() -> None:
            async with (
                asyncio.timeout(3 * DEADLINE_S),
                acp.spawn_agent_process(
                    editor,
                    sys.executable,
                    *command,
                    env=house.env,
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

        asyncio.run(main())
    assert model.failed is None and (place / "here").read_text() == "made\n"
    entries = house.ok("log", name, "--json", "--limit", "100").records
    (act, *_) = (e for e in entries if "opencode" in (e["content"] or ""))
    assert (act["actor"], act["modality"]) == ("bot", "acp")
    house.end(name)
