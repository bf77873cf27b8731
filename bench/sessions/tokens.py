"""What the tools of three MCP servers cost a model in tokens, for the same task.

    scripts/mcp_peers; python -m bench.sessions.tokens

The task: start a server, run a build with a long output that fails, answer a prompt, correct the
fault, run the build again. Each server gets the calls that its own documentation recommends, by the
official client over stdio, without a route out. The work is the same; the answers are the server's.

    list      the tools as a client sends them to a model: name, description, schema, as compact
              JSON, and the server's instructions
    results   the text of all results of the task; where a result has no text, its structure
    structure the same by clients that give the model the structured part, where there is one

Tokens are an approximation: bytes divided by four.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from bench.report import machine
from tests.support.installation import Installation, installation
from tests.support.simulation.lossy_link import Namespace

PEERS = Path(__file__).resolve().parents[2] / ".cache/mcp-peers"
BYTES_PER_TOKEN = 4
LINES = 2000
TOOL_S = 30.0
LAST = {"offset": -20, "length": 20}  # the last lines of a long output
SERVE = "python3 -m http.server --bind 127.0.0.1 0 >server.log 2>&1 & echo $! >server.pid"
BUILD, ASK, FIX = "sh build.sh", "sh ask.sh", "sed -i s/broken/works/ main.c"
FILES = {
    "main.c": "broken\n",
    "build.sh": f"""i=0
while [ $i -lt {LINES} ]; do
    i=$((i+1)); echo "[$i/{LINES}] compiling module $i of the project"
