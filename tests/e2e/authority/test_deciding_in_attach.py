"""Held acts, decided inside of attach: shown whole, signed as shown, withdrawn by the asker.

Viewers without the right are told of the question too.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.policy.approvals import DOMAIN
from holdfast.model import signing
from tests.support.installation import Installation, Terminal, eventually, installation

RULES = (
    'version = 1\nextends = "default"\n[[rule]]\nname = "two say so"\nverdict = "ask"\n'
    'because = "it is shared"\napprovals = 2\n'
    'when = { command = ["true"] }\nwho = { kind = ["agent"] }\n'
)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        (made.home / "policy.toml").write_text(RULES)
        made.people("ann")
        made.people("eve", rights="execute")
        made.people("bot", rights="execute", kind="agent")
        made.ready("lab", "--contained", "--cwd", "/tmp", "--", "bash")
        made.ready("open", "--plain", "--cwd", "/tmp", "--", "bash")
        yield made


def waiting(hf: Installation, count: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = json.loads(hf.quick("approvals", "--json"))
        return len(found) == count

    eventually(there, f"{count} questions")
    return found


def attached(hf: Installation, *args: str, size: tuple[int, int] = (80, 24)) -> Terminal:
    terminal = hf.attach(*args, size=size)
    terminal.expect(r"[$#] ")
    return terminal


def wait_for_notice(terminal: Terminal, text: str) -> None:
    """Wait until the notice appeared since the last one.

    A notice stands for a moment only, and a busy machine may look away for longer.
    """
    terminal.said = terminal.expect(re.escape(text), getattr(terminal, "said", 0))  # type: ignore[attr-defined]


def gone(terminal: Terminal, text: str) -> None:
    terminal.until(lambda: not any(text in row for row in terminal.rows()), f"{text!r} to go")


def test_p4_a_held_act_is_shown_and_approved_inside_of_attach(house: Installation) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab")
    terminal.send(b"\x1cy")
    wait_for_notice(terminal, "nothing waits for approval here")
    held = house.start("--as", "bot", "run", "lab", "--", "ls -d / # \x1b[2J\u202e; echo gone")
    [question] = waiting(house)
    wait_for_notice(terminal, "bot waits for approval (C-\\ y to see and decide)")
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this, once; n denies it; any other key leaves it waiting")
    rows = [row for row in terminal.rows() if row]
    rows = rows[1:] if rows[0].startswith("programs in this session") else rows
    assert (
        rows[0] == "bot asks to run on session lab (contained), in /tmp"
        and rows[1] == f"  {question['text']}"
    ), rows
    assert "\\u{1b}[2J\\u{202e}" in rows[1] and any(row.startswith("because") for row in rows)
    terminal.send(b"q")  # any other key
    wait_for_notice(terminal, "bot waits for approval (C-\\ y to see and decide)")
    assert waiting(house)[0]["given"] == []
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this")
    terminal.send(b"y")
    out, err = held.communicate(timeout=120)
    assert held.returncode == 0, (out, err)
    wait_for_notice(terminal, "ann approved")
    assert terminal.leave() == 0
    [given] = [
        e
        for e in house.ok("events", "lab", "--json").records
        if e["event"] == "approval.given" and e["id"] == question["id"]
    ]
    assert (
        given["by"] == "ann"
        and json.loads(bytes.fromhex(given["statement"]))["binding"] == question["binding"]
    ), "the shown act is the signed act"
    assert signing.verify(
        signing.read(given["key"]),
        DOMAIN,
        bytes.fromhex(given["statement"]),
        bytes.fromhex(given["signature"]),
    )


def all_pages(terminal: Terminal) -> str:
    """The text of the question, from page to page, without blanks."""
    terminal.see("asks to run")
    seen = ""
    while True:
        terminal.see("leaves it waiting")
        rows, at = terminal.rows(), len(terminal.output)
        seen += "".join(row for row in rows if row.startswith("  "))
        if any("y approves exactly this" in row for row in rows):
            return "".join(seen.split())
        terminal.send(b" ")
        terminal.expect(rb"\x1b\[\?2026l", at)


def test_p4_a_long_act_is_decided_only_after_all_pages_were_shown(
    house: Installation,
) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab", size=(60, 12))
    text = "rm -rf /srv/a; echo " + " ".join(f"word{n:03}" for n in range(120))
    held = house.start("--as", "bot", "run", "lab", "--", text)
    waiting(house)
    wait_for_notice(terminal, "bot waits for approval")
    terminal.send(b"\x1cy")
    terminal.see("space shows more; any other key leaves it waiting")
    terminal.send(b"y")  # too early
    wait_for_notice(terminal, "bot waits for approval")
    assert waiting(house)[0]["given"] == []
    terminal.send(b"\x1cy")
    assert all_pages(terminal) == "".join(text.split())
    terminal.resize(100, 40)
    terminal.signal(signal.SIGWINCH)
    terminal.until(
        lambda: any("word007 word008" in row for row in terminal.rows()), "it is drawn anew"
    )
    assert all_pages(terminal) == "".join(text.split())
    terminal.send(b"n")
    assert held.wait(30) == 255 and b"denied by ann" in held.communicate()[1]
    assert terminal.leave() == 0


def test_p4_keys_typed_before_the_question_decide_nothing(house: Installation) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab")
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/ahead")
    waiting(house)
    wait_for_notice(terminal, "bot waits for approval")
    terminal.send(b"\x1cyyyy\r")
    terminal.see("y approves exactly this")
    assert waiting(house)[0]["given"] == []
    held.send_signal(signal.SIGINT)  # the asker gives up: the question ends
    wait_for_notice(terminal, "bot no longer asks for")
    gone(terminal, "y approves exactly this")
    assert waiting(house, 0) == [] and held.wait(30) == 130
    [last] = [
        e for e in house.ok("events", "lab", "--json").records if e["event"].startswith("approval.")
    ][-1:]
    assert (last["event"], last["operator"], last["why"]) == (
        "approval.withdrawn",
        "bot",
        "whoever asked gave up",
    )
    assert terminal.leave() == 0


def test_p4_an_operator_that_may_not_decide_is_told_why(house: Installation) -> None:
    reader, asker = (
        attached(house, "--as", "eve", "attach", "lab"),
        attached(house, "--as", "bot", "attach", "lab"),
    )
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/no")
    [question] = waiting(house)
    wait_for_notice(reader, "bot waits for approval: it deletes")
    reader.send(b"\x1cy")
    wait_for_notice(reader, "you cannot decide it: your grant does not include `approve` here")
    wait_for_notice(asker, "you wait for approval (C-\\ y shows it)")
    asker.send(b"\x1cy")
    asker.see("it is your own: n withdraws it")
    asker.send(b"y")  # not a key that has an effect here
    gone(asker, "it is your own")
    assert waiting(house)[0]["given"] == []
    asker.send(b"\x1cy")
    asker.see("it is your own: n withdraws it")
    asker.send(b"n")
    assert held.wait(30) == 255 and b"it was withdrawn" in held.communicate()[1]
    wait_for_notice(reader, "bot no longer asks for")
    [entry] = eventually(  # takes effect at once and is recorded then
        lambda: [
            e
            for e in house.ok("log", "lab", "--json").records
            if e["kind"] == "withdraw" and e["facts"]["id"] == question["id"]
        ],
        "its entry",
    )
    assert (
        entry["actor"] == "bot"
        and f"withdraw: the run of bot ({question['id']})" in house.ok("log", "lab").out
    )
    assert reader.leave() == asker.leave() == 0


def test_p4_in_a_plain_session_an_unusable_key_is_reported_before_the_question(
    house: Installation,
) -> None:
    """A key that the session's code could read approves nothing there.

    This holds in attach, and for the command, which says so before its question.
    """
    terminal = attached(house, "--as", "ann", "attach", "open")
    held = house.start("--as", "bot", "run", "open", "--", "rm -rf /srv/plain")
    [question] = waiting(house)
    assert (
        question["counts"] is False
        and "could read the key" in question["why_not"]
        and "operator lock tester" in question["recover"]
    )
    wait_for_notice(terminal, "bot waits for approval")
    terminal.send(b"\x1cy")
    terminal.see("n denies it; any other key leaves it waiting")
    assert terminal.rows()[0].startswith(
        "your approval would not count: code in that session could read the key"
    )
    terminal.send(b"y")
    gone(terminal, "n denies it")
    assert waiting(house)[0]["given"] == []
    person = house.spawn([*map(str, house.argv(("--as", "ann", "approve", question["id"])))])
    assert (
        person.wait() == 4
        and b"would not count" in person.output
        and b"[y/N]" not in person.output
        and b"operator lock ann" in person.output
    )
    assert "your approval would not count" in house.ok("--as", "ann", "approvals").out
    withdrawn = house.ok(
        "--as", "bot", "deny", question["id"], "--yes", "--binding", question["binding"], "--json"
    ).json
    assert withdrawn["answer"] == "withdraw" and held.wait(30) == 255
    own = house.spawn([*map(str, house.argv(("--as", "bot", "approve", "q")))])
    assert own.wait() == 3
    assert terminal.leave() == 0


def test_p4_a_second_approval_is_asked_for_and_a_client_that_vanishes_withdraws(
    house: Installation,
) -> None:
    terminal = attached(house, "lab")
    held = house.start("--as", "bot", "run", "lab", "--", "true")
    [question] = waiting(house)
    house.ok("--as", "ann", "approve", question["id"], "--yes", "--binding", question["binding"])
    wait_for_notice(terminal, "1 more needed: C-\\ y")
    person = house.spawn([*map(str, house.argv(("--as", "ann", "approve", question["id"])))])
    assert (
        person.wait() == 4
        and b"you have approved it already" in person.output
        and b"[y/N]" not in person.output
    )
    held.kill()
    assert waiting(house, 0) == []
    wait_for_notice(terminal, "bot no longer asks for")
    assert terminal.leave() == 0


def test_p4_a_question_outlives_a_host_that_is_replaced(house: Installation) -> None:
    """A connection that the host ends does not withdraw the question.

    The waiting client reconnects, and the question is the same.
    """
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/again; echo after")
    [question] = waiting(house)
    house.ask("down", restart=True)
    [same] = waiting(house)
    assert same["id"] == question["id"]
    terminal = attached(house, "--as", "ann", "attach", "lab")
    wait_for_notice(terminal, "bot waits for approval (C-\\ y to see and decide)")
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this")
    terminal.send(b"y")
    out, err = held.communicate(timeout=120)
    assert held.returncode == 0 and out == b"after\n", (out, err)
    assert terminal.leave() == 0


def test_approvals_on_a_narrow_terminal_begin_with_the_question(
    house: Installation, tmp_path: Path
) -> None:
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/narrow " + "x" * 200)
    [question] = waiting(house)
    terminal = house.spawn([*map(str, house.argv(("approvals",)))])
    assert terminal.wait() == 0
    rows = [
        row for row in terminal.rows() if row and not row.startswith("    programs in this session")
    ]
    assert (
        rows[0].startswith(f"{question['id']}  rm -rf /srv/narrow xxx")
        and rows[0].endswith("...")
        and len(rows[0]) <= 80
    )
    assert (
        rows[1].startswith("    bot on lab,")
        and rows[2].startswith("    because ")
        and all(len(row) <= 80 for row in rows)
    )
    held.send_signal(signal.SIGINT)
    assert waiting(house, 0) == [] and held.wait(30) == 130


def test_a2_input_into_an_unfinished_line_is_refused_before_an_approval_is_asked(
    house: Installation,
) -> None:
    house.ready("line", "--contained", "--cwd", "/tmp", "--", "bash")
    terminal = attached(house, "--as", "ann", "attach", "line")
    terminal.send("echo unfini")
    terminal.see("unfini")
    done = house.cli("--as", "bot", "send", "line", "rm -rf /srv/elsewhere", "--enter", "--json")
    assert (
        done.rc == 4
        and "turn_held" in done.err
        and not json.loads(house.quick("approvals", "--json"))
    ), done
    terminal.send(b"\x15")
    assert terminal.leave() == 0
    house.end("line")
