"""The gate at exec depth, as people and agents meet it: the policy judges every program (P4)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, free, waiting
from tests.support.exec_gate.gated_session import LAYOUTS, NO_TAC, obey
from tests.support.installation import (
    DEADLINE_S,
    SHARE_PYTHON,
    Installation,
    eventually,
    installation,
)
from tests.support.ordinary_user import ordinary_user

POLICY = (
    NO_TAC
    + """[[rule]]
name = "ask about rev"
verdict = "ask"
because = "it turns things around"
by = ["human"]
who = { kind = ["agent"] }
when = { command = ["rev"] }
[[rule]]
name = "only of execs"
verdict = "refuse"
because = "not at this depth"
when = { act = ["exec"], command = ["factor"] }
"""
)


@pytest.fixture(scope="module", params=LAYOUTS)
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.env["PYTHONPATH"] = os.environ.get(
            "PYTHONPATH", made.env["PYTHONPATH"]
        )  # as an ordinary user: where its libraries are
        obey(made, POLICY)
        made.people("ann")
        made.people("bot", rights="execute,observe", kind="agent")
        # A test runs Holdfast itself in the session.
        share = [f"--share={place}" for place in made.env["PYTHONPATH"].split(":")]
        share += SHARE_PYTHON
        share = share if request.param == "--contained" else []
        made.new("lab", request.param, *share, "--cwd", str(made.user), "--", "bash")
        yield made


@pytest.fixture
def contained_house(house: Installation) -> Installation:
    """An installation where an operator on this machine can approve: not in a plain session."""
    if house.get("lab")["layout"] != "contained":
        pytest.skip("code in a plain session could read the key of an approver")
    return house


def by_the_agent(hf: Installation, text: str) -> subprocess.Popen[bytes]:
    """A script of the agent in the session, under way."""
    free(hf, "lab")
    script = hf.user / "do.sh"
    script.write_text(text)
    return hf.start("--as", "bot", "run", "lab", "--", f"bash {script}")


def asked(hf: Installation) -> dict[str, Any]:
    """The question about an exec.

    Without the shell's grammar, the policy asks about the command first.
    """
    [question] = eventually(
        lambda: [q for q in waiting(hf) if q["state"] == "waiting"], "the question"
    )
    if question["act"] == "run" and find_shfmt() is None:
        approve(hf, question)
        [question] = eventually(
            lambda: [q for q in waiting(hf) if q["state"] == "waiting" and q["act"] == "exec"],
            "the question about the exec",
        )
    return question


def events(hf: Installation, name: str, session: str = "lab") -> list[dict[str, Any]]:
    found = hf.ok("events", session, "--json").records
    return [e for e in found if e["event"] == name]


def test_p4_the_depth_is_said_everywhere(house: Installation) -> None:
    assert house.get("lab")["gate"] == "exec" and house.view("lab")["gate"] == "exec"
    assert "shown to the policy first" in house.ok("who", "lab").out
    assert house.ls()[0]["gate"] == "exec" and "shown to the policy" in house.ls()[0]["gate_says"]
    house.new("shallow", "--gate", "input", "--", "bash")
    assert (
        house.get("shallow")["gate"] == "input"
        and "as was asked" in house.get("shallow")["gate_says"]
    )
    house.end("shallow")


@pytest.mark.parametrize(
    "command",
    [
        "tac /etc/hostname",
        "sh -c 'tac /etc/hostname'",
        "echo /etc/hostname | xargs tac",
        "bash -c 'x=tac; $x /etc/hostname'",
        'python3 -c \'import os; os.execvp("tac", ["tac", "/etc/hostname"])\'',
        "env tac /etc/hostname",
        "find /etc/hostname -exec tac {} ';'",
        "nohup tac /etc/hostname",
        "setsid -w tac /etc/hostname",
        "eval 't\"\"ac /etc/hostname'",
        "(exec -a cat tac /etc/hostname)",
        "t=$(command -v tac); $t /etc/hostname",
        "timeout 9 tac /etc/hostname",
    ],
)
def test_p4_a_refused_program_is_refused_by_any_way_to_start_it(
    house: Installation, command: str
) -> None:
    free(house, "lab")
    script = house.user / "do.sh"
    script.write_text(command + "\n")
    done = house.cli("--as", "ann", "run", "lab", "--", f"bash {script} </dev/null")
    assert Path("/etc/hostname").read_text().strip() not in done.out, done
    assert "ermission denied" in done.out, done


@pytest.mark.smoke
def test_p4_a_refusal_is_told_and_recorded(house: Installation) -> None:
    free(house, "lab")
    script = house.user / "do.sh"
    script.write_text("factor 91; exit 3\n")
    watching = house.attach("lab")
    watching.expect(rb"\$ |# ")
    assert house.attempt("--as", "ann", "run", "lab", "--", f"bash {script}").rc == 3
    watching.expect(r"factor \(ann\) was not started: ")
    assert watching.leave() == 0
    told = eventually(
        lambda: [
            e for e in events(house, "exec.refused") if e.get("program", "").endswith("/factor")
        ],
        "the event",
    )
    assert (
        told[-1]["rule"] == "only of execs"
        and told[-1]["operator"] == "ann"
        and told[-1]["program"].endswith("/factor")
    )
    entry = eventually(
        lambda: [
            e
            for e in house.ok("log", "lab", "--json").records
            if e["kind"] == "exec" and "factor" in str(e)
        ],
        "the entry",
    )[-1]
    assert (
        entry["actor"] == "ann"
        and entry["verdict"] == "refuse"
        and entry["facts"]["rule"] == "only of execs"
        and entry["facts"]["words"].endswith("factor 91")
    )
    assert "factor 91 (pid " in house.ok("log", "lab").out
    assert json.loads(house.ok("log", "verify", "lab", "--json").out)["ok"] is True
    page = house.ok("metrics").out
    assert (
        'holdfast_gate_decisions_total{act="exec",verdict="refuse"}' in page
        and 'holdfast_gate_decisions_total{act="exec",verdict="allow"}' in page
    )


def test_p4_a_held_exec_waits_and_continues_when_it_is_approved(
    contained_house: Installation,
) -> None:
    held = by_the_agent(contained_house, "echo before; echo abc | rev; echo after\n")
    question = asked(contained_house)
    assert (
        question["act"] == "exec"
        and question["key"] == ""
        and question["operator"] == "bot"
        and question["text"].endswith("/rev")
        and question["cwd"] == str(contained_house.user)
    ), question
    eventually(
        lambda: contained_house.ok("attention", "lab", "--json").json["kind"] == "approval",
        "the need for an approver",
    )
    assert "lab: waits for approval" in contained_house.ok("attention", "lab").out
    approve(contained_house, question)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"before\ncba\nafter\n", (out, err)


def test_p4_a_denied_exec_fails_with_126(contained_house: Installation) -> None:
    held = by_the_agent(contained_house, "rev </dev/null; echo $?\n")
    question = asked(contained_house)
    approve(contained_house, question, "deny")
    out, _ = held.communicate(timeout=DEADLINE_S)
    assert out.endswith(b"126\n"), out


def test_p4_a_denial_counts_for_every_directory_of_path(contained_house: Installation) -> None:
    """env searches PATH: after a denial it tries the same name in the next directory."""
    text = "PATH=/usr/bin:/bin:/usr/local/bin env rev </dev/null; echo $?\n"
    held = by_the_agent(contained_house, text)
    before = len(events(contained_house, "approval.asked"))
    question = asked(contained_house)
    approve(contained_house, question, "deny")
    out, _ = held.communicate(timeout=DEADLINE_S)
    assert out.endswith(b"126\n"), out
    assert len(events(contained_house, "approval.asked")) <= before + 1


@pytest.mark.skipif(
    find_shfmt() is None,
    reason="without the shell's grammar the rule cannot be known when the command is asked about",
)
def test_p4_a_rule_that_was_approved_for_the_act_does_not_ask_again(
    contained_house: Installation,
) -> None:
    free(contained_house, "lab")
    held = contained_house.start("--as", "bot", "run", "lab", "--", "echo abc | rev")
    [question] = eventually(lambda: waiting(contained_house), "the question")
    assert question["act"] == "run"
    approve(contained_house, question)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"cba\n", (out, err)


@pytest.mark.parametrize(
    ("policy", "becomes"),
    [
        (NO_TAC, b"cba\n0\n"),
        (NO_TAC.replace('"tac"', '"rev"'), b"126\n"),
        (NO_TAC.replace('= ["tac"]', "= "), b"126\n"),
    ],
)
def test_p4_a_held_exec_is_judged_by_the_policy_in_force(
    house: Installation, policy: str, becomes: bytes
) -> None:
    """The rule that asked is gone, or it refuses now, or the policy cannot be used at all.

    A change of the policy is enough: no further action is needed.
    """
    held = by_the_agent(house, "echo abc | rev; echo $?\n")
    asked(house)
    try:
        obey(house, policy)
        out, err = held.communicate(timeout=DEADLINE_S)
        assert out.endswith(becomes), (out, err)
    finally:
        obey(house, POLICY)


def test_p4_a_held_exec_is_asked_about_anew_if_the_policy_still_asks(
    contained_house: Installation,
) -> None:
    held = by_the_agent(contained_house, "echo abc | rev; echo $?\n")
    first = asked(contained_house)
    try:
        obey(contained_house, POLICY.replace("it turns things around", "it mirrors things"))
        [again] = eventually(
            lambda: [q for q in waiting(contained_house) if q["id"] != first["id"]],
            "a question under the new policy",
        )
        assert again["because"] == "it mirrors things" and again["text"] == first["text"]
        approve(contained_house, again)
        out, err = held.communicate(timeout=DEADLINE_S)
        assert out == b"cba\n0\n", (out, err)
    finally:
        obey(contained_house, POLICY)


def test_p4_a_held_exec_that_is_killed_withdraws_its_question(
    contained_house: Installation,
) -> None:
    held = by_the_agent(contained_house, "rev </dev/null; echo over $?\n")
    asked(contained_house)
    contained_house.ok("--as", "ann", "halt", "lab")
    contained_house.ok("--as", "ann", "resume", "lab")
    assert len(waiting(contained_house)) == 1, "halted and resumed, it asks the same question"
    contained_house.ok("--as", "ann", "seize", "lab")
    contained_house.ok("--as", "ann", "send", "lab", "--key", "C-c")
    eventually(lambda: not waiting(contained_house), "the question to be withdrawn")
    held.communicate(timeout=DEADLINE_S)


@pytest.mark.smoke
def test_s4_an_exec_that_is_held_outlives_the_host(contained_house: Installation) -> None:
    held = by_the_agent(contained_house, "echo abc | rev; echo end\n")
    question = asked(contained_house)
    os.kill(contained_house.host_pid, signal.SIGKILL)
    [again] = eventually(lambda: waiting(contained_house), "the question at the next host")
    assert again["id"] == question["id"]
    approve(contained_house, again)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"cba\nend\n", (out, err)
    assert contained_house.get("lab")["gate"] == "exec"


def test_p4_end_works_while_execs_are_held(contained_house: Installation) -> None:
    contained_house.new("brief", "--contained", "--cwd", str(contained_house.user), "--", "bash")
    script = contained_house.user / "do.sh"
    script.write_text("rev </dev/null; echo x\n")
    held = contained_house.start("--as", "bot", "run", "brief", "--", f"bash {script}")
    asked(contained_house)
    contained_house.ok("--as", "ann", "end", "brief")
    held.communicate(timeout=DEADLINE_S)
    eventually(lambda: not waiting(contained_house), "the question to be void")


def test_p4_where_the_kernel_refuses_the_gate_no_gated_session_is_made(
    house: Installation,
) -> None:
    """The kernel allows one gate above a program: a host in a gated session has none to give."""
    free(house, "lab")
    inner = house.user / "inner"
    command = (
        f"HOLDFAST_HOME={inner} PYTHONPATH={house.env['PYTHONPATH']} {sys.executable} -m holdfast"
    )
    script = house.user / "inner.sh"
    script.write_text(
        f"{command} new must --gate exec --no-attach -- bash; echo rc=$?\n"
        f"{command} ls --json; echo; {command} down\n"
    )
    done = house.cli("run", "lab", "--", f"bash {script}")
    assert (
        "rc=7" in done.out
        and "one gate above a program, and there is one already" in done.out
        and '"must"' not in done.out
    ), done


def test_p4_a_plug_in_judges_execs_too_and_one_that_is_broken_refuses_them(
    house: Installation,
) -> None:
    pytest.importorskip("cedarpy", reason="the extra cedar is not installed")
    free(house, "lab")
    cedar, script = house.home / "policy.cedar", house.user / "do.sh"
    script.write_text("factor 6; tr a b </dev/null && echo went-on\n")
    try:
        cedar.write_text(
            'permit(principal, action, resource);\nforbid(principal, action == Action::"exec", '
            'resource) when { context.commands.contains("tr") };\n'
        )
        done = house.cli("--as", "ann", "run", "lab", "--", f"bash {script}")
        assert "tr: Permission denied" in done.out and "went-on" not in done.out, done
        eventually(
            lambda: [
                e for e in events(house, "exec.refused") if e.get("program", "").endswith("/tr")
            ],
            "the refusal to be told",
        )
        cedar.write_text("forbid(principal, action, resource) when { context.nonsense };\n")
        broken = house.cli("--as", "ann", "run", "lab", "--", "true")
        assert broken.rc != 0, broken
    finally:
        cedar.unlink()
    assert "went-on" in house.cli("--as", "ann", "run", "lab", "--", f"bash {script}").out


def test_p4_as_an_ordinary_user(house: Installation) -> None:
    """The same in a user namespace; plain sessions of an ordinary user have no exec gate."""
    if house.get("lab")["layout"] != "plain":
        pytest.skip("once is enough")
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw")
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
