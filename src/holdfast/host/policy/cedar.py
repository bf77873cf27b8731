"""Cedar as a plug-in policy: the file `policy.cedar` beside the policy file.

Cedar fails open: if the condition of a `forbid` errs, Cedar skips that `forbid`, and a `permit`
still counts. In a known case, Cedar silently dropped every forbid of a policy. Therefore:

1. The policies are validated against the schema below before use. If the policies do not validate,
   every act is refused.
2. Every attribute of the schema is present in every request.
3. If Cedar reports an error in a decision, the answer is refuse, even if Cedar allows the act.

Cedar's default deny means that no permit was met: that is no opinion, and the other policies
decide. A forbid that was met is a refusal. Cedar cannot ask for approval: write rules that ask into
the policy file. This module needs the package `cedarpy` (extra `cedar`).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from holdfast.core.policy.policy import ACTS, UNGATED

FILE: Final = "policy.cedar"
FILE_BYTES_MAX: Final = 1024 * 1024
SCHEMA: Final = """
entity Operator = { kind: String, attached: Bool };
entity Session = { name: String, contained: Bool };
action ACTIONS appliesTo {
  principal: Operator, resource: Session,
  context: { commands: Set<String>, paths: Set<String>, writes: Set<String>, flags: Set<String>,
             via: Set<String>, unresolvable: Set<String>, network: Bool, known: Bool, text: String,
             cwd: String, project: String, foreground: String, signal: String, rights: Set<String> }
};
""".replace("ACTIONS", ", ".join(f'"{act}"' for act in ACTS if act not in UNGATED))

_loaded: dict[tuple[str, int, int], object] = {}


class Unusable(Exception):
    """Why these policies cannot be used."""


def load(path: str) -> object:
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


def judge(question: dict[str, Any]) -> dict[str, str] | None:
    """The verdict of Cedar on an act."""
    cedar = import_module("cedarpy")
    policies = load(os.path.join(question["config"], FILE))
    commands = question["commands"]
    operator = {"type": "Operator", "id": question["operator"]}
    session = {"type": "Session", "id": question["session"]}
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
    of_operator = {"kind": question["kind"], "attached": question["attached"]}
    of_session = {"name": question["name"], "contained": question["contained"]}
    entities = [
        {"uid": operator, "attrs": of_operator, "parents": []},
        {"uid": session, "attrs": of_session, "parents": []},
    ]
    action = {"type": "Action", "id": question["act"]}
    asked = {"principal": operator, "action": action, "resource": session, "context": context}
    result = cedar.is_authorized(asked, policies, entities, SCHEMA)
    if result.diagnostics.errors:
        first = str(result.diagnostics.errors[0])[:200]
        return {"verdict": "refuse", "because": f"Cedar could not evaluate a policy: {first}"}
    names = ", ".join(sorted(result.diagnostics.reasons))[:200]
    if result.decision is cedar.Decision.Allow:
        return {"verdict": "allow", "because": "a Cedar policy permits it", "rule": names}
    if result.decision is cedar.Decision.Deny:
        if result.diagnostics.reasons:
            return {"verdict": "refuse", "because": "a Cedar policy forbids it", "rule": names}
        return None
    return {"verdict": "refuse", "because": "Cedar gave no decision"}
