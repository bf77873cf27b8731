"""Confused deputies (P3): one operator shapes the shell, another runs into the shaped state.

The record names both, the gate is told before, and a policy can refuse.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.kernel import silent_about_files, silent_about_processes

POLICY = """
version = 1
extends = "default"
[[rule]]
name = "nothing of eve's"
verdict = "refuse"
because = "eve made it so"
who = { operators = ["carl"] }
when = { shaped_by = ["eve"] }
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("eve", "bob", "carl")
        made.people("bot", rights="execute,observe,input", kind="agent")
        (made.user / "evil").mkdir()
        program = made.user / "evil" / "hello"
        program.write_text("#!/bin/sh\necho evil\n")
        program.chmod(0o755)
        (made.home / "policy.toml").write_text(POLICY)
        yield made


def free(hf: Installation, session: str) -> None:
    holder = hf.get(session)["turn"]
    if holder is not None:
        hf.ok("--as", holder["holder"], "turn", session, "release")


def run(hf: Installation, session: str, who: str, text: str) -> str:
    free(hf, session)
    return hf.ok("--as", who, "run", session, "--", text).out


def last(hf: Installation, session: str, who: str, text: str | None = None) -> dict[str, Any]:
    """The record of the operator's last intent."""
    found: dict[str, Any] = [
        e
        for e in hf.ok("log", session, "--json").records
        if e["actor"] == who and e["phase"] == "intent" and (text is None or e["content"] == text)
    ][-1]
    return found


CASES = {
    "alias": ("alias ls='echo evil'", "ls", ("alias", "ls")),
    "function": ("ls() { echo evil; }", "ls", ("function", "ls")),
    "path": ("PATH=$PWD/evil:$PATH", "hello", ("path", "{user}/evil")),
    "preload": ("export LD_PRELOAD=/nonexistent.so", "true; env true", ("preload", "LD_PRELOAD")),
    "hook": ("PROMPT_COMMAND=true", "true", ("hook", "PROMPT_COMMAND")),
    "variable": ("export TARGET=/evil", "env true", ("variable", "TARGET")),
    "named": ("target=/evil", "echo $target", ("variable", "target")),
    "trap": ("trap 'true evil' DEBUG", "true", ("trap", "DEBUG")),
    "option": ("set -o noglob", "true", ("option", "noglob")),
    "cwd": ("cd evil", "true", ("cwd", "{user}/evil")),
}


@pytest.mark.parametrize("case", CASES)
def test_p3_an_act_on_the_state_of_another_operator_names_both(
    house: Installation, case: str
) -> None:
    staged, text, (kind, name) = CASES[case]
    name = name.replace("{user}", str(house.user))
    house.new(case, "--cwd", str(house.user), "--", "bash")
    run(house, case, "bob", "true")
    assert last(house, case, "bob")["originators"] == []
    run(house, case, "eve", staged)
    run(house, case, "bob", text)
    entry = last(house, case, "bob", text)
    assert entry["originators"] == ["eve"], entry
    assert [(s["kind"], s["name"], s["actor"]) for s in entry["facts"]["shaped"]] == [
        (kind, name, "eve")
    ], entry
    assert (
        entry["facts"]["shaped"][0]["act"] is not None
        and last(house, case, "eve")["originators"] == []
    )
    free(house, case)
    refused = house.cli(
        "--as", "carl", "run", case, "--", text
    )  # the gate is told before any effect, and a rule can refuse
    assert refused.rc != 0 and "eve made it so" in refused.err, refused
    assert "eve's" in house.ok("log", case).out
    verified = json.loads(house.ok("log", "verify", case, "--json").out)
    assert verified["ok"] is True, verified
    house.end(case)


