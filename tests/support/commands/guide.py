"""Follows a guide like its reader: types the lines of its `sh` blocks into real terminals.

- A block marked `sh` is typed into the first terminal, `sh second` into the second one. Each line
  waits until the terminal asks for a line: a prompt, or a question like `[y/N]`.
- `# press C-\\ d` at the end of a line presses those keys, which detach, after the line's answer.
- A `text` block after a block is output that must appear there, in this order. `...` in a line
  stands for any text. The terminal is wide, so that no line wraps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.installation import Installation, Terminal

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
READY = re.compile(r"^([\w@:~/.-]*[$#]|.*\[y/N\]|>) $")
PRESS = re.compile(r"# press ([^;,]+)")
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P^_X][^\x1b\a]*(?:\x1b\\|\a)|[ -/]*[0-~])")
BLOCK = re.compile(r"^( *)```(\w*) ?(\w*)\n(.*?)^ *```$", re.M | re.S)
Fill = Mapping[str, str | Callable[[], str]]


def section(guide: str, heading: str = "") -> str:
    """A guide, or the part below a heading of the second level."""
    text = (GUIDES / guide).read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, (guide, heading)
    return text


def blocks(text: str, language: str = "sh") -> list[str]:
    return [body for _, lang, _, body in BLOCK.findall(text) if lang == language]


def keys(named: str) -> bytes:
    """`C-\\ d` as bytes."""
    return b"".join(
        bytes([ord(key[2].upper()) ^ 64]) if key.startswith("C-") else key.encode()
        for key in named.split()
    )


class Reader:
    """Two terminals of a reader, and the words to fill in where a guide says so."""

    def __init__(self, home: Installation, fill: Fill | None = None) -> None:
        self._home, self._fill = home, fill or {}
        self._terminals: dict[str, Terminal] = {}

    def follow(self, text: str) -> None:
        since = (self._terminal(""), 0)
        found = BLOCK.findall(text)
        following = [language for _, language, _, _ in found[1:]] + [""]
        for (indent, language, which, body), follower in zip(found, following, strict=True):
            lines = [line.removeprefix(indent) for line in body.splitlines()]
            if language == "sh":
                terminal = self._terminal(which)
                since = (terminal, len(terminal.output))
                for line in lines:
                    self._type(terminal, line)
                if follower != "text":  # else its output is awaited, because the line may be held
                    self._ready(terminal)
            elif language == "text":
                self._compare(*since, lines)
        for terminal in self._terminals.values():
            self._ready(terminal)

    def _terminal(self, name: str) -> Terminal:
        if name not in self._terminals:
            bash = ["bash", "--norc", "--noprofile"]
            self._terminals[name] = self._home.spawn(bash, (160, 50), {"PS1": "$ "})
        return self._terminals[name]

    @staticmethod
    def _ready(terminal: Terminal) -> None:
        def asks() -> bool:
            column, row = terminal.cursor
            return bool(READY.match(terminal.rows()[row].ljust(column)[:column]))

        terminal.until(asks, "prompt or question")

    def _type(self, terminal: Terminal, line: str) -> None:
        self._ready(terminal)
        press = PRESS.search(line)
        for word, value in self._fill.items():
            if word in line:
                line = line.replace(word, value if isinstance(value, str) else value())
        if command := line.partition("# ")[0].rstrip():
            begin = len(terminal.output)
            terminal.send(command + "\r")
            terminal.expect(rb"\n", begin)
        if press:
            self._ready(terminal)
            begin = len(terminal.output)
            terminal.send(keys(press[1]))
            terminal.expect(rb"detached from .*\n", begin)

    @staticmethod
    def _compare(terminal: Terminal, since: int, lines: list[str]) -> None:
        wanted = [
            re.compile(".*".join(r"\s+".join(map(re.escape, part.split())) for part in line))
            for line in (line.split("...") for line in lines)
        ]

        def shown() -> bool:
            output = ESCAPES.sub("", bytes(terminal.output[since:]).decode("utf-8", "replace"))
            rows = iter(output.replace("\r", "").splitlines())
            return all(any(one.search(row) for row in rows) for one in wanted)

        terminal.until(shown, f"output like {lines}")
