"""Known ways around the gate and the record, each closed (P1, P2, P4)."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import GateRefused, Held, Refused
from holdfast.model.limits import INPUT_CHUNK_BYTES
from holdfast.wire import frames
from tests.support.commands.results import the_error
from tests.support.installation import Installation, eventually, installation
from tests.support.peers.hostile_client import Wire


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ann")
        made.people("bot", rights="execute,new", kind="agent")
        made.people("boss", rights="execute,manage,grant", kind="agent")
        yield made


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file outside of the directories where an agent may delete without being asked."""
    if not os.access("/opt", os.W_OK):
        pytest.skip("this user may not write below /opt")
    path = Path("/opt") / f"holdfast-{tmp_path.name}-{secrets.token_hex(4)}"
    path.write_text("precious")
    yield path
    path.unlink(missing_ok=True)


def room(hf: Installation, name: str, *argv: str) -> str:
    hf.new(name, "--contained", "--cwd", "/tmp", "--", *(argv or ("bash",)))
    if not argv:
        hf.wait(name, "idle")
    return name


def verified(hf: Installation, session: str) -> list[dict[str, Any]]:
    assert json.loads(hf.ok("log", "verify", session, "--json").out)["ok"] is True
    return hf.ok("log", session, "--limit", "1000", "--json").records


def test_p4_an_allowed_key_does_not_allow_the_next_key(hf: Installation, victim: Path) -> None:
    name = room(hf, "keys")
    bot = Wire(hf, "bot", 201)
    bot.attach(name)
    first = bot.sequence = bot.sequence + 1
    bot.say(
        frames.input_(first, b"\x11", frames.INPUT_ACK),
        frames.input_(first + 1, f"rm -f {victim}\r".encode(), frames.INPUT_ACK),
    )
    assert bot.until("refused", number=first + 1)["name"] == "gate_refused"
    bot.close()
    hf.ok("seize", name)
    hf.ok("send", name, "--key", "C-c")
    hf.wait(name, "idle")
    assert victim.exists()
    verified(hf, name)


def test_p4_used_numbers_carry_no_input_past_the_gate(hf: Installation, victim: Path) -> None:
    name = room(hf, "chunks")
    bot = Wire(hf, "bot", 202)
    bot.request("send", session=name, text="true\r", seq=1)
    with pytest.raises(Refused):
        bot.request(
            "send", session=name, text="#" * INPUT_CHUNK_BYTES + f"\rrm -f {victim}\r", seq=1
        )
    bot.request("turn", session=name, act="release")
    hf.ok("run", name, "--", "true")
    assert victim.exists()
    verified(hf, name)


def test_p4_typeahead_is_judged_as_the_line_that_the_shell_will_read(
    hf: Installation, victim: Path
) -> None:
    name = room(hf, "ahead")
    bot = Wire(hf, "bot", 203)
    bot.request("send", session=name, text="sleep 1\r")
    with pytest.raises(Held):
        bot.request("send", session=name, text=f"rm -f {victim}\r", hold=0.0)
    bot.request("turn", session=name, act="release")
    hf.wait(name, "idle")
    assert victim.exists()


def test_p4_a_pager_runs_no_command_for_an_agent(hf: Installation, victim: Path) -> None:
    name = room(hf, "pager")
    bot = Wire(hf, "bot", 204)
    bot.request("send", session=name, text="less /etc/passwd\r")
    hf.wait(name, "text:root:")
    bot.request("send", session=name, text="j", hold=0.0)
    with pytest.raises(Held):
        bot.request("send", session=name, text=f"!rm -f {victim}\r", hold=0.0)
    bot.request("send", session=name, text="q", hold=0.0)
    assert victim.exists()


def test_p4_an_agent_does_not_leave_its_cage_by_making_a_plain_session(hf: Installation) -> None:
    assert (
        the_error(hf.attempt("--as", "bot", "new", "out", "--plain", "--no-attach", "--json"), 4)[
            "name"
        ]
        == "held"
    )
    assert hf.attempt("--as", "bot", "new", "in", "--no-attach").rc == 0
    assert hf.get("in")["layout"] == "contained"


