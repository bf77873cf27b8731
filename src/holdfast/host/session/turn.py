"""The turn of one session in the world: its clock, who is told, who waits, and whose unfinished input is in the way.

What decides is pure (core/turn.py, core/staged.py); here it gets the time, and its effects get to viewers and events. Moving the turn
knowingly (hand, grant, seize) shows the newcomer what comes with it: text that somebody staged, what runs in the foreground (A6).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.lineedit import left_nothing
from holdfast.core.staged import Piece, Staged
from holdfast.core.turn import Asked, Denied, Effect, Taken, Turn, Withdrawn
from holdfast.host.inheriting import jobs
from holdfast.host.shaping import changes
from holdfast.model.errors import Busy, Refused, TimedOut, TurnHeld, Unavailable, Unfinished

if TYPE_CHECKING:
    from holdfast.host.session import Session

BEGUN = "begun"  # in the session's directory
RECALLED = b"(typed before the host was restarted)"
HIDDEN = b"(hidden)"
CONTENDED_MAX = 64
HELD_INPUTS_MAX = 64  # of one viewer, while it is found out whether somebody's line is in the way


_WORDS = {"line": "a line", "paste": "a paste", "sequence": "a key", "character": "a character"}


class SessionTurn:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.rules = Turn()
        self.staged = Staged()
        self.device = b""  # the key with which its holder wrote or took it last; empty if it was given to them
        self.writer: str | None = (
            None  # who wrote last, of whom something may still be on its way; unknown after a restart
        )
        self._kept = self._recall()  # whose line is begun, as it is written down
        self._timer: asyncio.TimerHandle | None = None
        self._asking: dict[str, list[asyncio.Future[Effect]]] = {}
        self._contended: set[tuple[str, str]] = (
            set()
        )  # who was told to have been refused, in whose favour, since the turn last moved

    # ------------------------------------------------------------ facts

    @property
    def holder(self) -> str | None:
        return self.rules.holder(time.monotonic())

    def facts(self) -> dict[str, Any] | None:
        """As `ls` and `who` show it."""
        now = time.monotonic()
        holder = self.rules.holder(now)
        if holder is None:
            return None
        state = self.rules.state
        return {
            "holder": holder,
            "since": time.time() - (now - state.since),
            "idle_s": round(now - state.last_write, 3),
            "waiting": list(self.rules.waiting()),
        }

    async def inherits(self) -> dict[str, Any]:
        """What whoever takes over finds: text that others have begun, byte by byte with its author, and what still runs. Nothing of what the terminal hides."""
        pieces = self.staged.pieces if self._has_lines() else []
        if pieces:
            try:
                state = await self._session.terminal()
            except Unavailable:
                return await self._found([])
            commands = self._session.commands
            editing = (
                commands.kind in ("bash", "zsh")
                and commands.shell.at_prompt
                and state.foreground == self._session.record.root_pid
            )
            if not (state.lflag & termios.ECHO or editing):
                pieces = [Piece(piece.operator, HIDDEN) for piece in pieces]
        return await self._found(pieces)

    async def _found(self, pieces: list[Piece]) -> dict[str, Any]:
        return {
            "staged": [
                {"operator": p.operator, "text": p.data.decode("utf-8", "backslashreplace")}
                for p in pieces
            ],
            "jobs": await jobs(self._session),
            "changed": changes(self._session),
        }

    def begun(self) -> bytes:
        """What stands on the line before what is typed next, by whomever."""
        return b"".join(piece.data for piece in self.staged.pieces) if self._has_lines() else b""

    def begun_by(self) -> tuple[str, ...]:
        """Who has typed what stands on the line."""
        return (
            tuple(dict.fromkeys(piece.operator for piece in self.staged.pieces))
            if self._has_lines()
            else ()
        )

    def _has_lines(self) -> bool:
        """Whether what was typed stands on a line that somebody could still finish."""
        commands = self._session.commands
        return not self.took_back and (
            commands.kind is None or commands.shell.line_dirty or commands.shell.typeahead
        )

    @property
    def took_back(self) -> bool:
        """Whether all that was typed on the line is gone from it again, or never was text."""
        return self.staged.open and left_nothing(
            b"".join(piece.data for piece in self.staged.pieces),
            self._session.commands.kind is not None,
        )

    # ------------------------------------------------------------ writing

    def write(self, operator: str) -> None:
        """The turn, or a refusal that says who has it (A1, A2)."""
        now = time.monotonic()
        if self.rules.state.holder != operator:
            self._refuse_if_unfinished(operator, now)
        effects = self.rules.write(operator, now)
        if effects or self._timer is None:
            self._publish(effects)
        self._refused(effects)

    def could_write(self, operator: str) -> None:
        """Whether it would get the turn now. Nothing changes: what takes time in between must not hold the turn for an act that may never be."""
        now = time.monotonic()
        holder = self.rules.holder(now)
        if holder is None:
            self._refuse_if_unfinished(operator, now)
        elif holder != operator:
            raise TurnHeld(
                f"{holder} holds the turn (last wrote {now - self.rules.state.last_write:.1f} s ago)",
                holder=holder,
            )

    async def look(self) -> None:
        """A terminal without lines (vim, a pager) has none that could be unfinished: only line mode and a shell at its prompt do."""
        state = await self._session.terminal()
        commands = self._session.commands
        at_prompt = (
            commands.kind is not None
            and commands.shell.at_prompt
            and state.foreground == self._session.record.root_pid
        )
        if not (state.lflag & termios.ICANON or at_prompt):
            self.staged.settle()

    def typed(self, operator: str, data: bytes, now: float, key: bytes) -> None:
        """What it wrote, with the turn, is on its way; with which of its keys."""
        self.rules.state.last_write = now
        self.device = key
        self.writer = operator
        self.staged.typed(operator, data, now)
        if (begun := operator if self.staged.open else "") != self._kept:
            self._keep(begun)

    def _keep(self, begun: str) -> None:
        """Whose line it is, for the next host: once or twice per line. A file, because it must outlive a process, not the machine; one that
        cannot be written costs the caution, not the session."""
        self._kept = begun
        with contextlib.suppress(OSError):
            fd = os.open(
                f"{self._session.memory}/{BEGUN}",
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.write(fd, begun.encode())
            finally:
                os.close(fd)

    def _recall(self) -> str:
        try:
            with open(f"{self._session.memory}/{BEGUN}", encoding="utf-8") as f:
                begun = f.read(256)
        except (OSError, ValueError):
            return ""
        if begun:
            self.staged.by, self.staged.pieces = begun, [Piece(begun, RECALLED)]
        return begun

    def _refuse_if_unfinished(self, operator: str, now: float) -> None:
        if self.rules.holder(now) is not None:
            return  # held: the refusal will say by whom
        found = self.staged.in_the_way(operator, now, self._has_lines())
        if found is not None:
            raise Unfinished(
                f"{found.operator} has begun {_WORDS[found.kind]} and not finished it",
                "wait until it is entered or given up, or take over with what is there: `holdfast seize SESSION`",
                by=found.operator,
            )

    def begin_long(self, operator: str, key: bytes) -> None:
        self.write(operator)
        self._publish(self.rules.begin_long(operator, time.monotonic()))
        self.device = key

    def end_long(self, operator: str) -> None:
        self._publish(self.rules.end_long(operator, time.monotonic()))

    # ------------------------------------------------------------ moving

    async def request(self, operator: str, kind: str, wait_s: float) -> dict[str, Any]:
        """Asks for it, and waits up to `wait_s` for the answer; 0: only says that it asked."""
        effects = self.rules.request(operator, time.monotonic(), kind)
        answer: asyncio.Future[Effect] = self._session.loop.create_future()
        self._asking.setdefault(operator, []).append(answer)
        try:
            self._publish(effects)
            if self.holder != operator and not answer.done():
                if not wait_s:
                    return {"asked": True}
                if not await self._session.or_end(answer, wait_s):
                    self._publish(self.rules.withdraw(operator, time.monotonic()))
                    raise TimedOut(
                        f"{self.holder or 'nobody'} did not give the turn within {wait_s:g} s",
                        "ask again, or `holdfast seize`",
                    )
            if answer.done() and isinstance(outcome := answer.result(), Withdrawn):
                raise TurnHeld(f"the request was {outcome.why}", holder=self.holder or "")
            now = self.facts()  # as it is in this very moment: what is found there takes another, in which somebody may seize it
            return {"asked": False, "turn": now, "inherits": await self.inherits()}
        finally:
            self._asking[operator].remove(answer)
            if not self._asking[operator]:
                del self._asking[operator]

    def hand(self, operator: str, to: str) -> None:
        effects = self.rules.hand(operator, to, time.monotonic())
        self._publish(effects)
        self._refused(effects)

    def grant(self, operator: str, to: str) -> None:
        self._asked(to)
        effects = self.rules.grant(operator, to, time.monotonic())
        self._publish(effects)
        self._refused(effects)

    def refuse(self, operator: str, to: str) -> None:
        self._asked(to)
        effects = self.rules.refuse(operator, to, time.monotonic())
        self._publish(effects)
        self._refused(effects)

    def _asked(self, operator: str) -> None:
        if operator not in self.rules.waiting():
            raise Refused(
                f"{operator} does not ask for the turn",
                "`holdfast who SESSION` shows who does; `turn hand` needs no request",
            )

    def release(self, operator: str) -> None:
        self._publish(self.rules.release(operator, time.monotonic()))

    def lose(self, counts: Callable[[bytes], bool], known: Callable[[str], bool]) -> None:
        """Keys were revoked: what one of them took is free again, and whoever has none left waits for nothing."""
        now, holder = time.monotonic(), self.rules.state.holder
        if holder is not None and ((self.device and not counts(self.device)) or not known(holder)):
            self._publish(self.rules.lose(holder, now))
        for waiting in self.rules.waiting():
            if not known(waiting):
                self._publish(self.rules.leave(waiting, now))

    def leave(self, operator: str) -> None:
        self._publish(self.rules.leave(operator, time.monotonic()))

    def take(self, operator: str, key: bytes) -> str | None:
        """Takes it, now, whoever has it; gives who had it. That the operator may has been checked."""
        previous = self.holder
        self._publish(self.rules.take(operator, time.monotonic()))
        self.device = key
        return previous if previous != operator else None

    def contended(self, operator: str, error: BaseException) -> None:
        """An input of theirs was not taken. If that is because of somebody else, it is told: once until the turn moves, because keys come as fast as one likes."""
        if isinstance(error, TurnHeld):
            other, why = error.facts.get("holder"), "held"
        elif isinstance(error, Unfinished | Busy):
            other, why = error.facts.get("by"), "unfinished"
        else:
            return
        if (
            other
            and other != operator
            and (operator, other) not in self._contended
            and len(self._contended) < CONTENDED_MAX
        ):
            self._contended.add((operator, other))
            self._session.event("turn.refused", operator=operator, holder=other, why=why)

    # ------------------------------------------------------------ effects

    def _refused(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Denied):
                raise TurnHeld(
                    f"{effect.holder} holds the turn (last wrote {effect.idle_for:.1f} s ago)",
                    holder=effect.holder,
                )

    def _publish(self, effects: list[Effect]) -> None:
        session = self._session
        if effects:
            session.keyboard.again()
        for effect in effects:
            if isinstance(effect, Taken):
                self.device = b""
                self._contended.clear()
                if effect.how in ("hand", "grant", "seize"):
                    self.staged.inherit(effect.holder)
                session.tell_viewers(
                    "turn",
                    holder=effect.holder,
                    previous=effect.previous,
                    how=effect.how,
                    waiting=list(self.rules.waiting()),
                )
                if effect.how != "write":
                    session.spawn(self._show_inherited(effect.holder))
                session.event(
                    "turn.taken", holder=effect.holder, previous=effect.previous, how=effect.how
                )
                self._answer(effect.holder, effect)
            elif isinstance(effect, Asked):
                session.tell_viewers(
                    "turn_asked",
                    operator=effect.operator,
                    holder=effect.holder,
                    waiting=list(self.rules.waiting()),
                )
                session.event("turn.asked", operator=effect.operator, holder=effect.holder)
            elif isinstance(effect, Withdrawn):
                session.tell_viewers(
                    "turn_withdrawn",
                    operator=effect.operator,
                    why=effect.why,
                    waiting=list(self.rules.waiting()),
                )
                session.event("turn.withdrawn", operator=effect.operator, why=effect.why)
                self._answer(effect.operator, effect)
            elif not isinstance(effect, Denied):
                session.tell_viewers(
                    "turn",
                    holder=self.holder,
                    previous=effect.previous,
                    how="free",
                    waiting=list(self.rules.waiting()),
                )
                session.event("turn.freed", previous=effect.previous)
        self._watch()

    async def _show_inherited(self, holder: str) -> None:
        found = await self.inherits()
        for viewer in self._session.viewers:
            if viewer.conn.operator == holder and (
                found["staged"]
                or any(one["actor"] != holder for one in (*found["jobs"], *found["changed"]))
            ):
                viewer.conn.event("inherits", session=self._session.id, **found)

    def _answer(self, operator: str, effect: Effect) -> None:
        for future in self._asking.get(operator, ()):
            if not future.done():
                future.set_result(effect)

    def _watch(self) -> None:
        """One timer while the turn is held: viewers are told when it lapses."""
        deadline = self.rules.deadline()
        if self._timer is None and deadline is not None:
            self._timer = self._session.loop.call_later(
                max(0.0, deadline - time.monotonic()), self._due
            )

    def _due(self) -> None:
        self._timer = None
        self._publish(self.rules.expire(time.monotonic()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
