"""An agent's code exchanges a text between its approval and the shell that runs it (P4).

The attacker is a program of the session. It stops the shell, waits until the host has written the
approved text, tries to put another text in its place, and lets the shell go on.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, free, waiting
from tests.support.exec_gate.approval_lab import POLICY, Lab
from tests.support.exec_gate.gated_session import obey
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.ordinary_user import cases, passes_as_ordinary_user

ATTACK = """
import ctypes, json, os, signal, sys

way, run, shell, place = sys.argv[1], open("named").read().strip(), os.getppid(), os.getcwd()
folder, other = os.path.dirname(run), f"{place}/other"
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def write(path):
    with open(path, "r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace("scratch", "victim "))


def beside():
    with open(other, "w") as file:
        file.write(open(run).read().replace("scratch", "victim"))
    return other


def other_folder():
    os.makedirs(f"{place}/folder", exist_ok=True)
    os.replace(beside(), f"{place}/folder/run")
    return f"{place}/folder"


def rename_folder():
    fresh = other_folder()
    os.rename(folder, f"{folder}.old")
    os.rename(fresh, folder)


def link():
    os.symlink(beside(), f"{run}.link")
    os.replace(f"{run}.link", run)


def hard_link():
    os.link(run, f"{place}/linked")
    write(f"{place}/linked")


def mount():
    call("unshare", 0x10000000 | 0x20000)  # user and mount namespace
    call("mount", other_folder().encode(), folder.encode(), None, 4096, None)
    raise OSError(0, "mounted, but only here")


def remount():
    call("mount", None, folder.encode(), None, 4096 | 32, None)
    write(run)


def unmount():
    call("umount2", folder.encode(), 2)
    rename_folder()


WAYS = {
    "write": lambda: write(run),
    "replace": lambda: os.replace(beside(), run),
    "remove": lambda: (os.unlink(run), os.rename(beside(), run)),
    "link": link,
    "hard_link": hard_link,
    "rename_folder": rename_folder,
    "rename_above": lambda: os.rename(os.path.dirname(folder), f"{place}/above"),
    "name_of_root": lambda: write(f"/proc/{shell}/root{run}"),
    "name_of_directory": lambda: write(f"/proc/{shell}/cwd/{os.path.relpath(run, place)}"),
    "chmod": lambda: (os.chmod(run, 0o666), write(run)),
    "mount": mount,
    "remount": remount,
    "unmount": unmount,
}

print("ready", flush=True)
open(f"{place}/go").close()  # a pipe
os.kill(shell, signal.SIGSTOP)
open(f"{place}/stopped", "w").close()
try:
    while not os.path.exists(run) or "scratch" not in open(run).read():
        os.sched_yield()
    try:
        WAYS[way]()
        said = "done"
    except OSError as e:
        said = f"{type(e).__name__}: {e}"
finally:
    os.kill(shell, signal.SIGCONT)
with open(f"{place}/said.new", "w") as file:
    json.dump(said, file)
os.rename(f"{place}/said.new", f"{place}/said")
"""

WAYS = (
    *("write", "replace", "remove", "link", "hard_link", "rename_folder", "rename_above"),
    *("name_of_root", "name_of_directory", "chmod", "mount", "remount", "unmount"),
)

pytestmark = pytest.mark.skipif(
    find_shfmt() is None, reason="without the shell's grammar every text is asked about"
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        obey(made, POLICY)
        made.people("ann")
        made.people("bot", rights="execute,observe", kind="agent")
        yield made


@pytest.fixture(scope="module", params=cases(["bash", "zsh", "dash"], again=["bash"]))
def lab(house: Installation, request: pytest.FixtureRequest) -> Lab:
    return Lab(house, request.param)


@pytest.fixture(autouse=True)
def clean(lab: Lab) -> None:
    lab.clean()


@pytest.mark.parametrize("way", WAYS)
def test_p4_an_approved_text_cannot_be_exchanged(lab: Lab, way: str) -> None:
    attack = lab.place / "attack.py"
    attack.write_text(ATTACK)
    os.mkfifo(lab.place / "go")
    lab.done("echo $_hf >named")
    lab.done(f"python3 {attack} {way} >ready 2>errors & true")
    eventually(lambda: (lab.place / "ready").read_text(), "the attacker")
    held = lab.run("rm -r scratch")
    question = lab.question()
    assert question["text"] == "rm -r scratch" and question["caution"] is None
    (lab.place / "go").write_bytes(b"")
    eventually((lab.place / "stopped").exists, "the stopped shell")
    approve(lab.hf, question)
    out, err = held.communicate(timeout=DEADLINE_S)
    said = eventually(
        lambda: (lab.place / "said").exists() and json.loads((lab.place / "said").read_text()),
        "the end of the attack",
    )
    assert lab.left() == ["victim"], (said, out, err, (lab.place / "errors").read_text())
    assert said != "done", "code inside changed the text"


def test_p4_the_text_of_a_person_is_not_that_of_a_held_act(lab: Lab) -> None:
    """While an agent's act waits, a person runs another text. Its file holds that text alone."""
    held = lab.run("rm -r victim")
    question = lab.question()
    hf = lab.hf
    free(hf, lab.name)
    assert hf.ok("--as", "ann", "run", lab.name, "--", "echo hello").out == "hello\n"
    assert lab.left() == ["scratch", "victim"]
    approve(hf, question, "deny")
    held.communicate(timeout=DEADLINE_S)
    assert lab.left() == ["scratch", "victim"]


# ------------------------------------------------- another program than the approved text names


def denied(lab: Lab, held: subprocess.Popen[bytes]) -> str:
    """Approve the text; the text of the exec that is asked about next, which is denied."""
    question = lab.question()
    assert question["act"] == "run" and question["text"] == "rm -r scratch"
    approve(lab.hf, question)

    def more() -> dict[str, Any] | None:
        return next((q for q in waiting(lab.hf) if q["act"] == "exec"), None)

    second = eventually(more, "a question about the other program")
    assert second["operator"] == "bot" and "victim" in lab.left()
    approve(lab.hf, second, "deny")
    held.communicate(timeout=DEADLINE_S)
    text: str = second["text"]
    return text


@pytest.mark.parametrize("hook", ["_hf_end", "_hf_begin"])
def test_p4_a_hook_that_the_agent_replaced_runs_no_other_program(lab: Lab, hook: str) -> None:
    """Code in the shell itself can replace the hooks of a run, so the exec gate is the wall."""
    if lab.name != "lab-bash":
        pytest.skip("only bash ends a run whose replaced hook could not start its program")
    listing = "declare -f"
    for name, text in (
        ("evil.sh", ""),
        ("on.sh", f'eval "kept$({listing} {hook})"; {hook}() {{ . ./evil.sh; kept{hook} "$@"; }}'),
        ("off.sh", f'eval "$({listing} kept{hook} | sed s/kept_/_/)"'),
    ):
        (lab.place / name).write_text(f"{text}\n")
    lab.done(". ./on.sh")
    (lab.place / "evil.sh").write_text("rm -r victim\n")
    held = lab.run("rm -r scratch")
    assert denied(lab, held).endswith("rm -r victim")
    assert "victim" in lab.left()
    (lab.place / "evil.sh").write_text("")
    lab.done(". ./off.sh")


def test_p4_another_program_of_the_name_is_asked_about(lab: Lab) -> None:
    """PATH leads the approved name to a program of the agent."""
    tools = lab.place / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "rm").write_text("#!/bin/sh\n/usr/bin/rm -r victim\n")
    (tools / "rm").chmod(0o755)
    (lab.place / "on.sh").write_text(f"PATH={tools}:$PATH; hash -r\n")
    (lab.place / "off.sh").write_text(f"PATH=${{PATH#{tools}:}}; hash -r\n")
    lab.done(". ./on.sh")
    try:
        held = lab.run("rm -r scratch")
        assert "victim" in denied(lab, held)
        assert "victim" in lab.left()
    finally:
        lab.done(". ./off.sh")


