"""The journal: the one way into all sessions' records (P1, P2), and out of them.

    intent, fact    awaited; fail with Unavailable when the disk takes nothing, for then the effect must not happen
    post, outcome   owed: kept (bounded) until the disk takes them, flagged late. Seize and halt are recorded so: a full disk delays
                    neither, the record of them comes after
    keys            gathered into ranges of one client's numbers; their content never comes here

How entries become durable is recordwriter.py's business; what may be stored of an act is decided in core/record.py, in one place. Who
stops waiting for an intent (its client went away) leaves one whose effect never follows: it is made void.

After a crash every intent without outcome gets one: what became of it is asked (`fate`), because the keeper knows which acts it took.
Keys that the keeper took within the last moments before a crash may be missing: `catch_up` adds them, in the host's name.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.core import record
from holdfast.core.examine import read_signed
from holdfast.core.record import UNSEEN, Draft, Signed, Terminal, Written
from holdfast.host import recordtable as table
from holdfast.host.recordwriter import RECENT_ENTRIES, Item, RecordWriter
from holdfast.host.store import Store
from holdfast.model import signing
from holdfast.model.errors import Lost, Unavailable, Usage
from holdfast.model.probe import probe

PAGE_ENTRIES: Final = 500  # read at once

Fate = Callable[[dict[str, Any]], str]  # of an intent without outcome: applied, void or unknown


class Typist(NamedTuple):
    """Whose keys: one attachment."""

    session: str
    epoch: int
    actor: str
    key: str | None
    modality: str
    client: str


class Recovered(NamedTuple):
    outcomes: dict[str, int]  # how many intents became what
    damaged: list[str]  # sessions whose record is not what this machine signed


class Journal:
    def __init__(
        self, store: Store, private: bytes, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.machine = signing.show(signing.public(private))
        self._store = store
        self._private = private
        self._clock = clock
        self._followers: dict[str, set[asyncio.Event]] = {}
        self._writer = self.writer = RecordWriter(store, private, clock, self._wake)

    # ------------------------------------------------------------ recording

    async def intent(self, draft: Draft, terminal: Terminal = UNSEEN) -> Written:
        """Durable when this returns. Unavailable: it is not recorded, and must not be done."""
        if draft.phase != record.INTENT:
            raise ValueError("not an intent")
        return await self._wait(self._writer.admit(draft, terminal, owed=False, wanted=True))

    async def fact(self, draft: Draft, terminal: Terminal = UNSEEN) -> Written:
        """As an intent, for what has no outcome: a refusal, an approval."""
        return await self._wait(self._writer.admit(draft, terminal, owed=False, wanted=True))

    def post(self, draft: Draft, terminal: Terminal = UNSEEN) -> None:
        """Something that has happened, or must not wait for the disk."""
        self._writer.admit(draft, terminal, owed=True, wanted=False)

    def outcome(self, intent: Written, result: str, reason: str = "", **facts: Any) -> None:
        self.post(record.outcome_of(intent.fields, result, facts, reason))

    def keys(self, typist: Typist, number: int) -> None:
        """One input of raw keys. They are recorded as a range, with others of the same attachment that come at once."""
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
        draft = Draft(
            typist.session,
            typist.epoch,
            "fact",
            record.KEYS,
            typist.actor,
            typist.modality,
            record.CHANNEL if typist.key is not None else record.HOST,
            typist.key,
            typist.client,
            first=number,
            number=number,
            originators=(),
        )
        made = self._writer.admit(draft, UNSEEN, owed=True, wanted=False)
        if made is not None:
            made.last = number

    async def cover(self, typist: Typist, statement: bytes, signature: bytes) -> Written:
        """The actor's word for a range of keys; the caller has checked it against what came (`Uncovered.cover`)."""
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
        draft = Draft(
            typist.session,
            typist.epoch,
            "fact",
            record.COVER,
            typist.actor,
            typist.modality,
            record.ACTOR,
            typist.key,
            typist.client,
            first=first,
            number=last,
            originators=(),
            statement=statement,
            signature=signature,
            commit=said["commit"],
        )
        return await self._wait(self._writer.admit(draft, UNSEEN, owed=True, wanted=True))

    def ack(self, written: Written, client: str, number: int) -> Signed:
        """For the client whose act that is: whoever keeps it can show that it was recorded."""
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
        """Nobody waits for this intent any more, so nothing will be done."""
        if not future.cancelled() and future.exception() is None:
            self.outcome(future.result(), record.VOID, "whoever asked for it went away")

    # ------------------------------------------------------------ where it stands

    @property
    def failing(self) -> bool:
        """The disk took nothing the last time: keys are recorded late, or counted only."""
        return self._writer.failing

    def tip(self, session: str) -> Written | None:
        """The newest durable entry that this host wrote; what a client is told as the last one seen."""
        return self._writer.tips.get(session)

    def seen(self, session: str) -> str | None:
        """Its hash; None if nothing is recorded."""
        tip = self.tip(session)
        return tip.hash if tip is not None else None

    async def knows(self, session: str, hash: str) -> bool:
        """Whether this is one of the newest RECENT_ENTRIES. A statement that says it has seen something else must not be recorded: the
        record would not verify, and a hostile actor could spoil it that way."""
        recent, read = self._writer.recent, self._writer.read
        if session not in read and hash not in recent.get(session, ()):
            known: list[str] = await self._store.write(
                lambda db: table.newest_hashes(db, session, RECENT_ENTRIES)
            )
            if session not in read:
                newer = [
                    one for one in recent.get(session, ()) if one not in known
                ]  # written since it was looked
                recent[session] = deque([*known, *newer], RECENT_ENTRIES)
                read.add(session)
        return hash in recent.get(session, ())

    def knows_now(self, session: str, hash: str) -> bool:
        """The same for what must not wait; False if it is not at hand."""
        tip = self.tip(session)
        return (tip is not None and tip.hash == hash) or hash in self._writer.recent.get(
            session, ()
        )

    async def head(self, session: str) -> Signed | None:
        """The end of the chain, signed now. None if there is no record."""
        end: table.Tip = await self._store.write(lambda db: table.tip(db, session))
        return (
            record.head(self._private, session, end.seq, end.hash, self._clock())
            if end.seq
            else None
        )

    async def settled(self) -> None:
        """Returns when all that was posted until now is durable, or the disk takes nothing."""
        await self._writer.settled()

    async def close(self) -> None:
        await self._writer.close()

    # ------------------------------------------------------------ reading

    async def read(
        self, session: str, after: int = 0, limit: int = PAGE_ENTRIES, newest: bool = False
    ) -> list[Written]:
        """The oldest entries after that number, or the newest ones; fewer than asked for if they are long."""
        limit = max(1, min(limit, PAGE_ENTRIES))
        found: list[Written] = await self._store.write(
            table.newest(session, limit) if newest else table.page(session, after, limit)
        )
        return found

    async def follow(self, session: str, after: int = 0) -> AsyncIterator[Written]:
        """All entries after that number, and those that come."""
        woken = asyncio.Event()
        waiting = self._followers.setdefault(session, set())
        waiting.add(woken)
        try:
            while True:
                woken.clear()
                try:
                    found = await self.read(session, after)
                except Unavailable:
                    found = []  # told when it can be read again
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
        """The lines of an export as it stands now. `operators`: every name known here, with its keys as text."""
        await self.settled()
        known: table.Bounds = await self._store.write(lambda db: table.bounds(db, session))
        first, end = known
        now = self._clock()
        yield record.signed_line(
            "header",
            record.header(
                self._private,
                self.machine,
                session,
                name,
                operators,
                first,
                end.seq,
                end.hash,
                1 if end.seq else 0,
                now,
            ),
        )
        after = first - 1
        while after < end.seq:
            found: list[Written] = await self._store.write(
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

    # ------------------------------------------------------------ forgetting

    async def redact(
        self, session: str, seqs: Sequence[int], actor: str, modality: str, reason: str = ""
    ) -> list[int]:
        """Takes the contents of entries away, and records that in the same step. Gives those that had content."""
        if len(seqs) > table.REDACT_AT_ONCE:
            raise Usage(
                f"at most {table.REDACT_AT_ONCE} entries at once", "redact them in several steps"
            )
        await self.settled()
        gone: list[int] = []

        def job(db: apsw.Connection) -> Written | None:
            gone[:] = table.redact(db, session, seqs)
            return (
                self._told(
                    db, session, record.REDACT, actor, modality, reason, {"seqs": list(gone)}
                )
                if gone
                else None
            )

        self._seen(await self._store.write(job))
        return gone

    async def prune(
        self, session: str, before_time: int | None = None, keep: int | None = None
    ) -> int:
        """Drops the oldest entries, up to a checkpoint that says so; never an intent that is still open. Gives how many went."""
        await self.settled()
        gone = [0]

        def job(db: apsw.Connection) -> Written | None:
            first = table.bounds(db, session).first
            through = table.prune_through(db, session, before_time, keep)
            gone[0] = max(0, through - first + 1)
            if through < first:
                return None
            facts = {
                "through": through,
                "hash": table.hash_at(db, session, through),
                "entries": gone[0],
            }
            written = self._told(db, session, record.CHECKPOINT, "host", "host", "", facts)
            table.prune(db, session, through)
            return written

        self._seen(await self._store.write(job))
        return gone[0]

    def _told(
        self,
        db: apsw.Connection,
        session: str,
        kind: str,
        actor: str,
        modality: str,
        reason: str,
        facts: dict[str, Any],
    ) -> Written:
        """Appends what the host itself has to say, and signs it at once."""
        end = table.tip(db, session)
        [last] = table.page(session, end.seq - 1, 1)(db)
        draft = Draft(
            session,
            last.fields["epoch"],
            "fact",
            kind,
            actor,
            modality,
            record.HOST,
            originators=(),
            facts=facts,
            reason=reason,
        )
        written = table.append(db, draft, end, self._clock())
        self._writer.sign(db, session, table.Tip(written.seq, written.hash))
        return written

    def _seen(self, written: Written | None) -> None:
        if written is not None:
            self._writer.remember(written)
            self._wake(written.session)

    async def retain(self, before_time: int) -> int:
        """Drops what is older than that, of every session. Gives how many entries went."""
        return sum(
            [
                await self.prune(session, before_time)
                for session in await self._store.write(table.sessions)
            ]
        )

    async def forget(self, session: str) -> None:
        """Drops all that is recorded of a session."""
        await self.settled()
        await self._store.write(table.forget(session))
        self._writer.forget(session)

    # ------------------------------------------------------------ after a crash

    async def recover(self, fate: Fate) -> Recovered:
        """Every intent without outcome gets one, as `fate` says. Before anything else is recorded."""

        def look(
            db: apsw.Connection,
        ) -> tuple[list[dict[str, Any]], dict[str, Signed], dict[str, table.Bounds]]:
            return (
                table.open_intents(db),
                table.heads(db),
                {s: table.bounds(db, s) for s in table.sessions(db)},
            )

        intents, heads, ends = await self._store.write(look)
        counts: dict[str, int] = {}
        for intent in intents:
            result = fate(intent)
            counts[result] = counts.get(result, 0) + 1
            self.post(record.outcome_of(intent, result, {"recovered": True}))
        probe("host.journal.recovering")
        damaged = [
            session
            for session, end in ends.items()
            if not await self._is_ours(session, end, heads.get(session))
        ]
        await self.settled()
        await self._writer.sign_heads([s for s in ends if s not in damaged])
        for session in ends.keys() - self._writer.tips.keys():
            self._seen((await self.read(session, limit=1, newest=True))[0])
        return Recovered(counts, damaged)

    async def _is_ours(self, session: str, known: table.Bounds, head: Signed | None) -> bool:
        """Whether the table still holds what this machine signed last. The whole of it is verified by whoever asks, on an export."""
        if head is None:
            return True  # nothing was signed before the end came
        try:
            _, said = read_signed(record.signed_line("head", head), self.machine)
        except ValueError:
            return False
        found = await self._store.write(lambda db: table.hash_at(db, session, said["seq"]))
        return bool(
            said["session"] == session and said["seq"] <= known.tip.seq and found == said["hash"]
        )

    async def catch_up(
        self, session: str, epoch: int, applied: Callable[[dict[str, Any]], int]
    ) -> int:
        """Records keys that the keeper took and that a crash kept out of the record. `applied` is told the last entry of each client, and says up to
        which number the keeper took what it sent. Gives how many."""
        known: dict[str, dict[str, Any]] = await self._store.write(
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
                Draft(
                    session,
                    epoch,
                    "fact",
                    record.KEYS,
                    entry["actor"],
                    entry["modality"],
                    record.HOST,
                    client=client,
                    first=max(entry["number"] + 1, last - record.RANGE_MAX + 1),
                    number=last,
                    originators=(),
                    facts={"recovered": True},
                )
            )
        return count


def salt() -> bytes:
    return os.urandom(record.SALT_BYTES)
