"""A day of a real agent, with a person's terminal and a program on the same session (M, P4, G2).

The agent works, a person corrects its work, a second operator approves, and processes are killed:
the agent and the host. The model is scripted; all other parts are the programs that people install.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import holdfast
from tests.support.agents.model import Call, Model, Script
from tests.support.agents.programs import needed, play
from tests.support.agents.steps import (
    BEGINNING,
    TREE,
    approve,
    body,
    decided,
    polled,
    repository,
    run,
)
from tests.support.installation import DEADLINE_S, Installation, Terminal, eventually, installation

pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")

SERVER = """import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(open("page", "rb").read())
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
open("port.new", "w").write(str(server.server_port)); os.rename("port.new", "port")
server.serve_forever()
"""
FETCH = """import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:" + open("port").read()).read().decode(), end="")
"""
# Follows the output from its first byte into a file; runs each line of its input as a command.
PROGRAM = """import asyncio, sys, holdfast
async def main(name, path):
    async with holdfast.connect(operator="ci") as client:
        session = await client.sessions.get(name)
        async def follow():
            with open(path, "wb", buffering=0) as file:
                async for chunk in session.read(0, follow=True):
                    assert not chunk.gap
                    file.write(chunk.data)
        following = asyncio.create_task(follow())
        while line := await asyncio.to_thread(sys.stdin.readline):
            done = await session.run(line.strip())
            await session.turn.release()
            print(done.exit_code, flush=True)
        following.cancel()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ci", rights="execute", kind="service")
        yield made


class Day:
    """The project, its session, and the two operators beside the agent."""

    def __init__(self, house: Installation, name: str) -> None:
        self.house, self.program = house, needed(name)
        self.place = house.user / f"day-{name}"
        self.account = house.base / f"account-{name}"
        repository(self.place)
        for directory in (self.place / "wrong", self.place / "right"):
            directory.mkdir()
        (self.place / "server.py").write_text(SERVER)
        (self.place / "fetch.py").write_text(FETCH)
        added = ("agent", "add", self.program.agent, "--cwd", str(self.place), "--json")
        made = house.ok(*added).json
        self.session, self.agent = made["session"], made["name"]
        house.wait(self.session, "idle")
        os.mkfifo(self.place / "gate")
        self.server, self.ref = 0, ""
        self.terminal: Terminal = house.attach(self.session)
        self.terminal.see(self.place.name)
        self.followed = house.base / f"followed-{name}"
        self.ci = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.session, str(self.followed)],
            env=house.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def person(self, *words: str) -> None:
        self.house.ok(*words[:1], self.session, *words[1:])

    def service(self, command: str) -> str:
        """The exit code of a command of the program on the SDK."""
        assert self.ci.stdin is not None and self.ci.stdout is not None
        self.ci.stdin.write(f"{command}\n")
        self.ci.stdin.flush()
        return self.ci.stdout.readline().strip()

    def approve(self, act: str) -> None:
        assert approve(self.house, self.session, self.agent, TREE) == act

    def open_gate(self) -> None:
        with open(self.place / "gate", "w") as gate:
            gate.write("open\n")

    def play(self, script: Script) -> tuple[Model, str]:
        model = Model(script)
        return model, play(self.program, model, self.place, self.account)

    def close(self) -> None:
        assert self.ci.stdin is not None
        self.ci.stdin.close()
        assert self.ci.wait(DEADLINE_S) == 0
        self.terminal.leave()
        self.house.end(self.session)


@pytest.fixture(params=["claude", "codex"])
def day(house: Installation, request: pytest.FixtureRequest) -> Iterator[Day]:
    made = Day(house, request.param)
    try:
        yield made
    finally:
        made.close()


async def output(house: Installation, session: str) -> bytes:
    """All output of the session, as a new client reads it."""
    async with holdfast.connect(home=str(house.home), operator="tester") as client:
        found = await client.sessions.get(session)
        return b"".join([chunk.data async for chunk in found.read(0)])