@pytest.mark.parametrize("case", ["alias", "function", "path", "variable", "cwd", "hook"])
def test_p3_zsh_reports_the_same_state(house: Installation, case: str) -> None:
    staged, text, (kind, name) = CASES[case]
    if case == "hook":
        staged, name = "precmd() { true; }", "precmd"
    name = name.replace("{user}", str(house.user))
    house.new("z" + case, "--cwd", str(house.user), "--", "zsh")
    run(house, "z" + case, "bob", "true")
    assert last(house, "z" + case, "bob")["originators"] == []
    run(house, "z" + case, "eve", staged)
    run(house, "z" + case, "bob", text)
    entry = last(house, "z" + case, "bob", text)
    assert entry["originators"] == ["eve"] and (kind, name, "eve") in [
        (s["kind"], s["name"], s["actor"]) for s in entry["facts"]["shaped"]
    ], entry
    house.end("z" + case)


def test_p3_a_posix_shell_reports_part_of_its_state_and_the_rest_is_unknown(
    house: Installation,
) -> None:
    """dash cannot list functions, so every command has unknown state; a prompt has none."""
    house.new("dash", "--", "dash")
    run(house, "dash", "eve", "alias ls='echo evil'")
    run(house, "dash", "bob", "ls")
    entry = last(house, "dash", "bob")
    assert entry["originators"] == ["eve", "unknown"] and ("alias", "ls", "eve") in [
        (s["kind"], s["name"], s["actor"]) for s in entry["facts"]["shaped"]
    ], entry
    free(house, "dash")
    house.ok("--as", "eve", "send", "dash", "alias pwd='echo evil'; echo d''one", "--enter")
    eventually(lambda: "\ndone" in house.screen("dash"), "the typed line")
    run(house, "dash", "bob", "pwd")
    assert "the state that the shell reported could not be read" in [
        s["name"] for s in last(house, "dash", "bob")["facts"]["shaped"] if s["actor"] == "unknown"
    ]
    house.end("dash")


def test_p3_a_directory_that_cannot_be_written_is_unknown_and_never_stale(
    house: Installation,
) -> None:
    """State that the shell cannot report is not taken from an earlier report."""
    house.new("full", "--", "bash")
    run(house, "full", "bob", "true")
    for slot in house.home.glob(f"run/s/{house.get('full')['id']}/shape.*"):
        slot.unlink()
        slot.mkdir()
    run(house, "full", "eve", "alias ls='echo evil'")
    run(house, "full", "bob", "ls")
    assert last(house, "full", "bob")["originators"] == ["unknown"]
    house.end("full")


def test_p3_a_line_completed_by_another_operator_names_its_beginner(house: Installation) -> None:
    house.new("half", "--", "bash")
    run(house, "half", "bob", "true")
    free(house, "half")
    house.ok("--as", "eve", "send", "half", "echo one")
    house.wait("half", "text:echo one")
    house.ok("--as", "bob", "seize", "half")
    house.ok("--as", "bob", "send", "half", " two", "--enter")
    entry = last(house, "half", "bob")
    assert "eve" in entry["originators"], entry
    assert ("line", "eve") in [(s["kind"], s["actor"]) for s in entry["facts"]["shaped"]], entry
    house.end("half")


def test_p3_after_a_host_kill_the_authors_are_still_known_or_unknown(
    house: Installation,
) -> None:
    house.new("kill", "--cwd", str(house.user), "--", "bash")
    run(house, "kill", "bob", "true")
    run(house, "kill", "eve", "alias ls='echo evil'")
    os.kill(house.host_pid, signal.SIGKILL)
    run(house, "kill", "bob", "ls")
    entry = last(house, "kill", "bob", "ls")
    assert entry["originators"] and set(entry["originators"]) <= {"eve", "unknown"}, entry
    house.end("kill")


