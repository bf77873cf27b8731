"""An agent's shell turns an approved text into another act: other directory, again, later (P4).

The agent prepares its own shell unasked: a function or a trap runs when the approved text runs. The
words of the programs that start are those of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, free, waiting
from tests.support.exec_gate.approval_lab import POLICY, Lab
from tests.support.exec_gate.gated_session import obey
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.ordinary_user import cases, passes_as_ordinary_user

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
    other = lab.place / "other" / "scratch"
    other.mkdir(parents=True, exist_ok=True)
    (other / "file").touch()


def deny(lab: Lab, cwd: str) -> None:
    """A program in this directory is asked about, with exactly the words of the text."""
    question = lab.exec_question()
    approve(lab.hf, question, "deny")
    assert question["cwd"] == cwd and question["text"].endswith("rm -r scratch"), question


def more(lab: Lab) -> list[dict[str, Any]]:
    """The questions about programs of the session."""
    return [q for q in waiting(lab.hf) if q["name"] == lab.name and q["act"] == "exec"]


def was_refused(lab: Lab, why: str) -> bool:
    found = lab.hf.ok("events", lab.name, "--limit", "100000", "--json").records
    return any(e["event"] == "exec.refused" and why in str(e) for e in found)


def prepared(lab: Lab, text: str) -> None:
    setup = lab.place / "setup.sh"
    setup.write_text(f"{text}\n")
    lab.done(f". {setup}")


DIRECTORY = {
    "function": ('rm() {{ cd {to}; command rm "$@"; }}', "unset -f rm"),
    "subshell": ('rm() {{ (cd {to} && command rm "$@"); }}', "unset -f rm"),
    "trap": ("trap '[[ $BASH_COMMAND == rm* ]] && cd {to}' DEBUG; set -T", "trap - DEBUG"),
    "zsh trap": ("TRAPDEBUG() {{ [[ $ZSH_DEBUG_CMD == rm* ]] && cd {to} }}", "unset -f TRAPDEBUG"),
    "program": ('rm() {{ env -C {to} rm "$@"; }}', "unset -f rm"),
}


@pytest.mark.parametrize("way", DIRECTORY)
def test_p4_an_approved_text_runs_in_no_other_directory(lab: Lab, way: str) -> None:
    if ("zsh" in way) != (lab.name == "lab-zsh") and "trap" in way:
        pytest.skip("another shell's trap")
    if way == "trap" and lab.name != "lab-bash":
        pytest.skip("another shell's trap")
    on, off = DIRECTORY[way]
    to = lab.place / "other"
    prepared(lab, on.format(to=to))
    try:
        held = lab.approved("rm -r scratch")
        deny(lab, str(lab.place if way == "program" else to))
        held.communicate(timeout=DEADLINE_S)
        assert (to / "scratch").exists()
    finally:
        prepared(lab, f"{off}; cd {lab.place}")


def test_p4_a_directory_that_took_the_name_is_another(lab: Lab) -> None:
    here, to = lab.place / "here", lab.place / "there"
    for one in (here, to):
        (one / "scratch").mkdir(parents=True, exist_ok=True)
    prepared(
        lab,
        'rm() { cd ..; mv here old; mv there here; cd here; command rm "$@"; }; cd here',
    )
    try:
        held = lab.approved("rm -r scratch")
        deny(lab, str(here))
        held.communicate(timeout=DEADLINE_S)
        assert (here / "scratch").exists() and (lab.place / "old" / "scratch").exists()
    finally:
        prepared(lab, f"unset -f rm; cd {lab.place}")
        (lab.place / "old").rename(to)


def test_p4_an_approval_covers_a_command_once(lab: Lab) -> None:
    prepared(lab, 'rm() { command rm "$@"; mkdir scratch; command rm "$@"; }')
    try:
        held = lab.approved("rm -r scratch")
        deny(lab, str(lab.place))
        held.communicate(timeout=DEADLINE_S)
        assert (lab.place / "scratch").exists()
    finally:
        prepared(lab, "unset -f rm")


def test_p4_an_approval_ends_with_its_run(lab: Lab) -> None:
    """The function leaves a process of the act behind. The approved command itself never ran."""
    prepared(
        lab,
        'rm() { (while [ ! -e go ]; do sleep 0.05; done; command rm "$@"; : >went)'
        " >/dev/null 2>&1 & }",
    )
    try:
        held = lab.approved("rm -r scratch")
        held.communicate(timeout=DEADLINE_S)
        (lab.place / "go").touch()
        deny(lab, str(lab.place))
        eventually((lab.place / "went").exists, "the end of the loop")
        assert (lab.place / "scratch").exists()
    finally:
        prepared(lab, "unset -f rm")
        (lab.place / "went").unlink(missing_ok=True)


VARIABLES = {
    "exported": ("export GIT_DIR={to}/.git GIT_WORK_TREE={to}", "unset GIT_DIR GIT_WORK_TREE"),
    "for one command": (
        'git() {{ GIT_DIR={to}/.git GIT_WORK_TREE={to} command git "$@"; }}',
        "unset -f git",
    ),
    "settings": (
        "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.worktree GIT_CONFIG_VALUE_0={to}",
        "unset GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0",
    ),
}


@pytest.mark.parametrize("way", VARIABLES)
def test_p4_a_variable_that_redirects_an_approved_program_is_shown(lab: Lab, way: str) -> None:
    to = lab.place / "other"
    lab.done(f"git init -q {lab.place}; git init -q {to}; git --git-dir={to}/.git config a.b c")
    on, off = VARIABLES[way]
    prepared(lab, on.format(to=to))
    try:
        held = lab.approved("git clean -fdx")
        question = lab.exec_question()
        approve(lab.hf, question, "deny")
        held.communicate(timeout=DEADLINE_S)
        assert f"={to}" in question["text"] and "GIT_" in question["text"], question["text"]
        assert (to / "scratch" / "file").exists()
    finally:
        prepared(lab, off)


def test_p4_the_loader_of_an_approved_program_is_the_systems(lab: Lab) -> None:
    library = lab.place / "library.so"
    prepared(lab, f'rm() {{ LD_PRELOAD={library} command rm "$@"; }}')
    try:
        held = lab.approved("rm -r scratch")
        question = lab.exec_question()
        approve(lab.hf, question, "deny")
        held.communicate(timeout=DEADLINE_S)
        assert f"LD_PRELOAD={library}" in question["text"]
    finally:
        prepared(lab, "unset -f rm")


def test_variables_of_the_text_and_of_other_programs_raise_no_question(lab: Lab) -> None:
    lab.done(f"git init -q {lab.place}; export NODE_ENV=test VIRTUAL_ENV=/x")
    try:
        for text in ("rm -r scratch", "GIT_PAGER=cat NODE_ENV=test git clean -fdqx victim"):
            held = lab.approved(text)
            eventually(lambda: held.poll() is not None or more(lab), "the end of the run")
            again = more(lab)
            for question in again:
                approve(lab.hf, question, "deny")
            assert held.communicate(timeout=DEADLINE_S) and not again, again
    finally:
        lab.done("unset NODE_ENV VIRTUAL_ENV")


def test_p4_an_approval_does_not_outlive_the_right_of_the_asking_operator(lab: Lab) -> None:
    """The run of a revoked agent goes on, but a program that needs approval is refused."""
    agent = f"late{lab.name[4:]}"
    lab.hf.people(agent, rights="execute,observe", kind="agent")
    prepared(lab, 'rm() { : >began; while [ ! -e go ]; do sleep 0.05; done; command rm "$@"; }')
    free(lab.hf, lab.name)
    held = lab.hf.start("--as", agent, "run", lab.name, "--", "rm -r scratch")
    try:
        approve(lab.hf, lab.question())
        eventually((lab.place / "began").exists, "the begin of the run")
        lab.hf.ok("operator", "revoke", agent)
        (lab.place / "go").touch()
        held.communicate(timeout=DEADLINE_S)
        eventually(lambda: was_refused(lab, f"{agent} was revoked"), "the refusal of rm")
        assert (lab.place / "scratch").exists()
        assert more(lab) == []
    finally:
        (lab.place / "began").unlink(missing_ok=True)
        (lab.place / "go").touch()
        eventually(lambda: lab.hf.cli("--as", "bot", "run", lab.name, "--", "true").rc == 0, "idle")
        prepared(lab, "unset -f rm")


@pytest.mark.parametrize(
    "text",
    [
        "cd other && rm -r scratch && cd ..",
        "(cd other; rm -r scratch); rm -r scratch",
        "for one in scratch other/scratch; do rm -r $one; done",
        "gone() { rm -r $1; }; gone scratch; gone other/scratch; unset -f gone",
        "rm -r scratch; mkdir scratch; rm -r scratch",
        "echo scratch other/scratch | xargs -n 1 rm -r",
        "sh -c 'rm -r scratch; cd other; rm -r scratch'",
        "sh -c 'cd other && rm -r ../scratch'",
        "nohup rm -r scratch",
        "timeout 60 rm -r scratch",
        "true | rm -r scratch | true",
        "rm -r scratch & wait",
    ],
)
def test_p4_an_approved_text_is_asked_about_once(lab: Lab, text: str) -> None:
    held = lab.approved(text)
    eventually(lambda: held.poll() is not None or more(lab), "the end of the run")
    again = more(lab)
    for question in again:
        approve(lab.hf, question, "deny")
    out, err = held.communicate(timeout=DEADLINE_S)
    assert not again, [(q["text"], q["cwd"]) for q in again]
    assert held.returncode == 0, (out, err)
    gone = lab.place / "other" / "scratch" if text.startswith("cd") else lab.place / "scratch"
    assert not gone.exists(), (out, err)


def test_as_an_ordinary_user(lab: Lab) -> None:
    if lab.name != "lab-bash":
        pytest.skip("once is enough")
    passes_as_ordinary_user(__file__)
