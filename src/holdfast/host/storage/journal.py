"""The journal: the only way to write and read the records of all sessions (P1, P2).

    intent, fact    awaited; Unavailable when the disk refuses: the effect must not happen
    post, outcome   owed: kept (bounded) until the disk takes them, then flagged late. Seize and
                    halt are posted: a full disk does not delay the act, only the record
    keys            gathered into ranges of a client's numbers, without the content

record_writer.py makes entries durable. core/record/record.py alone decides how much of an act may
be stored. If a client leaves while an intent is being written, the effect never follows, and the
intent is made void.

After a crash every intent without outcome gets an outcome from `fate`, because the keeper knows
which acts were taken. Keys that the keeper took just before the crash may be missing: `catch_up`
adds these keys in the host's name.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from holdfast.core.record import record
from holdfast.core.record.examine import read_signed
from holdfast.core.record.record import UNSEEN, Draft, Signed, Terminal, Written
from holdfast.host.storage import record_table as table
from holdfast.host.storage.once_keys import OnceKeys
from holdfast.host.storage.record_writer import RECENT_ENTRIES, Item, RecordWriter
from holdfast.host.storage.store import Store
from holdfast.model import references, signing
from holdfast.model.errors import Lost, Unavailable, Usage
from holdfast.model.probe import probe

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

PAGE_ENTRIES: Final = 500  # read at once

Fate = Callable[[table.Fields], str]  # of an intent without outcome: applied, void or unknown


class Typist(NamedTuple):
    """An attachment of a client that types keys."""

    session: str
    epoch: int
    actor: str
    key: str | None
    modality: str
    client: str

    def fact(self, kind: str, attestation: str = record.HOST, **more: Any) -> Draft:
        """An entry about this attachment, by default on the host's word."""
        fields = {"key": self.key, "client": self.client, "originators": ()} | more
        return Draft(
            self.session, self.epoch, "fact", kind, self.actor, self.modality, attestation, **fields
        )


class Recovered(NamedTuple):
    outcomes: dict[str, int]  # how many intents got each outcome
    damaged: list[str]  # sessions with a record that differs from the head signed here


