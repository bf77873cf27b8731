"""One session as the host sees it: the serialization point between its operators and its keeper.

Everything happens on the host's loop, one step at a time, so there are no locks: a bell from the keeper (new output, acts taken,
flags), a frame from a client, a timer. What decides is in core/ (turn, shell, lifecycle); what touches the world is in the
parts this class sequences: lane (acts in order), view (the screen), viewers (who watches).

    bell -> viewers get bytes -> marks and queries are looked for -> the screen is fed a little later
    input -> door (host/door.py, host/keyboard.py): who, repeat, right, turn, policy, record -> lane -> keeper
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.core import session as lifecycle
from holdfast.core.filter import ViewerFilter
from holdfast.core.originators import UNSEEN
from holdfast.core.resume import LOOKBACK_BYTES, filter_after
from holdfast.core.skim import flows
from holdfast.host import hurry, observe, process
from holdfast.host.answers import Answers
from holdfast.host.attending import attend
from holdfast.host.commands import Commands
from holdfast.host.ending import Kill, end_all
from holdfast.host.keeperlink import KeeperLink
from holdfast.host.lane import BARRIER, ORIGIN_HOST, ORIGIN_REPLIES, Lane
from holdfast.host.pace import Pace
from holdfast.host.store import Record
from holdfast.host.telling import anyway, tell
from holdfast.host.threads import Threads
from holdfast.host.turn import SessionTurn
from holdfast.host.view import View
from holdfast.host.viewer import Viewer
from holdfast.model.errors import HoldfastError, Refused, TurnHeld, Unavailable, Unfinished
from holdfast.model.limits import (
    BELLS_MAX,
    COLS_MAX,
    COLS_MIN,
    EXIT_DRAIN_S,
    OUTPUT_CHUNK_BYTES,
    ROWS_MAX,
    ROWS_MIN,
)
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire
from holdfast.wire import ring as ring_layout
from holdfast.wire.frames import SCREEN_LAG

if TYPE_CHECKING:
    from holdfast.host.keyboard import Keyboard

EXIT_DRAIN_MAX_S = 10.0  # of a program that ended while its background jobs go on printing
SEIZE_WAIT_S = 5.0  # for the keeper to say that what was on its way is discarded
MUTE_S = 0.01  # how much later the host may look at output that nobody waits for through it
UNKNOWN_STATUS = (
    0xFF00  # the keeper could not learn the exit code of a process that was not its child
)


P = ParamSpec("P")
T = TypeVar("T")
Commit = Callable[[], Awaitable[None]]


class Session:
    def __init__(
        self,
        record: Record,
        link: KeeperLink,
        label: dict[str, Any],
        directory: str,
        memory: str,
        pool: Executor,
        threads: Threads,
        on_event: Callable[[Session, str, dict[str, Any]], None],
        keeper_pid: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.record = record
        self.id = record.id
        self.label = label
        self.directory = directory  # its programs get there
        self.memory = memory  # for the next host
        self.link = link
        self.ring = link.ring
        self.keeper_pid = keeper_pid
        self.lane = Lane(link)
        self.view = View(link.ring, link.snapshot_fd, pool)
        self.turn = SessionTurn(self)
        self.viewers: list[Viewer] = []
        self.streams: list[
            Callable[[], None]
        ] = []  # readers that follow the ring: run, read --follow
        quiet_s = time.time() - self.view.notes.get("active", time.time())
        self.last_activity = time.monotonic() - (
            max(0.0, quiet_s) if self.view.notes.get("scanned") == self.ring.head else 0.0
        )
        self.commands = Commands(label, directory, self.view.notes, record.root_pid)
        self.pace = Pace(link, self.viewers, lambda: self.view.snapshot_at)
        self.scanned = int(self.view.notes.get("scanned", self.view.fed))
        before = self.ring.copy(max(self.ring.start, self.scanned - LOOKBACK_BYTES), self.scanned)
        self.filter = filter_after(before, holding=True)  # of all viewers that are up to date
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.keyboard: Keyboard  # set by whoever makes this
        self.gaps: list[tuple[int, int]] = []
        self.layout = {
            "layout": "unknown",
            "halt": "unknown",
            "says": "",
        }  # until the kernel was asked
        self._on_event, self._threads = on_event, threads
        self._states: dict[int, asyncio.Future[wire.State]] = {}
        self._tag = 0
        self.ends: set[asyncio.Future[None]] = set()  # orders to end it that are being carried out
        self._ending: asyncio.Task[None] | None = None
        self._eof: asyncio.Future[None] | None = (
            None  # set once the root process ended: the end of output
        )
        self._asked_size: tuple[int, int] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        link.on_bell = self._bell
        link.on_packet = self._packet
        link.on_closed = self._keeper_gone
        self.on_company: Callable[[], None] = lambda: None
        self.on_link_lost: Callable[[], None] = self.lost
        self.view.on_reply = Answers(self).give
        self.view.on_progress = self._view_moved
        self.view.on_gap = self._gap
        self.view.on_snapshot = self.pace.report
        self.view.saved_notes = lambda: {
            "scanned": self.scanned,
            "active": time.time() - time.monotonic() + self.last_activity,
            **self.commands.save(),
        }
        self.view.may_lag = lambda: bool(self.viewers) and not any(v.foreign for v in self.viewers)
        if link.welcome.status >= 0:
            self._begin_end(link.welcome.status)
        self.loop.call_soon(self._first_look)

    # ------------------------------------------------------------ facts

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def ref(self) -> str:
        return f"hf:{self.id}@{self.record.epoch}"

    @property
    def state(self) -> str:
        return self.record.state

    @property
    def ending(self) -> bool:
        """Its program has ended, though its output may still be on the way to somebody."""
        return self._ending is not None

    @property
    def answers(self) -> bool:
        """Whether its keeper could answer now: one that is stopped cannot, and nobody knows more than that."""
        return (stat := process.read_stat(self.keeper_pid)) is not None and stat.state not in "tTZ"

    @property
    def size(self) -> tuple[int, int]:
        return self.record.cols, self.record.rows

    def change(self, event: str, **facts: Any) -> None:
        """A step of the lifecycle, and its event (S9)."""
        before = self.record.state
        after = lifecycle.step(before, event)
        self.record.state = after
        self.keyboard.again()
        self.event("session." + event, before=before, after=after, **facts)

    def event(self, name: str, /, **facts: Any) -> None:
        self._on_event(self, name, facts)

    def tell_viewers(self, name: str, /, **body: Any) -> None:
        for viewer in self.viewers:
            viewer.conn.event(name, session=self.id, **body)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if (
            not task.cancelled()
            and (error := task.exception()) is not None
            and not isinstance(error, HoldfastError)
        ):
            self.loop.call_exception_handler({"message": f"session {self.id}", "exception": error})

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """For what a file system or a program of the session may hold up."""
        return await self._threads.of(self.id, work, *args, **kwargs)

    async def looked(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for looking at it."""
        try:
            return await self._threads.looked(self.id, work, *args, **kwargs)
        except TimeoutError:
            raise Unavailable(
                f"{self.name} cannot be looked at: something that it uses does not answer",
                "look for a file server or a FUSE program that hangs; its output and its keys are not affected",
            ) from None

    async def or_end(self, future: asyncio.Future[Any], timeout: float | None = None) -> bool:
        """Waits for `future`, the end of the session or the time; True if the future came."""
        waiting: set[asyncio.Future[Any]] = {future, self.ended}
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return future.done()

    # ------------------------------------------------------------ from the keeper

    def _bell(self) -> None:
        if self.link.closed and self.ended.done():
            return
        self.lane.settle()
        flags = self.ring.flags  # before the head: the end is told after the last byte
        head = self.ring.head
        if head > self.scanned:
            self.last_activity = time.monotonic()
            self._new_output(head)
        tell(viewer.pump for viewer in self.viewers)
        if head > self.view.fed:
            self.view.poke()
        tell(self.streams)
        self.pace.look()
        if (
            self._eof is None
            and not self.streams
            and not self.commands.watchers
            and not self.lane.awaited
            and all(v.tag for v in self.viewers)
        ):
            self.link.mute(MUTE_S)  # who watches reads the ring; the rest can wait a moment
        if flags & ring_layout.FLAG_EOF and self._eof is not None and not self._eof.done():
            self._eof.set_result(None)

    def _new_output(self, head: int) -> None:
        """Output nobody has looked at: filtered once for all viewers that are up to date, then searched for marks. Where the
        filter took something out there may have been a question to the terminal: the emulator sees it at once."""
        while self.scanned < head:
            if self.scanned < self.ring.start:
                self.scanned, self.filter = self.ring.start, ViewerFilter()
            piece = self.ring.span(self.scanned, OUTPUT_CHUNK_BYTES)
            if not len(piece):
                return
            held = self.filter.pending
            for viewer in self.viewers:
                viewer.before_new(self.scanned, self.filter)
            data = self.filter.feed(piece)
            for viewer in self.viewers:
                viewer.give(self.scanned, len(piece), data, held, self.filter.pending)
            decided = self.scanned + len(piece) - self.filter.pending
            self.view.seen(
                self.scanned - held, decided, self.filter.in_line and flows(bytes(piece))
            )
            if len(data) + self.filter.pending != len(piece) + held:
                self.view.poke(urgent=True)
            self.commands.feed(self.scanned, piece)
            start, self.scanned = self.scanned, self.scanned + len(piece)
            if not self.ring.intact(start):  # overwritten while it was sent: screens are needed
                for viewer in self.viewers:
                    self.spawn(viewer.refresh(SCREEN_LAG))

    def _packet(self, kind: int, packet: bytes) -> None:
        try:
            if kind == wire.STATE:
                state = wire.read_state(packet)
                if state.tag == BARRIER:
                    self.lane.answered(state)
                waiting = self._states.pop(state.tag, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(state)
            elif kind == wire.EXITED:
                self._begin_end(wire.read_exited(packet)[0])
            elif kind == wire.REJECTED:
                self.lane.rejected(packet)
        except wire.Malformed as e:
            self.event("session.keeper_malformed", detail=str(e))

    def _view_moved(self) -> None:
        _at, cols, rows = self.ring.resized
        if (cols, rows) != self.size:
            self.record.cols, self.record.rows = cols, rows
            self.keyboard.again()
            for viewer in self.viewers:
                viewer.session_resized()
        for viewer in self.viewers:
            if viewer.foreign:
                viewer.schedule_render()

    def _gap(self, start: int, end: int) -> None:
        self.gaps = [*self.gaps[-15:], (start, end)]
        self.event("session.output_rolled", start=start, end=end)

    # ------------------------------------------------------------ acts

    def may_write(self, operator: str, take: bool = True) -> None:
        """The turn, or a refusal that says who has it (A1, A2). `take`: else it is only asked whether it could be had."""
        if not lifecycle.running(self.state):
            raise Refused(f"session {self.name} has ended", "`holdfast ls --all` shows how")
        if self.state == "halted":
            raise Refused(
                f"session {self.name} is halted", f"`holdfast resume {self.name}` goes on"
            )
        if take:
            self.turn.write(operator)
        else:
            self.turn.could_write(operator)

    def submit_keys(self, client: int, number: int, data: bytes, ack: bool) -> None:
        """Raw keys of an attached client, let through by its keyboard."""
        self.lane.key(data, client, number, wire.ACT_ACK if ack else 0)

    async def type(
        self,
        operator: str,
        client: int,
        number: int,
        data: bytes,
        commit: Commit | None = None,
        repeat: bool = False,
        key: bytes = b"",
        writers: Sequence[str] = UNSEEN,
    ) -> int:
        """Typed input as one act; returns its number once the session has taken it. `commit` writes down that it will be: whose turn it is
        is asked before, and again afterwards, because that took time. Who was overtaken by a later act of the same client is told so: its number is
        used up, and it must not be taken for a repeat of what was done."""
        if not repeat:
            if commit is not None and not self.lane.known(client, number):
                await self.look_and_ask(operator, take=False)
                await commit()
            await self.look_and_ask(operator)
            if self.lane.known(client, number):
                raise Refused(
                    "a later act of this client was quicker",
                    "do it again, with a number of its own",
                )
            self.commands.typed(
                operator, data, self.lane.next, self.scanned, (client, number), writers
            )
            self.turn.typed(operator, data, time.monotonic(), key)
        done = self.lane.submit(wire.INPUT, data, client, number, want_done=True)
        assert done is not None
        return await done

    async def look_and_ask(self, operator: str, take: bool = True) -> None:
        """As `may_write`; if somebody's line seems to be in the way, it is looked whether it is."""
        try:
            self.may_write(operator, take)
        except Unfinished:
            await self.turn.look()
            self.may_write(operator, take)

    def reply(self, offset: int, data: bytes) -> None:
        """The terminal's answer to what the program asked at that offset."""
        self.lane.submit(wire.INPUT, data, ORIGIN_REPLIES, offset)

    def _first_look(self) -> None:
        self._bell()
        self.commands.recall(self.ring.accepted)

    async def seize(self, operator: str, key: bytes) -> tuple[str | None, bool]:
        """Takes the turn; what the old holder had on its way is discarded. Gives who had it, and whether the keeper said that it did so."""
        previous = self.turn.take(operator, key)
        if previous is None and self.turn.writer == operator:
            return None, True  # what is on its way is its own
        error = TurnHeld(f"{operator} took the turn", holder=operator)
        clients = {v.conn.client: v.conn for v in self.viewers}
        for client, number in self.lane.void(error):
            if client in clients:
                clients[client].event("refused", number=number, **error.to_wire())
        done = self.lane.submit(wire.FLUSH, b"", ORIGIN_HOST, 0, want_done=True)
        assert done is not None
        return previous, await hurry.until(self.or_end(done, SEIZE_WAIT_S), self.keeper_pid)

    def signal_all(self, number: int) -> None:
        self.lane.submit(wire.SIGNAL, wire.signal_body(number, wire.SCOPE_ALL), ORIGIN_HOST, 0)

    # ------------------------------------------------------------ size

    def follow_size(self, viewer: Viewer) -> None:
        """The size follows the turn holder: who writes brings their terminal's size."""
        if (
            viewer.sane
            and viewer.resizes
            and viewer.size != self.size
            and viewer.size != self._asked_size
        ):
            self.resize(*viewer.size)

    def resize(self, cols: int, rows: int) -> None:
        """An act like any other; degenerate sizes are ignored."""
        if (
            not (COLS_MIN <= cols <= COLS_MAX and ROWS_MIN <= rows <= ROWS_MAX)
            or (cols, rows) == self.size
        ):
            return
        self._asked_size = (cols, rows)
        self.keyboard.again()
        done = self.lane.submit(
            wire.RESIZE, wire.resize_body(cols, rows), ORIGIN_HOST, 0, want_done=True
        )
        assert done is not None
        done.add_done_callback(
            lambda f: self._resized() if not f.cancelled() and f.exception() is None else None
        )

    def _resized(self) -> None:
        _, cols, rows = self.ring.resized
        self._asked_size = None
        if (cols, rows) != self.size:
            self.record.cols, self.record.rows = cols, rows
            self.keyboard.again()
            self.tell_viewers("resized", cols=cols, rows=rows)
            for viewer in self.viewers:
                viewer.session_resized()
        self.view.poke(urgent=True)

    # ------------------------------------------------------------ who watches

    def add_viewer(self, viewer: Viewer) -> None:
        alone = not any(not v.observe for v in self.viewers)
        self.viewers.append(viewer)
        self._company()
        self.keyboard.begin(viewer)
        if self.state == "detached":
            self.change(
                "attached",
                operator=viewer.conn.operator,
                modality=viewer.conn.modality,
                root_pid=self.record.root_pid,
                output=self.ring.head,
            )
        holder = self.turn.holder
        if (
            not viewer.observe
            and viewer.sane
            and viewer.resizes
            and alone
            and holder in (None, viewer.conn.operator)
        ):
            self.resize(*viewer.size)
        for other in self.viewers:
            if other is not viewer:
                other.conn.event(
                    "joined",
                    session=self.id,
                    operator=viewer.conn.operator,
                    modality=viewer.conn.modality,
                )

    def _company(self) -> None:
        """So many have to come back if this host dies."""
        self.record.viewers = self.pace.company()
        self.on_company()

    def let_read(self, viewer: Viewer) -> int:
        """Lets a viewer on this machine read the ring itself; gives its bell, or -1 if that cannot be had now."""
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tag = (self._tag + 1) & 0x7FFFFFFF or 1
        if len(self.viewers) >= BELLS_MAX or not self.link.send_descriptor(
            wire.listen(self._tag), bell
        ):
            os.close(bell)
            return -1
        viewer.tag = self._tag
        return bell

    def behind(self) -> list[Viewer]:
        """Who has not been sent all there is."""
        return [
            v
            for v in self.viewers
            if not (v.closed or v.foreign or v.tag) and v.offset < self.ring.head
        ]

    def remove_viewer(self, viewer: Viewer, how: str) -> None:
        if viewer not in self.viewers:
            return
        if viewer.tag:
            self.link.send(wire.silence(viewer.tag))
        viewer.close()
        self.viewers.remove(viewer)
        self._company()
        self.keyboard.end(viewer, how)
        operator = viewer.conn.operator
        if not any(v.conn.operator == operator for v in self.viewers):
            self.turn.leave(operator)
        if not self.viewers and self.state == "live":
            self.change(
                "left",
                operator=operator,
                modality=viewer.conn.modality,
                how=how,
                root_pid=self.record.root_pid,
                output=self.ring.head,
            )
        self.tell_viewers("left", operator=operator)
        self.pace.report()

    # ------------------------------------------------------------ looking at the live state

    async def terminal(self) -> wire.State:
        """The terminal as the kernel has it now."""
        self._tag = tag = (self._tag + 1) % BARRIER
        future: asyncio.Future[wire.State] = self.loop.create_future()
        self._states[tag] = future
        self.link.send(wire.query(tag))
        try:
            async with asyncio.timeout(5):
                return await future
        except TimeoutError as e:
            raise Unavailable(
                "the keeper does not answer", "it may be stopped; the session is not lost"
            ) from e
        finally:
            self._states.pop(tag, None)

    async def marks_seen(self) -> wire.State:
        """As `terminal`; what was put out up to this moment has been looked at."""
        state = await self.terminal()
        self._bell()
        return state

    async def attention(self) -> tuple[str, str, str]:
        """(what the session waits for, why in words, what is in the foreground), from the kernel and the shell's marks."""
        return await attend(self, await self.marks_seen())

    # ------------------------------------------------------------ ends

    async def end(self, operator: str, kill: Kill | None = None) -> str:
        """Everything in it; gives the signal that did it."""
        return await end_all(self, operator, kill)

    def _begin_end(self, status: int) -> None:
        if self._ending is None:
            self._ending = self.spawn(self._finish(status))

    async def _finish(self, status: int) -> None:
        """The root process ended: take what was still printed, keep code and last screen, then let the keeper go."""
        probe("host.exit.seen")
        await (
            self.pace.returned.wait()
        )  # who was attached when the last host died gets the end of it
        with anyway(f"the last output of {self.id}"):
            self._eof = self.loop.create_future()
            self.link.unmute()
            self._bell()
            await self._drained(self._eof)
        while self.ends:  # who is left needs its keeper until they are gone, too
            await asyncio.wait(self.ends)
        code: int | None = None
        reason = "exited"
        if status != UNKNOWN_STATUS or self.link.welcome.root_pid == 0:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                reason, code = f"killed by {_signal_name(-code)}", 128 - code
        await self._close(code, reason, status)

    async def _drained(self, eof: asyncio.Future[None]) -> None:
        """Until the terminal is empty. A silent process that keeps it open is not waited for. But while the ring is full of what
        viewers still take, the keeper reads nothing, and its silence means nothing."""
        deadline, head = self.loop.time() + EXIT_DRAIN_MAX_S, -1
        while not eof.done() and self.loop.time() < deadline:
            if self.ring.head == head and not self.pace.full:
                return
            head = self.ring.head
            await asyncio.wait({eof}, timeout=EXIT_DRAIN_S)

    async def _close(self, code: int | None, reason: str, status: int) -> None:
        """Whatever of it cannot be done: it is over, and all who wait for that learn it."""
        r, what = self.record, f"the end of {self.id}"
        with anyway(what):
            r.survivors = len(await asyncio.to_thread(observe.descendants, self.keeper_pid, False))
        with anyway(what), contextlib.suppress(OSError, ValueError):
            _, (r.screen, r.ansi) = await self.view.look(
                lambda s: (s.text(), s.ansi().decode("utf-8", "replace"))
            )
        tell((*(viewer.pump for viewer in self.viewers), *self.streams))
        r.ended, r.exit_code, r.reason = time.time(), code, reason
        r.output_start, r.output_end = self.ring.start, self.ring.head
        with anyway(what):
            self.change(
                "exited" if status >= 0 else "lost",
                exit_code=code,
                reason=reason,
                survivors=r.survivors,
            )
        r.state = "ended"
        with anyway(what):
            self.lane.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _keeper_gone(self) -> None:
        """The link broke: the keeper died, or it gave us up because we did not read its answers in time."""
        if not self.ended.done() and self._ending is None:
            self.on_link_lost()

    def lost(self) -> None:
        """The keeper died under us: the terminal and the programs on it are gone. Said, not hidden."""
        if not self.ended.done() and self._ending is None:
            self._ending = self.spawn(self._close(None, "lost: its keeper died", -1))

    async def dispose(self) -> None:
        self.turn.close()
        self.pace.close()
        await self.view.close()
        self.commands.close()
        self.link.dispose()

    def rename(self, name: str) -> None:
        self.record.name = name
        self.label["name"] = name
        self.link.send(wire.label(json.dumps(self.label).encode()))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
