"""Idempotency keys: a retry under the key of an earlier act gets the outcome of that act (A9).

The record keeps (place, operator, key) with each act, as long as the record itself
(host/storage/record_table.py). The row is written with the intent and completed with the outcome,
each in the same transaction, so that a crash leaves both or none. `claim` decides about a request:

    no such key                           the act is new
    the key of a different act            refused
    under way                             wait for it; follow a command that runs
    void, failed                          the row is gone: the act is judged afresh
    applied, with the answer              give that answer again
    taken by a keeper, without an answer  repeat the request under the first number: the keeper
                                          knows what it took
    unknown, and repeatable               do it again: twice has the effect of once
    unknown                               say so

Seize, halt and revoke take effect before they are recorded. Their row follows the effect, and a
lookup that takes longer than LOOK_S does not delay them: they can be repeated without harm.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.core.contract.table import OPERATIONS
from holdfast.core.record import record
from holdfast.host.session.commands import Run
from holdfast.host.session.session import Session
from holdfast.host.storage.journal import Journal
from holdfast.host.storage.record_table import KeyedAct
from holdfast.model.errors import OnceUsed, OutcomeUnknown, Unavailable, Usage
from holdfast.model.ids import is_once
from holdfast.model.limits import ONCE_CHARS
from holdfast.wire import frames

if TYPE_CHECKING:
    from holdfast.host.acts.door import Act
    from holdfast.model.jsontext import Json

REPLY_BYTES: Final = 64 * 1024  # of an answer that is kept
LOOK_S: Final = 1.0  # for the lookup of an act that nothing may delay
KEEP_S: Final = 1.0  # until the outcome is durable, before the client gets the answer anyway
AT_ONCE: Final = frozenset(("seize", "halt", "operator.revoke", "device.revoke"))

Name = tuple[str, str, str]  # place, operator, key


class Keys:
    """One per host."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._under_way: dict[Name, Act] = {}

    @asynccontextmanager
    async def claimed(self, act: Act) -> AsyncIterator[Json | None]:
        """The answer that the act's key already has; None if the handler has to find it."""
        if act.once is None:
            yield None
            return
        me: Name = (act.session.id, act.conn.operator, act.once)
        while (other := self._under_way.get(me)) is not None:
            _same(act, other.same)
            if other.op == "run" and other.taken is not None:
                break
            await asyncio.wait({other.settled})
        if other is None:
            self._under_way[me] = act
        try:
            yield await self._answer(act)
        finally:
            if self._under_way.get(me) is act:
                del self._under_way[me]
            act.settle()

    async def _answer(self, act: Act) -> Json | None:
        assert act.once is not None
        keys = self._journal.once
        digest = partial(keys.digest, act.kind, act.intention)
        looking = keys.find(act.session.id, act.conn.operator, act.once, digest)
        try:
            first = await asyncio.wait_for(looking, LOOK_S if act.op in AT_ONCE else None)
        except (TimeoutError, Unavailable):
            if act.op in AT_ONCE:
                return None
            raise
        if first is None:
            return None
        _same(act, first.same, first.seq)
        act.first = first
        row = OPERATIONS[act.op]
        if row.same_number and self._knows(act, first):
            return None
        if first.reply is not None:
            return _told_again(act, json.loads(first.reply))
        if row.repeatable and not row.same_number:
            return None
        where = f"{act.session.id} entry {first.seq}" if first.seq else "at another machine"
        raise OutcomeUnknown(
            f"the first act with this key ({where}) was recorded, and it cannot be known whether "
            "it took effect",
            "look first; then act under a new key if it is still needed",
        )

    def _knows(self, act: Act, first: KeyedAct) -> bool:
        """Whether the live session can tell the outcome of an act that its keeper takes."""
        session = act.session
        if not isinstance(session, Session) or first.client is None or first.number is None:
            return False
        which = client, number = int(first.client, 16), first.number
        if first.reply is None:
            known = session.lane.known(client, number)
            act.repeats(which)
            return known
        if act.op != "run":
            return False
        ran: Json = json.loads(first.reply)
        start, end, code = ran["output"]["start"], ran["output"]["end"], ran["exit_code"]
        session.commands.runs.setdefault(f"{client:x}-{number}", Run(start, end, code))
        act.repeats(which, ran["act"])
        return True

    async def keep(self, act: Act) -> None:
        """Makes the act's answer durable, if the disk is able to, before the client gets it."""
        if act.once is None:
            return
        keys, session = self._journal.once, act.session.id
        if act.written is not None:
            saving = self._journal.settled()
        elif act.first is not None:  # followed after a lost answer
            saving = keys.complete(session, act.first.actor, act.once, record.APPLIED, act.reply)
        else:  # recorded after the effect
            operator = act.conn.operator
            saving = keys.keep(session, operator, act.once, act.same, record.APPLIED, act.reply)
        try:
            await asyncio.wait_for(saving, KEEP_S)
        except (TimeoutError, Unavailable):
            pass


def _told_again(act: Act, answer: Json) -> Json:
    """The answer of the first act. The output of a command has gone with its session: a gap."""
    if act.op == "run":
        start, end = answer["output"]["start"], answer["output"]["end"]
        if end > start:
            act.conn.send(frames.gap(act.request, start, end))
        answer["lost"] = end - start
    return answer


def once_of(body: Mapping[str, object]) -> str | None:
    """The key of a request; Usage if it is none."""
    once = body.get("once")
    if once is not None and not is_once(once):
        raise Usage(f"an idempotency key has 1 to {ONCE_CHARS} printable ASCII characters")
    return None if once is None else str(once)


def kept(reply: Json) -> bytes | None:
    """The stored form of an answer; None if the answer is too long."""
    body = json.dumps(reply).encode()
    return body if len(body) <= REPLY_BYTES else None


def _same(act: Act, same: bytes, seq: int | None = None) -> None:
    if act.same != same:
        entry = "" if not seq else f" (entry {seq} of the record of {act.session.id})"
        raise OnceUsed(f"the key {act.once!a} belongs to another act{entry}")
