"""The keeper's part of the exec gate: lends the listener, and refuses unread execs in time (P4)."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.keeper import install_filter
from holdfast.wire import exec_filter, notification
from holdfast.wire import keeper as wire
from tests.support.contained_keeper import PYTHON, ROOT, Contained
from tests.support.keeper import Link, Nursery, below, cpu_ns, gone, until
from tests.support.ordinary_user import ordinary_user

ALLOWED = pytest.mark.skipif(not ROOT, reason="without no_new_privs a plain session needs root")
CONTAINMENT = wire.Containment()


@pytest.fixture
def box() -> Iterator[Contained]:
    with tempfile.TemporaryDirectory(
        prefix="hf-"
    ) as top:  # a short path: a socket's address has few bytes
        made = Contained(Path(top))
        yield made
        made.close()


def listener(link: Link) -> int:
    link.sock.send(wire.gate())
    while True:
        packet, fds, _, _ = socket.recv_fds(link.sock, 1 << 17, 1)
        if packet[0] == wire.GATED:
            assert wire.read_gated(packet) == 0 and len(fds) == 1, packet
            return fds[0]


def next_exec(fd: int) -> tuple[int, int]:
    """The next exec: its id, and the pid."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(60_000)[0][1] & select.POLLIN
    data = bytearray(notification.NOTIFICATION.size)
    fcntl.ioctl(fd, notification.RECV, data)
    found = notification.NOTIFICATION.unpack(data)
    return found[0], found[1]


def answer(fd: int, id: int, error: int = 0) -> None:
    fcntl.ioctl(
        fd,
        notification.SEND,
        notification.ANSWER.pack(id, 0, -error, 0 if error else notification.CONTINUE),
    )


@ALLOWED
def test_p4_every_exec_waits_for_the_holder_of_the_listener(nursery: Nursery) -> None:
    link = nursery.run(
        "a",
        ["sh", "-c", "echo ready; /bin/echo one; /bin/echo two; echo rc=$?; read x"],
        gate=wire.GATE_WANTED,
    )
    fd = listener(link)
    answer(fd, next_exec(fd)[0])
    link.wait_for(b"one\r\n")
    answer(fd, next_exec(fd)[0], errno.EACCES)
    said = link.wait_for(b"rc=")
    assert b"two" not in said.replace(b"/bin/echo two", b"") and b"rc=126" in link.wait_for(
        b"rc=126"
    )


@ALLOWED
def test_p4_only_the_exec_of_the_program_itself_passes_without_waiting(
    nursery: Nursery,
) -> None:
    """The keeper's own exec carries a secret number: the same call with another number waits."""
    script = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nprint('ready', flush=True)\n"
        "a = (ctypes.c_char_p * 3)(b'echo', b'by', None)\n"
        "if os.uname().machine == 'x86_64':\n"
        "    cookie = ctypes.c_ulong(0x1234567812345678)\n"
        "    libc.syscall(59, b'/bin/echo', a, None, 0, 0, cookie)\n"
        "else:\n"
        "    os.execv('/bin/echo', ['echo', 'by'])\n"
    )
    link = nursery.run("a", [PYTHON, "-c", script], gate=wire.GATE_WANTED)
    link.wait_for(b"ready")
    fd = listener(link)
    id, pid = next_exec(fd)
    assert pid == link.welcome.root_pid
    answer(fd, id)
    link.wait_for(b"by\r\n")


def test_p4_contained_only_the_program_is_gated_not_its_init(box: Contained) -> None:
    link = box.run("sh", "-c", "/bin/echo one; read x", gate=wire.GATE_WANTED)
    fd = listener(link)
    id, pid = next_exec(fd)
    answer(fd, id)
    link.wait_for(b"one\r\n")
    init, hf_root, program = below(box.nursery.keepers["a"])[:3]
    assert program == link.welcome.root_pid and pid not in (init, hf_root)
    for one, filters in ((init, 0), (hf_root, 1), (program, 1)):
        assert f"Seccomp_filters:\t{filters}\n" in Path(f"/proc/{one}/status").read_text()


@ALLOWED
def test_p4_without_a_host_execs_wait_and_then_are_refused(nursery: Nursery) -> None:
    nursery.spawn(
        "a",
        [
            "sh",
            "-c",
            "echo begin; /bin/echo never; echo rc=$?; /bin/echo never; echo again=$?; read x",
        ],
        gate=wire.GATE_WANTED,
    )
    until(lambda: link_says(nursery, b"again=126"), "both to be refused")
    link = nursery.link("a")
    assert b"rc=126" in link.all() and b"begin" in link.all()