def test_p4_the_environment_of_an_agents_session_runs_no_code(
    hf: Installation, tmp_path: Path
) -> None:
    mark = Path("/tmp") / f"mark-{tmp_path.name}-{secrets.token_hex(4)}"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n")
    evil.chmod(0o755)
    for n, env in enumerate(
        (
            {"PROMPT_COMMAND": f"touch {mark}"},
            {"BASH_ENV": str(evil)},
            {"SHELL": str(evil)},
            {"LD_PRELOAD": str(evil)},
        )
    ):
        hf.ask(
            "new",
            "bot",
            name=f"env{n}",
            argv=[],
            cwd="/tmp",
            env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "SHELL": "/bin/bash", **env},
        )
        hf.wait(f"env{n}", "idle")
        assert not mark.exists(), env


def test_p4_an_approval_of_a_grant_is_for_all_that_it_says(hf: Installation) -> None:
    """Asked with limits and done without: a different question. So is a different key."""
    questions = set()
    for limits in ({"commands": ["ls"], "expires": 4102444800}, {"commands": ["ls"]}, {}):
        with pytest.raises(Held) as held:
            hf.ask("grant", "boss", name="bot", rights=["input"], **limits)
        questions.add(held.value.facts["id"])
    for key in (
        "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "ed25519:PUAXw-hDiVqStwqnTRt-vJyYLM8uxJaMwM1V8Sr0Zgw",
    ):
        with pytest.raises(Held) as held:
            hf.ask("operator.add", "boss", name="carl", kind="human", key=key)
        questions.add(held.value.facts["id"])
    assert len(questions) == 5


@pytest.mark.parametrize("own_key", [False, True])
def test_a5_nobody_is_asked_about_rights_that_the_caller_lacks(
    hf: Installation, own_key: bool
) -> None:
    """An agent without `manage` is refused at once, whatever the policy would ask."""
    key = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"

    def questions() -> set[str]:
        return {one["id"] for one in json.loads(hf.ok("approvals", "--json").out)}

    before = questions()
    for argv in (
        ("operator", "add", "carl", "--key", key),
        ("grant", "bot", "--rights", "admin", *(("--own-key",) if own_key else ())),
        ("invite", "--rights", "read", "--no-wait"),
        ("invite", "--device", "x", "--of", "ann", "--no-wait"),
    ):
        done = hf.cli("--as", "bot", *argv)
        assert done.rc == 4 and "approv" not in done.err, done
    assert questions() <= before  # one may have lapsed meanwhile


def test_p1_input_behind_a_detach_is_not_typed_unrecorded(hf: Installation) -> None:
    name = room(hf, "leaving", "cat")
    ann = Wire(hf, "ann", 205)
    ann.attach(name)
    number = ann.sequence + 1
    assert ann.sock is not None
    ann.sock.sendall(
        frames.input_(number, b"typed\n")
        + frames.request(99, {"op": "detach"})
        + frames.input_(number + 1, b"after\n")
    )
    ann.request("ping")
    eventually(lambda: any(e["kind"] == "leave" for e in verified(hf, name)), "her leaving")
    recorded = {
        n
        for e in verified(hf, name)
        if e["kind"] == "keys"
        for n in range(e["first"], e["number"] + 1)
    }
    for text, taken in (("typed", number in recorded), ("after", number + 1 in recorded)):
        if taken:
            hf.wait(name, f"text:{text}")
        assert (text in hf.screen(name)) == taken, text


def test_p1_acts_at_once_are_each_done_or_not_as_is_recorded(hf: Installation) -> None:
    """Two acts of a client, the later judged sooner: recorded as applied means read."""
    name = room(hf, "pipelined", "cat")
    ann = Wire(hf, "ann", 206)
    place = ann.acting.learn(name, ann.request("place", session=name))
    first = ann.next_sequence(2)
    said = []
    for n, text in enumerate(("echo slow | cat # one\r", "two\x11")):
        fields: dict[str, Any] = {"session": name, "text": text, "seq": first + n}
        ann.acting.sign("send", fields, place)
        said.append(frames.request(300 + n, {"op": "send", **fields}))
    ann.say(*said)
    answers: dict[int, bool] = {}
    while len(answers) < 2:
        kind, payload = ann.receive(120)
        if kind == frames.REPLY:
            number, ok, _ = frames.read_reply(payload)
            answers[number] = ok
    entries = verified(hf, name)
    became = {e["number"]: e["outcome"] for e in entries if e["phase"] == "outcome"}
    hf.ok("--as", "ann", "send", name, "end", "--enter")
    hf.wait(name, "text:end")
    for n, text in enumerate(("slow", "two")):
        assert (
            (text in hf.screen(name)) == (became.get(first + n) == "applied") == answers[300 + n]
        ), (n, became, answers)


