"""The record of a session: all acts with actors, in a single order, tamper-evident (P1, P2).

    EXPORT    ::= HEADER { ENTRY } { HEAD }            one canonical JSON object per line
    HEADER    ::= {header, signature}                  signed by the machine, "export/1": the known
                                                       operators, first and last entry, counts
    ENTRY     ::= {entry, hash [, content, salt]}      `entry` is the exact text that is hashed
    HEAD      ::= {head, signature}                    "head/1": entry `seq` has this hash, which
                                                       fixes all earlier entries
    ACK       ::= {ack, signature}                     "ack/1": a head, given to the client whose
                                                       act that entry is
    hash      =   blake2b-256("holdfast/entry/1" NUL entry)
    commit    =   blake2b-256(salt content), 16 bytes of salt

An entry is valid if and only if its text is canonical and has exactly the fields of `REQUIRED` in
core/record/examine.py and some of `OPTIONAL`, none null; `prev` is the hash of the previous entry
and `seq` is larger by 1; the fields of the attestation are present; and the actor's statement, if
present, is signed by the entry's key and agrees with the entry.

Rules
1. The hash covers the commitment, never the content. Content and salt are stored beside the entry
   and can be dropped at any time, without a trace in hash, chain and signatures. `kept` in the
   entry says whether there was content. A later `redact` entry names the removed content, so that a
   silent removal cannot pass for a decision.
2. An act with an effect is an intent, durable before the effect. The outcome follows and names the
   intent. An event without a later effect (a refused act, keys, a moved turn) is one entry, a fact.
3. A crash leaves intents without outcome. These become `void`, or `applied` if the keeper took the
   act. No intent stays open for ever.
4. Raw keys never have content. They are recorded as ranges of the client's numbers (attestation
   `channel`), and a `cover` entry carries the actor's signature over a whole range.
5. The actor signed the act. Time, order, verdict, originators, modality, outcome and facts are the
   host's testimony.

Tried and rejected: content inside the entry (nothing could be forgotten); a commitment per key (64
hashes that can never be checked, because the contents are gone); null for absent fields (two
spellings, a third more bytes).

Pure: time and salts are arguments. core/record/statement.py has the signed statements, and is all
that a client loads; core/record/audit.py verifies. docs/reference/record.md is this page for
authors of other verifiers. When you add a field, also change VERSION, docs/reference/record.md,
docs/reference/verify_record.py and tests/vectors/record.json.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from holdfast.core.record.statement import COVER_KEYS as COVER_KEYS
from holdfast.core.record.statement import COVER_NS as COVER_NS
from holdfast.core.record.statement import KEYS as KEYS
from holdfast.core.record.statement import SALT_BYTES as SALT_BYTES
from holdfast.core.record.statement import STATEMENT as STATEMENT
from holdfast.core.record.statement import STATEMENT_OPTIONAL as STATEMENT_OPTIONAL
from holdfast.core.record.statement import VERSION as VERSION
from holdfast.core.record.statement import client_id as client_id
from holdfast.core.record.statement import commit as commit
from holdfast.core.record.statement import expect as expect
from holdfast.core.record.statement import keys_content as keys_content
from holdfast.core.record.statement import read_statement as read_statement
from holdfast.core.record.statement import sign_statement as sign_statement
from holdfast.core.record.statement import statement as statement
from holdfast.model import canonical, signing
from holdfast.model.words import names_of, words_of

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical
    from holdfast.model.jsontext import Json

GENESIS: Final = "0" * 64  # `prev` of the first entry
ENTRY_BYTES: Final = 64 * 1024
"""Size limit of an entry without content: statement, reason and facts fit many times."""
REASON_CHARS: Final = 500
SHOWN_CHARS: Final = 4096  # of a content in a listing; an export has the whole content
RANGE_MAX: Final = 1_000_000  # numbers in one entry about keys

INTENT, OUTCOME, FACT = "intent", "outcome", "fact"
PHASES: Final = (INTENT, OUTCOME, FACT)
ACTOR, CHANNEL, HOST, BRIDGE = "actor-signed", "channel", "host", "bridge:"
APPLIED, FAILED, VOID, UNKNOWN = "applied", "failed", "void", "unknown"
OUTCOMES: Final = (APPLIED, FAILED, VOID, UNKNOWN)
NO_EFFECT: Final = (FAILED, VOID)
VERDICTS: Final = ("allow", "refuse", "hold")
MACHINE: Final = "machine"  # the record of acts that concern no session
COVER, CHECKPOINT, REDACT, GAP = "cover", "checkpoint", "redact", "gap"

Terminal = tuple[bool | None, bool | None]  # (echo, canonical mode) of the kernel; None: not known
UNSEEN: Final[Terminal] = (None, None)
Phase = Literal["intent", "outcome", "fact"]

# Kinds whose content is an explicit request, never an answer to a program's prompt.
_SPOKEN: Final = names_of(
    "command resize signal turn seize halt resume end rename grant revoke approve deny policy "
    "spawn operator invite forget down relays redact files forward save restore "
    "fork keep discard reap drain copy trust move rehome "
    "invalidate"
)
_TYPED: Final = frozenset(("line", "paste"))


_SHOWN: Final = words_of(
    "seq time session epoch phase actor key modality kind act client first number originators "
    "verdict reason attestation intent outcome commit"
)


def may_keep(kind: str, echo: bool | None, canonical_mode: bool | None) -> bool:
    """Say whether the content of such an act may be stored.

    Typed text may be stored only where the terminal itself echoes it. A password prompt inside of
    ssh is raw mode without echo, exactly like a shell's own line editing, so that is not stored. An
    unknown mode means no.
    """
    if kind in _TYPED:
        return echo is True and canonical_mode is True
    return kind in _SPOKEN


class Signed(NamedTuple):
    """Exact bytes and the signature over them."""

    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry without a place in the chain yet."""

    session: str
    epoch: int
    phase: Phase
    kind: str
    actor: str
    modality: str
    attestation: str
    key: str | None = None
    client: str | None = None  # `client_id`
    first: int | None = None  # keys and covers: the first number of a range up to `number`
    number: int | None = None  # the number that the client gave
    act: int | None = None  # the number in the session, as in hf:SESSION@EPOCH#ACT
    originators: tuple[str, ...] = ("unknown",)
    verdict: str | None = None
    reason: str = ""
    intent: int | None = None
    outcome: str | None = None
    facts: Mapping[str, Canonical] = field(default_factory=dict)
    statement: bytes | None = None
    signature: bytes | None = None
    commit: str | None = None
    content: bytes | None = None
    salt: bytes | None = None
    time: int | None = None  # time of the event; None: time of writing
    # Stored beside the entry, for a retry under the same idempotency key:
    keyed: tuple[str, bytes] | None = None  # the key, and a digest of the act
    reply: bytes | None = None  # of an outcome: the answer to the client


