"""Notices through the user's own terminal, also over ssh.

The terminal gets the bell and, if its kind is not known to misread it, a sequence for a desktop
notification: OSC 9 (iTerm2, WezTerm, kitty, Ghostty) or OSC 777 (foot, rxvt).
Terminals that know neither ignore the sequence. tmux and screen need a wrapper, and tmux also
`allow-passthrough on`. The sequence ends with BEL, because ST would end the wrapping of screen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final

from holdfast.core.session.waits import Wait
from holdfast.faces.notify.following import short
from holdfast.model.errors import Impossible, Unavailable

BELL: Final = b"\a"
PLAIN: Final = ("", "dumb", "linux", "vt100", "vt220")  # would show or misread an OSC
TITLED: Final = ("foot", "rxvt")  # beginnings of kinds that know OSC 777 only


def sequence(title: str, body: str, environ: Mapping[str, str]) -> bytes:
    """The bytes for a terminal of this environment. The texts are printable."""
    kind = environ.get("TERM", "")
    if kind in PLAIN:
        return BELL
    text = f"9;{title}: {body}" if body else f"9;{title}"
    if kind.startswith(TITLED):
        text = f"777;notify;{title.replace(';', ',')};{body}"
    raw = b"\x1b]" + text.encode() + BELL
    if environ.get("TMUX"):
        raw = b"\x1bPtmux;" + raw.replace(b"\x1b", b"\x1b\x1b") + b"\x1b\\"
    elif kind.startswith("screen"):
        raw = b"\x1bP" + raw + b"\x1b\\"
    return raw + BELL


class Terminal:
    name = "terminal"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        try:
            self._fd = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as e:
            raise Impossible(
                f"this command has no terminal: {e.strerror}", "--desktop, or --webhook URL"
            ) from e

    async def send(self, wait: Wait) -> None:
        data = sequence(f"holdfast: {wait.title}", short(wait), self._environ)
        try:
            await asyncio.to_thread(os.write, self._fd, data)
        except OSError as e:
            raise Unavailable(f"the terminal is gone: {e.strerror}") from e
