"""What waits for approval, decided inside of attach: shown whole, signed as shown, told to whoever may not; and withdrawn by whoever asked."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import Installation, Terminal, eventually, installation

from holdfast.core.gate import DOMAIN
from holdfast.model import signing

RULES = (
    'version = 1\nextends = "default"\n[[rule]]\nname = "two say so"\nverdict = "ask"\nbecause = "it is shared"\napprovals = 2\n'
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
    terminal.see("$")
    return terminal


def told(terminal: Terminal, text: str) -> None:
    """It was said since the last thing that was: a notice stands for a moment only, and a busy machine may look away for longer."""
    terminal.said = terminal.expect(re.escape(text), getattr(terminal, "said", 0))  # type: ignore[attr-defined]


def gone(terminal: Terminal, text: str) -> None:
    terminal.until(lambda: not any(text in row for row in terminal.rows()), f"{text!r} to go")


def test_p4_what_waits_is_shown_and_approved_inside_of_attach(house: Installation) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab")
    terminal.send(b"\x1cy")
    told(terminal, "nothing waits for approval here")
    held = house.start(
        "--as", "bot", "run", "lab", "--", "rm -rf /srv/precious # \x1b[2J\u202e; echo gone"
    )
    [question] = waiting(house)
    told(terminal, "bot waits for approval (C-\\ y to see and decide)")
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this, once; n denies it; any other key leaves it waiting")
    rows = terminal.rows()
    assert (
        rows[0] == "bot asks to run on session lab (contained), in /tmp"
        and rows[2] == f"  {question['text']}"
    ), rows
    assert "\\u{1b}[2J\\u{202e}" in rows[2] and any(row.startswith("because") for row in rows)
    terminal.send(b"q")  # any other key
    told(terminal, "bot waits for approval (C-\\ y to see and decide)")
    assert waiting(house)[0]["given"] == []
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this")
    terminal.send(b"y")
    out, err = held.communicate(timeout=120)
    assert held.returncode == 0, (out, err)
    told(terminal, "ann approved")
    assert terminal.leave() == 0
    [given] = [
        e
        for e in house.ok("events", "lab", "--json").records
        if e["event"] == "approval.given" and e["id"] == question["id"]
    ]
    assert (
        given["by"] == "ann"
        and json.loads(bytes.fromhex(given["statement"]))["binding"] == question["binding"]
    ), "what was shown is what is signed"
    assert signing.verify(
        signing.read(given["key"]),
        DOMAIN,
        bytes.fromhex(given["statement"]),
        bytes.fromhex(given["signature"]),
    )


def all_pages(terminal: Terminal) -> str:
    """What is asked, from page to page, without blanks."""
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


def test_p4_what_is_longer_than_the_screen_is_decided_when_all_of_it_was_shown(
    house: Installation,
) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab", size=(60, 12))
    text = "rm -rf /srv/a; echo " + " ".join(f"word{n:03}" for n in range(120))
    held = house.start("--as", "bot", "run", "lab", "--", text)
    waiting(house)
    told(terminal, "bot waits for approval")
    terminal.send(b"\x1cy")
    terminal.see("space shows more; any other key leaves it waiting")
    terminal.send(b"y")  # too early
    told(terminal, "bot waits for approval")
    assert waiting(house)[0]["given"] == []
    terminal.send(b"\x1cy")
    assert all_pages(terminal) == "".join(text.split())
    terminal.resize(100, 40)
    terminal.signal(signal.SIGWINCH)
    terminal.until(
        lambda: terminal.rows()[2:3] and "word007 word008" in terminal.rows()[2], "it is drawn anew"
    )
    assert all_pages(terminal) == "".join(text.split())
    terminal.send(b"n")
    assert held.wait(30) == 255 and b"denied by ann" in held.communicate()[1]
    assert terminal.leave() == 0


def test_p4_what_is_typed_before_the_question_is_there_decides_nothing(house: Installation) -> None:
    terminal = attached(house, "--as", "ann", "attach", "lab")
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/ahead")
    waiting(house)
    told(terminal, "bot waits for approval")
    terminal.send(b"\x1cyyyy\r")
    terminal.see("y approves exactly this")
    assert waiting(house)[0]["given"] == []
    held.send_signal(signal.SIGINT)  # who asked gives up: it is no question any more
    told(terminal, "bot no longer asks for")
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


def test_p4_who_may_not_decide_is_told_why(house: Installation) -> None:
    reader, asker = (
        attached(house, "--as", "eve", "attach", "lab"),
        attached(house, "--as", "bot", "attach", "lab"),
    )
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/no")
    [question] = waiting(house)
    told(reader, "bot waits for approval: it deletes")
    reader.send(b"\x1cy")
    told(reader, "you cannot decide it: you have no right to approve here")
    told(asker, "you wait for approval (C-\\ y shows it)")
    asker.send(b"\x1cy")
    asker.see("it is your own: n withdraws it")
    asker.send(b"y")  # not a key that does anything here
    gone(asker, "it is your own")
    assert waiting(house)[0]["given"] == []
    asker.send(b"\x1cy")
    asker.see("it is your own: n withdraws it")
    asker.send(b"n")
    assert held.wait(30) == 255 and b"it was withdrawn" in held.communicate()[1]
    told(reader, "bot no longer asks for")
    [entry] = [
        e
        for e in house.ok("log", "lab", "--json").records
        if e["kind"] == "withdraw" and e["facts"]["id"] == question["id"]
    ]
    assert (
        entry["actor"] == "bot"
        and f"withdraw: the run of bot ({question['id']})" in house.ok("log", "lab").out
    )
    assert reader.leave() == asker.leave() == 0


def test_p4_in_a_plain_session_it_is_said_before_anything_is_read(house: Installation) -> None:
    """A key that the session's code could read approves nothing there: in attach, and for the command, before its question."""
    terminal = attached(house, "--as", "ann", "attach", "open")
    held = house.start("--as", "bot", "run", "open", "--", "rm -rf /srv/plain")
    [question] = waiting(house)
    assert (
        question["counts"] is False
        and "could read the key" in question["why_not"]
        and "operator lock tester" in question["recover"]
    )
    told(terminal, "bot waits for approval")
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
    assert "yours would not count" in house.ok("--as", "ann", "approvals").out
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
    told(terminal, "1 more needed: C-\\ y")
    person = house.spawn([*map(str, house.argv(("--as", "ann", "approve", question["id"])))])
    assert (
        person.wait() == 4
        and b"you have approved it already" in person.output
        and b"[y/N]" not in person.output
    )
    held.kill()
    assert waiting(house, 0) == []
    told(terminal, "bot no longer asks for")
    assert terminal.leave() == 0


def test_p4_a_question_outlives_a_host_that_is_replaced(house: Installation) -> None:
    """The connection that the host ends is no sign that nobody wants it any more: who waits comes back, and it is the same question."""
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/again; echo after")
    [question] = waiting(house)
    house.ask("down", restart=True)
    [same] = waiting(house)
    assert same["id"] == question["id"]
    terminal = attached(house, "--as", "ann", "attach", "lab")
    told(terminal, "bot waits for approval (C-\\ y to see and decide)")
    terminal.send(b"\x1cy")
    terminal.see("y approves exactly this")
    terminal.send(b"y")
    out, err = held.communicate(timeout=120)
    assert held.returncode == 0 and out == b"after\n", (out, err)
    assert terminal.leave() == 0


def test_approvals_on_a_narrow_terminal_begin_with_what_is_asked(
    house: Installation, tmp_path: Path
) -> None:
    held = house.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/narrow " + "x" * 200)
    [question] = waiting(house)
    terminal = house.spawn([*map(str, house.argv(("approvals",)))])
    assert terminal.wait() == 0
    rows = [row for row in terminal.rows() if row]
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


def test_a2_what_would_land_in_anothers_line_is_refused_before_anybody_is_asked_about_it(
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