# The entry has the other fields of a draft as they are, if there is a value.
_CHANGED: Final = {"originators", "reason", "facts", "statement", "signature"}
_BESIDE: Final = {"content", "salt", "time", "keyed", "reply"}
_COPIED: Final = tuple(f.name for f in fields(Draft) if f.name not in _CHANGED | _BESIDE)


def host_fact(
    session: str,
    epoch: int,
    kind: str,
    actor: str,
    modality: str,
    *,
    facts: Mapping[str, Canonical] | None = None,
    **more: Any,
) -> Draft:
    """A fact on the host's own word, without originators unless they are given."""
    given = {"originators": (), "facts": facts or {}} | more
    return Draft(session, epoch, "fact", kind, actor, modality, HOST, **given)


class Written(NamedTuple):
    """An entry with its place in the chain."""

    session: str
    seq: int
    hash: str
    time: int
    body: bytes
    content: bytes | None = None
    salt: bytes | None = None

    @property
    def fields(self) -> Json:
        decoded: Json = canonical.decode(self.body)
        return decoded


def entry_hash(body: bytes) -> str:
    return blake2b(b"holdfast/entry/1\0" + body, digest_size=32).hexdigest()


# ---------------------------------------------------------------- signed by actors


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
    """Make the draft of a signed act; ValueError if the content is not the signed content.

    `bridge` names the owner of the key if that is not the actor.
    """
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


