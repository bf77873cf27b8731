"""The record of a session: what was done to it, by whom, in one order, so that any change to it afterwards shows (P1, P2).

    EXPORT    ::= HEADER { ENTRY } { HEAD }            one canonical JSON object per line, each line ended
    HEADER    ::= {header, signature}                  signed by the machine, "export/1": who is known here, first and last entry, counts
    ENTRY     ::= {entry, hash [, content, salt]}      `entry` is the exact text that is hashed
    HEAD      ::= {head, signature}                    "head/1": entry `seq` has this hash, and so has everything before it
    ACK       ::= {ack, signature}                     "ack/1": a head given to the client whose act that entry is
    hash      =   blake2b-256("holdfast/entry/1" NUL entry)
    commit    =   blake2b-256(salt content), 16 bytes of salt

An entry is valid if and only if its text is canonical and has exactly the fields of `REQUIRED` and some of `OPTIONAL`, none of
them null; its `prev` is the hash of the entry before it and its `seq` one more; its attestation's fields are there; and the actor's
statement, where there is one, is signed by the entry's key and says the same as the entry.

Rules
1. The hash covers the commitment, never the content: content and salt lie beside the entry and can be dropped at any time
   without a trace in hash, chain and signatures. `kept` in the entry says whether there was content, and a later `redact` entry
   names what was taken away, so that a quiet removal is not passed off as a decision.
2. An act that will have an effect is an intent, durable before it; its outcome comes after, and names it. What has no effect of
   its own to wait for (a refused act, keys, a turn that moved) is one entry, a fact.
3. A crash leaves intents without outcome. They become `void`, or `applied` if the keeper took them: nothing stays open for ever.
4. Raw keys have no content, ever. They are recorded as ranges of their client's numbers (attestation `channel`), and a `cover` entry
   carries the actor's signature over all of a range.
5. What the actor signed is the act. Time, order, verdict, originators, modality, outcome and facts are the host's testimony.

Tried and rejected: the content inside the entry (nothing could be forgotten); a commitment per key (64 hashes in the record for
something nobody can ever check, since the contents are gone); null for what is absent (two spellings, a third more bytes).

Pure: time and salts are arguments. What actors sign is in core/statement.py, which is all that a client loads; verifying is in core/audit.py; docs/record.md is this page for whoever writes another verifier.
When you add a field, also touch: VERSION, docs/record.md, docs/verify_record.py, tests/vectors/record.json.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

from holdfast.core.statement import COVER_KEYS as COVER_KEYS
from holdfast.core.statement import COVER_NS as COVER_NS
from holdfast.core.statement import KEYS as KEYS
from holdfast.core.statement import SALT_BYTES as SALT_BYTES
from holdfast.core.statement import STATEMENT as STATEMENT
from holdfast.core.statement import STATEMENT_OPTIONAL as STATEMENT_OPTIONAL
from holdfast.core.statement import VERSION as VERSION
from holdfast.core.statement import client_id as client_id
from holdfast.core.statement import commit as commit
from holdfast.core.statement import expect as expect
from holdfast.core.statement import keys_content as keys_content
from holdfast.core.statement import read_statement as read_statement
from holdfast.core.statement import sign_statement as sign_statement
from holdfast.core.statement import statement as statement
from holdfast.model import canonical, signing

GENESIS: Final = "0" * 64  # `prev` of the first entry
ENTRY_BYTES: Final = (
    64 * 1024
)  # of one entry without its content: statement, reason and facts fit many times
REASON_CHARS: Final = 500
SHOWN_CHARS: Final = 4096  # of a content in a listing; an export has all of it
RANGE_MAX: Final = 1_000_000  # numbers in one entry about keys

INTENT, OUTCOME, FACT = "intent", "outcome", "fact"
PHASES: Final = (INTENT, OUTCOME, FACT)
ACTOR, CHANNEL, HOST, BRIDGE = "actor-signed", "channel", "host", "bridge:"
APPLIED, FAILED, VOID, UNKNOWN = "applied", "failed", "void", "unknown"
OUTCOMES: Final = (APPLIED, FAILED, VOID, UNKNOWN)
VERDICTS: Final = ("allow", "refuse", "hold")
MACHINE: Final = "machine"  # whose record holds what concerns no session
COVER, CHECKPOINT, REDACT, GAP = "cover", "checkpoint", "redact", "gap"

REQUIRED: Final = frozenset(
    (
        "v",
        "seq",
        "time",
        "session",
        "epoch",
        "phase",
        "kind",
        "actor",
        "modality",
        "attestation",
        "originators",
        "prev",
    )
)
OPTIONAL: Final = frozenset(
    (
        "key",
        "client",
        "first",
        "number",
        "act",
        "verdict",
        "reason",
        "intent",
        "outcome",
        "facts",
        "statement",
        "signature",
        "commit",
        "kept",
        "late",
    )
)
Terminal = tuple[
    bool | None, bool | None
]  # (echo, canonical mode) as the kernel says; None: not known
UNSEEN: Final[Terminal] = (None, None)
Phase = Literal["intent", "outcome", "fact"]

# Kinds whose content is what somebody asked for in so many words; never what a program may have prompted for.
_SPOKEN: Final = frozenset(
    (
        "command",
        "resize",
        "signal",
        "turn",
        "seize",
        "halt",
        "resume",
        "end",
        "rename",
        "grant",
        "revoke",
        "approve",
        "deny",
        "policy",
        "spawn",
        "operator",
        "invite",
        "forget",
        "down",
        "relays",
    )
)
_TYPED: Final = frozenset(("line", "paste"))


def may_keep(kind: str, echo: bool | None, canonical_mode: bool | None) -> bool:
    """Whether the content of such an act may be stored. Typed text only where the terminal itself shows it: a password prompt inside of
    ssh is raw mode without echo, exactly like a shell's own line editing, so there the answer is no. What is not known is a no."""
    if kind in _TYPED:
        return echo is True and canonical_mode is True
    return kind in _SPOKEN


