"""A right ends while an act waits for approval: the act is refused and recorded so (P1, P4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.core.contract.table import MACHINE, OPERATIONS
from holdfast.model.errors import NotAllowed
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.peers.hostile_client import Wire

RULES = """
version = 1
extends = "default"

[[rule]]
name = "agents ask first"
verdict = "ask"
because = "a person decides"
who = { kind = ["agent"] }
when = { act = ["end", "rename", "resume", "turn", "signal", "relays", "forget", "grant"] }
"""
PASSPHRASE = b"open sesame\r"  # an approver of acts on the machine has a locked key
HOLD_S = 60.0
EXPIRES_S = 20  # time enough for the requests to arrive on a busy machine
ACTS: list[tuple[str, dict[str, Any]]] = [
    ("end", {"session": "lab"}),
    ("rename", {"session": "lab", "name": "other"}),
    ("resume", {"session": "lab"}),
    ("turn", {"session": "lab", "act": "request"}),
    ("signal", {"session": "lab", "signal": "TERM"}),
    ("relays.changed", {}),
    ("forget", {"session": "gone"}),
    ("grant", {"name": "ann", "rights": ["observe"]}),
]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("ann")
        made.new("lab", "--contained", "--", "sleep", "3600")
        made.new("gone", "--contained", "--", "true")
        made.ok("wait", "gone", "--for", "exit")
        made.ok("halt", "lab")
        lock = made.spawn([*map(str, made.argv(("operator", "lock", "ann")))])
        at = 0
        for _ in range(2):
            at = lock.expect("passphrase of ann: ", at)
            lock.send(PASSPHRASE)
        assert lock.wait() == 0
        policy = made.home / "policy.toml"
        policy.write_text(RULES)
        policy.chmod(0o600)
        yield made


def agent(hf: Installation, name: str) -> None:
    hf.quick("operator", "add", name, "--kind", "agent")


def fields_of(hf: Installation, op: str, fields: dict[str, Any]) -> dict[str, Any]:
    if op != "signal":
        return fields
    [program] = [p for p in hf.ask("graph", session="lab")["processes"] if "sleep" in p["comm"]]
    return {**fields, "pid": program["pid"]}


def expired(hf: Installation, name: str) -> bool:
    [envelope] = hf.ask("operator.show", name=name)["envelopes"]
    return bool(envelope["state"] == "expired")


def waiting(hf: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hf.quick("approvals", "--json"))
    return found


def approve(hf: Installation, question: dict[str, Any]) -> None:
    person = hf.spawn([*map(str, hf.argv(("--as", "ann", "approve", question["id"])))])
    person.expect("passphrase of ann: ")
    person.send(PASSPHRASE)
    person.expect(r"\[y/N\] ")
    person.send(b"y\r")
    assert person.wait() == 0


def asked(
    hf: Installation, pool: ThreadPoolExecutor, name: str, op: str, fields: dict[str, Any]
) -> tuple[Future[Any], dict[str, Any]]:
    """The request of an operator, and its question."""
    wire = Wire(hf, name, 300 + len(pool._threads))
    answer = pool.submit(wire.request, op, hold=HOLD_S, **fields_of(hf, op, fields))

    def questions() -> list[dict[str, Any]]:
        assert not answer.done(), answer
        return [one for one in waiting(hf) if one["operator"] == name]

    [question] = eventually(questions, f"the question of {name}")
    return answer, question


def is_refused(hf: Installation, name: str, op: str, answer: Future[Any]) -> None:
    """The operator is told so, nothing was changed, and the record has the reason."""
    with pytest.raises(NotAllowed, match=rf"{name} (lacks the right|was revoked)|not granted"):
        answer.result(DEADLINE_S)
    assert hf.get("lab")["state"] == "halted" and hf.get("gone")["state"] == "ended"
    row = OPERATIONS[op]
    place = MACHINE if row.place == MACHINE else "lab"
    entries = hf.ok("log", place, "--limit", "1000", "--json").records
    mine = [e for e in entries if e["actor"] == name and e["kind"] == row.kind]
    assert mine[0]["verdict"] == "hold", mine
    told = [(e["phase"], e["verdict"] or e["outcome"]) for e in mine[1:]]
    late = [("intent", "allow"), ("outcome", "void")]  # the authority checks when it gives rights
    assert told == (late if op == "grant" else [("fact", "refuse")]), mine
    assert "right" in mine[-1]["reason"]


@pytest.mark.parametrize("op, fields", ACTS, ids=[op for op, _ in ACTS])
def test_p4_a_grant_that_is_revoked_during_the_wait(
    hf: Installation, op: str, fields: dict[str, Any]
) -> None:
    """The agent keeps its key: it loses the grant with the operator that signed the grant."""
    name, giver = f"bot-{op}".replace(".", "-"), f"giver-{op}".replace(".", "-")
    agent(hf, name)
    hf.people(giver)
    hf.quick("--as", giver, "grant", name, "--rights", "admin", "--own-key")
    with ThreadPoolExecutor() as pool:
        answer, question = asked(hf, pool, name, op, fields)
        hf.quick("operator", "revoke", giver)
        approve(hf, question)
        is_refused(hf, name, op, answer)


def test_p4_grants_that_expire_during_the_wait(hf: Installation) -> None:
    wanted = [(f"guest-{op}", op, fields) for op, fields in ACTS if op in ("end", "turn", "grant")]
    for name, _, _ in wanted:
        agent(hf, name)
    for name, _, _ in wanted:
        hf.quick("grant", name, "--rights", "admin", "--expires", f"{EXPIRES_S}s")
    with ThreadPoolExecutor() as pool:
        held = [(*one, *asked(hf, pool, *one)) for one in wanted]
        eventually(lambda: all(expired(hf, name) for name, _, _ in wanted), "the end of the grants")
        for name, op, _, answer, question in held:
            approve(hf, question)
            is_refused(hf, name, op, answer)
