"""A link between two network namespaces that loses, delays, doubles and reorders packets.

Each direction has its own settings: real TCP over a bad network.

    with (
        Namespace() as there,
        Namespace() as here,
        Lossy(there, "10.9.0.1", here, "10.9.0.2") as link,
    ):
        with here.inside(): ...              # a program started meanwhile lives there
        link.to_second.loss = 0.1

The kernel's own tool for this (netem) is a module that many kernels lack, so the packets are
carried by hand: each end is a TUN device, and a thread reads packets from one and writes them to
the other. This needs the right to make namespaces and devices (root); `missing()` names the
obstacle.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, Self

CLONE_NEWNET: Final = 0x40000000
TUNSETIFF: Final = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES: Final = 65536
QUEUE_PACKETS: Final = 4096  # on the way in one direction; more are lost, as in any router
DEVICE: Final = "tun{}"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def missing() -> str:
    """Why this machine cannot have such links; empty if it can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    try:
        with Namespace() as one, one.inside():
            os.close(_device("tun0"))
    except OSError as e:
        return f"no network namespace or TUN device can be made: {e}"
    return ""


class Namespace:
    """A network of its own. A thread is inside or not; programs it starts inside stay there."""

    def __enter__(self) -> Self:
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            try:
                self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                _check(_libc.setns(outside, CLONE_NEWNET))
        finally:
            os.close(outside)
        self.devices = 0
        self.ip("link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        with entered(self.fd):
            yield

    def ip(self, *words: str) -> None:
        with self.inside():
            subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def entered(network: int) -> Iterator[None]:
    """This thread in the network behind a descriptor."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(network, CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_libc.setns(outside, CLONE_NEWNET))
    finally:
        os.close(outside)


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """This thread in the network of a process."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with entered(network):
            yield
    finally:
        os.close(network)


def _device(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except BaseException:
        os.close(fd)
        raise
    return fd


class Direction:
    """The treatment of packets in this direction. Shares are between 0 and 1."""

    def __init__(self) -> None:
        self.good()
        self.passed = self.lost = self.doubled = self.overtaken = 0

    def good(self) -> None:
        self.loss, self.double, self.reorder, self.delay_s, self.late_s = 0.0, 0.0, 0.0, 0.0, 0.03


class Lossy:
    def __init__(
        self,
        first: Namespace,
        first_address: str,
        second: Namespace,
        second_address: str,
        seed: int = 1,
    ) -> None:
        """Addresses of one /24."""
        self.to_first, self.to_second = Direction(), Direction()
        self.ends = ((first, first_address), (second, second_address))
        self.devices: list[str] = []
        self._random = random.Random(seed)
        self._fds: list[int] = []
        self._late: list[tuple[float, int, int, bytes]] = []  # (due, number, to, packet)
        self._numbers = 0
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._carry, name="lossy link", daemon=True)

    def __enter__(self) -> Self:
        for space, address in self.ends:
            name = DEVICE.format(space.devices)
            space.devices += 1
            with space.inside():
                self._fds.append(_device(name))
            space.ip("addr", "add", f"{address}/24", "dev", name)
            space.ip("link", "set", name, "up")
            self.devices.append(name)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake_w, b"!")
        self._thread.join()
        for fd in (*self._fds, self._wake_r, self._wake_w):
            os.close(fd)

    def good(self) -> None:
        self.to_first.good()
        self.to_second.good()

    def both(self, **how: float) -> None:
        for way in (self.to_first, self.to_second):
            for name, value in how.items():
                setattr(way, name, value)

    def _carry(self) -> None:
        poll = select.poll()
        for fd in (*self._fds, self._wake_r):
            poll.register(fd, select.POLLIN)
        ways = {
            self._fds[0]: (self.to_second, self._fds[1]),
            self._fds[1]: (self.to_first, self._fds[0]),
        }
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) * 1000 if self._late else None
            for fd, _ in poll.poll(wait):
                if fd == self._wake_r:
                    return
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._packet(*ways[fd], os.read(fd, PACKET_BYTES))
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, to, packet = heapq.heappop(self._late)
                self._write(to, packet)

    def _packet(self, way: Direction, to: int, packet: bytes) -> None:
        luck: Any = self._random.random
        if luck() < way.loss or len(self._late) >= QUEUE_PACKETS:
            way.lost += 1
            return
        due = way.delay_s
        if luck() < way.reorder:  # the packets behind this one overtake it
            due += way.late_s
            way.overtaken += 1
        copies = 2 if luck() < way.double else 1
        way.doubled += copies - 1
        way.passed += 1
        for _ in range(copies):
            if due:
                self._numbers += 1
                heapq.heappush(self._late, (time.monotonic() + due, self._numbers, to, packet))
            else:
                self._write(to, packet)

    def _write(self, to: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # the device is down, or its queue full: lost
            os.write(to, packet)
