"""The turn of a session: clock, notices, waiting requests, and unfinished input.

The rules are pure (core/session/turn.py, core/session/unfinished_input.py). This module adds the
time, and publishes the effects to viewers and events. Every new holder of the turn is shown the
inherited state (A6). The host collects that state in the background: no key waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.screen.line_edit import left_nothing
from holdfast.core.session import lifecycle
from holdfast.core.session.inheritance import Facts, Inheritance
from holdfast.core.session.turn import (
    POLICIES,
    Asked,
    Denied,
    Effect,
    FirstCome,
    Taken,
    Turn,
    TurnState,
    Withdrawn,
)
from holdfast.core.session.unfinished_input import Piece, UnfinishedInput
from holdfast.home.settings import Settings
from holdfast.host.runtime import handover_file
from holdfast.host.session.presence import Presence
from holdfast.host.session.requests_for_turn import TurnRequests
from holdfast.host.session.takeover import Shown, changes, jobs, opened
from holdfast.model.errors import Busy, Refused, TimedOut, TurnHeld, Unavailable, Unfinished

if TYPE_CHECKING:
    from holdfast.host.session.interfaces import TurnPlugin
    from holdfast.host.session.session import Session

BEGUN, SEIZED = "begun", "seized"  # files in the session's directory
NAME_BYTES = 256
RECALLED = b"(typed before the host was restarted)"
HIDDEN = b"(hidden)"
CONTENDED_MAX = 64
HELD_INPUTS_MAX = 64  # of one viewer, while the host asks whether a line is unfinished


_WORDS = {"line": "a line", "paste": "a paste", "sequence": "a key", "character": "a character"}


class _Look(NamedTuple):
    """A look at the state that an operator inherits."""

    operator: str
    found: asyncio.Task[Facts]
    news: asyncio.Task[Facts | None]


class SessionTurn:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.rules = Turn()
        self.unfinished = UnfinishedInput()
        # The key with which the holder last wrote or took the turn; empty if it was handed over.
        self.device = b""
        # The operator of the last input, which may still be under way. Unknown after a restart.
        self.writer: str | None = None
        self._inheritance = Inheritance()
        self._look: _Look | None = None  # of the last new holder
        self._saved = self._recall()  # the author of the unfinished line, as saved
        self._timer: asyncio.TimerHandle | None = None
        self._presence = Presence()
        self._seized = self._recall_seized()  # the holder of a seized turn, as saved
        self._asking: dict[str, list[asyncio.Future[Effect]]] = {}
        # (refused operator, holder) of events published since the turn last moved.
        self._contended: set[tuple[str, str]] = set()
        self._requests = TurnRequests(session, self.rules)

    def begin(self, settings: Settings, presence: Presence, plugin: TurnPlugin | None) -> None:
        self.rules.idle_s, self.rules.gone_s = settings.turn_idle_s, settings.turn_gone_s
        self.rules.policy = POLICIES.get(settings.turn_policy, FirstCome())
        self._requests.plugin = plugin
        self._presence = presence
        if self._seized:
            presence.watch(self, self._seized)
            self.presence(presence.connected(self._seized))

    # ------------------------------------------------------------ facts

    @property
    def holder(self) -> str | None:
        return self.rules.holder(time.monotonic())

    def facts(self) -> Shown | None:
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
            **({"seized": True} if state.seized else {}),
        }

    async def inherits(self) -> Facts:
        """The inherited state: unfinished text, running jobs, shell changes, all with authors.

        Open credentials and files of interest are part of the inherited state.

        Text that the terminal does not show (a password) is left out.
        """
        pieces = self.unfinished.pieces if self._has_lines() else []
        if pieces:
            try:
                state = await self._session.terminal()
            except Unavailable:
                return await self._found([])
            editing = self._session.edits_line(state)
            if not (state.lflag & termios.ECHO or editing):
                pieces = [Piece(piece.operator, HIDDEN) for piece in pieces]
        return await self._found(pieces)

    async def _found(self, pieces: list[Piece]) -> Facts:
        running, (credentials, files) = await asyncio.gather(
            jobs(self._session), opened(self._session)
        )
        return {
            "staged": [
                {"operator": p.operator, "text": p.data.decode("utf-8", "backslashreplace")}
                for p in pieces
            ],
            "jobs": running,
            "changed": changes(self._session),
            "credentials": credentials,
            "files": files,
        }

    def begun(self) -> bytes:
        """The text that stands on the line before the input typed next."""
        return self.unfinished.text if self._has_lines() else b""

    def begun_by(self) -> tuple[str, ...]:
        """The authors of the text that stands on the line."""
        if self._has_lines():
            return tuple(dict.fromkeys(piece.operator for piece in self.unfinished.pieces))
        return ()

    def _has_lines(self) -> bool:
        """Whether typed text stands on a line that an operator could still finish."""
        commands = self._session.commands
        return not self.took_back and (
            commands.kind is None or commands.shell.line_dirty or commands.shell.typeahead
        )

    @property
    def took_back(self) -> bool:
        """Whether all text typed on the line was deleted again, or never was text."""
        commands, text = self._session.commands, self.unfinished.text
        # The terminal in line mode edits text that was typed before the prompt, or the shell does.
        cooked = commands.kind is None or commands.shell.typeahead
        edited = commands.kind is not None
        return (
            self.unfinished.open
            and (not cooked or left_nothing(text, editor=False))
            and (not edited or left_nothing(text, editor=True))
        )

    # ------------------------------------------------------------ writing

    def check(self, operator: str, take: bool = True) -> None:
        """Takes the turn for an act, or refuses it and names the holder (A1, A2).

        Without `take` it only checks whether the operator could have the turn.
        """
        session = self._session
        if not lifecycle.running(session.state):
            raise Refused(f"session {session.name} has ended", "`holdfast ls --all` shows how")
        session.refuse_if_halted()
        session.stopped.refuse(operator)
        if take:
            self.write(operator)
        else:
            self.could_write(operator)

    async def settle_and_check(self, operator: str, take: bool = True) -> None:
        """As `check`; if an unfinished line seems to be in the way, first asks the terminal."""
        try:
            self.check(operator, take)
        except Unfinished:
            await self.look()
            self.check(operator, take)

    def write(self, operator: str) -> None:
        """Takes the turn, or raises TurnHeld with the holder's name."""
        now = time.monotonic()
        if self.rules.state.holder != operator:
            self._refuse_if_unfinished(operator, now)
        effects = self.rules.write(operator, now)
        if effects or self._timer is None:
            self._publish(effects)
        self._refused(effects)

    def could_write(self, operator: str) -> None:
        """Raises TurnHeld if the operator could not get the turn now, and changes nothing.

        An act that waits for a decision must not hold the turn: it may never happen.
        """
        now = time.monotonic()
        holder = self.rules.holder(now)
        if holder is None:
            self._refuse_if_unfinished(operator, now)
        elif holder != operator:
            state = self.rules.state
            raise _held(Denied(holder, state.since, now - state.last_write, state.seized))

    async def look(self) -> None:
        """Forgets an unfinished line if the terminal has no lines now.

        Only line mode and a shell at its prompt have lines; vim or a pager has none.
        """
        state = await self._session.terminal()
        if not (state.lflag & termios.ICANON or self._session.at_prompt(state)):
            self.unfinished.settle()

    def typed(self, operator: str, data: bytes, now: float, key: bytes) -> None:
        """Input of the holder is about to be sent, authenticated by `key`."""
        self.rules.state.last_write = now
        self.device = key
        self.writer = operator
        self.unfinished.typed(operator, data, now)
        if (begun := operator if self.unfinished.open else "") != self._saved:
            self._save(begun)

    def _save(self, begun: str) -> None:
        """Saves the author of the unfinished line for the next host, once or twice per line.

        A file outlives the process, which is enough. If it cannot be written, only this caution is
        lost, not the session.
        """
        self._saved = begun
        with contextlib.suppress(OSError):
            fd = os.open(
                f"{self._session.host_only_directory}/{BEGUN}",
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.write(fd, begun.encode())
            finally:
                os.close(fd)

    def _recall(self) -> str:
        try:
            with open(f"{self._session.host_only_directory}/{BEGUN}", encoding="utf-8") as f:
                begun = f.read(256)
        except (OSError, ValueError):
            return ""
        if begun:
            self.unfinished.by, self.unfinished.pieces = begun, [Piece(begun, RECALLED)]
        return begun

    def _refuse_if_unfinished(self, operator: str, now: float) -> None:
        if self.rules.holder(now) is not None:
            return  # held: the refusal will name the holder
        found = self.unfinished.in_the_way(operator, now, self._has_lines())
        if found is not None:
            by = " and ".join(self.begun_by()) if found.kind == "line" else found.operator
            raise Unfinished(
                f"{by} has begun {_WORDS[found.kind]} and not finished it",
                "wait until it is entered or given up, or take over with what is there: "
                "`holdfast seize SESSION`",
                by=found.operator,
            )

    def begin_long(self, operator: str, key: bytes) -> None:
        self.write(operator)
        self._publish(self.rules.begin_long(operator, time.monotonic()))
        self.device = key

    def end_long(self, operator: str) -> None:
        self._publish(self.rules.end_long(operator, time.monotonic()))

    # ------------------------------------------------------------ moving

    async def request(self, operator: str, kind: str, wait_s: float) -> Shown:
        """Asks for the turn and waits up to `wait_s` for the answer; 0: returns at once."""
        self._publish(self.rules.expire(time.monotonic()))
        effects = await self._requests.place(operator, kind)
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
            now = self.facts()  # read first: the turn may be seized during the look
            return {"asked": False, "turn": now, "inherits": await self.inherited(operator)}
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
        """Keys were revoked: frees a turn taken with a revoked key, and drops requests.

        Requests are dropped if their operator has no key left.
        """
        now, holder = time.monotonic(), self.rules.state.holder
        if holder is not None and ((self.device and not counts(self.device)) or not known(holder)):
            self._publish(self.rules.lose(holder, now))
        for waiting in self.rules.waiting():
            if not known(waiting):
                self._publish(self.rules.leave(waiting, now))

    def stopped(self, operator: str) -> None:
        """The operator was stopped: it neither holds the turn nor waits for it."""
        now = time.monotonic()
        self._publish(self.rules.lose(operator, now))
        self._publish(self.rules.leave(operator, now))

    def leave(self, operator: str) -> None:
        self._publish(self.rules.leave(operator, time.monotonic()))

    def presence(self, connected: bool) -> None:
        """The holder of a seized turn came, or its last client left."""
        self._publish(self.rules.presence(connected, time.monotonic()))

    def _note_seized(self) -> None:
        """Watches the holder of a seized turn, and saves its name for the next host."""
        state = self.rules.state
        seized = state.holder if state.holder is not None and state.seized else ""
        if seized != self._seized:
            self._seized = seized
            self._presence.watch(self, seized or None)
            handover_file.write(f"{self._session.host_only_directory}/{SEIZED}", (seized,))
            if seized:
                self.rules.presence(self._presence.connected(seized), time.monotonic())

    def _recall_seized(self) -> str:
        try:
            path = f"{self._session.host_only_directory}/{SEIZED}"
            holder = handover_file.read(path, NAME_BYTES).decode()
        except (OSError, ValueError):
            return ""
        if holder:
            now = time.monotonic()
            self.rules.state = TurnState(holder, now, now, seized=True, away=now)
        return holder

    def take(self, operator: str, key: bytes) -> str | None:
        """Takes the turn from any holder; returns the old one. The caller has checked the right."""
        previous = self.holder
        self._publish(self.rules.take(operator, time.monotonic()))
        self.device = key
        return previous if previous != operator else None

    def contended(self, operator: str, error: BaseException) -> None:
        """Publishes that an operator's input was refused because of a second operator.

        At most once until the turn moves, because keys may come at any rate.
        """
        if isinstance(error, TurnHeld):
            other, why = error.facts.get("holder"), "held"
        elif isinstance(error, Unfinished | Busy):
            other, why = error.facts.get("by"), "unfinished"
        else:
            return
        if (
            isinstance(other, str)
            and other != operator
            and (operator, other) not in self._contended
            and len(self._contended) < CONTENDED_MAX
        ):
            self._contended.add((operator, other))
            self._session.event("turn.refused", operator=operator, holder=other, why=why)

    # ------------------------------------------------------------ inherited state

    def greet(self, operator: str) -> None:
        """Shows the inherited state to an operator that came back: a client attached."""
        if self._inheritance.owed == operator:
            self._show_inherited(operator)

    def unaware(self, operator: str) -> bool:
        """Whether an act of this operator, which begins now, should bring a `note`."""
        self.greet(operator)
        return self._inheritance.known != operator

    async def note(self, operator: str) -> Facts | None:
        """The inherited state for the reply of an act that may have taken the turn."""
        look = self._look
        if look is None or look.operator != operator:
            return None
        await asyncio.wait({look.news})
        if look.news.cancelled() or look.news.exception() is not None:
            return None  # the act is done: its reply must not fail
        self._inheritance.shown(operator, look.news.result())
        return look.news.result()

    async def inherited(self, operator: str) -> Facts:
        """The whole inherited state, for an operator that asked for the turn or seized it."""
        look = self._look
        begun = look is not None and look.operator == operator and not look.found.done()
        found = await (asyncio.shield(look.found) if look and begun else self.inherits())
        self._inheritance.shown(operator, None)
        return found

    def _show_inherited(self, operator: str) -> None:
        found = self._session.spawn(self.inherits())
        self._look = _Look(operator, found, self._session.spawn(self._tell(operator, found)))

    async def _tell(self, operator: str, found: asyncio.Task[Facts]) -> Facts | None:
        news = self._inheritance.news(operator, await found)
        viewers = [one for one in self._session.viewers if one.conn.operator == operator]
        if news is not None:
            for viewer in viewers:
                viewer.conn.event("inherits", session=self._session.id, **news)
        if viewers:
            self._inheritance.shown(operator, news)
        return news

    # ------------------------------------------------------------ effects

    def _refused(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Denied):
                raise _held(effect)

    def _publish(self, effects: list[Effect]) -> None:
        session, waiting = self._session, list(self.rules.waiting())
        if effects:
            session.keyboard.recheck()
        for effect in effects:
            if isinstance(effect, Taken):
                self.device = b""
                self._contended.clear()
                if effect.how in ("hand", "grant", "seize"):
                    self.unfinished.inherit(effect.holder)
                moved = {"holder": effect.holder, "previous": effect.previous, "how": effect.how}
                session.viewers.tell("turn", **moved, waiting=waiting)
                if self._inheritance.taken(effect.holder):
                    self._show_inherited(effect.holder)
                session.event("turn.taken", **moved)
                self._answer(effect.holder, effect)
            elif isinstance(effect, Asked):
                asked = {"operator": effect.operator, "holder": effect.holder}
                session.viewers.tell("turn_asked", **asked, waiting=waiting)
                session.event("turn.asked", **asked)
            elif isinstance(effect, Withdrawn):
                withdrawn = {"operator": effect.operator, "why": effect.why}
                session.viewers.tell("turn_withdrawn", **withdrawn, waiting=waiting)
                session.event("turn.withdrawn", **withdrawn)
                self._answer(effect.operator, effect)
            elif not isinstance(effect, Denied):
                moved = {"holder": self.holder, "previous": effect.previous, "how": "free"}
                session.viewers.tell("turn", **moved, waiting=waiting)
                session.event("turn.freed", previous=effect.previous)
        self._note_seized()
        self._watch()

    def _answer(self, operator: str, effect: Effect) -> None:
        for future in self._asking.get(operator, ()):
            if not future.done():
                future.set_result(effect)

    def _watch(self) -> None:
        """Keeps a timer while the turn is held, to tell viewers when the turn lapses."""
        deadline = self.rules.deadline()
        if self._timer is not None and deadline is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline is not None:
            self._timer = self._session.loop.call_later(
                max(0.0, deadline - time.monotonic()), self._due
            )

    def _due(self) -> None:
        self._timer = None
        self._publish(self.rules.expire(time.monotonic()))

    def close(self) -> None:
        self._presence.watch(self, None)
        if self._timer is not None:
            self._timer.cancel()


def _held(denied: Denied) -> TurnHeld:
    if denied.seized:
        return TurnHeld(f"held by {denied.holder} until released", holder=denied.holder)
    return TurnHeld(
        f"{denied.holder} holds the turn (last wrote {denied.idle_for:.1f} s ago)",
        holder=denied.holder,
    )
