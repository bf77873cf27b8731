"""Requests of every operation with sound fields, for tests that spoil one of them."""

from __future__ import annotations

from typing import Any

from holdfast.core.contract.codec import request_fields
from holdfast.core.contract.table import OPERATIONS

OTHERS_KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
FIELDS: dict[str, Any] = {
    "session": "target",
    "record": "target",
    "seqs": [1],
    "port": 22,
    "forward": "00112233445566aa",
    "name": "stranger",
    "text": "EVIL\n",
    "seq": 1,
    "argv": ["cat"],
    "cwd": "/",
    "env": {},
    "for": "idle",
    "kind": "agent",
    "key": OTHERS_KEY,
    "rights": ["observe"],
    "cols": 40,
    "rows": 10,
    "ref": "hf:target",
    "act": "request",
    "to": "x",
    "id": "0123456789ab",
    "verifier": OTHERS_KEY,
    "accept": True,
    "binding": "00",
    "signature": "00",
    "pid": 1,
    "signal": "KILL",
    "signed": {"statement": "", "signature": "", "salt": ""},
    "path": "/etc/passwd",
    "pattern": "*",
    "choice": "end",
    "every_s": 600,
    "machine": "vault",
    "entry": {},
    "trusted": True,
    "facts": [],
    "needs": [],
    "bytes": 1,
    "checkpoint": "cp-0123456789ab",
    "epoch": 1,
    "sha256": "ab" * 32,
    "length": 1,
    "on": True,
}
"""A sound value for every field of every operation: only the missing right may refuse it."""


def fields_of(op: str, **changed: Any) -> dict[str, Any]:
    known = {**FIELDS, **changed}
    fields = request_fields(OPERATIONS[op].request)
    missing = [name for name, field in fields.items() if field.required and name not in known]
    assert not missing, f"a new field: give it a sound value in FIELDS: {missing}"
    return {name: known[name] for name in fields if name in known}