# ---------------------------------------------------------------- signed by the machine


def _signed(private: bytes, domain: str, fields: Json) -> Signed:
    body = canonical.encode({"v": VERSION, **fields})
    return Signed(body, signing.sign(private, domain, body))


def head(private: bytes, session: str, seq: int, hash: str, time: int) -> Signed:
    about = {"session": session, "seq": seq, "hash": hash, "time": time}
    return _signed(private, "head/1", about)


def ack(private: bytes, written: Written, client: str, number: int, time: int) -> Signed:
    """Sign an acknowledgement for the client of an act; it proves later that the entry existed."""
    entry = {"session": written.session, "seq": written.seq, "hash": written.hash}
    return _signed(private, "ack/1", {**entry, "time": time, "client": client, "number": number})


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
    """Return the first line of an export; `operators` maps every known name to its keys."""
    known = [{"name": who, "keys": sorted(keys)} for who, keys in sorted(operators.items())]
    about = {"machine": machine, "session": session, "name": name, "operators": known}
    chain = {"first": first, "last": last, "hash": hash, "heads": heads, "time": time}
    return _signed(private, "export/1", about | chain)


# ---------------------------------------------------------------- entries


def only_what_may_be_kept(draft: Draft, terminal: Terminal = UNSEEN) -> Draft:
    """Remove content that must not be stored. The journal passes every draft through here."""
    if draft.content is None and draft.salt is None:
        return draft
    if draft.content is None or draft.salt is None or not may_keep(draft.kind, *terminal):
        return replace(draft, content=None, salt=None)
    return draft


def chain(draft: Draft, seq: int, prev: str, time: int, late: bool = False) -> Written:
    """Return the entry that this draft becomes after `prev`."""
    body: Json = {"v": VERSION, "seq": seq, "time": time, "prev": prev}
    body["originators"] = list(draft.originators)
    for name in _COPIED:
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
        raise ValueError(f"an entry of {len(data)} bytes is larger than {ENTRY_BYTES}")
    return Written(draft.session, seq, entry_hash(data), time, data, draft.content, draft.salt)


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def outcome_of(
    entry: Mapping[str, Any],
    result: str,
    facts: Mapping[str, Canonical],
    reason: str = "",
    others: Iterable[str] = (),
) -> Draft:
    """Return the draft of the outcome of an intent; `others` are further originators."""
    known = dict.fromkeys((*entry["originators"], *others))
    unseen = known.pop("unknown", 0) is None
    same = {name: entry[name] for name in ("session", "epoch", "kind", "actor", "modality")}
    act: Json = {n: entry.get(n) for n in ("client", "first", "number", "act")}
    return Draft(
        phase="outcome",
        attestation=HOST,
        **same,
        **act,
        originators=(*known, "unknown") if unseen else tuple(known),
        intent=entry["seq"],
        outcome=result,
        facts=facts,
        reason=reason,
    )


# ---------------------------------------------------------------- lines of an export


def entry_line(written: Written) -> bytes:
    line: Json = {"entry": written.body.decode(), "hash": written.hash}
    if written.content is not None and written.salt is not None:
        line |= {"content": base64.b64encode(written.content).decode(), "salt": written.salt.hex()}
    return canonical.encode(line) + b"\n"


def signed_line(name: Literal["header", "head", "ack"], signed: Signed) -> bytes:
    return (
        canonical.encode({name: signed.body.decode(), "signature": signed.signature.hex()}) + b"\n"
    )


def shown(written: Written) -> Json:
    """Return an entry for programs (`log --json`): every key is present, with or without value."""
    entry = written.fields
    out: Json = {name: entry.get(name) for name in _SHOWN}
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
