"""The attach loop: one poll over the user's terminal, the host's socket and a signal pipe.

The loop turns input into events for `AttachState` and carries out the effects that come back.
Frames are small and fixed, and no heavy module is imported: a key costs microseconds here.
"""

from __future__ import annotations

import os
import select
import termios
import time

from holdfast.client import questions
from holdfast.client.attach import farewell, overlay
from holdfast.client.attach.events import (
    Attach,
    Attached,
    AttachFailed,
    CloseRing,
    Connect,
    Dialling,
    DiscardTyped,
    Disconnect,
    Drain,
    Drained,
    Draw,
    Effect,
    Event,
    Finish,
    Found,
    Frame,
    KeepReceipt,
    Keys,
    Leave,
    Lost,
    Missed,
    Notice,
    OpenRing,
    Redraw,
    Resized,
    Send,
    SendAct,
    SendAnswer,
    SendCover,
    Signalled,
    StopRing,
    Suspend,
    TerminalGone,
    Tick,
    Title,
    Write,
)
from holdfast.client.attach.feed import Feed
from holdfast.client.attach.prefix import Prefix
from holdfast.client.attach.state import ATTACH, AttachState
from holdfast.client.attach.terminal import UserTerminal, poke
from holdfast.client.gone import HostGone
from holdfast.model.deque import deque
from holdfast.model.errors import HoldfastError, PeerFault, from_wire
from holdfast.wire import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from holdfast.client.link import Link
    from holdfast.model.jsontext import Json
else:
    import _signal as signal  # the functions of `signal` without its enums, which take 3 ms

KEYS_BYTES = 16 * 1024  # of typing or pasting at a time
READ_BYTES = 256 * 1024  # of frames at a time
FAREWELL_S = 0.5  # for the host to take the signature over the last keys
# All signals that would otherwise leave the terminal raw.
LEAVE_ON: dict[int, str] = {
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    signal.SIGINT: "SIGINT",
    signal.SIGQUIT: "SIGQUIT",
}


