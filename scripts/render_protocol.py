"""Write docs/reference/protocol.md from the docstrings of the modules that define the protocol.

`--check` only compares.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "protocol.md"
PARTS = (
    ("Client and host", "wire/frames"),
    ("Proof of identity", "wire/hello"),
    ("Canonical JSON", "model/canonical"),
    ("Signatures", "model/signing"),
    ("The statement of an act", "core/record/statement"),
    ("The content of an act", "core/record/acts"),
    ("Outer frames", "wire/outer"),
    ("Registering at a relay", "core/sealed/route"),
    ("A webhook through a relay", "wire/carried"),
    ("Sealed channel", "core/sealed/channel"),
    ("Inside a sealed message", "wire/body"),
    ("Handshake of the sealed channel", "wire/noise"),
    ("Meeting with a typed code", "core/sealed/meeting"),
    ("Credit", "core/sealed/tunnel"),
    ("Keys of the sealed channel", "core/sealed/channel_key"),
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
        "`scripts/render_protocol.py` renders this page from the docstrings of the modules named"
        " below;",
        "a test fails when the page is stale. Golden bytes are in `tests/vectors/`",
        "([vectors.md](vectors.md)). The frames that a relay sees are also in"
        " `proto/holdfast.proto`.",
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
