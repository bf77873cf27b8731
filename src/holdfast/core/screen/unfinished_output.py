"""The columns of a line that output has begun and not ended: `printf abc` before a prompt."""

from __future__ import annotations

import re
from typing import Final

LOOK_BYTES: Final = 4096
# Sequences that move no cursor and print nothing: colours, modes, titles and marks.
_STILL = re.compile(rb"\x1b\[[0-9;:]*m|\x1b\[\?[0-9;]*[hl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_ASCII = re.compile(rb"[ -~]*")


def unfinished_columns(output: bytes, cols: int) -> int | None:
    """The column after the last byte of output, if only plain text stands on that line.

    None if that cannot be told without an emulator: other characters, cursor movements, or no end
    of a line within the last LOOK_BYTES.
    """
    start = output.rfind(b"\n") + 1
    if not start and len(output) >= LOOK_BYTES:
        return None
    text = _STILL.sub(b"", output[start:]).lstrip(b"\r")
    return len(text) % max(cols, 1) if _ASCII.fullmatch(text) else None
