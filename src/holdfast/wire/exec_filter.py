"""The seccomp filter of a session: it reports every exec, and forbids a few calls.

An exec passes unreported if its sixth argument, which execve does not use, carries the cookie: the
session's own program starts that way, before a host could decide. Forbidden are the ioctls that
type into a terminal (TIOCSTI, TIOCLINUX), so that no program passes its words off as an operator's.
A contained session has more rules. io_uring does not exist there, because it works around filters
and cannot be checkpointed. The kernel's keyrings do not exist, because the account's own keyrings
can be reached from every user namespace. And no mode may have the setuid or setgid bit: the
workspace is an ordinary directory outside, where another user could execute the file with the
account's rights. openat2 does not exist there either, because a filter cannot read its mode. A
socket there has one of FAMILIES: others (vsock, which leads to the hypervisor, Bluetooth, RDS) are
not bounded by a network namespace. The old call socketcall hides the family and opens no socket. No
call changes limits or priority of process 1, which must be able to halt the session. No program
takes a lease on a file: programs outside that open the same file would wait for its holder.
io_setup does not exist, because the kernel has one count of its requests for the whole machine.

Each personality of the processor has its own entry and numbers for these calls; all known ones are
listed, and an unlisted one may make no call at all.

A session has this filter alone: CRIU of an ordinary user cannot save a process with two. CRIU
restores a saved process with its filters but without a listener, so that every exec would fail.
`neutral` turns exactly this filter, whatever its cookie, into one of the same length that allows
the execs; other filters are left as they are.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

# Execve, seccomp
SYSCALLS: Final[Mapping[str, tuple[int, int]]] = {
    "x86_64": (59, 317),
    "aarch64": (221, 277),
}
_X32: Final = 0x4000_0000


class Personality(NamedTuple):
    """The numbers of one way to enter the kernel."""

    arch: int  # AUDIT_ARCH_*
    exec: tuple[int, ...]  # execve and execveat
    ioctl: tuple[int, ...]
    modes: tuple[tuple[int, ...], ...]  # calls with a mode as second argument, and as third
    opens: tuple[tuple[int, ...], ...]  # calls with flags as second argument, and as third
    missing: tuple[int, ...]  # io_uring_setup, openat2, add_key, request_key, keyctl, io_setup
    sockets: tuple[int, ...]  # socket, socketpair: the family is the first argument
    ranks: tuple[tuple[int, ...], ...]  # calls with a pid as first argument, and as second
    fcntl: tuple[int, ...]
    socketcall: tuple[int, ...] = ()  # the first argument is one of SOCKETCALLS, for the same


def _and_x32(*numbers: int) -> tuple[int, ...]:
    return (*numbers, *(_X32 | number for number in numbers))


# For each machine its personalities, native first. Modes: chmod, fchmod, creat, mknod; fchmodat,
# fchmodat2, mknodat. Opens: open; openat. Ranks: prlimit64, sched_setparam, sched_setscheduler,
# sched_setaffinity, sched_setattr; setpriority, ioprio_set.
PERSONALITIES: Final[Mapping[str, tuple[Personality, ...]]] = {
    "x86_64": (
        Personality(
            0xC000_003E,
            (59, 322, _X32 | 520, _X32 | 545, _X32 | 59, _X32 | 322),
            (16, _X32 | 514, _X32 | 16),
            (_and_x32(90, 91, 85, 133), _and_x32(268, 452, 259)),
            (_and_x32(2), _and_x32(257)),
            (*_and_x32(425, 437, 248, 249, 250, 206), _X32 | 543),
            _and_x32(41, 53),
            (_and_x32(302, 142, 144, 203, 314), _and_x32(141, 251)),
            _and_x32(72),
        ),
        Personality(
            0x4000_0003,
            (11, 358),
            (54,),
            ((15, 94, 8, 14), (306, 452, 297)),
            ((5,), (295,)),
            (425, 437, 286, 287, 288, 245),
            (359, 360),
            ((340, 154, 156, 241, 351), (97, 289)),
            (55, 221),
            (102,),
        ),
    ),
    "aarch64": (
        Personality(
            0xC000_00B7,
            (221, 281),
            (29,),
            ((52,), (53, 452, 33)),
            ((), (56,)),
            (425, 437, 217, 218, 219, 0),
            (198, 199),
            ((261, 118, 119, 122, 274), (140, 30)),
            (25,),
        ),
        Personality(
            0x4000_0028,
            (11, 387),
            (54,),
            ((15, 94, 8, 14), (333, 452, 324)),
            ((5,), (322,)),
            (425, 437, 309, 310, 311, 243),
            (281, 288),
            ((369, 154, 156, 241, 380), (97, 314)),
            (55, 221),
            (102,),
        ),
    ),
}
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
LEASES: Final = (1024, 1040)  # F_SETLEASE, F_SETDELEG
FAMILIES: Final = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
SOCKETCALLS: Final = (1, 8)  # socket, socketpair
RET_NOTIFY, RET_ALLOW, _RET_ERRNO = 0x7FC0_0000, 0x7FFF_0000, 0x0005_0000
RET_NOSYS, RET_FORBIDDEN = _RET_ERRNO | errno.ENOSYS, _RET_ERRNO | errno.EPERM
RET_NO_FAMILY = _RET_ERRNO | errno.EAFNOSUPPORT
# BPF: A = word at k; A == k ? jt : jf; A & k ? jt : jf; return k
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_INIT = 1
_SET_ID, _MAKES_FILE = 0o6000, 0o100 | 0o20000000  # S_ISUID and S_ISGID; O_CREAT and O_TMPFILE
# Offsets in struct seccomp_data. The kernel looks at the lower half only of the number of an
# ioctl or fcntl, of flags, of modes, of families and of process numbers.
_NR, _ARCH, _ARGUMENTS = 0, 4, tuple(16 + n * 8 for n in range(6))
_IOCTL, _COOKIE = _ARGUMENTS[1], _ARGUMENTS[5]
INSTRUCTION: Final = struct.Struct("<HBBI")
Code = list[tuple[int, int, int, int]]


def program(machine: str, cookie: int, contained: bool = False) -> bytes:
    """Make the filter program. Jumps go forward only: a failed test continues with the next."""
    own, *others = PERSONALITIES[machine]
    code: Code = [(_LOAD, 0, 0, _ARCH)]
    for other in others:
        calls = _calls(other, contained)
        code += [(_EQUAL, 0, len(calls), other.arch), *calls]
    calls = _calls(own, contained)
    code += [
        (_EQUAL, 1, 0, own.arch),
        (_RETURN, 0, 0, RET_NOSYS),
        (_LOAD, 0, 0, _NR),
        (_EQUAL, 0, 5, SYSCALLS[machine][0]),
        (_LOAD, 0, 0, _COOKIE),
        (_EQUAL, 0, 3, cookie & 0xFFFF_FFFF),
        (_LOAD, 0, 0, _COOKIE + 4),
        (_EQUAL, 0, 1, cookie >> 32),
        (_RETURN, 0, 0, RET_ALLOW),
        *calls,
    ]
    return b"".join(INSTRUCTION.pack(*one) for one in code)


def _calls(personality: Personality, contained: bool) -> Code:
    """Make the code that decides about a call by its number, which it loads itself.

    One block for each answer: the numbers that lead to it, a jump over the answer, the answer.
    """
    ioctl: Code = [
        (_LOAD, 0, 0, _IOCTL),
        *_answer((TIOCSTI, TIOCLINUX), [(_RETURN, 0, 0, RET_FORBIDDEN)]),
        (_RETURN, 0, 0, RET_ALLOW),
    ]
    return [
        (_LOAD, 0, 0, _NR),
        *_answer(personality.exec, [(_RETURN, 0, 0, RET_NOTIFY)]),
        *_answer(personality.ioctl, ioctl),
        *(_calls_of_contained(personality) if contained else ()),
        (_RETURN, 0, 0, RET_ALLOW),
    ]


def _calls_of_contained(personality: Personality) -> Code:
    code = _answer(personality.missing, [(_RETURN, 0, 0, RET_NOSYS)])
    for position, numbers in enumerate(personality.modes, 1):
        code += _answer(numbers, _mode(position))
    for position, numbers in enumerate(personality.opens, 1):
        mode = _mode(position + 1)
        makes = [(_LOAD, 0, 0, _ARGUMENTS[position]), (_ANY_BIT, 0, len(mode) - 1, _MAKES_FILE)]
        code += _answer(numbers, [*makes, *mode])
    for position, numbers in enumerate(personality.ranks):
        code += _answer(numbers, _by(position, (_INIT,), RET_FORBIDDEN, RET_ALLOW))
    code += _answer(personality.fcntl, _by(1, LEASES, RET_FORBIDDEN, RET_ALLOW))
    code += _answer(personality.sockets, _by(0, FAMILIES, RET_ALLOW, RET_NO_FAMILY))
    return code + _answer(personality.socketcall, _by(0, SOCKETCALLS, RET_NO_FAMILY, RET_ALLOW))


def _by(position: int, values: tuple[int, ...], answer: int, otherwise: int) -> Code:
    """Make the code that answers a call by its argument at this position."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS[position]),
        *_answer(values, [(_RETURN, 0, 0, answer)]),
        (_RETURN, 0, 0, otherwise),
    ]


