"""`notify`: what a session waits for reaches the person who asked, once (S2, P4)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.afar import afar
from tests.support.commands.attached import attached
from tests.support.commands.desktop import Desktop
from tests.support.commands.desktop import desktop as desktop
from tests.support.commands.followers import Following
from tests.support.commands.receiver import Receiver
from tests.support.commands.receiver import receiver as receiver
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

SECRET = "whsec_c2VjcmV0"
RULE = (
    'version = 1\nextends = "default"\n[[rule]]\nname = "true"\nverdict = "ask"\n'
    'because = "somebody else decides"\nwhen = { command = ["true"] }\n'
    'who = { kind = ["agent"] }\n'
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        (made.home / "policy.toml").write_text(RULE)
        made.people("ann")
        made.people("bot", rights="execute", kind="agent")
        yield made


class Told(Following):
    """`notify --json` beside the test, which reads one notice after the other."""

    def __init__(self, hf: Installation, *args: str, by: str = "ann") -> None:
        super().__init__(hf, "notify", *(("--as", by) if by else ()), *args)

    def kinds(self, count: int) -> list[tuple[str, str]]:
        return [(one["name"], one["kind"]) for one in (self.next() for _ in range(count))]


def follows(hf: Installation, operations: int = 2) -> None:
    """Waits until the host has the requests of a `notify`."""
    for op in ("approvals", "attention")[:operations]:
        hf.under_way(op, 1)


def ends(hf: Installation, told: Told) -> None:
    """Ends the command, and waits until the host knows it: the next test has one of its own."""
    assert told.stop() == 130
    eventually(lambda: not hf.ask("stats")["under_way"].get("attention"), "no follower")


def kind_of(delivery: tuple[Any, Any]) -> str:
    """What the session of a webhook's delivery waits for."""
    return str(delivery[0]["type"]).partition(".")[2]


def answer(hf: Installation, session: str, text: str) -> None:
    hf.quick("send", session, text, "--enter")
    hf.wait(session, "idle")


def test_s2_p4_each_wait_reaches_desktop_webhook_and_terminal_once(
    house: Installation, desktop: Desktop, receiver: Receiver, tmp_path: Path
) -> None:
    house.ready("lab", "--contained", "--cwd", "/tmp", "--", "bash")
    house.ready("work")
    file = tmp_path / "receiver"
    file.write_text(f"{receiver.url}\n{SECRET}\n")
    file.chmod(0o600)
    words = ("notify", "--as", "ann", "--desktop", "--terminal", "--webhook", f"@{file}")
    environ = {"DBUS_SESSION_BUS_ADDRESS": desktop.address}
    terminal = house.spawn([sys.executable, "-m", "holdfast", *words], (300, 40), environ)
    terminal.expect("tells of approval, input, secret")
    follows(house)
    receiver.answers = [500]  # a delivery is repeated with the same id
    held = house.start("--as", "bot", "run", "lab", "--", "true '\x1b[2J\u202e<b>'; echo done")
    eventually(lambda: desktop.shown, "the question on the desktop")
    (title, text) = desktop.shown[0]
    assert title == "lab: bot waits for approval"
    shown = "true '\\u{1b}[2J\\u{202e}<b>'; echo done"
    assert text.startswith(f"{shown.replace('<b>', '&lt;b&gt;')} (because ")
    assert desktop.calls[0][0] == "holdfast" and desktop.calls[0][7] == -1
    terminal.expect(b"\x1b\\]9;holdfast: lab: bot waits for approval: true ")
    assert b"\x1b[2J" not in terminal.output and shown.encode() in terminal.output
    house.quick("send", "work", "read -s -p Password: x; read -p Name: y", "--enter")
    terminal.expect(b"\x1b\\]9;holdfast: work: waits for a secret: bash\a\a")
    os.kill(house.host_pid, signal.SIGKILL)  # the next host has the same two questions
    house.ls()
    follows(house)
    house.quick("send", "work", "hunter2", "--enter")
    terminal.expect(b"\x1b\\]9;holdfast: work: waits for input: bash\a\a")
    answer(house, "work", "ada")
    eventually(lambda: len(receiver.got) >= 4, "three deliveries, one of them twice")
    # Deliveries are independent of each other: each of them may come after a later one.
    got = sorted(((json.loads(body), headers) for _, headers, body in receiver.got), key=kind_of)
    bodies, ids = [body for body, _ in got], [headers["webhook-id"] for _, headers in got]
    assert [*map(kind_of, got)] == ["approval", "approval", "input", "secret"]
    assert bodies[0] == bodies[1]
    assert ids[0] == ids[1] and len(set(ids)) == 3
    assert all(headers["webhook-signature"].startswith("v1,") for _, headers in got)
    about = bodies[0]["data"]
    assert about["operator"] == "bot" and about["text"] == shown and about["why"]
    assert bodies[0]["text"].endswith(f"holdfast approve {about['id']})")
    assert [one["data"]["name"] for one in bodies] == ["lab", "lab", "work", "work"]
    (question,) = json.loads(house.quick("--as", "ann", "approvals", "--json"))
    assert question["id"] == about["id"]
    binding = ("--yes", "--binding", question["binding"])
    house.quick("--as", "ann", "approve", about["id"], *binding)
    assert held.wait(DEADLINE_S) == 0
    terminal.send(b"\x03")
    assert terminal.wait() == 130
    assert len(desktop.shown) == 3 and terminal.output.count(b"\x1b]9;") == 3
    eventually(lambda: not house.ask("stats")["under_way"].get("attention"), "no follower")
    for name in ("lab", "work"):
        house.end(name)


