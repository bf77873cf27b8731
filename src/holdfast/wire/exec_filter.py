"""The filter that shows every exec of a session to the gate, as the kernel is given it (keeper/filtering.py), and as it is found again in a saved image.

Everything but execve and execveat passes. Of these, one passes that carries the cookie in the sixth argument, which execve has no use for: by it the session's program itself is executed, when
there is nobody to ask yet. Another personality of the processor has other numbers for the same calls and its own way in: each is named. One that is not named can do nothing at all.

A saved process (CRIU) is restored with its filters, but nobody listens: then every exec fails. `neutral` makes of exactly this program, whatever its cookie, one of the same length that allows what
it notified of; other programs are left as they are.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Final

SYSCALLS: Final[Mapping[str, tuple[int, int]]] = {
    "x86_64": (59, 317),
    "aarch64": (221, 277),
}  # execve, seccomp
_X32: Final = 0x4000_0000
# by machine: of each personality (AUDIT_ARCH_*), the numbers of execve and execveat; the machine's own first
PERSONALITIES: Final[Mapping[str, tuple[tuple[int, tuple[int, ...]], ...]]] = {
    "x86_64": (
        (0xC000_003E, (59, 322, _X32 | 520, _X32 | 545, _X32 | 59, _X32 | 322)),
        (0x4000_0003, (11, 358)),
    ),
    "aarch64": ((0xC000_00B7, (221, 281)), (0x4000_0028, (11, 387))),
}
RET_NOTIFY, RET_ALLOW, RET_NOSYS = 0x7FC0_0000, 0x7FFF_0000, 0x0005_0000 | errno.ENOSYS
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: A = word at k; A == k ? jt : jf; return k
_NR, _ARCH, _COOKIE = 0, 4, 16 + 5 * 8  # offsets in struct seccomp_data
INSTRUCTION: Final = struct.Struct("<HBBI")
Code = list[tuple[int, int, int, int]]


def program(machine: str, cookie: int) -> bytes:
    """Jumps go forward only: each test that fails goes on with the next."""
    own, *others = PERSONALITIES[machine]
    code: Code = [(_LOAD, 0, 0, _ARCH)]
    for arch, numbers in others:
        code += [(_EQUAL, 0, len(numbers) + 3, arch), *_calls(numbers)]
    code += [
        (_EQUAL, 1, 0, own[0]),
        (_RETURN, 0, 0, RET_NOSYS),
        (_LOAD, 0, 0, _NR),
        (_EQUAL, 0, 4, SYSCALLS[machine][0]),
        (_LOAD, 0, 0, _COOKIE),
        (_EQUAL, 0, 2, cookie & 0xFFFF_FFFF),
        (_LOAD, 0, 0, _COOKIE + 4),
        (_EQUAL, len(own[1]) + 1, 0, cookie >> 32),
        *_calls(own[1]),
    ]
    return b"".join(INSTRUCTION.pack(*one) for one in code)


def _calls(numbers: tuple[int, ...]) -> Code:
    """Notifies of these and allows the rest: len + 3 instructions. Loads the number itself, for the cookie's test leaves another word in its place."""
    last = len(numbers) - 1
    return [
        (_LOAD, 0, 0, _NR),
        *((_EQUAL, last - n + 1, 0, number) for n, number in enumerate(numbers)),
        (_RETURN, 0, 0, RET_ALLOW),
        (_RETURN, 0, 0, RET_NOTIFY),
    ]


def neutral(code: bytes) -> bytes | None:
    """The same program without its notifications; None if it is not one of ours, of any machine."""
    if len(code) % INSTRUCTION.size:
        return None
    for machine in PERSONALITIES:
        plain = program(machine, 0)
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
    """A saved image of filters (CRIU's `seccomp.img`) with each of ours made neutral in its place, of the same length; and how many there were."""
    found, count = bytearray(image), 0
    for machine in PERSONALITIES:
        ours = program(machine, 0)
        begins = ours[: ours.index(INSTRUCTION.pack(_LOAD, 0, 0, _COOKIE))]
        at = image.find(begins)
        while at >= 0:
            plain = neutral(image[at : at + len(ours)])
            if plain is not None:
                found[at : at + len(plain)] = plain
                count += 1
            at = image.find(begins, at + 1)
    return bytes(found), count
