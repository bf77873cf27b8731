"""The actions of a service manager on host and nursery, without one.

The programs are started apart, ended as a unit's processes are, and asked for messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, alive, eventually
from tests.support.recovery.checkpoint import criu

SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$DIARY"
case "$*" in
*list-jobs*) cat "$JOBS";;
*"start holdfast-host.service"*) [ -e "$STARTS" ] || exit 5; "$STARTS";;
esac
"""


class Manager:
    """Runs the two programs of a home as their units would, each in its own process group."""

    def __init__(self, hf: Installation) -> None:
        self.hf = hf
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(hf.base / "notify"))
        self.heard: list[str] = []
        (hf.base / "bin").mkdir()
        (hf.base / "bin/systemctl").write_text(SYSTEMCTL)
        (hf.base / "bin/systemctl").chmod(0o755)
        self.jobs("")
        hf.env["PATH"] = f"{hf.base}/bin:{hf.env['PATH']}"
        hf.env |= {
            "DIARY": str(hf.base / "diary"),
            "JOBS": str(hf.base / "jobs"),
            "STARTS": str(hf.base / "starts"),
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def jobs(self, text: str) -> None:
        (self.hf.base / "jobs").write_text(text)

    def start(self, module: str, *args: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            env={**self.hf.env, "NOTIFY_SOCKET": str(self.hf.base / "notify"), **env},
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.running.append(process)
        return process

    def nursery(self) -> subprocess.Popen[bytes]:
        process = self.start("holdfast.keeper.nursery", str(self.hf.home / "run"))
        self.hears("READY=1")
        return process

    def host(self) -> subprocess.Popen[bytes]:
        process = self.start("holdfast.host.main", HOLDFAST_SERVICE="user")
        self.hears("READY=1")
        return process

    def hears(self, *words: str) -> None:
        """Expect these words, in this order; others may come between."""
        left = list(words)

        def look() -> bool:
            with contextlib.suppress(BlockingIOError):
                while left:
                    said = self.socket.recv(4096, socket.MSG_DONTWAIT).decode().splitlines()
                    self.heard += said
                    while left and left[0] in said:
                        del left[0]
            return not left

        eventually(look, f"{words} from {self.heard}")

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self.socket.close()


@pytest.fixture
def manager(fresh: Installation) -> Iterator[Manager]:
    made = Manager(fresh)
    try:
        yield made
    finally:
        made.close()
        (fresh.home / "run/service").unlink(missing_ok=True)


def test_the_words_of_a_host_from_ready_to_stopping(manager: Manager) -> None:
    host = manager.start("holdfast.host.main")
    manager.hears("READY=1")
    assert manager.hf.ask("ping")["pid"] == host.pid, "ready means that it answers"
    os.kill(host.pid, signal.SIGHUP)
    manager.hears("RELOADING=1", "READY=1")
    assert host.poll() is None and manager.hf.ask("ping")["pid"] == host.pid, (
        "replaced in place, still the unit's main process"
    )
    assert any(word.startswith("MONOTONIC_USEC=") for word in manager.heard)
    os.kill(host.pid, signal.SIGTERM)
    manager.hears("STOPPING=1")
    assert host.wait(timeout=120) == 0


def test_s3_sessions_outlive_all_processes_of_the_hosts_unit(manager: Manager) -> None:
    """All processes of the unit are killed at once, as after a stop that took too long.

    The nursery and its keepers are not in the unit.
    """
    nursery, host = manager.nursery(), manager.host()
    session = manager.hf.new("work", "--", "/bin/cat")
    for _ in range(2):
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        assert alive(session["pid"]) and alive(session["keeper"]) and nursery.poll() is None
        host = manager.host()
        assert [s["id"] for s in manager.hf.ls()] == [session["id"]]
    assert manager.hf.peer("nursery.sock") == nursery.pid, "it started none of its own"
    manager.hf.ok("send", "work", "still here", "--enter")
    manager.hf.ok("wait", "work", "--for", "text:still here", "--timeout", "20")


def test_s3_sessions_outlive_a_stop_of_the_nurserys_unit(manager: Manager) -> None:
    """KillMode=process ends one process. New sessions have the next nursery."""
    nursery, host = manager.nursery(), manager.host()
    first = manager.hf.new("first", "--", "/bin/cat")
    nursery.terminate()
    nursery.wait(timeout=120)
    assert alive(first["pid"]) and alive(first["keeper"]) and host.poll() is None
    waiting = manager.hf.start("new", "second", "--no-attach", "--", "/bin/cat")
    manager.hf.under_way("new", 1)
    again = manager.nursery()
    assert waiting.wait(timeout=120) == 0, "it waited for the manager to start the next one"
    assert manager.hf.peer("nursery.sock") == again.pid and len(manager.hf.ls()) == 2


def test_a_host_of_a_unit_starts_no_nursery(manager: Manager) -> None:
    """Sessions would inherit the restrictions of the unit. The error says what to do instead."""
    manager.host()
    result = manager.hf.cli("new", "work", "--no-attach", "--", "/bin/cat")
    assert result.rc == 5 and "holdfast-nursery.service" in result.err
    assert manager.hf.peer("nursery.sock") is None


@pytest.mark.parametrize(
    "jobs, comes_back",
    [
        (
            "12 holdfast-host.service restart running\n"
            "13 holdfast-nursery.service restart waiting\n",
            True,
        ),
        ("12 holdfast-host.service stop running\n", False),
        ("", False),
        ("7 something-else.service restart running\n", False),
    ],
)
def test_attached_clients_are_told_whether_the_host_returns(
    manager: Manager, jobs: str, comes_back: bool
) -> None:
    nursery, host = manager.nursery(), manager.host()
    manager.hf.new("work", "--", "/bin/cat")
    manager.hf.ok("send", "work", "before", "--enter")
    terminal = manager.hf.attach("work")
    terminal.see("before")
    manager.jobs(jobs)
    starts = (
        manager.hf.base / "starts"
    )  # a client that asks the manager for a host meanwhile waits for the next host
    starts.write_text('#!/bin/sh\nwhile [ ! -e "$STARTS.done" ]; do sleep 0.05; done\n')
    starts.chmod(0o755)
    host.terminate()
    assert host.wait(timeout=120) == 0
    assert "list-jobs" in (manager.hf.base / "diary").read_text()
    if comes_back:
        manager.host()
        (manager.hf.base / "starts.done").touch()
        terminal.send("after\r")
        terminal.see("after")
        assert terminal.leave() == 0
    else:
        assert terminal.wait() == 5 and b"the host was stopped" in terminal.output
        assert manager.hf.cli("ls").rc == 5, "no client starts it again behind the manager's back"
        manager.host()
        assert manager.hf.cli("ls").rc == 0
    assert nursery.poll() is None, "the nursery is not the host's to dismiss"


def test_a_client_without_a_host_has_the_manager_start_one(manager: Manager) -> None:
    manager.nursery()
    host = manager.host()
    os.killpg(host.pid, signal.SIGKILL)
    host.wait()
    starts = manager.hf.base / "starts"
    starts.write_text(
        f"#!/bin/sh\nHOLDFAST_SERVICE=user setsid {sys.executable} -m holdfast.host.main "
        "</dev/null >/dev/null 2>&1 &\n"
        f"until [ -S '{manager.hf.home}/run/host.sock' ]; do :; done\n"
    )  # that path never leads to a socket that does not listen
    starts.chmod(0o755)
    (manager.hf.home / "run/host.sock").unlink()
    manager.hf.ok("ls")
    assert (
        "--user --no-ask-password --no-pager start holdfast-host.service"
        in (manager.hf.base / "diary").read_text()
    )
    pid = manager.hf.ask("ping")["pid"]
    assert b"HOLDFAST_SERVICE=user" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_manager_that_has_not_noticed_yet_that_its_host_died_is_asked_again(
    manager: Manager,
) -> None:
    """The manager says that all is well, but no host answers.

    A host started by the client would keep the manager's host from the home.
    """
    manager.nursery()
    host = manager.host()
    os.killpg(host.pid, signal.SIGKILL)
    host.wait()
    starts = manager.hf.base / "starts"
    starts.write_text(
        f'#!/bin/sh\n[ -e "$STARTS.once" ] || {{ : >"$STARTS.once"; exit 0; }}\n'
        f"[ -S '{manager.hf.home}/run/host.sock' ] && exit 0\n"
        f"HOLDFAST_SERVICE=user setsid {sys.executable} -m holdfast.host.main </dev/null "
        ">/dev/null 2>&1 &\n"
        f"until [ -S '{manager.hf.home}/run/host.sock' ]; do :; done\n"
    )
    starts.chmod(0o755)
    (manager.hf.home / "run/host.sock").unlink()
    manager.hf.ok("ls")
    pid = manager.hf.ask("ping")["pid"]
    assert b"HOLDFAST_SERVICE=user" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_a_manager_that_cannot_start_the_host_is_not_waited_for(manager: Manager) -> None:
    """The unit may be gone: then a client starts a host, and the home forgets the manager."""
    manager.nursery()
    host = manager.host()
    assert (manager.hf.home / "run/service").read_text() == "user"
    os.killpg(host.pid, signal.SIGKILL)
    host.wait()
    manager.hf.ok("ls")
    assert (
        not (manager.hf.home / "run/service").exists() and manager.hf.ask("ping")["pid"] != host.pid
    )


def test_r2_a_hardened_host_saves_and_enters_sessions(manager: Manager) -> None:
    """A filter of the unit refuses namespaces, tracing and capabilities to the host's children."""
    criu()
    hf = manager.hf
    manager.nursery()
    host = manager.start(
        "tests.support.commands.hardened_unit",
        "holdfast.host.main",
        HOLDFAST_SERVICE="user",
        PYTHONPATH=str(Path(__file__).parents[3]),
    )
    manager.hears("READY=1")
    status = Path(f"/proc/{host.pid}/status").read_text()
    assert "Seccomp:\t2" in status, "the host is hardened"
    hf.ready("work", "--contained", "--net", "none")
    serves = "python3 -c 'import socket; s = socket.create_server((\"\", 8123)); s.accept()'"
    hf.quick("run", "work", "--", f"X=kept; {serves} & echo begun")
    hf.ok("checkpoint", "work")
    hf.ok("fork", "work", "-n", "1")
    (hf.user / "given").write_text("content\n")
    hf.ok("files", "put", "work", str(hf.user / "given"), "taken")
    assert (hf.user / "taken").read_text() == "content\n"
    forwarded = hf.start("forward", "work", "8123", "--listen", "127.0.0.1:0")
    assert forwarded.stdout is not None
    address = forwarded.stdout.readline().decode().partition(" at ")[2].split()[0]
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as line:
        assert line.recv(1) == b"", "the program took the connection and ended"
    forwarded.kill()
    forwarded.wait()
    hf.ok("checkpoint", "work", "--stop")
    hf.ok("restore", "work")
    assert hf.ok("run", "work", "--", "echo $X").out == "kept\n"