def test_m_a_day_of_an_agent_with_a_person_and_a_program(day: Day) -> None:
    house, place, agent = day.house, day.place, day.agent
    model: Model

    def morning() -> Script:
        began = body((yield run("cd wrong; export MODE=fast; echo draft > ../page")))
        assert (began["state"], began["exit_code"]) == ("done", 0), began
        served = body((yield run("(cd ..; exec python3 server.py) &")))
        assert served["exit_code"] == 0, served
        port = int(eventually((place / "port").read_text, "the port of the server"))
        found = body((yield Call("graph", {"port": port})))
        (server,) = found["processes"]
        day.server = server["pid"]

        day.person("seize")
        look = "(pwd; echo $MODE) > ../seen; cd ..; python3 fetch.py >> seen"
        waits = body((yield run(look, wait_s=1)))
        assert waits["state"] == "waiting_for_turn", waits
        day.terminal.send("cd ../right\r")
        day.terminal.send("export MODE=careful; echo final > ../page\r")
        eventually(lambda: (place / "page").read_text() == "final\n", "the person's correction")
        day.person("turn", "hand", agent)
        after = yield from polled(waits["ref"])
        assert next(iter(after)) == "changed_by_others", "the result begins with the changes"
        changed = "\n".join(after["changed_by_others"])
        for fact in ("tester: typed", "tester's variable MODE", "tester's change of directory"):
            assert fact in changed, changed
        assert (place / "seen").read_text() == f"{place}/right\ncareful\nfinal\n", after

        assert body((yield Call("turn", {"do": "release"})))["holder"] is None
        assert day.service("grep -c final page > checked") == "0"

        held = body((yield run(TREE, intent="clean up")))
        assert held["state"] == "held" and (place / "tree").exists(), held
        day.approve("run")
        again = yield from polled(held["ref"], held["approval"])
        assert again["state"] == "held", "the person's variable is no part of the approved text"
        day.approve("exec")
        done = yield from polled(held["ref"], again["approval"])
        assert (done["state"], done["exit_code"]) == ("done", 0), done
        assert not (place / "tree").exists()

        slow = body((yield run("cat gate >> effects; (exit 3)", wait_s=1)))
        assert slow["state"] == "running", slow
        os.kill(house.host_pid, signal.SIGKILL)
        day.open_gate()
        over = yield from polled(slow["ref"])
        assert (over["state"], over["exit_code"]) == ("done", 3), over

        last = body((yield run("cat gate >> effects; (exit 5)", wait_s=1)))
        assert last["state"] == "running", last
        day.ref = last["ref"]
        model.kill()
        yield "killed"

    model = Model(morning())
    play(day.program, model, place, day.account)

    def evening() -> Script:
        still = body((yield Call("read", {"ref": day.ref})))
        assert (still["state"], still["exit_code"]) == ("running", None), still
        day.open_gate()
        over = yield from polled(day.ref)
        assert (over["state"], over["exit_code"]) == ("done", 5), over
        same = body((yield run("pwd; echo $MODE; cat effects; python3 fetch.py")))
        assert same["output"] == f"{place}\ncareful\nopen\nopen\nfinal\n", same
        found = body((yield Call("graph", {"port": int((place / "port").read_text())})))
        assert [one["pid"] for one in found["processes"]] == [day.server], "the same server"
        yield "The day is over."

    assert "The day is over." in day.play(evening())[1]

    day.person("seize")
    day.terminal.send("echo attached-$MODE\r")
    day.terminal.see("attached-careful")
    whole = asyncio.run(output(house, day.session))
    eventually(lambda: day.followed.read_bytes() == whole, "all output, once, at the program")

    export = house.base / f"record-{day.program.agent}"
    export.write_bytes(house.ok("log", "export", day.session).raw)
    house.ok("log", "verify", str(export))
    mine, person, program = (agent, "mcp"), ("tester", "cli"), ("ci", "sdk")
    assert (
        decided(house, day.session)
        == [
            (mine, "command", "allow", "cd wrong; export"),
            (mine, "command", "allow", "(cd ..; exec pyt"),
            (person, "seize", "allow", ""),
            (mine, "command", "refuse", "(pwd; echo $MODE"),  # it waits for the turn
            (mine, "turn", "allow", '{"act":"request"'),
            (person, "turn", "allow", '{"act":"hand","t'),
            (mine, "command", "allow", "(pwd; echo $MODE"),
            (mine, "turn", "allow", '{"act":"release"'),
            (program, "command", "allow", "grep -c final pa"),
            (program, "turn", "allow", '{"act":"release"'),
            (mine, "command", "hold", TREE[:BEGINNING]),
            (person, "approve", None, ""),
            (mine, "command", "allow", TREE[:BEGINNING]),
            (person, "approve", None, ""),
            (mine, "command", "allow", "cat gate >> effe"),
            (mine, "command", "allow", "cat gate >> effe"),
            (mine, "command", "allow", "pwd; echo $MODE;"),
            (person, "seize", "allow", ""),
        ]
    )
