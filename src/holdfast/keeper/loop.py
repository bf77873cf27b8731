"""The keeper: holds one session's terminal, for as long as it lives, whatever happens to anyone else.

Rules, in order of weight:
1. The terminal is drained into the ring by this process alone: a byte gets its offset once, and nobody's death loses it.
2. An act is applied once. Its epoch must be this incarnation's, its sequence the next one; what was applied before is
   skipped silently. Per client (origin) the last applied act is remembered for the hosts to come.
3. A newer term closes the older host's connection. An older one is refused. So a stale host is harmless.
4. No polling: while nothing happens, this process sleeps without a timeout.
5. It knows no operators, no policy, no network, and imports nothing beyond the standard library.
6. It ends only when the root process has ended and a host has collected that (RELEASE), or is killed.

Tried and rejected: the host reading the terminal itself (1.6-3.4 KB lost per kill of the host under flood); holding the slave
side open all the time (then the end of output cannot be told from a pause).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections import OrderedDict, deque

from holdfast.keeper import terminal
from holdfast.keeper.ring import Ring
from holdfast.model.limits import (
    BELLS_MAX,
    COLS_MAX,
    COLS_MIN,
    INPUT_QUEUE_BYTES,
    KEEPER_BACKLOG,
    KEEPER_PACKET_BYTES,
    LABEL_BYTES,
    ORIGINS_KEPT,
    PTY_READ_BYTES,
    PTY_READS_PER_WAKE,
    REAPED_KEPT,
    ROWS_MAX,
    ROWS_MIN,
)
from holdfast.model.probe import probe
from holdfast.wire import keeper as wire
from holdfast.wire import ring as layout

_ONE = (1).to_bytes(8, "little")
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
_TRUNCATED = int(socket.MSG_TRUNC)      # as a plain number: the enum's own `&` costs as much as a packet


class Keeper:
    def __init__(self, request: wire.Spawn, listener: socket.socket, master: int, root_pid: int) -> None:
        self.session = request.session
        self.epoch = request.epoch
        self.term = 0
        self.label = request.label
        self.size = (request.cols, request.rows)
        self.created_ns = time.time_ns()
        self.ring = Ring(request.ring_bytes, request.away_ms / 1000, request.base, request.ring_tail)
        self.snapshot = os.memfd_create("holdfast-screen", os.MFD_CLOEXEC)
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.bells: dict[int, int] = {}                  # of viewers that read the ring themselves
        self.accepted = self.written = request.accepted
        self.ring.set_word(layout.ACCEPTED_WORD, self.accepted)
        self.ring.set_word(layout.WRITTEN_WORD, self.written)
        self._resized(*self.size)
        self.origins: OrderedDict[int, wire.Origin] = OrderedDict((o.origin, o) for o in request.origins[-ORIGINS_KEPT:])
        self.queue: deque[list[int | bytes]] = deque()   # [sequence, flags, bytes, bytes already written]
        self.queued = 0
        self.status = request.status
        self.reaped: deque[tuple[int, int]] = deque(maxlen=REAPED_KEPT)
        self.root_pid = root_pid
        self.root_start = terminal.start_time(root_pid)
        self.master = master
        self.held_slave = -1
        self.reading = True
        self.watching = 0
        self.eof = False
        self.fence_timer = -1
        self.freeze = -1
        self.fenced = False
        self.released = False
        self.host: socket.socket | None = None
        self.unclaimed: set[socket.socket] = set()
        self.listener = listener
        self.poll = select.epoll()
        self.root_watch = -1

    # ---------------------------------------------------------------- life

    def run(self, first: socket.socket | None) -> None:
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.listener.setblocking(False)
        self.poll.register(wake_r, select.EPOLLIN)
        self.poll.register(self.listener, select.EPOLLIN)
        self._interest()
        if self.status >= 0:
            self.ring.set_flag(layout.FLAG_EXITED, True)
        else:
            self._watch_adopted()
        if first is not None:
            self._admit(first)
        self._reap()
        while not self.released:
            for fd, events in self.poll.poll(self._timeout()):
                if fd == self.master:
                    if events & select.EPOLLOUT:
                        self._write()
                    if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and self.reading:
                        self._drain()
                elif self.host is not None and fd == self.host.fileno():
                    self._serve(self.host)
                elif fd == wake_r:
                    os.read(wake_r, 4096)
                    self._reap()
                elif fd == self.listener.fileno():
                    self._accept()
                elif fd == self.root_watch:
                    self._adopted_ended()
                elif fd == self.fence_timer:
                    self._fence_fires()
                else:
                    for sock in [s for s in self.unclaimed if s.fileno() == fd]:
                        self._serve(sock)
            if not self.reading and not self.eof:
                self._reconsider()

    def _timeout(self) -> float:
        """Sleep for ever, unless a full ring waits for its host."""
        if self.reading or self.eof:
            return -1
        return max(0.0, self.ring.progress_at + self.ring.away_s - time.monotonic())

    def _ring_bell(self) -> None:
        self._ring(self.bell)

    def _ring(self, bell: int) -> None:
        try:
            os.write(bell, _ONE)
        except OSError:
            pass                    # full: whoever listens is awake already

    def _listen(self, packet: bytes, fds: list[int]) -> None:
        tag = wire.read_query(packet)
        if tag in self.bells:
            os.close(self.bells.pop(tag))
        if packet[0] == wire.LISTEN:
            if not fds or len(self.bells) >= BELLS_MAX:
                raise wire.Malformed("no descriptor, or too many bells")
            bell = os.dup(fds[0])
            os.set_blocking(bell, False)
            self.bells[tag] = bell
            self._ring(bell)

    def _forget_bells(self) -> None:
        for bell in self.bells.values():
            os.close(bell)
        self.bells.clear()

    # ---------------------------------------------------------------- output

    def _drain(self) -> None:
        ring = self.ring
        got = 0
        try:
            for _ in range(PTY_READS_PER_WAKE):
                room = ring.room()
                if room <= 0:
                    self._pause()
                    break
                n = ring.read_from(self.master, room)
                probe("keeper.output.published")
                got += n
                if n == 0:
                    self._terminal_closed()
                    break
                if n < 512 or got >= 4 * PTY_READ_BYTES:
                    break
        except BlockingIOError:
            pass
        except OSError as e:
            if e.errno != errno.EIO:
                raise
            self._terminal_closed()
        if got:
            for bell in self.bells.values():    # who shows it to a person comes first
                self._ring(bell)
            self._ring_bell()

    def _pause(self) -> None:
        self.reading = False
        self.ring.progress_at = time.monotonic()
        self._interest()
        self._ring_bell()

    def _reconsider(self) -> None:
        """A full ring: the host consumed some of it, or has been away for too long."""
        if self.ring.room() <= 0 and time.monotonic() >= self.ring.progress_at + self.ring.away_s:
            self.ring.give_up_host()
        if self.ring.room() > 0:
            self.reading = True
            self._interest()

    def _interest(self) -> None:
        """What the loop wants of the terminal. Nothing means unregistered: a hang-up is reported even when not asked for."""
        if self.eof:
            return
        events = (select.EPOLLIN if self.reading else 0) | (select.EPOLLOUT if self.queue else 0)
        if events == self.watching:
            return
        if not events:
            self.poll.unregister(self.master)
        elif not self.watching:
            self.poll.register(self.master, events)
        else:
            self.poll.modify(self.master, events)
        self.watching = events

    def _terminal_closed(self) -> None:
        """EIO: nobody has the slave side open. Final only once the root process has ended."""
        if self.status == -1:
            try:
                self.held_slave = terminal.open_slave(self.master)
                return
            except OSError:
                pass
        if self.watching:
            self.poll.unregister(self.master)
        self.eof, self.watching = True, 0
        self.ring.set_flag(layout.FLAG_EOF, True)
        self._void_queue()
        self._ring_bell()

    # ---------------------------------------------------------------- acts

    def _act(self, kind: int, packet: bytes) -> None:
        act, body = wire.read_act(packet)
        if act.epoch != self.epoch:
            return self._reject(act, wire.REJECT_EPOCH, self.epoch)
        if act.sequence <= self.accepted or self._seen(act):
            if act.sequence == self.accepted + 1:   # a retry under a new number: the number is used up, nothing happens
                self._accept_act(act, remember=False)
                self._took_effect(act.sequence, act.flags)
            elif act.flags & wire.ACT_ACK:
                self._ring_bell()
            return None
        if act.sequence != self.accepted + 1:
            return self._reject(act, wire.REJECT_SEQUENCE, self.accepted)
        if self.fenced:
            return self._reject(act, wire.REJECT_FENCED, 0)
        if kind == wire.INPUT and self.queued + len(body) > INPUT_QUEUE_BYTES:
            return self._reject(act, wire.REJECT_FULL, self.queued)
        if self.eof and kind != wire.SIGNAL:
            return self._reject(act, wire.REJECT_CLOSED, 0)
        if kind == wire.INPUT:
            self._accept_act(act)
            probe("keeper.input.accepted")
            if not self.queue and self._write_at_once(act, body):
                return None
            self.queue.append([act.sequence, act.flags, body, 0])
            self.queued += len(body)
            self._write()
            return None
        if kind == wire.RESIZE:
            cols, rows = wire.read_size(body)
            if not (COLS_MIN <= cols <= COLS_MAX and ROWS_MIN <= rows <= ROWS_MAX):
                raise wire.Malformed("degenerate size")
            self._accept_act(act)
            self._resized(cols, rows)
            terminal.set_size(self.master, cols, rows)
        elif kind == wire.SIGNAL:
            number, scope, pid, start = wire.read_signal(body)
            self._accept_act(act)
            self._signal(number, scope, pid, start)
        elif kind == wire.FLUSH:
            self._accept_act(act)
            terminal.flush_input(self.master)
        self._took_effect(act.sequence, act.flags)

    def _resized(self, cols: int, rows: int) -> None:
        self.size = (cols, rows)
        self.ring.set_word(layout.RESIZED_WORD, self.ring.head)
        self.ring.set_word(layout.GRID_WORD, cols << 32 | rows)

    def _seen(self, act: wire.Act) -> bool:
        known = self.origins.get(act.origin)
        return act.origin != 0 and known is not None and act.origin_sequence <= known.origin_sequence

    def _accept_act(self, act: wire.Act, remember: bool = True) -> None:
        self.accepted = act.sequence
        if act.origin and remember:
            self.origins[act.origin] = wire.Origin(act.origin, act.origin_sequence, act.sequence)
            self.origins.move_to_end(act.origin)
            if len(self.origins) > ORIGINS_KEPT:
                self.origins.popitem(last=False)
        self.ring.set_word(layout.ACCEPTED_WORD, act.sequence)

    def _took_effect(self, sequence: int, flags: int) -> None:
        """Acts that are no input overtake queued input in effect, but WRITTEN only passes what is complete before it."""
        if not self.queue:
            self.written = max(self.written, sequence)
            self.ring.set_word(layout.WRITTEN_WORD, self.written)
        if flags & wire.ACT_ACK:
            self._ring_bell()

    def _reject(self, act: wire.Act, reason: int, value: int) -> None:
        self._send(wire.rejected(act.sequence, reason, value))

    def _write_at_once(self, act: wire.Act, body: bytes) -> bool:
        """A key, nearly always: nothing waits before it and the terminal takes it whole. False if not a byte was taken."""
        try:
            n = os.write(self.master, body)
        except OSError:
            return False
        if n < len(body):
            self.queue.append([act.sequence, act.flags, body, n])
            self.queued += len(body) - n
            self._interest()
            return True
        probe("keeper.input.written")
        self.written = act.sequence
        self.ring.set_word(layout.WRITTEN_WORD, self.written)
        if act.flags & wire.ACT_ACK:
            self._ring_bell()
        return True

    def _write(self) -> None:
        """Hands queued input to the terminal as far as it takes it."""
        asked = False
        while self.queue:
            entry = self.queue[0]
            sequence, flags, data, done = entry
            assert isinstance(sequence, int) and isinstance(flags, int) and isinstance(data, bytes) and isinstance(done, int)
            if done < len(data):
                try:
                    n = os.write(self.master, data[done:] if done else data)
                except BlockingIOError:
                    break
                except OSError:
                    return self._void_queue()
                done += n
                self.queued -= n
                entry[3] = done
                if done < len(data):
                    break
            probe("keeper.input.written")
            self.queue.popleft()
            self.written = sequence if self.queue else self.accepted
            self.ring.set_word(layout.WRITTEN_WORD, self.written)
            asked = asked or bool(flags & wire.ACT_ACK)
        if asked:
            self._ring_bell()
        self._interest()

    def _void_queue(self) -> None:
        self.queue.clear()
        self.queued = 0

    def _withdraw(self, packet: bytes) -> None:
        """Takes back what no program can have seen; tells how far each had got."""
        epoch, first = wire.read_two(packet)
        entries: list[tuple[int, int, int]] = []
        if epoch == self.epoch:
            kept: deque[list[int | bytes]] = deque()
            for entry in self.queue:
                sequence, _, data, done = entry
                assert isinstance(sequence, int) and isinstance(data, bytes) and isinstance(done, int)
                if sequence >= first:
                    entries.append((sequence, done, len(data)))
                    self.queued -= len(data) - done
                else:
                    kept.append(entry)
            self.queue = kept
            if not self.queue:
                self.written = self.accepted
                self.ring.set_word(layout.WRITTEN_WORD, self.written)
            self._interest()
        self._send(wire.withdrawn(entries[:1000]))

    def _signal(self, number: int, scope: int, pid: int, start: int) -> None:
        if scope == wire.SCOPE_PROCESS:
            if pid in terminal.descendants(os.getpid()):
                terminal.send_signal(pid, start, number)
        elif scope == wire.SCOPE_ALL:
            for member in terminal.descendants(os.getpid()):
                terminal.send_signal(member, 0, number)
        else:
            group = self._foreground() if scope == wire.SCOPE_FOREGROUND else self.root_pid
            if group > 1:
                try:
                    os.killpg(group, number)
                except OSError:
                    pass

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self.master)
        except OSError:
            return 0

    def _state(self, packet: bytes) -> None:
        tag = wire.read_query(packet)
        try:
            iflag, oflag, cflag, lflag = (int(x) for x in termios.tcgetattr(self.master)[:4])
            raw = fcntl.ioctl(self.master, termios.TIOCGWINSZ, bytes(8))
            rows, cols = struct.unpack("HHHH", raw)[:2]
        except OSError:
            iflag = oflag = cflag = lflag = 0
            cols, rows = self.size
        self._send(wire.state(wire.State(tag, max(self._foreground(), 0), self.root_pid, cols, rows,
                                         iflag, oflag, cflag, lflag, self.queued)))

    # ---------------------------------------------------------------- hosts

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        if len(self.unclaimed) >= KEEPER_BACKLOG:
            sock.close()
            return
        self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (os.geteuid(), 0):
            sock.close()
            return
        sock.setblocking(False)
        self.unclaimed.add(sock)
        self.poll.register(sock, select.EPOLLIN)

    def _serve(self, sock: socket.socket) -> None:
        """One packet; if there are more, the poll says so at once. A look for a second one would delay every key's echo."""
        try:
            packet, ancillary, flags, _ = sock.recvmsg(KEEPER_PACKET_BYTES, _ONE_DESCRIPTOR)
        except BlockingIOError:
            return None
        except OSError:
            packet, ancillary, flags = b"", [], 0
        fds = _descriptors(ancillary) if ancillary else []
        if not packet:
            return self._drop(sock)
        try:
            if flags & _TRUNCATED:
                raise wire.Malformed("packet too long")
            self._packet(sock, packet, fds)
        except wire.Malformed:
            self._send(wire.refused(wire.REFUSED_PACKET, packet[0]), sock)
            self._drop(sock)
        finally:
            for fd in fds:
                os.close(fd)

    def _packet(self, sock: socket.socket, packet: bytes, fds: list[int]) -> None:
        kind = packet[0]
        if sock is not self.host:
            if kind != wire.HELLO:
                raise wire.Malformed("not introduced")
            return self._claim(sock, packet)
        if wire.INPUT <= kind <= wire.FLUSH:
            self._act(kind, packet)
        elif kind == wire.CONSUMED:
            self.ring.host_consumed(wire.read_one(packet), time.monotonic())
        elif kind == wire.QUERY:
            self._state(packet)
        elif kind == wire.WITHDRAW:
            self._withdraw(packet)
        elif kind == wire.RELEASE:
            if self.status >= 0:
                self.released = True
        elif kind == wire.LABEL:
            if len(packet) - 1 > LABEL_BYTES:
                raise wire.Malformed("label too long")
            self.label = packet[1:]
        elif kind == wire.FENCE:
            self._fence(packet, fds)
        elif kind in (wire.LISTEN, wire.SILENCE):
            self._listen(packet, fds)
        else:
            raise wire.Malformed(f"unknown packet {kind}")

    def _claim(self, sock: socket.socket, packet: bytes) -> None:
        lowest, highest, term = wire.read_hello(packet)
        if not lowest <= wire.VERSION <= highest:
            self._send(wire.refused(wire.REFUSED_VERSION, wire.VERSION), sock)
            return self._drop(sock)
        if term <= self.term:
            self._send(wire.refused(wire.REFUSED_TERM, self.term), sock)
            return self._drop(sock)
        if self.host is not None:
            self._drop(self.host)
        self.unclaimed.discard(sock)
        self.host, self.term = sock, term
        self._forget_bells()
        welcome = wire.welcome(wire.Welcome(
            wire.VERSION, self.epoch, term, self.ring.consumed, self.created_ns, self.root_pid, self.root_start, self.status,
            *self.size, self.session, self.label, tuple(self.origins.values()), tuple(self.reaped)))
        try:
            socket.send_fds(sock, [welcome], [self.ring.fd, self.snapshot, self.bell])
        except OSError:
            self._drop(sock)

    def _send(self, packet: bytes, sock: socket.socket | None = None) -> None:
        """A host that does not read its answers is gone: it comes back and asks again."""
        target = sock or self.host
        if target is None:
            return
        try:
            target.send(packet)
        except OSError:
            self._drop(target)

    def _drop(self, sock: socket.socket) -> None:
        self.unclaimed.discard(sock)
        if sock is self.host:
            self.host = None
        if sock.fileno() >= 0:
            self.poll.unregister(sock)
            sock.close()

    # ---------------------------------------------------------------- ends and fences

    def _watch_adopted(self) -> None:
        """A root process that is no child of ours is watched by pidfd; its exit code may stay unknown."""
        try:
            os.waitid(os.P_PID, self.root_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            try:
                self.root_watch = os.pidfd_open(self.root_pid)
                self.poll.register(self.root_watch, select.EPOLLIN)
            except OSError:
                self._root_ended(0xFF00)

    def _adopted_ended(self) -> None:
        self.poll.unregister(self.root_watch)
        os.close(self.root_watch)
        self.root_watch = -1
        if self.status == -1:
            self._root_ended(0xFF00)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.root_pid and self.status == -1:
                self._root_ended(status)
            else:
                self.reaped.append((pid, status))

    def _root_ended(self, status: int) -> None:
        self.status = status
        if self.held_slave >= 0:
            os.close(self.held_slave)
            self.held_slave = -1
        self.ring.set_flag(layout.FLAG_EXITED, True)
        probe("keeper.root.exited")
        self._send(wire.exited(status, list(self.reaped)))
        self._ring_bell()

    def _fence(self, packet: bytes, fds: list[int]) -> None:
        """Freeze at a deadline on the machine's own clock, because a paused host cannot fence itself. 0 lifts it."""
        epoch, deadline = wire.read_two(packet)
        if epoch != self.epoch:
            return
        if self.freeze >= 0:
            os.close(self.freeze)
        self.freeze = os.dup(fds[0]) if fds else -1
        if self.fence_timer < 0:
            self.fence_timer = terminal.boottime_timer()
            self.poll.register(self.fence_timer, select.EPOLLIN)
        terminal.arm_timer(self.fence_timer, deadline)
        self.fenced = False
        self.ring.set_flag(layout.FLAG_FENCED, False)

    def _fence_fires(self) -> None:
        os.read(self.fence_timer, 8)
        self.fenced = True
        self.ring.set_flag(layout.FLAG_FENCED, True)
        if self.freeze >= 0:
            try:
                os.pwrite(self.freeze, b"1", 0)
            except OSError:
                pass
        self._ring_bell()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
    return list(fds)

