"""Writes docs/protocol.md from the tables at the top of wire/*.py, so that the page cannot drift. `--check` only compares."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "protocol.md"
PARTS = (("Client and host", "frames"), ("Who a client is", "hello"), ("Host and keeper", "keeper"), ("Asking for a keeper", "spawning"), ("The ring", "ring"), ("The screen snapshot", "snapshot"),
         ("Versions", "version"))


def render() -> str:
    out = ["# Protocol", "",
           "Rendered from the head of `src/holdfast/wire/*.py` by `scripts/render_protocol.py`; a test fails when it is stale. Golden bytes are in "
           "`tests/vectors/`.", ""]
    for title, module in PARTS:
        text = ast.get_docstring(ast.parse((ROOT / f"src/holdfast/wire/{module}.py").read_text())) or ""
        out += [f"## {title}", "", f"`wire/{module}.py`", "", "```text", text, "```", ""]
    return "\n".join(out)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != render())
    PAGE.write_text(render())