def test_p3_the_host_dies_while_it_is_shaped_and_never_only_the_trigger_is_named(
    house: Installation,
) -> None:
    house.new("mid", "--cwd", str(house.user), "--", "bash")
    run(house, "mid", "bob", "true")
    gate = house.gate("mid")
    free(house, "mid")
    staging = house.start("--as", "eve", "run", "mid", "--", f"cat {gate}; alias ls='echo evil'")
    eventually(
        lambda: house.get("mid")["state"] and any("cat" in p for p in house.processes().values()),
        "the run",
    )
    os.kill(house.host_pid, signal.SIGKILL)
    house.ls()
    gate.open()
    staging.communicate(timeout=DEADLINE_S)
    run(house, "mid", "bob", "ls")
    entry = last(house, "mid", "bob", "ls")
    assert entry["originators"] and set(entry["originators"]) <= {"eve", "unknown"}, entry
    house.end("mid")


def test_p3_stored_authors_are_known_to_the_next_host(house: Installation) -> None:
    house.new("next", "--cwd", str(house.user), "--", "bash")
    run(house, "next", "bob", "true")
    run(
        house, "next", "eve", "alias ls='echo s3cret'; export PASSWORD=s3cret; f() { echo s3cret; }"
    )
    directory = house.home / "run" / "s" / house.get("next")["id"]
    written = house.home / "run" / "memory" / directory.name / "shaping"
    eventually(
        lambda: (
            written.exists()
            and '"alias", "ls"' in written.read_text()
            and not any(f.stat().st_size for f in directory.glob("shape.*"))
        ),
        "it to be written down",
    )
    assert "s3cret" not in written.read_text()
    os.kill(house.host_pid, signal.SIGKILL)
    run(house, "next", "bob", "ls")
    assert last(house, "next", "bob", "ls")["originators"] == ["eve"]
    house.end("next")


def test_a6_a_new_holder_is_shown_the_changes_to_the_shell(house: Installation) -> None:
    house.new("over", "--cwd", str(house.user), "--", "bash")
    run(house, "over", "bob", "true")
    run(house, "over", "eve", "alias ls='echo evil'; cd evil; PATH=$PWD:$PATH")
    free(house, "over")
    told = json.loads(house.ok("--as", "bob", "run", "over", "--json", "--", "ls").out)["shaped"]
    assert ("alias", "ls", "eve") in [(one["kind"], one["name"], one["actor"]) for one in told]
    said = house.ok("--as", "bob", "seize", "over").out
    assert (
        "changed: eve's alias ls" in said
        and "changed: eve's change of directory" in said
        and "of PATH" in said
    ), said
    house.end("over")


def test_p4_an_agent_is_asked_about_foreign_state_and_shown_it(
    house: Installation,
) -> None:
    house.new("ask", "--contained", "--cwd", str(house.user), "--", "bash")
    assert run(house, "ask", "bot", "echo fine") == "fine\n"
    run(house, "ask", "eve", "hello-nobody() { echo evil; }")
    free(house, "ask")
    held = house.start("--as", "bot", "run", "ask", "--", "hello-nobody")
    [question] = eventually(
        lambda: json.loads(house.ok("--as", "bob", "approvals", "--json").out), "the question"
    )
    assert question["shaped"] == ["eve's function hello-nobody"], question
    assert "runs on eve's function hello-nobody\n" in house.ok("--as", "bob", "approvals").out
    run_by_eve = house.cli(
        "--as", "eve", "run", "ask", "--", "unset -f hello-nobody; hello-nobody() { echo worse; }"
    )
    assert run_by_eve.rc == 0
    house.ok("--as", "bob", "approve", question["id"], "--yes", "--binding", question["binding"])
    _, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode != 0 and b"changed since it was asked" in err, err
    house.end("ask")


def test_p3_a_line_typed_by_hand_names_the_authors_of_the_state_it_uses(
    house: Installation,
) -> None:
    house.new("hand", "--cwd", str(house.user), "--", "bash")
    run(house, "hand", "bob", "true")
    run(house, "hand", "eve", "alias ls='echo evil'")
    free(house, "hand")
    terminal = house.attach("hand", "--as", "bob")
    terminal.see("run> alias")
    terminal.send("ls\r")
    terminal.see("evil")
    entry = eventually(
        lambda: [e for e in house.ok("log", "hand", "--json").records if e["kind"] == "entered"],
        "the entry",
    )[-1]
    assert (
        entry["actor"] == "bob" and entry["originators"] == ["eve"] and entry["content"] is None
    ), entry["facts"]
    terminal.leave()
    house.end("hand")