class Signed(NamedTuple):
    """Exact bytes and the signature over them."""

    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry before it has its place in the chain."""

    session: str
    epoch: int
    phase: Phase
    kind: str
    actor: str
    modality: str
    attestation: str
    key: str | None = None
    client: str | None = None  # `client_id`
    first: int | None = None  # keys and covers: of a range that ends with `number`
    number: int | None = None  # the client's own
    act: int | None = None  # the session's: as in hf:SESSION@EPOCH#ACT
    originators: tuple[str, ...] = ("unknown",)
    verdict: str | None = None
    reason: str = ""
    intent: int | None = None
    outcome: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    statement: bytes | None = None
    signature: bytes | None = None
    commit: str | None = None
    content: bytes | None = None
    salt: bytes | None = None
    time: int | None = None  # when it happened; None: when it is written


class Written(NamedTuple):
    """An entry in its place."""

    session: str
    seq: int
    hash: str
    time: int
    body: bytes
    content: bytes | None = None
    salt: bytes | None = None

    @property
    def fields(self) -> dict[str, Any]:
        decoded: dict[str, Any] = canonical.decode(self.body)
        return decoded


def entry_hash(body: bytes) -> str:
    return blake2b(b"holdfast/entry/1\0" + body, digest_size=32).hexdigest()


# ---------------------------------------------------------------- what actors sign


def signed_draft(
    said: Mapping[str, Any],
    body: bytes,
    signature: bytes,
    key: str,
    phase: Phase,
    actor: str,
    modality: str,
    salt: bytes,
    content: bytes,
    bridge: str | None = None,
    **more: Any,
) -> Draft:
    """The draft of an act as its statement says it; ValueError if this is not the content that was signed. `bridge`: whose key it is, if not the actor's."""
    if commit(salt, content) != said["commit"]:
        raise ValueError("what was sent is not what was signed")
    expect(said, **{"for": None if bridge is None else actor})
    return Draft(
        said["session"],
        said["epoch"],
        phase,
        said["kind"],
        actor,
        modality,
        ACTOR if bridge is None else BRIDGE + bridge,
        key,
        said["client"],
        None,
        said["number"],
        statement=body,
        signature=signature,
        commit=said["commit"],
        content=content,
        salt=salt,
        **more,
    )


# ---------------------------------------------------------------- what the machine signs


def head(private: bytes, session: str, seq: int, hash: str, time: int) -> Signed:
    body = canonical.encode(
        {"v": VERSION, "session": session, "seq": seq, "hash": hash, "time": time}
    )
    return Signed(body, signing.sign(private, "head/1", body))


def ack(private: bytes, written: Written, client: str, number: int, time: int) -> Signed:
    """To the client whose act that entry is. Whoever keeps it can show later that the entry was there."""
    body = canonical.encode(
        {
            "v": VERSION,
            "session": written.session,
            "seq": written.seq,
            "hash": written.hash,
            "time": time,
            "client": client,
            "number": number,
        }
    )
    return Signed(body, signing.sign(private, "ack/1", body))