OTHER_WORDS = {
    "many open words": (
        "rm -f scratch $a $b $c $d $e $f $g $h $i $j z",
        "scratch" + " victim" * 150,
    ),
    "a pattern": ("rm -r *.log", "{place}/victim"),
    "a pattern with a beginning": ("rm -r {place}/scr*", "{place}/scratch/../victim"),
    "an open end": ('rm -r "{place}/scratch/$n"', "{place}/scratch/../victim"),
}


@pytest.mark.parametrize("way", OTHER_WORDS)
def test_p4_other_words_than_the_approved_are_asked_about(lab: Lab, way: str) -> None:
    """A function puts other words in place of those that the text leaves open."""
    text, line = (each.format(place=lab.place) for each in OTHER_WORDS[way])
    (lab.place / "a.log").touch()  # zsh runs no command whose pattern names no file
    (lab.place / "on.sh").write_text(f'rm() {{ command rm "$1" {line}; }}\n')
    lab.done(". ./on.sh")
    try:
        held = lab.approved(text)
        question = lab.exec_question()
        assert line in question["text"], "the host still answers, and asks"
        approve(lab.hf, question, "deny")
        held.communicate(timeout=DEADLINE_S)
        assert "victim" in lab.left()
    finally:
        lab.done("unset -f rm")


def test_p4_the_expansion_of_an_approved_pattern_runs(lab: Lab) -> None:
    for name in ("a.log", "b.log"):
        (lab.place / name).touch()
    held = lab.approved("rm -r *.log scr*")
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and lab.left() == ["victim"], (out, err)
    assert not list(lab.place.glob("*.log"))


def test_p4_a_program_that_the_approved_one_starts_is_not_asked_about(lab: Lab) -> None:
    held = lab.run("find scratch -name file -exec rm {} +; rm -r scratch")
    approve(lab.hf, lab.question())
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and lab.left() == ["victim"], (out, err)


def test_p4_the_variable_that_names_the_text_is_read_only(lab: Lab) -> None:
    if lab.name == "lab-zsh":
        pytest.skip("zsh can make it writable again: the exec gate is the wall")
    before = lab.done("echo $_hf")
    lab.hf.cli("--as", "bot", "run", lab.name, "--", "_hf=/tmp/other")
    lab.hf.cli("--as", "bot", "run", lab.name, "--", "unset _hf")
    assert lab.done("echo $_hf") == before


def test_as_an_ordinary_user(lab: Lab) -> None:
    if lab.name != "lab-bash":
        pytest.skip("once is enough")
    passes_as_ordinary_user(__file__)
