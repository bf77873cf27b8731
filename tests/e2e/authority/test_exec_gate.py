"""The gate at exec depth, as people and agents meet it: whatever starts a program, the policy is shown it first (P4)."""

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
from tests.e2e.gated import LAYOUTS, NO_TAC, obey
from tests.e2e.harness import DEADLINE_S, Installation, eventually, installation
from tests.e2e.test_gate import approve, free, waiting
from tests.host.ordinary_user import ordinary_user

from holdfast.host.parse import find_shfmt

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
        made.new("lab", request.param, "--cwd", str(made.user), "--", "bash")
        yield made


@pytest.fixture
def apart(house: Installation) -> Installation:
    """Where somebody on this machine can approve: not in a plain session."""
    if house.get("lab")["layout"] != "contained":
        pytest.skip("code in a plain session could read the key of whoever approves")
    return house


def by_the_agent(hf: Installation, text: str) -> subprocess.Popen[bytes]:
    """A script that it runs in the session, under way."""
    free(hf, "lab")
    script = hf.user / "do.sh"
    script.write_text(text)
    return hf.start("--as", "bot", "run", "lab", "--", f"bash {script}")


def asked(hf: Installation) -> dict[str, Any]:
    """The question about an exec. Where the shell's grammar is missing, the policy asks about the command first."""
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
def test_p4_however_it_is_started_it_is_refused(house: Installation, command: str) -> None:
    free(house, "lab")
    script = house.user / "do.sh"
    script.write_text(command + "\n")
    done = house.cli("--as", "ann", "run", "lab", "--", f"bash {script} </dev/null")
    assert Path("/etc/hostname").read_text().strip() not in done.out, done
    assert "ermission denied" in done.out, done


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


def test_p4_what_is_asked_about_waits_and_goes_on_when_it_is_approved(apart: Installation) -> None:
    held = by_the_agent(apart, "echo before; echo abc | rev; echo after\n")
    question = asked(apart)
    assert (
        question["act"] == "exec"
        and question["operator"] == "bot"
        and question["text"].endswith("/rev")
        and question["cwd"] == str(apart.user)
    ), question
    eventually(
        lambda: apart.ok("attention", "lab", "--json").json["kind"] == "approval",
        "that somebody is needed",
    )
    assert "lab: waits for approval" in apart.ok("attention", "lab").out
    approve(apart, question)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"before\ncba\nafter\n", (out, err)


def test_p4_what_is_denied_fails_with_126(apart: Installation) -> None:
    held = by_the_agent(apart, "rev </dev/null; echo $?\n")
    question = asked(apart)
    approve(apart, question, "deny")
    out, _ = held.communicate(timeout=DEADLINE_S)
    assert out.endswith(b"126\n"), out


@pytest.mark.skipif(
    find_shfmt() is None,
    reason="without the shell's grammar the rule cannot be known when the command is asked about",
)
def test_p4_a_rule_that_was_approved_for_the_act_does_not_ask_again(apart: Installation) -> None:
    free(apart, "lab")
    held = apart.start("--as", "bot", "run", "lab", "--", "echo abc | rev")
    [question] = eventually(lambda: waiting(apart), "the question")
    assert question["act"] == "run"
    approve(apart, question)
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
def test_p4_what_waits_is_judged_by_the_policy_that_is_in_force(
    house: Installation, policy: str, becomes: bytes
) -> None:
    """The rule that asked is gone; or it refuses now; or nothing can be used of the policy at all. Nobody has to do anything but change it."""
    held = by_the_agent(house, "echo abc | rev; echo $?\n")
    asked(house)
    try:
        obey(house, policy)
        out, err = held.communicate(timeout=DEADLINE_S)
        assert out.endswith(becomes), (out, err)
    finally:
        obey(house, POLICY)


def test_p4_what_waits_is_asked_about_anew_if_the_policy_still_asks(apart: Installation) -> None:
    held = by_the_agent(apart, "echo abc | rev; echo $?\n")
    first = asked(apart)
    try:
        obey(apart, POLICY.replace("it turns things around", "it mirrors things"))
        [again] = eventually(
            lambda: [q for q in waiting(apart) if q["id"] != first["id"]],
            "a question under the new policy",
        )
        assert again["because"] == "it mirrors things" and again["text"] == first["text"]
        approve(apart, again)
        out, err = held.communicate(timeout=DEADLINE_S)
        assert out == b"cba\n0\n", (out, err)
    finally:
        obey(apart, POLICY)


def test_p4_a_held_exec_that_is_killed_withdraws_its_question(apart: Installation) -> None:
    held = by_the_agent(apart, "rev </dev/null; echo over $?\n")
    asked(apart)
    apart.ok("--as", "ann", "halt", "lab")
    apart.ok("--as", "ann", "resume", "lab")
    assert len(waiting(apart)) == 1, "halted and resumed, it asks the same question"
    apart.ok("--as", "ann", "seize", "lab")
    apart.ok("--as", "ann", "send", "lab", "--key", "C-c")
    eventually(lambda: not waiting(apart), "the question to be withdrawn")
    held.communicate(timeout=DEADLINE_S)


def test_s4_an_exec_that_is_held_outlives_the_host(apart: Installation) -> None:
    held = by_the_agent(apart, "echo abc | rev; echo end\n")
    question = asked(apart)
    os.kill(apart.host_pid, signal.SIGKILL)
    [again] = eventually(lambda: waiting(apart), "the question at the next host")
    assert again["id"] == question["id"]
    approve(apart, again)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"cba\nend\n", (out, err)
    assert apart.get("lab")["gate"] == "exec"


def test_p4_end_works_while_execs_are_held(apart: Installation) -> None:
    apart.new("brief", "--contained", "--cwd", str(apart.user), "--", "bash")
    script = apart.user / "do.sh"
    script.write_text("rev </dev/null; echo x\n")
    held = apart.start("--as", "bot", "run", "brief", "--", f"bash {script}")
    asked(apart)
    apart.ok("--as", "ann", "end", "brief")
    held.communicate(timeout=DEADLINE_S)
    eventually(lambda: not waiting(apart), "the question to be void")


def test_p4_where_the_kernel_refuses_it_nothing_is_made_that_was_to_have_it(
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
        f"{command} new must --gate exec --no-attach -- bash; echo rc=$?\n{command} ls --json; echo; {command} down\n"
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
            'permit(principal, action, resource);\nforbid(principal, action == Action::"exec", resource) when { context.commands.contains("tr") };\n'
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
    """The same in a user namespace; and plain sessions of an ordinary user are not gated so deep."""
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