def link_says(nursery: Nursery, text: bytes) -> bool:
    """Looks for a moment, as a host that does not ask for the listener."""
    link = nursery.link("a")
    try:
        return text in link.all()
    finally:
        link.close()


@ALLOWED
def test_p4_the_next_host_gets_the_same_listener(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "/bin/echo one; read x"], gate=wire.GATE_WANTED)
    first = listener(link)
    link.close()
    os.close(first)
    again = nursery.link("a")
    fd = listener(again)
    answer(fd, next_exec(fd)[0])
    again.wait_for(b"one\r\n")


@ALLOWED
def test_p4_a_keeper_whose_programs_are_gone_does_not_spin(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "exit 3"], gate=wire.GATE_WANTED)
    assert os.waitstatus_to_exitcode(link.exit_status()) == 3
    keeper = nursery.keepers["a"]
    link.state()
    before = cpu_ns(keeper)
    link.state()
    assert cpu_ns(keeper) - before < 50_000_000
    link.sock.send(wire.gate())
    while True:
        packet, fds, _, _ = socket.recv_fds(link.sock, 1 << 17, 1)
        if packet[0] == wire.GATED:
            break
    assert not fds and wire.read_gated(packet) == -1
    link.sock.send(wire.release())
    until(lambda: gone(keeper), "the keeper to end")


def test_a_session_without_a_gate_says_so(nursery: Nursery) -> None:
    link = nursery.run("a", ["sh", "-c", "read x"])
    link.sock.send(wire.gate())
    assert wire.read_gated(link.packet(wire.GATED)) == -1


@ALLOWED
def test_p4_under_another_gate_it_is_refused_or_done_without(nursery: Nursery) -> None:
    """The kernel allows one listener above a program: the launcher of the second gets EBUSY."""
    link = nursery.run("outer", [PYTHON, "-c", INNER], gate=wire.GATE_WANTED)
    link.wait_for(b"done")
    assert b"EBUSY" in link.all(), link.all()


INNER = """
import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
class P(ctypes.Structure): _fields_ = (("l", ctypes.c_ushort), ("f", ctypes.c_char_p))
code = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
import os
number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
r = libc.syscall(number, 1, 8, ctypes.byref(P(1, code)))
print(errno.errorcode[ctypes.get_errno()] if r < 0 else r, "done", flush=True)
input()
"""


COOKIE = 0x1122334455667788


