"""The gate at input depth (P4): the facts of an act, and approvals as a state machine.

An approval is permission for one act, not for a kind of act. It is bound to the exact bytes, the directory, the actor and its
key, the session and its incarnation, the policy and the fingerprint of whatever else was relied on. If any of these is another
one at use, the approval is void and says which.

    ask ──► waiting ──approve──► approved ──use──► used
               │                    │
               ├─deny──► denied     ├─ something changed ──► void
               └─time──► expired    └─ time ──► expired
    waiting or approved ──its requester gives up──► withdrawn

Rules
1. Nobody approves their own act: neither the same operator nor the same key.
2. An approver has the right `approve`, and is of a kind that the rule accepts.
3. In a plain session code runs as the account that holds the keys on that machine. An approval counts there only from a key
   that this account cannot read.
4. An approval is used once. It lapses if nobody uses it, and so does the question if nobody answers.
5. One operator has at most PENDING_PER_OPERATOR questions open: a loop that asks does not bury the one that matters.
6. What is denied stays denied for a while; asking again does not make it a new question.

Pure: ids, time and whether a key can be read are arguments. Refusals are values (`Rejected`), as everywhere in core.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from holdfast.core import execution
from holdfast.core.conditions import Request
from holdfast.core.facts import Facts, Parse, Surroundings, analyse, of_argv, unknown
from holdfast.core.interpreters import PAGERS, SHELLS, is_interpreter
from holdfast.core.originators import foreign, told
from holdfast.core.places import Real, same
from holdfast.core.policy import Decision
from holdfast.core.reasons import Reason
from holdfast.core.scope import Command
from holdfast.core.shown import shown
from holdfast.model import canonical

PENDING_PER_OPERATOR: Final = 8
PENDING_MAX: Final = 256
ANSWER_WAIT_S: Final = 600.0  # for somebody to decide
USE_WAIT_S: Final = 120.0  # from the last approval to the act
DENIED_S: Final = 60.0  # asking for the same again
SHAPED_SHOWN: Final = 16  # of what others shaped, to whoever is asked
SHOWN_CHARS: Final = (
    64 * 1024
)  # of an act that a person is asked about: what cannot be shown whole cannot be approved
TEXT_ACTS: Final = ("run", "line", "paste", "exec", "new")
_HARMLESS: Final = re.compile(
    rb"(?:[ -~]|\x1b(?:\[[0-9;]*[A-DHF~]|O[A-DHF]))*"
)  # no key that enters or runs something, for whoever reads it
_INTERRUPTS: Final = re.compile(
    rb"[\x03\x1a\x1c\x11\x13]+"
)  # C-c, C-z, C-\, C-q, C-s: keys that the terminal itself acts on


# ---------------------------------------------------------------- facts


def facts_of(request: Request, parse: Parse, real: Real = same) -> Facts | None:
    """What is known of an act before it takes effect; None if it has no text."""
    if request.act == "keys":
        if _INTERRUPTS.fullmatch(request.content):
            return None
        program = request.foreground not in ("", "?") and not is_interpreter(request.foreground)
        if (program and not request.beneath) or (
            (program or request.foreground in PAGERS) and _HARMLESS.fullmatch(request.content)
        ):
            return None
        return unknown(Reason("keys", request.foreground if request.foreground != "?" else ""))
    if request.act not in TEXT_ACTS:
        return None
    if request.act == "new" and not request.content:
        return None  # a shell: what it will run is not said yet
    around = Surroundings(
        request.cwd,
        request.home,
        request.shell,
        request.act in ("line", "paste"),
        request.shadowed,
        real,
    )
    if request.act == execution.ACT:
        return execution.facts(request.content, request.details, parse, around)
    try:
        text = request.content.decode()
    except UnicodeDecodeError:
        return unknown(Reason("control"))
    if request.act == "new":
        found = of_argv(text.split("\0"), parse, around)
        if (
            len(found.commands) == 1
        ):  # what it reads is the session's terminal: what comes there is judged when it does
            found.commands = [
                replace(c, reasons=tuple(r for r in c.reasons if r.code != "stdin"))
                for c in found.commands
            ]
        return found
    if request.act in ("line", "paste"):
        if request.foreground and request.foreground not in SHELLS:
            if request.foreground == "?" or is_interpreter(request.foreground):
                return unknown(Reason("typed", request.foreground))
            if not request.beneath:
                return None
        text = text.rstrip(
            "\r\n"
        )  # also of what a program seems to read: what it leaves is read by the shell that started it
    return analyse(text, parse, around)


def programs(facts: Facts | None) -> Command | None:
    """The programs that an act would start, each by the names it goes by, for envelopes that are for certain commands; None if nobody can tell,
    or if the shell itself would write a file: `ls > ~/.bashrc` is not what is meant by being allowed `ls`."""
    if facts is None or facts.unresolvable or any(not c.name or c.reasons for c in facts.commands):
        return None
    if any(
        r.writes and not (r.places and all(p.path == "/dev/null" for p in r.places))
        for c in facts.commands
        for r in c.redirects
    ):
        return None
    return tuple(frozenset((name,)) for c in facts.commands for name in (*c.via, c.name))


def commitment(content: bytes, details: Mapping[str, str] = MappingProxyType({})) -> str:
    """What an approval binds of the act: its bytes, and what else it names (a signal, a process, rights)."""
    more = (
        canonical.encode({name: execution.legible(value) for name, value in details.items()})
        if details
        else b""
    )
    return hashlib.blake2b(
        len(content).to_bytes(8, "big") + content + more, digest_size=32
    ).hexdigest()


# ---------------------------------------------------------------- approvals


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything an approval depends on."""

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
    return Binding(
        request.session,
        request.epoch,
        request.actor.operator,
        request.actor.key,
        request.act,
        commitment(request.content, request.details),
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
    key_readable: bool  # by the account that the session's code runs as; unknown counts as readable
    plain: bool  # the session's layout


State = Literal["waiting", "approved", "denied"]
Answer = Literal["approve", "deny", "withdraw"]
DOMAIN: Final = "approval"


def statement(id: str, binding: str, approver_key: str, answer: Answer, expires: int) -> bytes:
    """The exact bytes that an approver signs, in the domain `approval`; and a requester who withdraws."""
    return canonical.encode(
        {
            "v": 1,
            "id": id,
            "binding": binding,
            "approver": approver_key,
            "answer": answer,
            "expires": expires,
        }
    )


@dataclass(frozen=True, slots=True)
class Pending:
    id: str
    binding: Binding
    text: str  # shown escaped
    because: str
    rule: str
    by: tuple[str, ...]
    needed: int
    asked: float
    expires: float
    state: State = "waiting"
    given: tuple[tuple[str, str], ...] = ()  # operator, key
    shaped: tuple[str, ...] = ()  # what others made of the state it would run on, in words
    denied_by: str = ""

    def statement(self, approver_key: str, answer: Answer) -> bytes:
        return statement(self.id, self.binding.digest(), approver_key, answer, int(self.expires))


@dataclass(frozen=True, slots=True)
class Asked:
    pending: Pending
    new: bool


@dataclass(frozen=True, slots=True)
class Approved:
    pending: Pending
    complete: bool  # enough of them


@dataclass(frozen=True, slots=True)
class Closed:
    """A question that is no longer one."""

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
        """Somebody wants to do what a rule asks about. Asking the same again gives the same question."""
        effects = self.expire(now)
        binding = bind(request, decision.version)
        known = self.find(binding)
        if known is not None:
            if known.state == "denied":
                return [*effects, Rejected("denied", f"it was denied by {known.denied_by}")]
            return [*effects, Asked(known, False)]
        mine = sum(
            p.binding.operator == binding.operator
            for p in self.open.values()
            if p.state != "denied"
        )
        if mine >= PENDING_PER_OPERATOR or len(self.open) >= PENDING_MAX:
            return [
                *effects,
                Rejected(
                    "full",
                    f"{mine} of your acts wait for approval already"
                    if mine >= PENDING_PER_OPERATOR
                    else "too many acts wait for approval",
                ),
            ]
        text = show(request)
        if len(text) > SHOWN_CHARS:
            return [
                *effects,
                Rejected(
                    "size", "it is too large to be shown to anybody, so nobody can approve it"
                ),
            ]
        pending = Pending(
            id,
            binding,
            text,
            decision.because,
            decision.rule,
            decision.by,
            decision.approvals,
            now,
            now + ANSWER_WAIT_S,
            shaped=tuple(
                told(one) for one in foreign(request.shaped, request.actor.operator)[:SHAPED_SHOWN]
            ),
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
            return [*effects, Rejected("right", "you have no right to decide this")]
        if _same(pending, approver):
            return [*effects, Rejected("own", "it is your own; withdraw it instead")]
        self.open[id] = replace(
            pending, state="denied", denied_by=approver.operator, expires=now + DENIED_S
        )
        return [*effects, Closed(self.open[id], "denied", f"by {approver.operator}")]

    def withdraw(self, id: str, operator: str, now: float, why: str = "") -> list[Effect]:
        """Whoever asked wants it no longer, approved or not."""
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None or pending.binding.operator != operator or pending.state == "denied":
            return [*effects, Rejected("not_found", "you have no such question")]
        del self.open[id]
        return [*effects, Closed(pending, "withdrawn", why)]

    # ------------------------------------------------------------ using

    def use(self, id: str, request: Request, version: str, now: float) -> list[Effect]:
        """The act is about to take effect, on the strength of this approval. Ends with `Closed(..., "used")`, or it may not."""
        effects = self.expire(now)
        pending = self.open.get(id)
        if pending is None:
            expired = any(isinstance(e, Closed) and e.pending.id == id for e in effects)
            return [
                *effects,
                Rejected(
                    "expired" if expired else "not_found",
                    "the approval has lapsed"
                    if expired
                    else "there is no such approval, or it was used",
                ),
            ]
        if pending.state == "denied":
            return [*effects, Rejected("denied", f"it was denied by {pending.denied_by}")]
        changed = pending.binding.difference(bind(request, version))
        if changed:
            if (
                pending.binding.operator != request.actor.operator
                or pending.binding.key != request.actor.key
            ):
                return [
                    *effects,
                    Rejected("not_found", "there is no such approval of yours"),
                ]  # and theirs stays as it is
            del self.open[id]
            why = f"{' and '.join(changed)} changed since it was asked"
            return [*effects, Closed(pending, "void", why), Rejected("changed", why)]
        if pending.state != "approved":
            return [
                *effects,
                Rejected(
                    "waiting",
                    "nobody has approved it yet"
                    if not pending.given
                    else f"{len(pending.given)} of {pending.needed} have approved it",
                ),
            ]
        del self.open[id]
        return [*effects, Closed(pending, "used")]

    # ------------------------------------------------------------ the world changes

    def expire(self, now: float) -> list[Effect]:
        return self._close([p for p in self.open.values() if now >= p.expires], "expired")

    def deadline(self) -> float | None:
        return min((p.expires for p in self.open.values()), default=None)

    def policy_changed(self, version: str) -> list[Effect]:
        return self._close(
            [p for p in self.open.values() if p.binding.policy != version],
            "void",
            "the policy changed",
        )

    def session_changed(self, session: str, epoch: int | None) -> list[Effect]:
        """It ended (None), or is another incarnation."""
        gone = [
            p
            for p in self.open.values()
            if p.binding.session == session and p.binding.epoch != epoch
        ]
        return self._close(
            gone, "void", "the session ended" if epoch is None else "the session was re-established"
        )

    def revoked(self, key: str) -> list[Effect]:
        """A key counts no more: its questions are void, and what it approved is not approved any longer."""
        effects = self._close(
            [p for p in self.open.values() if p.binding.key == key],
            "void",
            "the key that asked was revoked",
        )
        for pending in list(self.open.values()):
            if pending.state != "denied" and any(k == key for _, k in pending.given):
                self.retract(pending.id, key)
        return effects

    def retract(self, id: str, key: str) -> None:
        """What this key approved there is not approved by it any longer."""
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
        return [asdict(p) for p in self.open.values()]


def restore(saved: list[dict[str, Any]]) -> Approvals:
    found = [
        Pending(
            **{
                **p,
                "binding": Binding(**p["binding"]),
                "by": tuple(p["by"]),
                "given": tuple((g[0], g[1]) for g in p["given"]),
                "shaped": tuple(p.get("shaped", ())),
            }
        )
        for p in saved
    ]
    return Approvals({p.id: p for p in found})


def _same(pending: Pending, approver: Approver) -> bool:
    return approver.operator == pending.binding.operator or approver.key == pending.binding.key


def objection(pending: Pending, approver: Approver) -> Rejected | None:
    """Why an approval of theirs would not count; None if it would."""
    if _same(pending, approver):
        return Rejected("own", "nobody approves their own act")
    if "approve" not in approver.rights:
        return Rejected("right", "you have no right to approve here; whoever has `approve` decides")
    if pending.by and approver.kind not in pending.by:
        return Rejected("kind", f"only {' or '.join(pending.by)} operators may approve it")
    if approver.plain and approver.key_readable:
        return Rejected("readable", "code in that session could read the key you approve with")
    if pending.state == "approved" or any(
        approver.operator == o or approver.key == k for o, k in pending.given
    ):
        return Rejected(
            "twice",
            "it is approved already"
            if pending.state == "approved"
            else "you have approved it already",
        )
    return None


def show(request: Request) -> str:
    """The exact bytes, for a person: escaped, and whole."""
    if request.act == execution.ACT:
        return shown(execution.show(request.content, request.details))
    if request.act == "new" and request.content:
        return shown(shlex.join(request.content.decode("utf-8", "surrogateescape").split("\0")))
    if (request.act in TEXT_ACTS and request.act != "new") or request.act == "keys":
        return shown(request.content.decode("utf-8", "surrogateescape"))
    return shown(" ".join([request.act, *(f"{k}={v}" for k, v in sorted(request.details.items()))]))
