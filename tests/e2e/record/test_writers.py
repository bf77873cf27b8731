"""The writer of a file, from real sessions of a real host (P3).

Also after a crash of the host, inside a contained session, and as an ordinary user.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.originators.file_events import key_of
from tests.support.installation import Installation, eventually
from tests.support.kernel import silent_about_files, silent_about_processes

SILENT = silent_about_files() or silent_about_processes()
told = pytest.mark.skipif(bool(SILENT), reason=f"nobody is told who writes files here: {SILENT}")


@pytest.fixture(autouse=True, scope="module")
def people(hf: Installation) -> None:
    hf.people("ann", "bob")


def wrote(hf: Installation, session: str, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        hf.cli("graph", session, "--wrote", path, "--json").out
    )["wrote"]
    return found


def actors(hf: Installation, session: str, path: str) -> list[str]:
    return [one["actor"] for one in wrote(hf, session, path)]


def run(hf: Installation, session: str, actor: str, text: str) -> str:
    said = hf.ok("run", session, "--as", actor, "--", text).out
    hf.ok("turn", session, "release", "--as", actor)
    return said


@told
def test_p3_a_makefile_and_a_hook_name_their_writer_when_another_operator_runs_them(
    hf: Installation,
) -> None:
    hf.new("proj")
    where = run(hf, "proj", "ann", "mkdir -p proj && cd proj && git init -q . && pwd").strip()
    run(
        hf,
        "proj",
        "ann",
        "printf 'all:\\n\\t@echo made\\n' > Makefile; "
        "printf '#!/bin/sh\\necho hooked\\n' > .git/hooks/pre-commit; "
        "chmod +x .git/hooks/pre-commit",
    )
    run(hf, "proj", "bob", "echo x > mine; git add mine")
    for path in ("Makefile", ".git/hooks/pre-commit"):
        (found,) = wrote(hf, "proj", f"{where}/{path}")
        assert found["actor"] == "ann" and found["act"] and hf.ok("resolve", found["act"]).rc == 0
    assert actors(hf, "proj", f"{where}/mine") == ["bob"]
    assert actors(hf, "proj", "mine") == actors(hf, "proj", "./mine") == ["bob"], (
        "from where the shell is"
    )
    run(
        hf,
        "proj",
        "bob",
        'python3 -c \'import os; open("fresh", "w").write("all:\\n"); os.rename("fresh", '
        '"Makefile")\'',
    )
    assert actors(hf, "proj", f"{where}/Makefile") == ["bob"], "as editors save"
    said = hf.ok("graph", "proj", "--wrote", f"{where}/mine").out
    assert "bob" in said and "yes" in said
    assert hf.cli("graph", "proj", "--wrote", "/usr/bin/env").rc == 3
    assert json.loads(hf.ok("graph", "proj", "--json").out)["file_events"] is True
    hf.end("proj")


@told
def test_p3_writes_without_a_host_are_unknown_and_the_rest_is_kept(
    hf: Installation,
) -> None:
    hf.new("crash")
    where = run(
        hf,
        "crash",
        "ann",
        "mkdir -p crash && cd crash && echo x > kept && echo x > later && mkfifo go && pwd",
    ).strip()
    fd = os.open(f"{where}/kept", os.O_PATH)
    key = (key_of(fd) or b"").hex()
    os.close(fd)
    eventually(
        lambda: (saved := Path(hf.home, "writers")).exists() and key in saved.read_text(),
        "the known writers to be stored",
    )
    run(
        hf,
        "crash",
        "ann",
        "(setsid sh -c 'read x <go; echo y > later; echo y > new; "
        "echo done >go' >/dev/null 2>&1 &)",
    )
    os.kill(hf.host_pid, signal.SIGKILL)
    with open(f"{where}/go", "w") as go:
        go.write("now\n")
    with open(f"{where}/go") as go:
        assert go.read() == "done\n"
    assert actors(hf, "crash", f"{where}/kept") == ["ann"]
    assert actors(hf, "crash", f"{where}/later") == ["unknown"] and actors(
        hf, "crash", f"{where}/new"
    ) == ["unknown"]
    assert hf.cli("graph", "crash", "--wrote", f"{where}/new").rc == 5
    run(hf, "crash", "bob", "echo z > new")
    assert actors(hf, "crash", f"{where}/new") == ["bob"]
    hf.end("crash")


@told
def test_p3_inside_a_contained_session(hf: Installation) -> None:
    made = hf.cli("new", "box", "--contained")
    if made.rc:
        pytest.skip(f"no contained session here: {made.err}")
    where = run(
        hf, "box", "ann", "mkdir -p box && cd box && echo x > file && ln -s $PWD/file link && pwd"
    ).strip()
    assert actors(hf, "box", f"{where}/file") == ["ann"] and actors(hf, "box", f"{where}/link") == [
        "ann"
    ]
    run(hf, "box", "bob", "echo y > /dev/shm/own")
    assert not os.path.exists("/dev/shm/own") and actors(hf, "box", "/dev/shm/own") == ["bob"], (
        "a file system that only this session has"
    )
    hf.end("box")


@told
def test_p3_the_author_of_a_timer_is_known_and_its_later_writes_are_unknown(
    hf: Installation,
) -> None:
    hf.new("cron")
    name = f"/etc/cron.d/holdfast-test-{os.getpid()}"
    if not os.path.isdir("/etc/cron.d"):
        pytest.skip("no cron here")
    try:
        run(hf, "cron", "ann", f"echo '# nothing' > {name}")
        found = json.loads(hf.ok("graph", "cron", "--json").out)["timers"]
        assert [(one["name"], one["actor"]) for one in found if one["name"] == name] == [
            (name, "ann")
        ]
        assert name in hf.ok("graph", "cron").out
    finally:
        Path(name).unlink(missing_ok=True)
    hf.end("cron")


@told
def test_p3_the_writes_of_a_background_loop_name_its_starter(hf: Installation) -> None:
    hf.new("loop")
    where = run(
        hf,
        "loop",
        "ann",
        "mkdir -p loop && cd loop && mkfifo tick && (while read x <tick; do echo $x > out; "
        "echo ok >tick; done >/dev/null 2>&1 &) ; pwd",
    ).strip()
    run(hf, "loop", "bob", "echo mine > out")
    assert actors(hf, "loop", f"{where}/out") == ["bob"]
    run(hf, "loop", "bob", "echo evil >tick; read x <tick")
    assert actors(hf, "loop", f"{where}/out") == ["ann"]
    hf.end("loop")


@told
def test_p3_a_file_of_a_program_names_its_typist_and_its_starter(
    hf: Installation,
) -> None:
    hf.new("inner")
    where = run(hf, "inner", "ann", "mkdir -p inner && cd inner && pwd").strip()
    hf.ok("send", "inner", "bash --norc", "--enter", "--as", "ann")
    eventually(lambda: "bash-" in hf.screen("inner"), "a shell in the shell")
    hf.ok("turn", "inner", "release", "--as", "ann")
    hf.ok("send", "inner", "echo x > nested", "--enter", "--as", "bob")
    eventually(lambda: os.path.exists(f"{where}/nested"), "its output file")
    assert actors(hf, "inner", f"{where}/nested") == ["bob", "ann"]
    hf.ok("send", "inner", "exit", "--enter", "--as", "bob")
    eventually(
        lambda: len(json.loads(hf.ok("graph", "inner", "--json").out)["processes"]) == 1,
        "the end of the shell in the shell",
    )
    hf.wait("inner", "idle")
    hf.ok("turn", "inner", "release", "--as", "bob")
    hf.ok("send", "inner", "cat > typed", "--enter", "--as", "ann")
    eventually(lambda: os.path.exists(f"{where}/typed"), "the program")
    hf.ok("turn", "inner", "release", "--as", "ann")
    hf.ok("send", "inner", "the text", "--enter", "--as", "bob")
    eventually(lambda: os.path.getsize(f"{where}/typed"), "the text")
    assert actors(hf, "inner", f"{where}/typed") == ["ann", "bob"]
    hf.end("inner")


@told
@pytest.mark.skipif(shutil.which("vim") is None, reason="needs vim")
def test_p3_the_author_of_a_saved_file_is_the_operator_at_the_editor(hf: Installation) -> None:
    hf.new("vim")
    where = run(hf, "vim", "ann", "mkdir -p vim && cd vim && echo old > Makefile && pwd").strip()
    hf.ok("send", "vim", "vim -u NONE -n Makefile", "--enter", "--as", "ann")
    eventually(lambda: "old" in hf.screen("vim") and "~" in hf.screen("vim"), "the editor")
    hf.ok("turn", "vim", "release", "--as", "ann")
    hf.ok("send", "vim", "Oall:", "--as", "bob")
    hf.ok("send", "vim", "--key", "escape", "--as", "bob")
    hf.ok("send", "vim", ":w", "--enter", "--as", "bob")
    eventually(lambda: "all:" in Path(where, "Makefile").read_text(), "the saved file")
    assert actors(hf, "vim", f"{where}/Makefile") == ["bob", "ann"], (
        "the starter of the editor is named, too"
    )
    hf.end("vim")