def test_p1_an_act_that_was_overtaken_while_it_waited_is_not_said_to_be_done(
    hf: Installation, victim: Path
) -> None:
    """The first act waits for approval, a later act of the same client does not.

    The number of the first is used up by then.
    """
    name = room(hf, "overtaken")
    bot = Wire(hf, "bot", 209)
    place = bot.acting.learn(name, bot.request("place", session=name))
    first = bot.next_sequence(2)
    for n, text in enumerate((f"rm -f {victim}\r", "true\r")):
        fields: dict[str, Any] = {"session": name, "text": text, "seq": first + n}
        bot.acting.sign("send", fields, place)
        bot.say(frames.request(400 + n, {"op": "send", **fields}))
        if not n:
            held = bot.until("held")["id"]
    assert reply(bot, 401)
    [question] = [
        q for q in json.loads(hf.ok("--as", "ann", "approvals", "--json").out) if q["id"] == held
    ]
    hf.ok("--as", "ann", "approve", held, "--yes", "--binding", question["binding"])
    answered = reply(bot, 400)
    became = {e["number"]: e["outcome"] for e in verified(hf, name) if e["phase"] == "outcome"}
    hf.wait(name, "idle")
    assert (
        answered == (became.get(first) == "applied") == (not victim.exists())
        and became[first + 1] == "applied"
    ), (answered, became)


def reply(wire: Wire, number: int) -> bool:
    """Whether that request was done."""
    while True:
        kind, payload = wire.receive(120)
        if kind == frames.REPLY and frames.read_reply(payload)[0] == number:
            return frames.read_reply(payload)[1]


def test_p2_a_hidden_prompt_of_a_posix_shell_is_hidden(hf: Installation) -> None:
    name = room(hf, "posix", "sh")
    hf.ok("send", name, "stty -echo; read pw; stty echo; echo got-it", "--enter")
    hf.ok("wait", name, "--for", "secret", "--timeout", "120")
    hf.ok("send", name, "hunterdash1", "--enter")
    hf.wait(name, "text:got-it")
    assert "hunterdash1" not in json.dumps(verified(hf, name))


def test_p2_a_refusal_at_a_hidden_prompt_does_not_repeat_the_input(hf: Installation) -> None:
    name = room(hf, "hidden")
    hf.ok("send", name, "read -s pw; echo got-it", "--enter")
    hf.ok("wait", name, "--for", "secret", "--timeout", "120")
    hf.ok("turn", name, "release")
    with pytest.raises(GateRefused) as refused:
        hf.ask("send", "bot", session=name, text="sudo hunterq1>/etc/hunterq2\r")
    assert "hunter" not in refused.value.message
    hf.ok("send", name, "x", "--enter")
    hf.wait(name, "text:got-it")
    assert "hunter" not in json.dumps(verified(hf, name))


def test_a6_hidden_input_is_not_shown_to_the_next_holder(hf: Installation) -> None:
    name = room(hf, "half")
    hf.ok("send", name, "read -s pw; echo got-it", "--enter")
    hf.ok("wait", name, "--for", "secret", "--timeout", "120")
    ann, watcher = Wire(hf, "ann", 207), Wire(hf, "bot", 208)
    watcher.attach(name, observe=True)
    hf.ok("turn", name, "hand", "ann")
    ann.request("send", session=name, text="hunterleak7")
    took = hf.ok("seize", name, "--json").json
    assert took["inherits"]["staged"] == [{"operator": "ann", "text": "(hidden)"}]
    event = watcher.until("turn", how="seize")
    assert "staged" not in event
    hf.ok("send", name, "--key", "C-c")
