"""Terminal output as plain text for searching, without escape sequences and control characters."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC
    rb"|\x1b[ -/]*[0-~]"  # two-character sequences, charsets
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


def plain(data: bytes) -> str:
    return (
        _SEQUENCES.sub(b"", data)
        .replace(b"\r\n", b"\n")
        .replace(b"\r", b"\n")
        .decode("utf-8", "replace")
    )
