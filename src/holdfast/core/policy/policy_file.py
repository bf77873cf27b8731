"""The built-in policy: a TOML file of readable rules, and what they say about an act.

    version = 1
    extends = "default"                  # optional: the built-in rules, then these
    without = ["name"]                   # optional: leaves some of those out
    [[rule]]
    name = "agents leave production alone"
    verdict = "refuse"                   # allow, ask, refuse
    because = "production is for people" # said to whoever is refused or asked
    who = { kind = ["agent"] }           # kind, operators, attached; left out: everybody
    when = { session = ["prod"] }        # all of these; see core/conditions.py
    unless = { act = ["resize"] }        # a table, or several

Every command of a text is judged by itself, and the strictest answer counts: refuse > ask > allow, and what no rule speaks of
is refused. Order decides only which rule is named. A rule can therefore never be undone by one that comes later, and a policy
is read by looking at each rule alone.

An unknown key, a wrong type, a name used twice: the whole file is invalid, and an invalid policy refuses everything, saying so.
Seizing, halting and looking answer to the envelope alone: no policy is asked about them (A4).
"""

from __future__ import annotations

import enum
import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final

from holdfast.core import originators
from holdfast.core.conditions import CONDITIONS, Look, Request, Unit, meets
from holdfast.core.facts import Facts
from holdfast.core.reasons import CODES
from holdfast.core.shown import shown

POLICY_BYTES_MAX: Final = 256 * 1024
RULES_MAX: Final = 500
APPROVALS_MAX: Final = 5
SHOWN_CHARS: Final = 200  # of a command that a sentence quotes
KINDS: Final = ("human", "agent", "service")
UNGATED: Final = frozenset(("seize", "halt", "observe"))
ACTS: Final = (
    "run",
    "line",
    "paste",
    "keys",
    "exec",
    "signal",
    "resize",
    "new",
    "rename",
    "end",
    "forget",
    "grant",
    "revoke",
    "invite",
    "operator",
    "policy",
    "relays",
    "turn",
    "resume",
    "files",
    "checkpoint",
    "restore",
    "move",
    "fork",
    "keep",
    "discard",
    *sorted(UNGATED),
)
_NAMES: Final = ("{home}", "{tmp}", "{mounted}", "{cwd}", "{project}", "{holdfast}")


class Verdict(enum.StrEnum):
    NOTHING = "nothing"  # no rule speaks of it; alone, that is a refusal
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"

    @property
    def strictness(self) -> int:
        return ("nothing", "allow", "ask", "refuse").index(self.value)


class BadPolicy(ValueError):
    """A policy that cannot be used: which file, which line, what is wrong with it."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        self.file, self.line, self.problem = file, line, problem
        self.message = f"{file}:{line}: {problem}" if line else f"{file}: {problem}"
        super().__init__(self.message)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and who says so why."""

    verdict: Verdict
    rule: str = ""  # empty: no rule, but what stands in `because`
    because: str = ""
    subject: str = ""  # the command it is about
    source: str = ""  # which policy
    version: str = ""
    reasons: tuple[str, ...] = ()  # what could not be known
    by: tuple[str, ...] = ()  # kinds of operators that may approve; empty: any
    approvals: int = 1
    sure: bool = True  # False: the rule may be meant, for all that is known
    seen: bytes = b""  # fingerprint of what the text was resolved to: files behind links
    approved: tuple[str, ...] = ()  # who approved it, if it is allowed for that reason
    shaped: tuple[originators.Shaped, ...] | None = (
        None  # what it would touch that somebody shaped; None: not looked at
    )
    asked: tuple[str, ...] = ()  # all rules that ask


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    verdict: Verdict
    because: str
    kinds: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    attached: bool | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    unless: tuple[Mapping[str, Any], ...] = ()
    by: tuple[str, ...] = ()
    approvals: int = 1
    source: str = ""

    def matches(self, look: Look) -> int:
        """0: no; 1: it may be meant, which is enough to ask; 2: yes."""
        actor = look.request.actor
        if (
            (self.kinds and actor.kind not in self.kinds)
            or (self.operators and actor.operator not in self.operators)
            or (self.attached is not None and actor.attached is not self.attached)
        ):
            return 0
        answer = meets(self.when, look)
        if not (
            answer.all
            if self.verdict is Verdict.ALLOW
            else answer.sure
            if self.verdict is Verdict.REFUSE
            else answer.maybe
        ):
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
    broken: str = ""  # why it cannot be used

    def decide(self, request: Request, facts: Facts | None) -> Decision:
        """The verdict on an act, if this policy is the only one. `facts` is None for an act that has no text."""
        return combine(self.opinions(request, facts), [])

    def opinions(self, request: Request, facts: Facts | None) -> list[Decision]:
        """What it says of each command of the act."""
        if request.act in UNGATED:
            return [
                Decision(
                    Verdict.ALLOW,
                    "",
                    "it answers to the envelope alone",
                    request.act,
                    self.source,
                    self.version,
                )
            ]
        if self.broken:
            return [
                Decision(
                    Verdict.REFUSE,
                    "",
                    f"the policy cannot be used: {self.broken}",
                    request.act,
                    self.source,
                    self.version,
                )
            ]
        return [self._unit(Look(request, unit)) for unit in units(request, facts)]

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
        why = tuple(str(r) for r in look.unit.reasons)
        if found is None:
            return Decision(
                Verdict.NOTHING,
                "",
                "no rule of the policy speaks of it",
                look.unit.shown,
                self.source,
                self.version,
                why,
            )
        asked = (
            tuple(
                rule.name
                for rule in self.rules
                if rule.verdict is Verdict.ASK and rule.matches(look)
            )
            if found.verdict is Verdict.ASK
            else ()
        )
        return Decision(
            found.verdict,
            found.name,
            found.because,
            look.unit.shown,
            found.source,
            self.version,
            why,
            found.by,
            found.approvals,
            best[1] == 2,
            asked=asked,
        )


