"""The keeper: holds one session's terminal for as long as the session lives.

Rules, in order of weight:
1. Only this process drains the terminal into the ring. A byte gets its offset once, and no other
   process loses a byte by dying.
2. An act is applied once, in order (keeper/acts.py). Its epoch must be this incarnation's.
3. A newer term closes the older host's connection; an older term is refused. A stale host is
   therefore harmless.
4. No polling: while idle, this process sleeps without a timeout.
5. The keeper knows no operators, policies or networks, and imports the standard library only.
6. The keeper exits only when killed, or after the root process has ended and a host has collected
   the exit (RELEASE). SIGHUP makes the keeper listen again, in case its socket file was removed.
   HALT_SIGNAL and RELEASE_SIGNAL are orders to a contained session's init. SIGTERM ends the keeper
   only in the last step of a shutdown. All other signals that can be ignored are ignored.
7. A malformed packet costs its sender the connection, and has no further effect.
8. The keeper touches little memory, because each page it writes is no longer shared
   (docs/decisions/0002-keeper-memory.md). The path of an ordinary byte or act has no exception,
   generator or join. The launcher does all one-time work.

The slave side of the terminal is held open only while no program has it open and the root process
lives (held_slave). The kernel then reports a hang-up, which is a pause and not the end of output.
Once the root process has ended, no input is accepted or written. Input still queued stays, so that
a host can withdraw it and learn how much of each piece was written.

Tried and rejected: the host reading the terminal itself (1.6 to 3.4 KB lost per kill of the host
under flood); holding the slave side open all the time (a pause then looks like the end of output).
"""

from __future__ import annotations

import _socket
import os
import select
import struct
import sys
import termios
import time

from holdfast.keeper import launch, terminal
from holdfast.keeper.acts import Acts
from holdfast.keeper.fence import Fence
from holdfast.keeper.gate import Gate
from holdfast.keeper.hosts import Hosts
from holdfast.keeper.ring import Ring
from holdfast.keeper.tree import ORDERS, Tree
from holdfast.model.limits import (
    BELLS_MAX,
    KEEPER_EVENTS_PER_WAKE,
    KEEPER_PACKET_BYTES,
    PTY_BUSY_BYTES,
    PTY_READ_BYTES,
    PTY_READS_PER_WAKE,
)
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_ONE = (1).to_bytes(8, "little")
_ONE_DESCRIPTOR = _socket.CMSG_SPACE(4)
# One buffer for all packets: each page that a keeper writes is no longer shared.
packet_buffer = memoryview(bytearray(KEEPER_PACKET_BYTES))


