"""A whole flow through a relay, and where its secrets could be found.

The test looks at the command lines and environments of every process of the machine, again and
again during the flow; at all files of both installations and of the relay, their modes, and all
printed output; and at the memory of the relay. A secret may stand in the one private file that it
is for, and nowhere else.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import shlex
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import home as homes
from holdfast.core.people import join_code
from holdfast.home import keys, machines
from tests.support.installation import Installation, eventually, installation
from tests.support.relays import RelayProcess

WORD = "PLAINTEXT-THAT-ONLY-THE-ENDS-MAY-SEE"
TYPED = "typed-at-a-hidden-prompt-4711"
PHRASE = "a passphrase of carl 0815"


class Flow(NamedTuple):
    relay: RelayProcess
    here: Installation
    there: Installation
    secrets: dict[str, tuple[bytes, ...]]  # name of the secret -> every spelling
    places: dict[str, tuple[str, ...]]  # name of the secret -> the files that may contain it
    printed: str
    seen: dict[str, str]  # secret -> where a process showed it


class Watch(threading.Thread):
    """Reads command line and environment of all processes until stopped; keeps all words."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.words: dict[bytes, str] = {}
        self.over = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        while not self.over.is_set():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                if int(pid) == os.getpid():
                    continue
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        if data := Path(f"/proc/{pid}/{name}").read_bytes():
                            self.words.setdefault(data, f"/proc/{pid}/{name}")
            self.rounds += 1


def written(secret: bytes) -> tuple[bytes, ...]:
    """The ways in which bytes end up in a text."""
    plain = base64.b64encode(secret).rstrip(b"=")
    return (
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        plain,
        plain.replace(b"+", b"-").replace(b"/", b"_"),
        repr(secret)[2:-1].encode(),
    )


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    base = tmp_path_factory.mktemp("secrets")
    watch = Watch()
    watch.start()
    with (
        RelayProcess(str(base / "relay")) as relay,
        installation(tmp_path_factory.mktemp("there")) as there,
        installation(tmp_path_factory.mktemp("here")) as here,
    ):
        said = []

        def do(hf: Installation, *words: str, stdin: str = "", rc: int | None = 0) -> str:
            done = hf.cli(*words, stdin=stdin.encode())
            assert rc is None or done.rc == rc, (words, done)
            said.append(done.out + done.err)
            return done.out

        here.ls()
        token = relay.token()
        there.new("work", "--", "bash")
        do(there, "host", "connect", relay.url, "--token", "-", stdin=f"{token}\n")
        made = json.loads(
            there.cli("invite", "--rights", "admin", "--no-wait", "--json").raw.splitlines()[0]
        )  # printed once, on purpose
        code, _ = join_code.read(made["url"])
        wrong = join_code.Code(code.id, "0000000" if code.secret != "0000000" else "0000001")
        do(here, "join", "--relay", relay.url, "--as", "mallory", stdin=f"{wrong.show()}\n", rc=4)
        do(here, "join", "--as", "ann", stdin=f"{made['url']}\n")
        do(here, "join", "--as", "dora", stdin=f"{made['url']}\n", rc=None)
        [machine] = here.ok("machines", "--json").json
        box = machine["name"]
        locking = here.spawn(
            [*map(str, here.argv(("operator", "add", "carl"))), "--passphrase"], size=(120, 24)
        )
        for _ in range(2):
            at = len(locking.output)
            locking.until(
                lambda at=at: b"assphrase" in locking.output[at:],  # type: ignore[misc]
                "a question for the passphrase",
            )
            locking.send(f"{PHRASE}\r")
        assert locking.wait() == 0
        do(here, "ls", f"{box}/")
        do(here, "run", f"{box}/work", "--", f"echo {WORD}")
        do(here, "send", f"{box}/work", "read -s hidden; echo ${#hidden} characters", "--enter")
        terminal = here.attach(f"{box}/work")
        eventually(lambda: there.get("work")["operators"], "ann is attached")
        there.quick("wait", "work", "--for", "secret", "--timeout", "60")
        terminal.send(f"{TYPED}\r")
        terminal.see(f"{len(TYPED)} characters")
        do(here, "log", f"{box}/work", "--json")
        do(there, "events", "--json")
        do(there, "host", "ls", "--json")
        do(there, "doctor", "--json")
        for wrong_token in (token[:-4] + "AAAA", token + "x"):
            do(here, "host", "connect", relay.url, "--token", "-", stdin=f"{wrong_token}\n", rc=4)
            said[-1] = said[-1].replace(wrong_token, "ECHO OF A TOKEN")
            assert "ECHO" not in said[-1]
        do(here, "host", "disconnect", relay.url)
        do(there, "up", "--detach", "--json")

        def key(hf: Installation, name: str) -> bytes:
            home = homes.resolve(hf.env)
            found = (
                keys.load_machine(home)
                if name == keys.MACHINE
                else keys.opened(keys.load(home, name), lambda _: PHRASE)
            )
            return found.secret()

        pass_ = machines.listing(homes.resolve(here.env))[0].ways[0].pass_
        owner = keys.listing(homes.resolve(there.env))[0].name
        secrets = {
            "the relay's token": (token.encode(), *written(token[4:].encode())[1:]),
            "the code": (code.secret.encode(), code.show().encode(), made["url"].encode()),
            "the pass": written(pass_),
            "the machine's key": written(key(there, keys.MACHINE)),
            "the owner's key": written(key(there, owner)),
            "ann's key": written(key(here, "ann")),
            "carl's key": written(key(here, "carl")),
            "carl's passphrase": (PHRASE.encode(),),
            "what was typed unseen": (TYPED.encode(),),
        }
        places: dict[str, tuple[str, ...]] = {
            "the relay's token": ("relays.json",),
            "the pass": ("machines.json",),
            "the machine's key": ("machine",),
            "the owner's key": (f"{owner}.key",),
            "ann's key": ("ann.key",),
        }
        rounds = watch.rounds
        eventually(lambda: watch.rounds > rounds + 1, "one more look at all processes")
        seen = {
            what: where
            for what, ways in secrets.items()
            for words, where in list(watch.words.items())
            if any(way in words for way in ways)
        }
        watch.over.set()
        yield Flow(relay, here, there, secrets, places, "\n".join(said), seen)
        terminal.leave()


