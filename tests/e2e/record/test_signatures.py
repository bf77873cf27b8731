"""docs/reference/signatures.md, executed on a real installation.

Each mode of today is provoked, and its signature is read from `events --json` and `metrics`.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.session.events import EVENTS, KEYS
from tests.support.collector import numbers, of, until
from tests.support.installation import Installation, alive, eventually, installation

ROOT = Path(__file__).parents[3]
RING = 65_536
CONFIG = f"[session]\nring_bytes = {RING}\n[turn]\nidle_s = 600\n"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path, CONFIG) as made:
        yield made


def events(hf: Installation, session: str = "work") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in hf.quick("events", session, "--json").splitlines()]
    assert all(set(KEYS) <= set(one) for one in found)
    return found


def named(hf: Installation, *names: str) -> list[dict[str, Any]]:
    return [one for one in events(hf) if one["event"] in names]


def test_o_mode_1_client_disconnect(hf: Installation) -> None:
    """Killed at any byte: the same processes, advanced state, and the missed range stated."""
    made = hf.ready("work")
    before = numbers(hf)
    first = hf.attach("work")
    first.see("$")
    os.kill(first.process.pid, signal.SIGKILL)
    [gap] = eventually(lambda: named(hf, "client.left"), "the gap")
    assert (
        gap["how"] == "lost"
        and gap["operator"] == "tester"
        and gap["modality"] == "cli"
        and gap["root_pid"] == made["pid"]
    )
    hf.quick("run", "work", "--", f"head -c {3 * RING} /dev/zero | tr '\\0' x")
    second = hf.attach("work")
    second.see("$")
    back = eventually(lambda: named(hf, "client.attached")[1:], "the way back")[0]
    assert (
        back["root_pid"] == gap["root_pid"] == hf.get("work")["pid"]
        and back["output"] >= gap["output"] + 3 * RING
    )
    order = [
        one["event"] for one in named(hf, "session.started", "session.attached", "session.left")
    ]
    assert order == ["session.started", "session.attached", "session.left", "session.attached"], (
        "one start: no cold one"
    )
    after = numbers(hf)
    assert (
        of(after, "holdfast_clients_left_total", how="lost")
        == of(before, "holdfast_clients_left_total", how="lost") + 1
    )
    assert of(after, "holdfast_output_rolled_bytes_total") > of(
        before, "holdfast_output_rolled_bytes_total"
    )
    assert of(after, "holdfast_sessions", state="live") == 1
    assert hf.cli("read", "work", "--from", "0").rc == 6, "the rolled-off range is reported"


def test_o_mode_1_of_one_client_among_several(hf: Installation) -> None:
    """The session is never detached, and the gap is told all the same."""
    hf.people("ann")
    hf.ready("work")
    stays, goes = hf.attach("work"), hf.attach("--as", "ann", "attach", "work")
    stays.see("$")
    goes.see("$")
    os.kill(goes.process.pid, signal.SIGKILL)
    [gap] = eventually(lambda: named(hf, "client.left"), "the gap")
    assert gap["operator"] == "ann" and gap["how"] == "lost" and not named(hf, "session.left")


def test_o_mode_1_host_death(hf: Installation) -> None:
    made = hf.ready("work")
    assert of(numbers(hf), "holdfast_host_term") == 1
    os.kill(hf.host_pid, signal.SIGKILL)
    eventually(lambda: hf.attempt("up", "--detach").rc == 0, "another host")
    [found] = named(hf, "session.adopted")
    assert (
        found["term"] == 2
        and found["root_pid"] == made["pid"]
        and found["output"][0] == 0
        and alive(made["pid"])
    )
    assert len(named(hf, "session.started")) == 1, "nothing was run again"
    after = numbers(hf)
    assert (
        of(after, "holdfast_host_term") == 2
        and of(after, "holdfast_events_total", event="session.adopted") == 1
    )
    assert hf.ok("run", "work", "--", "echo", "still here").out == "still here\n"


def test_o_mode_2_loss_of_the_substrate(hf: Installation) -> None:
    hf.ready("work")
    [keeper] = hf.keepers()
    os.kill(keeper, signal.SIGKILL)
    [lost] = eventually(lambda: named(hf, "session.lost"), "the loss")
    assert (
        lost["reason"] == "lost: its keeper died"
        and lost["after"] == "ended"
        and lost["exit_code"] is None
    )
    [back] = eventually(lambda: named(hf, "session.re_established"), "the next incarnation")
    assert back["from"] == 1 and back["reason"] == "Its keeper was killed"
    three = ("session.lost", "session.interrupted", "session.re_established")
    until(
        hf,
        lambda found: {of(found, "holdfast_events_total", event=one) for one in three} == {1},
        "the counts",
    )
    assert hf.get("work")["epoch"] == 2


def test_o_mode_7_two_operators_that_want_to_write(hf: Installation) -> None:
    hf.people("ann", "bob")
    hf.ready("work")
    ann = hf.attach("--as", "ann", "attach", "work")
    ann.see("$")
    ann.send("true\r")
    eventually(
        lambda: [one for one in named(hf, "turn.taken") if one["holder"] == "ann"], "the turn"
    )
    for _ in range(3):
        refused = hf.attempt("--as", "bob", "send", "work", "echo bob", "--enter")
        assert refused.rc == 4 and "ann" in refused.err
    [collided] = named(hf, "turn.refused")
    assert (collided["operator"], collided["holder"], collided["why"]) == ("bob", "ann", "held")
    between = numbers(hf)
    assert (
        of(between, "holdfast_acts_total", kind="line", verdict="refused") == 3
        and of(between, "holdfast_request_errors_total", error="turn_held") == 3
    )
    hf.quick("--as", "ann", "turn", "work", "hand", "bob")
    hf.quick("--as", "bob", "send", "work", "echo bob", "--enter")
    ann.send("x")
    again = eventually(lambda: named(hf, "turn.refused")[1:], "the other way round")[0]
    assert (again["operator"], again["holder"]) == ("ann", "bob")
    assert [(one["holder"], one["how"]) for one in named(hf, "turn.taken")] == [
        ("ann", "write"),
        ("bob", "hand"),
    ]
    after = until(
        hf,
        lambda found: of(found, "holdfast_key_inputs_total", verdict="refused") >= 1,
        "refused keys",
    )
    assert (
        of(after, "holdfast_turn_moves_total", how="hand") == 1
        and of(after, "holdfast_turn_moves_total", how="write") == 1
    )
    assert of(after, "holdfast_acts_total", kind="line", verdict="applied") == 1
    log = [json.loads(line) for line in hf.quick("log", "work", "--json").splitlines()]
    assert [one["seq"] for one in log] == sorted({one["seq"] for one in log}), "one order"
    assert {"ann", "bob"} <= {one["actor"] for one in log}, "each attributed"


def test_o_mode_7_a_line_that_another_has_begun(tmp_path: Path) -> None:
    with installation(tmp_path, "[turn]\nidle_s = 0.2\n") as hf:
        hf.people("ann", "bob")
        hf.ready("work")
        ann = hf.attach("--as", "ann", "attach", "work")
        ann.see("$")
        ann.send("echo half")
        ann.see("echo half")
        eventually(lambda: named(hf, "turn.freed"), "the turn to be free")
        assert hf.attempt("--as", "bob", "send", "work", "; rm x", "--enter").rc == 4
        [collided] = named(hf, "turn.refused")
        assert (collided["operator"], collided["holder"], collided["why"]) == (
            "bob",
            "ann",
            "unfinished",
        )


def test_o_mode_8_refused_before_it_runs(hf: Installation) -> None:
    """The seam at which a policy can refuse, the facts it got, and that the act had no effect."""
    hf.people("ann")
    hf.people("builder", kind="agent")
    hf.ready("work")
    (hf.home / "policy.toml").write_text(
        'version = 1\nextends = "default"\n[[rule]]\nname = "agents do not touch it"\n'
        'verdict = "refuse"\nbecause = "ann prepared this"\n'
        'who = { kind = ["agent"] }\nwhen = { act = ["run"] }\n'
    )
    (hf.home / "policy.toml").chmod(0o600)
    hf.quick(
        "--as",
        "ann",
        "run",
        "work",
        "--",
        f"mkdir {hf.user}/poisoned; cp /usr/bin/touch {hf.user}/poisoned; "
        f"PATH={hf.user}/poisoned:$PATH",
    )
    hf.quick("--as", "ann", "turn", "work", "release")
    before = numbers(hf)
    assert (
        hf.attempt("--as", "builder", "run", "work", "--", "touch", str(hf.user / "done")).rc == 255
    )
    [refused] = named(hf, "gate.refused")
    assert (refused["operator"], refused["kind"], refused["act"], refused["rule"]) == (
        "builder",
        "agent",
        "command",
        "agents do not touch it",
    )
    entry = eventually(
        lambda: [
            one
            for one in (json.loads(line) for line in hf.quick("log", "work", "--json").splitlines())
            if one.get("verdict") == "refuse"
        ],
        "the entry",
    )[0]
    assert refused["originators"] == entry["originators"] == ["ann"], "not only the trigger"
    after = numbers(hf)
    assert (
        of(after, "holdfast_gate_decisions_total", act="run", verdict="refuse")
        == of(before, "holdfast_gate_decisions_total", act="run", verdict="refuse") + 1
    )
    assert of(after, "holdfast_acts_total", kind="command", verdict="refused") == 1 and of(
        after, "holdfast_gate_seconds_count"
    ) > of(before, "holdfast_gate_seconds_count")
    assert not (hf.user / "done").exists()


# ------------------------------------------------------------ the page


def test_o_the_page_names_only_existing_events_and_every_mode() -> None:
    page = (ROOT / "docs/reference/signatures.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| \d", line)]
    assert {int(found[1]) for row in rows if (found := re.match(r"\| (\d)", row))} == set(
        range(1, 10)
    )
    metrics = (ROOT / "docs/reference/metrics.md").read_text()
    assert not [
        name
        for name in set(re.findall(r"`(holdfast_\w+)`", page))
        if f"| `{name}` |" not in metrics
    ]
    said = set(
        re.findall(r"`((?:session|client|turn|gate|exec|originators|approval)\.[a-z_]+)`", page)
    ) - {"session.md"}
    assert said <= EVENTS.keys(), said - EVENTS.keys()
    planned = {name for name in said if EVENTS[name].planned}
    assert not planned or "planned" in page
    for path, function in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page):
        assert f"def {function}(" in (ROOT / path).read_text(), function
    assert all("now" in row.rsplit("|", 2)[1] or "not yet" in row.rsplit("|", 2)[1] for row in rows)