done
if grep -q broken main.c; then echo "main.c:1: error: broken"; exit 2; fi
echo "build finished"
""",
    "ask.sh": 'printf "name of the release? "\nread name\necho "release $name"\n',
}


@dataclass
class Meter:
    """A connected server; counts the calls and the bytes of their results."""

    session: ClientSession
    calls: int = 0
    text: int = 0
    structure: int = 0
    seen: list[str] = field(default_factory=list)

    async def __call__(self, tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        result = await self.session.call_tool(tool, arguments, read_timeout_seconds=TOOL_S)
        words = "".join(getattr(one, "text", "") for one in result.content)
        structure = result.structured_content or {}
        shown = json.dumps(structure, separators=(",", ":"), ensure_ascii=False)
        self.calls += 1
        self.text += len((words or shown).encode())
        self.structure += len((shown if structure else words).encode())
        self.seen.append(words)
        if result.is_error:
            raise RuntimeError(f"{tool}: {words[:300]}")
        return words, structure


Task = Callable[[Meter], Awaitable[None]]


async def holdfast(call: Meter) -> None:
    await call("run", command=SERVE)
    assert (await call("run", command=BUILD))[1]["exit_code"] == 2
    asks = (await call("run", command=ASK))[1]
    assert asks["state"] == "needs_input", asks
    await call("send", text="one", keys=["Enter"])
    assert (await call("read", ref=asks["ref"], wait_s=5))[1]["exit_code"] == 0
    assert (await call("run", command=FIX))[1]["exit_code"] == 0
    assert (await call("run", command=BUILD))[1]["exit_code"] == 0


async def libtmux(call: Meter) -> None:
    """`run_command` waits for the exit code; a prompt needs `send_keys` and `wait_for_text`."""
    made = (await call("create_session", session_name="work"))[1]
    pane = {"pane_id": made["active_pane_id"]}
    await call("run_command", command=SERVE, **pane)
    assert (await call("run_command", command=BUILD, **pane))[1]["exit_status"] == 2
    await call("send_keys", keys=ASK, **pane)
    await call("wait_for_text", patterns=["name of the release"], **pane)
    await call("send_keys", keys="one", **pane)
    await call("wait_for_text", patterns=["release one"], **pane)
    assert (await call("run_command", command=FIX, **pane))[1]["exit_status"] == 0
    assert (await call("run_command", command=BUILD, **pane))[1]["exit_status"] == 0


async def commander(call: Meter) -> None:
    """One shell for all: its tools keep programs, and each `start_process` is a new shell."""
    shell = (await call("start_process", command="bash --norc", timeout_ms=2000))[0]
    found = re.search(r"PID (\d+)", shell)
    assert found is not None, shell
    at = {"pid": int(found.group(1)), "timeout_ms": 8000}

    async def ends(text: str, *, line: str) -> None:
        words = (await call("interact_with_process", input=line, **at))[0]
        for _ in range(5):
            if text in words:
                return
            words = (await call("read_process_output", **at, **LAST))[0]
        raise RuntimeError(f"{line}: no {text!a} in {words[-300:]!a}")

    await call("interact_with_process", input=SERVE, **at)
    await ends("exit=2", line=f"{BUILD}; echo exit=$?")
    await ends("name of the release?", line=ASK)
    await ends("release one", line="one")
    await ends("exit=0", line=f"{FIX}; echo exit=$?")
    await ends("build finished", line=f"{BUILD}; echo exit=$?")


@dataclass(frozen=True)
class Server:
    task: Task
    command: tuple[str, ...]
    state: str = ""  # the file that says which release is installed


SERVERS = {
    "holdfast": Server(holdfast, (sys.executable, "-m", "holdfast", "mcp", "--as", "bot")),
    "libtmux-mcp": Server(libtmux, (str(PEERS / "tmux/bin/libtmux-mcp"),), "tmux"),
    "desktop-commander": Server(
        commander,
        (str(PEERS / "commander/node_modules/.bin/desktop-commander"), "--no-onboarding"),
        "commander",
    ),
}


def project(place: Path) -> Path:
    place.mkdir()
    for name, text in FILES.items():
        (place / name).write_text(text)
    return place


async def measured(server: Server, place: Path, environ: Mapping[str, str]) -> dict[str, int]:
    program = StdioServerParameters(
        command=server.command[0], args=[*server.command[1:]], env=dict(environ), cwd=str(place)
    )
    with Path(os.devnull).open("w") as quiet:  # noqa: ASYNC230
        async with (
            stdio_client(program, errlog=quiet) as streams,
            ClientSession(*streams) as session,
        ):
            began = await session.initialize()
            tools = (await session.list_tools()).tools
            listed = [
                {"name": t.name, "description": t.description, "input_schema": t.input_schema}
                for t in tools
            ]
            size = len(json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode())
            call = Meter(session)
            await server.task(call)
            return {
                "tools": len(tools),
                "list": size + len((began.instructions or "").encode()),
                "calls": call.calls,
                "results": call.text,
                "structure": call.structure,
            }


def run(name: str, house: Installation) -> dict[str, int]:
    server, place = SERVERS[name], project(house.user / name)
    environ = {**house.env, "TMUX_TMPDIR": str(house.base)}
    if name == "holdfast":
        house.people("bot", rights="execute", kind="agent")
        house.ready("work", "--contained", "--cwd", str(place))
        words = (*server.command, "--session", "work")
        server = Server(server.task, words)
    try:
        with Namespace() as alone, alone.inside():
            return asyncio.run(measured(server, place, environ))
    finally:
        pid = place / "server.pid"
        if name != "holdfast" and pid.exists():  # ours ends with its session
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        if name == "libtmux-mcp":
            subprocess.run(["tmux", "kill-server"], env=environ, capture_output=True)


def versions() -> dict[str, str]:
    return {
        name: (PEERS / f"{server.state}.state").read_text().strip()
        for name, server in SERVERS.items()
        if server.state and (PEERS / f"{server.state}.state").exists()
    }


def main() -> int:
    before, there = machine(), versions()
    print(f"{before['system']}, {before['cpus']} processors. Tokens: bytes / {BYTES_PER_TOKEN}.")
    print(", ".join(there.values()), end="\n\n")
    print("| server | tools | list, bytes | list, tokens | calls | results, bytes |", end="")
    print(" results, tokens | structure, bytes |\n|---|" + "---:|" * 7)
    with (
        tempfile.TemporaryDirectory(prefix="hbench", dir="/tmp") as top,
        installation(Path(top)) as house,
    ):
        for name, server in SERVERS.items():
            if server.state and (name not in there or not shutil.which("tmux")):
                print(f"{name}: not installed, see scripts/mcp_peers", file=sys.stderr)
                continue
            one = run(name, house)
            tokens = {key: one[key] // BYTES_PER_TOKEN for key in ("list", "results")}
            row = (one["tools"], one["list"], tokens["list"], one["calls"], one["results"])
            cells = (*row, tokens["results"], one["structure"])
            print(f"| {name} | {' | '.join(f'{n:,}' for n in cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
