"""The state of an attached client. Pure: `handle(event, now)` returns effects, without any I/O.

The loop (loop.py) owns the terminal, the connection and the clock. Keys are numbered here and kept
until the session confirms each key. So no key is lost or doubled if the host dies between two keys:
the client connects again and resumes at the first open number.
"""

from __future__ import annotations

from holdfast.client.attach import events, farewell, overlay
from holdfast.client.attach.approvals import NOTHING, Approvals
from holdfast.client.attach.elsewhere import ELSEWHERE
from holdfast.client.attach.events import Effect, Event, Finish, Frame, Keys, Notice, Send, Write
from holdfast.client.attach.key_signing import KeySigning
from holdfast.client.attach.notices import Notices
from holdfast.client.attach.prefix import Prefix, first_key
from holdfast.client.attach.reconnect import Reconnect
from holdfast.client.attach.switching import chosen_session, next_session
from holdfast.client.attach.turn_notices import COMMANDS, TurnNotices
from holdfast.client.attach.unacked import Unacked
from holdfast.client.gone import HostGone, NoRoute
from holdfast.client.signing import SigningTarget
from holdfast.model.errors import NotAllowed, PeerFault, TimedOut, Unavailable
from holdfast.model.limits import ACK_EVERY_INPUTS
from holdfast.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.model.errors import HoldfastError
    from holdfast.model.jsontext import Json

# The kind of a request. The request number is the kind plus a multiple of KINDS, so that a late
# answer to an earlier request of the same kind is recognised.
QUESTION, ATTACH, DETACH, LIST, REFRESH, STEER, COVER, PLACE, OTHERS = range(9)
KINDS = 9