def test_t4_no_process_has_a_secret_in_its_command_line_or_environment(flow: Flow) -> None:
    assert not flow.seen


def test_t4_nothing_that_is_printed_repeats_a_secret(flow: Flow) -> None:
    assert len(flow.printed) > 2000
    assert not [
        what
        for what, ways in flow.secrets.items()
        if any(way.decode("latin-1") in flow.printed for way in ways)
    ]


def test_t4_each_secret_is_in_its_own_file_and_no_other(flow: Flow) -> None:
    files = [
        path
        for root in (flow.here.base, flow.there.base, Path(flow.relay.data).parent)
        for path in root.rglob("*")
        if path.is_file()
    ]
    assert {"host.log", "relay.db", "relay.log", "state.db", "machines.json", "relays.json"} <= {
        path.name for path in files
    }
    found: dict[str, set[str]] = {}
    for path in files:
        data = path.read_bytes()
        for what, ways in flow.secrets.items():
            if any(way in data for way in ways):
                found.setdefault(what, set()).add(path.name)
    assert {what: tuple(sorted(names)) for what, names in found.items()} == flow.places


def test_t4_nothing_of_an_installation_or_a_relay_can_be_reached_by_other_accounts(
    flow: Flow,
) -> None:
    for root in (flow.here.home, flow.there.home, Path(flow.relay.data)):
        for path in (root, *root.rglob("*")):
            info = path.lstat()
            assert info.st_uid == os.geteuid(), path
            assert stat.S_ISLNK(info.st_mode) or not info.st_mode & 0o077, (
                f"{path} has mode {stat.S_IMODE(info.st_mode):04o}"
            )


def test_t4_the_memory_of_the_relay_has_no_carried_plaintext(flow: Flow) -> None:
    """Not only does no import lead to a secret: the memory has none."""
    done = flow.here.ok(
        "run", f"{flow.here.ok('machines', '--json').json[0]['name']}/work", "--", f"echo {WORD}"
    )
    assert WORD in done.out
    forbidden = {
        "what was shown": (WORD.encode(),),
        "a name": (b"hf-keeper", b"tester"),
        **{
            what: ways
            for what, ways in flow.secrets.items()
            if what not in ("the relay's token", "the pass")
        },
    }
    memory = _memory(flow.relay.process.pid)
    assert sum(map(len, memory)) > 1_000_000
    assert any(f"127.0.0.1:{flow.relay.port}".encode() in piece for piece in memory), (
        "this is how one would find something"
    )
    assert not [
        what
        for what, ways in forbidden.items()
        if any(way in piece for way in ways for piece in memory)
    ]


def _memory(pid: int) -> list[bytes]:
    """All that the process could have written to."""
    pieces = []
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, mode, *_ = line.split()
            if mode.startswith("rw"):
                low, high = (int(x, 16) for x in where.split("-"))
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(low)
                    pieces.append(memory.read(high - low))
    return pieces


@pytest.mark.parametrize(
    "words",
    [
        ("host", "connect", "ws://me:S3CRET-WORD@relay.example"),
        ("host", "connect", "ws://relay.example/?token=S3CRET-WORD"),
        ("host", "connect", "ws://relay.example/#S3CRET-WORD"),
        ("host", "disconnect", "ws://me:S3CRET-WORD@relay.example"),
        ("join", "S3CRET-WORD", "--as", "eve"),
        ("host", "connect", "http://me:S3CRET-WORD@relay.example"),
        ("host", "connect", "ws://me:S3CRET-WORD@[relay"),
        ("join", "holdfast://machine/join#S3CRET-WORD", "--as", "eve"),
        ("join", "4KQ7-M2XD-9TRG", "--relay", "ws://relay.example/?S3CRET-WORD", "--as", "eve"),
        ("host", "connect", "ws://127.0.0.1:1", "--token", "two S3CRET-WORD"),
    ],
)
def test_t4_errors_do_not_repeat_possible_secrets(flow: Flow, words: tuple[str, ...]) -> None:
    for how in ((), ("--json",)):
        done = flow.here.attempt(*words, *how)
        assert done.rc in (2, 3, 4), done
        assert "S3CRET" not in (done.out + done.err).upper()


def test_t4_processes_with_keys_leave_no_core_files_and_session_programs_may(
    tmp_path: Path,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("no process here may leave a core file")
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    with installation(tmp_path) as hf:

        def cli(*words: str) -> str:
            command = shlex.join([str(word) for word in hf.argv(words)])
            line = f"ulimit -S -c {wanted // 1024}; exec {command}"
            return subprocess.run(
                ["bash", "-c", line],
                env=hf.env,
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            ).stdout

        cli("new", "work", "--no-attach", "--", "bash")
        assert _core_limit(hf.host_pid) == 0
        assert cli("run", "work", "--", "ulimit -S -c").strip() == str(wanted // 1024)
        hf.ok("host", "ls")
        before = hf.ask("ping")["pid"]
        hf.ask("down", restart=True)
        eventually(lambda: _quietly(hf), "the host after it was replaced")
        assert hf.host_pid == before and _core_limit(hf.host_pid) == 0
        relay = subprocess.Popen(
            [
                "bash",
                "-c",
                f"ulimit -S -c {wanted // 1024}; "
                f"exec {sys.executable} -m holdfast relay serve --listen 127.0.0.1:0",
            ],
            env=hf.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert relay.stdout is not None and relay.stdout.readline().startswith("listening")
            assert _core_limit(relay.pid) == 0
        finally:
            relay.terminate()
            relay.communicate(timeout=120)


def _quietly(hf: Installation) -> bool:
    with contextlib.suppress(Exception):
        return bool(hf.ask("ping")["pid"])
    return False


def _core_limit(pid: int) -> int:
    line = next(
        line
        for line in Path(f"/proc/{pid}/limits").read_text().splitlines()
        if line.startswith("Max core file size")
    )
    return -1 if line.split()[4] == "unlimited" else int(line.split()[4])
