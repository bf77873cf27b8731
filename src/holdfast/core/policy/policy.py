"""The built-in policy: readable rules, and their verdict on an act.

    version = 1
    extends = "default"                  # optional: the built-in rules, then these
    without = ["name"]                   # optional: leaves out some of the built-in rules
    [[rule]]
    name = "agents leave production alone"
    verdict = "refuse"                   # allow, ask, refuse; or checkpoint, see below
    because = "production is for people" # told to the operator who is refused or asked
    who = { kind = ["agent"] }           # kind, operators, attached; default: every operator
    when = { session = ["prod"] }        # all of these; see core/policy/conditions.py
    unless = { act = ["resize"] }        # a table, or several

Every command of a text is judged by itself, and the strictest answer counts: refuse > ask > allow.
A command that no rule covers is refused. The order of rules decides only which rule is named. A
later rule can therefore never undo an earlier one, and each rule can be read alone.

A rule with the verdict `checkpoint` decides nothing. If it matches an act that the other rules let
happen, as `ask` matches, the session is saved before the act.

An unknown key, a wrong type or a duplicate name makes the whole file invalid. An invalid policy
refuses everything and says so. Seizing, halting and observing depend on the envelope alone: no
policy is asked about them (A4).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.core.originators import originators
from holdfast.core.policy import approved_commands
from holdfast.core.policy.conditions import EXEC, Conditions, Look, Request, Unit, meets
from holdfast.core.policy.exec_judgement import named_at_exec
from holdfast.core.policy.shown import shown
from holdfast.core.shellcode.facts import Facts
from holdfast.model.words import words_of

APPROVALS_MAX: Final = 5
SHOWN_CHARS: Final = 200  # of a command that is quoted in a sentence
KINDS: Final = ("human", "agent", "service")
UNGATED: Final = frozenset(("seize", "halt", "observe"))
ACTS: Final = (
    *words_of("run line paste keys exec signal resize new rename end forget grant revoke invite"),
    *words_of("operator policy relays turn resume files forward checkpoint restore move fork"),
    *words_of("keep discard reap drain rehome invalidate"),
    *sorted(UNGATED),
)


class Verdict(enum.StrEnum):
    NOTHING = "nothing"  # no rule applies; without a further opinion, that is a refusal
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"

    @property
    def strictness(self) -> int:
        return ("nothing", "allow", "ask", "refuse").index(self.value)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with rule, reason and source."""

    verdict: Verdict
    rule: str = ""  # empty: no rule decided, `because` says why
    because: str = ""
    subject: str = ""  # the command that was judged
    source: str = ""  # the policy that decided
    version: str = ""
    reasons: tuple[str, ...] = ()  # why parts of the act are unresolvable
    by: tuple[str, ...] = ()  # kinds of operators that may approve; empty: any
    approvals: int = 1
    sure: bool = True  # False: the rule may apply, but that is not certain
    seen: bytes = b""  # fingerprint of the resolved files behind links
    seen_facts: str = ""  # the text behind it
    # Of a text that needs approval: the commands that the approver sees.
    commands: tuple[approved_commands.Pattern, ...] = ()
    covered: bool = False  # of an exec: it is a command of the approved text, or started by one
    uses: tuple[approved_commands.Use, ...] = ()  # of an exec: commands of the text that it is
    approved: tuple[str, ...] = ()  # the approvers, if the act is allowed because of them
    # State that the act would use and an operator shaped; None: not examined.
    shaped: tuple[originators.Shaped, ...] | None = None
    asked: tuple[str, ...] = ()  # all rules that ask
    checkpoint: str = ""  # the rule that wants the session to be saved before the act


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    verdict: Verdict
    because: str
    kinds: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    attached: bool | None = None
    when: Conditions = field(default_factory=dict)
    unless: tuple[Conditions, ...] = ()
    by: tuple[str, ...] = ()
    approvals: int = 1
    source: str = ""

    @property
    def at_exec(self) -> bool:
        """The rule applies at exec depth (core/policy/execution.py)."""
        if self.verdict not in (Verdict.ASK, Verdict.REFUSE):
            return False
        if "act" in self.when:
            return "exec" in self.when["act"]
        return self.when.get("unresolvable", "any") in ("any", False)

    def _judged_again(self, look: Look) -> bool:
        """At exec depth the rule applies to the same facts, and to words that are open now."""
        command = look.unit.command
        return (
            self.at_exec
            and look.judged_at_exec
            and self.when.keys().isdisjoint(("shaped", "shaped_known", "shaped_by"))
            and ("command" not in self.when or command is None or named_at_exec(command))
        )

    def matches(self, look: Look) -> int:
        """Return 0 if the rule does not apply, 1 if perhaps (enough to ask), 2 if certainly."""
        actor = look.request.actor
        if (
            (self.kinds and actor.kind not in self.kinds)
            or (self.operators and actor.operator not in self.operators)
            or (self.attached is not None and actor.attached is not self.attached)
        ):
            return 0
        answer = meets(self.when, look)
        asks = answer.sure if self._judged_again(look) else answer.maybe
        if not {Verdict.ALLOW: answer.all, Verdict.REFUSE: answer.sure}.get(self.verdict, asks):
            return 0
        exceptions = [meets(table, look) for table in self.unless]
        if any(e.maybe if self.verdict is Verdict.ALLOW else e.all for e in exceptions):
            return 0
        return 2 if self.verdict is not Verdict.ASK or answer.sure else 1