class AttachState:
    def __init__(
        self,
        session: str,
        operator: str,
        prefix: Prefix,
        observe: bool = False,
        machine: str | None = None,
        titled: bool = False,
        others: str = "none",
    ) -> None:
        """`machine`: the name of a machine behind a relay; None: this machine.

        `titled`: the terminal's title names the session and the operator that writes. `others`: the
        waits of other sessions that are told (`elsewhere.KINDS`).
        """
        # Set by the loop before each event.
        self.size = (0, 0)  # columns and rows of the user's terminal
        self.blocked = False  # the terminal has not taken all output yet

        self.session, self.name, self.says, self.sees = session, session, "", ""
        self.observe = observe
        self.connected = False
        self.offset: int | None = None  # end of the shown output; None: a screen is needed
        self.unacked = Unacked()
        self.sequence = 0  # number of the last input or act
        self.notices = Notices()
        self.again = Reconnect(machine is not None)
        self.last_request = 0

        self._machine, self._prefix = machine, prefix
        self._titled, self._title = titled, ""
        self._effects: list[Effect] = []
        self._now = 0.0
        self._signing = KeySigning()
        self._turn = TurnNotices(operator, prefix.name)
        self._approvals = Approvals(operator, prefix.name, lambda one: self._emit(one), others)
        self._command = False  # the prefix key was pressed
        self._paged = False  # help or the list of sessions covers the screen
        self._listing: str | None = None  # the key for which sessions are listed
        self._sessions: list[Json] = []
        self._ahead = b""  # typed while the list of sessions is awaited
        self._previous = ""  # the session before a switch
        self._return_to: str | None = None  # the session to return to if a switch fails
        self._overdrawn = False  # the screen was drawn over: the next attach needs a fresh screen
        self._unrecorded: tuple[int, bytes, float] | None = None  # sent, not in `unacked` yet
        self._ended: Finish | None = None
        self._finished = False

    # ------------------------------------------------------------ for the loop

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._unrecorded is not None:
            self._record()
        effects = self._effects = list[Effect]()
        self._now = now
        if type(event) is Keys:
            self._keys(event.data)
        elif type(event) is Frame:
            self._frame(event.kind, event.payload)
        else:
            _EVENTS[type(event)](self, event)
        return effects

    @property
    def covered(self) -> bool:
        """Whether help, a list or a question covers the session's screen: output is not shown."""
        return self._paged or self._approvals.busy

    def deadline(self) -> float | None:
        """When the next `Tick` is due."""
        if self._unrecorded is not None:
            self._record()
        due = self._signing.at
        if self.connected and self.notices.until is None and self._approvals.at is None:
            return due
        for at in (
            self.notices.until,
            self._approvals.at,
            None if self.connected else self.again.at,
        ):
            if at is not None and (due is None or at < due):
                due = at
        return due

    def resume_offset(self, delivered: int | None) -> int | None:
        """The offset to resume from, if the terminal shows the session's own complete screen.

        `delivered`: how far the ring was shown, if this client reads the ring.
        """
        if self._overdrawn:
            self.offset, self._overdrawn = None, False
        elif delivered is not None:
            self.offset = delivered
        return self.offset

    # ------------------------------------------------------------ connection

    def _attached(self, event: events.Attached) -> None:
        answer = event.answer
        if self.offset is not None and answer["resume"] is not None and event.ring:
            # No output was missed: no screen comes.
            self._emit(events.OpenRing(self.offset, resumed=True))
        self.session, self.name = answer["id"], answer["name"]
        self.says, self.sees = (str(answer.get(name) or "") for name in ("says", "sees"))
        self.notices.shown = self.notices.shown and self.offset is not None
        self._approvals.begin()
        lost = self._signing.lost(answer, self.unacked)
        self.unacked.acked(int(answer["acked"]))
        self._signing.begin(SigningTarget(str(answer["id"]), int(answer["epoch"]), answer["seen"]))
        for sequence, data in self.unacked:
            self._emit(Send(frames.input_(sequence, data, frames.INPUT_ACK)))
            self._signing.typed(sequence, data, self._now)
        self._previous, self._return_to = self._return_to or self._previous, None
        if not self.connected:
            self.connected = True
            self.again.reached(self._now)
        self._say(self._turn.greeting(answer, lost))
        for request in self._approvals.elsewhere.requests():
            self._request(OTHERS, request)
        self._type_ahead()

    def _attach_failed(self, event: events.AttachFailed) -> None:
        error, back = event.error, self._return_to
        if back is not None and not isinstance(error, HostGone | OSError):  # a switch failed
            self.session, self._return_to = back, None
            self._emit(events.Attach())
            self.notices.requested(reminds=True)  # the notice waits for the screen of that session
            return self._say(error.message)
        self._return_to = None
        if self.connected:
            assert not isinstance(error, OSError)
            return self._connection_lost(error)
        if isinstance(error, HostGone) and error.reason == "down":
            return self._connection_lost(error)
        if isinstance(error, Unavailable | TimedOut | OSError | NoRoute):
            self._emit(events.Disconnect())
            self.again.failed(self._now)
            return self._still_away("does not answer", error)
        self._emit(farewell.sent_away(self.name, error))

    def _connection_lost(self, error: HoldfastError) -> None:
        self._emit(events.Disconnect())
        self.connected = self._approvals.elsewhere.asked = False
        self._listing = None  # the answer to the request is lost with the connection
        self._overdrawn = self._overdrawn or self._approvals.busy or not self.notices.shown
        self._approvals.leave()
        reason = error.reason if isinstance(error, HostGone) else ""
        if reason == "down":
            self._emit(farewell.stopped(self.name, self._machine))
        elif reason == "admission" or isinstance(error, PeerFault | NotAllowed):
            self._emit(farewell.sent_away(self.name, error))
        else:
            self.again.lost(self._now)

    def _dialling(self, event: events.Dialling) -> None:
        self.again.dials(self._now)
        self._still_away("is not reached")

    def _found(self, event: events.Found) -> None:
        self.again.at = 0.0
        self._tick(events.Tick())

    def _still_away(self, why: str, error: object = None) -> None:
        if (saved := farewell.waits_for_restore(error)) or self.again.long(self._now):
            where = self._machine or "the host"
            self._emit(Notice(saved or f"{where} {why}; the session keeps running; trying again"))
            self._overdrawn = True

    def _tick(self, event: events.Tick) -> None:
        now = self._now
        if self._signing.at is not None and now >= self._signing.at:
            self._cover()
        if not self.connected and now >= self.again.at:
            self.again.tries(now)
            self._emit(events.Connect())
        if self.notices.due(now):
            self._refresh(reminds=False)
        if self._approvals.at is not None and now >= self._approvals.at:
            self._say(self._approvals.reminder(now))

    def _leave(self, event: events.Leave) -> None:
        if self.connected:
            self._cover()
            self._request(DETACH, {"op": "detach"})

    # ------------------------------------------------------------ keys

    def _keys(self, data: bytes) -> None:
        if not self.connected:
            self.again.typed()
        if (
            self._listing is None
            and not self._command
            and not self._paged
            and not self._approvals.busy
            and self._prefix.absent(data)
        ):
            self._type(data)
        else:
            self._interpret(data)

    def _interpret(self, data: bytes) -> None:
        """Keys that may be commands, or for a page that covers the screen."""
        while data and not self._finished:
            if self.covered:
                key = first_key(data)
                data = data[len(key) :]
                self._page_key(key)
            elif self._listing is not None or self._return_to is not None:
                self._ahead += data  # for the session that will be attached
                return
            elif self._command:
                self._command = False
                key, data = data[:1], data[1:]
                self._do(key)
            else:
                before, prefix, data = self._prefix.partition(data)
                if before:
                    self._type(before)
                self._command = bool(prefix)

    def _page_key(self, key: bytes) -> None:
        if self._listing is not None:
            self._listing, self._paged = None, False
            chosen = chosen_session(key, self._sessions)
            return self._switch(chosen) if chosen is not None else self._refresh()
        if not self._approvals.busy or self._approvals.key(
            key, self._prefix.key, self.blocked, lambda: self._number(STEER)
        ):
            self._paged = False
            self._refresh()
            self._command = key == self._prefix.key

    def _type(self, data: bytes) -> None:
        if self.observe:
            return self._say("you only observe; attach again without --observe to type")
        if self._unrecorded is not None:
            self._record()
        if self.connected and self.unacked.idle:
            return self._send_input(data)
        self.unacked.type(data)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self.connected:
            if self._unrecorded is not None:
                self._record()
            if (data := self.unacked.next()) is None:
                return
            self._send_input(data)

    def _send_input(self, data: bytes) -> None:
        unacked = self.unacked
        self.sequence = sequence = self.sequence + 1
        ask = unacked.pressing or (len(unacked) + 1) % ACK_EVERY_INPUTS == 0
        self._effects.append(Send(frames.input_(sequence, data, frames.INPUT_ACK if ask else 0)))
        self._unrecorded = (sequence, data, self._now)

    def _record(self) -> None:
        """Keep the last input. Called after sending, so that the echo is not delayed."""
        assert self._unrecorded is not None
        sequence, data, now = self._unrecorded
        self._unrecorded = None
        self.unacked.sent(sequence, data)
        self._signing.typed(sequence, data, now)

    def _type_ahead(self) -> None:
        """Interpret the keys that were typed before the session was known."""
        self._send_waiting()
        ahead, self._ahead = self._ahead, b""
        self._interpret(ahead)

    def _do(self, key: bytes) -> None:
        """A command after the prefix key."""
        if key in (b"d", b"D", b"\x04"):
            self._emit(farewell.detached(self._full_name))
        elif key == self._prefix.key:
            self._type(key)
        elif key in (b"?", b"h", b"m"):
            self._paged = True
            help = overlay.help_page(self.name, self.session, self._prefix.name)
            self._emit(events.Draw(self.notices.page() if key == b"m" else help))
        elif key in (b"s", b"w", b"n", b"p", b"l"):
            if self.connected:
                self._listing = key.decode()
                self._request(LIST, {"op": "ls"})
        elif key in COMMANDS:
            request = self._turn.request(key)
            self._say(request) if isinstance(request, str) else self._steer(request)
        elif key == b"y":
            self._show_question()
        elif key == b"r":
            self._refresh()
        elif key == b"\x1a":
            self._emit(events.Suspend())
        else:
            self._say(f"no such command; {self._prefix.name} ? shows help")

    def _steer(self, request: Json) -> None:
        self.sequence += 1
        fields = {"seq": self.sequence, **request}
        op = str(fields.pop("op"))
        self._emit(events.SendAct(self._number(STEER), op, fields, self._signing.target))

    def _show_question(self) -> None:
        if not self.connected:
            return
        id = self._approvals.choose()
        if id is None:
            return self._say_instead(NOTHING)
        self._approvals.requested(self._request(QUESTION, {"op": "approvals", "id": id}))

    # ------------------------------------------------------------ switching sessions

    def _listed(self, sessions: list[Json]) -> None:
        self._sessions = sessions
        how, self._listing = self._listing, None
        match next_session(how, [s["id"] for s in sessions], self.session, self._previous):
            case "":
                self._say("no session before this one")
            case str(session):
                self._switch(session)
            case None:
                self._listing, self._paged = "s", True
                self._emit(events.Draw(overlay.sessions_page(sessions, self.session)))

    def _switch(self, session: str) -> None:
        if session == self.session:
            return self._refresh()
        self._cover()
        self.unacked.clear()  # sent before; the rest was typed for the old session
        self._return_to = self.session
        self.offset, self.session = None, session
        self._emit(events.CloseRing())
        self._emit(events.Attach())

    # ------------------------------------------------------------ frames

    def _frame(self, kind: int, payload: bytes | memoryview) -> None:
        if kind == frames.OUTPUT:
            _, end, acked, data = frames.read_output(payload)
            self.offset = end
            if acked:
                self._acked(acked)
            if len(data) and not self.covered:
                self._effects.append(Write(data))
        elif kind == frames.SCREEN:
            self._screen(payload)
        elif kind == frames.EVENT:
            self._event(frames.read_json(payload))
        elif kind == frames.REPLY:
            self._reply(*frames.read_reply(payload))
        elif kind == frames.BYE:
            body = frames.read_json(payload)
            words = (str(body.get("message")), str(body.get("reason")))
            self._connection_lost(HostGone(*words, str(body.get("recover") or "")))

    def _acked(self, sequence: int) -> None:
        self.unacked.acked(sequence)
        if self.unacked.waiting:
            self._send_waiting()

    def _screen(self, payload: bytes | memoryview) -> None:
        offset, acked, reason, _, _, data = frames.read_screen(payload)
        foreign = reason == frames.SCREEN_FOREIGN
        self.offset = None if foreign else offset
        self._acked(acked)
        if not self.covered:  # a page stays until a key, which requests a fresh screen
            self._emit(Write(data))
            self._say(self.notices.came(self._approvals.reminder(self._now)))
        self._title = ""  # the screen may have brought the title of a program
        self._retitle()
        self._emit(events.StopRing() if foreign else events.OpenRing(offset))

    def _reply(self, number: int, ok: bool, body: Json) -> None:
        kind = number % KINDS
        if kind == COVER:
            if self._signing.answered(number, ok, body):
                self._request(PLACE, {"op": "place", "session": self._signing.target.session})
        elif kind == PLACE:
            if ok:
                self._signing.target.seen = body.get("seen")
                self._cover()
        elif kind == QUESTION:
            self._say_instead(self._approvals.came(number, ok, body, self.size, self.blocked))
        elif kind == LIST:
            if ok:
                self._listed([s for s in body["sessions"] if s["state"] in ("live", "detached")])
            else:
                self._listing = None
            if self._return_to is None:
                self._type_ahead()
        elif not ok and kind != OTHERS:
            self._say(self._turn.refusal(body))
        elif "recorded" in body:
            self._emit(events.KeepReceipt(body["recorded"]))

    def _event(self, body: Json) -> None:
        name = body.get("event")
        if name == "ended":
            self._ended = farewell.ended(self.name, body)
            self._emit(events.Drain())
        elif name == "refused":
            self.unacked.drop(int(body.get("number") or 0))
            self._send_waiting()
            self._say(self._turn.refusal(body))
        elif name == "renamed":
            self.name = str(body.get("name"))
            self._retitle()
        elif name == "sent_away":
            self._emit(farewell.detached_by(self._full_name, str(body.get("operator"))))
        elif name in ("approval", *ELSEWHERE):
            words, settled = self._approvals.heard(body, self._now, self.session)
            if settled:
                self._approvals.leave()
                self._refresh()
            self._say(words)
        else:
            self._say(self._turn.words(body))
            if name == "turn":
                self._retitle()

    # ------------------------------------------------------------ the rest of the events

    def _missed(self, event: events.Missed) -> None:
        self._emit(farewell.ended_unseen(self._ended)) if self._ended else self._refresh()

    def _drained(self, event: events.Drained) -> None:
        if self._ended is not None:
            self._emit(self._ended)

    def _resized(self, event: events.Resized) -> None:
        self._say_instead(self._approvals.resized(self.size, self.blocked))
        if self.connected:
            self._emit(Send(frames.resize(0, *self.size)))

    def _signalled(self, event: events.Signalled) -> None:
        self._emit(farewell.told_to_leave(self.name, event.number, event.name))

    # ------------------------------------------------------------ helpers

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)
        self._finished = self._finished or type(effect) is Finish

    @property
    def _full_name(self) -> str:
        return self.name if self._machine is None else f"{self._machine}/{self.name}"

    def _number(self, kind: int) -> int:
        """A fresh number for each request: an earlier request may still be open."""
        self.last_request += KINDS - self.last_request % KINDS + kind
        return self.last_request

    def _retitle(self) -> None:
        """Set the title if it differs from the one that was set last."""
        text = f"{self._full_name}: {self._turn.writes}"
        if self._titled and text != self._title:
            self._title = text
            self._emit(events.Title(text))

    def _request(self, kind: int, body: Json) -> int:
        number = self._number(kind)
        self._emit(Send(frames.request(number, body)))
        return number

    def _refresh(self, reminds: bool = True) -> None:
        """Ask for the session's screen."""
        if self.connected:
            self.notices.requested(reminds)
            self._request(REFRESH, {"op": "refresh"})
        else:
            self._overdrawn = True

    def _cover(self) -> None:
        """Sign all keys that have no signature yet."""
        if self._unrecorded is not None:
            self._record()
        for keys in self._signing.unsigned():
            number = self._number(COVER)
            self._signing.sent(number, keys)
            self._emit(events.SendCover(number, self._signing.target, keys))

    def _say(self, text: str | None) -> None:
        shown = self.notices.say(text, self._now, self.covered) if text else None
        if shown is not None:
            self._emit(Notice(shown))

    def _say_instead(self, text: str | None) -> None:
        """A notice in place of a page that cannot be shown."""
        if text:
            self._refresh()
            self._say(text)


_EVENTS: dict[type[Event], Any] = {
    events.Attached: AttachState._attached,
    events.AttachFailed: AttachState._attach_failed,
    events.Lost: lambda state, event: state._connection_lost(event.error),
    events.Dialling: AttachState._dialling,
    events.Found: AttachState._found,
    events.Missed: AttachState._missed,
    events.Drained: AttachState._drained,
    events.Resized: AttachState._resized,
    events.Redraw: lambda state, event: state._refresh(),
    events.Signalled: AttachState._signalled,
    events.TerminalGone: lambda state, event: state._emit(Finish("", 129)),
    events.Tick: AttachState._tick,
    events.Leave: AttachState._leave,
}
