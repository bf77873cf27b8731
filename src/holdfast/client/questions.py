"""Deciding what waits for approval: what is shown to whoever decides, what they sign, and how that goes inside of `attach`.

`holdfast approve` and attach show the same words and sign the same bytes: the question's id, the binding that came with what was shown, the
answer. In attach the question covers the screen, whole; what is longer than the screen has pages, and an answer counts only once the last
of them was shown. What is typed before the question stands on the terminal decides nothing.

A raw terminal has no row that is ours, so there is no permanent marker (docs/attach.md says why): that something waits is said when it begins, on
attach, after each redraw that the user asked for, and every REMIND_S, to whoever may decide it.

Imported with attach, so what only a question needs (the gate, Unicode) is imported when there is one.
"""

from __future__ import annotations

import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.model.printable import printable

if TYPE_CHECKING:
    from holdfast.client.link import Link
    from holdfast.client.overlay import Overlay
    from holdfast.core.gate import Answer

QUESTION: Final = 0  # what is asked of the host (attach.py): the question, whole
REMIND_S: Final = 60.0  # a question lapses after ten minutes
ROWS_MIN, COLS_MIN = 8, 20  # of a terminal on which a question can be read
TYPED: Final = ("run", "line", "paste", "exec", "keys")  # acts that happen in a directory
_KEEP: Final = "any other key leaves it waiting"


# ---------------------------------------------------------------- what is shown, what is signed


def question(p: dict[str, Any]) -> list[str]:
    """Everything that is decided about, in lines. The host has escaped the text; what could still act on a terminal or reorder is escaped here."""
    from holdfast.core.scope import span
    from holdfast.core.shown import foreign

    where = (
        f"session {p['name'] or p['session']}" + (f" ({p['layout']})" if p["layout"] else "")
        if p["session"]
        else "this machine"
    )
    others = f"approved by {', '.join(p['given'])}; " if p["given"] else ""
    lines = [
        f"{p['operator']} asks to {p['act']} on {where}"
        + (
            f", in {p['cwd']}"
            if p["cwd"]
            else ", in a directory that is not known"
            if p["act"] in TYPED
            else ""
        ),
        "",
        f"  {p['text']}",
        "",
        f"because {p['because']} (rule {p['rule']!a})",
        f"{others}{p['needed'] - len(p['given'])} of {p['needed']} still needed, {span(p['expires_in'])} left",
    ]
    if p.get("shaped"):
        lines.insert(5, f"it runs on {', '.join(p['shaped'])}")
    if foreign(p["text"]):
        lines.insert(3, "  (it has letters of other alphabets, which may look like those you know)")
    return [printable(line) for line in lines]


def own(p: dict[str, Any], operator: str) -> bool:
    """Whether it is their own question: they can withdraw it, not deny it."""
    return bool(p["operator"] == operator)


def answer(link: Link, p: dict[str, Any], what: Answer) -> dict[str, Any]:
    """The request that decides what was shown, signed with the link's own key."""
    from holdfast.core.gate import DOMAIN, statement

    signature = link.sign(
        DOMAIN, lambda key: statement(p["id"], p["binding"], key, what, p["expires"])
    )
    return {"op": what, "id": p["id"], "binding": p["binding"], "signature": signature}


def wrapped(line: str, cols: int) -> list[str]:
    """A line on a terminal that is `cols` wide. What is indented stays so, and is broken anywhere, for nothing of it may be left out; prose is
    broken at blanks."""
    from unicodedata import combining, east_asian_width

    def width(text: str) -> int:
        return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)

    indent = line[: len(line) - len(line.lstrip(" "))]
    rows, row = [], indent
    used = len(indent)
    for c in line[len(indent) :]:
        if used + width(c) > cols:
            rest = ""
            if not indent and c != " " and " " in row:
                row, _, rest = row.rpartition(" ")
            rows.append(row)
            row, used = indent + rest, len(indent) + width(rest)
            if not indent and c == " ":
                continue
        row, used = row + c, used + width(c)
    return [*rows, row]


# ---------------------------------------------------------------- inside of attach


