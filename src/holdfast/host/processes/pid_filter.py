"""A filter in the kernel that lets only process events of watched processes reach this process.

The process connector reports every fork, exec and exit of the machine. A host that reads all
reports pays for each program that starts: beside a build with 1,400 forks a second it used a tenth
of a processor. This module attaches a small eBPF program to the connector's socket. The program
keeps the watched pids in a hash map:

- A fork passes if the parent or the child is watched. The program itself adds the child of a
  watched parent to the map, in the context of the fork: before either process runs on. So the
  filter knows every descendant, however short-lived.
- An exec, and a change of user or group, passes if the process is watched.
- An exit passes if the process is watched. Exits of threads pass only after the first thread of
  that process is gone (see host/processes/process_events.py).
- `OPEN`, a key that no process can have, lets all events pass while the key is in the map.

The program never removes a pid. `remove` does, when the listener knows that the process is gone.
A value in the map says whether the first thread has exited. If the value says "no" at that moment,
a new watched process has taken the pid in between, and `remove` keeps the pid.

Messages carry a number per processor, and the program checks that none is missing. It cuts a
message to `CUT_BYTES` in two cases: the message is the first after a gap, or it reports a fork
whose child did not fit into the map. By that length the listener knows that events are missing.

Loading the program needs CAP_BPF, which root has. The kernel refuses other users, and so does a
service manager that forbids bpf(2); then the listener filters for itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterator
from typing import Final

CUT_BYTES: Final = 68  # still holds all fields that the listener reads
WHOLE_BYTES: Final = 0xFFFF
PIDS_MAX: Final = 1 << 16
OPEN: Final = 0  # no process has this pid

_CALL: Final = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_SO_ATTACH_BPF: Final = 50
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD = 0, 1, 2, 5
_MAP_NEXT_KEY, _MAP_TAKE = 4, 21
_HASH, _ARRAY, _SOCKET_FILTER, _NO_PREALLOCATION = 1, 2, 1, 1
_PROCESSORS_MAX: Final = 8192  # the kernel's own limit
_ALIVE, _FIRST_THREAD_EXITED = 0, 1

_WORD = struct.Struct("=I")
_libc = ctypes.CDLL(None, use_errno=True)


class PidFilter:
    """The filter of a socket. Raises OSError if the kernel refuses the filter."""

    def __init__(self, sock: socket.socket) -> None:
        self._key, self._value = ctypes.c_uint32(), ctypes.c_uint32()
        self._pids = _create(_HASH, 4, PIDS_MAX, _NO_PREALLOCATION)
        try:
            numbers = _create(_ARRAY, 8, _PROCESSORS_MAX, 0)
            try:
                program = _load(_program(self._pids, numbers))
            finally:
                os.close(numbers)
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, program)
            finally:
                os.close(program)
        except BaseException:
            os.close(self._pids)
            raise

    def add(self, pid: int, exited: bool = False) -> None:
        """`exited`: the first thread is gone. Raises OSError if the map is full."""
        self._key.value = pid
        self._value.value = _FIRST_THREAD_EXITED if exited else _ALIVE
        self._call(_MAP_UPDATE)

    def remove(self, pid: int, exited: bool = True) -> bool:
        """False if the pid belongs to a new watched process.

        The new process stays watched, but its first events may have been missed. `exited`: the old
        process is known to be gone.
        """
        self._key.value = pid
        try:
            self._call(_MAP_TAKE)
        except OSError as e:
            if e.errno == errno.ENOENT:
                return True
            raise
        if exited and self._value.value == _ALIVE:
            self.add(pid)
            return False
        return True

    def exited(self) -> Iterator[int]:
        """Watched pids after the exit of the first thread."""
        pids, key, after = list[int](), ctypes.c_uint32(), ctypes.c_uint32()
        given = 0
        while True:
            try:
                _bpf(
                    _MAP_NEXT_KEY,
                    struct.pack("=IIQQ", self._pids, 0, given, ctypes.addressof(after)),
                )
            except OSError:
                break
            key.value, given = after.value, ctypes.addressof(key)
            pids.append(key.value)
        for pid in pids:
            self._key.value = pid
            try:
                self._call(_MAP_LOOKUP)
            except OSError:
                continue
            if self._value.value == _FIRST_THREAD_EXITED:
                yield pid

    def close(self) -> None:
        os.close(self._pids)

    def _call(self, command: int) -> None:
        key, value = ctypes.addressof(self._key), ctypes.addressof(self._value)
        _bpf(command, struct.pack("=IIQQQ", self._pids, 0, key, value, 0))


def _bpf(command: int, attributes: bytes) -> int:
    if _CALL is None:
        raise OSError(errno.ENOSYS, "bpf: no system call number for this machine")
    done = _libc.syscall(_CALL, command, attributes, len(attributes))
    if done < 0:
        raise OSError(number := ctypes.get_errno(), f"bpf: {os.strerror(number)}")
    return int(done)


def _create(kind: int, value_bytes: int, entries: int, flags: int) -> int:
    return _bpf(_MAP_CREATE, struct.pack("=IIIII", kind, 4, value_bytes, entries, flags))


def _load(program: bytes) -> int:
    code, licence = ctypes.create_string_buffer(program, len(program)), ctypes.c_char_p(b"MIT")
    where = ctypes.cast(licence, ctypes.c_void_p).value or 0
    return _bpf(
        _PROG_LOAD,
        struct.pack(
            "=IIQQ", _SOCKET_FILTER, len(program) // 8, ctypes.addressof(code), where
        ).ljust(120, b"\0"),
    )


# ------------------------------------------------------------ the program

_LOAD_BYTES, _LOOKUP, _UPDATE = 26, 1, 2  # helpers of the kernel
_NONE, _FORKED, _EXECUTED, _UID, _GID, _EXITED = 0, 0x1, 0x2, 0x4, 0x40, 0x80000000
# The program copies the end of a netlink message to its stack, from byte 24 on: the connector's
# header from its sequence number, then the process event. The offsets are from the frame pointer.
_COPIED_FROM, _COPIED = 24, CUT_BYTES - 24
_NUMBER, _WHAT, _CPU, _PID, _GROUP, _CHILD, _CHILD_GROUP = -48, -36, -32, -20, -16, -12, -8
_ZERO = -52  # a key or value of zero


class _Assembler:
    """eBPF instructions with named jump targets."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, str | int, int]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def emit(self, op: int, dst: int = 0, src: int = 0, off: str | int = 0, imm: int = 0) -> None:
        self._code.append((op, dst, src, off, imm))

    def set(self, dst: int, value: int) -> None:
        self.emit(0xB4, dst, imm=value)  # 32 bits; the upper half becomes zero

    def copy(self, dst: int, src: int) -> None:
        self.emit(0xBF, dst, src)

    def load(self, dst: int, at: int) -> None:
        self.emit(0x61, dst, 10, at)

    def address(self, dst: int, at: int) -> None:
        self.copy(dst, 10)
        self.emit(0x07, dst, imm=at)

    def map(self, dst: int, fd: int) -> None:
        self.emit(0x18, dst, 1, imm=fd)
        self.emit(0)

    def call(self, helper: int) -> None:
        self.emit(0x85, imm=helper)

    def jump(self, to: str) -> None:
        self.emit(0x05, off=to)

    def jump_if(self, dst: int, value: int, to: str) -> None:
        self.emit(0x16, dst, off=to, imm=value)  # 32 bits

    def jump_unless(self, dst: int, value: int, to: str) -> None:
        self.emit(0x56, dst, off=to, imm=value)

    def jump_if_same(self, dst: int, src: int, to: str) -> None:
        self.emit(0x1E, dst, src, off=to)

    def lookup(self, fd: int, key_at: int) -> None:
        """R0: where the value is, or zero."""
        self.map(1, fd)
        self.address(2, key_at)
        self.call(_LOOKUP)

    def jump_if_found(self, to: str) -> None:
        self.emit(0x55, 0, off=to, imm=0)  # 64 bits: an address

    def bytes(self) -> bytes:
        out = bytearray()
        for at, (op, dst, src, off, imm) in enumerate(self._code):
            away = self._labels[off] - at - 1 if isinstance(off, str) else off
            value = imm - (1 << 32) if imm > 0x7FFFFFFF else imm
            out += struct.pack("=BBhi", op, src << 4 | dst, away, value)
        return bytes(out)


