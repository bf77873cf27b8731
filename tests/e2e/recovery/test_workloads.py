"""Programs verify from inside that a restore has changed no state (R2).

Each workload runs with the exec gate on and off, as root and (last test) as an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import needs, passes_as_ordinary_user
from tests.support.recovery import zoo
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
MEGABYTES = {"exec": 200, "input": 50}
NET = "own" if ROOT else "none"  # an ordinary user may lack the device for connections outside
pytestmark = pytest.mark.parametrize("gate", ["exec", "input"])


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def shell(hf: Installation, name: str, gate: str) -> None:
    hf.ready(name, "--contained", "--gate", gate)


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
    shows(hf, name, "and more")
    hf.quick("send", name, "--key", "Escape")
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
    hf.new(name, "--contained", "--net", NET, "--gate", gate, "--", *command)
    shows(hf, name, "ZOO READY")
    hf.quick("send", name, "check", "--enter")
    shows(hf, name, "ZOO RIGHT")


def is_right(hf: Installation, name: str) -> None:
    before = hf.get(name)["output"]["end"]
    hf.quick("send", name, "check", "--enter")
    hf.ok("wait", name, "--for", "text:ZOO (RIGHT|WRONG)", "--since", str(before))
    said = hf.ok("read", name, "--from", str(before)).out
    assert "WRONG" not in said and "ZOO RIGHT" in said, said


def test_r2_state_of_many_kinds(hf: Installation, gate: str) -> None:
    """Memory, sockets, locks, timers, files and terminals (tests/support/recovery/zoo.py)."""
    name = f"zoo-{gate}"
    begun(hf, name, gate, str(MEGABYTES[gate]))
    round_trip(hf, name)
    is_right(hf, name)
    hf.quick("end", name)


@pytest.mark.soak
def test_r2_state_of_many_kinds_twenty_times(hf: Installation, gate: str) -> None:
    name = f"soak-{gate}"
    begun(hf, name, gate, "20")
    for _ in range(20):
        round_trip(hf, name)
        is_right(hf, name)
    hf.quick("end", name)


REFUSED = {
    "system_v": "segments of System V shared memory",
    "own_filter": "has a seccomp filter of its own",
    "nested": "has namespaces of its own",
    "mapped_deleted_file": "has mapped a deleted file (/dev/shm/unlinked)",
    "large_deleted_file": "has a deleted file of",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_r2_state_that_cannot_be_saved_is_named(hf: Installation, gate: str, kind: str) -> None:
    """And the program goes on."""
    name = f"{kind.replace('_', '-')}-{gate}"
    if gate == "input" or (kind == "nested" and not ROOT):
        pytest.skip("one depth of the gate and one account are enough")
    begun(hf, name, gate, "1", kind)
    refused = hf.cli("checkpoint", name)
    assert refused.rc == 7 and REFUSED[kind] in refused.err, refused
    is_right(hf, name)
    hf.quick("end", name)


def test_r2_a_server_of_node(hf: Installation, gate: str) -> None:
    needs("node")
    name = f"node-{gate}"
    (hf.user / "server.js").write_text(
        "let ticks = 0; const kept = Buffer.alloc(8 << 20, 7); setInterval(() => { ticks++; }, 5);"
        "require('http').createServer((asked, answer) => setTimeout(() => answer.end("
        "`served ${ticks > 0} ${kept[12345]} ${process.env.X}\\n`), 20))"
        ".listen(8099, () => console.log('NODE ' + 'READY'));"
    )
    hf.ready(name, "--contained", "--net", NET, "--gate", gate)
    hf.quick("send", name, "X=kept node server.js &", "--enter")
    shows(hf, name, "NODE READY")
    enter(hf, name)
    round_trip(hf, name)
    ask = "exec 5<>/dev/tcp/127.0.0.1/8099; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&5; cat <&5"
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
    """After a restore, after the next one, and in a fork."""
    needs("less")
    name, fork = f"front-{gate}", f"front-{gate}-fork"
    shell(hf, name, gate)
    hf.quick("send", name, "bash --norc", "--enter")
    hf.quick("send", name, "seq 1 500 | less", "--enter")
    shows(hf, name, "^23")
    round_trip(hf, name)
    round_trip(hf, name)
    hf.ok("fork", name, "--name", fork)
    for one in (name, fork):
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
    hf.quick("send", name, "tmux -f /dev/null new -s inner", "--enter")
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
    if gate == "input":
        pytest.skip("the other run has both")
    criu()
    passes_as_ordinary_user(__file__)
