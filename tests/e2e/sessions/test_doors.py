"""Doors of a contained session, with real programs: docker's socket, and git over ssh (T4)."""

from __future__ import annotations

import contextlib
import getpass
import http.server
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.lifecycle.contained.doors import DOCKER_WARNING
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import needs, passes_as_ordinary_user

ASK = """import http.client, socket
line = http.client.HTTPConnection("docker")
line.sock = socket.socket(socket.AF_UNIX)
line.sock.connect("/run/docker.sock")
line.request("GET", "/_ping")
print(line.getresponse().read().decode())
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("doors")
    (base / "work").mkdir()
    (base / "work" / "ask.py").write_text(ASK)
    with installation(base) as made:
        made.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", made.env["PYTHONPATH"])
        made.ok("up", "--detach")
        yield made


def inside(house: Installation, name: str, text: str) -> str:
    return house.cli("run", name, "--", f"({text}) 2>&1").out


# ---------------------------------------------------------------- docker


class Docker(http.server.BaseHTTPRequestHandler):
    """The few answers that `docker ps` needs."""

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"[]" if self.path.endswith("/containers/json") else b"OK")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "a unix socket"


@pytest.fixture(scope="module")
def docker(house: Installation) -> Iterator[str]:
    path = str(house.base / "docker.sock")
    with socketserver.ThreadingUnixStreamServer(path, Docker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def test_t4_the_door_docker_leads_to_dockers_socket_and_says_its_worth(
    house: Installation, docker: str
) -> None:
    env, words = {"DOCKER_HOST": docker}, ("--contained", "--cwd", str(house.base / "work"))
    house.ready("closed", *words, env=env)
    assert "FileNotFoundError" in inside(house, "closed", "python3 ask.py")
    made = house.new("open", *words, "--door", "docker", env=env)
    assert DOCKER_WARNING in made["sees"]
    house.wait("open", "idle")
    assert inside(house, "open", "python3 ask.py").strip() == "OK"
    if shutil.which("docker", path=os.defpath + ":/usr/local/bin"):
        assert "Cannot connect to the Docker daemon" in inside(house, "closed", "docker ps")
        assert "CONTAINER ID" in inside(house, "open", "docker ps")
    house.ok("end", "closed", "open")


# ---------------------------------------------------------------- git over ssh


@pytest.fixture(scope="module")
def server(house: Installation) -> Iterator[str]:
    """An sshd of this account on the loopback, with a repository; the address of the repository."""
    needs("sshd", "ssh-keygen", "ssh-agent", "ssh-add", "git")
    place = house.base / "ssh"
    place.mkdir()
    for name in ("host", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
        subprocess.run(words, check=True)
    shutil.copy(place / "key.pub", place / "authorized")
    origin = place / "origin.git"
    subprocess.run(["git", "init", "-q", "--bare", str(origin)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (place / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {place}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {place}/authorized\nStrictModes no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv HOME={place}\n"  # bash reads the start files of the account otherwise
    )
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    process = subprocess.Popen([str(sshd), "-D", "-e", "-f", str(place / "config")])
    try:
        eventually(lambda: _answers(port) or process.poll() is not None, "the server to listen")
        if process.poll() is not None:
            pytest.skip("sshd does not start here")
        yield f"ssh://{getpass.getuser()}@127.0.0.1:{port}{origin}"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(scope="module")
def keys(house: Installation, server: str) -> Iterator[str]:
    """The person's ssh agent, with the key that the server accepts."""
    path = str(house.base / "ssh" / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: Path(path).exists(), "the agent to listen")
        env = {**os.environ, "SSH_AUTH_SOCK": path}
        words = ["ssh-add", "-q", str(house.base / "ssh" / "key")]
        subprocess.run(words, check=True, env=env)
        yield path
    finally:
        process.terminate()
        process.wait()


def test_t4_git_over_ssh_works_with_the_door_and_is_refused_without(
    house: Installation, server: str, keys: str
) -> None:
    env = {"SSH_AUTH_SOCK": keys}
    words = ("--contained", "--cwd", str(house.base / "work"), "--net", "host")
    ssh = "ssh -o StrictHostKeyChecking=accept-new -o BatchMode=yes"
    clone = f"GIT_SSH_COMMAND='{ssh}' git clone -q {server} copy && echo cloned"
    house.ready("without", *words, env=env)
    assert "Permission denied (publickey)" in inside(house, "without", clone)
    house.ready("with", *words, "--door", "ssh-agent", env=env)
    out = inside(house, "with", clone)
    assert "cloned" in out and (house.base / "work" / "copy" / ".git").is_dir(), out
    house.ok("end", "with", "without")


def test_all_of_this_as_an_ordinary_user() -> None:
    if os.getuid() != 0:
        pytest.skip("it is being run as an ordinary user")
    passes_as_ordinary_user(__file__)
