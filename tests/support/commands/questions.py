"""Questions for approval as an honest host sends them: the binding belongs to the facts."""

from __future__ import annotations

from typing import Any

from holdfast.core.policy import approvals
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.shown import read


def question(p: dict[str, Any]) -> dict[str, Any]:
    """The question with `binding` and `bound` for its other fields; the act must be a text."""
    content = read(p["text"]).encode("utf-8", "surrogateescape")
    actor = Actor(p["operator"], p.get("key", "k1"), "agent")
    facts = ("('boot', 17, 4711)",)
    request = Request(
        p["act"],
        actor,
        session=p["session"],
        epoch=1,
        content=content,
        cwd=p["cwd"],
        state=approvals.state_digest(facts[0]),
        state_facts=facts,
    )
    bound, known = approvals.bind(request, "v1"), approvals.evidence(request)
    return {
        **p,
        "key": actor.key,
        "binding": bound.digest(),
        "bound": {
            "epoch": bound.epoch,
            "content": known.content,
            "details": known.details,
            "commitment": bound.content,
            "policy": bound.policy,
            "state": bound.state,
            "state_facts": list(known.state),
        },
    }
