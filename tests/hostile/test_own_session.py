"""An agent makes a session to its own advantage: a lower gate, foreign start files (P3, P4, A5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.requests.approvals import EXCHANGEABLE
from tests.support.exec_gate.gated_session import obey
from tests.support.installation import (
    DEADLINE_S,
    Installation,
    Result,
    eventually,
    installation,
)
from tests.support.ordinary_user import passes_as_ordinary_user

POLICY = """version = 1
extends = "default"
without = ["agents work in contained sessions"]
[[rule]]
name = "agents do not read backwards"
verdict = "refuse"
because = "a person would have to"
who = { kind = ["agent", "service"] }
when = { command = ["tac"] }
"""
STARTS = 'printf "one\\n" | tac >>"$HOME/read-backwards"\n'  # a start file
KINDS = ("agent", "service")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        obey(made, POLICY)
        for kind in KINDS:
            made.people(f"the-{kind}", kind=kind)
        yield made


@pytest.fixture
def bashrc(lab: Installation) -> Iterator[Path]:
    file = lab.account / ".bashrc"
    before = file.read_text()
    yield file
    file.write_text(before)
    (lab.account / "read-backwards").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", KINDS)
def test_p3_a_session_is_contained_unless_a_person_makes_it(lab: Installation, kind: str) -> None:
    made = lab.ok("--as", f"the-{kind}", "new", f"own-{kind}", "--no-attach", "--json").json
    assert made["layout"] == "contained"
    lab.end(f"own-{kind}")


def refused(done: Result) -> dict[str, Any]:
    assert done.rc == 4, done
    error: dict[str, Any] = done.json["error"]
    assert error["code"] == 4 and error["recover"], error
    return error


def events_named(hf: Installation, session: str, name: str) -> list[dict[str, Any]]:
    found = hf.ok("events", session, "--limit", "100000", "--json").records
    return [e for e in found if e["event"] == name]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["--contained", "--plain"])
def test_p4_an_agent_cannot_lower_the_gate_of_its_session(
    lab: Installation, kind: str, layout: str
) -> None:
    if layout == "--plain" and os.getuid() != 0:
        pytest.skip("such a session has input depth anyway")
    words = ("new", "low", "--json", "--no-attach", layout, "--gate", "input", "--", "bash")
    error = refused(lab.cli("--as", f"the-{kind}", *words))
    assert error["name"] == "not_allowed" and "session.gate" in error["recover"]
    assert "low" not in [one["name"] for one in lab.ls()]
    higher = lab.ok("--as", f"the-{kind}", *words[:5], "--gate", "exec", "--", "bash").json
    assert higher["gate"] == "exec"
    lab.end("low")
    assert lab.ok(*words).json["gate"] == "input"  # a person's word
    lab.end("low")


@pytest.mark.parametrize("kind", KINDS)
def test_s6_an_agent_does_not_let_its_session_write_to_clipboards(
    lab: Installation, kind: str
) -> None:
    words = ("new", "own", "--json", "--no-attach", "--clipboard", "--", "bash")
    error = refused(lab.cli("--as", f"the-{kind}", *words))
    assert "only a person" in error["message"] and "session.clipboard" in error["recover"]


def test_p4_the_configuration_is_a_persons_word(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = '[session]\ngate = "input"\nagent_env = "PORT, APP_*"\n'
    with installation(tmp_path_factory.mktemp("home"), config) as hf:
        hf.people("bot", kind="agent")
        words = ("--contained", "--gate", "input", "--env", "PORT=1", "--env", "APP_X=2")
        made = hf.ok("--as", "bot", "new", "low", "--json", "--no-attach", *words, "--", "bash")
        assert made.json["gate"] == "input"
        assert hf.ok("--as", "bot", "run", "low", "--", "echo $PORT $APP_X").out == "1 2\n"


@pytest.mark.parametrize(
    "variable",
    [
        *(
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "PATH",
            "ENV",
            "BASH_ENV",
            "ZDOTDIR",
            "XDG_CONFIG_HOME",
        ),
        *("LD_PRELOAD", "PYTHONPATH", "GIT_CONFIG_GLOBAL", "TMPDIR", "ANYTHING"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_p3_an_agent_does_not_choose_the_files_that_its_session_reads(
    lab: Installation, kind: str, variable: str
) -> None:
    words = ("new", "own", "--json", "--no-attach", "--env", f"{variable}=/tmp/evil", "--", "bash")
    error = refused(lab.cli("--as", f"the-{kind}", *words))
    assert variable in error["message"] and "session.agent_env" in error["recover"]


def test_p3_variables_of_an_agents_client_are_not_taken(lab: Installation, tmp_path: Path) -> None:
    """The same by the environment of the client, without `--env`."""
    (tmp_path / ".bashrc").write_text("EVIL=1\n")
    env = {"HOME": str(tmp_path), "BASH_ENV": str(tmp_path / ".bashrc"), "SHELL": "/bin/evil"}
    words = (
        "--as",
        "the-agent",
        "new",
        "own",
        "--json",
        "--no-attach",
        "--plain",
        "--gate",
        "exec",
    )
    lab.ok(*words, "--env", "LANG=C", env=env)
    said = lab.ok(
        "--as", "the-agent", "run", "own", "--", "echo $HOME-$BASH_ENV-$SHELL-$EVIL-$LANG"
    )
    assert said.out == f"{lab.account}--/bin/bash--C\n"
    lab.end("own")


def test_p3_start_files_of_an_agents_session_count_as_the_agents(
    lab: Installation, bashrc: Path
) -> None:
    bashrc.write_text(bashrc.read_text() + STARTS)
    words = ("new", "mine", "--no-attach", "--plain", "--gate", "exec", "--", "bash")
    lab.ok("--as", "the-agent", *words)
    (told,) = eventually(lambda: events_named(lab, "mine", "exec.refused"), "the refusal")
    assert (told["operator"], told["rule"]) == ("the-agent", "agents do not read backwards")
    assert not (lab.account / "read-backwards").read_text()
    lab.end("mine")
    lab.ok(*words)  # a person's session reads a file that nobody but people wrote
    written = lab.account / "read-backwards"
    eventually(lambda: written.read_text() == "one\n", "the start files to be read")
    assert not events_named(lab, lab.get("mine")["id"], "exec.refused")
    lab.end("mine")


MAKES_DIRECTORIES = 'mkdir -p "$HOME/shims" && echo started >>"$HOME/started"\n'  # as pyenv's


def test_p3_a_persons_start_files_do_not_hold_up_an_agents_contained_session(
    lab: Installation, bashrc: Path
) -> None:
    """The session has start files of its own: the person's are not read, and nothing is asked."""
    bashrc.write_text(bashrc.read_text() + MAKES_DIRECTORIES)
    lab.ok("--as", "the-agent", "new", "own", "--no-attach", "--", "bash")
    lab.wait("own", "idle")
    said = lab.ok("--as", "the-agent", "run", "own", "--", "ls ~/shims ~/started 2>&1 || echo none")
    assert said.out.endswith("none\n")
    assert not (lab.account / "started").exists()
    for name in ("approval.asked", "exec.refused"):
        assert not events_named(lab, "own", name)
    lab.end("own")