@pytest.mark.skipif(
    bool(silent_about_files()), reason="the kernel does not report file writers to this user"
)
@pytest.mark.parametrize("end", ["\r", "\n", "\rtrue"])
def test_p3_a_line_typed_by_hand_names_the_writer_of_the_file_it_runs(
    house: Installation, end: str
) -> None:
    """With any way to enter the line, and though the shell itself has no foreign state."""
    house.new("file", "--cwd", str(house.user), "--", "bash")
    run(house, "file", "eve", "echo 'echo wri''tten' > typed.sh")
    free(house, "file")
    terminal = house.attach("file", "--as", "bob")
    terminal.see("typed.sh")
    terminal.send(f"sh typed.sh{end}")
    terminal.see("written")
    entry = eventually(
        lambda: [e for e in house.ok("log", "file", "--json").records if e["kind"] == "entered"],
        "the entry",
    )[-1]
    assert entry["actor"] == "bob" and "eve" in entry["originators"] and entry["content"] is None, (
        entry["facts"]
    )
    terminal.leave()
    house.end("file")


def test_p5_a_process_has_the_originators_of_its_act(house: Installation) -> None:
    house.new("proc", "--cwd", str(house.user), "--", "bash")
    run(house, "proc", "bob", "true")
    run(house, "proc", "eve", "alias serve='sleep 1021'")
    run(house, "proc", "bob", "serve & sleep 1022 &")
    run(house, "proc", "bob", "sleep 1023 &")

    def found() -> dict[str, list[str]] | None:
        seen = {
            " ".join(p["argv"]): p["originators"]
            for p in json.loads(house.ok("graph", "proc", "--json").out)["processes"]
        }
        return (
            {name: seen[name] for name in ("sleep 1021", "sleep 1023")}
            if {"sleep 1021", "sleep 1023"} <= seen.keys()
            else None
        )

    known = eventually(found, "both")
    assert known is not None and (
        known == {"sleep 1021": ["eve"], "sleep 1023": []} or silent_about_processes()
    )
    house.end("proc")


def test_p4_an_agent_is_not_asked_about_state_it_does_not_use(house: Installation) -> None:
    house.new("calm", "--contained", "--cwd", str(house.user), "--", "bash")
    run(house, "calm", "eve", "alias other='echo evil'; other2() { echo evil; }")
    assert run(house, "calm", "bot", "y=1; echo $y") == "1\n"
    assert run(house, "calm", "bot", "true && echo $y") == "1\n"
    assert [
        e["originators"]
        for e in house.ok("log", "calm", "--json").records
        if e["actor"] == "bot" and e["phase"] == "intent" and e["kind"] == "command"
    ] == [[], []]
    house.end("calm")


def test_p3_a_variable_that_the_maker_set_is_the_makers(house: Installation) -> None:
    house.ok("--as", "eve", "new", "made", "--no-attach", "--env", "TARGET=/evil", "--", "bash")
    run(house, "made", "bob", "env true")
    entry = last(house, "made", "bob")
    assert [(s["kind"], s["name"], s["actor"]) for s in entry["facts"]["shaped"]] == [
        ("variable", "TARGET", "eve")
    ], entry
    house.end("made")


def forged(hf: Installation, name: str, layout: str, code: str) -> None:
    """A session in which a program of eve attacks the files by which the shell reports its state.

    The program has been through all of them.
    """
    hf.new(name, layout, "--cwd", str(hf.user), "--", "bash")
    run(hf, name, "bob", "true")
    (hf.user / "forge.py").write_text(code)
    (hf.user / "forging").unlink(missing_ok=True)
    run(hf, name, "eve", '/usr/bin/python3 forge.py "${_hfs[dir]}" & echo $!')
    eventually((hf.user / "forging").exists, "the forger to have been through all of them")


