"""Three real agents in roles and a person who corrects them, on one session (M, A6, P3, P4).

The planner hands the turn to the implementer, a person takes it over and corrects, and the verifier
ends the work. Each agent is another program; all three run at once. The models are scripted.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents.model import Call, Model, Script
from tests.support.agents.programs import needed, play
from tests.support.agents.steps import TREE, approve, body, decided, polled, repository, run
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

CAST = {"planner": "claude", "implementer": "codex", "verifier": "opencode"}
SESSION = "build"
SERVE = "python3 -m http.server --bind 127.0.0.1 0 >port 2>&1 &"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        yield made


@pytest.fixture
def place(house: Installation) -> Iterator[Path]:
    """The project, in a session that all three agents may use."""
    found = house.user / "project"
    repository(found)
    house.ready(SESSION, "--contained", "--cwd", str(found))
    for role, name in CAST.items():
        words = ("--name", role, "--session", SESSION, "--cwd", str(found))
        house.ok("agent", "add", needed(name).agent, *words)
    yield found
    house.end(SESSION)


def waits(house: Installation, role: str) -> None:
    """Until this operator waits for the turn."""

    def asked() -> bool:
        turn = house.ask("turn", session=SESSION, act="show", wait=0.0, to=None)["turn"]
        return turn is not None and role in turn["waiting"]

    eventually(asked, f"the request of the {role} for the turn")


def when_handed(command: str) -> Generator[Call, str, dict[str, Any]]:
    """Runs a command while another operator has the turn; gives its result."""
    first = body((yield run(command, wait_s=1)))
    found = first if first["state"] == "done" else (yield from polled(first["ref"]))
    assert (found["state"], found.get("exit_code")) == ("done", 0), (command, found)
    return found


def contains(result: dict[str, Any], *facts: str) -> None:
    """The result begins with what changed, and each of these facts is part of it."""
    assert next(iter(result)) == "changed_by_others", result
    changed = "\n".join(result["changed_by_others"])
    for fact in facts:
        assert fact in changed, (fact, changed)
    assert "VERDICT" not in changed or "echo works" in changed, "a command that waits is no change"


def test_m_three_agents_in_roles_and_a_person_who_corrects_them(
    house: Installation, place: Path
) -> None:
    planned, wrong, seized = threading.Event(), threading.Event(), threading.Event()

    def planner() -> Script:
        plan = "mkdir app; cd app; export STAGE=plan; echo 'say hello' > PLAN"
        done = body((yield run(plan, intent="plan")))
        assert (done["state"], done["exit_code"]) == ("done", 0), done
        planned.set()
        waits(house, "implementer")
        handed = body((yield Call("turn", {"do": "hand", "to": "implementer"})))
        assert handed["holder"] == "implementer", handed
        last = yield from when_handed("cat VERDICT; echo $STAGE")
        contains(
            last,
            "verifier: command cd app; echo works",
            "verifier: turn",
            "tester's variable STAGE",
        )
        assert last["output"] == "works\ncorrected\n", last
        yield "The planner is done."

    def implementer() -> Script:
        first = yield from when_handed("pwd; echo $STAGE; cat PLAN")
        contains(
            first,
            "planner: command mkdir app",
            "planner's variable STAGE",
            "planner's change of directory",
        )
        assert first["output"] == f"{place}/app\nplan\nsay hello\n", first
        made = body((yield run("echo 'echo hullo' > hello.sh", intent="implement")))
        assert made["exit_code"] == 0, made
        served = body((yield run(SERVE, intent="serve")))
        assert served["exit_code"] == 0, served
        wrong.set()
        assert seized.wait(DEADLINE_S)
        again = yield from when_handed("sh hello.sh; echo $STAGE")
        contains(again, "tester: seize", "tester: typed", "tester's variable STAGE")
        assert again["output"] == "hello\ncorrected\n", "it goes on from the corrected state"
        waits(house, "verifier")
        handed = body((yield Call("turn", {"do": "hand", "to": "verifier"})))
        assert handed["holder"] == "verifier", handed
        yield "The implementer is done."

    def verifier() -> Script:
        first = yield from when_handed("sh hello.sh | tee SEEN")
        contains(
            first,
            "planner: command mkdir app",
            "implementer: command echo 'echo hullo'",
            "tester: typed",
            "tester's variable STAGE",
        )
        assert first["output"] == "hello\n", first
        listening = body((yield Call("graph", {})))
        (port,) = {one["pid"] for one in listening["listens"]}
        (server,) = [one for one in listening["processes"] if one["pid"] == port]
        assert server["operator"] == "implementer", server
        held = body((yield run(f"cd ..; {TREE}", intent="clean up")))
        known = None
        while held["state"] == "held":
            known = held["approval"]
            assert known and (place / "tree").exists(), held
            approve(house, SESSION, "verifier", TREE)
            held = yield from polled(held["ref"], known)
        assert (held["state"], held["exit_code"]) == ("done", 0) and known, held
        assert not (place / "tree").exists()
        verdict = body((yield run("cd app; echo works > VERDICT")))
        assert verdict["exit_code"] == 0, verdict
        waits(house, "planner")
        handed = body((yield Call("turn", {"do": "hand", "to": "planner"})))
        assert handed["holder"] == "planner", handed
        yield "The verifier is done."

    models: dict[str, Model] = {}
    terminal = house.attach(SESSION)
    terminal.see(place.name)
    with ThreadPoolExecutor(len(CAST)) as threads:

        def begin(role: str, script: Script) -> Future[str]:
            models[role] = Model(script)
            account = house.base / f"account-{role}"
            return threads.submit(play, needed(CAST[role]), models[role], place, account)

        def reached(event: threading.Event, what: str) -> None:
            """Waits for the event, or for the failure of an agent."""

            def happened() -> bool:
                for one in agents.values():
                    if one.done() and one.exception() is not None:
                        one.result()
                return event.is_set()

            eventually(happened, what)

        agents = {"planner": begin("planner", planner())}
        reached(planned, "the plan")
        agents["implementer"] = begin("implementer", implementer())
        reached(wrong, "the wrong implementation")
        agents["verifier"] = begin("verifier", verifier())
        waits(house, "verifier")
        house.ok("seize", SESSION)
        seized.set()
        waits(house, "implementer")
        terminal.send("echo 'echo hello' > hello.sh; export STAGE=corrected\r")
        fixed = place / "app/hello.sh"
        eventually(lambda: fixed.read_text() == "echo hello\n", "the person's correction")
        house.ok("turn", SESSION, "hand", "implementer")
        try:
            for agent in as_completed(agents.values()):
                agent.result()
        except AssertionError as e:
            e.add_note("\n".join(map(str, decided(house, SESSION))))
            e.add_note(house.screen(SESSION))
            for role, agent in agents.items():
                if not agent.done():
                    models[role].kill()
            raise
        for role, agent in agents.items():
            assert f"The {role} is done." in agent.result()
    terminal.leave()

    export = house.base / "record"
    export.write_bytes(house.ok("log", "export", SESSION).raw)
    house.ok("log", "verify", str(export))
    all_acts = decided(house, SESSION)
    acts = [act for act in all_acts if act[2] != "refuse"]
    assert {act[0] for act in all_acts if act[2] == "refuse"} == {(role, "mcp") for role in CAST}
    done = [act for act in acts if act[3] != '{"act":"request"']  # made at any time, any number
    person = ("tester", "cli")
    mine = {role: (role, "mcp") for role in CAST}
    assert done == [
        (mine["planner"], "command", "allow", "mkdir app; cd ap"),
        (mine["planner"], "turn", "allow", '{"act":"hand","t'),
        (mine["implementer"], "command", "allow", "pwd; echo $STAGE"),
        (mine["implementer"], "command", "allow", "echo 'echo hullo"),
        (mine["implementer"], "command", "allow", "python3 -m http."),
        (person, "seize", "allow", ""),
        (person, "turn", "allow", '{"act":"hand","t'),
        (mine["implementer"], "command", "allow", "sh hello.sh; ech"),
        (mine["implementer"], "turn", "allow", '{"act":"hand","t'),
        (mine["verifier"], "command", "allow", "sh hello.sh | te"),
        (mine["verifier"], "command", "hold", "cd ..; git workt"),
        (person, "approve", None, ""),
        (mine["verifier"], "command", "allow", "cd ..; git workt"),
        (person, "approve", None, ""),
        (mine["verifier"], "command", "allow", "cd app; echo wor"),
        (mine["verifier"], "turn", "allow", '{"act":"hand","t'),
        (mine["planner"], "command", "allow", "cat VERDICT; ech"),
    ]
    log = ("log", SESSION, "--json", "--limit", "200")
    entries = house.ok(*log).records
    assert {e["actor"] for e in entries} == {"tester", *CAST}, "no other operator acted"
    assert {e["actor"] for e in entries if e["kind"] == "keys"} == {"tester"}
    for role in CAST:
        own = [e["seq"] for e in entries if e["actor"] == role]
        shown = house.ok(*log, "--agent", role).records
        assert {e["seq"] for e in shown} >= set(own) and own