@pytest.mark.parametrize("layout", ["--plain", "--contained"])
def test_p4_the_question_about_a_text_that_can_be_exchanged_says_so_first(
    lab: Installation, layout: str
) -> None:
    """A real act that is held: in a plain session programs can replace the approved text."""
    lab.ready("asks", layout, "--cwd", "/tmp", "--", "bash")
    lab.ok("turn", "asks", "release")
    act = lab.start("--as", "the-agent", "run", "asks", "--", "rm -rf /srv/no-such-place")
    [question] = eventually(lambda: lab.ok("approvals", "--json").json, "the question")
    assert question["session"] == lab.get("asks")["id"] and question["act"] == "run"
    assert question["caution"] == (EXCHANGEABLE if layout == "--plain" else None)
    decides = lab.spawn([*map(str, lab.argv(("deny", question["id"])))], size=(100, 40))
    decides.expect(r"\[y/N\] ")
    shown = " ".join(" ".join(decides.rows()).split())
    assert (EXCHANGEABLE in shown) == (layout == "--plain"), shown
    if layout == "--plain":
        assert shown.index(EXCHANGEABLE) < shown.index("rm -rf"), shown
    decides.send(b"y\r")
    assert decides.wait() == 0
    act.communicate(timeout=DEADLINE_S)
    lab.end("asks")


@pytest.mark.skipif(os.getuid() != 0, reason="the writer of a file is certain for root only")
def test_p3_start_files_that_an_agent_wrote_count_as_the_agents(
    lab: Installation, bashrc: Path
) -> None:
    lab.ready("shared", "--plain", "--", "bash")
    lab.ok("--as", "the-agent", "run", "shared", "--", f"echo '{STARTS.rstrip()}' >>{bashrc}")
    assert STARTS in bashrc.read_text()
    lab.new("theirs", "--plain", "--", "bash")
    (told,) = eventually(lambda: events_named(lab, "theirs", "exec.refused"), "the refusal")
    assert (told["operator"], told["rule"]) == ("the-agent", "agents do not read backwards")
    lab.end("theirs", "shared")


@pytest.mark.skipif(os.getuid() != 0, reason="it is being run as an ordinary user")
def test_p4_all_of_this_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(__file__)