class Attachment:
    def __init__(
        self,
        link: Link,
        session: str,
        observe: bool,
        take: bool,
        prefix: Prefix,
        scrollback: int | None,
        agent: str | None,
        clipboard: bool = False,
        titled: bool = False,
        others: str = "none",
    ) -> None:
        self.link, self._take, self._clipboard = link, take, clipboard
        self._scrollback, self._agent = scrollback, agent
        self.term = UserTerminal()
        self._more = f" ... {prefix.name} m "  # how to read the rest of a notice that is cut
        self.state = AttachState(
            session,
            link.operator,
            prefix,
            observe,
            link.away.name if link.away else None,
            titled,
            others,
        )
        self._title = b""  # to be set when the terminal has taken all output
        self._frames = frames.Reader(frames.FROM_HOST)
        self._inbox: deque[tuple[int, bytes]] = deque()  # frames that came with an answer
        self._poll = select.poll()
        # Used while the terminal has not taken all output: the host is not read meanwhile.
        self._stuck = select.poll()
        self._room = [(self.term.out, select.POLLOUT)]
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._registered = -1  # the host's descriptor in the poll
        self._watched: object = None  # the socket of that descriptor
        self._signalled = False
        self._deaf = False  # too much input waits: the keyboard is not read
        self._restores = False  # the user was told that the session is being restored
        self._draining = False  # the session has ended; the last output is being shown
        self._finish: Finish | None = None
        self._feed = Feed(self._poll, self.term, self.state, link)

    @property
    def clipboard_refused(self) -> bool:
        """Whether the user allows programs to write to the clipboard, and the session does not."""
        return self._clipboard and not self._feed.clipboard

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Attach. An error here is the command's error, and the terminal is unchanged."""
        if self._take:
            self.link.request("seize", session=self.state.session)
        self.state.sequence = self.link.sequence
        self._handle(self._open())

    def run(self) -> tuple[str, int]:
        """Run until the user detaches or the session ends; returns the last line and exit code."""
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
            while self._finish is None:
                self._poll_once()
            if self._finish.moved is not None:  # the command finds the other machine
                raise self._finish.moved
            return self._finish.message, self._finish.code
        finally:
            self.term.leave()
            self._feed.close()
            self._farewell()
            signal.set_wakeup_fd(-1)
            for number, handler in old.items():
                signal.signal(number, handler)
            self.link.close()

    def _poll_once(self) -> None:
        """Run a round. Frames come first: an attach may have read frames without an event."""
        while self.term.pending is None and (one := self._next()) is not None:
            self._handle(Frame(*one))
        if self._title:
            self._write_title()
        if self._feed.rung and self.term.pending is None:
            self._output()
        if self._finish is not None:
            return
        if (
            self.link.sock is not self._watched
            or self._inbox
            or self._deaf
            or self.state.unacked.full
        ):
            self._interest()
        stuck = self.term.pending is not None
        if stuck and self._feed.direct is not None:
            self._feed.direct.look_ahead()
        poll = self._stuck if stuck else self._poll
        deadline = self.state.deadline()
        timeout = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        while (ready := poll.poll(timeout)) == self._room:
            self.term.flush()  # a flood of output: only the terminal needs work
            if self.term.pending is None:
                return
        for fd, events in ready:
            if self._finish is None:
                self._ready(fd, events)
        if deadline is not None and time.monotonic() >= deadline:
            self._handle(Tick())

    def _ready(self, fd: int, events: int) -> None:
        if fd == 0:
            self._keys()
        elif fd == self._wake_r:
            self._signals()
        elif fd == self.term.out and events & select.POLLOUT:
            self.term.flush()
        elif self._feed.direct is not None and fd == self._feed.direct.bell:
            if self.term.pending is None:
                self._output()  # first the output, for the eye; then the bell
            if self._feed.direct is not None:
                self._feed.direct.quiet()
            self._feed.rung = True  # once more: the bell may have rung in between
        elif self.link.sock is not None and fd == self.link.sock.fileno():
            self._receive()

    def _interest(self) -> None:
        """Register in the poll the descriptors that are to be read now."""
        if self.state.unacked.full != self._deaf:
            self._deaf = not self._deaf
            for poll in (self._poll, self._stuck):
                poll.unregister(0) if self._deaf else poll.register(0, select.POLLIN)
        self._watched = self.link.sock
        fd = self.link.sock.fileno() if self.link.sock is not None and not self._inbox else -1
        if fd == self._registered:
            return
        if self._registered >= 0:
            try:
                self._poll.unregister(self._registered)
            except (OSError, KeyError):
                pass
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        self._registered = fd

    # ------------------------------------------------------------ input

    def _keys(self) -> None:
        try:
            data = os.read(0, KEYS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            return self._handle(TerminalGone())
        if self._signalled:
            self._signals()  # a change of size before these keys is sent first
        self._handle(Keys(data))

    def _noticed(self, *_: object) -> None:
        self._signalled = True

    def _signals(self) -> None:
        self._signalled = False
        try:
            numbers = os.read(self._wake_r, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if self._finish is not None:
                return
            if number == signal.SIGWINCH:
                self.state.size = self.term.size()
                self._handle(Resized())
            elif number == 0:
                self._handle(Found())
            elif number == signal.SIGTSTP:
                self._suspend(Suspend())
            elif number in LEAVE_ON:
                self._handle(Signalled(number, LEAVE_ON[number]))
            elif number == signal.SIGCONT and self.term.raw:
                self.term.enter()
                self._handle(Redraw())

    def _receive(self) -> None:
        sock = self.link.sock
        assert sock is not None
        try:
            count = sock.recv_into(self._frames.space())
        except OSError:
            count = 0
        if not count:
            return self._handle(Lost(HostGone("the connection to the host ended")))
        self._frames.received(count)

    def _next(self) -> tuple[int, bytes | memoryview] | None:
        if self._inbox:
            return self._inbox.popleft()
        try:
            return self._frames.next()
        except PeerFault as e:
            self._handle(Lost(e))
            return None

    def _output(self) -> None:
        """Show as much output from the ring as the terminal takes."""
        try:
            if not self._feed.show():
                self._handle(Missed())
            elif self._draining and not self._feed.rung:
                self._handle(Drained())
        except HoldfastError as e:
            self._handle(Lost(e))

    # ------------------------------------------------------------ effects

    def _handle(self, event: Event) -> None:
        state = self.state
        state.blocked = self.term.pending is not None
        for effect in state.handle(event, time.monotonic()):
            if self._finish is not None:
                return
            if type(effect) is Send:
                self._send(effect.frame)
            else:
                _EFFECTS[type(effect)](self, effect)

    def _send(self, frame: bytes) -> None:
        if self.link.sock is None:
            return  # lost with the connection; the state has been told
        try:
            self.link.send(frame)
        except HoldfastError as e:
            self._handle(Lost(e))

    def _request(self, number: int, body: Json) -> None:
        self._send(frames.request(number, body))

    def _send_act(self, effect: SendAct) -> None:
        self.link.acting.sign(effect.op, effect.fields, effect.target)
        self._request(effect.number, {"op": effect.op, **effect.fields})

    def _keep_receipt(self, effect: KeepReceipt) -> None:
        self.link.keep_receipt(effect.recorded)

    def _send_cover(self, effect: SendCover) -> None:
        signed = self.link.acting.cover(effect.target, effect.keys)
        body = {"op": "cover", "session": effect.target.session, "signed": signed}
        self._request(effect.number, body)

    def _send_answer(self, effect: SendAnswer) -> None:
        self._request(effect.number, questions.answer(self.link, effect.question, effect.answer))

    def _write(self, effect: Write) -> None:
        self.term.write(effect.data)

    def _draw(self, effect: Draw) -> None:
        self.term.write(overlay.page(effect.lines, *self.state.size))

    def _notice(self, effect: Notice) -> None:
        self.term.write_between(overlay.notice(effect.text, *self.state.size, self._more))

    def _retitle(self, effect: Title) -> None:
        self._title = overlay.title(effect.text)
        self._write_title()

    def _write_title(self) -> None:
        if self.term.pending is None:
            self.term.write(self._title)
            self._title = b""

    def _discard_typed(self, effect: DiscardTyped) -> None:
        termios.tcflush(0, termios.TCIFLUSH)

    def _open_ring(self, effect: OpenRing) -> None:
        self._feed.open(effect.offset, effect.resumed)

    def _stop_ring(self, effect: StopRing) -> None:
        if self._feed.direct is not None:
            self._feed.direct.stop()

    def _close_ring(self, effect: CloseRing) -> None:
        self._feed.close()

    def _drain(self, effect: Drain) -> None:
        self._draining = True
        self._feed.rung = self._feed.reading
        if not self._feed.rung:
            self._handle(Drained())

    def _disconnect(self, effect: Disconnect) -> None:
        self.link.close()

    def _suspend(self, effect: Suspend) -> None:
        self.term.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.term.enter()
        self._handle(Redraw())

    def _finished(self, effect: Finish) -> None:
        self._finish = effect

    # ------------------------------------------------------------ attaching

    def _open(self) -> Attached:
        """Connect and attach."""
        if self.link.sock is None:
            self.link.connect()
        self._frames = frames.Reader(frames.FROM_HOST)
        self._inbox.clear()
        return self._attached()

    def _connect(self, effect: Connect) -> None:
        try:
            if not self.link.ready(lambda: poke(self._wake_w)):
                return self._handle(Dialling())
            event: Event = self._open()
        except (HoldfastError, OSError) as e:
            event = AttachFailed(e)
        self._handle(event)

    def _attach(self, effect: Attach) -> None:
        """Attach a session on this connection, after reading the frames of the old session."""
        try:
            while (one := self._frames.next()) is not None:
                self._inbox.append((one[0], bytes(one[1])))
            self.link.give_back(self._inbox, self._frames.rest())
            self._inbox.clear()
            event: Event = self._attached()
        except HoldfastError as e:
            event = AttachFailed(e)
        self._handle(event)

    def _attached(self) -> Attached:
        """Ask for the session and wait for the answer; prepare to read the frames that follow."""
        state, feed = self.state, self._feed
        state.size = self.term.size()
        delivered = feed.direct.delivered if feed.reading and feed.direct is not None else None
        cols, rows = state.size
        body = {
            "op": "attach",
            "session": state.session,
            "cols": cols,
            "rows": rows,
            "observe": state.observe,
            "scrollback": self._scrollback,
            "resume": state.resume_offset(delivered),
            "agent": self._agent,
            "direct": True,
            **({"clipboard": True} if self._clipboard else {}),  # older hosts do not know it
        }
        self.link.send(frames.request(ATTACH, body))
        while True:
            kind, payload = self.link.receive(10.0)
            if kind == frames.EVENT:
                self._restoring(frames.read_json(payload))
            if kind == frames.REPLY:
                number, ok, answer = frames.read_reply(payload)
                if number == ATTACH:
                    if not ok:
                        raise from_wire(answer)
                    break
        feed.close()
        feed.descriptors, self.link.descriptors = self.link.descriptors, []
        feed.clipboard = answer.get("clipboard") is True
        assert self.link.sock is not None
        self.link.sock.settimeout(None)
        self._inbox.extend(self.link.take_ready())
        for one in self.link.recovered:
            event = {"event": "recovered", **one}
            frame = frames.pack_json(frames.EVENT, event)
            self._inbox.extend(frames.Splitter(frames.FROM_HOST).feed(frame))
        self.link.recovered.clear()
        rest = self.link.splitter.take()
        self._frames = frames.Reader(frames.FROM_HOST, size=max(READ_BYTES, 2 * len(rest)))
        self._frames.space()[: len(rest)] = rest
        self._frames.received(len(rest))
        return Attached(answer, bool(feed.descriptors))

    def _restoring(self, event: Json) -> None:
        """The host brings the session back from the disk before it answers."""
        if event.get("event") != "restoring":
            return
        text = farewell.restoring(event)
        if self.term.raw:
            self._notice(Notice(text))
        elif not self._restores:
            os.write(2, f"[holdfast] {text}\n".encode())
        self._restores = True

    def _farewell(self) -> None:
        """Sign the last keys before leaving; a host that does not answer is not waited for."""
        if self.link.sock is None:
            return
        self.link.give_back(self._inbox, self._frames.rest())
        self._finish = None
        try:
            self._handle(Leave())
            deadline = time.monotonic() + FAREWELL_S
            while self.link.sock is not None and (left := deadline - time.monotonic()) > 0:
                kind, payload = self.link.receive(left)
                last = self.state.last_request
                if kind == frames.REPLY and frames.read_reply(payload)[0] == last:
                    return
        except HoldfastError:
            pass


_EFFECTS: dict[type[Effect], Any] = {
    SendAct: Attachment._send_act,
    KeepReceipt: Attachment._keep_receipt,
    SendCover: Attachment._send_cover,
    SendAnswer: Attachment._send_answer,
    Write: Attachment._write,
    Draw: Attachment._draw,
    Notice: Attachment._notice,
    Title: Attachment._retitle,
    DiscardTyped: Attachment._discard_typed,
    OpenRing: Attachment._open_ring,
    StopRing: Attachment._stop_ring,
    CloseRing: Attachment._close_ring,
    Drain: Attachment._drain,
    Disconnect: Attachment._disconnect,
    Connect: Attachment._connect,
    Attach: Attachment._attach,
    Suspend: Attachment._suspend,
    Finish: Attachment._finished,
}
