"""OpenHands' terminal tool on Holdfast sessions, with its real packages (M, P4, G2)."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast.sync
from tests.support.agents.model import Call, Model, Script, serving
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

ROOT = Path(__file__).resolve().parents[3]
OPENHANDS = ROOT / ".cache/openhands"
PROGRAM = ROOT / "tests/support/agents/openhands_program.py"
Json = dict[str, Any]

if not (OPENHANDS / "state").exists():
    pytest.skip(
        "OpenHands is not installed: `scripts/openhands` prints the reason",
        allow_module_level=True,
    )


class Harness:
    """OpenHands in a process of its own."""

    def __init__(self, house: Installation, place: Path, options: Json) -> None:
        paths = (house.env["PYTHONPATH"], str(ROOT / "integrations/openhands"))
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"}
        self.process = subprocess.Popen(
            [OPENHANDS / "bin/python", PROGRAM, json.dumps(options)],
            env={**house.env, **quiet, "PYTHONPATH": ":".join(paths)},
            cwd=place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> Json:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        found: Json = json.loads(self.process.stdout.readline())
        return found

    def run(self, command: str, **more: Any) -> Json:
        return self.ask(command=command, **more)

    def end(self) -> None:
        self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        made.people("bot", rights="execute", kind="agent")
        yield made


@contextmanager
def harness(house: Installation, place: Path, **options: Any) -> Iterator[Harness]:
    place.mkdir(exist_ok=True)
    made = Harness(house, place, options)
    try:
        yield made
    finally:
        made.process.kill()
        made.end()


def test_m_commands_share_the_state_of_a_session(house: Installation) -> None:
    place = house.user / "state"
    with harness(house, place, operator="tester", name="state") as oh:
        assert oh.run("")["error"], "nothing runs"
        done = oh.run("x=1; mkdir in; cd in; printf '  %s\\n' a; (exit 3)")
        assert (done["text"], done["code"], done["cwd"]) == ("  a", 3, f"{place}/in")
        assert oh.run("echo $x $PWD")["text"] == f"1 {place}/in"
        assert oh.run("echo 1\necho 2")["error"], "one command at a time"
        begun = oh.run("read -p 'name? ' name; echo hello $name", timeout=1.0)
        assert (begun["text"], begun["code"]) == ("name?", -1)
        refused = oh.run("echo more")
        assert refused["error"] and "still running" in refused["shown"]
        assert oh.run("ann", is_input=True)["text"] == "hello ann"
        assert oh.run("cat <<EOF | wc -l", timeout=1.0)["code"] == -1, "it waits for more lines"
        oh.run("one", is_input=True, timeout=1.0)
        assert oh.run("EOF", is_input=True)["text"].endswith("1")
        assert oh.run("sleep 1000", timeout=0.5)["code"] == -1
        assert oh.run("C-c", is_input=True)["code"] == 130
        cut = oh.run("seq 1 20000")
        assert "truncated" in cut["shown"] and cut["text"].endswith("20000")
        ended = oh.run("exit 4")
        assert ended["code"] == 4 and "session has ended" in ended["shown"]
        fresh = oh.run("echo x is $x")
        assert "x is" in fresh["text"] and "x is 1" not in fresh["text"]
        oh.end()
    assert "state" not in [one["name"] for one in house.ls()], "the session ends with the tool"


def test_p4_a_session_outlives_its_harness(house: Installation) -> None:
    place = house.user / "outlives"
    with harness(house, place, operator="tester", name="outlives") as oh:
        oh.run("answer=42")
        oh.process.kill()
    with harness(house, place, operator="tester", name="outlives", keep=True) as oh:
        assert oh.run("echo $answer")["text"] == "42"
        oh.end()
    assert house.ok("run", "outlives", "--", "echo $answer").out == "42\n"
    with harness(house, place, operator="tester", name="outlives") as oh:
        assert "42" not in oh.run("echo $answer", reset=True)["text"], "a new session"
        oh.end()


def test_g2_a_person_decides_and_the_record_tells_them_apart(house: Installation) -> None:
    place = house.user / "task"
    place.mkdir()
    house.ready("task", "--contained", "--cwd", str(place))
    command = "git worktree remove --force gone"
    options = {"operator": "bot", "name": "task", "keep": True, "hold": DEADLINE_S}
    with (
        harness(house, place, **options) as oh,
        holdfast.sync.connect(operator="ann", home=str(house.home)) as ann,
    ):

        def question() -> str:
            (found,) = eventually(ann.approvals.list, "a question")
            return str(found.id)

        held = oh.run(command, timeout=1.0)
        assert held["code"] == -1 and "waits for the approval" in held["shown"]
        ann.approvals.approve(question())
        assert oh.run("")["code"] == 128, "git's own code: this is no repository"
        assert oh.run(command, timeout=1.0)["code"] == -1
        ann.approvals.deny(question())
        denied = oh.run("")
        assert denied["error"] and denied["code"] == 126 and "not run" in denied["shown"]
        assert oh.run(f"{command}-too", timeout=1.0)["code"] == -1
        assert "withdrawn" in oh.run("C-c", is_input=True)["shown"]
        assert ann.approvals.list() == []

        session = ann.sessions.get("task")
        session.run("from=ann", turn="seize")
        waits = oh.run("echo from $from", timeout=1.0)
        assert waits["code"] == -1 and "another operator has the turn" in waits["shown"]
        session.turn.release()
        assert oh.run("")["text"] == "from ann"
        acts = {(one.actor, one.content) for one in session.log()}
        assert acts >= {("ann", "from=ann"), ("bot", "echo from $from")}, acts
        oh.end()
    house.end("task")


def test_g2_an_agent_of_openhands_works_in_a_session(house: Installation) -> None:
    """The agent, its loop and its tools are real; the model is scripted."""
    place, secret = house.user / "agent", "tok-en-12345"
    place.mkdir()
    house.ready("agent", "--contained", "--cwd", str(place))

    def script() -> Script:
        seen = yield Call("terminal", {"command": "echo made > here; (exit 7)"})
        assert "exit code 7" in seen and str(place) in seen, seen
        house.quick("--as", "ann", "seize", "agent")
        house.quick("--as", "ann", "run", "agent", "--", "from=ann")
        house.quick("--as", "ann", "turn", "agent", "hand", "bot")
        seen = yield Call("terminal", {"command": "echo $from; test -n $TOKEN && echo $TOKEN"})
        assert "ann" in seen and secret not in seen and "<secret-hidden>" in seen, seen
        yield "All is done."

    model = Model(script())
    options = {"operator": "bot", "name": "agent", "keep": True}
    with (
        serving(model, socket.create_server(("127.0.0.1", 0))) as url,
        harness(house, place, **options) as oh,
    ):
        ended = oh.ask(model=url, secrets={"TOKEN": secret})
        oh.end()
    if model.failed is not None:
        raise model.failed
    assert ended["status"] == "finished" and (place / "here").read_text() == "made\n"
    entries = house.ok("log", "agent", "--json", "--limit", "100").records
    acts = {(e["actor"], e["content"]) for e in entries}
    assert acts >= {("bot", "echo made > here; (exit 7)"), ("ann", "from=ann")}
    assert secret not in json.dumps(entries)
    house.end("agent")