def combine(opinions: Sequence[Decision], others: Sequence[Decision]) -> Decision:
    """The verdict on an act: what the policy says of each of its commands, and what other policies say of the whole. The strictest counts. A command
    that no rule speaks of stands if another policy allows the act, else it is refused."""
    vouched = any(d.verdict is Verdict.ALLOW for d in others)
    left = [d for d in (*opinions, *others) if d.verdict is not Verdict.NOTHING]
    silent = next((d for d in opinions if d.verdict is Verdict.NOTHING), None)
    if not left or (silent is not None and not vouched):
        first = (
            silent
            or (opinions or others or [Decision(Verdict.NOTHING, "", "there is no policy")])[0]
        )
        left.append(replace(first, verdict=Verdict.REFUSE))
    return strictest(left)


def units(request: Request, facts: Facts | None) -> list[Unit]:
    """What has to be judged: each command, and the text as a whole if something of it cannot be known."""
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
    """The first of the strictest. Several that ask: as many approvals as the most demanding wants, from whom all of them accept."""
    worst = max((d.verdict for d in decisions), key=lambda v: v.strictness)
    chosen = [d for d in decisions if d.verdict is worst]
    first = chosen[0]
    if worst is not Verdict.ASK or len(chosen) == 1:
        return first
    by = set(KINDS)
    for d in chosen:
        by &= set(d.by or KINDS)
    if not by:
        return Decision(
            Verdict.REFUSE,
            first.rule,
            "the rules that ask agree on nobody who may approve it",
            first.subject,
            first.source,
            first.version,
        )
    kinds = () if by == set(KINDS) else tuple(sorted(by))
    return replace(
        first,
        by=kinds,
        approvals=max(d.approvals for d in chosen),
        asked=tuple(dict.fromkeys(name for d in chosen for name in (d.rule, *d.asked))),
    )


def explain(decision: Decision) -> str:
    """One sentence: what happens, by which rule, why."""
    what = {Verdict.ALLOW: "allowed", Verdict.ASK: "waits for approval"}.get(
        decision.verdict, "refused"
    )
    by = f" by the rule {decision.rule!a}" if decision.rule else ""
    subject = (
        decision.subject
        if len(decision.subject) <= SHOWN_CHARS
        else decision.subject[:SHOWN_CHARS] + "..."
    )
    sentence = f"{what}{by}: {'' if decision.sure else 'perhaps '}{decision.because}"
    if decision.reasons and decision.verdict is not Verdict.ALLOW:
        sentence += f"; {decision.reasons[0]}"
    return f"{sentence}: {shown(subject)}" if subject else sentence


# ---------------------------------------------------------------- reading


def default() -> Policy:
    return parse(default_text(), "default", "default")


def default_text() -> str:
    return resources.files("holdfast.core").joinpath("default_policy.toml").read_text("utf-8")


def broken(why: str, source: str, version: str = "") -> Policy:
    """What stands in for a policy that cannot be used."""
    return Policy((), version or fingerprint(why.encode()), source, why)


