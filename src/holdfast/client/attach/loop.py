"""The attach loop: keys in, output out, and nothing in between that costs time.

One poll over the user's terminal, the host's socket and a signal pipe. Frames are small and fixed; nothing heavy is imported. Keys
are numbered and kept until the session has taken them, so that a host that dies between two keys costs neither a lost nor
a doubled one: the loop connects again by itself, says where it was, and goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from functools import partial
from typing import Any

from holdfast.client.company import COMMANDS, Company
from holdfast.client.covering import COVER, PLACE, Covering
from holdfast.client.deciding import QUESTION, Deciding
from holdfast.client.ending import Finished, detached, ended, sent_away, stopped, told_to_leave
from holdfast.client.feed import Feed
from holdfast.client.link import HostGone, Link, NoWay
from holdfast.client.notices import Notices
from holdfast.client.overlay import Overlay
from holdfast.client.prefix import Prefix, first_key
from holdfast.client.returning import Returning
from holdfast.client.switching import chosen_session, next_session
from holdfast.client.terminal import UserTerminal, poke
from holdfast.client.unacked import Unacked
from holdfast.model.errors import (
    HoldfastError,
    NotAllowed,
    PeerFault,
    TimedOut,
    Unavailable,
    from_wire,
)
from holdfast.model.limits import ACK_EVERY_INPUTS
from holdfast.wire import frames

KEYS_BYTES = 16 * 1024  # of typing or pasting at a time
READ_BYTES = 256 * 1024  # of frames at a time
LEAVE_ON = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
)  # all that would otherwise leave the terminal raw
ATTACH = 1  # request numbers
LIST, REFRESH, STEER, KINDS = (
    3,
    4,
    5,
    8,
)  # what a request asks; its number is that plus a multiple of KINDS


class Attachment:
    def __init__(
        self,
        link: Link,
        session: str,
        observe: bool,
        take: bool,
        prefix: int,
        prefix_name: str,
        scrollback: int | None,
        status: bool,
        agent: str | None,
    ) -> None:
        self.link, self.observe, self.take, self.status = link, observe, take, status
        self.session, self.name, self.says = session, session, ""
        self.prefix = Prefix(bytes([prefix]))
        self.prefix_name = prefix_name
        self.scrollback = scrollback
        self.agent = agent
        self.term = UserTerminal()
        self.overlay = Overlay(self.term, prefix_name)
        self.notices = Notices(self.overlay)
        self.company = Company(link.operator, prefix_name)
        self.deciding = Deciding(link, self.overlay, prefix_name, self._ask, STEER)
        self.offset: int | None = (
            None  # where the output we have shown ends; None: we need a screen
        )
        self.unacked = Unacked()
        self.covering = Covering(link.acting, self._ask)
        self.previous = ""
        self.sessions: list[dict[str, Any]] = []
        self._command = False  # the prefix key was pressed
        self._ahead = b""  # typed while the list of sessions is on its way
        self._covered = (
            False  # part of the screen was drawn over: the next attach needs a fresh one
        )
        self._frames = frames.Reader(frames.FROM_HOST)
        self._inbox: deque[tuple[int, bytes]] = deque()  # frames that came with an answer
        self._poll = select.poll()
        self._stuck = (
            select.poll()
        )  # used while the terminal has not taken everything: more output can wait
        self._room = [(self.term.out, select.POLLOUT)]
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._again = Returning(link.away is not None)
        self._listing: str | None = None
        self._asked = 0  # requests so far
        self._registered = -1  # the host's descriptor in the poll
        self._watched: object = None  # whose that is
        self._signalled = False
        self._deaf = False  # too much was typed that nobody takes: the keyboard is not read
        self.feed = Feed(self._poll, self.term, self.overlay, link)
        self._ended: Finished | None = None

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Asks for the session; what goes wrong here is the command's error, and the terminal is as it was."""
        if self.take:
            self.link.request("seize", session=self.session)
        self._open()

    def run(self) -> tuple[str, int]:
        """Until the user detaches or the session ends, after `begin`. Gives the message for the user and the exit code."""
        old = {
            n: signal.signal(n, self._noticed)
            for n in (signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP, *LEAVE_ON)
        }
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            self.term.enter()
            for poll in (self._poll, self._stuck):
                poll.register(0, select.POLLIN)
                poll.register(self._wake_r, select.POLLIN)
            self._stuck.register(self.term.out, select.POLLOUT)
            while True:
                self._turn()
        except Finished as end:
            return end.message, end.code
        finally:
            self.term.leave()
            self.feed.close()
            if self.link.sock is not None:
                self.link.give_back(self._inbox, self._frames.rest())
                with contextlib.suppress(Finished):
                    self.covering.farewell(self.link)
            signal.set_wakeup_fd(-1)
            for number, handler in old.items():
                signal.signal(number, handler)
            self.link.close()

    def _turn(self) -> None:
        """One round of the loop. Frames come first: an attach may have brought some, and no event would tell of them."""
        while self.term.pending is None and (one := self._next()) is not None:
            self._frame(*one)
        if self.feed.rung and self.term.pending is None:
            self._output()
        if self.unacked.waiting:
            self._send_typed()
        if self.covering.at is not None and time.monotonic() >= self.covering.at:
            self.covering.cover()
        if self.link.sock is not self._watched or self._inbox or self._deaf or self.unacked.full:
            self._interest()
        stuck = self.term.pending is not None
        if stuck and self.feed.direct is not None:
            self.feed.direct.look_ahead()
        poll = self._stuck if stuck else self._poll
        while (
            ready := poll.poll(self._timeout())
        ) == self._room:  # a flood: the terminal takes more of it, no more happens
            self.term.flush()
            if self.term.pending is None:
                return
        for fd, events in ready:
            if fd == 0:
                self._keys()
            elif fd == self._wake_r:
                self._signals()
            elif fd == self.term.out and events & select.POLLOUT:
                self.term.flush()
            elif self.feed.direct is not None and fd == self.feed.direct.bell:
                if self.term.pending is None:
                    self._output()  # first what there is, for the eye; then the bell
                if self.feed.direct is not None:
                    self.feed.direct.quiet()
                self.feed.rung = True  # and once more: it may have rung in between
            elif self.link.sock is not None and fd == self.link.sock.fileno():
                self._receive()
        if self.link.sock is None and time.monotonic() >= self._again.at:
            self._reconnect()
        if self.notices.due():
            self._refresh(reminds=False)
        if (
            self.deciding.at is not None
            and time.monotonic() >= self.deciding.at
            and (words := self.deciding.reminder())
        ):
            self.notices.say(words)

    def _next(self) -> tuple[int, bytes | memoryview] | None:
        if self._inbox:
            return self._inbox.popleft()
        try:
            return self._frames.next()
        except PeerFault as e:
            self._lost(e)
            return None

    def _timeout(self) -> float | None:
        if self.link.sock is not None and self.notices.until is None and self.deciding.at is None:
            return (
                None
                if self.covering.at is None
                else max(0.0, (self.covering.at - time.monotonic()) * 1000)
            )
        due = [
            t
            for t in (
                self._again.at if self.link.sock is None else None,
                self.notices.until,
                self.covering.at,
                self.deciding.at,
            )
            if t is not None
        ]
        return max(0.0, (min(due) - time.monotonic()) * 1000) if due else None

    def _interest(self) -> None:
        if self.unacked.full != self._deaf:
            self._deaf = not self._deaf
            for poll in (self._poll, self._stuck):
                poll.unregister(0) if self._deaf else poll.register(0, select.POLLIN)
        self._watched = self.link.sock
        fd = self.link.sock.fileno() if self.link.sock is not None and not self._inbox else -1
        if fd == self._registered:
            return
        if self._registered >= 0:
            with contextlib.suppress(OSError, KeyError):
                self._poll.unregister(self._registered)
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        self._registered = fd

    # ------------------------------------------------------------ connection

    def _open(self) -> None:
        """Connects and asks for the session; errors here are the command's errors."""
        if self.link.sock is None:
            self.link.connect()
        self._frames = frames.Reader(frames.FROM_HOST)
        self._inbox.clear()
        self._attach()

    def _attach(self) -> None:
        cols, rows = self.term.size()
        self.link.send(
            frames.request(
                ATTACH,
                {
                    "op": "attach",
                    "session": self.session,
                    "cols": cols,
                    "rows": rows,
                    "observe": self.observe,
                    "scrollback": self.scrollback,
                    "resume": self._resume(),
                    "agent": self.agent,
                    "direct": True,
                },
            )
        )
        while True:
            kind, payload = self.link.receive(10.0)
            if kind == frames.REPLY:
                number, ok, body = frames.read_reply(payload)
                if number == ATTACH:
                    if not ok:
                        raise from_wire(body)
                    break
        self.feed.close()
        self.feed.descriptors, self.link.descriptors = self.link.descriptors, []
        if self.offset is not None and body["resume"] is not None and self.feed.descriptors:
            self.feed.open(self.offset, resumed=True)  # nothing was missed: no screen comes
        self.session, self.name, self.says = body["id"], body["name"], str(body.get("says") or "")
        self.notices.shown = self.notices.shown and self.offset is not None
        self.deciding.begin()
        self.unacked.acked(int(body["acked"]))
        self.covering.begin(
            self.link.acting.learn(
                self.session, {"id": body["id"], "epoch": body["epoch"], "seen": body["seen"]}
            )
        )
        assert self.link.sock is not None
        self.link.sock.settimeout(None)
        for sequence, data in self.unacked:
            self.link.send(frames.input_(sequence, data, frames.INPUT_ACK))
            self.covering.typed(sequence, data, time.monotonic())
        self._inbox.extend(self.link.take_ready())
        rest = self.link.splitter.take()
        self._frames = frames.Reader(frames.FROM_HOST, size=max(READ_BYTES, 2 * len(rest)))
        self._frames.space()[: len(rest)] = rest
        self._frames.received(len(rest))

    def _resume(self) -> int | None:
        """Where we are, if what we show is the session's own screen and complete."""
        if self._covered:
            self.offset = None
            self._covered = False
        elif self.feed.direct is not None and self.feed.direct.offset >= 0:
            self.offset = self.feed.direct.delivered
        return self.offset

    def _output(self) -> None:
        """Output straight from the ring, as far as the terminal takes it."""
        try:
            if not self.feed.show():
                self._refresh()
            elif self._ended is not None and not self.feed.rung:
                raise self._ended
        except HoldfastError as e:
            self._lost(e)

    def _lost(self, error: HoldfastError) -> None:
        self.link.close()
        self._listing = None  # its answer will not come
        self._covered = self._covered or self.deciding.busy or not self.notices.shown
        self.deciding.leave()
        if isinstance(error, HostGone) and error.reason == "down":
            raise stopped(self.name, None if self.link.away is None else self.link.away.name)
        if isinstance(error, PeerFault | NotAllowed) or (
            isinstance(error, HostGone) and error.reason == "admission"
        ):
            raise sent_away(self.name, error)
        self._again.lost()

    def _reconnect(self) -> None:
        self._again.tries()
        try:
            if not self.link.ready(partial(poke, self._wake_w)):
                self._again.looks()
                return self._still_away(f"{self.link.where} is not reached")
            self._open()
        except (Unavailable, TimedOut, OSError, NoWay) as e:
            if isinstance(e, HostGone) and e.reason == "down":
                self._lost(e)
            self.link.close()
            self._again.failed()
            self._still_away(f"{self.link.where} does not answer")
        except HoldfastError as e:
            raise sent_away(self.name, e) from e
        else:
            self._again.reached()
            self._go_on_typing()

    def _still_away(self, why: str) -> None:
        if self._again.long:
            self.overlay.notice(f"{why}; the session keeps running; trying again")
            self._covered = True

    # ------------------------------------------------------------ keys

    def _keys(self) -> None:
        try:
            data = os.read(0, KEYS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            raise Finished("", 129)
        if self.link.sock is None:
            self._again.typed()
        if self._signalled:
            self._signals()  # a size that changed before these keys goes before them
        if (
            self._listing is None
            and not self._command
            and not self.overlay.covering
            and self.prefix.absent(data)
        ):
            self._type(data)
        else:
            self._typed(data)

    def _typed(self, data: bytes) -> None:
        while data:
            if self._listing is not None and not self.overlay.covering:
                self._ahead += data  # for whichever session it will be
                return
            if self.overlay.covering:
                key = first_key(data)
                data = data[len(key) :]
                if self._listing is not None:
                    self._choose(key)
                elif not self.deciding.busy or self.deciding.key(key, self.prefix.key):
                    self.overlay.closed()
                    self._refresh()
                    self._command = key == self.prefix.key
                continue
            if self._command:
                self._command = False
                key, data = data[:1], data[1:]
                self._do(key)
                continue
            before, prefix, data = self.prefix.partition(data)
            if before:
                self._type(before)
            self._command = bool(prefix)

    def _type(self, data: bytes) -> None:
        if self.observe:
            return self.notices.say("you only observe; attach again without --observe to type")
        if self.link.sock is not None and self.unacked.idle:
            return self._send_now(data)
        self.unacked.type(data)
        self._send_typed()

    def _send_typed(self) -> None:
        while self.link.sock is not None and (data := self.unacked.next()) is not None:
            self._send_now(data)

    def _send_now(self, data: bytes) -> None:
        """First it is sent, then written down here: every microsecond before is one more until its echo."""
        link, unacked = self.link, self.unacked
        link.sequence = sequence = link.sequence + 1
        ask = unacked.pressing or (len(unacked) + 1) % ACK_EVERY_INPUTS == 0
        try:
            link.send(frames.input_(sequence, data, frames.INPUT_ACK if ask else 0))
        except HoldfastError as e:
            unacked.sent(sequence, data)
            return self._lost(e)
        unacked.sent(sequence, data)
        self.covering.typed(sequence, data, time.monotonic())

    def _do(self, key: bytes) -> None:
        """A command after the prefix key."""
        if key in (b"d", b"D", b"\x04"):
            raise detached(
                self.name if self.link.away is None else f"{self.link.away.name}/{self.name}"
            )
        if key == self.prefix.key:
            self._type(key)
        elif key == b"?" or key == b"h":
            self.overlay.help(self.name, self.session)
        elif key in (b"s", b"w", b"n", b"p", b"l"):
            self._listing = key.decode()
            self._ask(LIST, {"op": "ls"})
        elif key in COMMANDS:
            request = self.company.request(key)
            self.notices.say(request) if isinstance(request, str) else self._steer(request)
        elif key == b"y":
            self._instead(self.deciding.show())
        elif key == b"r":
            self._refresh()
        elif key == b"\x1a":
            self._suspend()
        else:
            self.notices.say(f"no such command; {self.prefix_name} ? shows help")

    def _suspend(self) -> None:
        self.term.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.term.enter()
        self._refresh()

    def _steer(self, request: dict[str, Any]) -> None:
        fields = {"seq": self.link.next_sequence(), **request}
        self.link.acting.sign(str(fields.pop("op")), fields, self.covering.place)
        self._ask(STEER, {"op": request["op"], **fields})

    def _ask(self, kind: int, body: dict[str, Any]) -> int:
        self._asked += KINDS  # a number of its own each time: the last one may not be answered yet
        try:
            self.link.send(frames.request(self._asked + kind, body))
        except HoldfastError as e:
            self._lost(e)
        return self._asked + kind

    def _refresh(self, reminds: bool = True) -> None:
        if self.link.sock is not None:
            self.notices.awaits(reminds)
            self._ask(REFRESH, {"op": "refresh"})
        else:
            self._covered = True

    def _instead(self, text: str | None) -> None:
        """Said instead of what was to cover the screen."""
        if text:
            self._refresh()
            self.notices.say(text)

    # ------------------------------------------------------------ switching

    def _go_on_typing(self) -> None:
        ahead, self._ahead = self._ahead, b""
        self._typed(ahead)

    def _listed(self, sessions: list[dict[str, Any]]) -> None:
        self.sessions = sessions
        how, self._listing = self._listing, None
        match next_session(how, [s["id"] for s in sessions], self.session, self.previous):
            case "":
                self.notices.say("no session before this one")
            case str(session):
                self._switch(session)
            case None:
                self._listing = "s"
                self.overlay.choose(sessions, self.session)

    def _choose(self, key: bytes) -> None:
        self._listing = None
        self.overlay.closed()
        chosen = chosen_session(key, self.sessions)
        return self._switch(chosen) if chosen is not None else self._refresh()

    def _switch(self, session: str) -> None:
        if session == self.session:
            return self._refresh()
        old = self.session
        self.feed.close()
        self.offset, self.session = None, session
        try:
            self._attach_in_place()
            self.previous = old
        except HoldfastError as e:
            if isinstance(e, HostGone):
                return self._lost(e)
            self.session = old
            self._attach_in_place()
            self.notices.say(e.message)

    def _attach_in_place(self) -> None:
        while (one := self._frames.next()) is not None:
            self._inbox.append((one[0], bytes(one[1])))
        self.link.give_back(self._inbox, self._frames.rest())
        self._inbox.clear()
        self.covering.cover()
        self.unacked.clear()  # sent in order before this; what was typed there is not for the next session
        self._attach()

    # ------------------------------------------------------------ frames

    def _receive(self) -> None:
        sock = self.link.sock
        assert sock is not None
        try:
            count = sock.recv_into(self._frames.space())
        except OSError:
            count = 0
        if not count:
            return self._lost(HostGone("the connection to the host ended"))
        self._frames.received(count)

    def _frame(self, kind: int, payload: bytes | memoryview) -> None:
        if kind == frames.OUTPUT:
            _, end, acked, data = frames.read_output(payload)
            self.offset = end
            if acked:
                self.unacked.acked(acked)
            if len(data) and not self.overlay.covering:
                self.term.write(data)
        elif kind == frames.SCREEN:
            offset, acked, reason, _, _, data = frames.read_screen(payload)
            self.offset = offset if reason != frames.SCREEN_FOREIGN else None
            self.unacked.acked(acked)
            if (
                not self.overlay.covering
            ):  # what covers it stays until a key; a fresh screen is asked for then
                self.term.write(data)
                self.notices.came(self.deciding.reminder())
            if reason == frames.SCREEN_FOREIGN:
                if self.feed.direct is not None:
                    self.feed.direct.stop()
            else:
                self.feed.open(offset)
        elif kind == frames.EVENT:
            self._event(frames.read_json(payload))
        elif kind == frames.REPLY:
            number, ok, body = frames.read_reply(payload)
            if number % KINDS == COVER:
                self.covering.covered(number, ok, body)
            elif number % KINDS == PLACE:
                self.covering.placed(ok, body)
            elif number % KINDS == QUESTION:
                self._instead(self.deciding.came(number, ok, body))
            elif number % KINDS == LIST:
                if ok:
                    self._listed(
                        [s for s in body["sessions"] if s["state"] in ("live", "detached")]
                    )
                else:
                    self._listing = None
                self._go_on_typing()
            elif not ok:
                self.notices.say(self.company.refusal(body))
        elif kind == frames.BYE:
            body = frames.read_json(payload)
            self._lost(
                HostGone(
                    str(body.get("message")),
                    str(body.get("reason")),
                    str(body.get("recover") or ""),
                )
            )

    def _event(self, body: dict[str, Any]) -> None:
        name = body.get("event")
        if name == "ended":
            self._ended = ended(self.name, body)
            self.feed.rung = self.feed.direct is not None and self.feed.direct.offset >= 0
            if not self.feed.rung:
                raise self._ended
            return
        if name == "refused":
            number = body.get("number")
            self.unacked.drop(int(number or 0))
            self.notices.say(self.company.refusal(body))
        elif name == "renamed":
            self.name = str(body.get("name"))
        elif (
            words := self.deciding.words(body) if name == "approval" else self.company.words(body)
        ) is not None:
            if self.deciding.closed(body):
                self.deciding.leave()
                self._refresh()
            self.notices.say(words)

    def _noticed(self, *_: Any) -> None:
        self._signalled = True

    def _signals(self) -> None:
        self._signalled = False
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wake_r, 4096):
                if number == signal.SIGWINCH:
                    self._resized()
                elif number == 0:
                    self._again.at = 0.0
                elif number == signal.SIGTSTP:
                    self._suspend()
                elif number in LEAVE_ON:
                    raise told_to_leave(self.name, number)
                elif number == signal.SIGCONT and self.term.raw:
                    self.term.enter()
                    self._refresh()

    def _resized(self) -> None:
        self._instead(self.deciding.resized())
        if self.link.sock is not None:
            try:
                self.link.send(frames.resize(0, *self.term.size()))
            except HoldfastError as e:
                self._lost(e)