FORGER = """
import glob, mmap, os, sys
maps = {}
while True:
    for path in glob.glob(sys.argv[1] + "/shape.[0-7]"):
        try:
            with open(path, "r+b") as file:
                data = file.read()
                if b"alias ls=" in data:
                    file.seek(0)
                    file.write(data.replace(b"alias ls=", b"alias lx="))
                if path not in maps and data:
                    maps[path] = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError):
            pass
    if not os.path.exists("forging"):
        open("forging", "w").close()
"""


def test_p3_internal_state_of_zsh_has_no_author(house: Installation) -> None:
    house.new("views", "--cwd", str(house.user), "--", "zsh")
    run(house, "views", "bob", "true")
    run(
        house,
        "views",
        "eve",
        "echo ${#functions} ${#galiases} ${#saliases} ${#commands} ${#history} ${#jobstates} "
        "${#dirstack} ${#modules} ${#parameters} >/dev/null",
    )
    run(house, "views", "bob", "env true")
    assert last(house, "views", "bob", "env true")["originators"] == [], last(
        house, "views", "bob", "env true"
    )["facts"]
    assert "changed" not in house.ok("--as", "bob", "seize", "views").out
    house.end("views")


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root is told of opened files: docs/reference/originators.md"
)
@pytest.mark.parametrize("layout", ["--plain", "--contained"])
def test_p3_a_background_program_cannot_report_in_the_shells_name(
    house: Installation, layout: str
) -> None:
    name = f"forged{layout[2:]}"
    forged(house, name, layout, FORGER)
    run(house, name, "eve", "alias ls='echo evil'")
    run(house, name, "bob", "ls")
    entry = last(house, name, "bob", "ls")
    assert "unknown" in entry["originators"] or "eve" in entry["originators"], entry

    def doubted() -> list[dict[str, Any]]:
        return [
            e
            for e in house.ok("events", name, "--json").records
            if e["event"] == "originators.doubted"
        ]

    eventually(doubted, "it to be told")
    [forger] = [
        p
        for p in json.loads(house.ok("graph", name, "--json").out)["processes"]
        if "forge.py" in p["argv"]
    ]
    assert {(e["operator"], e["pid"]) for e in doubted()} == {("eve", forger["pid"])}, doubted()
    run(house, name, "bob", "kill %1")
    eventually(
        lambda: (
            run(house, name, "bob", "pwd") and last(house, name, "bob", "pwd")["originators"] == []
        ),
        "the shell to be believed again",
    )
    run(house, name, "bob", "ls")
    assert "eve" in last(house, name, "bob", "ls")["originators"], (
        "nothing that happened meanwhile was lost"
    )
    house.end(name)


UNASKED = """
import os, sys
while True:
    try:
        os.unlink(sys.argv[1] + "/bodies")
    except OSError:
        pass
    if not os.path.exists("forging"):
        open("forging", "w").close()
"""
HELD = """
import mmap, os, signal, sys, time
host, maps = int(sys.argv[2]), []
os.kill(host, signal.SIGKILL)
for n in range(8):
    path = f"{sys.argv[1]}/shape.{n}"
    with open(path, "r+b") as file:
        file.truncate(65536) if not os.path.getsize(path) else None
        maps.append(mmap.mmap(file.fileno(), os.path.getsize(path)))
open("forging", "w").close()
while True:
    for each in maps:
        at = each.find(b"alias ls=")
        if at >= 0:
            each[at:at + 9] = b"alias lx="
"""


