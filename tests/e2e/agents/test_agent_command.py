"""`holdfast agent`: one command connects a coding agent (M, P4)."""

from __future__ import annotations

import asyncio
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.home import keys
from tests.support.installation import Installation, installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

Json = dict[str, Any]
FILES = {
    "claude": (".mcp.json", ".claude/settings.json"),
    "codex": (".codex/config.toml",),
    "opencode": ("opencode.json",),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def project(house: Installation) -> Iterator[Path]:
    place = house.user / f"app{len(list(house.user.iterdir()))}"
    place.mkdir()
    yield place
    for one in house.ls():
        house.quick("end", one["id"])


def add(house: Installation, agent: str, place: Path, *words: str) -> Json:
    made: Json = json.loads(
        house.quick("agent", "add", agent, "--cwd", str(place), "--json", *words)
    )
    return made


def server(agent: str, place: Path) -> tuple[list[str], dict[str, str]]:
    """The command and environment of our server in the agent's configuration."""
    text = (place / FILES[agent][0]).read_text()
    if agent == "claude":
        found = json.loads(text)["mcpServers"]["holdfast"]
        return [found["command"], *found["args"]], found["env"]
    if agent == "codex":
        found = tomllib.loads(text)["mcp_servers"]["holdfast"]
        return [found["command"], *found["args"]], found["env"]
    found = json.loads(text)["mcp"]["holdfast"]
    return found["command"], found["environment"]


@pytest.mark.parametrize("agent", FILES)
def test_m_add_makes_operator_session_rights_and_configuration(
    house: Installation, project: Path, agent: str
) -> None:
    made = add(house, agent, project)
    name = made["name"]
    assert made["files"] == dict.fromkeys(FILES[agent], "written") and made["shell"] == "off"
    session = house.get(made["session"])
    assert (session["layout"], session["cwd"]) == ("contained", str(project))
    operator = json.loads(house.quick("operator", "show", name, "--json"))
    assert operator["kind"] == "agent"
    (envelope,) = operator["envelopes"]
    assert envelope["scope"]["session"] == session["id"]
    assert {"run", "observe"} <= set(envelope["rights"])
    assert not {"approve", "grant", "new", "manage", "plain"} & set(envelope["rights"])
    command, environ = server(agent, project)
    assert Path(command[0]).is_absolute() and environ == {"HOLDFAST_HOME": str(house.home)}
    assert command[-4:] == ["--as", name, "--session", made["session"]]
    listed = json.loads(house.quick("agent", "ls", "--json"))
    assert [one["state"] for one in listed if one["name"] == name] == ["ready"]


@pytest.mark.parametrize("agent", FILES)
def test_m_the_written_command_serves_the_tools(
    house: Installation, project: Path, agent: str
) -> None:
    add(house, agent, project)
    (program, *words), environ = server(agent, project)
    bare = {key: house.env[key] for key in ("PATH", "HOME", "PYTHONPATH")}
    started = StdioServerParameters(
        command=program, args=words, env=bare | environ, cwd=str(project)
    )

    async def main() -> None:
        async with stdio_client(started) as streams, ClientSession(*streams) as session:
            await session.initialize()
            done = await session.call_tool("run", {"command": "pwd; (exit 3)"})
            body = done.structured_content
            assert body is not None
            assert (body["exit_code"], body["output"]) == (3, f"{project}\n")

    asyncio.run(main())


def test_m_add_can_be_repeated(house: Installation, project: Path) -> None:
    first = add(house, "claude", project)
    before = {path: (project / path).read_bytes() for path in FILES["claude"]}
    second = add(house, "claude", project)
    assert second["name"] == first["name"] and second["session"] == first["session"]
    assert second["files"] == dict.fromkeys(FILES["claude"], "complete")
    assert before == {path: (project / path).read_bytes() for path in FILES["claude"]}
    operator = json.loads(house.quick("operator", "show", first["name"], "--json"))
    assert len(operator["envelopes"]) == 1, "the rights are there already"
    house.quick("end", first["session"])
    listed = json.loads(house.quick("agent", "ls", "--json"))
    assert [e["state"] for e in listed if e["name"] == first["name"]] == ["no session"]
    add(house, "claude", project)
    listed = json.loads(house.quick("agent", "ls", "--json"))
    assert [e["state"] for e in listed if e["name"] == first["name"]] == ["ready"]


def test_m_add_writes_the_tool_sets_and_keeps_them(house: Installation, project: Path) -> None:
    first = add(house, "codex", project, "--tools", "files,forward")
    assert server("codex", project)[0][-2:] == ["--tools", "files,forward"]
    again = add(house, "codex", project)
    assert again["files"] == dict.fromkeys(FILES["codex"], "complete") and again["shell"] == "off"
    wrong = house.cli("agent", "add", "codex", "--cwd", str(project), "--tools", "nonsense")
    assert wrong.rc == 2 and "files, branches, forward" in wrong.err
    listed = json.loads(house.quick("agent", "ls", "--json"))
    assert [e["tools"] for e in listed if e["name"] == first["name"]] == [["files", "forward"]]


def test_m_add_goes_on_after_it_was_cut_off(house: Installation, project: Path) -> None:
    """The key exists, and the operator does not yet."""
    keys.make(homes.resolve(house.env), "halfway", "agent", 1.0)
    assert add(house, "codex", project, "--name", "halfway")["name"] == "halfway"
    assert server("codex", project)[0][-3] == "halfway"
    listed = json.loads(house.quick("agent", "ls", "--json"))
    assert [e["state"] for e in listed if e["name"] == "halfway"] == ["ready"]


def test_m_two_directories_of_one_name_get_two_operators(
    house: Installation, project: Path
) -> None:
    places = [project / one / "same" for one in ("a", "b")]
    for place in places:
        place.mkdir(parents=True)
    made = [add(house, "opencode", place) for place in places]
    assert [one["name"] for one in made] == ["opencode-same", "opencode-same-2"]
    refused = house.attempt(
        "agent", "add", "opencode", "--cwd", str(project), "--name", "opencode-same"
    )
    assert refused.rc == 4 and "another directory" in refused.err


def test_m_add_changes_no_file_that_exists(house: Installation, project: Path) -> None:
    (project / ".claude").mkdir()
    settings = project / ".claude/settings.json"
    settings.write_text('{"model": "opus"}')
    said = house.quick("agent", "add", "claude", "--cwd", str(project))
    assert settings.read_text() == '{"model": "opus"}'
    assert '"deny": ["Bash"]' in said and "shell IS ON until you merge" in said
    settings.write_text(
        json.dumps(
            {
                "model": "opus",
                "permissions": {"allow": ["Read", "mcp__holdfast"], "deny": ["WebFetch", "Bash"]},
                "enabledMcpjsonServers": ["holdfast"],
            }
        )
    )
    assert add(house, "claude", project)["shell"] == "off", "the user has merged the text"
    said = house.quick("agent", "add", "claude", "--cwd", str(project))
    assert "own shell is switched off by .claude/settings.json" in said


def test_m_add_writes_through_no_link(house: Installation, project: Path) -> None:
    elsewhere = house.user / "elsewhere"
    elsewhere.mkdir()
    (project / ".claude").symlink_to(elsewhere)
    (project / ".mcp.json").symlink_to(elsewhere / "mcp.json")
    made = add(house, "claude", project)
    assert made["files"] == dict.fromkeys(FILES["claude"], "merge") and made["shell"] == "on"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("agent", FILES)
def test_a3_code_in_the_session_cannot_change_the_configuration(
    house: Installation, project: Path, agent: str
) -> None:
    session = add(house, agent, project)["session"]
    before = {path: (project / path).read_bytes() for path in FILES[agent]}
    house.wait(session, "idle")
    for path in FILES[agent]:
        top = path.partition("/")[0]
        for attempt in (f"echo x > {path}", f"rm -r {top}", f"mv {top} away"):
            assert house.cli("run", session, "--", attempt).rc != 0, attempt
    assert before == {path: (project / path).read_bytes() for path in FILES[agent]}


def test_m_add_takes_a_contained_session_that_exists(house: Installation, project: Path) -> None:
    house.new("mine", "--contained", "--cwd", str(project))
    made = add(house, "opencode", project, "--session", "mine", "--name", "helper")
    assert (made["name"], made["session"]) == ("helper", "mine")
    house.new("open")
    for session, why in (("open", "not contained"), ("nosuch", "does not exist")):
        refused = house.attempt(
            "agent", "add", "codex", "--cwd", str(project), "--session", session
        )
        assert refused.rc == 4 and why in refused.err
    assert not (project / ".codex").exists(), "a refused command writes nothing"


def test_m_add_refuses_what_it_cannot_mean(house: Installation, project: Path) -> None:
    house.people("carol")
    for words, why in (
        (("add", "emacs"), "not known"),
        (("add",), "takes claude"),
        (("rm", "nosuch"), "no agent"),
        (("add", "codex", "--name", "carol"), "of the kind human"),
        (("add", "codex", "--cwd", "/nonexistent"), "not a directory"),
    ):
        refused = house.attempt("agent", *words)
        assert refused.rc != 0 and why in refused.err, (words, refused)


def test_m_add_needs_the_library_of_the_server(
    house: Installation, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    refused = house.attempt("agent", "add", "claude", "--cwd", str(project))
    assert refused.rc == 7 and "holdfast[mcp]" in refused.err
    assert list(project.iterdir()) == []


def test_m_the_rights_can_end(house: Installation, project: Path) -> None:
    name = add(house, "codex", project, "--expires", "8h")["name"]
    add(house, "codex", project)
    operator = json.loads(house.quick("operator", "show", name, "--json"))
    assert all(one["scope"]["expires"] for one in operator["envelopes"])


def test_a2_rm_revokes_and_removes_only_what_it_wrote(house: Installation, project: Path) -> None:
    name = add(house, "claude", project)["name"]
    (project / ".mcp.json").write_text("{}")
    gone = json.loads(house.quick("agent", "rm", name, "--json"))
    assert gone["files"] == {".mcp.json": "left", ".claude/settings.json": "removed"}
    assert (project / ".mcp.json").read_text() == "{}"
    assert not (project / ".claude/settings.json").exists()
    operator = json.loads(house.quick("operator", "show", name, "--json"))
    assert operator["revoked"]
    assert name not in house.quick("agent", "ls")
    (project / ".mcp.json").unlink()
    again = add(house, "claude", project)
    assert again["name"] == f"{name}-2", "a revoked name is never used again"
