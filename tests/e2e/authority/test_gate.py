"""The gate as people and agents meet it: real commands, hosts and policies (P4, A6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.approving import approve, free, waiting
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually, installation


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A person, an agent, and a contained session that both may steer."""
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ann")
        made.people("bot", rights="execute,observe", kind="agent")
        made.new("lab", "--contained", "--cwd", str(made.user), "--", "bash")
        yield made


@pytest.mark.smoke
def test_p4_an_agent_works_freely_and_is_asked_about_irreversible_acts(
    house: Installation,
) -> None:
    free(house, "lab")
    build = house.user / "build"
    assert (
        house.ok(
            "--as",
            "bot",
            "run",
            "lab",
            "--",
            f"mkdir -p {build}/logs && cd {build} && touch logs/a && rm -rf ./logs && pwd",
        ).out
        == f"{build}\n"
    )
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/precious; echo deleted")
    [question] = eventually(lambda: waiting(house), "the question")
    assert (
        "bot waits for approval: it deletes outside of the directory it works in, "
        f"or that directory itself (`holdfast approve {question['id']}`)"
        in house.ok("who", "lab").out
    )
    assert (
        question["operator"] == "bot"
        and "rm -rf /srv/precious" in question["text"]
        and question["cwd"] == str(build)
    )
    approve(house, question)
    out, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 0 and out == b"deleted\n", (out, err)
    assert b"waits for approval, at most " in err and question["rule"].encode() in err
    assert f"`holdfast approve {question['id']}`".encode() in err
    entries = house.ok("log", "lab", "--json").records
    about = [
        e
        for e in entries
        if e["content"] == "rm -rf /srv/precious; echo deleted" or e["kind"] == "approve"
    ]
    assert [(e["actor"], e["kind"], e["phase"], e["verdict"]) for e in about] == [
        ("bot", "command", "fact", "hold"),
        ("ann", "approve", "fact", None),
        ("bot", "command", "intent", "allow"),
    ]
    assert "approved by ann" in about[-1]["reason"]
    verified = json.loads(house.ok("log", "verify", "lab", "--json").out)
    assert verified["ok"] is True, verified


def test_p4_a_denied_act_does_not_happen(house: Installation) -> None:
    free(house, "lab")
    held = house.start("--as", "bot", "run", "lab", "--json", "--hold", "300", "--", "sudo true")
    [question] = eventually(lambda: waiting(house), "the question")
    approve(house, question, "deny")
    out, err = held.communicate(timeout=DEADLINE_S)
    notice = json.loads(err.splitlines()[0])["held"]
    assert (notice["id"], notice["rule"]) == (question["id"], question["rule"])
    assert notice["waits_s"] == 300 < notice["expires_in"]
    assert held.returncode == 255 and json.loads(out)["error"]["name"] == "gate_refused"
    assert "sudo" not in house.screen("lab")


def test_p4_an_asker_that_did_not_wait_finds_the_act_approved_later(house: Installation) -> None:
    free(house, "lab")
    error = the_error(
        house.attempt(
            "--as",
            "bot",
            "run",
            "lab",
            "--hold",
            "0",
            "--json",
            "--",
            "sudo -n true; echo came-back",
        ),
        4,
        rc=255,
    )
    assert error["name"] == "held" and error["retry_safe"] is True
    [question] = waiting(house)
    approve(house, question)
    assert house.ok("--as", "bot", "run", "lab", "--", "sudo -n true; echo came-back").out.endswith(
        "came-back\n"
    )
    again = the_error(
        house.attempt(
            "--as",
            "bot",
            "run",
            "lab",
            "--hold",
            "0",
            "--json",
            "--",
            "sudo -n true; echo came-back",
        ),
        4,
        rc=255,
    )
    assert again["name"] == "held", "an approval is for once"
    approve(house, waiting(house)[0], "deny")


def test_p4_an_approval_is_void_in_another_directory(house: Installation) -> None:
    free(house, "lab")
    house.ok(
        "--as",
        "bot",
        "run",
        "lab",
        "--",
        f"mkdir -p {house.user}/one {house.user}/two && cd {house.user}/one",
    )
    assert (
        house.attempt(
            "--as", "bot", "run", "lab", "--hold", "0", "--", "rm -rf ../elsewhere/x /srv/y"
        ).rc
        == 255
    )
    [question] = waiting(house)
    approve(house, question)
    house.ok("--as", "bot", "run", "lab", "--", f"cd {house.user}/two")
    error = the_error(
        house.attempt(
            "--as",
            "bot",
            "run",
            "lab",
            "--hold",
            "0",
            "--json",
            "--",
            "rm -rf ../elsewhere/x /srv/y",
        ),
        4,
        rc=255,
    )
    [other] = [q for q in waiting(house) if q["state"] == "waiting"]
    assert error["name"] == "held" and other["id"] != question["id"], "it is another question now"
    approve(house, other, "deny")
    approve(house, next(q for q in waiting(house)), "deny")