def _mode(position: int) -> Code:
    """Make the code that answers a call with a mode at this position; the last line allows it."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS[position]),
        (_ANY_BIT, 0, 1, _SET_ID),
        (_RETURN, 0, 0, RET_FORBIDDEN),
        (_RETURN, 0, 0, RET_ALLOW),
    ]


def _answer(values: tuple[int, ...], then: Code) -> Code:
    """Make code that goes through `then` if the accumulator has one of the values."""
    last = len(values) - 1
    tests: Code = [(_EQUAL, last - n, 0, value) for n, value in enumerate(values[:-1])]
    return [*tests, *((_EQUAL, 0, len(then), value) for value in values[-1:]), *then * bool(values)]


def _every_program() -> list[bytes]:
    return [program(machine, 0, c) for machine in PERSONALITIES for c in (False, True)]


def neutral(code: bytes) -> bytes | None:
    """Return our filter without its notifications, or None if `code` is not our filter."""
    if len(code) % INSTRUCTION.size:
        return None
    for plain in _every_program():
        if len(plain) != len(code):
            continue
        ours, given = [*INSTRUCTION.iter_unpack(plain)], [*INSTRUCTION.iter_unpack(code)]
        cookies = {
            n + 1
            for n, one in enumerate(ours)
            if one in ((_LOAD, 0, 0, _COOKIE), (_LOAD, 0, 0, _COOKIE + 4))
        }
        if all(
            a == b or (n in cookies and a[:3] == b[:3])
            for n, (a, b) in enumerate(zip(ours, given, strict=True))
        ):
            return b"".join(
                INSTRUCTION.pack(
                    *((*one[:3], RET_ALLOW) if one == (_RETURN, 0, 0, RET_NOTIFY) else one)
                )
                for one in given
            )
    return None


def neutralise(image: bytes) -> tuple[bytes, int]:
    """Neutralise our filters in place in CRIU's `seccomp.img`; return it and their number."""
    found, count = bytearray(image), 0
    for ours in _every_program():
        begins = ours[: ours.index(INSTRUCTION.pack(_LOAD, 0, 0, _COOKIE))]
        at = image.find(begins)
        while at >= 0:
            plain = neutral(image[at : at + len(ours)])
            if plain is not None:
                found[at : at + len(plain)] = plain
                count += 1
            at = image.find(begins, at + 1)
    return bytes(found), count