@dataclass(frozen=True, slots=True)
class Policy:
    rules: tuple[Rule, ...]
    version: str
    source: str
    broken: str = ""  # why the policy cannot be used
    saving: tuple[Rule, ...] = ()  # with the verdict `checkpoint`; they match as `ask` does

    @property
    def warnings(self) -> tuple[str, ...]:
        """What rules seem to promise and do not do, in words."""
        return tuple(
            f"rule {rule.name!a} saves nothing before a program that starts inside (exec): that "
            "program waits in the kernel; the rule saves before typed acts, such as run and line"
            for rule in self.saving
            if EXEC in rule.when.get("act", [EXEC])
        )

    def decide(self, request: Request, facts: Facts | None) -> Decision:
        """Return the verdict on an act if no other policy is asked; no facts: it has no text."""
        return combine(self.opinions(request, facts), [])

    def opinions(self, request: Request, facts: Facts | None) -> list[Decision]:
        """Return the verdict on each command of the act."""
        if request.act in UNGATED:
            return [self.says(Verdict.ALLOW, "the envelope alone decides", request.act)]
        if self.broken:
            return [self.unusable(request.act)]
        looks = [Look(request, unit) for unit in units(request, facts)]
        return [replace(self._unit(look), checkpoint=self._saves(look)) for look in looks]

    def says(
        self, verdict: Verdict, because: str, subject: str, reasons: tuple[str, ...] = ()
    ) -> Decision:
        """Return a decision that no rule made."""
        return Decision(verdict, "", because, subject, self.source, self.version, reasons)

    def unusable(self, subject: str) -> Decision:
        return self.says(Verdict.REFUSE, f"the policy cannot be used: {self.broken}", subject)

    def of(self, rule: Rule, unit: Unit) -> Decision:
        """Return the decision of a rule about a command."""
        return Decision(
            rule.verdict,
            rule.name,
            rule.because,
            unit.shown,
            rule.source,
            self.version,
            tuple(map(str, unit.reasons)),
            rule.by,
            rule.approvals,
        )

    def _saves(self, look: Look) -> str:
        return next((rule.name for rule in self.saving if rule.matches(look)), "")

    def _unit(self, look: Look) -> Decision:
        best: tuple[int, int] = (-1, 0)
        found: Rule | None = None
        for rule in self.rules:
            if (
                (rule.verdict.strictness, 2) > best
                and (how := rule.matches(look))
                and (rule.verdict.strictness, how) > best
            ):
                best, found = (rule.verdict.strictness, how), rule
                if rule.verdict is Verdict.REFUSE:
                    break
        if found is None:
            why = tuple(map(str, look.unit.reasons))
            return self.says(
                Verdict.NOTHING, "no rule of the policy covers it", look.unit.shown, why
            )
        asking = (rule for rule in self.rules if rule.verdict is Verdict.ASK)
        asked = found.verdict is Verdict.ASK and tuple(r.name for r in asking if r.matches(look))
        return replace(self.of(found, look.unit), sure=best[1] == 2, asked=asked or ())


