"""Approvals while attached: notices about waiting acts, and a question on the screen.

A question covers the whole screen. A question that is longer than the screen has pages, and an
answer counts only on the last page. Keys typed before the question is shown are ignored.

A raw terminal has no row of its own for this program, so there is no permanent marker
(docs/guides/attach.md says why). A waiting act is announced at the start of the wait, on attach,
and after each redraw that the user asked for. An operator with the right to decide also gets a
reminder every REMIND_S.

Pure: effects go to `emit`.
"""

from __future__ import annotations

from holdfast.client import questions
from holdfast.client.attach.elsewhere import Elsewhere
from holdfast.client.attach.events import DiscardTyped, Draw, SendAnswer
from holdfast.client.question_pages import COLS_MIN, ROWS_MIN, pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.client.attach.events import Effect
    from holdfast.core.policy.approvals import Answer
    from holdfast.model.jsontext import Json

REMIND_S = 60.0  # a question expires after ten minutes
NOTHING = "nothing waits for approval here; `holdfast approvals` lists all waiting acts"
_KEEP = "any other key leaves it waiting"


class Approvals:
    def __init__(
        self, operator: str, prefix: str, emit: Callable[[Effect], None], others: str = "none"
    ) -> None:
        self._operator, self._prefix, self._emit = operator, prefix, emit
        self.elsewhere = Elsewhere(operator, prefix, others)
        self._waiting: dict[str, Json] = {}  # the newest event of each, oldest first
        self._requested: int | None = None  # the number of the request for a question
        self._about: Json = {}  # the event of that question
        self._shown: Json | None = None  # the question on the screen
        self._pages: list[list[str]] = []
        self._page = 0
        self._fits = (0, 0)  # the terminal size of these pages
        self.at: float | None = None  # when to remind the user

    @property
    def busy(self) -> bool:
        """Whether a question is shown or about to be shown: keys are for that question."""
        return self._requested is not None or self._shown is not None

    def begin(self) -> None:
        """Forget the waiting acts: after an attach the host reports all of them again."""
        self._waiting.clear()
        self.leave()

    def leave(self) -> None:
        self._requested = self._shown = None

    # ------------------------------------------------------------ waiting acts

    def heard(self, event: Json, now: float, session: str) -> tuple[str | None, bool]:
        """Record an event; returns the notice, and whether the shown question waits no more."""
        if event.get("event") == "approval":
            words = self.words(event, now)
            return words, words is not None and self.closed(event)
        words = self.elsewhere.words(event, session)
        shown = self._shown["id"] if self._shown else None
        ids = [*self._waiting, *(one["id"] for one in self.elsewhere.questions)]
        return words, shown is not None and shown not in ids

    def words(self, event: Json, now: float) -> str | None:
        """Record an event; returns the notice for the user, if there is one.

        The use of an approval needs no notice: the effect of the act is on the screen.
        """
        operator, what, id = event.get("operator"), event.get("what"), str(event.get("id"))
        if what in ("asked", "given") and (what == "asked" or event.get("decides") is not None):
            self._waiting[id] = event
        else:
            self._waiting.pop(id, None)
        self._rearm(now)
        given = event.get("given") or []
        if what == "asked":
            return self._asks(event)
        if what == "given":
            left = int(event.get("needed") or 1) - len(given)
            decide = f": {self._prefix} y" if event.get("decides") else ""
            more = f"; {left} more needed{decide}" if left > 0 else ""
            return f"{given[-1] if given else 'somebody'} approved {id} of {operator}{more}"
        return {
            "denied": f"{id} of {operator} was denied {event.get('why', '')}".rstrip(),
            "expired": f"nobody decided {id} of {operator} in time",
            "void": f"{id} of {operator} is void: {event.get('why')}",
            "withdrawn": f"{operator} no longer asks for {id}",
        }.get(str(what))

    def closed(self, event: Json) -> bool:
        """Whether this event settles the question on the screen."""
        return (
            self._shown is not None
            and event.get("id") == self._shown["id"]
            and event.get("id") not in self._waiting
        )

    def _asks(self, event: Json) -> str:
        operator, because, p = event.get("operator"), event.get("because"), self._prefix
        if operator == self._operator:
            return f"you wait for approval ({p} y shows it): {because}"
        if event.get("decides"):
            return f"{operator} waits for approval ({p} y to see and decide): {because}"
        return f"{operator} waits for approval: {because}"

    def reminder(self, now: float) -> str | None:
        """The repeated notice about acts that this user may decide."""
        self._rearm(now)
        mine = [one for one in self._waiting.values() if one.get("decides")]
        if len(mine) > 1:
            return f"{len(mine)} acts wait for approval ({self._prefix} y to see and decide)"
        return self._asks(mine[0]) if mine else None

    def _rearm(self, now: float) -> None:
        decides = any(one.get("decides") for one in self._waiting.values())
        self.at = now + REMIND_S if decides else None

    # ------------------------------------------------------------ the question

    def choose(self) -> str | None:
        """The id of the question to show: the oldest that this user may decide, else the oldest.

        Questions of this session come first, then those of the machine.
        """
        here = min(self._waiting.values(), key=lambda one: not one.get("decides"), default=None)
        others = (one for one in self.elsewhere.questions if one["counts"])
        found = here if here and here.get("decides") else next(others, here)
        if found is None:
            return None
        self._about = found
        return str(found["id"])

    def requested(self, number: int) -> None:
        """The question was requested from the host under this number."""
        self._requested = number

    def came(
        self, number: int, ok: bool, body: Json, size: tuple[int, int], blocked: bool
    ) -> str | None:
        """The host's answer; returns why the question cannot be shown."""
        if number != self._requested:
            return None
        self._requested = None
        if not ok:
            return str(body.get("message"))
        if not body["approvals"]:
            why = self._about.get("why_not", "the question is settled")
            return f"you cannot decide it: {why}"
        if why := questions.fault(body["approvals"][0]):
            return f"the host shows another act than the one to be signed: {why}"
        self._shown = body["approvals"][0]
        return self.draw(size, blocked)

    def resized(self, size: tuple[int, int], blocked: bool) -> str | None:
        """Draw anew. Terminals report a size twice: the same size keeps page and typed keys."""
        if self._shown is None or size != self._fits:
            return self.draw(size, blocked)
        self._emit(Draw(self._pages[self._page]))
        return None

    def draw(self, size: tuple[int, int], blocked: bool) -> str | None:
        """Draw the first page for a terminal of this size; returns why that is impossible."""
        if (p := self._shown) is None:
            return None
        self._fits = cols, rows = size
        if cols < COLS_MIN or rows < ROWS_MIN or blocked:
            self.leave()
            small = cols < COLS_MIN or rows < ROWS_MIN
            why = "this terminal is too small" if small else "it cannot be shown now"
            return f"{why}: `holdfast approve {p['id']}`"
        choice, lines = "y approves exactly this, once; n denies it", questions.lines(p)
        if questions.own(p, self._operator):
            choice = "it is your own: n withdraws it"
        elif (obstacle := questions.obstacle(p)) is not None:  # first, to spare the user the rest
            choice = "n denies it"
            lines = [*obstacle, "", *lines]
        foot = ["", f"{choice}; {_KEEP}"]
        self._pages = pages(lines, self._fits, f"space shows more; {_KEEP}", foot)
        self._turn_page(0)
        return None

    def _turn_page(self, page: int) -> None:
        """Show a page. Keys typed before the page was shown are dropped."""
        self._page = page
        self._emit(DiscardTyped())
        self._emit(Draw(self._pages[page]))

    def key(self, key: bytes, prefix: bytes, blocked: bool, number: Callable[[], int]) -> bool:
        """A key while a question is on the screen or on its way. True: the question is left."""
        p = self._shown
        if p is None:
            if key == prefix:  # a host that does not answer must not trap the user here
                self.leave()
            return key == prefix
        if blocked:
            return False  # the terminal has not shown the question yet
        last = self._page == len(self._pages) - 1
        if key == b" " and not last:
            self._turn_page(self._page + 1)
            return False
        what: Answer | None = None
        if key in (b"y", b"Y") and questions.obstacle(p) is None:
            what = "approve"
        elif key in (b"n", b"N"):
            what = "withdraw" if questions.own(p, self._operator) else "deny"
        self.leave()
        if last and what is not None:
            self._emit(SendAnswer(number(), p, what))
        return True