@pytest.mark.parametrize("layout", ["--plain", "--contained"])
def test_p3_a_program_that_keeps_functions_from_being_listed_hides_none(
    house: Installation, layout: str
) -> None:
    name = f"unasked{layout[2:]}"
    forged(house, name, layout, UNASKED)
    run(house, name, "eve", "id() { echo evil; }")
    for _ in range(3):
        run(house, name, "bob", "id")
        entry = last(house, name, "bob", "id")
        assert "unknown" in entry["originators"] or "eve" in entry["originators"], entry
    run(house, name, "bob", "kill %1; unset -f nothing")
    eventually(
        lambda: (
            run(house, name, "bob", "id") and "eve" in last(house, name, "bob", "id")["originators"]
        ),
        "it to be known again",
    )
    house.end(name)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root is told of opened files: docs/reference/originators.md"
)
def test_p3_a_program_that_maps_the_files_while_there_is_no_host_is_not_believed_after(
    house: Installation,
) -> None:
    house.new("held", "--plain", "--cwd", str(house.user), "--", "bash")
    run(house, "held", "bob", "true")
    eventually(
        (house.home / "run" / "memory" / house.get("held")["id"] / "shaping").exists,
        "it to be written down",
    )
    (house.user / "forge.py").write_text(HELD)
    (house.user / "forging").unlink(missing_ok=True)
    free(house, "held")
    starting = house.start(
        "--as",
        "eve",
        "run",
        "held",
        "--",
        f'until [ -e go ]; do :; done; /usr/bin/python3 forge.py "${{_hfs[dir]}}" {house.host_pid} '
        "& echo $!",
    )
    (house.user / "go").touch()
    starting.communicate(timeout=DEADLINE_S)
    eventually((house.user / "forging").exists, "the forger to have them")
    run(house, "held", "eve", "alias ls='echo evil'")
    run(house, "held", "bob", "ls")
    entry = last(house, "held", "bob", "ls")
    assert "unknown" in entry["originators"] or "eve" in entry["originators"], entry
    eventually(
        lambda: [
            e
            for e in house.ok("events", "held", "--json").records
            if e["event"] == "originators.doubted"
        ],
        "it to be told",
    )
    run(house, "held", "bob", "kill %1")
    eventually(
        lambda: (
            run(house, "held", "bob", "ls")
            and "eve" in last(house, "held", "bob", "ls")["originators"]
        ),
        "it to be known again",
    )
    (house.user / "go").unlink()
    house.end("held")


def test_p3_programs_of_a_contained_session_cannot_forge_files_for_the_next_host(
    house: Installation,
) -> None:
    """Nor does the host write where they say: it follows no link in the session's directory."""
    house.new("apart", "--contained", "--cwd", str(house.user), "--", "bash")
    own, victim = house.home / "run" / "s" / house.get("apart")["id"], house.home / "victim"
    victim.write_text("whole")
    run(house, "apart", "bob", "true")
    run(house, "apart", "eve", "alias ls='echo evil'")

    def known() -> bool:
        return any(
            '"alias", "ls"' in file.read_text()
            for file in house.home.glob(f"run/*/{own.name}/shaping")
        )

    eventually(known, "it to be written down")
    run(
        house,
        "apart",
        "eve",
        f"cd {own}; sed -i s/eve/bob/g shaping lineage; for f in begun shaping.new lineage.new; "
        f"do ln -sfn {victim} $f; done; mkfifo shaping lineage; cd {house.user}; true",
    )
    free(house, "apart")
    house.ok("--as", "bob", "send", "apart", "echo d''one")
    house.ok("--as", "bob", "send", "apart", "", "--enter")
    eventually(lambda: "\ndone" in house.screen("apart"), "the typed line")
    free(house, "apart")
    assert victim.read_text() == "whole"
    os.kill(house.host_pid, signal.SIGKILL)
    run(house, "apart", "bob", "ls")
    assert "eve" in last(house, "apart", "bob", "ls")["originators"], last(
        house, "apart", "bob", "ls"
    )
    house.end("apart")
    eventually(lambda: not list(house.home.glob(f"run/*/{own.name}")), "nothing of it to be left")