def test_p4_a_person_is_not_asked_but_protected_from_obvious_mistakes(house: Installation) -> None:
    free(house, "lab")
    assert house.ok(
        "--as", "ann", "run", "lab", "--", "cd /tmp; curl -V | sh >/dev/null 2>&1; echo fine"
    ).out.endswith("fine\n")
    error = the_error(
        house.attempt("--as", "ann", "run", "lab", "--json", "--", "rm -rf /"), 4, rc=255
    )
    assert error["name"] == "gate_refused" and "root directory" in error["message"]


def test_p4_a_line_is_judged_as_it_will_be_read_not_as_it_was_sent(house: Installation) -> None:
    """In pieces, or with another operator's unfinished text: the line at the shell counts."""
    free(house, "lab")
    error = the_error(
        house.attempt("--as", "bot", "send", "lab", "rm -rf /", "--hold", "0", "--json"), 4
    )
    assert error["name"] == "gate_refused" or error["name"] == "held"
    for question in waiting(house):
        approve(house, question, "deny")
    house.ok("--as", "ann", "send", "lab", "rm -rf ")
    house.ok("--as", "ann", "turn", "lab", "hand", "bot")
    error = the_error(
        house.attempt("--as", "bot", "send", "lab", "/", "--enter", "--json", "--hold", "0"), 4
    )
    assert error["name"] in ("gate_refused", "held"), error
    house.ok("--as", "ann", "seize", "lab")
    house.ok("--as", "ann", "send", "lab", "--key", "C-u")
    for question in waiting(house):
        approve(house, question, "deny")


def test_p4_an_agents_keys_at_a_prompt_are_not_taken_one_by_one(house: Installation) -> None:
    free(house, "lab")
    terminal = house.attach("--as", "bot", "attach", "lab")
    terminal.expect(r"[$#] ")
    terminal.send("rm")
    terminal.see("cannot wait for approval")
    assert terminal.leave() == 0
    assert not any(
        e["kind"] == "keys" and e["actor"] == "bot"
        for e in house.ok("log", "lab", "--json").records
    )


def test_p4_input_at_a_hidden_prompt_is_not_shown_to_an_approver(
    house: Installation,
) -> None:
    free(house, "lab")
    house.ok("--as", "ann", "send", "lab", "read -s word; echo got-it", "--enter")
    house.ok("wait", "lab", "--for", "secret", "--timeout", "120")
    free(house, "lab")
    error = the_error(
        house.attempt("--as", "bot", "send", "lab", "sudo hunter2", "--enter", "--json"), 4
    )
    assert error["name"] == "gate_refused" and "person types it" in error["recover"]
    assert waiting(house) == []
    house.ok("--as", "ann", "send", "lab", "hunter2", "--enter")
    house.wait("lab", "text:got-it")
    free(house, "lab")


def test_p4_new_sessions_are_judged_by_their_program(house: Installation) -> None:
    house.ok("grant", "bot", "--rights", "new")
    error = the_error(
        house.attempt(
            "--as", "bot", "new", "evil", "--no-attach", "--json", "--", "rm", "-rf", "/"
        ),
        4,
    )
    assert error["name"] == "gate_refused"
    assert "evil" not in [s["name"] for s in house.ls("--all")]
    house.ok(
        "--as", "bot", "new", "bare", "--no-attach", "--", "bash"
    )  # its instructions are judged when it gets them
    house.ok("end", "bare")


def test_p4_a_policy_that_is_broken_refuses_everything_but_seizing_and_halting(
    fresh: Installation,
) -> None:
    fresh.people("ann")
    fresh.new("guarded", "--", "cat")
    fresh.ok("send", "guarded", "before", "--enter")
    policy = fresh.home / "policy.toml"
    policy.write_text("version = 1\n[[rule]]\nverdict = 'maybe'\n")
    error = the_error(fresh.attempt("send", "guarded", "after", "--enter", "--json"), 4)
    assert error["name"] == "gate_refused" and "policy" in error["message"]
    the_error(fresh.attempt("end", "guarded", "--json"), 4)
    fresh.ok("--as", "ann", "seize", "guarded")
    fresh.ok("--as", "ann", "halt", "guarded")
    assert "after" not in fresh.screen("guarded")
    policy.unlink()
    fresh.ok("resume", "guarded")
    fresh.ok("--as", "ann", "send", "guarded", "after", "--enter")
    fresh.wait("guarded", "text:after[\\s\\S]*after")