class Deciding:
    def __init__(
        self,
        link: Link,
        overlay: Overlay,
        prefix: str,
        ask: Callable[[int, dict[str, Any]], int],
        steer: int,
    ) -> None:
        """`ask` sends a request of a kind; `steer` is the kind whose refusals are shown to the user."""
        self._link, self._overlay, self._prefix, self._ask, self._steer = (
            link,
            overlay,
            prefix,
            ask,
            steer,
        )
        self._waiting: dict[str, dict[str, Any]] = {}  # what the host said of each, oldest first
        self._asked: int | None = None  # the request for a question, until it is answered
        self._about: dict[str, Any] = {}  # which one
        self._shown: dict[str, Any] | None = None  # the question on the screen
        self._pages: list[list[str]] = []
        self._page = 0
        self._fits = (0, 0)  # the size they were made for
        self.at: float | None = None  # when to say again that something waits

    @property
    def busy(self) -> bool:
        """A question is on the screen, or on its way to it: keys are for that."""
        return self._asked is not None or self._shown is not None

    def begin(self) -> None:
        """Attached, there or anew: the host says again what waits."""
        self._waiting.clear()
        self.leave()

    def leave(self) -> None:
        if self.busy:
            self._asked = self._shown = None
            self._overlay.closed()

    # ------------------------------------------------------------ what waits

    def words(self, event: dict[str, Any]) -> str | None:
        """Keeps count of what waits; what to say of it. Not when it is used: that is seen on the screen."""
        who, what, id, p = (
            event.get("operator"),
            event.get("what"),
            str(event.get("id")),
            self._prefix,
        )
        if what in ("asked", "given") and (what == "asked" or event.get("decides") is not None):
            self._waiting[id] = event
        else:
            self._waiting.pop(id, None)
        self._rearm()
        given = event.get("given") or []
        if what == "asked":
            return self._asks(event)
        if what == "given":
            left = int(event.get("needed") or 1) - len(given)
            more = (
                f"; {left} more needed{f': {p} y' if event.get('decides') else ''}"
                if left > 0
                else ""
            )
            return f"{given[-1] if given else 'somebody'} approved {id} of {who}{more}"
        return {
            "denied": f"{id} of {who} was denied {event.get('why', '')}".rstrip(),
            "expired": f"nobody decided {id} of {who} in time",
            "void": f"{id} of {who} is void: {event.get('why')}",
            "withdrawn": f"{who} no longer asks for {id}",
        }.get(str(what))

    def closed(self, event: dict[str, Any]) -> bool:
        """Whether what stands on the screen is decided: then it is no question any more."""
        return (
            self._shown is not None
            and event.get("id") == self._shown["id"]
            and event.get("id") not in self._waiting
        )

    def _asks(self, event: dict[str, Any]) -> str:
        who, because, p = event.get("operator"), event.get("because"), self._prefix
        if who == self._link.operator:
            return f"you wait for approval ({p} y shows it): {because}"
        if event.get("decides"):
            return f"{who} waits for approval ({p} y to see and decide): {because}"
        return f"{who} waits for approval: {because}"

    def reminder(self) -> str | None:
        """What is said again: of what this user may decide."""
        self._rearm()
        mine = [one for one in self._waiting.values() if one.get("decides")]
        if not mine:
            return None
        return (
            self._asks(mine[0])
            if len(mine) == 1
            else f"{len(mine)} acts wait for approval ({self._prefix} y to see and decide)"
        )

    def _rearm(self) -> None:
        self.at = (
            time.monotonic() + REMIND_S
            if any(one.get("decides") for one in self._waiting.values())
            else None
        )

    # ------------------------------------------------------------ one question

    def show(self) -> str | None:
        """The user wants to see one: the oldest that is theirs to decide, else the oldest. What to say if there is none."""
        if not self._waiting:
            return (
                "nothing waits for approval here; `holdfast approvals` lists what waits elsewhere"
            )
        self._about = min(self._waiting.values(), key=lambda one: not one.get("decides"))
        self._overlay.covering = True  # from here on keys are for the question, and output waits
        self._asked = self._ask(QUESTION, {"op": "approvals", "id": self._about["id"]})
        return None

    def came(self, number: int, ok: bool, body: dict[str, Any]) -> str | None:
        """The host's answer. What to say if it cannot be shown; the caller draws the session again then."""
        if number != self._asked:
            return None
        self._asked = None
        if not ok or not body["approvals"]:
            self._overlay.closed()
            return (
                str(body.get("message"))
                if not ok
                else f"you cannot decide it: {self._about.get('why_not', 'it is no question any more')}"
            )
        self._shown = body["approvals"][0]
        return self.draw()

    def resized(self) -> str | None:
        """Terminals say one change twice: for the same size it is the same page again, and an answer to what already stood there is kept."""
        if self._shown is None or self._overlay.term.size() != self._fits:
            return self.draw()
        self._overlay.draw(self._pages[self._page])
        return None

    def draw(self) -> str | None:
        """From its beginning, for the terminal as it is now."""
        if (p := self._shown) is None:
            return None
        self._fits = cols, rows = self._overlay.term.size()
        room = rows - 1
        if cols < COLS_MIN or rows < ROWS_MIN or self._overlay.term.pending is not None:
            self.leave()
            return f"{'it cannot be shown now' if rows >= ROWS_MIN and cols >= COLS_MIN else 'this terminal is too small'}: `holdfast approve {p['id']}`"
        choice, lines = "y approves exactly this, once; n denies it", question(p)
        if own(p, self._link.operator):
            choice = "it is your own: n withdraws it"
        elif not p["counts"]:  # said first: nobody is to read and decide for nothing
            choice, lines = (
                "n denies it",
                [f"your approval would not count: {p['why_not']}", p["recover"], "", *lines],
            )
        lines = [row for line in lines for row in wrapped(line, cols - 1)]
        more, foot = (
            wrapped(f"space shows more; {_KEEP}", cols - 1),
            ["", *wrapped(f"{choice}; {_KEEP}", cols - 1)],
        )
        self._pages, self._page = [], 0
        while len(lines) + len(foot) > room:
            cut = min(room - len(more), len(lines) - 1)
            self._pages.append([*lines[:cut], *more])
            del lines[:cut]
        self._pages.append([*lines, *foot])
        self._turn_page()
        return None

    def _turn_page(self) -> None:
        """What was typed before it stood there was not meant for it."""
        termios.tcflush(0, termios.TCIFLUSH)
        self._overlay.draw(self._pages[self._page])

    def key(self, key: bytes, prefix: bytes) -> bool:
        """A key while a question is on the screen, or on its way. True: it is done with, and the session is drawn again."""
        p = self._shown
        if p is None:
            if key == prefix:  # a host that does not answer must not keep us here
                self.leave()
            return key == prefix
        if self._overlay.term.pending is not None:
            return False  # the terminal has not shown it yet
        last = self._page == len(self._pages) - 1
        if key == b" " and not last:
            self._page += 1
            self._turn_page()
            return False
        mine = own(p, self._link.operator)
        what: Answer | None = (
            "approve"
            if key in (b"y", b"Y") and p["counts"]
            else ("withdraw" if mine else "deny")
            if key in (b"n", b"N")
            else None
        )
        self.leave()
        if last and what is not None:
            self._ask(self._steer, answer(self._link, p, what))
        return True
