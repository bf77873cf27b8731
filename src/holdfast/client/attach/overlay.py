"""Text that attach draws over the session for a moment: help, the list of sessions, a notice.

The text covers the session's screen. To remove the text, the client asks the host for a fresh
screen; the client never guesses the covered part.
"""

from __future__ import annotations

from itertools import islice

from holdfast.client.attach.switching import KEYS
from holdfast.core.screen.blank import blank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.jsontext import Json

FOLD_INDENT = 4
TITLE_CHARS = 256
_VISIBLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "?")


def page(lines: list[str], cols: int, rows: int) -> bytes:
    """The bytes that show these lines instead of the session's screen."""
    width = max(cols - 1, 1)
    parts = (part for line in lines for part in _folded(line.translate(_VISIBLE), width))
    body = b"\r\n".join(p.encode("utf-8", "replace") for p in islice(parts, max(rows - 1, 1)))
    return b"\x1b[?2026h\x1b[r\x1b[0m\x1b[?25l" + blank(rows) + body + b"\x1b[?2026l"


def _folded(line: str, width: int) -> Iterator[str]:
    """The line in parts that fit, cut after a space if there is one."""
    while len(line) > width:
        cut = line.rfind(" ", 1, width) + 1 or width
        yield line[:cut]
        line = f"    {line[cut:]}" if width > FOLD_INDENT * 2 else line[cut:]
    yield line


def notice(text: str, cols: int, rows: int, more: str = "") -> bytes:
    """The bytes that show a line in the first row: people type in the last row.

    `more`: how to read the rest, shown at the end of a line that is cut. A terminal with a single
    row gets no notice.
    """
    if rows < 2:
        return b""
    line = f" holdfast: {text.translate(_VISIBLE)} "
    if len(line) > cols > len(more):
        line = line[: cols - len(more)] + more
    line = line[: max(cols, 1)]
    return b"\x1b7\x1b[1;1H\x1b[0;7m\x1b[K%s\x1b[0m\x1b8" % line.encode("utf-8", "replace")


def title(text: str) -> bytes:
    """The bytes that set the terminal's title."""
    return b"\x1b]2;%s\x1b\\" % text.translate(_VISIBLE)[:TITLE_CHARS].encode("utf-8", "replace")


def help_page(name: str, session: str, prefix: str) -> list[str]:
    p = prefix
    return [
        f"holdfast: attached to {name} ({session})",
        "",
        f"  {p} d    detach; the session keeps running",
        f"  {p} s    choose another session",
        f"  {p} n p  next, previous session",
        f"  {p} l    the session before this one",
        f"  {p} a t  ask for the turn; take it from its holder",
        f"  {p} g x  give the turn to the operator who asks for it, refuse",
        f"  {p} H R  halt everything, resume",
        f"  {p} y    see and decide an act that waits for approval",
        f"  {p} m    the last notices, whole",
        f"  {p} r    redraw",
        f"  {p} C-z  suspend attach itself",
        f"  {p} {p}  type {p} into the session",
        f"  {p} ?    this help",
        "",
        "Your terminal's own scrollback, selection and search work as ever.",
        "",
        "Any key returns to the session.",
    ]


def sessions_page(sessions: list[Json], current: str) -> list[str]:
    """A list with a key before each session (`switching.KEYS`)."""
    lines = ["holdfast: choose a session", ""]
    for key, s in zip(KEYS, sessions, strict=False):
        mark = "*" if s["id"] == current else " "
        idle = f"idle {s['idle_s']:.0f} s" if s["idle_s"] >= 1 else "active"
        lines.append(f"  {key}  {mark} {s['name']:<24} {s['state']:<9} {idle}")
    if len(sessions) > len(KEYS):
        lines.append(f"     ... and {len(sessions) - len(KEYS)} more: `holdfast attach NAME`")
    return [*lines, "", "Any other key returns."]