class Keeper:
    __slots__ = (
        "acts",
        "bell",
        "bells",
        "created_ns",
        "eof",
        "epoch",
        "fence",
        "gate",
        "held",
        "held_slave",
        "hosts",
        "label",
        "master",
        "poll",
        "reading",
        "released",
        "ring",
        "session",
        "size",
        "snapshot",
        "told_cut_off",
        "tree",
        "wake",
        "wake_write",
        "watching",
    )

    def __init__(
        self,
        directory: str,
        fds: bytes,
        session: bytes,
        name: str,
        fresh: str,
        inode: int,
        epoch: int,
        label: bytes,
        cols: int,
        rows: int,
        created_ns: int,
        away_s: float,
        root: int,
        root_start: int,
        status: int,
        adopted: bool,
        accepted: int,
        origins: dict[int, tuple[int, int, int]],
        contained: bool,
        gate: int,
        connector: int,
        deadline_ns: int,
        cgroup: bytes,
        holder: int,
    ) -> None:
        self.session, self.epoch, self.label = session, epoch, label
        self.size, self.created_ns = (cols, rows), created_ns
        (self.master, ring_fd, self.snapshot, self.bell, listener, self.wake, self.wake_write) = (
            launch.DESCRIPTORS.unpack_from(fds)
        )
        watch = launch.ONE.unpack_from(fds, launch.DESCRIPTORS.size)[0] if contained else -1
        held_at = launch.DESCRIPTORS.size + launch.ONE.size * contained
        # Of a contained session: init's pidfd and the namespaces, which no other process can open.
        self.held: tuple[int, ...] = launch.HELD.unpack_from(fds, held_at) if contained else ()
        listener_at = held_at + launch.HELD.size * contained
        self.bells: dict[int, int] = {}  # eventfds of viewers that read the ring directly
        self.poll = select.epoll()
        self.poll.register(self.wake, select.EPOLLIN)
        self.hosts = Hosts(self.poll, directory, name, fresh, inode, listener)
        self.ring = Ring(ring_fd, away_s)
        self.acts = Acts(self.ring, accepted, origins)
        self.tree = Tree(root, root_start, status, adopted, watch, connector, holder)
        self.fence: Fence | None = None  # created with the first deadline
        if deadline_ns:
            self._fenced().begin(deadline_ns, cgroup)
        self.gate: Gate | None = None  # only if the request asked for a gate
        if gate:
            self.gate = Gate(
                self.poll, launch.ONE.unpack_from(fds, listener_at)[0] if gate > 0 else gate
            )
        self.held_slave = -1
        self.reading = True  # False: the ring is full
        self.watching = 0  # events of the terminal that the poll reports
        self.eof = self.released = self.told_cut_off = False

    # ---------------------------------------------------------------- life

    def begin(self) -> None:
        """Start serving: from here on no event is missed, and hosts may connect."""
        signal.set_wakeup_fd(self.wake_write)
        signal.signal(signal.SIGCHLD, _wake)
        for number in (signal.SIGHUP, signal.SIGTERM, *ORDERS):
            signal.signal(number, _wake)
        if self.tree.watch >= 0:
            self.poll.register(self.tree.watch, select.EPOLLIN)
        self.tree.reap()  # children that ended before the handler was installed
        if self.tree.status >= 0:
            self._root_ended()
        if self.fence is not None:
            self._check_fence(self.fence)
        self._interest()
        self.hosts.listen()

    def run(self) -> None:
        while not self.released:
            self._turn()

    def close(self) -> None:
        """Close every descriptor. The kernel then sends SIGHUP to the terminal's programs."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGHUP, signal.SIGTERM, *ORDERS):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self.tree.end_connector()
        fence = (self.fence.timer, self.fence.freeze) if self.fence else ()
        if self.gate is not None:
            self.gate.close()
        for fd in (
            self.master,
            self.ring.fd,
            self.snapshot,
            self.bell,
            *self.bells.values(),
            self.wake,
            self.wake_write,
            self.held_slave,
            self.tree.watch,
            *self.held,
            *fence,
        ):
            if fd >= 0:
                os.close(fd)
        self.hosts.close()
        self.poll.close()

    def _turn(self) -> None:
        """Wait for events and handle them."""
        hosts = self.hosts
        patience = -1.0  # sleep without limit, unless a full ring waits for the host
        if not self.reading and not self.eof:
            patience = self.ring.progress_at + self.ring.away_s - time.monotonic()
            patience = patience if patience > 0 else 0
        gate = self.gate
        if gate is not None and gate.due:
            patience = gate.patience(patience)
        for fd, events in self.poll.poll(patience, KEEPER_EVENTS_PER_WAKE):
            if fd == self.master:
                if events & select.EPOLLOUT:
                    self._write()
                if self.reading:
                    self._drain()
                elif events & select.EPOLLHUP:
                    self._nobody_there()
            elif hosts.host is not None and fd == hosts.host.fileno():
                self._serve(hosts.host)
            elif fd in hosts.newcomers:
                self._serve(hosts.newcomers[fd])
            elif fd == hosts.listener.fileno():
                hosts.accept()
            elif fd == self.wake:
                self._signalled()
            elif self.fence is not None and fd == self.fence.timer:
                self._check_fence(self.fence)
            elif fd == self.tree.watch:
                self.tree.elsewhere_ended()
                self._root_ended()
            elif gate is not None and fd == gate.fd:
                gate.woken(events)
        if gate is not None:
            gate.see(hosts.host)
        if not self.reading:
            self._reconsider()

    def _ring(self, bell: int) -> None:
        try:
            os.write(bell, _ONE)
        except OSError:
            pass  # full: the reader is awake already

    def _signalled(self) -> None:
        for number in os.read(self.wake, 4096):
            if number == signal.SIGHUP:
                self.hosts.listen_anew()
            elif number == signal.SIGTERM:
                self.released = self.released or terminal.machine_ends()
            elif number in ORDERS:
                self.tree.order(number)
        if self.tree.reap():
            self._root_ended()
        if self.tree.cut_off >= 0 and not self.told_cut_off:
            self._tell_cut_off()

    def _tell_cut_off(self) -> None:
        if self.hosts.host is not None:
            self.hosts.send(wire.cut_off(self.tree.cut_off, self.told_cut_off))
            self.told_cut_off = True

    def _root_ended(self) -> None:
        self.tree.end_connector()
        if self.held_slave >= 0:
            os.close(self.held_slave)
            self.held_slave = -1
        # The namespaces keep the session's /dev/shm and System V memory.
        for fd in self.held:
            os.close(fd)
        self.held = ()
        self._interest()
        self.ring.set_flag(layout.FLAG_EXITED, True)
        probe("keeper.root.exited")
        self.hosts.send(wire.exited(self.tree.status, self.tree.reaped))
        self._ring(self.bell)

    # ---------------------------------------------------------------- output

    def _drain(self) -> None:
        """Read the terminal's output into the ring.

        Stops after a short read, which was the last.
        """
        ring = self.ring
        got = 0
        try:
            for _ in range(PTY_READS_PER_WAKE):
                room = ring.room()
                if room <= 0:
                    self._pause()
                    break
                count = ring.read_from(self.master, room)
                probe("keeper.output.published")
                got += count
                if count < PTY_BUSY_BYTES or got >= 4 * PTY_READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except OSError:
            self._nobody_there()
        if got:
            if self.bells:
                for bell in self.bells.values():  # local viewers first: they show it to people
                    self._ring(bell)
            self._ring(self.bell)

    def _pause(self) -> None:
        self.reading = False
        self.ring.progress_at = time.monotonic()
        self._interest()
        self._ring(self.bell)

    def _reconsider(self) -> None:
        """Read on after the ring was full: the host consumed some, or was away too long."""
        if self.ring.room() <= 0 and time.monotonic() >= self.ring.progress_at + self.ring.away_s:
            self.ring.give_up_host()
        if self.ring.room() > 0:
            self.reading = True
            self._interest()

    def _interest(self) -> None:
        """Register the terminal events that the loop needs now.

        With none it is unregistered, because the kernel reports a hang-up even if not asked for.
        """
        events = 0
        if not self.eof:
            if self.reading:
                events = select.EPOLLIN
            if self.acts.queue and self.tree.status < 0 and not (self.fence and self.fence.up):
                events |= select.EPOLLOUT
        if events == self.watching:
            return
        if not events:
            self.poll.unregister(self.master)
        elif not self.watching:
            self.poll.register(self.master, events)
        else:
            self.poll.modify(self.master, events)
        self.watching = events

    def _nobody_there(self) -> None:
        """No program has the slave side open: the end of output only if the root process ended."""
        if self.tree.status < 0 and self.held_slave < 0:
            try:
                self.held_slave = terminal.open_slave(self.master)
                return
            except OSError:
                pass
        self.eof = True
        self._interest()
        self.ring.set_flag(layout.FLAG_EOF, True)
        self._ring(self.bell)

    # ---------------------------------------------------------------- acts

    def _act(self, kind: int, packet: bytes) -> None:
        (epoch, sequence, origin, number, flags), body = wire.read_act(packet)
        acts = self.acts
        fence = self.fence
        if fence is not None:
            self._check_fence(fence)
        if epoch != self.epoch:
            return self.hosts.send(wire.rejected(sequence, wire.REJECT_EPOCH, self.epoch))
        if sequence > acts.accepted + 1:
            return self.hosts.send(wire.rejected(sequence, wire.REJECT_SEQUENCE, acts.accepted))
        if sequence == acts.accepted + 1:  # otherwise it was applied before
            if origin and acts.repeats(origin, number):
                acts.take(sequence, 0, 0)
            elif fence is not None and fence.up:
                return self.hosts.send(wire.rejected(sequence, wire.REJECT_FENCED, 0))
            elif (self.eof or self.tree.status >= 0) and kind != wire.SIGNAL:
                return self.hosts.send(wire.rejected(sequence, wire.REJECT_CLOSED, 0))
            elif kind == wire.INPUT and acts.full(len(body)):
                return self.hosts.send(wire.rejected(sequence, wire.REJECT_FULL, acts.queued))
            else:
                acts.take(sequence, origin, number)
                self._apply(kind, body, origin, flags)
            if flags & wire.ACT_ACK:
                acts.asked = sequence
            acts.settle()
        if flags & wire.ACT_ACK:
            self._ring(self.bell)
        return None

    def _apply(self, kind: int, body: bytes, origin: int, flags: int) -> None:
        if kind == wire.INPUT:
            self.acts.add(body, origin)
            self._write()
        elif kind == wire.RESIZE:
            cols, rows = wire.read_size(body)
            self._resize(cols, rows)
        elif kind == wire.FLUSH:
            self._flush(wire.read_flush(body), flags)
        elif kind == wire.SIGNAL:
            number, scope, pid, start = wire.read_signal(body)
            self.tree.signal(number, scope, pid, start, terminal.foreground(self.master))

    def _write(self) -> None:
        """Write queued input to the terminal; the rest waits until there is room."""
        if self.fence is not None:
            self._check_fence(self.fence)
        if self.tree.status < 0 and not (self.fence and self.fence.up):
            try:
                self.acts.write(self.master)
            except OSError:
                self._nobody_there()
            if self.acts.settle():
                self._ring(self.bell)
        self._interest()

    def _resize(self, cols: int, rows: int) -> None:
        for fd, _ in self.poll.poll(0, KEEPER_EVENTS_PER_WAKE):
            if fd == self.master and self.reading:
                self._drain()  # output drawn for the old size comes before the new size
        self.size = (cols, rows)
        self.ring.words[layout.RESIZED_WORD] = self.ring.head
        self.ring.words[layout.GRID_WORD] = cols << 32 | rows
        try:
            termios.tcsetwinsize(self.master, (rows, cols))
        except (OSError, termios.error):
            pass  # it has just ended

    def _flush(self, origin: int, flags: int) -> None:
        entries = self.acts.discard(origin)
        self._interest()
        try:
            terminal.flush_input(self.master)
        except (OSError, termios.error):
            pass  # it has just ended
        if flags & wire.ACT_REPORT:
            self.hosts.send(wire.withdrawn(entries))

    def _withdraw(self, packet: bytes) -> None:
        """Take back input that no program can have read; report how much of each was written."""
        epoch, first = wire.read_two(packet)
        entries = self.acts.withdraw(first) if epoch == self.epoch else []
        if self.acts.settle():
            self._ring(self.bell)
        self._interest()
        self.hosts.send(wire.withdrawn(entries))

    def _state(self, packet: bytes) -> None:
        tag = wire.read_query(packet)
        try:
            flags = termios.tcgetattr(self.master)[:4]
            rows, cols = termios.tcgetwinsize(self.master)
        except (OSError, termios.error):
            flags = [0, 0, 0, 0]
            cols, rows = self.size
        processes = terminal.foreground(self.master), self.tree.root
        self.hosts.send(wire.state(tag, *processes, cols, rows, *flags, self.acts.queued))

    # ---------------------------------------------------------------- hosts

    def _serve(self, sock: _socket.socket) -> None:
        """Handle one packet.

        Looking for a second one would delay a key's echo; the poll repeats.
        """
        try:
            count, ancillary, flags, _ = sock.recvmsg_into(
                [packet_buffer], _ONE_DESCRIPTOR, _socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            count, ancillary, flags = 0, [], 0
        fds = descriptors(ancillary) if ancillary else ()
        packet = bytes(packet_buffer[:count])
        try:
            if flags & _socket.MSG_TRUNC:
                raise wire.Malformed("packet too long")
            if packet:
                self._packet(sock, packet, fds)
            else:
                self.hosts.drop(sock)
        except wire.Malformed:
            self.hosts.refuse(sock, wire.REFUSED_PACKET, packet[0])
        except Exception:
            sys.excepthook(*sys.exc_info())
            self.hosts.drop(sock)
        finally:
            for fd in fds:
                os.close(fd)

    def _packet(self, sock: _socket.socket, packet: bytes, fds: tuple[int, ...]) -> None:
        kind = packet[0]
        if sock is not self.hosts.host:
            if kind != wire.HELLO:
                raise wire.Malformed("not introduced")
            self._claim(sock, packet)
        elif wire.INPUT <= kind <= wire.FLUSH:
            self._act(kind, packet)
        elif kind == wire.CONSUMED:
            self.ring.host_consumed(wire.read_one(packet), time.monotonic())
        elif kind == wire.QUERY:
            self._state(packet)
        elif kind == wire.WITHDRAW:
            self._withdraw(packet)
        elif kind == wire.RELEASE:
            if len(packet) > 1:
                raise wire.Malformed("release with a body")
            self.released = self.released or self.tree.status >= 0
        elif kind == wire.LABEL:
            self.label = wire.read_label(packet)
        elif kind == wire.FENCE:
            self._fence(packet, fds)
        elif kind in (wire.LISTEN, wire.SILENCE):
            self._set_bell(packet, fds)
        elif kind == wire.GATE:
            self._lend_gate()
        else:
            raise wire.Malformed(f"unknown packet {kind}")

    def _claim(self, sock: _socket.socket, packet: bytes) -> None:
        if not self.hosts.claim(sock, packet):
            return
        for bell in self.bells.values():  # the previous host's viewers
            os.close(bell)
        self.bells.clear()
        cols, rows = self.size
        welcome = wire.welcome(
            wire.VERSION,
            self.epoch,
            self.hosts.term,
            self.ring.consumed,
            self.created_ns,
            self.tree.root,
            self.tree.start,
            self.tree.status,
            cols,
            rows,
            self.session,
            self.label,
            self.acts.origins.values(),
            self.tree.reaped,
        )
        self.hosts.send(welcome, launch.THREE.pack(self.ring.fd, self.snapshot, self.bell))
        if self.tree.cut_off >= 0:
            self._tell_cut_off()

    def _set_bell(self, packet: bytes, fds: tuple[int, ...]) -> None:
        """Add or remove the bell of a local viewer that reads the ring directly."""
        tag = wire.read_query(packet)
        if packet[0] == wire.LISTEN and (not fds or len(self.bells) >= BELLS_MAX):
            raise wire.Malformed("no descriptor, or too many bells")
        if tag in self.bells:
            os.close(self.bells.pop(tag))
        if packet[0] == wire.LISTEN:
            bell = os.dup(fds[0])
            os.set_blocking(bell, False)
            self.bells[tag] = bell
            self._ring(bell)

    def _lend_gate(self) -> None:
        fd = self.gate.fd if self.gate is not None else 0
        if self.gate is not None:
            self.gate.lend(self.hosts.host)
        self.hosts.send(
            wire.gated(0 if fd > 0 else -fd or -1), launch.ONE.pack(fd) if fd > 0 else b""
        )

    def _fence(self, packet: bytes, fds: tuple[int, ...]) -> None:
        epoch, deadline_ns = wire.read_two(packet)
        if epoch != self.epoch:
            return self.hosts.send(wire.rejected(0, wire.REJECT_EPOCH, self.epoch))
        fence = self._fenced()
        self._check_fence(fence)  # an earlier deadline may have passed unnoticed
        fell = fence.up
        fence.set(deadline_ns, os.dup(fds[0]) if fds else -1)
        self.ring.set_flag(layout.FLAG_FENCED, False)
        self._check_fence(fence)  # the new one may have passed too
        if fell and not fence.up:  # the programs stand still: the host may not know
            self.hosts.send(wire.rejected(0, wire.REJECT_FENCED, 0))
        self._write()
        return None

    def _fenced(self) -> Fence:
        if self.fence is None:
            self.fence = Fence()
            self.poll.register(self.fence.timer, select.EPOLLIN)
        return self.fence

    def _check_fence(self, fence: Fence) -> None:
        if fence.falls():
            if not fence.frozen:
                self.tree.stop()
            self.ring.set_flag(layout.FLAG_FENCED, True)
            self._interest()
            self._ring(self.bell)


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    fds: tuple[int, ...] = ()
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) - len(data) % 4])
    return fds


def _wake(number: int, frame: object) -> None:
    """Do nothing: Python has already put the signal's number into the wake-up pipe."""
