"""Confused deputies (P3): one operator shapes the shell, another runs into it. The record names both, the gate is told before, and a policy can refuse."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.harness import Installation, eventually, installation

POLICY = """
version = 1
extends = "default"
[[rule]]
name = "nothing of eve's"
verdict = "refuse"
because = "eve made it so"
who = { operator = ["carl"] }
when = { shaped_by = ["eve"] }
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("eve", "bob", "carl")
        made.people("bot", rights="execute,observe,input", kind="agent")
        (made.user / "evil").mkdir()
        program = made.user / "evil" / "hello"
        program.write_text("#!/bin/sh\necho evil\n")
        program.chmod(0o755)
        policy = made.home / "config" / "policy.toml" if False else None
        assert policy is None
        yield made


def free(hf: Installation, session: str) -> None:
    holder = hf.get(session)["turn"]
    if holder is not None:
        hf.ok("--as", holder["holder"], "turn", session, "release")


def run(hf: Installation, session: str, who: str, text: str) -> str:
    free(hf, session)
    return hf.ok("--as", who, "run", session, "--", text).out


def last(hf: Installation, session: str, who: str, text: str | None = None) -> dict[str, Any]:
    """The record of what they intended last."""
    found: dict[str, Any] = [e for e in hf.ok("log", session, "--json").records
                             if e["actor"] == who and e["phase"] == "intent" and (text is None or e["content"] == text)][-1]
    return found


CASES = {
    "alias": ("alias ls='echo evil'", "ls", ("alias", "ls")),
    "function": ("ls() { echo evil; }", "ls", ("function", "ls")),
    "path": ("PATH=$PWD/evil:$PATH", "hello", ("path", "{user}/evil")),
    "preload": ("export LD_PRELOAD=/nonexistent.so", "true; env true", ("preload", "LD_PRELOAD")),
    "hook": ("PROMPT_COMMAND=true", "true", ("hook", "PROMPT_COMMAND")),
    "variable": ("export TARGET=/evil", "env true", ("variable", "TARGET")),
    "named": ("target=/evil", "echo $target", ("variable", "target")),
    "trap": ("trap 'true evil' DEBUG", "true", ("trap", "DEBUG")),
    "option": ("set -o noglob", "true", ("option", "noglob")),
    "cwd": ("cd evil", "true", ("cwd", "{user}/evil")),
}


@pytest.mark.parametrize("case", CASES)
def test_p3_what_one_staged_and_another_ran_into_names_both(house: Installation, case: str) -> None:
    staged, text, (kind, name) = CASES[case]
    name = name.replace("{user}", str(house.user))
    house.new(case, "--cwd", str(house.user), "--", "bash")
    run(house, case, "bob", "true")
    assert last(house, case, "bob")["originators"] == []
    run(house, case, "eve", staged)
    run(house, case, "bob", text)
    entry = last(house, case, "bob", text)
    assert entry["originators"] == ["eve"], entry
    assert [(s["kind"], s["name"], s["actor"]) for s in entry["facts"]["shaped"]] == [(kind, name, "eve")], entry
    act = last(house, case, "eve")
    assert entry["facts"]["shaped"][0]["act"] is not None and act["originators"] == []
    verified = json.loads(house.ok("log", "verify", case, "--json").out)
    assert verified["ok"] is True, verified
    house.end(case)