def _program(pids: int, numbers: int) -> bytes:
    """R6: the message, R7: its kind, R8: 1 if a message is missing, R9: 1 if all events pass."""
    a = _Assembler()
    a.copy(6, 1)
    a.set(8, 0)
    a.emit(0xBF, 1, 6)
    a.set(2, _COPIED_FROM)
    a.address(3, _NUMBER)
    a.set(4, _COPIED)
    a.call(_LOAD_BYTES)
    a.jump_unless(0, 0, "pass")
    a.load(7, _WHAT)

    # Is this the expected number of the processor? The upper half of the value says that there was
    # a message before.
    a.lookup(numbers, _CPU)
    a.jump_if_found("numbered")
    a.jump("missing")
    a.label("numbered")
    a.load(1, _NUMBER)
    a.emit(0x61, 2, 0, 0)  # expected
    a.emit(0x61, 3, 0, 4)  # known
    a.copy(4, 1)
    a.emit(0x04, 4, imm=1)  # 32 bits: the number wraps
    a.emit(0x63, 0, 4, 0)
    a.set(4, 1)
    a.emit(0x63, 0, 4, 4)
    a.jump_if(3, 0, "counted")
    a.jump_if_same(1, 2, "counted")
    a.label("missing")
    a.set(8, 1)
    a.label("counted")
    a.jump_if(7, _NONE, "pass")  # the answer to a subscription has a number too

    a.set(9, 0)
    a.set(1, OPEN)
    a.emit(0x63, 10, 1, _ZERO)
    a.lookup(pids, _ZERO)
    a.emit(0x15, 0, off="closed", imm=0)
    a.set(9, 1)
    a.label("closed")
    a.jump_if(7, _FORKED, "fork")
    a.jump_if(7, _EXITED, "exit")
    for kind in (_EXECUTED, _UID, _GID):
        a.jump_if(7, kind, "other")
    a.jump("drop")

    a.label("fork")
    a.load(1, _CHILD)
    a.load(2, _CHILD_GROUP)
    a.jump_if_same(1, 2, "process")
    a.jump("drop")  # a thread
    a.label("process")
    a.lookup(pids, _GROUP)  # the parent's
    a.jump_if_found("descends")
    a.lookup(pids, _CHILD_GROUP)
    a.jump_if_found("pass")
    a.jump("foreign")
    a.label("descends")
    a.map(1, pids)
    a.address(2, _CHILD_GROUP)
    a.address(3, _ZERO)
    a.set(4, 0)
    a.call(_UPDATE)
    a.jump_if(0, 0, "pass")
    a.set(8, 1)
    a.jump("pass")

    a.label("exit")
    a.lookup(pids, _GROUP)
    a.emit(0x15, 0, off="foreign", imm=0)
    a.load(1, _PID)
    a.load(2, _GROUP)
    a.jump_if_same(1, 2, "first thread")
    a.emit(0x61, 1, 0, 0)
    a.jump_if(1, _FIRST_THREAD_EXITED, "pass")
    a.jump("drop")
    a.label("first thread")
    a.set(1, _FIRST_THREAD_EXITED)
    a.emit(0x63, 0, 1, 0)
    a.jump("pass")

    a.label("other")
    a.lookup(pids, _GROUP)
    a.jump_if_found("pass")
    a.label("foreign")
    a.jump_unless(9, 0, "pass")
    a.label("drop")
    a.jump_unless(8, 0, "cut")
    a.set(0, 0)
    a.emit(0x95)
    a.label("pass")
    a.jump_unless(8, 0, "cut")
    a.set(0, WHOLE_BYTES)
    a.emit(0x95)
    a.label("cut")
    a.set(0, CUT_BYTES)
    a.emit(0x95)
    return a.bytes()
