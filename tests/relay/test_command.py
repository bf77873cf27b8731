"""`holdfast relay`: tokens, readiness, certificates, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.relay import admin
from holdfast.relay.main import Options, serve
from tests.support.commands.certificates import certificate
from tests.support.relays import WAIT_S, RelayProcess, client, host

Start = Callable[..., RelayProcess]


def relay(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "relay", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


def test_tokens_with_and_without_a_relay(start: Start, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "relay"))
    first = relay("token", *data)
    assert (
        first.returncode == 0
        and first.stdout.startswith("hfr_")
        and len(first.stdout) == admin.TOKEN_CHARS + 1
    )
    running = start()
    second = json.loads(
        relay("token", "new", "--tenant", "acme", "--expires", "8h", "--json", *data).stdout
    )
    assert (
        second["tenant"] == "acme"
        and 8 * 3600 - 60 < second["expires"] - second["created"] <= 8 * 3600
    ), "made by one process, stored by another"
    listed = json.loads(relay("token", "ls", "--json", *data).stdout)
    assert [t["state"] for t in listed] == ["valid", "valid"] and "token" not in listed[0]
    assert second["id"] in relay("token", "ls", *data).stdout

    async def works(token: str) -> None:
        async with host(running.url, token) as h:
            await h.register()

    asyncio.run(works(first.stdout.strip()))
    asyncio.run(works(second["token"]))
    assert relay("token", "revoke", second["id"], *data).returncode == 0
    assert relay("token", "revoke", "nothing", *data).returncode == 3
    assert [
        t["state"]
        for t in json.loads(relay("token", "ls", "--json", *data).stdout)
        if t["id"] == second["id"]
    ] == ["revoked"]
    assert second["token"] not in running.logged() + first.stderr


@pytest.mark.parametrize(
    "words",
    (
        ("serve", "--listen", "nowhere"),
        ("serve", "--listen", "127.0.0.1:99999"),
        ("serve", "extra"),
        ("serve", "--metrics", "0.0.0.0:0"),
        ("serve", "--tls-cert", "x"),
        ("serve", "--origin", "app.example"),
        ("serve", "--origin", "*"),
        ("serve", "--name", "http://x"),
        ("serve", "--tenant", "x"),
        ("token", "--listen", "127.0.0.1:0"),
        ("token", "revoke"),
        ("token", "ls", "x"),
        ("token", "other"),
        ("token", "ls", "--tenant", "x"),
        ("admit",),
        ("admit", "nokey"),
        ("serve", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"),
        ("token", "new", "--tenant", "a b"),
    ),
)
def test_wrong_options_are_usage_errors(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = relay(*words, "--data", str(tmp_path / "relay"))
    assert done.returncode == 2 and done.stderr.startswith("holdfast: ") and not done.stdout


def test_a_second_relay_a_taken_port_and_an_open_directory_are_refused(
    start: Start, tmp_path: Path
) -> None:
    running = start()
    again = relay("serve", "--listen", "127.0.0.1:0", "--data", running.data)
    assert again.returncode == 5 and "another process" in again.stderr
    taken = relay(
        "serve", "--listen", f"127.0.0.1:{running.port}", "--data", str(tmp_path / "other")
    )
    assert taken.returncode == 5 and "cannot listen" in taken.stderr
    (tmp_path / "open").mkdir(mode=0o755)
    assert (
        relay("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "open")).returncode == 7
    )


def test_it_says_when_it_is_ready_and_stops_quickly(tmp_path: Path) -> None:
    notify = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(notify)
        sock.settimeout(WAIT_S)
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "relay", "serve", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "HOLDFAST_HOME": str(tmp_path / "home"),
                "NOTIFY_SOCKET": notify,
                "PATH": "/usr/bin:/bin",
            },
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on ws://127.0.0.1:")
            assert sock.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert sock.recv(100) == b"STOPPING=1"
            _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0 and "holdfast relay token" in errors
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert (tmp_path / "home" / "relay" / "relay.db").exists()


def test_tls_with_a_certificate_that_is_exchanged_while_it_runs(
    start: Start, tmp_path: Path
) -> None:
    chain, key = certificate(tmp_path, "relay.example", 1)
    running = start(
        "--tls-cert",
        str(chain),
        "--tls-key",
        str(key),
        "--name",
        "relay.example",
        "--grpc",
        "127.0.0.1:0",
    )
    assert running.url.startswith("wss://")
    url = f"wss://relay.example:{running.port}"

    def trusting() -> dict[str, Any]:
        return {
            "ssl": ssl.create_default_context(cafile=str(chain)),
            "host": "127.0.0.1",
            "port": running.port,
        }

    async def grpc_works() -> bool:
        import grpc

        credentials = grpc.ssl_channel_credentials(chain.read_bytes())
        async with grpc.aio.secure_channel(
            running.urls["grpc"].partition("://")[2],
            credentials,
            options=(("grpc.ssl_target_name_override", "relay.example"),),
        ) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), 2.0)
            except TimeoutError:
                return False
            return True

    async def body() -> None:
        async with host(url, running.token(), **trusting()) as h, client(url, **trusting()) as c:
            await h.register()
            await c.open(h)
            assert await grpc_works()
            old = trusting()
            certificate(tmp_path, "relay.example", 2)
            key.write_text("broken")
            running.process.send_signal(signal.SIGHUP)
            while "the certificate stays" not in running.logged():
                await asyncio.sleep(0.02)  # poll
            async with client(url, **old):  # still the old certificate
                pass
            certificate(tmp_path, "relay.example", 3)
            running.process.send_signal(signal.SIGHUP)
            while "the certificate was read again" not in running.logged():
                await asyncio.sleep(0.02)  # poll
            with pytest.raises(ssl.SSLError):
                async with client(url, **old):
                    pass
            async with client(url, **trusting()):
                pass
            assert await grpc_works()
            await c.open(h)  # connected clients did not notice
            with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert b"200" not in plain.recv(100)

    asyncio.run(body())


# ------------------------------------------------------------ root and the relay of another account

OTHER = 61235  # an account without a name


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A directory of that account, as the manager makes it for a unit."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    base = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    base.chmod(0o755)
    made = base / "relay"
    made.mkdir(mode=0o700)
    os.chown(made, OTHER, OTHER)
    yield made
    shutil.rmtree(base)


def test_root_makes_tokens_for_the_relay_of_a_unit_and_its_files_stay_its_own(theirs: Path) -> None:
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:  # not by a command: that account may not be able to read this interpreter
        try:
            os.dup2(told, 1)
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            with open(1, "w", closefd=False) as sys.stdout:
                serve(Options(("127.0.0.1", 0), str(theirs)))
        finally:
            os._exit(0)
    os.close(told)
    try:
        with open(ready) as out:
            line = out.readline()
        assert line.startswith("listening on ws://")
        theirs.parent.chmod(0o700)  # as /var/lib/private is
        made = relay("token", "--data", str(theirs))
        assert made.returncode == 0 and made.stdout.startswith("hfr_"), made.stderr
        assert [
            t["state"]
            for t in json.loads(relay("token", "ls", "--json", "--data", str(theirs)).stdout)
        ] == ["valid"]
        assert {path.lstat().st_uid for path in theirs.iterdir()} == {OTHER}
        again = relay("serve", "--listen", "127.0.0.1:0", "--data", str(theirs))
        assert again.returncode == 7 and "belongs to" in again.stderr, (
            "asking is all that root does there"
        )

        async def works() -> None:
            async with host(line.split()[-1], made.stdout.strip()) as h:
                await h.register()

        asyncio.run(works())
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    stopped = relay("token", "--data", str(theirs))
    assert stopped.returncode == 5 and "does not run" in stopped.stderr


def test_root_follows_no_link_in_the_directory_of_the_account(theirs: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as roots:
        roots.bind(str(tmp_path / "roots"))
        roots.listen()
        roots.settimeout(0.0)
        (tmp_path / "precious").write_text("not a database")
        (theirs / "relay.sock").symlink_to(tmp_path / "roots")
        (theirs / "relay.db").symlink_to(tmp_path / "precious")
        refused = relay("token", "--data", str(theirs))
        assert refused.returncode == 5, refused
        with pytest.raises(BlockingIOError):
            roots.accept()
        assert (tmp_path / "precious").read_text() == "not a database" and not list(
            tmp_path.glob("precious.*")
        )
