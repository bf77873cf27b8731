"""Real members of etcd, as `scripts/etcd` fetches it; tests are skipped without it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.recovery.authority import Authority

PROGRAM = Path(__file__).resolve().parents[3] / ".cache" / "etcd" / "bin" / "etcd"
UP_S = 60.0

needs_etcd = pytest.mark.skipif(
    not PROGRAM.exists(), reason="there is no etcd in .cache/etcd (scripts/etcd says why)"
)


@dataclass
class Member:
    name: str
    place: Path
    address: str  # the loopback address, or that of a network namespace
    client: int
    peer: int
    extra: tuple[str, ...] = ()
    tls: Authority | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}:{self.client}"

    def start(self, cluster: str, around: tuple[str, ...] = ()) -> None:
        extra = (*self.extra, *self._tls_options())
        command = [
            *around,
            str(PROGRAM),
            *("--name", self.name, "--data-dir", str(self.place / self.name)),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", f"http://{self.address}:{self.peer}"),
            *("--initial-advertise-peer-urls", f"http://{self.address}:{self.peer}"),
            *("--initial-cluster", cluster, "--heartbeat-interval", "100"),
            *("--election-timeout", "1000", "--log-level", "warn", *extra),
        ]
        with open(self.place / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _tls_options(self) -> tuple[str, ...]:
        """Clients must show a certificate of the same authority."""
        if self.tls is None:
            return ()
        own = self.tls.pair(self.name, self.address)
        files = ("--cert-file", own.certificate, "--key-file", own.key)
        return (*files, "--trusted-ca-file", self.tls.ca, "--client-cert-auth")

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()


@dataclass
class Cluster:
    members: list[Member] = field(default_factory=list)

    @property
    def word(self) -> str:
        return ",".join(f"{m.name}=http://{m.address}:{m.peer}" for m in self.members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def leader(self) -> Member:
        """Waits for a leader that a member knows."""
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            for member in self.members:
                with contextlib.suppress(OSError, KeyError, ValueError):
                    found = status(member)
                    if found["header"]["member_id"] == found["leader"] != "0":
                        return member
            time.sleep(0.05)  # poll
        raise AssertionError("no leader of etcd")


def status(member: Member) -> dict[str, Any]:
    return ask(member, "/v3/maintenance/status", {})


def ask(member: Member, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    context = None
    if member.tls is not None:
        context = ssl.create_default_context(cafile=member.tls.ca)
        context.load_cert_chain(*member.tls.pair("administrator"))
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(
        member.url + path, json.dumps(body).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=UP_S, context=context) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def with_users(member: Member, prefix: str, users: dict[str, str]) -> None:
    """Enable authentication. The users may read and write below `prefix`; `root` may do all."""
    for name in ("root", *users):
        ask(member, "/v3/auth/user/add", {"name": name, "password": users.get(name, "root")})
    for role in ("root", "leases"):
        ask(member, "/v3/auth/role/add", {"name": role})
    area = {
        "permType": "READWRITE",
        "key": _base64(prefix),
        "range_end": _base64(prefix[:-1] + "0"),
    }
    ask(member, "/v3/auth/role/grant", {"name": "leases", "perm": area})
    for name in ("root", *users):
        role = "root" if name == "root" else "leases"
        ask(member, "/v3/auth/user/grant", {"user": name, "role": role})
    ask(member, "/v3/auth/enable", {})


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextlib.contextmanager
def cluster(
    place: Path, count: int = 3, tls: Authority | None = None, extra: tuple[str, ...] = ()
) -> Iterator[Cluster]:
    made = Cluster()
    place.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.ExitStack() as held:
            for n in range(count):
                ports = [held.enter_context(_bound()) for _ in "cp"]
                client, peer = (one.getsockname()[1] for one in ports)
                made.members.append(Member(f"m{n}", place, "127.0.0.1", client, peer, extra, tls))
        for member in made.members:
            member.start(made.word)
        made.leader()
        yield made
    finally:
        for member in made.members:
            if member.process is not None and member.process.poll() is None:
                os.kill(member.process.pid, signal.SIGKILL)
                member.process.wait()


@contextlib.contextmanager
def _bound() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock
