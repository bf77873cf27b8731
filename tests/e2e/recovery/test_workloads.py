"""Programs verify from inside that a restore has changed no state (R2).

Each workload runs with the exec gate on and off, contained as root and (last test) as an ordinary
user, and plain as root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import cases, needs, passes_as_ordinary_user
from tests.support.peers.ports import free_port
from tests.support.recovery import zoo
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
MEGABYTES = {"exec": 200, "input": 50}
NET = "own" if ROOT else "none"  # an ordinary user may lack the device for connections outside
PLAIN = "plain-"
GATES = ["exec", "input", *([f"{PLAIN}exec", f"{PLAIN}input"] if ROOT else [])]
pytestmark = pytest.mark.parametrize("gate", cases(GATES, again=["exec"]))


def kind(gate: str, *more: str) -> tuple[str, ...]:
    """The options of `new`; `more` are for a contained session."""
    depth = ("--gate", gate.removeprefix(PLAIN))
    return (*depth, "--plain") if gate.startswith(PLAIN) else (*depth, "--contained", *more)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str, gate: str) -> None:
    hf.ready(name, *kind(gate))


def round_trip(hf: Installation, name: str) -> None:
    """Save the session, end all processes, and restore the session."""
    assert hf.ok("checkpoint", name, "--stop", "--json").json["saved"]["ended"]
    hf.ok("restore", name)


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


def shows(hf: Installation, name: str, text: str) -> None:
    hf.wait(name, f"text:{text}")


def test_r2_jobs_a_stopped_job_and_a_daemon(hf: Installation, gate: str) -> None:
    name = f"jobs-{gate}"
    shell(hf, name, gate)
    says(hf, name, "trap 'echo trapped' USR1; f() { echo function $1; }; sleep 1111 &")
    says(hf, name, "setsid -f sh -c 'echo $$ >daemon; exec sleep 3333'")
    hf.quick("send", name, "sleep 2222", "--enter")
    eventually(lambda: "sleep 2222" in foreground(hf, name) or None, "the job in the foreground")
    hf.quick("send", name, "--key", "C-z")
    shows(hf, name, "Stopped")
    hf.wait(name, "idle")
    enter(hf, name)
    daemon = (hf.user / "daemon").read_text().strip()
    round_trip(hf, name)
    jobs = says(hf, name, "jobs -l")
    assert "Running" in jobs and "Stopped" in jobs and "sleep 2222" in jobs
    assert says(hf, name, f"f called; cat /proc/{daemon}/comm") == "function called\nsleep\n"
    hf.quick("send", name, "fg %+", "--enter")
    eventually(lambda: "sleep 2222" in foreground(hf, name) or None, "the job in the foreground")
    hf.quick("send", name, "--key", "C-c")
    hf.wait(name, "idle")
    enter(hf, name)
    assert "sleep 2222" not in says(hf, name, "jobs")


def test_r2_a_daemon_without_its_session_leader_twice(hf: Installation, gate: str) -> None:
    """The second checkpoint has the daemon too: it is still a descendant of hf-root."""
    name = f"daemon-{gate}"
    shell(hf, name, gate)
    says(hf, name, "setsid -w sh -c 'sleep 4444 & echo $! >daemon'")
    daemon = (hf.user / "daemon").read_text().strip()
    for _ in range(2):
        round_trip(hf, name)
        parent = f"$(ps -o ppid= {daemon})"
        assert says(hf, name, f"ps -o comm= {daemon} {parent}").split() == ["hf-root", "sleep"]


def enter(hf: Installation, name: str) -> None:
    """Enter an empty line: C-z and C-c count as typed, and `run` wants an unbegun line."""
    hf.quick("send", name, "true", "--enter")
    hf.wait(name, "idle")


def foreground(hf: Installation, name: str) -> str:
    graph = json.loads(hf.quick("graph", name, "--json"))
    return str(graph["terminal"]["foreground"])


def test_r2_an_editor_with_unsaved_text(hf: Installation, gate: str) -> None:
    needs("vim")
    name, file = f"vim-{gate}", hf.user / f"text-{gate}"
    shell(hf, name, gate)
    hf.quick("send", name, f"vim -u NONE {file.name}", "--enter")
    shows(hf, name, "New")
    hf.quick("send", name, "iunsaved words")
    shows(hf, name, "unsaved words")
    screen = hf.screen(name)
    round_trip(hf, name)
    assert hf.screen(name) == screen and not file.exists()
    hf.quick("send", name, ", and more")
    # Now and then vim draws the first keys after a restore with the next key only.
    hf.quick("send", name, "--key", "Escape")
    shows(hf, name, "and more")
    hf.quick("send", name, ":wq", "--enter")
    hf.wait(name, "idle")
    assert file.read_text() == "unsaved words, and more\n"


def begun(hf: Installation, name: str, gate: str, *words: str) -> None:
    """A session with the program of many kinds, which has checked itself once."""
    if not os.path.exists(PYTHON):
        pytest.skip("there is no interpreter of the system here")
    shutil.copy(Path(zoo.__file__), hf.user / "zoo.py")
    (directory := hf.user / name).mkdir()
    command = (PYTHON, "zoo.py", directory.name, *words)
    hf.new(name, *kind(gate, "--net", NET), "--", *command)
    shows(hf, name, "ZOO READY")
    hf.quick("send", name, "check", "--enter")
    shows(hf, name, "ZOO RIGHT")


def is_right(hf: Installation, name: str) -> None:
    before = hf.get(name)["output"]["end"]
    hf.quick("send", name, "check", "--enter")
    hf.ok("wait", name, "--for", "text:ZOO (RIGHT|WRONG)", "--since", str(before))
    said = hf.ok("read", name, "--from", str(before)).out
    assert "WRONG" not in said and "ZOO RIGHT" in said, said


def kinds(gate: str) -> list[str]:
    """Connections on the machine's network do not come back."""
    return [one for one in zoo.KINDS if one != "tcp_established" or not gate.startswith(PLAIN)]


def test_r2_state_of_many_kinds(hf: Installation, gate: str) -> None:
    """Memory, sockets, locks, timers, files and terminals (tests/support/recovery/zoo.py)."""
    name = f"zoo-{gate}"
    begun(hf, name, gate, str(MEGABYTES[gate.removeprefix(PLAIN)]), *kinds(gate))
    round_trip(hf, name)
    is_right(hf, name)
    hf.quick("end", name)


def test_r5_branches_have_state_of_many_kinds(hf: Installation, gate: str) -> None:
    """And so has the parent."""
    if gate.startswith(PLAIN):
        pytest.skip("a plain session cannot be forked")
    name = f"forked-{gate}"
    begun(hf, name, gate, "20")
    branches = hf.ok("fork", name, "-n", "2", "--json").json["branches"]
    for one in (name, *(branch["name"] for branch in branches)):
        is_right(hf, one)
        hf.quick("end", one)


@pytest.mark.soak
def test_r2_state_of_many_kinds_twenty_times(hf: Installation, gate: str) -> None:
    name = f"soak-{gate}"
    begun(hf, name, gate, "20", *kinds(gate))
    for _ in range(20):
        round_trip(hf, name)
        is_right(hf, name)
    hf.quick("end", name)


REFUSED = {
    "system_v": "segments of System V shared memory",
    "own_filter": "has a seccomp filter of its own",
    "nested": "has namespaces of its own",
    "mapped_deleted_file": "(/dev/shm/unlinked), which only root may save",
    "large_deleted_file": "has a deleted file of",
}


@pytest.mark.parametrize("odd", REFUSED)
def test_r2_state_that_cannot_be_saved_is_named(hf: Installation, gate: str, odd: str) -> None:
    """And the program goes on."""
    name = f"{odd.replace('_', '-')}-{gate}"
    only = {"nested": True, "mapped_deleted_file": False}.get(odd, ROOT)
    if gate.endswith("input") or only != ROOT:
        pytest.skip("one depth of the gate and one account are enough")
    begun(hf, name, gate, "1", odd)
    refused = hf.cli("checkpoint", name)
    assert refused.rc == 7 and REFUSED[odd] in refused.err, refused
    is_right(hf, name)
    hf.quick("end", name)


@pytest.mark.skipif(not ROOT, reason="only root may save it; its refusal is tested above")
def test_r2_a_mapped_file_without_a_name(hf: Installation, gate: str) -> None:
    name = f"unlinked-{gate}"
    begun(hf, name, gate, "1", "mapped_deleted_file")
    round_trip(hf, name)
    is_right(hf, name)
    hf.quick("end", name)


@pytest.mark.skipif(not ROOT, reason="an ordinary user's browser cannot be saved")
def test_r2_a_browser(hf: Installation, gate: str) -> None:
    """Its page goes on, and it opens a new page in a new process."""
    needs("chromium")
    name, port = f"browser-{gate}", free_port()
    (hf.user / "page.html").write_text(
        "<script>let n = 0; setInterval(() => { document.title = `count ${++n}` }, 20)</script>"
    )
    hf.ready(name, *kind(gate, "--net", NET))
    page = f"file://{hf.user}/page.html"
    command = f"chromium {BROWSER} --remote-debugging-port={port} --user-data-dir=$PWD/{name}"
    says(hf, name, f"{command} {page} >{name}.log 2>&1 &")
    before = counted(hf, name, port, 1, 1)
    round_trip(hf, name)
    assert counted(hf, name, port, 1, before + 1)
    says(hf, name, f"curl -fsS -X PUT 'localhost:{port}/json/new?{page}'")
    assert counted(hf, name, port, 2, 1)
    hf.quick("end", name)


BROWSER = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)


def counted(hf: Installation, name: str, port: int, pages: int, least: int) -> int:
    """Wait until so many pages count, each to `least` or more; return the lowest count."""

    def lowest() -> int:
        listed = hf.cli("run", name, "--", f"curl -s localhost:{port}/json/list").out
        counts = [int(number) for number in re.findall(r'"title": "count (\d+)"', listed)]
        return min(counts) if len(counts) == pages and min(counts) >= least else 0

    return eventually(lambda: lowest() or None, f"{pages} counting pages")


def test_r2_a_server_of_node(hf: Installation, gate: str) -> None:
    needs("node")
    name, port = f"node-{gate}", free_port()
    (hf.user / "server.js").write_text(
        "let ticks = 0; const kept = Buffer.alloc(8 << 20, 7); setInterval(() => { ticks++; }, 5);"
        "require('http').createServer((asked, answer) => setTimeout(() => answer.end("
        "`served ${ticks > 0} ${kept[12345]} ${process.env.X}\\n`), 20))"
        f".listen({port}, () => console.log('NODE ' + 'READY'));"
    )
    hf.ready(name, *kind(gate, "--net", NET))
    hf.quick("send", name, "X=kept node server.js &", "--enter")
    shows(hf, name, "NODE READY")
    enter(hf, name)
    round_trip(hf, name)
    ask = f"exec 5<>/dev/tcp/127.0.0.1/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&5; cat <&5"
    assert "served true 7 kept" in says(hf, name, ask)
    hf.quick("end", name)


def test_r2_a_pager_keeps_its_place(hf: Installation, gate: str) -> None:
    needs("less")
    name = f"less-{gate}"
    shell(hf, name, gate)
    (hf.user / "numbers").write_text("".join(f"line {n}\n" for n in range(1, 5000)))
    hf.quick("send", name, "less numbers", "--enter")
    shows(hf, name, "line 2")
    hf.quick("send", name, "777g")
    shows(hf, name, "line 788")
    screen = hf.screen(name)
    round_trip(hf, name)
    assert hf.screen(name) == screen
    hf.quick("send", name, "4321g")
    shows(hf, name, "line 4322")
    hf.quick("end", name)


def test_r2_programs_in_the_foreground_keep_the_terminal(hf: Installation, gate: str) -> None:
    """After a restore, after the next one, and in a fork of a contained session."""
    needs("less")
    name, fork = f"front-{gate}", f"front-{gate}-fork"
    shell(hf, name, gate)
    hf.quick("send", name, "bash --norc", "--enter")
    hf.quick("send", name, "seq 1 500 | less", "--enter")
    shows(hf, name, "^23")
    round_trip(hf, name)
    round_trip(hf, name)
    if not gate.startswith(PLAIN):
        hf.ok("fork", name, "--name", fork)
    for one in (name, fork) if not gate.startswith(PLAIN) else (name,):
        assert "less" in foreground(hf, one)
        said = hf.ok("attention", one).out
        assert "no foreground" not in said, said
        hf.quick("send", one, "q")
        hf.quick("send", one, "echo spo''ken >/dev/tty; sleep 7777", "--enter")
        shows(hf, one, "spoken")
        eventually(lambda one=one: "sleep 7777" in foreground(hf, one) or None, "the sleep")  # type: ignore[misc]
        hf.quick("send", one, "--key", "C-c")
        hf.quick("send", one, "echo af''ter", "--enter")
        shows(hf, one, "after")
    hf.quick("end", name)


def test_r2_a_multiplexer_inside(hf: Installation, gate: str) -> None:
    needs("tmux")
    name = f"tmux-{gate}"
    shell(hf, name, gate)
    hf.quick("send", name, f"tmux -L {name} -f /dev/null new -s inner", "--enter")
    shows(hf, name, r"\[inner\]")
    hf.quick("send", name, "Y=inside; echo be''gun", "--enter")
    shows(hf, name, "begun")
    round_trip(hf, name)
    hf.quick("send", name, "echo still $Y", "--enter")
    shows(hf, name, "still inside")
    hf.quick("end", name)


def test_r2_a_compile_goes_on(hf: Installation, gate: str) -> None:
    """The compiler has read a part of its source from a pipe."""
    needs("gcc", "make")
    name = f"make-{gate}"
    (place := hf.user / name).mkdir()
    (place / "a.c").write_text("int b(void); int main(void) { return b(); }\n")
    (place / "Makefile").write_text(
        "p: a.o b.o\n\tgcc -o p a.o b.o\n"
        "b.o:\n\t(echo 'int b(void) {'; touch began; until test -e go; do sleep 0.1; done; "
        "echo 'return 42; }') | gcc -x c -c -o b.o -\n"
    )
    shell(hf, name, gate)
    hf.quick("send", name, f"make -j2 -C {name}; {name}/p; echo code $?", "--enter")
    eventually(lambda: ((place / "a.o").exists() and (place / "began").exists()) or None, "both")
    round_trip(hf, name)
    assert not (place / "p").exists()
    (place / "go").touch()
    shows(hf, name, "code 42")
    hf.quick("end", name)


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_all_workloads_as_an_ordinary_user(gate: str) -> None:
    if gate != "exec":
        pytest.skip("the other run has all")
    criu()
    passes_as_ordinary_user(__file__)
