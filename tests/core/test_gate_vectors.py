"""Bindings, signed statements and stored forms of approvals (approvals.json)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from holdfast.core.originators.originators import Shaped
from holdfast.core.policy import approvals, policy
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Decision, Verdict
from holdfast.host.acts import act_context
from holdfast.host.lifecycle import environment
from holdfast.host.policy import gate as host_gate
from holdfast.model import signing
from tests.vectors import cases

FILE = "approvals.json"
DOMAIN = "approval"


def request(given: dict[str, Any]) -> Request:
    raw: dict[str, Any] = {
        name: bytes.fromhex(value) if name in ("content", "state") else value
        for name, value in given.items()
        if name not in ("operator", "key", "kind")
    }
    facts = raw["state_facts"] = tuple(raw.get("state_facts", ()))
    if facts:
        raw["state"] = b"".join(map(approvals.state_digest, facts))
    return Request(actor=Actor(given["operator"], given["key"], given["kind"]), **raw)


def commitment(given: dict[str, Any]) -> str:
    return approvals.commitment(bytes.fromhex(given["content"]), given["details"])


def binding(given: dict[str, Any]) -> dict[str, Any]:
    bound = approvals.bind(request(given["request"]), given["version"])
    return {"parts": asdict(bound), "digest": bound.digest()}


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """The signed bytes of an approver, or of a requester who withdraws."""
    private = bytes.fromhex(given["private"])
    key = signing.show(signing.public(private))
    said = approvals.statement(
        given["id"], given["binding"], key, given["answer"], given["expires"]
    )
    signature = signing.sign(private, DOMAIN, said)
    return {"statement": said.hex(), "signature": signature.hex()}


def kept(given: dict[str, Any]) -> dict[str, Any]:
    """A stored question, as the next release reads it."""
    asked = given["decision"]
    decision = Decision(
        Verdict.ASK,
        asked["rule"],
        asked["because"],
        version=asked["version"],
        by=tuple(asked["by"]),
        approvals=asked["approvals"],
    )
    open_ = approvals.Approvals()
    open_.ask(given["id"], request(given["request"]), decision, given["now"])
    for who in given["approvers"]:
        name, key, kind = who
        approver = approvals.Approver(name, key, kind, frozenset({"approve"}), False, False)
        open_.approve(given["id"], approver, given["now"] + 1)
    (row,) = open_.save()
    if "state_facts" not in given["request"]:
        del row["evidence"]  # as an earlier release stored it
    pending = open_.open[given["id"]]
    return {"row": json.dumps(row), "statement": pending.statement("ka", "approve").hex()}


def question(given: dict[str, Any]) -> dict[str, Any]:
    """The facts that an approver receives, and the digest that the approver computes from them."""
    asked = request(given["request"])
    bound, known = approvals.bind(asked, given["version"]), approvals.evidence(asked)
    return {
        "facts": asdict(bound),
        "evidence": asdict(known),
        "text": approvals.show(asked.act, asked.content, asked.details),
        "binding": bound.digest(),
    }


def policy_version(given: dict[str, Any]) -> str:
    return policy.fingerprint(bytes.fromhex(given["data"]))


def surroundings(given: dict[str, Any]) -> str:
    return environment.digest(given["env"])


def state(given: dict[str, Any]) -> str:
    return act_context.fingerprinted(*given["facts"])["state"].hex()


def seen(given: dict[str, Any]) -> str:
    return host_gate.seen(None, [Shaped(*one) for one in given["shaped"]]).hex()


MAKE = {
    "commitment": commitment,
    "binding": binding,
    "answer": answer,
    "kept": kept,
    "question": question,
    "policy": policy_version,
    "environment": surroundings,
    "state": state,
    "seen": seen,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_p4_the_binding_of_an_approval_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "answer"), ids=cases.name)
def test_p4_an_answer_is_signed_for_its_purpose(case: cases.Case) -> None:
    key = signing.public(bytes.fromhex(case["input"]["private"]))
    said, signature = (bytes.fromhex(case["expected"][one]) for one in ("statement", "signature"))
    assert signing.verify(key, DOMAIN, said, signature)
    assert json.loads(said)["answer"] == case["input"]["answer"]


@pytest.mark.parametrize("case", cases.load(FILE, "kept"), ids=cases.name)
def test_p4_a_question_of_another_release_is_read(case: cases.Case) -> None:
    row = json.loads(case["expected"]["row"])
    found = approvals.restore([row])
    assert json.dumps(found.save()[0]) == case["expected"]["row"]
    pending = found.open[case["input"]["id"]]
    assert pending.statement("ka", "approve").hex() == case["expected"]["statement"]
    row.pop("evidence", None)
    del row["shaped"]
    assert approvals.restore([row]).open[case["input"]["id"]].shaped == (), "an older one has none"


@pytest.mark.parametrize("case", cases.load(FILE, "question"), ids=cases.name)
def test_p4_an_approver_computes_the_digest_from_the_facts(case: cases.Case) -> None:
    said = case["expected"]
    known = approvals.Evidence(**{**said["evidence"], "state": tuple(said["evidence"]["state"])})
    bound = approvals.Binding(**said["facts"])

    def fault(
        bound: approvals.Binding = bound,
        digest: str = said["binding"],
        text: str = said["text"],
        known: approvals.Evidence = known,
    ) -> str:
        return approvals.discrepancy(bound, digest, text, known)

    assert fault() == ""
    for name, value in said["facts"].items():
        other = value + 1 if isinstance(value, int) else f"{value}0"
        changed: dict[str, Any] = {name: other}
        assert fault(bound=replace(bound, **changed)), name
    assert fault(digest=said["binding"][::-1])
    assert fault(text=said["text"] + " ")
    assert fault(known=replace(known, content=known.content + "20"))
    assert fault(known=replace(known, details={**known.details, "more": "x"}))
    if known.state:
        assert fault(known=replace(known, state=(*known.state[:-1], "other")))