def header(
    private: bytes,
    machine: str,
    session: str,
    name: str,
    operators: Mapping[str, Iterable[str]],
    first: int,
    last: int,
    hash: str,
    heads: int,
    time: int,
) -> Signed:
    """The first line of an export. `operators`: every name known here with its keys."""
    known = [{"name": who, "keys": sorted(keys)} for who, keys in sorted(operators.items())]
    body = canonical.encode(
        {
            "v": VERSION,
            "machine": machine,
            "session": session,
            "name": name,
            "operators": known,
            "first": first,
            "last": last,
            "hash": hash,
            "heads": heads,
            "time": time,
        }
    )
    return Signed(body, signing.sign(private, "export/1", body))


# ---------------------------------------------------------------- entries


def only_what_may_be_kept(draft: Draft, terminal: Terminal = UNSEEN) -> Draft:
    """The draft without content that must not be stored. The one place where that is decided: the journal lets nothing past it."""
    if draft.content is None and draft.salt is None:
        return draft
    if draft.content is None or draft.salt is None or not may_keep(draft.kind, *terminal):
        return replace(draft, content=None, salt=None)
    return draft


def chain(draft: Draft, seq: int, prev: str, time: int, late: bool = False) -> Written:
    """The entry that this draft becomes behind `prev`."""
    body: dict[str, Any] = {
        "v": VERSION,
        "seq": seq,
        "time": time,
        "session": draft.session,
        "epoch": draft.epoch,
        "phase": draft.phase,
        "kind": draft.kind,
        "actor": draft.actor,
        "modality": draft.modality,
        "attestation": draft.attestation,
        "originators": list(draft.originators),
        "prev": prev,
    }
    for name in (
        "key",
        "client",
        "first",
        "number",
        "act",
        "verdict",
        "intent",
        "outcome",
        "commit",
    ):
        if (value := getattr(draft, name)) is not None:
            body[name] = value
    if draft.reason:
        body["reason"] = _text(draft.reason)[:REASON_CHARS]
    if draft.facts:
        body["facts"] = dict(draft.facts)
    if draft.statement is not None and draft.signature is not None:
        body["statement"] = draft.statement.decode()
        body["signature"] = draft.signature.hex()
    if draft.content is not None:
        body["kept"] = True
    if late:
        body["late"] = True
    data = canonical.encode(body)
    if len(data) > ENTRY_BYTES:
        raise ValueError(f"an entry of {len(data)} bytes; at most {ENTRY_BYTES} are taken")
    return Written(draft.session, seq, entry_hash(data), time, data, draft.content, draft.salt)


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def outcome_of(
    entry: Mapping[str, Any], result: str, facts: Mapping[str, Any], reason: str = ""
) -> Draft:
    """The draft of what became of an intent."""
    return Draft(
        entry["session"],
        entry["epoch"],
        "outcome",
        entry["kind"],
        entry["actor"],
        entry["modality"],
        HOST,
        client=entry.get("client"),
        first=entry.get("first"),
        number=entry.get("number"),
        act=entry.get("act"),
        originators=tuple(entry["originators"]),
        intent=entry["seq"],
        outcome=result,
        facts=facts,
        reason=reason,
    )


# ---------------------------------------------------------------- lines of an export


def entry_line(written: Written) -> bytes:
    line: dict[str, Any] = {"entry": written.body.decode(), "hash": written.hash}
    if written.content is not None and written.salt is not None:
        line |= {"content": base64.b64encode(written.content).decode(), "salt": written.salt.hex()}
    return canonical.encode(line) + b"\n"


def signed_line(name: Literal["header", "head", "ack"], signed: Signed) -> bytes:
    return (
        canonical.encode({name: signed.body.decode(), "signature": signed.signature.hex()}) + b"\n"
    )


def shown(written: Written) -> dict[str, Any]:
    """An entry as programs get it (`log --json`): every key there, whether it has a value or not."""
    entry = written.fields
    out: dict[str, Any] = {
        name: entry.get(name)
        for name in (
            "seq",
            "time",
            "session",
            "epoch",
            "phase",
            "actor",
            "key",
            "modality",
            "kind",
            "act",
            "client",
            "first",
            "number",
            "originators",
            "verdict",
            "reason",
            "attestation",
            "intent",
            "outcome",
            "commit",
        )
    }
    out["facts"] = entry.get("facts", {})
    out["signed"] = "statement" in entry
    out["late"] = bool(entry.get("late"))
    out["kept"] = bool(entry.get("kept"))
    content = (
        None if written.content is None else written.content.decode("utf-8", "backslashreplace")
    )
    out["content"] = None if content is None else content[:SHOWN_CHARS]
    out["cut"] = content is not None and len(content) > SHOWN_CHARS
    out["hash"], out["prev"] = written.hash, entry["prev"]
    return out
