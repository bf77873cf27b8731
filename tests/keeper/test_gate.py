"""The exec gate as the keeper has it: it lends the listener, and refuses what nobody reads for too long (P4)."""

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

from holdfast.keeper import filtering
from holdfast.wire import keeper as wire
from holdfast.wire import notification, sieve
from tests.host.ordinary_user import ordinary_user
from tests.keeper.harness import Link, Nursery, cpu_ns, gone, until
from tests.keeper.test_contain import PYTHON, ROOT, Contained

ALLOWED = pytest.mark.skipif(not ROOT, reason="without no_new_privs a plain session needs root")
CONTAINMENT = wire.Containment()


@pytest.fixture
def box() -> Iterator[Contained]:
    with tempfile.TemporaryDirectory(
        prefix="hf-"
    ) as top:  # a short path: sockets have few bytes for one
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


def come(fd: int) -> tuple[int, int]:
    """The next exec: its id, and whose."""
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
def test_p4_every_exec_waits_for_whoever_has_the_listener(nursery: Nursery) -> None:
    link = nursery.run(
        "a",
        ["sh", "-c", "echo ready; /bin/echo one; /bin/echo two; echo rc=$?; read x"],
        gate=wire.GATE_WANTED,
    )
    fd = listener(link)
    answer(fd, come(fd)[0])
    link.wait_for(b"one\r\n")
    answer(fd, come(fd)[0], errno.EACCES)
    said = link.wait_for(b"rc=")
    assert b"two" not in said.replace(b"/bin/echo two", b"") and b"rc=126" in link.wait_for(
        b"rc=126"
    )


@ALLOWED
def test_p4_the_program_itself_waits_for_nobody_and_no_other_call_is_let_by(
    nursery: Nursery,
) -> None:
    """Its own exec is known by a number that nobody else has: the same call with another number waits."""
    script = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nprint('ready', flush=True)\na = (ctypes.c_char_p * 3)(b'echo', b'by', None)\n"
        "libc.syscall(59, b'/bin/echo', a, None, 0, 0, ctypes.c_ulong(0x1234567812345678)) if os.uname().machine == 'x86_64' else os.execv('/bin/echo', ['echo', 'by'])\n"
    )
    link = nursery.run("a", [PYTHON, "-c", script], gate=wire.GATE_WANTED)
    link.wait_for(b"ready")
    fd = listener(link)
    id, pid = come(fd)
    assert pid == link.welcome.root_pid
    answer(fd, id)
    link.wait_for(b"by\r\n")


def test_p4_contained_only_the_program_is_gated_not_its_init(box: Contained) -> None:
    link = box.run("sh", "-c", "/bin/echo one; read x", gate=wire.GATE_WANTED)
    fd = listener(link)
    id, pid = come(fd)
    answer(fd, id)
    link.wait_for(b"one\r\n")
    status = Path(f"/proc/{link.welcome.root_pid}/status").read_text()
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t0" in status, "sudo is not dead for it"
    init = int(Path(f"/proc/{link.welcome.root_pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert "Seccomp:\t0" in Path(f"/proc/{init}/status").read_text() and pid != init


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
    answer(fd, come(fd)[0])
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
    """The kernel allows one listener above a program: the launcher of the second hears EBUSY."""
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


def test_the_filter_names_every_way_to_execute() -> None:
    for machine, personalities in sieve.PERSONALITIES.items():
        code = [*sieve.INSTRUCTION.iter_unpack(sieve.program(machine, 0x1122334455667788))]
        for arch, numbers in personalities:
            for number in numbers:
                assert run(code, arch, number, 0) == sieve.RET_NOTIFY
            assert run(code, arch, 1, 0) == sieve.RET_ALLOW
        own = personalities[0][0]
        assert run(code, own, sieve.SYSCALLS[machine][0], 0x1122334455667788) == sieve.RET_ALLOW
        assert run(code, own, sieve.SYSCALLS[machine][0], 0x1122334455667789) == sieve.RET_NOTIFY
        assert run(code, own, sieve.SYSCALLS[machine][0], 0x1122334555667788) == sieve.RET_NOTIFY
        assert run(code, own, personalities[0][1][1], 0x1122334455667788) == sieve.RET_NOTIFY, (
            "only of execve"
        )
        assert run(code, 0xDEAD, 1, 0) == sieve.RET_NOSYS


def run(code: list[tuple[int, ...]], arch: int, number: int, cookie: int) -> int:
    """A machine for the few instructions that it has."""
    data = struct.pack("<IIQ6Q", number, arch, 0, 0, 0, 0, 0, 0, cookie)
    at = accumulator = 0
    while True:
        operation, jt, jf, k = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif operation == 0x15:
            at += jt if accumulator == k else jf
        else:
            return k


def test_exactly_this_filter_is_made_neutral() -> None:
    for machine in sieve.PERSONALITIES:
        code = sieve.program(machine, 0xFEDCBA9876543210)
        plain = sieve.neutral(code)
        assert plain is not None and len(plain) == len(code)
        assert sieve.INSTRUCTION.pack(0x06, 0, 0, sieve.RET_NOTIFY) not in plain
        assert plain.replace(
            sieve.INSTRUCTION.pack(0x06, 0, 0, sieve.RET_ALLOW), b""
        ) == code.replace(sieve.INSTRUCTION.pack(0x06, 0, 0, sieve.RET_NOTIFY), b"").replace(
            sieve.INSTRUCTION.pack(0x06, 0, 0, sieve.RET_ALLOW), b""
        )
        other = bytearray(code)
        other[4] ^= 1
        assert (
            sieve.neutral(bytes(other)) is None
            and sieve.neutral(code[:-8]) is None
            and sieve.neutral(b"") is None
        )
    assert filtering.install is not None


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
