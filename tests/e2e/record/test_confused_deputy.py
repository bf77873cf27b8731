"""The confused deputy in real sessions with two operators: eve stages, bob triggers (P3, P4).

For each trap: a policy is asked before and can refuse, so that the trap has no effect. Without such
a policy the record of bob's act names eve, with the kind and the name of the state that she shaped.
State that bob staged himself names no other operator and is not refused. An agent is asked by the
built-in policy. At exec depth the same holds for programs that no operator typed.

Invisible state is tested as well: there the record says `unknown`, and never only bob.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.results import the_error
from tests.support.installation import Installation, eventually, installation
from tests.support.kernel import silent_about_files, silent_about_processes
from tests.support.ordinary_user import ordinary_user

DEFAULT = 'version = 1\nextends = "default"\n'
RULE = """[[rule]]
name = "nobody runs what eve left"
verdict = "refuse"
because = "eve left it there"
who = {{ operators = ["{who}"] }}
when = {{ {when} }}
"""
LIBRARY = """#include <fcntl.h>
__attribute__((constructor)) static void sprung(void) { open("sprung", O_CREAT | O_WRONLY, 0600); }
"""
SILENT = silent_about_files() or silent_about_processes()
pytestmark = pytest.mark.skipif(
    find_shfmt() is None,
    reason="without the shell's grammar nothing is known of a text, and everything is unknown",
)


@dataclass(frozen=True)
class Trap:
    """In a directory `{d}`: the staged state, the trigger, and kind and name of the state.

    Each leaves the file `sprung` behind when it runs.
    """

    stage: str
    trigger: str
    kind: str
    name: str
    before: str = ""  # made by bob before
    needs: str = ""  # a program that not every machine has


TRAPS = {
    "path": Trap(
        "mkdir bin; printf '#!/bin/sh\\ntouch {d}/sprung\\n' >bin/frobnicate; "
        "chmod +x bin/frobnicate; PATH={d}/bin:$PATH",
        "frobnicate",
        "path",
        "{d}/bin",
    ),
    "alias": Trap("alias deploy='touch {d}/sprung'", "deploy", "alias", "deploy"),
    "function": Trap("release() {{ touch {d}/sprung; }}", "release", "function", "release"),
    "preload": Trap(
        "export LD_PRELOAD={d}/evil.so", "/bin/true", "preload", "LD_PRELOAD", needs="cc"
    ),
    "hook": Trap("PROMPT_COMMAND+=('touch {d}/sprung')", "true", "hook", "PROMPT_COMMAND"),
    "trap": Trap("trap 'touch {d}/sprung' DEBUG", "true", "trap", "DEBUG"),
    "variable": Trap(
        "export BUILD_HOOK={d}/sprung",
        "sh ./build",
        "variable",
        "BUILD_HOOK",
        before="echo 'touch \"$BUILD_HOOK\"' >build",
    ),
    "cwd": Trap("mkdir deep; cd deep", "touch ../sprung", "cwd", "{d}/deep"),
    "directory before": Trap(
        "mkdir -p deep; cd deep; cd ..", "cd - && touch ../sprung", "variable", "OLDPWD"
    ),
    "script": Trap("echo 'touch {d}/sprung' >job.sh", "bash job.sh", "file", "{d}/job.sh"),
    "overwritten script": Trap(
        "echo 'touch {d}/sprung' >fresh; mv fresh tool.sh",
        "sh ./tool.sh",
        "file",
        "{d}/tool.sh",
        before="echo true >tool.sh",
    ),
    "appended script": Trap(
        "echo 'touch {d}/sprung' >>tool",
        "./tool",
        "file",
        "{d}/tool",
        before="printf '#!/bin/sh\\n' >tool; chmod +x tool",
    ),
    "git hook": Trap(
        "printf '#!/bin/sh\\ntouch {d}/sprung\\n' >.git/hooks/pre-commit; "
        "chmod +x .git/hooks/pre-commit",
        "git -c user.name=b -c user.email=b@b commit -q --allow-empty -m x",
        "file",
        "{d}/.git/hooks/pre-commit",
        before="git init -q --template= . && mkdir .git/hooks",
        needs="git",
    ),
    "makefile": Trap(
        "printf 'all:\\n\\ttouch {d}/sprung\\n' >Makefile",
        "make",
        "file",
        "{d}/Makefile",
        needs="make",
    ),
}
# The same for programs that bob did not type: how he starts them, and the state he made for that
WAYS = {
    "script": ("bash mine.sh", "echo ./tool >mine.sh"),
    "sh -c": ("sh -c ./tool", ""),
    "xargs": ("echo x | xargs ./tool", ""),
    "find": ("find . -maxdepth 1 -name 't*l' -exec {} ';'", ""),
    "computed": ("p=too; ./${p}l", ""),
    "double fork": ("(setsid -w sh -c './tool & wait')", ""),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.env["PYTHONPATH"] = os.environ.get(
            "PYTHONPATH", made.env["PYTHONPATH"]
        )  # as an ordinary user: where its libraries are
        made.people("eve", "bob")
        made.people("bot", rights="execute,observe,input", kind="agent")
        yield made


@pytest.fixture(autouse=True)
def built_in(house: Installation) -> None:
    policy(house, DEFAULT)


def policy(hf: Installation, text: str) -> None:
    file = hf.home / "policy.new"
    file.write_text(text)
    file.chmod(0o600)
    file.rename(hf.home / "policy.toml")


def refusing(hf: Installation, when: str, who: str = "bob") -> None:
    policy(hf, DEFAULT + RULE.format(who=who, when=when))


def place(hf: Installation, name: str, *how: str) -> Path:
    """A directory with a session in it."""
    d = hf.user / name.replace(" ", "-")
    d.mkdir()
    hf.new(d.name, *how, "--cwd", str(d), "--", "bash")
    return d


def run(hf: Installation, session: str, who: str, text: str) -> None:
    hf.quick("--as", who, "run", session, "--", text)
    hf.quick("--as", who, "turn", session, "release")


def run_any(hf: Installation, session: str, who: str, text: str) -> str:
    """Run a command with any outcome; return its output."""
    out = hf.cli("--as", who, "run", session, "--", text).out
    hf.quick("--as", who, "turn", session, "release")
    return out


def log(hf: Installation, session: str) -> list[dict[str, Any]]:
    return hf.attempt("log", session, "--json").records


def last(hf: Installation, session: str, who: str, text: str | None) -> dict[str, Any]:
    """The record of the operator's intent.

    None: a program read the line without echo, as every line editor does.
    """
    return [
        e
        for e in log(hf, session)
        if e["actor"] == who
        and e["phase"] == "intent"
        and e["kind"] != "turn"
        and (e["content"] and e["content"].rstrip("\r")) == text
    ][-1]


def events(hf: Installation, session: str, *names: str) -> list[dict[str, Any]]:
    return [e for e in hf.attempt("events", session, "--json").records if e["event"] in names]


def shaped(entry: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["kind"], one["name"], one["actor"]) for one in entry["facts"].get("shaped", ())]


def by_eve(found: list[str]) -> bool:
    """Whether eve is named, and no other operator.

    Where the kernel does not report file writers, a file may also be of an unknown writer.
    """
    return found == ["eve"] or (bool(SILENT) and found == ["eve", "unknown"])


def needs(trap: Trap, d: Path) -> None:
    if trap.needs and shutil.which(trap.needs) is None:
        pytest.skip(f"{trap.needs} is not installed")
    if trap.needs == "cc":
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(d / "evil.so")],
            input=LIBRARY.encode(),
            check=True,
        )


def stage(hf: Installation, d: Path, trap: Trap, who: str) -> None:
    """Stage the trap, and remove the effect it had on its own author: a hook acts on them too."""
    needs(trap, d)
    run(hf, d.name, "bob", trap.before or "true")
    run(hf, d.name, who, trap.stage.format(d=d))
    hf.wait(d.name, "idle")
    (d / "sprung").unlink(missing_ok=True)


# ---------------------------------------------------------------- typed lines


@pytest.mark.parametrize("case", TRAPS)
def test_p3_the_author_of_a_trap_is_named_and_the_gate_is_told_before(
    house: Installation, case: str
) -> None:
    trap, d = TRAPS[case], place(house, case)
    kind, name = trap.kind, trap.name.format(d=d)
    stage(house, d, trap, "eve")
    if kind == "file" and SILENT:
        return guessed(house, d, trap)
    refusing(house, f'shaped = ["{kind}"], shaped_by = ["eve"]')
    error = the_error(
        house.attempt("--as", "bob", "run", d.name, "--json", "--", trap.trigger), 4, rc=255
    )
    assert error["name"] == "gate_refused" and "eve left it there" in error["message"], error
    told = [
        e
        for e in events(house, d.name, "originators.foreign", "gate.refused")
        if e["operator"] == "bob"
    ]  # eve may have touched bob's files
    assert (
        [e["event"] for e in told] == ["originators.foreign", "gate.refused"]
        and told[0]["originators"] == ["eve"]
        and by_eve(told[1]["originators"])
    ), told
    assert (
        kind in told[0]["kinds"]
        and told[0]["verdict"] == "refuse"
        and told[1]["rule"] == "nobody runs what eve left"
    )
    refused = [e for e in log(house, d.name) if e["actor"] == "bob" and e["verdict"] == "refuse"]
    assert (
        len(refused) == 1 and by_eve(refused[0]["originators"]) and not (d / "sprung").exists()
    ), refused
    policy(house, DEFAULT)  # people are not asked: bob triggers the trap, and its author is known
    run(house, d.name, "bob", trap.trigger)
    eventually((d / "sprung").exists, "it to happen")
    entry = last(house, d.name, "bob", trap.trigger)
    assert by_eve(entry["originators"]) and (kind, name, "eve") in shaped(entry), entry
    assert next(one for one in entry["facts"]["shaped"] if one["name"] == name)["act"] is not None
    house.end(d.name)


def guessed(hf: Installation, d: Path, trap: Trap) -> None:
    """Without reports of file writers the author is perhaps eve, or unknown, and never only bob."""
    run(hf, d.name, "bob", trap.trigger)
    entry = last(hf, d.name, "bob", trap.trigger)
    of_file = [one for one in entry["facts"]["shaped"] if one["name"] == trap.name.format(d=d)]
    assert of_file and entry["originators"] and set(entry["originators"]) <= {"eve", "unknown"}, (
        entry
    )
    assert all(one["actor"] == "unknown" or one["sure"] is False for one in of_file), entry
    hf.end(d.name)


@pytest.mark.parametrize("case", TRAPS)
def test_p3_state_of_the_actor_names_no_other_operator(house: Installation, case: str) -> None:
    trap, d = TRAPS[case], place(house, f"own {case}")
    stage(house, d, trap, "bob")
    refusing(house, f'shaped = ["{trap.kind}"], shaped_by = ["eve", "others"]')
    run(house, d.name, "bob", trap.trigger)
    eventually((d / "sprung").exists, "it to happen")
    assert set(last(house, d.name, "bob", trap.trigger)["originators"]) <= (
        {"unknown"} if SILENT else set()
    )
    house.end(d.name)


def test_p3_half_a_line_that_another_completes(house: Installation) -> None:
    d = place(house, "half")
    run(house, "half", "bob", "true")
    house.wait("half", "idle")
    house.quick("--as", "eve", "send", "half", f"touch {d}/sprung; echo one")
    eventually(
        lambda: re.search("echo ?one", house.screen("half").replace("\n", "")),
        "the shell to have read the line: a seize discards unread input",
    )
    house.quick("--as", "bob", "seize", "half")
    refusing(house, 'shaped = ["line"], shaped_by = ["eve"]')
    error = the_error(house.attempt("--as", "bob", "send", "half", " two", "--enter", "--json"), 4)
    assert error["name"] == "gate_refused"
    assert [
        (e["event"], e["originators"])
        for e in events(house, "half", "originators.foreign", "gate.refused")
    ] == [("originators.foreign", ["eve"]), ("gate.refused", ["eve", "unknown"])]
    assert not (d / "sprung").exists()
    policy(house, DEFAULT)
    house.quick("--as", "bob", "send", "half", " two", "--enter")
    eventually((d / "sprung").exists, "it to happen")
    entry = last(house, "half", "bob", " two")
    assert entry["originators"] == ["eve", "unknown"] and ("line", "", "eve") in shaped(entry), (
        "with text on the line the submitted text is uncertain"
    )
    house.end("half")


def test_p5_a_background_loop_is_of_its_starter_and_its_script_of_the_writer(
    house: Installation,
) -> None:
    d = place(house, "loop")
    run(
        house,
        "loop",
        "eve",
        "mkfifo tick tock; true >job.sh; (while read x <tick; do sh ./job.sh; echo $? >tock; "
        "done) &",
    )
    run(house, "loop", "bob", f"echo 'touch {d}/sprung' >job.sh")
    members = json.loads(house.quick("graph", "loop", "--json"))["processes"]
    assert "eve" in {p["actor"] for p in members} and "bob" not in {p["actor"] for p in members}, (
        members
    )
    told = house.quick("--as", "bob", "seize", "loop")
    assert "runs: bash" in told and "started by eve" in told, told
    if SILENT:
        pytest.skip(f"nobody is told who writes files here: {SILENT}")
    refusing(house, 'act = ["exec"], shaped_by = ["bob"]', "eve")
    tock = house.ok(
        "--as", "bob", "run", "loop", "--", "echo x >tick; read code <tock; echo $code"
    ).out
    assert tock.endswith("126\n") and not (d / "sprung").exists(), tock
    [event] = eventually(lambda: events(house, "loop", "exec.refused"), "the event")
    assert (event["operator"], event["originators"]) == ("eve", ["bob"]) and event[
        "program"
    ].endswith("/sh"), event
    entry = eventually(lambda: [e for e in log(house, "loop") if e["kind"] == "exec"], "the entry")[
        -1
    ]
    assert (entry["actor"], entry["originators"], entry["verdict"]) == ("eve", ["bob"], "refuse"), (
        entry
    )
    policy(house, DEFAULT)
    house.quick("--as", "bob", "run", "loop", "--", "echo x >tick; read code <tock")
    assert (d / "sprung").exists()
    house.end("loop")


@pytest.mark.parametrize("how", ["run", "line", "hand"])
def test_p3_state_sourced_from_a_file_also_names_the_writer_of_the_file(
    house: Installation, how: str
) -> None:
    """Otherwise an attacker would stay anonymous by letting another operator `source` the file."""
    d = place(house, f"read in {how}")
    run(house, d.name, "bob", "echo \"alias harmless='true'\" >own.sh; . ./own.sh")
    run(house, d.name, "eve", f"echo \"alias deploy='touch {d}/sprung'\" >env.sh")
    if how == "run":
        run(house, d.name, "bob", ". ./env.sh")
    elif how == "line":
        house.wait(d.name, "idle")
        house.quick("--as", "bob", "send", d.name, ". ./env.sh", "--enter")
        house.quick("--as", "bob", "turn", d.name, "release")
    else:
        house.wait(d.name, "idle")
        terminal = house.attach(d.name, "--as", "bob")
        terminal.see("run> ")
        terminal.send(". ./env.sh; echo d''one\r")
        terminal.until(lambda: "done" in terminal.rows(), "its end")
        terminal.leave()
    house.wait(d.name, "idle")
    run(house, d.name, "bob", "deploy")
    entry = last(house, d.name, "bob", "deploy")
    assert entry["originators"] == (
        ["unknown"] if how == "hand" or (SILENT and "eve" not in entry["originators"]) else ["eve"]
    ), entry
    run(house, d.name, "tester", "deploy")
    assert {"bob"} < set(last(house, d.name, "tester", "deploy")["originators"]), (
        "and not only the operator that sourced it"
    )
    run(house, d.name, "bob", "harmless")
    assert SILENT or last(house, d.name, "bob", "harmless")["originators"] == [], (
        "one's own is one's own"
    )
    house.end(d.name)


# ---------------------------------------------------------------- agents


def test_p4_an_agent_is_asked_about_traps_and_not_about_files(house: Installation) -> None:
    d = house.user / "asked"
    d.mkdir()
    house.new("asked", "--contained", "--cwd", str(d), "--", "bash")
    run(house, "asked", "bot", "true")
    for case in ("script", "alias", "function", "path", "preload", "hook"):
        trap = TRAPS[case]
        run(house, "asked", "eve", trap.stage.format(d=d))
        house.wait("asked", "idle")
        (d / "sprung").unlink(missing_ok=True)
        tried = house.attempt(
            "--as", "bot", "run", "asked", "--hold", "0", "--json", "--", trap.trigger
        )
        if case == "script":
            assert tried.rc == 0 and (d / "sprung").exists(), (
                "people and agents work on the same files"
            )
            assert last(house, "asked", "bot", trap.trigger)["originators"] in (
                ["eve"],
                ["unknown"],
            ), "but it is named"
            house.quick("--as", "bot", "turn", "asked", "release")
            continue
        assert the_error(tried, 4, rc=255)["name"] == "held" and not (d / "sprung").exists(), (
            case,
            tried,
        )
        [question] = json.loads(house.quick("--as", "bob", "approvals", "--json"))
        assert question["rule"] == "another's traps are walked into with approval" and any(
            one.startswith("eve's") and trap.name.format(d=d) in one for one in question["shaped"]
        ), question
        held = [
            e for e in log(house, "asked") if e["actor"] == "bot" and e["content"] == trap.trigger
        ][-1]
        assert (
            held["verdict"] == "hold" and "eve" in held["originators"] and held["phase"] == "fact"
        ), held
        house.quick(
            "--as", "bot", "deny", question["id"], "--yes", "--binding", question["binding"]
        )
        if case == "preload":
            run(house, "asked", "eve", "unset LD_PRELOAD")
    house.end("asked")


# ---------------------------------------------------------------- at exec depth


@pytest.fixture
def deep(house: Installation) -> Installation:
    if SILENT:
        pytest.skip(f"nobody is told who writes files here: {SILENT}")
    return house


def tool(hf: Installation, name: str) -> Path:
    d = place(hf, name)
    run(hf, d.name, "eve", f"printf '#!/bin/sh\\ntouch {d}/sprung\\n' >tool; chmod +x tool")
    refusing(hf, 'act = ["exec"], shaped_by = ["eve"]')
    return d


def refused_exec(hf: Installation, d: Path) -> dict[str, Any]:
    event = eventually(lambda: events(hf, d.name, "exec.refused"), "the event")[-1]
    assert (event["operator"], event["rule"]) == ("bob", "nobody runs what eve left") and by_eve(
        event["originators"]
    ), event
    entry = eventually(lambda: [e for e in log(hf, d.name) if e["kind"] == "exec"], "the entry")[-1]
    assert (entry["actor"], entry["verdict"]) == ("bob", "refuse") and by_eve(
        entry["originators"]
    ), entry
    assert not (d / "sprung").exists()
    return event


@pytest.mark.parametrize("way", WAYS)
def test_p4_a_program_that_no_operator_typed_is_refused_too(deep: Installation, way: str) -> None:
    text, before = WAYS[way]
    d = tool(deep, f"way {way}")
    run(deep, d.name, "bob", before or "true")
    assert "ermission denied" in run_any(deep, d.name, "bob", text)
    refused_exec(deep, d)
    policy(deep, DEFAULT)
    run_any(deep, d.name, "bob", text)
    assert (d / "sprung").exists(), "it was the rule that was in its way"
    deep.end(d.name)


def test_p4_typed_by_hand_on_an_attached_terminal(deep: Installation) -> None:
    """No line is judged there; the program is."""
    d = tool(deep, "byhand")
    deep.wait("byhand", "idle")
    terminal = deep.attach("byhand", "--as", "bob")
    terminal.see("run> ")
    terminal.send("./tool\r")
    terminal.see("ermission denied")
    refused_exec(deep, d)
    terminal.leave()
    deep.end("byhand")


@pytest.mark.parametrize("case", ["path", "preload", "variable", "cwd", "makefile", "git hook"])
def test_p4_state_that_another_shaped_counts_for_every_program(
    house: Installation, case: str
) -> None:
    trap = TRAPS[case]
    if SILENT and trap.kind == "file":
        pytest.skip(f"nobody is told who writes files here: {SILENT}")
    d = place(house, f"deep {case}", "--contained" if os.getuid() else "--plain")
    assert house.get(d.name)["gate"] == "exec"
    stage(house, d, trap, "eve")
    refusing(house, f'act = ["exec"], shaped = ["{trap.kind}"], shaped_by = ["eve"]')
    run_any(house, d.name, "bob", trap.trigger)
    refused_exec(house, d)
    house.end(d.name)


@pytest.mark.parametrize("case", ["hook", "trap"])
def test_p4_a_program_started_by_a_hook_or_trap_names_its_author(
    house: Installation, case: str
) -> None:
    """As far as the kernel tells, the program may be bob's own as well.

    So eve is named as perhaps, and a rule about her state has to ask, or to refuse the line.
    """
    d = place(house, f"deep {case}", "--contained" if os.getuid() else "--plain")
    stage(house, d, TRAPS[case], "eve")
    policy(
        house,
        DEFAULT
        + RULE.format(who="bob", when='act = ["exec"], command = ["touch"]')
        + RULE.format(who="bob", when='act = ["exec"], shaped_by = ["carl"]').replace(
            "what eve", "what carl"
        ),
    )
    run(house, d.name, "bob", "true")
    refused_exec(house, d)
    house.end(d.name)


# ---------------------------------------------------------------- invisible state


def test_p3_functions_of_a_posix_shell_are_unknown(house: Installation) -> None:
    house.new("posix", "--", "dash")
    run(house, "posix", "eve", "release() { echo evil; }")
    assert run_any(house, "posix", "bob", "release") == "evil\n"
    entry = last(house, "posix", "bob", "release")
    assert "unknown" in entry["originators"] and any(
        one[0] in ("function", "shell") and one[2] == "unknown" for one in shaped(entry)
    ), entry
    house.end("posix")


@pytest.mark.parametrize(
    ("program", "prompt", "defines", "uses"),
    [
        ("bash --norc", "bash-", "evil() { echo sp''rung; }", "evil"),
        ("python3 -q", ">>>", "evil = 'sprung'", "evil.upper()"),
    ],
)
def test_p3_input_typed_into_a_program_is_unknown(
    house: Installation, program: str, prompt: str, defines: str, uses: str
) -> None:
    name = program.split()[0] + "inside"
    house.new(name, "--", "bash")
    house.wait(name, "idle")
    house.quick("--as", "eve", "send", name, program, "--enter")
    eventually(lambda: prompt in house.screen(name), "the program")
    house.quick("--as", "eve", "send", name, defines, "--enter")
    house.quick("--as", "eve", "turn", name, "release")
    house.quick("--as", "bob", "send", name, uses, "--enter")
    eventually(
        lambda: (
            "\nsprung" in house.screen(name).lower() or "'sprung'" in house.screen(name).lower()
        ),
        "the action of the program",
    )
    entry = last(house, name, "bob", None)
    assert "unknown" in entry["originators"] and ("shell", "unknown") in [
        (kind, who) for kind, _, who in shaped(entry)
    ], entry
    house.end(name)


def test_p3_a_file_that_no_session_wrote_is_unknown(house: Installation) -> None:
    d = place(house, "outside")
    run(house, "outside", "bob", "true")
    (d / "job.sh").write_text(f"touch {d}/sprung\n")
    run(house, "outside", "bob", "sh ./job.sh")
    entry = last(house, "outside", "bob", "sh ./job.sh")
    assert entry["originators"] == ["unknown"] and ("file", f"{d}/job.sh", "unknown") in shaped(
        entry
    ), entry
    house.end("outside")


def test_p3_as_an_ordinary_user(house: Installation) -> None:
    """The shell's report is the same; the writer of a file is a guess there, and marked as one."""
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw", "avt")
        done = user.run(
            [
                python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                "not ordinary",
                str(Path(__file__)),
            ]
        )
        assert done is not None and done.returncode == 0, done and done.stdout[-6000:]
