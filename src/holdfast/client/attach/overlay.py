"""What attach draws over the session for a moment: help, the list of sessions, a notice on the first line.

Drawing covers the session's screen, so whoever closes an overlay asks the host for a fresh one; nothing is restored by guessing.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.client.terminal import UserTerminal
from holdfast.core.blank import blank

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Overlay:
    def __init__(self, term: UserTerminal, prefix: str) -> None:
        self.term, self.prefix = term, prefix
        self.covering = False

    def draw(self, lines: list[str]) -> None:
        """Instead of the session's screen, until `closed`."""
        cols, rows = self.term.size()
        shown = [_CONTROL.sub("?", line)[: max(cols - 1, 1)] for line in lines[: max(rows - 1, 1)]]
        body = b"\r\n".join(line.encode("utf-8", "replace") for line in shown)
        self.term.write(b"\x1b[?2026h\x1b[r\x1b[0m\x1b[?25l" + blank(rows) + body + b"\x1b[?2026l")
        self.covering = True

    def help(self, name: str, session: str) -> None:
        p = self.prefix
        self.draw(
            [
                f"holdfast: attached to {name} ({session})",
                "",
                f"  {p} d    detach; the session keeps running",
                f"  {p} s    choose another session",
                f"  {p} n p  next, previous session",
                f"  {p} l    the session before this one",
                f"  {p} a t  ask for the turn; take it, whoever has it",
                f"  {p} g x  give the turn to who asks for it, refuse",
                f"  {p} H R  halt everything, resume",
                f"  {p} y    what waits for approval: see it, decide it",
                f"  {p} r    redraw",
                f"  {p} C-z  suspend attach itself",
                f"  {p} {p}  type {p} into the session",
                f"  {p} ?    this help",
                "",
                "Your terminal's own scrollback, selection and search work as ever.",
                "",
                "Any key returns to the session.",
            ]
        )

    def choose(self, sessions: list[dict[str, Any]], current: str) -> None:
        keys = "123456789abcdefghijklmnopqrstuvwxyz"
        lines = ["holdfast: choose a session", ""]
        for key, s in zip(keys, sessions, strict=False):
            mark = "*" if s["id"] == current else " "
            idle = f"idle {s['idle_s']:.0f} s" if s["idle_s"] >= 1 else "active"
            lines.append(f"  {key}  {mark} {s['name']:<24} {s['state']:<9} {idle}")
        if len(sessions) > len(keys):
            lines.append(f"     ... and {len(sessions) - len(keys)} more: `holdfast attach NAME`")
        self.draw([*lines, "", "Any other key returns."])

    def notice(self, text: str) -> None:
        """One line at the top, the cursor stays where it is: at the bottom is where people type."""
        cols, rows = self.term.size()
        if rows < 2 or self.term.pending is not None:
            return
        line = f" holdfast: {_CONTROL.sub('?', text)} "[: max(cols, 1)]
        self.term.write(
            b"\x1b7\x1b[1;1H\x1b[0;7m\x1b[K%s\x1b[0m\x1b8" % (line.encode("utf-8", "replace"))
        )

    def closed(self) -> None:
        self.covering = False
