"""Coding agents and their project configuration: a table, and how its files are written.

A file that exists is never changed. It is complete if it has every entry of ours, wherever the user
put them; otherwise the user merges our text.
"""

from __future__ import annotations

import json
import os
import tomllib
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final


class Agent(NamedTuple):
    """`files`: texts by path below the directory; the last one switches the agent's shell off."""

    title: str
    files: Mapping[str, str]
    until: str = ""  # when the agent reads the last file, if not at once


# In the texts $COMMAND is the program, $ARGS its arguments, $WORDS both, $ENV the environment. The
# agent does not ask the user before it calls our tools: the policy decides about each act.
AGENTS: Final = {
    "claude": Agent(
        "Claude Code",
        {
            # alwaysLoad: the tools are part of the first request instead of a search.
            ".mcp.json": """\
{
  "mcpServers": {
    "holdfast": {
      "type": "stdio",
      "command": $COMMAND,
      "args": $ARGS,
      "env": $ENV,
      "alwaysLoad": true
    }
  }
}
""",
            ".claude/settings.json": """\
{
  "permissions": {
    "allow": ["mcp__holdfast"],
    "deny": ["Bash"]
  },
  "enabledMcpjsonServers": ["holdfast"]
}
""",
        },
    ),
    "codex": Agent(
        "Codex",
        {
            ".codex/config.toml": """\
[features]
shell_tool = false
unified_exec = false

[mcp_servers.holdfast]
command = $COMMAND
args = $ARGS
env = $ENV
default_tools_approval_mode = "approve"
"""
        },
        " once you trust the directory; before that Codex ignores the file, and its shell is on",
    ),
    "opencode": Agent(
        "opencode",
        {
            "opencode.json": """\
{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "holdfast": {
      "type": "local",
      "command": $WORDS,
      "environment": $ENV
    }
  },
  "permission": {
    "bash": "deny"
  }
}
"""
        },
    ),
}


def texts(agent: Agent, command: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The files for this command. JSON strings and lists are valid in TOML too."""
    found = {}
    for path, text in agent.files.items():
        between = " = " if path.endswith(".toml") else ": "
        pairs = ", ".join(f"{_shown(k)}{between}{_shown(v)}" for k, v in environ.items())
        for mark, value in (
            ("$COMMAND", _shown(command[0])),
            ("$ARGS", _shown(command[1:])),
            ("$WORDS", _shown(command)),
            ("$ENV", f"{{{pairs}}}"),
        ):
            text = text.replace(mark, value)
        found[path] = text
    return found


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def place(directory: str, path: str, text: str) -> str:
    """Write the file unless it exists: `written`, `complete`, or `merge` for one without ours."""
    full = os.path.join(directory, path)
    parent = os.path.dirname(full)
    if parent != directory and not os.path.lexists(parent):
        os.mkdir(parent)
    if os.path.islink(parent) and parent != directory:
        return "merge"  # code of a session can have made the link, to any directory
    try:
        fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return "complete" if _has(full, text) else "merge"
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return "written"


def _has(full: str, text: str) -> bool:
    """Whether the file has every entry of the text."""
    parse = tomllib.loads if full.endswith(".toml") else json.loads
    try:
        with open(full, encoding="utf-8") as file:
            return _covers(parse(file.read()), parse(text))
    except (OSError, ValueError):  # a link to nowhere, comments in JSON
        return False


def _covers(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _covers(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(found, list) and all(one in found for one in wanted)
    return bool(found == wanted)


def remove(directory: str, path: str, written: str) -> bool:
    """Remove a file with this content. False: it has changed, or is not there."""
    full = os.path.join(directory, path)
    try:
        with open(full, encoding="utf-8") as file:
            if file.read() != written:
                return False
        os.unlink(full)
    except (OSError, UnicodeDecodeError):
        return False
    return True
