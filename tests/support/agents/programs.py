"""The real programs of coding agents, which `scripts/agents` installs, against the scripted model.

An agent runs in a network namespace with nothing but loopback, where the model listens. Its account
is a new directory. The user's consent to the directory is given here, as its dialog would.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.agents.model import Model, serving
from tests.support.installation import DEADLINE_S
from tests.support.simulation.lossy_link import Namespace

ROOT = Path(__file__).resolve().parents[3]
LIFE_S = 3 * DEADLINE_S  # of an agent, from its start to its end


@dataclass(frozen=True)
class Program:
    """`agent`: as `agent add` calls it. `shell`: the tool for commands that it has by itself."""

    agent: str
    shell: str
    words: Callable[[str], list[str]]  # of the model's address
    environ: Callable[[str], dict[str, str]] = lambda url: {}
    files: Callable[[Path], Mapping[str, str]] = lambda place: {}  # of the account
    offers: bool = True  # lists the tools in its request

    @property
    def place(self) -> Path:
        return ROOT / f".cache/agents/{self.agent}"


def _claude(url: str) -> dict[str, str]:
    quiet = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", quiet: "1"}


def _claude_trust(place: Path) -> dict[str, str]:
    projects = {str(place): {"hasTrustDialogAccepted": True}}
    return {".claude.json": json.dumps({"projects": projects})}


def _codex(url: str) -> list[str]:
    provider = f'{{name="loop",base_url="{url}/v1",wire_api="responses",env_key="LOOP_KEY"}}'
    options = ["-c", 'model_provider="loop"', "-c", f"model_providers.loop={provider}"]
    return ["exec", "--skip-git-repo-check", "--trust", *options]


def _opencode(url: str) -> dict[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    models = {"scripted": {"tool_call": True}}
    loop = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    settings = {"provider": {"loop": loop}, "model": "loop/scripted"}
    quiet = dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE"), "1")
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), **quiet}


PROGRAMS = {
    "claude": Program("claude", "Bash", lambda url: ["-p"], _claude, _claude_trust),
    "codex": Program(
        "codex",
        "exec_command",
        lambda url: [*_codex(url), "-m", "scripted"],
        lambda url: {"LOOP_KEY": "none"},
    ),
    # Its own model: a single tool runs JavaScript, which calls the other tools.
    "codex-script": Program(
        "codex", "exec_command", _codex, lambda url: {"LOOP_KEY": "none"}, offers=False
    ),
    "opencode": Program("opencode", "bash", lambda url: ["run"], _opencode),
}


def needed(name: str) -> Program:
    """The program, or a skip with the reason."""
    program = PROGRAMS[name]
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    if not (program.place / "state").exists():
        pytest.skip(f"{program.agent} is not installed: `scripts/agents` prints the reason")
    return program


def play(program: Program, model: Model, place: Path, account: Path) -> str:
    """Runs the agent in the directory until it ends by itself; gives what it printed.

    The script may kill the agent (`Model.kill`). Play again with the same account for a restart.
    """
    account.mkdir(exist_ok=True)
    for path, text in program.files(place).items():
        (account / path).write_text(text)
    with Namespace() as alone:
        with alone.inside():
            listening = socket.create_server(("127.0.0.1", 0))
        with serving(model, listening) as url:
            return _played(program, model, place, account, url, alone)


def _played(
    program: Program, model: Model, place: Path, account: Path, url: str, alone: Namespace
) -> str:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(account),
        "PWD": str(place),
        "LANG": "C.UTF-8",
        **program.environ(url),
    }
    with alone.inside():
        model.started = time.monotonic()
        process = subprocess.Popen(
            [program.place / f"node_modules/.bin/{program.agent}", *program.words(url), "Begin."],
            cwd=place,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        model.process = process.pid
    try:
        printed, _ = process.communicate(timeout=LIFE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"{program.agent} did not end: {printed[-3000:]}") from model.failed
    if model.failed is not None:
        raise AssertionError(f"the script failed; {printed[-3000:]}") from model.failed
    assert process.returncode == (-signal.SIGKILL if model.killed else 0), printed[-3000:]
    return printed