def fingerprint(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def parse(text: str, file: str = "policy.toml", source: str = "file") -> Policy:
    """The policy of a file. Raises BadPolicy with the line."""
    if len(text.encode("utf-8", "replace")) > POLICY_BYTES_MAX:
        raise BadPolicy(file, 0, f"larger than {POLICY_BYTES_MAX} bytes")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        m = re.search(r"at line (\d+)", str(e))
        raise BadPolicy(file, int(m[1]) if m else len(text.splitlines()), f"not TOML: {e}") from e
    except RecursionError:
        raise BadPolicy(file, 0, "nested too deeply") from None
    reader = _Reader(text, file, source)
    return reader.policy(table)


class _Reader:
    def __init__(self, text: str, file: str, source: str) -> None:
        self.text, self.file, self.source = text, file, source
        self.lines = text.splitlines()
        self.heads = [
            n for n, line in enumerate(self.lines, 1) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)
        ]

    def fail(self, message: str, rule: int | None = None, key: str = "") -> BadPolicy:
        """With the line of the key inside of its rule, or of the rule."""
        if rule is None:
            start, end = 0, (self.heads or [len(self.lines) + 1])[0] - 1
        elif rule < len(self.heads):
            start, end = (
                self.heads[rule] - 1,
                self.heads[rule + 1] - 1 if rule + 1 < len(self.heads) else len(self.lines),
            )
        else:
            return BadPolicy(self.file, 0, message)
        line = next(
            (
                n
                for n in range(start, end)
                if key and re.search(rf"(?:^|[\s,{{.\[]){re.escape(key)}\s*[=\].]", self.lines[n])
            ),
            start,
        )
        return BadPolicy(self.file, line + 1, message)

    def policy(self, table: Mapping[str, Any]) -> Policy:
        for key in table:
            if key not in ("version", "extends", "without", "rule"):
                raise self.fail(
                    f"unknown key {key!a}; known: version, extends, without, rule", None, key
                )
        if table.get("version") != 1 or isinstance(table.get("version"), bool):
            raise self.fail("`version = 1` is missing, or another number", None, "version")
        extends = table.get("extends")
        if extends not in (None, "default"):
            raise self.fail('`extends` can only be "default"', None, "extends")
        without = self._list(table.get("without", []), "without", None)
        if without and not extends:
            raise self.fail(
                "`without` leaves out rules of what it extends; there is no `extends`",
                None,
                "without",
            )
        given = table.get("rule", [])
        if not isinstance(given, list) or len(given) > RULES_MAX:
            raise self.fail(f"rules are written as [[rule]], at most {RULES_MAX}", None, "rule")
        base = default() if extends else None
        rules = [r for r in base.rules if r.name not in without] if base else []
        for name in without:
            if base and name not in {r.name for r in base.rules}:
                raise self.fail(f"the default policy has no rule {name!a}", None, "without")
        known = {r.name for r in rules}
        for n, body in enumerate(given):
            rule = self._rule(body, n)
            if rule.name in known:
                raise self.fail(f"there is another rule {rule.name!a}", n, "name")
            known.add(rule.name)
            rules.append(rule)
        return Policy(
            tuple(rules),
            fingerprint(
                (base.version if base else "").encode()
                + b"\0"
                + self.text.encode("utf-8", "replace")
            ),
            self.source,
        )

    def _rule(self, body: Any, n: int) -> Rule:
        if not isinstance(body, dict):
            raise self.fail("a rule is a table", n)
        for key in body:
            if key not in (
                "name",
                "verdict",
                "because",
                "who",
                "when",
                "unless",
                "by",
                "approvals",
            ):
                raise self.fail(
                    f"unknown key {key!a} in a rule; known: name, verdict, because, who, when, unless, by, approvals",
                    n,
                    key,
                )
        for key in ("name", "verdict", "because"):
            if not isinstance(body.get(key), str) or not body[key].strip():
                raise self.fail(f"a rule needs `{key}`, a text", n, key)
        if body["verdict"] not in ("allow", "ask", "refuse"):
            raise self.fail(
                f"the verdict {body['verdict']!a} is none of allow, ask, refuse", n, "verdict"
            )
        verdict = Verdict(body["verdict"])
        if verdict is not Verdict.ASK and ("by" in body or "approvals" in body):
            raise self.fail(
                "`by` and `approvals` belong to a rule that asks",
                n,
                "by" if "by" in body else "approvals",
            )
        by = self._choice(body.get("by", []), KINDS, "by", n)
        approvals = body.get("approvals", 1)
        if type(approvals) is not int or not 1 <= approvals <= APPROVALS_MAX:
            raise self.fail(f"`approvals` is a number from 1 to {APPROVALS_MAX}", n, "approvals")
        who = self._table(body.get("who", {}), "who", n)
        for key in who:
            if key not in ("kind", "operators", "attached"):
                raise self.fail(
                    f"unknown key {key!a} in who; known: kind, operators, attached", n, key
                )
        attached = who.get("attached")
        if attached is not None and type(attached) is not bool:
            raise self.fail("`attached` is true or false", n, "attached")
        unless = body.get("unless", [])
        tables = [
            self._conditions(t, "unless", n)
            for t in (unless if isinstance(unless, list) else [unless])
        ]
        return Rule(
            body["name"],
            verdict,
            body["because"],
            tuple(self._choice(who.get("kind", []), KINDS, "kind", n)),
            tuple(self._list(who.get("operators", []), "operators", n)),
            attached,
            self._conditions(body.get("when", {}), "when", n),
            tuple(tables),
            tuple(by),
            approvals,
            self.source,
        )

    def _conditions(self, table: Any, where: str, n: int) -> Mapping[str, Any]:
        found = self._table(table, where, n)
        if where == "unless" and not found:
            raise self.fail("an empty `unless` would undo the rule", n, where)
        for key, value in found.items():
            if key not in CONDITIONS:
                raise self.fail(
                    f"unknown condition {key!a}; known: {', '.join(CONDITIONS)}", n, key
                )
            self._value(CONDITIONS[key][0], key, value, n)
        return found

    def _value(self, kind: str, key: str, value: Any, n: int) -> None:
        if kind == "bool":
            if type(value) is not bool:
                raise self.fail(f"`{key}` is true or false", n, key)
        elif kind == "unresolvable" and (type(value) is bool or value == "any"):
            return
        elif kind == "unresolvable":
            self._choice(value, tuple(CODES), key, n)
        elif kind == "acts":
            self._choice(value, ACTS, key, n)
        elif kind == "shaped":
            self._choice(value, originators.KINDS, key, n)
        else:
            words = self._list(value, key, n)
            if not words:
                raise self.fail(f"`{key}` is empty: it could never be met", n, key)
            for word in words:
                if not word.strip():
                    raise self.fail(f"`{key}` has an empty text", n, key)
                if kind == "flags" and not word.startswith("-"):
                    raise self.fail(f"{word!a} in `{key}` is no option", n, key)
                if kind == "places" and not (
                    word.startswith(("/", "~/"))
                    or word == "~"
                    or word.partition("}")[0] + "}" in _NAMES
                ):
                    raise self.fail(
                        f"{word!a} in `{key}` is no absolute path; it begins with /, ~ or one of {', '.join(_NAMES)}",
                        n,
                        key,
                    )

    def _table(self, value: Any, key: str, n: int) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(f"`{key}` is a table", n, key)
        return value

    def _list(self, value: Any, key: str, n: int | None) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(f"`{key}` is a list of texts", n, key)
        return value

    def _choice(self, value: Any, known: tuple[str, ...], key: str, n: int) -> list[str]:
        words = self._list(value, key, n)
        for word in words:
            if word not in known:
                raise self.fail(f"{word!a} in `{key}` is none of {', '.join(known)}", n, key)
        return words


# ---------------------------------------------------------------- writing


def render(policy: Policy) -> str:
    """The rules in force as a policy file of their own."""
    out = ["version = 1", ""]
    for rule in policy.rules:
        who: dict[str, Any] = {}
        if rule.kinds:
            who["kind"] = list(rule.kinds)
        if rule.operators:
            who["operators"] = list(rule.operators)
        if rule.attached is not None:
            who["attached"] = rule.attached
        out += [
            "[[rule]]",
            f"name = {_toml(rule.name)}",
            f'verdict = "{rule.verdict}"',
            f"because = {_toml(rule.because)}",
        ]
        if rule.verdict is Verdict.ASK:
            out += [f"by = {_toml(list(rule.by))}"] * bool(rule.by) + [
                f"approvals = {rule.approvals}"
            ] * (rule.approvals != 1)
        out += [
            f"{key} = {_toml(table)}" for key, table in (("who", who), ("when", rule.when)) if table
        ]
        if rule.unless:
            out.append(f"unless = {_toml(list(rule.unless))}")
        out.append("")
    return "\n".join(out)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return "[" + ", ".join(_toml(v) for v in value) + "]"