class Journal:
    def __init__(
        self, store: Store, private: bytes, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.machine = signing.show(signing.public(private))
        self._store = store
        self._private = private
        self._clock = clock
        self._followers: dict[str, set[asyncio.Event]] = {}
        self.once = OnceKeys(store, private)
        self._writer = self.writer = RecordWriter(store, private, clock, self._wake)

    # ------------------------------------------------------------ recording

    async def intent(self, draft: Draft, terminal: Terminal = UNSEEN) -> Written:
        """Records an intent; durable on return. Unavailable: the act must not be done."""
        if draft.phase != record.INTENT:
            raise ValueError("not an intent")
        return await self._wait(self._writer.admit(draft, terminal, owed=False, wanted=True))

    async def fact(self, draft: Draft, terminal: Terminal = UNSEEN) -> Written:
        """As `intent`, for a fact without outcome: a refusal, an approval."""
        return await self._wait(self._writer.admit(draft, terminal, owed=False, wanted=True))

    def post(self, draft: Draft, terminal: Terminal = UNSEEN) -> None:
        """Records an act that has happened already, or must not wait for the disk."""
        self._writer.admit(draft, terminal, owed=True, wanted=False)

    def outcome(
        self,
        intent: Written,
        result: str,
        reason: str = "",
        others: Iterable[str] = (),
        reply: bytes | None = None,
        /,
        **facts: Canonical,
    ) -> None:
        """`others`: originators that were found after the intent was recorded.

        `reply`: the answer to the client, for retries under the act's idempotency key.
        """
        draft = record.outcome_of(intent.fields, result, facts, reason, others)
        self.post(replace(draft, reply=reply))

    def keys(self, typist: Typist, number: int) -> None:
        """Records an input of raw keys, in a range with adjacent inputs of the attachment."""
        item = self._writer.newest.get(typist.session)
        if (
            item is not None
            and item.last == number - 1
            and item.draft.client == typist.client
            and item.draft.first is not None
            and number - item.draft.first < record.COVER_KEYS
        ):
            item.last = number
            return
        attestation = record.CHANNEL if typist.key is not None else record.HOST
        draft = typist.fact(record.KEYS, attestation, first=number, number=number)
        made = self._writer.admit(draft, UNSEEN, owed=True, wanted=False)
        if made is not None:
            made.last = number

    async def cover(self, typist: Typist, statement: bytes, signature: bytes) -> Written:
        """Records the actor's signature over a range of keys.

        The caller has checked the signature against the received keys (`Uncovered.cover`).
        """
        said = record.read_statement(statement, signature, typist.key or "")
        record.expect(
            said,
            machine=self.machine,
            session=typist.session,
            epoch=typist.epoch,
            client=typist.client,
            kind=record.KEYS,
        )
        first, last = said.get("first"), said["number"]
        if (
            type(first) is not int
            or type(last) is not int
            or not 0 <= last - first < record.COVER_KEYS
        ):
            raise ValueError("not a range of keys")
        draft = typist.fact(
            record.COVER,
            record.ACTOR,
            first=first,
            number=last,
            statement=statement,
            signature=signature,
            commit=said["commit"],
        )
        return await self._wait(self._writer.admit(draft, UNSEEN, owed=True, wanted=True))

    def ack(self, written: Written, client: str, number: int) -> Signed:
        """A signed receipt, which proves to the client that the act was recorded."""
        return record.ack(self._private, written, client, number, self._clock())

    async def _wait(self, item: Item | None) -> Written:
        if item is None:
            raise Unavailable("the record cannot keep up", "try again in a moment")
        assert item.future is not None
        try:
            return await asyncio.shield(item.future)
        except asyncio.CancelledError:
            if item.draft.phase == record.INTENT:
                item.future.add_done_callback(self._abandoned)
            else:
                item.future.add_done_callback(lambda f: f.cancelled() or f.exception())
            raise

    def _abandoned(self, future: asyncio.Future[Written]) -> None:
        """The caller of this intent is gone, so the act will not be done."""
        if not future.cancelled() and future.exception() is None:
            self.outcome(future.result(), record.VOID, "whoever asked for it went away")

    # ------------------------------------------------------------ state

    @property
    def failing(self) -> bool:
        """Whether the last write failed: keys are recorded late, or only counted."""
        return self._writer.failing

    def tip(self, session: str) -> Written | None:
        """The newest durable entry; clients learn the entry's hash as "last seen"."""
        return self._writer.tips.get(session)

    def seen(self, session: str) -> str | None:
        """The hash of the newest entry; None if the record is empty."""
        tip = self.tip(session)
        return tip.hash if tip is not None else None

    async def acts(self, session: str) -> int:
        """How many acts of operators the record has, apart from the one that discards it."""
        found: int = await self._store.run(lambda db: table.acts(db, session))
        return found

    async def knows(self, session: str, hash: str) -> bool:
        """Whether this hash belongs to the newest RECENT_ENTRIES.

        A statement that names any other hash as last seen must not be recorded. The record would
        not verify, and a hostile actor could spoil the record that way.
        """
        recent, read = self._writer.recent, self._writer.read
        if session not in read and hash not in recent.get(session, ()):
            known: list[str] = await self._store.run(
                lambda db: table.newest_hashes(db, session, RECENT_ENTRIES)
            )
            if session not in read:
                # Written since the query.
                newer = [one for one in recent.get(session, ()) if one not in known]
                recent[session] = deque([*known, *newer], RECENT_ENTRIES)
                read.add(session)
        return hash in recent.get(session, ())

    def knows_now(self, session: str, hash: str) -> bool:
        """As `knows`, without waiting: False if the hash is not in memory."""
        tip = self.tip(session)
        return (tip is not None and tip.hash == hash) or hash in self._writer.recent.get(
            session, ()
        )

    async def settled(self) -> None:
        """Returns when all drafts posted until now are durable, or a write fails."""
        await self._writer.settled()

    async def close(self) -> None:
        await self._writer.close()

    # ------------------------------------------------------------ reading

    async def read(
        self, session: str, after: int = 0, limit: int = PAGE_ENTRIES, newest: bool = False
    ) -> list[Written]:
        """The oldest entries after that number, or the newest; fewer if the entries are long."""
        limit = max(1, min(limit, PAGE_ENTRIES))
        found: list[Written] = await self._store.run(
            table.newest(session, limit) if newest else table.page(session, after, limit)
        )
        return found

    async def follow(self, session: str, after: int = 0) -> AsyncIterator[Written]:
        """Yields all entries after that number, then new entries on arrival."""
        woken = asyncio.Event()
        waiting = self._followers.setdefault(session, set())
        waiting.add(woken)
        try:
            while True:
                woken.clear()
                try:
                    found = await self.read(session, after)
                except Unavailable:
                    found = []  # woken by the next durable entry
                for written in found:
                    after = written.seq
                    yield written
                if not found:
                    await woken.wait()
        finally:
            waiting.discard(woken)
            if not waiting:
                self._followers.pop(session, None)

    def _wake(self, session: str) -> None:
        for woken in self._followers.get(session, ()):
            woken.set()

    async def export(
        self, session: str, name: str, operators: Mapping[str, Iterable[str]]
    ) -> AsyncIterator[bytes]:
        """Yields the lines of an export. `operators`: every known name with the keys as text."""
        await self.settled()
        known: table.Bounds = await self._store.run(lambda db: table.bounds(db, session))
        first, end = known
        now = self._clock()
        span = (first, end.seq, end.hash, 1 if end.seq else 0)
        header = record.header(self._private, self.machine, session, name, operators, *span, now)
        yield record.signed_line("header", header)
        after = first - 1
        while after < end.seq:
            found: list[Written] = await self._store.run(
                table.page(session, after, PAGE_ENTRIES, end.seq)
            )
            if not found or found[0].seq != after + 1:
                raise Lost("entries were pruned while they were exported", "export again")
            for written in found:
                yield record.entry_line(written)
            after = found[-1].seq
        if end.seq:
            yield record.signed_line(
                "head", record.head(self._private, session, end.seq, end.hash, now)
            )

    # ------------------------------------------------------------ deleting

    async def redact(
        self,
        session: str,
        seqs: Sequence[int],
        actor: str,
        modality: str,
        reason: str = "",
        **facts: Canonical,
    ) -> list[int]:
        """Deletes the contents of entries, and records that in the same transaction.

        Returns the entries that had content.
        """
        if len(seqs) > table.REDACT_AT_ONCE:
            raise Usage(
                f"at most {table.REDACT_AT_ONCE} entries at once", "redact them in several steps"
            )
        await self.settled()
        gone: list[int] = []

        def job(db: apsw.Connection) -> Written | None:
            gone[:] = table.redact(db, session, seqs)
            if gone:
                told: dict[str, Canonical] = {"seqs": list(gone), **facts}
                return self._told(db, session, record.REDACT, actor, modality, reason, told)
            return None

        self._seen(await self._store.run(job))
        return gone

    async def prune(
        self, session: str, before_time: int | None = None, keep: int | None = None
    ) -> int:
        """Drops the oldest entries and records a checkpoint; never an intent without outcome.

        Returns how many entries were dropped.
        """
        await self.settled()
        gone = [0]

        def job(db: apsw.Connection) -> Written | None:
            first = table.bounds(db, session).first
            through = table.prune_through(db, session, before_time, keep)
            gone[0] = max(0, through - first + 1)
            if through < first:
                return None
            facts: dict[str, Canonical] = {
                "through": through,
                "hash": table.hash_at(db, session, through),
                "entries": gone[0],
            }
            written = self._told(db, session, record.CHECKPOINT, "host", "host", "", facts)
            table.prune(db, session, through)
            return written

        self._seen(await self._store.run(job))
        return gone[0]

    def _told(
        self,
        db: apsw.Connection,
        session: str,
        kind: str,
        actor: str,
        modality: str,
        reason: str,
        facts: dict[str, Canonical],
    ) -> Written:
        """Appends an entry of the host itself, and signs the head at once."""
        end = table.tip(db, session)
        [last] = table.page(session, end.seq - 1, 1)(db)
        draft = record.host_fact(
            session, last.fields["epoch"], kind, actor, modality, facts=facts, reason=reason
        )
        written = table.append(db, draft, end, self._clock())
        self._writer.sign(db, session, table.Tip(written.seq, written.hash))
        return written

    def _seen(self, written: Written | None) -> None:
        if written is not None:
            self._writer.remember(written)
            self._wake(written.session)

    async def retain(self, before_time: int) -> int:
        """Drops older entries of every session; returns how many."""
        sessions = await self._store.run(table.sessions)
        return sum([await self.prune(session, before_time) for session in sessions])

    # ------------------------------------------------------------ after a crash

    async def unfinished(self) -> dict[str, list[table.Fields]]:
        """The intents that have no outcome, by session."""
        found: dict[str, list[table.Fields]] = {}
        for intent in await self._store.run(table.open_intents):
            found.setdefault(intent["session"], []).append(intent)
        return found

    async def unknown(self, session: str, intents: Sequence[table.Fields]) -> list[str]:
        """Those of `unfinished` whose outcome is still not known, by their entries."""
        if not intents:
            return []
        await self.settled()
        first = min(one["seq"] for one in intents)
        known = await self._store.run(lambda db: table.known_outcomes(db, session, first))
        return [
            references.entry(session, one["epoch"], one["seq"])
            for one in intents
            if one["seq"] not in known
        ]

    async def unfinished_at(self, session: str, after: int, time: int) -> list[table.Fields]:
        """The intents without outcome at that time, which is later than entry `after`."""
        await self.settled()
        found: list[table.Fields] = await self._store.run(
            lambda db: table.unfinished_at(db, session, after, time)
        )
        return found

    async def acts_after(self, session: str, after: int) -> list[table.Fields]:
        """The acts in the newest entries behind that one."""
        found: list[table.Fields] = await self._store.run(
            lambda db: table.acts_after(db, session, after)
        )
        return found

    async def recover(self, fate: Fate) -> Recovered:
        """Gives every intent without outcome the outcome that `fate` finds. Called first of all."""

        def look(db: apsw.Connection) -> tuple[list[table.Fields], dict[str, bool | None]]:
            heads = table.heads(db)
            return table.open_intents(db), {
                session: self._is_signed(db, session, heads.get(session))
                for session in table.sessions(db)
            }

        intents, signed = await self._store.run(look)
        counts: dict[str, int] = {}
        for intent in intents:
            result = fate(intent)
            counts[result] = counts.get(result, 0) + 1
            self.post(record.outcome_of(intent, result, {"recovered": True}))
        probe("host.journal.recovering")
        damaged = [session for session, state in signed.items() if state is None]
        unsigned = {session for session, state in signed.items() if state is False}
        more = {str(intent["session"]) for intent in intents} - {*damaged}
        await self.settled()
        await self._writer.sign_heads(sorted(unsigned | more))
        missing = signed.keys() - self._writer.tips.keys()
        for written in await self._store.run(
            lambda db: [table.newest(session, 1)(db)[0] for session in missing]
        ):
            self._seen(written)
        return Recovered(counts, damaged)

    def _is_signed(self, db: apsw.Connection, session: str, head: Signed | None) -> bool | None:
        """Whether the end of a chain is signed. None: this machine last signed a different end.

        The whole chain is verified on an export.
        """
        if head is None:
            return False  # the host died before signing a head
        try:
            _, said = read_signed(record.signed_line("head", head), self.machine)
        except ValueError:
            return None
        end, found = table.tip(db, session).seq, table.hash_at(db, session, said["seq"])
        if said["session"] != session or said["seq"] > end or found != said["hash"]:
            return None
        return bool(said["seq"] == end)

    async def catch_up(
        self, session: str, epoch: int, applied: Callable[[table.Fields], int]
    ) -> int:
        """Records keys that the keeper took and that a crash kept out of the record.

        `applied` gets the last entry of each client, and returns up to which number the keeper took
        the client's input. Returns how many inputs were added.
        """
        known: dict[str, table.Fields] = await self._store.run(
            lambda db: table.last_of_clients(db, session)
        )
        count = 0
        for client, entry in known.items():
            last = applied(entry)
            if last <= entry["number"] or entry["kind"] not in (
                record.KEYS,
                record.COVER,
                "attach",
            ):
                continue
            count += last - entry["number"]
            self.post(
                record.host_fact(
                    session,
                    epoch,
                    record.KEYS,
                    entry["actor"],
                    entry["modality"],
                    client=client,
                    first=max(entry["number"] + 1, last - record.RANGE_MAX + 1),
                    number=last,
                    facts={"recovered": True},
                )
            )
        return count
