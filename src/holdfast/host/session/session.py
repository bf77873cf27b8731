"""A session as the host sees it: the serialization point between operators and the keeper.

All steps run on the host's loop, each to the end, so there are no locks. A step is a bell from the
keeper (new output, acts taken, flags), a frame from a client, or a timer. Decisions are in
core/ (turn, shell, lifecycle). This class sequences the parts that act: lane (acts in order), view
(the screen), viewers (attached clients), turn, commands (the shell) and ending.

    bell  -> viewers get bytes -> the host looks for marks and queries -> feeds the screen later
    input -> host/acts (actor, repeat, right, turn, policy, record) -> lane -> keeper
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypedDict, TypeVar

from holdfast.core.originators.originators import UNSEEN
from holdfast.core.screen.filter import ViewerFilter
from holdfast.core.screen.resume import LOOKBACK_BYTES, filter_after
from holdfast.core.screen.skim import flows
from holdfast.core.session import lifecycle
from holdfast.host.processes import process
from holdfast.host.runtime import handover_file, priority
from holdfast.host.runtime.notify import tell
from holdfast.host.runtime.tasks import Tasks
from holdfast.host.runtime.threads import Threads
from holdfast.host.session.attention_probe import read_attention
from holdfast.host.session.commands import Commands, Contradiction
from holdfast.host.session.ending import Ending, Kill
from holdfast.host.session.forged_marks import ForgedMarks
from holdfast.host.session.interfaces import Keyboard
from holdfast.host.session.keeper_link import KeeperLink
from holdfast.host.session.lane import BARRIER, ORIGIN_HOST, ORIGIN_REPLIES, Lane
from holdfast.host.session.pace import Pace
from holdfast.host.session.stopped import StoppedOperators
from holdfast.host.session.terminal_replies import TerminalReplies
from holdfast.host.session.turn import SessionTurn
from holdfast.host.session.viewers import Viewers
from holdfast.host.shell import SessionDirectories
from holdfast.host.storage.store import SessionRow
from holdfast.host.terminal.view import View
from holdfast.model.errors import (
    Fenced,
    HoldfastError,
    OperatorStopped,
    Refused,
    TurnHeld,
    Unavailable,
)
from holdfast.model.limits import OUTPUT_CHUNK_BYTES
from holdfast.wire import keeper as wire
from holdfast.wire import ring as ring_layout
from holdfast.wire.frames import SCREEN_LAG

SEIZE_WAIT_S = 5.0  # for the keeper to confirm that it discarded the queued input
TERMINAL_S = 5.0  # for the keeper to answer a question
FENCE_FELL = (0, wire.REJECT_FENCED)  # no act, but a deadline
MUTE_S = 0.01  # a bell may wait this long if no client waits for output through the host

P = ParamSpec("P")
T = TypeVar("T")


class Leased(TypedDict):
    """A lease as `ls` shows it (core/contract/checkpoints.py)."""

    owner: str
    machine: str
    epoch: int
    until: float | None
    rehomable: bool
    state: str
    why: str


class Session:
    def __init__(
        self,
        record: SessionRow,
        link: KeeperLink,
        label: dict[str, Any],
        directories: SessionDirectories,
        host_only_directory: str,
        pool: Executor,
        threads: Threads,
        on_event: Callable[[Session, str, dict[str, object]], None],
        keeper_pid: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.record = record
        self.id = record.id
        self.spawn = Tasks(f"session {record.id}").spawn
        self.label = label
        self.directories = directories
        self.writable_directory = str(directories.writable)  # for its programs too
        self.host_only_directory = host_only_directory  # files for the next host
        self.link = link
        self.ring = link.ring
        self.keeper_pid = keeper_pid
        self.lane = Lane(link)
        self.view = View(link.ring, link.snapshot_fd, pool)
        self.turn = SessionTurn(self)
        self.stopped = StoppedOperators(host_only_directory)
        self.viewers = Viewers(self)
        # Called at each bell: readers that follow the ring (`run`, `read --follow`).
        self.streams: list[Callable[[], None]] = []
        quiet_s = time.time() - self.view.notes.get("active", time.time())
        self.last_activity = time.monotonic() - (
            max(0.0, quiet_s) if self.view.notes.get("scanned") == self.ring.head else 0.0
        )
        self.commands = Commands(
            label, directories, host_only_directory, self.view.notes, record.root_pid
        )
        self.forged = ForgedMarks(self)
        self.commands.on_forged = self.forged.seen
        self.commands.on_contradicted = self._contradicted
        self.pace = Pace(link, self.viewers, lambda: self.view.snapshot_at)
        # Output before is that of a lost incarnation: it has no marks and no queries for this one.
        self.begins_at = int(label.get("begins_at", 0))
        self.scanned = int(self.view.notes.get("scanned", max(self.view.fed, self.begins_at)))
        before = self.ring.copy(max(self.ring.start, self.scanned - LOOKBACK_BYTES), self.scanned)
        self.filter = filter_after(before, holding=True)  # shared by viewers that are up to date
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.keyboard: Keyboard  # set by the engine, which creates the session
        self.gaps: list[tuple[int, int]] = []  # of the newest ranges that rolled off unseen
        # Unknown until the host has asked the kernel.
        self.layout = {"layout": "unknown", "halt": "unknown", "says": ""}
        self._on_event, self._threads = on_event, threads
        self._states: dict[int, asyncio.Future[wire.State]] = {}
        self._tag = 0
        self.end_of = Ending(self)
        self.lease: Callable[[], Leased | None] = lambda: None  # of a re-homable session
        self.fenced: Callable[[], Fenced] = lambda: Fenced(f"{self.name} is fenced")
        self.on_fence_fell: Callable[[], None] = lambda: None  # a new deadline came too late
        link.on_bell = self.look_at_ring
        link.on_packet = self._packet
        link.on_closed = self._keeper_gone
        self.on_company: Callable[[], None] = lambda: None
        self.on_output: Callable[[], None] = lambda: None
        self.on_link_lost: Callable[[], object] = self.lost
        self.view.on_reply = TerminalReplies(self).give
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
            self.end_of.exited(link.welcome.status)
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
    def halted(self) -> bool:
        """Whether an operator halted it; a fence alone is no halt."""
        return self.state == "halted" or (self.state == "fenced" and self.record.halted)

    @property
    def ending(self) -> bool:
        """Whether the program has ended, though clients may still be receiving output."""
        return self.end_of.begun

    @property
    def answers(self) -> bool:
        """Whether the keeper could answer now: a stopped or dead keeper cannot."""
        return process.state_of(self.keeper_pid) not in ("", "t", "T", "Z")

    @property
    def position(self) -> dict[str, int]:
        """The execution, and how far its output is, for events."""
        return {"root_pid": self.record.root_pid, "output": self.ring.head}

    @property
    def size(self) -> tuple[int, int]:
        return self.record.cols, self.record.rows

    def refuse_if_halted(self) -> None:
        if self.state == "fenced":
            raise self.fenced()
        if self.state == "halted":
            raise Refused(
                f"session {self.name} is halted", f"`holdfast resume {self.name}` goes on"
            )

    def at_prompt(self, terminal: wire.State) -> bool:
        """Whether the shell says that it is at its prompt, and has the terminal."""
        shell = self.commands.kind is not None and self.commands.shell.at_prompt
        return shell and terminal.foreground == self.record.root_pid

    def edits_line(self, terminal: wire.State) -> bool:
        """As `at_prompt`, for a shell that shows typed text itself.

        A POSIX shell does not say when a command begins.
        """
        return self.commands.kind in ("bash", "zsh") and self.at_prompt(terminal)

    def change(self, event: str, **facts: object) -> None:
        """Makes a step of the lifecycle and publishes it as an event (S9)."""
        before = self.record.state
        after = lifecycle.step(before, event)
        self.record.state = after
        self.keyboard.recheck()
        self.event("session." + event, before=before, after=after, **facts)

    def event(self, name: str, /, **facts: object) -> None:
        self._on_event(self, name, facts)

    def _contradicted(self, codes: Contradiction) -> None:
        now = self.commands.lineage.now
        self.event(
            "shell.contradicted",
            shell_exit=codes.shell,
            kernel_exit=codes.kernel,
            actor=now.actor if now is not None else None,
            act=now.ref(self.ref) if now is not None else None,
        )

    async def in_thread(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs work that a file system or a program of the session may block."""
        return await self._threads.of(self.id, work, *args, **kwargs)

    async def looked(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs work that only reads the session's state; Unavailable if it blocks."""
        try:
            return await self._threads.looked(self.id, work, *args, **kwargs)
        except TimeoutError:
            raise Unavailable(
                f"{self.name} cannot be looked at: something that it uses does not answer",
                "look for a file server or a FUSE program that hangs; its output and its keys "
                "are not affected",
            ) from None

    async def or_end(self, future: asyncio.Future[Any], timeout: float | None = None) -> bool:
        """Waits for `future`, the session's end or the timeout; True if `future` is done."""
        waiting: set[asyncio.Future[Any]] = {future, self.ended}
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return future.done()

    # ------------------------------------------------------------ from the keeper

    def look_at_ring(self) -> None:
        """The bell rang: passes on new output and acts that the keeper has taken."""
        if self.link.closed and self.ended.done():
            return
        self.lane.settle()
        flags = self.ring.flags  # read before the head: EOF counts after the last byte only
        head = self.ring.head
        if head > self.scanned:
            self.last_activity = time.monotonic()
            self._new_output(head)
            self.on_output()
        tell(viewer.pump for viewer in self.viewers)
        if head > self.view.fed:
            self.view.poke()
        tell(self.streams)
        self.pace.look()
        if (
            not self.end_of.draining
            and not self.streams
            and not self.commands.watchers
            and not self.lane.awaited
            and all(v.tag for v in self.viewers)
        ):
            self.link.mute(MUTE_S)  # all viewers read the ring themselves
        if flags & ring_layout.FLAG_EOF:
            self.end_of.output_over()

    def _new_output(self, head: int) -> None:
        """Filters new output once for all viewers that are up to date, then searches it for marks.

        Where the filter removed bytes there may have been a query to the terminal: then the
        emulator is fed at once.
        """
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
            if not self.ring.intact(start):  # overwritten while it was sent
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
                self.end_of.exited(wire.read_exited(packet)[0])
            elif kind == wire.REJECTED and wire.read_rejected(packet)[:2] == FENCE_FELL:
                self.on_fence_fell()
            elif kind == wire.REJECTED:
                self.lane.rejected(packet)
            elif kind == wire.CUT_OFF:
                self._cut_off(*wire.read_cut_off(packet))
        except wire.Malformed as e:
            self.event("session.keeper_malformed", detail=str(e))

    def _cut_off(self, status: int, told: bool) -> None:
        """Reports that the session's own network is not connected any more."""
        if not told:
            self.event("session.network_lost", **process.ended(status))
            self.viewers.tell("network_lost")

    def _view_moved(self) -> None:
        self.viewers.take_size()
        for viewer in self.viewers:
            if viewer.foreign:
                viewer.schedule_render()

    def _gap(self, start: int, end: int) -> None:
        self.gaps = [*self.gaps[-15:], (start, end)]
        self.event("session.output_rolled", start=start, end=end)

    # ------------------------------------------------------------ acts

    def submit_keys(self, client: int, number: int, data: bytes, ack: bool) -> None:
        """Sends raw keys of a client that its keyboard has admitted."""
        self.lane.key(data, client, number, wire.ACT_ACK if ack else 0)

    async def type(
        self,
        operator: str,
        client: int,
        number: int,
        data: bytes,
        repeat: bool = False,
        key: bytes = b"",
        writers: Sequence[str] = UNSEEN,
    ) -> int:
        """Sends typed input as one act; returns its sequence once the keeper has taken it.

        The turn is checked again, because the record of the act took time. If a later act of the
        same client was quicker, this one is refused: its number is used up, and it must not pass
        for a repeat of an act that was done.
        """
        if not repeat:
            await self.turn.settle_and_check(operator)
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

    def reply(self, offset: int, data: bytes) -> None:
        """Sends the terminal's answer to the query that the program printed at this offset."""
        self.lane.submit(wire.INPUT, data, ORIGIN_REPLIES, offset)

    def _first_look(self) -> None:
        self.look_at_ring()
        self.commands.recall(self.ring.accepted)

    async def seize(self, operator: str, key: bytes) -> tuple[str | None, bool]:
        """Takes the turn and discards input of the old holder that is on its way.

        Returns the old holder, and whether the keeper has confirmed the discarding.
        """
        previous = self.turn.take(operator, key)
        if previous is None and self.turn.writer == operator:
            return None, True  # no input of a different operator is under way
        return previous, await self._discard(TurnHeld(f"{operator} took the turn", holder=operator))

    def discard_input_of(self, operator: str) -> Awaitable[bool] | None:
        """Takes the turn from an operator that was stopped, and discards its unread input.

        Returns the confirmation by the keeper; None if none of its input can be under way.
        """
        self.turn.stopped(operator)
        if self.turn.writer not in (None, operator):
            return None
        stop = self.stopped.get(operator)
        by = stop.by if stop is not None else "host"
        return self._discard(OperatorStopped(f"{by} stopped {operator} in this session", by=by))

    def _discard(self, error: HoldfastError) -> Awaitable[bool]:
        """Discards all input that no program has read yet; the senders get the error."""
        clients = {v.conn.client: v.conn for v in self.viewers}
        for client, number in self.lane.void(error):
            if client in clients:
                clients[client].event("refused", number=number, **error.to_wire())
        done = self.lane.submit(wire.FLUSH, b"", ORIGIN_HOST, 0, want_done=True)
        assert done is not None
        return priority.raised_until(self.or_end(done, SEIZE_WAIT_S), self.keeper_pid)

    def signal_all(self, number: int) -> None:
        self.lane.submit(wire.SIGNAL, wire.signal_body(number, wire.SCOPE_ALL), ORIGIN_HOST, 0)

    # ------------------------------------------------------------ live state

    async def terminal(self, within_s: float | None = TERMINAL_S) -> wire.State:
        """The terminal's settings and foreground group, from the kernel."""
        self._tag = tag = (self._tag + 1) % BARRIER
        future: asyncio.Future[wire.State] = self.loop.create_future()
        self._states[tag] = future
        self.link.send(wire.query(tag))
        try:
            if within_s is None or await self.or_end(future, within_s):
                return await future
            if self.ended.done():
                why = f"session {self.name} has ended: {self.record.reason}"
                raise Unavailable(why, "`holdfast ls --all` lists it")
            raise Unavailable(
                "the keeper does not answer", "it may be stopped; the session is not lost"
            )
        finally:
            self._states.pop(tag, None)

    async def marks_seen(self, within_s: float | None = TERMINAL_S) -> wire.State:
        """As `terminal`, after all output up to this moment was searched for marks."""
        state = await self.terminal(within_s)
        self.look_at_ring()
        return state

    async def attention(self) -> tuple[str, str, str]:
        """(what the session waits for, why in words, the foreground command)."""
        found = await read_attention(self, await self.marks_seen())
        return found.kind, found.why, found.foreground

    # ------------------------------------------------------------ ends

    async def end(self, operator: str, kill: Kill | None = None) -> str:
        """Ends everything in the session; returns the name of the signal that did it."""
        return await self.end_of.request(operator, kill)

    def lost(self) -> None:
        """The keeper died; the terminal and the programs are gone too."""
        self.end_of.lost()

    def _keeper_gone(self) -> None:
        """The link broke: the keeper died, or gave us up because we did not read its answers."""
        if not self.ended.done() and not self.end_of.begun:
            self.on_link_lost()

    async def dispose(self) -> None:
        self.turn.close()
        self.pace.close()
        await self.view.close()
        self.forged.close()
        self.commands.close()
        self.link.dispose()

    def rename(self, name: str) -> None:
        self.record.name = name
        self.label["name"] = name
        self.send_label()
        self.leave_name()

    def send_label(self) -> None:
        """Give the label to the keeper, which keeps it for the next host."""
        self.link.send(wire.label(json.dumps(self.label).encode()))

    def leave_name(self) -> None:
        """Write the name where a command finds it while no host answers (halt_directly.py)."""
        handover_file.write(f"{self.host_only_directory}/{handover_file.NAME}", (self.record.name,))
