"""Writes records without a host: for tests, vectors and the bench.

Deterministic: keys and salts come from a seed, time from a counter.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

from holdfast.core.record import record
from holdfast.core.record.record import Draft, Signed, Written
from holdfast.model import signing

SESSION = "0123456789ab"
BINDING = "ab" * 32
BEGAN = 1_800_000_000_000_000_000


class Actor:
    """An operator at one client."""

    def __init__(self, name: str, private: bytes, client: int, modality: str = "cli") -> None:
        self.name, self.private, self.modality = name, private, modality
        self.key = signing.show(signing.public(private))
        self.client = record.client_id(client)
        self.number = 0

    def next(self, count: int = 1) -> int:
        self.number += count
        return self.number


class Scribe:
    """One session's record, entry by entry."""

    def __init__(self, seed: bytes = b"", session: str = SESSION) -> None:
        self.session = session
        self.seed = seed
        self.private = self.derive("machine", 32)
        self.machine = signing.show(signing.public(self.private))
        self.actors = [
            Actor("ann", self.derive("ann", 32), 0xA11),
            Actor("bot", self.derive("bot", 32), 0xB07, "mcp"),
            Actor("telegram", self.derive("telegram", 32), 0x7E1E, "bot"),
        ]
        self.written: list[Written] = []
        self.now = BEGAN
        self.epoch = 1

    @property
    def ann(self) -> Actor:
        return self.actors[0]

    @property
    def bot(self) -> Actor:
        return self.actors[1]

    @property
    def operators(self) -> dict[str, list[str]]:
        return {a.name: [a.key] for a in self.actors}

    def derive(self, what: str, count: int) -> bytes:
        return blake2b(self.seed + what.encode(), digest_size=count).digest()

    @property
    def tip(self) -> str:
        return self.written[-1].hash if self.written else record.GENESIS

    def add(self, draft: Draft) -> Written:
        self.now += 1_000_003
        last = self.written[-1] if self.written else None
        made = record.chain(draft, last.seq + 1 if last else 1, self.tip, self.now)
        self.written.append(made)
        return made

    def draft(
        self,
        actor: Actor,
        phase: Any,
        kind: str,
        content: bytes = b"",
        seen: str | None = None,
        keep: bool = True,
        first: int | None = None,
        on_behalf_of: str | None = None,
        **more: Any,
    ) -> Draft:
        """Add a signed draft."""
        number = actor.next() if first is None else actor.number
        salt = self.derive(f"salt {actor.client} {number} {kind}", record.SALT_BYTES)
        commit = record.commit(salt, content)
        said = record.statement(
            self.machine,
            self.session,
            self.epoch,
            actor.client,
            number,
            record.KEYS if kind == record.COVER else kind,
            BINDING,
            seen or (self.tip if self.written else None),
            commit,
            first,
            on_behalf_of,
        )
        made = Draft(
            self.session,
            self.epoch,
            phase,
            kind,
            on_behalf_of or actor.name,
            actor.modality,
            record.BRIDGE + actor.name if on_behalf_of else record.ACTOR,
            actor.key,
            actor.client,
            first,
            number,
            statement=said,
            signature=record.sign_statement(actor.private, said),
            commit=commit,
            content=content,
            salt=salt,
            **more,
        )
        return (
            made
            if keep and record.may_keep(kind, True, True)
            else replace(made, content=None, salt=None)
        )

    def intent(self, actor: Actor, kind: str, content: bytes, **more: Any) -> Written:
        return self.add(self.draft(actor, "intent", kind, content, verdict="allow", **more))

    def outcome(self, intent: Written, result: str = record.APPLIED, **facts: Any) -> Written:
        return self.add(record.outcome_of(intent.fields, result, facts))

    def act(self, actor: Actor, content: bytes, kind: str = "command", **more: Any) -> None:
        self.outcome(self.intent(actor, kind, content, **more), exit_code=0)

    def keys(self, actor: Actor, typed: list[bytes], covered: bool = True) -> None:
        first = actor.number + 1
        numbered = [(actor.next(), data) for data in typed]
        self.add(
            Draft(
                self.session,
                self.epoch,
                "fact",
                record.KEYS,
                actor.name,
                actor.modality,
                record.CHANNEL,
                actor.key,
                actor.client,
                first,
                actor.number,
                originators=(),
            )
        )
        if covered:
            self.add(
                self.draft(
                    actor,
                    "fact",
                    record.COVER,
                    record.keys_content(numbered),
                    keep=False,
                    first=first,
                )
            )

    def told(self, kind: str, **facts: Any) -> Written:
        return self.add(
            Draft(
                self.session,
                self.epoch,
                "fact",
                kind,
                "host",
                "host",
                record.HOST,
                originators=(),
                facts=facts,
            )
        )

    def day(self) -> Scribe:
        """Write one entry of every kind that an honest record can have."""
        self.told("session", event="created")
        self.act(self.ann, b"make -j8")
        self.keys(self.ann, [b"l", b"s", b"\r"])
        self.act(self.bot, "grep -r 'é' .".encode(), originators=("ann",))
        self.add(
            self.draft(
                self.bot,
                "fact",
                "command",
                b"rm -rf /",
                verdict="refuse",
                reason="it cannot be undone",
                originators=("bot",),
            )
        )
        held = self.draft(self.bot, "fact", "command", b"git push", verdict="hold", reason="ask")
        self.add(held)
        self.add(self.draft(self.ann, "fact", "approve", b"6", originators=()))
        self.outcome(self.add(replace(held, phase="intent", verdict="allow")), exit_code=1)
        self.act(self.actors[2], b"uptime", kind="line", on_behalf_of="carol")
        self.outcome(
            self.intent(self.ann, "line", b"hunter2", keep=False), record.VOID, recovered=True
        )
        self.epoch = 2
        self.add(
            self.draft(self.ann, "fact", "seize", b"", seen=self.written[3].hash, originators=())
        )
        self.keys(self.bot, [b"q"], covered=False)
        return self

    # ------------------------------------------------------------ lines

    def head(self, at: int = -1) -> Signed:
        entry = self.written[at]
        return record.head(self.private, self.session, entry.seq, entry.hash, self.now)

    def ack(self, at: int = -1) -> Signed:
        fields = self.written[at].fields
        return record.ack(
            self.private, self.written[at], fields["client"], fields["number"], self.now
        )

    def export(self, heads: tuple[int, ...] = (-1,)) -> list[bytes]:
        first = self.written[0].seq if self.written else 1
        last = self.written[-1].seq if self.written else 0
        top = record.header(
            self.private,
            self.machine,
            self.session,
            "work",
            self.operators,
            first,
            last,
            self.tip,
            len(heads),
            self.now,
        )
        return [
            record.signed_line("header", top),
            *map(record.entry_line, self.written),
            *(record.signed_line("head", self.head(at)) for at in heads),
        ]