def test_s2_one_session_is_followed_to_its_end(house: Installation) -> None:
    house.ready("one")
    house.ready("other")
    told = Told(house, "--session", "one", "--on", "input,exit")
    house.under_way("attention", 1)
    for name in ("other", "one"):
        house.quick("send", name, "read x", "--enter")
        house.wait(name, "input")
    found = told.next()
    assert (found["name"], found["kind"], found["text"]) == ("one", "input", "bash")
    assert found["session"] == house.get("one")["id"] and found["when"] and found["machine"] == ""
    answer(house, "one", "x")
    house.quick("send", "one", "exit 3", "--enter")
    assert told.next()["text"] == "exited with 3"
    assert told.ends() == 0
    house.end("other")


def test_s2_a_host_that_is_down_is_awaited(house: Installation) -> None:
    house.ready("stays")
    told = Told(house, "--session", "stays", "--on", "secret")
    house.under_way("attention", 1)
    house.quick("down")
    house.quick("up", "--detach")
    house.under_way("attention", 1)
    house.quick("send", "stays", "read -s x", "--enter")
    assert told.kinds(1) == [("stays", "secret")]
    ends(house, told)
    answer(house, "stays", "x")
    house.end("stays")


def test_s2_sessions_of_other_machines_are_told_and_a_silent_one_delays_nothing(
    tmp_path: Path,
) -> None:
    with afar(tmp_path) as (there, here, _):
        there.ready("far")
        here.ready("near")
        told = Told(here, "--on", "input", by="")
        there.under_way("attention", 1)
        here.under_way("attention", 1)
        there.quick("send", "far", "read x", "--enter")
        found = told.next()
        assert (found["machine"], found["name"], found["kind"]) == ("box", "far", "input")
        there.quick("down")
        here.quick("send", "near", "read x", "--enter")
        assert told.kinds(1) == [("near", "input")]
        there.quick("up", "--detach")
        there.under_way("attention", 1)
        there.quick("send", "far", "x", "--enter")
        there.wait("far", "idle")
        there.quick("send", "far", "read -s x", "--enter")
        there.wait("far", "secret")
        there.quick("send", "far", "x", "--enter")
        there.wait("far", "idle")
        there.quick("send", "far", "read x", "--enter")
        assert told.kinds(1) == [("far", "input")], "the first question was told before"
        assert told.stop() == 130
        told.process.wait()


def test_p4_a_question_of_another_machine_is_answered_by_its_path(tmp_path: Path) -> None:
    with afar(tmp_path) as (there, here, _):
        (there.home / "policy.toml").write_text(RULE)
        there.people("bot", rights="execute", kind="agent")
        there.ready("far", "--contained", "--cwd", "/tmp", "--", "bash")
        here.quick("up", "--detach")
        told = Told(here, "--on", "approval", by="")
        held = there.start("--as", "bot", "run", "far", "--", "true")
        found = told.next()
        assert (found["machine"], found["kind"]) == ("box", "approval")
        here.quick("--as", "ann", "deny", f"box/{found['id']}")
        assert held.wait(DEADLINE_S) == 255
        assert told.stop() == 130


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--on", "secrets"), 2, "--on does not know 'secrets'"),
        (("--webhook", "http://9.9.9.9/x"), 2, "needs https"),
        (("--desktop",), 7, "no desktop takes notifications here"),
        (("--terminal",), 7, "this command has no terminal"),
        (("--session", "no-such"), 3, "no-such"),
    ],
)
def test_a_way_that_cannot_be_is_refused_at_once(
    house: Installation, words: tuple[str, ...], code: int, said: str
) -> None:
    environ = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
    process = house.start("--as", "ann", "notify", *words, env=environ)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said in err.decode()) == (code, True), err


def test_p4_an_attached_terminal_hears_of_questions_in_other_sessions(house: Installation) -> None:
    house.ready("mine")
    house.ready("theirs", "--contained", "--cwd", "/tmp", "--", "bash")
    terminal = attached(house, "--as", "ann", "attach", "mine")
    house.under_way("approvals", 1)
    held = house.start("--as", "bot", "run", "theirs", "--", "true; echo done")
    at = terminal.expect(r"theirs: bot waits for approval \(C-\\ y to see and decide\)")
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this, once; n denies it")
    terminal.send(b"y")
    assert held.wait(DEADLINE_S) == 0
    assert terminal.output.count(b"theirs: bot waits for approval", at) == 0
    held = house.start("--as", "bot", "run", "theirs", "--", "true; echo again")
    terminal.expect("theirs: bot waits for approval", at)
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this, once; n denies it")
    held.send_signal(signal.SIGINT)  # the agent withdraws it: the page of another session goes
    terminal.until(lambda: not any("approves exactly" in row for row in terminal.rows()), "no page")
    assert terminal.leave() == 0
    for name in ("mine", "theirs"):
        house.end(name)


def test_s2_an_attached_terminal_hears_of_other_waits_if_its_user_wants(
    house: Installation,
) -> None:
    config = house.home / "config.toml"
    before = config.read_text()
    config.write_text(f'{before}\n[attach]\nothers = "all"\n')
    house.ready("mine")
    house.ready("theirs")
    terminal = attached(house, "--as", "ann", "attach", "mine")
    config.write_text(before)
    house.under_way("attention", 1)
    house.quick("send", "theirs", "read -s x", "--enter")
    at = terminal.expect(r"theirs: waits for a secret \(bash\); C-\\ s goes there")
    terminal.send(b"read mine\r")
    house.wait("mine", "input")
    answer(house, "theirs", "x")
    house.quick("send", "theirs", "read x", "--enter")
    terminal.expect(r"theirs: waits for input \(bash\)", at)
    assert b"mine: waits" not in terminal.output, "the user sees this session"
    answer(house, "theirs", "x")
    terminal.send(b"x\r")
    assert terminal.leave() == 0
    for name in ("mine", "theirs"):
        house.end(name)
