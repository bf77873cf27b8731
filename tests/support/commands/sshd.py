"""A stock sshd on loopback with keys of its own, and an `ssh` that knows only this sshd, as `box`.

The account's own ssh configuration is not touched: ssh reads it from the password database, so the
tests put a wrapper that names another file first in PATH.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.installation import eventually

CARRIED = ("PATH", "HOLDFAST_HOME", "PYTHONPATH", "LANG", "USER")


@dataclass
class Sshd:
    base: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"ssh://{pwd.getpwuid(os.getuid()).pw_name}@127.0.0.1:{self.port}"

    def path(self, before: str) -> str:
        """PATH with the wrapper of ssh first."""
        return f"{self.base / 'bin'}:{before}"

    def log(self) -> str:
        return (self.base / "log").read_text(errors="replace")


@contextmanager
def sshd(base: Path, env: Mapping[str, str]) -> Iterator[Sshd]:
    """Commands by this sshd get `env`, as if the account had set it."""
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's server and client")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    base.mkdir(parents=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", base / name], check=True
        )
    (base / "authorized").write_bytes((base / "user.pub").read_bytes())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (base / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\n"
        f"HostKey {base}/host\n"
        f"AuthorizedKeysFile {base}/authorized\n"
        f"PidFile {base}/pid\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv {' '.join(f'{name}={env[name]}' for name in CARRIED)}\n"
    )
    kind, key = (base / "host.pub").read_text().split()[:2]
    (base / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (base / "client").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\nHost *\n"
        f"IdentityFile {base}/user\nIdentitiesOnly yes\nUserKnownHostsFile {base}/known\n"
        "GlobalKnownHostsFile /dev/null\n"
    )
    (base / "bin").mkdir()
    wrapper = base / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {base}/client "$@"\n')
    wrapper.chmod(0o755)
    with (base / "log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", base / "config"], stderr=log)
    try:
        eventually(lambda: process.poll() is None and _answers(port), "sshd answers")
        yield Sshd(base, port, process)
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
