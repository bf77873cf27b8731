"""Real coding agents, as `agent add` connects them, driven by a scripted model (M, P4, G2).

No stand-in takes part: the agents are the programs that people install. They run without a route to
any network. Where one cannot be installed, its tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents.model import Call, Model, Script
from tests.support.agents.programs import PROGRAMS, needed, play
from tests.support.agents.steps import TREE, approve, body, repository
from tests.support.installation import Installation, installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

TOOLS = {"run", "read", "send", "wait", "screen", "sessions", "graph", "turn", "stop"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def project(house: Installation) -> Iterator[Path]:
    """A repository with a linked work tree."""
    place = house.user / f"app{len(list(house.user.iterdir()))}"
    repository(place)
    yield place
    for one in house.ls():
        house.quick("end", one["id"])


def shell_call(name: str) -> Call:
    """Asks the agent for its own shell."""
    command = "cmd" if PROGRAMS[name].agent == "codex" else "command"
    return Call(PROGRAMS[name].shell, {command: "touch escaped", "description": "escape"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_p4_a_real_agent_is_held_approved_and_goes_on(
    house: Installation, project: Path, name: str
) -> None:
    program = needed(name)
    made = json.loads(house.quick("agent", "add", program.agent, "--cwd", str(project), "--json"))
    session, operator = made["session"], made["name"]
    house.wait(session, "idle")

    def script() -> Script:
        yield shell_call(name)
        assert not (project / "escaped").exists()
        done = body((yield Call("run", {"command": "echo built; (exit 7)", "intent": "build"})))
        assert (done["state"], done["exit_code"], done["output"]) == ("done", 7, "built\n")
        held = body((yield Call("run", {"command": TREE, "intent": "clean up"})))
        assert held["state"] == "held" and held["approval"], held
        after = body((yield Call("read", {"ref": held["ref"], "wait_s": 0})))
        assert after["state"] == "held" and (project / "tree").exists()
        approve(house, session, operator, TREE)
        while after["state"] in ("held", "running"):
            after = body((yield Call("read", {"ref": held["ref"], "wait_s": 20})))
        assert (after["state"], after["exit_code"]) == ("done", 0), after
        assert not (project / "tree").exists()
        last = body((yield Call("run", {"command": "echo go on > done; pwd"})))
        assert last["output"] == f"{project}\n"
        yield "The task is done."

    model = Model(script())
    printed = play(program, model, project, house.base / f"account-{name}")
    assert "The task is done." in printed
    assert (project / "done").read_text() == "go on\n"
    for asked in model.asked:
        assert program.shell not in asked.tools, "its own shell is switched off"
    if program.offers:
        assert {tool.rpartition("_")[2] for tool in model.asked[-1].ours()} == TOOLS

    entries = house.ok("log", session, "--json", "--limit", "100").records
    mine, person = (operator, "mcp"), ("tester", "cli")
    assert [(e["kind"], e["verdict"], (e["actor"], e["modality"])) for e in entries] == [
        ("spawn", None, person),
        ("command", "allow", mine),
        ("command", None, mine),  # its outcome
        ("command", "hold", mine),
        ("approve", None, person),
        ("command", "allow", mine),
        ("command", None, mine),
        ("command", "allow", mine),
        ("command", None, mine),
    ]
    assert [e["facts"]["intent"] for e in entries if e["content"] == TREE][-1] == "clean up"


@pytest.mark.parametrize("name", [name for name, one in PROGRAMS.items() if one.offers])
def test_p4_without_the_configuration_the_agent_has_its_shell(
    house: Installation, project: Path, name: str
) -> None:
    """So the other test looks for the right tool."""
    program = needed(name)

    def script() -> Script:
        yield "Nothing to do."

    model = Model(script())
    play(program, model, project, house.base / f"without-{name}")
    assert all(program.shell in asked.tools and not asked.ours() for asked in model.asked)
    assert model.asked


SUBAGENTS = {
    "claude": Call(
        "Agent", {"description": "d", "prompt": "Begin.", "subagent_type": "general-purpose"}
    ),
    "codex": Call("spawn_agent", {"message": "Begin."}),
    "opencode": Call("task", {"description": "d", "prompt": "Begin.", "subagent_type": "general"}),
}


@pytest.mark.parametrize("name", SUBAGENTS)
def test_p4_an_agent_that_the_agent_starts_has_no_shell_either(
    house: Installation, project: Path, name: str
) -> None:
    program = needed(name)
    house.quick("agent", "add", program.agent, "--cwd", str(project))

    def script() -> Script:
        yield SUBAGENTS[name]
        while len(offered()) < 2:
            yield Call("sessions", {})
        yield "Nothing to do."

    model = Model(script())

    def offered() -> set[frozenset[str]]:
        """The lists of tools with ours: that of a subagent is shorter."""
        return {frozenset(asked.tools) for asked in model.asked if asked.ours()}

    play(program, model, project, house.base / f"sub-{name}")
    assert len(offered()) >= 2
    assert all(program.shell not in asked.tools for asked in model.asked)
