"""Approvals of held acts, as a state machine (P4).

An approval is permission for a single act, not for a kind of act, and is bound to the exact bytes,
the directory, the actor, the key, the session, the incarnation, the policy, and the fingerprint of
all other state that the judgement used. If one of these differs when the approval is used, the
approval is void and the refusal names the difference.

    ask ──► waiting ──approve──► approved ──use──► used
               │                    │
               ├─deny──► denied     ├─ binding changed ──► void
               └─time──► expired    └─ time ──► expired
    waiting or approved ──requester withdraws──► withdrawn

Rules
1. An operator cannot approve its own act: neither the same operator nor the same key.
2. An approver has the right `approve`, and is of a kind that the rule accepts.
3. In a plain session, code runs as the account that holds the keys on that machine. There, an
   approval counts only from a key that this account cannot read.
4. An approval is used once, and expires if unused; a question expires without an answer.
5. One operator has at most PENDING_PER_OPERATOR open questions, so that a loop cannot bury the
   question that matters.
6. A denial holds for a while: repeating the request does not create a new question.

A question has the facts behind the digests (`Evidence`). The approver's client
computes the digests again, so that the signature covers only facts which the approver received.

Pure: ids, time and whether a key can be read are arguments. Refusals are values (`Rejected`), as
everywhere in core.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from holdfast.core.originators.originators import foreign, in_words
from holdfast.core.policy import execution
from holdfast.core.policy.act_facts import TEXT_ACTS
from holdfast.core.policy.conditions import Request
from holdfast.core.policy.policy import Decision
from holdfast.core.policy.shown import shown
from holdfast.model import canonical

PENDING_PER_OPERATOR: Final = 8
PENDING_MAX: Final = 256
ANSWER_WAIT_S: Final = 600.0  # for an answer to a question
USE_WAIT_S: Final = 120.0  # from the last approval to the act
DENIED_S: Final = 60.0  # during which a repeated request is denied too
SHAPED_SHOWN: Final = 16  # entries of foreign state that a question shows
SHOWN_CHARS: Final = 64 * 1024
"""Characters of an act in a question: an act that cannot be shown whole cannot be approved."""
STATE_CHARS: Final = 64 * 1024  # of the facts about the state; longer facts are left out
STATE_DIGEST_BYTES: Final = 16  # of each fingerprint in the state


def commitment(content: bytes, details: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the digest of an act: bytes and details (a signal, a process, rights)."""
    legible = {name: execution.legible(value) for name, value in details.items()}
    more = canonical.encode(legible) if legible else b""
    data = len(content).to_bytes(8, "big") + content + more
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def state_digest(facts: str) -> bytes:
    """Return a fingerprint of the state that a judgement used."""
    return hashlib.blake2b(
        facts.encode("utf-8", "replace"), digest_size=STATE_DIGEST_BYTES
    ).digest()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts from which the digests in a binding were computed."""

    content: str  # the exact bytes, in hex
    details: dict[str, str]
    state: tuple[str, ...] = ()  # a text per fingerprint; empty: left out


def evidence(request: Request) -> Evidence:
    facts = tuple(one.encode("utf-8", "replace").decode() for one in request.state_facts)
    complete = len(request.state) == STATE_DIGEST_BYTES * len(facts)
    return Evidence(
        request.content.hex(),
        {name: execution.legible(value) for name, value in request.details.items()},
        facts if complete and sum(map(len, facts)) <= STATE_CHARS else (),
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """All facts on which an approval depends."""

    session: str
    epoch: int
    operator: str
    key: str
    act: str
    content: str  # commitment to the exact bytes
    cwd: str  # empty: not known
    policy: str  # version
    state: str = ""  # fingerprint

    def digest(self) -> str:
        return hashlib.blake2b(canonical.encode(asdict(self)), digest_size=32).hexdigest()

    def difference(self, other: Binding) -> list[str]:
        names = {
            "content": "the content",
            "cwd": "the directory",
            "key": "the key",
            "state": "the state it was judged on",
            "policy": "the policy",
        }
        return [
            names.get(f.name, f"the {f.name}")
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]


def bind(request: Request, version: str) -> Binding:
    actor, content = request.actor, commitment(request.content, request.details)
    return Binding(
        request.session,
        request.epoch,
        actor.operator,
        actor.key,
        request.act,
        content,
        execution.legible(request.cwd or ""),
        version,
        request.state.hex(),
    )


@dataclass(frozen=True, slots=True)
class Approver:
    operator: str
    key: str
    kind: str
    rights: frozenset[str]
    key_readable: bool  # by the account that runs the session's code; unknown counts as readable
    plain: bool  # the session is not contained


State = Literal["waiting", "approved", "denied"]
Answer = Literal["approve", "deny", "withdraw"]
DOMAIN: Final = "approval"


def statement(id: str, binding: str, approver_key: str, answer: Answer, expires: int) -> bytes:
    """Return the bytes that an approver signs, or a requester who withdraws (domain `approval`)."""
    question = {"v": 1, "id": id, "binding": binding, "expires": expires}
    return canonical.encode({**question, "approver": approver_key, "answer": answer})


@dataclass(frozen=True, slots=True)
class Pending:
    id: str
    binding: Binding
    text: str  # the act, escaped for display
    because: str
    rule: str
    by: tuple[str, ...]
    needed: int
    asked: float
    expires: float
    state: State = "waiting"
    given: tuple[tuple[str, str], ...] = ()  # operator, key
    shaped: tuple[str, ...] = ()  # state of other operators that the act would use, in words
    denied_by: str = ""
    # None: the question was asked by a host of an earlier release.
    evidence: Evidence | None = None

    def statement(self, approver_key: str, answer: Answer) -> bytes:
        return statement(self.id, self.binding.digest(), approver_key, answer, int(self.expires))


@dataclass(frozen=True, slots=True)
class Asked:
    pending: Pending
    new: bool


@dataclass(frozen=True, slots=True)
class Approved:
    pending: Pending
    complete: bool  # there are enough approvals


@dataclass(frozen=True, slots=True)
class Closed:
    """A question was closed."""

    pending: Pending
    how: Literal["used", "denied", "void", "expired", "withdrawn"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    code: Literal[
        "not_found",
        "own",
        "right",
        "kind",
        "readable",
        "twice",
        "full",
        "size",
        "denied",
        "waiting",
        "changed",
        "expired",
    ]
    why: str


Effect = Asked | Approved | Closed | Rejected


@dataclass(slots=True)
class Approvals:
    open: dict[str, Pending] = field(default_factory=dict)

    # ------------------------------------------------------------ asking

    def ask(self, id: str, request: Request, decision: Decision, now: float) -> list[Effect]:
        """Open a question about an act; the same act again gives the same question."""
        effects = self.expire(now)
        binding = bind(request, decision.version)
        known = self.find(binding)
        if known is not None:
            if known.state == "denied":
                return [*effects, Rejected("denied", f"it was denied by {known.denied_by}")]
            if known.evidence is None:
                known = self.open[known.id] = replace(known, evidence=evidence(request))
            return [*effects, Asked(known, False)]
        mine = sum(
            p.binding.operator == binding.operator
            for p in self.open.values()
            if p.state != "denied"
        )
        if mine >= PENDING_PER_OPERATOR:
            return [*effects, Rejected("full", f"{mine} of your acts wait for approval already")]
        if len(self.open) >= PENDING_MAX:
            return [*effects, Rejected("full", "too many acts wait for approval")]
        text = show(request.act, request.content, request.details)
        if len(text) > SHOWN_CHARS:
            why = "the act is too large to be shown, so nobody can approve it"
            return [*effects, Rejected("size", why)]
        rule = (decision.because, decision.rule, decision.by, decision.approvals)
        shaped = tuple(
            in_words(one.kind, one.name, one.actor, one.sure)
            for one in foreign(request.shaped, request.actor.operator)[:SHAPED_SHOWN]
        )
        pending = Pending(
            id,
            binding,
            text,
            *rule,
            now,
            now + ANSWER_WAIT_S,
            shaped=shaped,
            evidence=evidence(request),
        )
        self.open[id] = pending
        return [*effects, Asked(pending, True)]

    def find(self, binding: Binding) -> Pending | None:
        return next((p for p in self.open.values() if p.binding == binding), None)

    # ------------------------------------------------------------ deciding

    def approve(self, id: str, approver: Approver, now: float) -> list[Effect]:
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None or pending.state == "denied":
            return [*effects, Rejected("not_found", "there is no such question, or not any more")]
        refusal = objection(pending, approver)
        if refusal is not None:
            return [*effects, refusal]
        given = (*pending.given, (approver.operator, approver.key))
        complete = len(given) >= pending.needed
        pending = replace(
            pending,
            given=given,
            state="approved" if complete else "waiting",
            expires=now + USE_WAIT_S if complete else pending.expires,
        )
        self.open[id] = pending
        return [*effects, Approved(pending, complete)]

    def deny(self, id: str, approver: Approver, now: float) -> list[Effect]:
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None or pending.state == "denied":
            return [*effects, Rejected("not_found", "there is no such question, or not any more")]
        if "approve" not in approver.rights:
            return [*effects, Rejected("right", "your grant does not include `approve`")]
        if _same(pending, approver):
            return [*effects, Rejected("own", "this is your own act; withdraw it instead")]
        self.open[id] = replace(
            pending, state="denied", denied_by=approver.operator, expires=now + DENIED_S
        )
        return [*effects, Closed(self.open[id], "denied", f"by {approver.operator}")]

    def withdraw(self, id: str, operator: str, now: float, why: str = "") -> list[Effect]:
        """Close a question of this operator, approved or not."""
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None or pending.binding.operator != operator or pending.state == "denied":
            return [*effects, Rejected("not_found", "you have no such question")]
        del self.open[id]
        return [*effects, Closed(pending, "withdrawn", why)]

    # ------------------------------------------------------------ using

    def use(self, id: str, request: Request, version: str, now: float) -> list[Effect]:
        """Use an approval just before the act takes effect.

        The act may take effect only if the last effect is `Closed(..., "used")`.
        """
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None:
            if any(isinstance(e, Closed) and e.pending.id == id for e in effects):
                return [*effects, Rejected("expired", "the approval has lapsed")]
            return [*effects, Rejected("not_found", "there is no such approval, or it was used")]
        if pending.state == "denied":
            return [*effects, Rejected("denied", f"it was denied by {pending.denied_by}")]
        changed = pending.binding.difference(bind(request, version))
        if changed:
            who = (request.actor.operator, request.actor.key)
            if (pending.binding.operator, pending.binding.key) != who:
                # the approval of the other operator stays
                return [*effects, Rejected("not_found", "there is no such approval of yours")]
            del self.open[id]
            why = f"{' and '.join(changed)} changed since it was asked"
            return [*effects, Closed(pending, "void", why), Rejected("changed", why)]
        if pending.state != "approved":
            why = f"{len(pending.given)} of {pending.needed} have approved it"
            why = why if pending.given else "no operator has approved it yet"
            return [*effects, Rejected("waiting", why)]
        del self.open[id]
        return [*effects, Closed(pending, "used")]

    # ------------------------------------------------------------ changes outside

    def expire(self, now: float) -> list[Effect]:
        return self._close([p for p in self.open.values() if now >= p.expires], "expired")

    def deadline(self) -> float | None:
        return min((p.expires for p in self.open.values()), default=None)

    def policy_changed(self, version: str) -> list[Effect]:
        gone = [p for p in self.open.values() if p.binding.policy != version]
        return self._close(gone, "void", "the policy changed")

    def session_changed(self, session: str, epoch: int | None) -> list[Effect]:
        """Void the questions of a session that ended (None) or has another incarnation."""
        ours = [p for p in self.open.values() if p.binding.session == session]
        why = "the session ended" if epoch is None else "the session was re-established"
        return self._close([p for p in ours if p.binding.epoch != epoch], "void", why)

    def revoked(self, key: str) -> list[Effect]:
        """Void the questions of a revoked key, and retract its approvals."""
        asked = [p for p in self.open.values() if p.binding.key == key]
        effects = self._close(asked, "void", "the key that asked was revoked")
        for pending in list(self.open.values()):
            if pending.state != "denied" and any(k == key for _, k in pending.given):
                self.retract(pending.id, key)
        return effects

    def ended(self, why: Callable[[Pending], str]) -> list[Effect]:
        """Void questions about programs of operators that may not act any more.

        The operator of a program has no key in the question: the key that gave the order may be
        one of many, and may be replaced meanwhile.
        """
        effects = list[Effect]()
        for pending in [p for p in self.open.values() if p.binding.act == execution.ACT]:
            if said := why(pending):
                effects += self._close([pending], "void", said)
        return effects

    def retract(self, id: str, key: str) -> None:
        """Retract the approval that this key gave to one question."""
        pending = self.open[id]
        left = tuple(g for g in pending.given if g[1] != key)
        self.open[id] = replace(
            pending, state="waiting", given=left, expires=pending.asked + ANSWER_WAIT_S
        )

    def _close(
        self, gone: list[Pending], how: Literal["expired", "void"], why: str = ""
    ) -> list[Effect]:
        for pending in gone:
            del self.open[pending.id]
        return [Closed(p, how, why) for p in gone if p.state != "denied"]

    # ------------------------------------------------------------ state

    def waiting(self) -> Iterator[Pending]:
        return (p for p in self.open.values() if p.state != "denied")

    def save(self) -> list[dict[str, Any]]:
        return [saved(p) for p in self.open.values()]


def saved(pending: Pending) -> dict[str, Any]:
    """Return the stored form of a question."""
    row = asdict(pending)
    if pending.evidence is None:
        del row["evidence"]
    return row


def restore(rows: list[dict[str, Any]]) -> Approvals:
    found = {}
    for p in rows:
        given = tuple((operator, key) for operator, key in p["given"])
        lists = {"by": tuple(p["by"]), "given": given, "shaped": tuple(p.get("shaped", ()))}
        parts: dict[str, Any] = {"binding": Binding(**p["binding"])}
        if (known := p.get("evidence")) is not None:
            parts["evidence"] = Evidence(**{**known, "state": tuple(known["state"])})
        found[p["id"]] = Pending(**{**p, **lists, **parts})
    return Approvals(found)


def _same(pending: Pending, approver: Approver) -> bool:
    return approver.operator == pending.binding.operator or approver.key == pending.binding.key


def objection(pending: Pending, approver: Approver) -> Rejected | None:
    """Say why an approval by this operator would not count; None if it would."""
    if _same(pending, approver):
        return Rejected("own", "an operator cannot approve its own act")
    if "approve" not in approver.rights:
        return Rejected("right", "your grant does not include `approve` here")
    if pending.by and approver.kind not in pending.by:
        return Rejected("kind", f"only {' or '.join(pending.by)} operators may approve it")
    if approver.plain and approver.key_readable:
        return Rejected("readable", "code in that session could read the key you approve with")
    if pending.state == "approved":
        return Rejected("twice", "it is approved already")
    if any(approver.operator == o or approver.key == k for o, k in pending.given):
        return Rejected("twice", "you have approved it already")
    return None


def show(act: str, content: bytes, details: Mapping[str, str]) -> str:
    """Return the exact and whole act as escaped text for display."""
    details = {name: execution.legible(value) for name, value in details.items()}
    if act == execution.ACT:
        return shown(execution.show(content, details))
    if act == "new" and content:
        return shown(shlex.join(content.decode("utf-8", "surrogateescape").split("\0")))
    if (act in TEXT_ACTS and act != "new") or act == "keys":
        return shown(content.decode("utf-8", "surrogateescape"))
    return shown(" ".join([act, *(f"{k}={v}" for k, v in sorted(details.items()))]))


def discrepancy(binding: Binding, digest: str, text: str, known: Evidence) -> str:
    """Say which part of a question does not belong to its digest; empty if all parts do."""
    content = bytes.fromhex(known.content)
    if binding.digest() != digest:
        return "the facts are not those of the digest"
    if commitment(content, known.details) != binding.content:
        return "the content is not the one of the digest"
    if show(binding.act, content, known.details) != text:
        return "the text is not the content"
    if known.state and b"".join(map(state_digest, known.state)).hex() != binding.state:
        return "the facts about the state are not those of the digest"
    return ""
