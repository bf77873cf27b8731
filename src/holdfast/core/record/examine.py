"""Examination of the single lines of an export: format, fields and signatures.

This is the first stage of verification (core/record/audit.py) and nearly all of its work. Each line
is judged alone, so lines can be judged anywhere and in any order. A table lists the allowed fields;
an unknown field is a finding.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from holdfast.core.record import record
from holdfast.model import canonical, signing
from holdfast.model.ids import is_once

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

LINE_BYTES: Final = 4 * 1024 * 1024  # of one line of an export

_HEX32 = re.compile(r"[0-9a-f]{64}\Z")
_HEX64 = re.compile(r"[0-9a-f]{128}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_SALT = re.compile(r"[0-9a-f]{32}\Z")
_CLIENT = re.compile(r"[0-9a-f]{16}\Z")
_KIND = re.compile(r"[a-z][a-z0-9._-]{0,31}\Z")
_ATTESTATION = re.compile(
    r"(?:actor-signed|channel|host|bridge:[A-Za-z0-9._][A-Za-z0-9._-]{0,63})\Z"
)
Check = Callable[[Any], bool]


class Finding(NamedTuple):
    level: Literal["broken", "note"]
    code: str
    seq: int | None
    text: str


class Fact(NamedTuple):
    """The facts of an entry for the second stage."""

    seq: int
    hash: str
    entry: Json  # without statement, signature
    said: bool  # there is a valid statement
    seen: str | None
    content: bool
    findings: tuple[Finding, ...]


# ---------------------------------------------------------------- entries


@lru_cache(maxsize=4096)
def _key(text: str) -> bytes | None:
    try:
        return signing.read(text)
    except ValueError:
        return None


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _positive(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 63


def _number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _string(value: object) -> bool:
    return type(value) is str


def _matches(pattern: re.Pattern[str]) -> Check:
    return lambda value: type(value) is str and pattern.match(value) is not None


def _one_of(*values: object) -> Check:
    return lambda value: value in values and type(value) is type(values[0])


REQUIRED: Final[dict[str, Check]] = {
    "v": _one_of(record.VERSION),
    "seq": _positive,
    "time": _count,
    "session": lambda v: type(v) is str and v != "",
    "epoch": _count,
    "phase": _one_of(*record.PHASES),
    "kind": _matches(_KIND),
    "actor": _string,
    "modality": _string,
    "attestation": _matches(_ATTESTATION),
    "originators": lambda v: type(v) is list and all(type(o) is str for o in v),
    "prev": _matches(_HEX32),
}
OPTIONAL: Final[dict[str, Check]] = {
    "key": lambda v: type(v) is str and _key(v) is not None,
    "client": _matches(_CLIENT),
    "first": _number,
    "number": _number,
    "act": _number,
    "verdict": _one_of(*record.VERDICTS),
    "reason": _string,
    "intent": _positive,
    "outcome": _one_of(*record.OUTCOMES),
    "facts": lambda v: type(v) is dict,
    "statement": _string,
    "signature": _matches(_HEX64),
    "commit": _matches(_HEX32),
    "kept": lambda v: v is True,
    "late": lambda v: v is True,
}
_FIELDS: Final = REQUIRED | OPTIONAL
_SIGNED = ("key", "client", "number", "statement", "signature", "commit")
_LINES = ({"entry", "hash"}, {"entry", "hash", "content", "salt"})


def examine(lines: list[bytes], machine: str) -> list[Fact | Finding]:
    """Examine lines; an unreadable line gives a Finding instead of a Fact."""
    return [_examine(line, machine) for line in lines]


def _examine(line: bytes, machine: str) -> Fact | Finding:
    if len(line) > LINE_BYTES or not line.endswith(b"\n"):
        return Finding(
            "broken",
            "line",
            None,
            "a line is cut off" if len(line) <= LINE_BYTES else "a line is too long",
        )
    try:
        outer = canonical.decode(line[:-1])
        if (
            type(outer) is not dict
            or set(outer) not in _LINES
            or not all(type(v) is str for v in outer.values())
        ):
            return Finding("broken", "line", None, "a line that is neither an entry nor a head")
        body = outer["entry"].encode()
        entry = canonical.decode(body)
    except canonical.NotCanonical as e:
        return Finding("broken", "line", None, f"a line that cannot be read: {e}")
    if type(entry) is not dict or not _positive(entry.get("seq")):
        return Finding("broken", "line", None, "an entry without a number")
    seq, found = entry["seq"], []

    def wrong(code: str, text: str) -> None:
        found.append(Finding("broken", code, seq, text))

    actual = record.entry_hash(body)
    if outer["hash"] != actual:
        wrong("hash", "its hash does not match")
    bad = _misfit(entry)
    if bad or (ill := _misfit_of_phase(entry)):
        wrong("format" if bad else "phase", bad or ill)
        # only its place is known
        return Fact(seq, actual, {"prev": entry.get("prev")}, False, None, False, tuple(found))
    if "content" in outer:
        _examine_content(entry, outer["content"], outer["salt"], wrong)
    seen, said = None, False
    if "statement" in entry:
        seen, bad = _examine_statement(entry, machine)
        said = not bad
        if bad:
            wrong("statement" if bad != _UNSIGNED else "signature", bad)
        del entry["statement"], entry["signature"]
    return Fact(seq, actual, entry, said, seen, "content" in outer, tuple(found))


def _misfit(entry: Json) -> str:
    """Return the problem of the first invalid field."""
    if entry.get("v") != record.VERSION:
        return f"version {str(entry.get('v'))[:20]!a} is not supported"
    names = set(entry)
    if missing := REQUIRED.keys() - names:
        return f"it has no {min(missing)}"
    if unknown := names - _FIELDS.keys():
        return f"the field {min(unknown)[:40]!a} is not known"
    for name, value in entry.items():
        if not _FIELDS[name](value):
            return f"its {name} is invalid"
    return ""


def _misfit_of_phase(entry: Json) -> str:
    phase, attestation = entry["phase"], entry["attestation"]
    if (phase == record.OUTCOME) != ("outcome" in entry):
        return "only an outcome has the field outcome, and it must"
    if phase == record.OUTCOME and ("intent" not in entry or attestation != record.HOST):
        return "an outcome must name its intent, in the host's name"
    if phase == record.INTENT and ("intent" in entry or entry.get("verdict") in ("refuse", "hold")):
        return "an intent that was not allowed, or names another"
    if attestation == record.ACTOR or attestation.startswith(record.BRIDGE):
        if not all(name in entry for name in _SIGNED):
            return "it claims to be signed and is not"
    elif "statement" in entry or "signature" in entry:
        return "it has a signature that its attestation does not mention"
    if attestation == record.CHANNEL and (
        entry["kind"] != record.KEYS or not {"key", "client", "first", "number"} <= entry.keys()
    ):
        return "only keys are attested by their channel"
    if (
        entry["kind"] in (record.KEYS, record.COVER)
        and not {"client", "first", "number"} <= entry.keys()
    ):
        return "a range of keys without its client or its ends"
    if "first" in entry and not 0 <= entry.get("number", -1) - entry["first"] < record.RANGE_MAX:
        return "a range that ends before it begins, or never"
    return ""


def _examine_content(
    entry: Json, content: str, salt: str, wrong: Callable[[str, str], None]
) -> None:
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return wrong("content", "its content cannot be read")
    if base64.b64encode(data).decode() != content or not _SALT.match(salt):
        return wrong("content", "its content cannot be read")
    if "kept" not in entry:
        wrong("content", "it has content although none was kept")
    if entry["kind"] in (record.KEYS, record.COVER) or not record.may_keep(
        entry["kind"], True, True
    ):
        wrong("secret", "content that must never be stored")
    if record.commit(bytes.fromhex(salt), data) != entry.get("commit"):
        wrong("content", "its content does not match the commitment")


_UNSIGNED = "it is not signed by the key it names"


def _examine_statement(entry: Json, machine: str) -> tuple[str | None, str]:
    """Return the head that the actor had seen, and the problem (empty if none)."""
    body = entry["statement"].encode()
    key = _key(entry.get("key", ""))
    if key is None or not signing.verify(key, "act/1", body, bytes.fromhex(entry["signature"])):
        return None, _UNSIGNED
    try:
        said = canonical.decode(body)
    except canonical.NotCanonical as e:
        return None, f"the signed statement cannot be read: {e}"
    if (
        type(said) is not dict
        or not said.keys() >= record.STATEMENT
        or not said.keys() <= record.STATEMENT | record.STATEMENT_OPTIONAL
    ):
        return None, "the signed statement has other fields"
    if said["v"] != record.VERSION or type(said["v"]) is not int:
        return None, "the signed statement is of another version"
    kind = record.KEYS if entry["kind"] == record.COVER else entry["kind"]
    bridge = entry["attestation"].startswith(record.BRIDGE)
    expected = {
        "machine": machine,
        "session": entry["session"],
        "epoch": entry["epoch"],
        "client": entry.get("client"),
        "number": entry.get("number"),
        "kind": kind,
        "commit": entry.get("commit"),
        "first": entry.get("first"),
        "for": entry["actor"] if bridge else None,
    }
    for name, value in expected.items():
        if said.get(name) != value or type(said.get(name)) is not type(value):
            return None, f"the signed statement has another {name}"
    seen = said["seen"]
    if seen is not None and not _matches(_HEX32)(seen):
        return None, "the signed statement names a malformed head"
    if not _matches(_HEX)(said["binding"]):
        return None, "the signed statement names a malformed channel"
    if "once" in said and not is_once(said["once"]):
        return None, "the signed statement has a malformed idempotency key"
    return seen, ""


# ---------------------------------------------------------------- signed lines

_SIGNED_COMMON: Final[dict[str, Check]] = {
    "v": _one_of(record.VERSION),
    "session": _string,
    "hash": _matches(_HEX32),
    "time": _count,
}
_SIGNED_FIELDS: Final[dict[str, dict[str, Check]]] = {
    "head": {**_SIGNED_COMMON, "seq": _count},
    "ack": {**_SIGNED_COMMON, "seq": _positive, "client": _matches(_CLIENT), "number": _number},
    "header": {
        **_SIGNED_COMMON,
        "machine": _FIELDS["key"],
        "name": _string,
        "operators": lambda v: (
            type(v) is list
            and all(
                type(o) is dict
                and set(o) == {"name", "keys"}
                and type(o["name"]) is str
                and type(o["keys"]) is list
                and all(type(k) is str for k in o["keys"])
                for o in v
            )
        ),
        "first": _positive,
        "last": _count,
        "heads": _count,
    },
}
_DOMAINS: Final = {"head": "head/1", "ack": "ack/1", "header": "export/1"}


def read_signed(line: bytes, machine: str | None) -> tuple[str, Json]:
    """Return the kind and the fields of a line that the machine signed; ValueError otherwise.

    For a header the machine may be unknown.
    """
    if len(line) > LINE_BYTES or not line.endswith(b"\n"):
        raise ValueError("a line is cut off")
    outer = canonical.decode(line[:-1])
    [kind] = [k for k in _DOMAINS if type(outer) is dict and set(outer) == {k, "signature"}] or [""]
    if not kind or type(outer[kind]) is not str or not _matches(_HEX64)(outer["signature"]):
        raise ValueError("neither an entry nor a signed line")
    body = canonical.decode(outer[kind].encode())
    fields = _SIGNED_FIELDS[kind]
    if (
        type(body) is not dict
        or set(body) != set(fields)
        or not all(check(body[name]) for name, check in fields.items())
    ):
        raise ValueError(f"a {kind} of another version or with other fields")
    key = _key(body["machine"] if kind == "header" else machine or "")
    if key is None or not signing.verify(
        key, _DOMAINS[kind], outer[kind].encode(), bytes.fromhex(outer["signature"])
    ):
        raise ValueError(f"a {kind} that this machine did not sign")
    return kind, body
