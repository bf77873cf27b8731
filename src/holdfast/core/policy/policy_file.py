"""The policy file: parsing, validation and rendering of the TOML form."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.core.originators import originators
from holdfast.core.policy.conditions import CONDITIONS, Conditions
from holdfast.core.policy.policy import (
    ACTS,
    APPROVALS_MAX,
    KINDS,
    Policy,
    Rule,
    Verdict,
    fingerprint,
)
from holdfast.core.shellcode.reasons import CODES

POLICY_BYTES_MAX: Final = 256 * 1024
RULES_MAX: Final = 500
SAVE: Final = "checkpoint"  # the verdict of rules that save the session before an act
_RULE_KEYS: Final = ("name", "verdict", "because", "who", "when", "unless", "by", "approvals")
PLACE_NAMES: Final = (
    *("{home}", "{account}", "{own}", "{tmp}", "{mounted}"),
    *("{cwd}", "{project}", "{workspace}", "{holdfast}"),
)


class BadPolicy(ValueError):
    """A policy that cannot be used, with the file, the line and the problem."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        self.file, self.line, self.problem = file, line, problem
        self.message = f"{file}:{line}: {problem}" if line else f"{file}: {problem}"
        super().__init__(self.message)


def default() -> Policy:
    return parse(default_text(), "default", "default")


def default_text() -> str:
    return Path(__file__).with_name("default_policy.toml").read_text("utf-8")


def parse(text: str, file: str = "policy.toml", source: str = "file") -> Policy:
    """Parse and validate a policy file; raises BadPolicy with the line."""
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
        """Return the error with the line of the key in its rule, or else of the rule."""
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

    def policy(self, table: Mapping[str, object]) -> Policy:
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
        saving = list[Rule]()
        for name in without:
            if base and name not in {r.name for r in base.rules}:
                raise self.fail(f"the default policy has no rule {name!a}", None, "without")
        known = {r.name for r in rules}
        for n, body in enumerate(given):
            rule = self._rule(body, n)
            if rule.name in known:
                raise self.fail(f"another rule is named {rule.name!a}", n, "name")
            known.add(rule.name)
            (saving if body["verdict"] == SAVE else rules).append(rule)
        return Policy(
            tuple(rules),
            fingerprint(
                (base.version if base else "").encode()
                + b"\0"
                + self.text.encode("utf-8", "replace")
            ),
            self.source,
            saving=tuple(saving),
        )

    def _rule(self, body: object, n: int) -> Rule:
        if not isinstance(body, dict):
            raise self.fail("a rule is a table", n)
        for key in body:
            if key not in _RULE_KEYS:
                known = ", ".join(_RULE_KEYS)
                raise self.fail(f"unknown key {key!a} in a rule; known: {known}", n, key)
        for key in ("name", "verdict", "because"):
            if not isinstance(body.get(key), str) or not body[key].strip():
                raise self.fail(f"a rule needs `{key}`, a text", n, key)
        if body["verdict"] not in ("allow", "ask", "refuse", SAVE):
            raise self.fail(
                f"the verdict {body['verdict']!a} is none of allow, ask, refuse, {SAVE}",
                n,
                "verdict",
            )
        verdict = Verdict.ASK if body["verdict"] == SAVE else Verdict(body["verdict"])
        if body["verdict"] != Verdict.ASK and ("by" in body or "approvals" in body):
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

    def _conditions(self, table: object, where: str, n: int) -> Conditions:
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

    def _value(self, kind: str, key: str, value: object, n: int) -> None:
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
                    or word.partition("}")[0] + "}" in PLACE_NAMES
                ):
                    beginnings = f"/, ~ or one of {', '.join(PLACE_NAMES)}"
                    problem = (
                        f"{word!a} in `{key}` is no absolute path; it begins with {beginnings}"
                    )
                    raise self.fail(problem, n, key)

    def _table(self, value: object, key: str, n: int) -> Mapping[str, object]:
        if not isinstance(value, dict):
            raise self.fail(f"`{key}` is a table", n, key)
        return value

    def _list(self, value: object, key: str, n: int | None) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(f"`{key}` is a list of texts", n, key)
        return value

    def _choice(self, value: object, known: tuple[str, ...], key: str, n: int) -> list[str]:
        words = self._list(value, key, n)
        for word in words:
            if word not in known:
                raise self.fail(f"{word!a} in `{key}` is none of {', '.join(known)}", n, key)
        return words


# ---------------------------------------------------------------- writing


def written(policy: Policy) -> list[tuple[Rule, str]]:
    """All rules, each with its verdict in the file."""
    return [*((r, str(r.verdict)) for r in policy.rules), *((r, SAVE) for r in policy.saving)]


def render(policy: Policy) -> str:
    """Return the rules in force as a policy file."""
    out = ["version = 1", ""]
    for rule, verdict in written(policy):
        who: dict[str, object] = {}
        if rule.kinds:
            who["kind"] = list(rule.kinds)
        if rule.operators:
            who["operators"] = list(rule.operators)
        if rule.attached is not None:
            who["attached"] = rule.attached
        out += [
            "[[rule]]",
            f"name = {_toml(rule.name)}",
            f'verdict = "{verdict}"',
            f"because = {_toml(rule.because)}",
        ]
        if verdict == Verdict.ASK:
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


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    items = value if isinstance(value, list | tuple) else ()
    return "[" + ", ".join(_toml(v) for v in items) + "]"