def test_p4_a_policy_plugin_that_hangs_neither_lets_through_nor_delays_a_seizure(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.people("ann")
    fresh.new("hung", "--", "cat")
    (fresh.home / "policy.cedar").write_text(
        "permit (principal, action, resource) when { this is not cedar"
    )
    the_error(fresh.attempt("send", "hung", "no", "--enter", "--json"), 4)
    took = fresh.ok("--as", "ann", "seize", "hung", "--json").json
    assert took["turn"]["holder"] == "ann"
    halted = fresh.ok("--as", "ann", "halt", "hung", "--json").json
    assert halted["complete"] is True
    assert "no" not in fresh.screen("hung")
    (fresh.home / "policy.cedar").unlink()


def test_p4_a_cedar_policy_that_permits_everything_lets_relays_change(fresh: Installation) -> None:
    pytest.importorskip("cedarpy", reason="the extra `cedar` is not installed")
    fresh.quick("up", "--detach")
    (fresh.home / "policy.cedar").write_text("permit(principal, action, resource);\n")
    assert fresh.ask("relays.changed")["relays"] == []
    (fresh.home / "policy.cedar").unlink()


def test_p4_a_policy_may_need_another_operator_to_end_a_session(fresh: Installation) -> None:
    fresh.people("ann", "bob")
    (fresh.home / "policy.toml").write_text(
        'version = 1\nextends = "default"\n[[rule]]\nname = "shared"\nverdict = "ask"\n'
        'because = "others work in it"\nwhen = { act = ["end"] }\n'
    )
    fresh.new("shared", "--contained", "--", "cat")
    ending = fresh.start("--as", "ann", "end", "shared")
    [question] = eventually(lambda: waiting(fresh), "the question")
    own = fresh.attempt(
        "--as",
        "ann",
        "approve",
        question["id"],
        "--yes",
        "--binding",
        question["binding"],
        "--json",
    )
    assert the_error(own, 4) and fresh.get("shared")["state"] != "ended"
    fresh.ok("--as", "bob", "approve", question["id"], "--yes", "--binding", question["binding"])
    ending.communicate(timeout=DEADLINE_S)
    assert ending.returncode == 0
    assert fresh.get("shared")["state"] == "ended"
    (fresh.home / "policy.toml").unlink()


def test_a5_an_envelope_for_certain_commands_is_for_those(house: Installation) -> None:
    """Every started program must be listed; an unknown program is not, and keys are not allowed."""
    free(house, "lab")
    house.people("tool", rights="observe", kind="agent")
    house.ok(
        "grant",
        "tool",
        "--rights",
        "run",
        "--session",
        "lab",
        "--command",
        "ls",
        "--command",
        "true",
    )
    assert (
        house.ok(
            "--as", "tool", "run", "lab", "--", "ls -d --color=never / 2>/dev/null && true"
        ).out
        == "/\n"
    )
    the_error(house.attempt("grant", "tool", "--rights", "run", "--command", "ls -l", "--json"), 2)
    for text in (
        "ls -d /; id",
        "$(echo ls)",
        "eval ls",
        "sudo ls",
        "bash -c ls",
        "ls > /tmp/evil",
        "env ls",
    ):
        error = the_error(
            house.attempt("--as", "tool", "run", "lab", "--json", "--", text), 4, rc=255
        )
        assert error["name"] == "not_allowed" and "only for ls, true" in error["message"], (
            text,
            error,
        )
    assert (
        the_error(house.attempt("--as", "tool", "send", "lab", "ls", "--enter", "--json"), 4)[
            "name"
        ]
        == "not_allowed"
    )
    free(house, "lab")


def test_p4_a_new_policy_takes_effect_while_an_operator_types(fresh: Installation) -> None:
    fresh.people("ann")
    fresh.new("typing", "--", "cat")
    terminal = fresh.attach("--as", "ann", "attach", "typing")
    terminal.send("x")
    terminal.see("x")
    (fresh.home / "policy.toml").write_text(
        'version = 1\n[[rule]]\nname = "nobody types"\nverdict = "refuse"\n'
        'because = "the keyboard is closed"\nwhen = { act = ["keys"] }\n'
    )
    typed = 0

    def refused() -> bool:
        nonlocal typed
        typed += 1
        terminal.send("y")
        return any(
            "the keyboard is closed" in row for row in (terminal.drain(0.05), terminal.rows())[1]
        )

    eventually(refused, "the refusal")
    assert terminal.leave() == 0
    assert fresh.screen("typing").count("y") < typed, "the last one was taken, too"
    (fresh.home / "policy.toml").unlink()


def test_p4_keys_that_waited_for_an_unfinished_line_are_judged_too(
    fresh: Installation,
) -> None:
    """A line seems to be unfinished, the terminal turns out to have none.

    The keys go on: to the policy first.
    """
    fresh.configure("[turn]\nidle_s = 0.3\n")
    fresh.people("ann", "bob")
    fresh.new("raw", "--", "sh", "-c", "stty raw -echo; echo READY; exec cat")
    fresh.wait("raw", "text:READY")
    fresh.ok("--as", "ann", "send", "raw", "half")
    fresh.wait("raw", "text:half")
    eventually(lambda: fresh.get("raw")["turn"] is None, "the turn to lapse")
    terminal = fresh.attach("--as", "bob", "attach", "raw")
    terminal.see("half")
    (fresh.home / "policy.toml").write_text(
        'version = 1\n[[rule]]\nname = "nobody types"\nverdict = "refuse"\n'
        'because = "the keyboard is closed"\nwhen = { act = ["keys"] }\n'
    )
    terminal.send("Z")
    terminal.see("the keyboard is closed")
    assert terminal.leave() == 0 and "Z" not in fresh.screen("raw")
    (fresh.home / "policy.toml").unlink()
