"""The end of a here-document, which shells and shfmt may see at different lines."""

from __future__ import annotations

import re

from holdfast.core.shellcode.words import Node


def ends_elsewhere(node: Node, source: bytes) -> bool:
    """Say whether a shell may see the end of this here-document earlier than shfmt.

    A shell joins lines at a backslash first, and shfmt looks for the end first.
    """
    try:
        delimiter = source[node["Word"]["Pos"]["Offset"] : node["Word"]["End"]["Offset"]]
        start, end = node["Hdoc"]["Pos"]["Offset"], node["Hdoc"]["End"]["Offset"]
    except (KeyError, TypeError):
        return False
    while source[:start].endswith(b"\\\n"):  # the tree leaves these out
        start -= 2
    body = source[start:end]
    if not re.fullmatch(rb"[\w.-]+", delimiter):
        # quoted: nothing is joined or expanded; with a substitution: every shell differs
        return any(c in delimiter for c in b"$`\n")
    joined = (line for line in body.replace(b"\\\n", b"\0").split(b"\n") if b"\0" in line)
    return any(line.replace(b"\0", b"").endswith(delimiter) for line in joined)