@pytest.mark.parametrize("contained", [False, True])
@pytest.mark.parametrize("machine", exec_filter.PERSONALITIES)
def test_the_filter_names_every_way_to_execute(machine: str, contained: bool) -> None:
    program = exec_filter.program(machine, COOKIE, contained)
    code = [*exec_filter.INSTRUCTION.iter_unpack(program)]
    for personality in exec_filter.PERSONALITIES[machine]:
        arch, execs, ioctls, modes, opens, missing, sockets, ranks, fcntl, socketcall = personality
        for number in execs:
            assert run(code, arch, number, 0) == exec_filter.RET_NOTIFY
        for number in ioctls:
            for forbidden in (exec_filter.TIOCSTI, exec_filter.TIOCLINUX):
                assert run(code, arch, number, 0, forbidden) == exec_filter.RET_FORBIDDEN
                assert run(code, arch, number, 0, forbidden | 7 << 32) == exec_filter.RET_FORBIDDEN
            assert run(code, arch, number, 0, 0x5413) == exec_filter.RET_ALLOW
        for number in missing:
            wanted = exec_filter.RET_NOSYS if contained else exec_filter.RET_ALLOW
            assert run(code, arch, number, 0) == wanted
        wanted = exec_filter.RET_FORBIDDEN if contained else exec_filter.RET_ALLOW
        for position, numbers in enumerate(modes, 1):
            for number in numbers:
                for mode in (0o4755, 0o2755, 0o100_4644, 1 << 40 | 0o6000):
                    arguments = [0] * position + [mode]
                    assert run(code, arch, number, 0, *arguments[1:]) == wanted
                arguments = [0] * position + [0o1777]
                assert run(code, arch, number, 0, *arguments[1:]) == exec_filter.RET_ALLOW
        for position, numbers in enumerate(opens, 1):
            for number in numbers:
                for flags in (os.O_CREAT | os.O_WRONLY, os.O_TMPFILE):
                    arguments = [0] * position + [flags, 0o4755]
                    assert run(code, arch, number, 0, *arguments[1:]) == wanted
                arguments = [0] * position + [os.O_RDONLY, 0o4755]  # the mode is not looked at
                assert run(code, arch, number, 0, *arguments[1:]) == exec_filter.RET_ALLOW
        assert run(code, arch, 1, 0, exec_filter.TIOCSTI) == exec_filter.RET_ALLOW
        other = exec_filter.RET_NO_FAMILY if contained else exec_filter.RET_ALLOW
        for number in sockets:
            for family in (0, 3, 17, 38, 40, 40 | 1 << 32):
                assert run(code, arch, number, 0, first=family) == other
            for family in exec_filter.FAMILIES:
                assert run(code, arch, number, 0, first=family) == exec_filter.RET_ALLOW
        allowed = exec_filter.RET_ALLOW
        for position, numbers in enumerate(ranks):
            for number in numbers:
                for pid, answer in ((1, wanted), (1 | 1 << 32, wanted), (0, allowed), (7, allowed)):
                    first, second = (pid, 0) if position == 0 else (0, pid)
                    assert run(code, arch, number, 0, second, first=first) == answer
        for number in fcntl:
            for command in (*exec_filter.LEASES, 1024 | 1 << 32):
                assert run(code, arch, number, 0, command) == wanted
            assert run(code, arch, number, 0, 1025) == allowed  # F_GETLEASE
        for number in socketcall:
            for call in exec_filter.SOCKETCALLS:
                assert run(code, arch, number, 0, first=call) == other
            assert run(code, arch, number, 0, first=3) == exec_filter.RET_ALLOW
    own = exec_filter.PERSONALITIES[machine][0]
    execve = exec_filter.SYSCALLS[machine][0]
    assert run(code, own.arch, execve, COOKIE) == exec_filter.RET_ALLOW
    assert run(code, own.arch, execve, COOKIE + 1) == exec_filter.RET_NOTIFY
    assert run(code, own.arch, execve, COOKIE + (1 << 32)) == exec_filter.RET_NOTIFY
    assert run(code, own.arch, own.exec[1], COOKIE) == exec_filter.RET_NOTIFY, "only of execve"
    assert run(code, 0xDEAD, 1, 0) == exec_filter.RET_NOSYS


def run(
    code: list[tuple[int, ...]], arch: int, number: int, cookie: int, *others: int, first: int = 0
) -> int:
    """An interpreter for the few instructions of the filter. `others`: second argument and on."""
    second, third, fourth = (*others, 0, 0, 0)[:3]
    data = struct.pack("<IIQ6Q", number, arch, 0, first, second, third, fourth, 0, cookie)
    at = accumulator = 0
    while True:
        operation, jt, jf, k = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif operation == 0x15:
            at += jt if accumulator == k else jf
        elif operation == 0x45:
            at += jt if accumulator & k else jf
        else:
            return k


@pytest.mark.parametrize("contained", [False, True])
def test_exactly_this_filter_is_made_neutral(contained: bool) -> None:
    for machine in exec_filter.PERSONALITIES:
        code = exec_filter.program(machine, 0xFEDCBA9876543210, contained)
        plain = exec_filter.neutral(code)
        assert plain is not None and len(plain) == len(code)
        assert exec_filter.INSTRUCTION.pack(0x06, 0, 0, exec_filter.RET_NOTIFY) not in plain
        assert plain.replace(
            exec_filter.INSTRUCTION.pack(0x06, 0, 0, exec_filter.RET_ALLOW), b""
        ) == code.replace(
            exec_filter.INSTRUCTION.pack(0x06, 0, 0, exec_filter.RET_NOTIFY), b""
        ).replace(exec_filter.INSTRUCTION.pack(0x06, 0, 0, exec_filter.RET_ALLOW), b"")
        other = bytearray(code)
        other[4] ^= 1
        assert (
            exec_filter.neutral(bytes(other)) is None
            and exec_filter.neutral(code[:-8]) is None
            and exec_filter.neutral(b"") is None
        )
    assert install_filter.install is not None


@pytest.mark.skipif(not ROOT, reason="run by root as one")
def test_as_an_ordinary_user() -> None:
    with ordinary_user() as user:
        done = user.run(
            [
                user.python("pytest"),
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                str(Path(__file__)),
            ]
        )
        assert done is not None and done.returncode == 0, done