def combine(opinions: Sequence[Decision], others: Sequence[Decision]) -> Decision:
    """Return the verdict on an act, from this policy on each command and others on the whole.

    The strictest verdict counts. A command that no rule covers is refused, unless another policy
    allows the act.
    """
    vouched = any(d.verdict is Verdict.ALLOW for d in others)
    left = [d for d in (*opinions, *others) if d.verdict is not Verdict.NOTHING]
    silent = next((d for d in opinions if d.verdict is Verdict.NOTHING), None)
    if not left or (silent is not None and not vouched):
        first = (
            silent
            or (opinions or others or [Decision(Verdict.NOTHING, "", "there is no policy")])[0]
        )
        left.append(replace(first, verdict=Verdict.REFUSE))
    saves = next((d.checkpoint for d in opinions if d.checkpoint), "")
    return replace(strictest(left), checkpoint=saves)


def units(request: Request, facts: Facts | None) -> list[Unit]:
    """Return the parts to judge: each command, and the whole text if a part is unresolvable."""
    if facts is None:
        return [
            Unit(" ".join([request.act, *(f"{k}={v}" for k, v in sorted(request.details.items()))]))
        ]
    found = [Unit(c.shown, c, c.reasons) for c in facts.commands]
    if facts.reasons:
        shown = request.content.decode("utf-8", "replace")
        found.append(Unit(shown, None, tuple(facts.reasons), True))
    return found or [Unit(request.act)]


def strictest(decisions: Sequence[Decision]) -> Decision:
    """Return the first of the strictest decisions.

    If several ask, the act needs the largest number of approvals, by kinds that all rules accept.
    """
    worst = max((d.verdict for d in decisions), key=lambda v: v.strictness)
    chosen = [d for d in decisions if d.verdict is worst]
    first = chosen[0]
    if worst is not Verdict.ASK or len(chosen) == 1:
        return first
    by = set(KINDS)
    for d in chosen:
        by &= set(d.by or KINDS)
    if not by:
        why = "the rules that ask agree on nobody who may approve it"
        return Decision(Verdict.REFUSE, first.rule, why, first.subject, first.source, first.version)
    kinds = () if by == set(KINDS) else tuple(sorted(by))
    return replace(
        first,
        by=kinds,
        approvals=max(d.approvals for d in chosen),
        asked=tuple(dict.fromkeys(name for d in chosen for name in (d.rule, *d.asked))),
    )


def explain(decision: Decision) -> str:
    """Return one sentence: the verdict, the rule and the reason."""
    what = {Verdict.ALLOW: "allowed", Verdict.ASK: "waits for approval"}.get(
        decision.verdict, "refused"
    )
    by = f" by the rule {decision.rule!a}" if decision.rule else ""
    subject = decision.subject
    if len(subject) > SHOWN_CHARS:
        subject = subject[:SHOWN_CHARS] + "..."
    sentence = f"{what}{by}: {'' if decision.sure else 'perhaps '}{decision.because}"
    if decision.checkpoint and decision.verdict is not Verdict.REFUSE:
        sentence += f"; a checkpoint is made before, by the rule {decision.checkpoint!a}"
    if decision.reasons and decision.verdict is not Verdict.ALLOW:
        sentence += f"; {decision.reasons[0]}"
    return f"{sentence}: {shown(subject)}" if subject else sentence


def broken(why: str, source: str, version: str = "") -> Policy:
    """Return the substitute for a policy that cannot be used."""
    return Policy((), version or fingerprint(why.encode()), source, why)


def fingerprint(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
