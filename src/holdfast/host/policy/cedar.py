"""Cedar as a plug-in policy: `policy.cedar` beside the policy file, and the package `cedarpy` (extra `cedar`).

Cedar's evaluation fails open: a `forbid` whose condition errs is skipped, and the `permit` beside it stands. In the wild that
silently dropped every forbid of a policy. So here:
  1. the policies are validated against the schema below before they are used; what does not validate is not used, and
     everything is refused;
  2. every attribute of the schema is present in every request;
  3. if anything erred while deciding, the answer is refuse, whatever Cedar says. Cedar's own default deny means "no permit was
     met": that is nothing said, and the other policies decide. A forbid that was met is a refusal. Cedar cannot ask for
     approval: write what asks as a rule of the policy file.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

FILE: Final = "policy.cedar"
FILE_BYTES_MAX: Final = 1024 * 1024
SCHEMA: Final = """
entity Operator = { kind: String, attached: Bool };
entity Session = { name: String, contained: Bool };
action "run", "line", "paste", "keys", "exec", "signal", "resize", "new", "rename", "end", "forget", "grant", "revoke", "invite", "operator", "policy", "turn", "resume", "files",
  "checkpoint", "restore", "move", "fork", "keep", "discard" appliesTo {
  principal: Operator, resource: Session,
  context: { commands: Set<String>, paths: Set<String>, writes: Set<String>, flags: Set<String>, via: Set<String>, unresolvable: Set<String>, network: Bool, known: Bool,
             text: String, cwd: String, project: String, foreground: String, signal: String, rights: Set<String> }
};
"""

_loaded: dict[tuple[str, int, int], Any] = {}


class Unusable(Exception):
    """These policies cannot be used, and why."""


def load(path: str) -> Any:
    """The validated policies of a file."""
    info = os.stat(path)
    mark = (path, info.st_mtime_ns, info.st_ino)
    if mark not in _loaded:
        cedar = import_module("cedarpy")
        with open(path, encoding="utf-8") as f:
            text = f.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise Unusable("the file is too large")
        checked = cedar.validate_policies(text, SCHEMA)
        if not checked.validation_passed:
            raise Unusable(
                f"it does not validate: {'; '.join(str(e) for e in checked.errors)}"[:300]
            )
        _loaded.clear()
        _loaded[mark] = cedar.PolicySet.from_str(text)
    return _loaded[mark]


def judge(question: dict[str, Any]) -> dict[str, Any] | None:
    """What Cedar says of an act."""
    cedar = import_module("cedarpy")
    policies = load(os.path.join(question["config"], FILE))
    commands = question["commands"]
    operator, session = (
        {"type": "Operator", "id": question["operator"]},
        {"type": "Session", "id": question["session"]},
    )
    context = {
        "commands": [c["name"] for c in commands if c["name"]],
        "paths": sorted({p for c in commands for p in c["paths"]}),
        "writes": sorted({p for c in commands for p in c["writes"]}),
        "flags": sorted({f for c in commands for f in c["flags"]}),
        "via": sorted({v for c in commands for v in c["via"]}),
        "unresolvable": sorted({r["code"] for r in question["unresolvable"]}),
        "network": any(c["network"] for c in commands),
        "known": not question["unresolvable"],
        "text": question["text"] or "",
        "cwd": question["cwd"] or "",
        "project": question["project"] or "",
        "foreground": question["foreground"],
        "signal": question["details"].get("signal", ""),
        "rights": [r for r in question["details"].get("rights", "").split(",") if r],
    }
    entities = [
        {
            "uid": operator,
            "attrs": {"kind": question["kind"], "attached": question["attached"]},
            "parents": [],
        },
        {
            "uid": session,
            "attrs": {"name": question["name"], "contained": question["contained"]},
            "parents": [],
        },
    ]
    result = cedar.is_authorized(
        {
            "principal": operator,
            "action": {"type": "Action", "id": question["act"]},
            "resource": session,
            "context": context,
        },
        policies,
        entities,
        SCHEMA,
    )
    if result.diagnostics.errors:
        return {
            "verdict": "refuse",
            "because": f"Cedar could not evaluate a policy: {str(result.diagnostics.errors[0])[:200]}",
        }
    names = ", ".join(sorted(result.diagnostics.reasons))[:200]
    if result.decision is cedar.Decision.Allow:
        return {"verdict": "allow", "because": "a Cedar policy permits it", "rule": names}
    if result.decision is cedar.Decision.Deny:
        return (
            {"verdict": "refuse", "because": "a Cedar policy forbids it", "rule": names}
            if result.diagnostics.reasons
            else None
        )
    return {"verdict": "refuse", "because": "Cedar gave no decision"}
