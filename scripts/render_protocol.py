"""Writes docs/protocol.md from the head of the modules that are the protocol, so that the page cannot drift. `--check` only compares."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "protocol.md"
PARTS = (
    ("Client and host", "wire/frames"),
    ("Who a client is", "wire/hello"),
    ("Outer frames", "wire/outer"),
    ("Registering at a relay", "core/route"),
    ("Sealed channel", "core/channel"),
    ("Inside a sealed message", "wire/body"),
    ("Its handshake", "wire/noise"),
    ("Meeting with a typed code", "core/meeting"),
    ("Credit", "core/tunnel"),
    ("Whose a sealed channel is", "core/static"),
    ("Host and keeper", "wire/keeper"),
    ("Asking for a keeper", "wire/spawning"),
    ("The ring", "wire/ring"),
    ("The screen snapshot", "wire/snapshot"),
    ("Versions", "wire/version"),
)


def render() -> str:
    out = [
        "# Protocol",
        "",
        "Rendered from the head of the modules named below by `scripts/render_protocol.py`; a test fails when it is stale. Golden bytes are in "
        "`tests/vectors/`; what a relay sees is also in `proto/holdfast.proto`, for other languages.",
        "",
    ]
    for title, module in PARTS:
        text = ast.get_docstring(ast.parse((ROOT / f"src/holdfast/{module}.py").read_text())) or ""
        out += [f"## {title}", "", f"`{module}.py`", "", "```text", text, "```", ""]
    return "\n".join(out)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != render())
    PAGE.write_text(render())
