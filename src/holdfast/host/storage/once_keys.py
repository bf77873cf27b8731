"""The idempotency keys in the store (A9), and their way to branches and to other machines.

A key is stored with a digest of its act, which only the machine with the digest's secret can make.
A key that travels with a session takes that secret along, and the client and number of its act. So
the other machine recognises a retry, and can follow an act that goes on there. An operator may have
another name at that machine: there a key that was brought counts for every operator who repeats
its act.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from itertools import islice
from typing import Any, Final, NamedTuple

import apsw

from holdfast.host.storage import record_table as table
from holdfast.host.storage.record_table import Key, KeyedAct
from holdfast.host.storage.store import Store

DIGEST_BYTES: Final = 32
KEYS_MAX: Final = 10_000  # that travel: the newest
REPLIES_BYTES: Final = 1 << 20  # of answers that travel; without its answer an act is unknown

Digest = Callable[[bytes], bytes]  # of an act, with that secret; b"": with this machine's own
Row = tuple[str, str, str, str | None, str | None]  # a key that travels: as `Key`, without bytes


class _Origin(NamedTuple):
    """Instead of the digest of a key that was brought."""

    digest: bytes
    secret: bytes
    client: str | None
    number: int | None

    def packed(self) -> str:
        found = {"digest": self.digest.hex(), "secret": self.secret.hex()}
        return json.dumps({**found, "client": self.client, "number": self.number})


def _origin(same: bytes) -> _Origin | None:
    """None for the digest of a key of this machine; ValueError if it is neither."""
    if len(same) == DIGEST_BYTES:
        return None
    try:
        found = json.loads(same)
        client, number = found["client"], found["number"]
        origin = _Origin(
            bytes.fromhex(found["digest"]),
            bytes.fromhex(found["secret"]),
            None if client is None else f"{int(client, 16):x}",
            None if number is None else int(number),
        )
        if not len(origin.digest) == len(origin.secret) == DIGEST_BYTES:
            raise ValueError("no digest or no secret")
        return origin
    except (LookupError, TypeError) as e:
        raise ValueError("no origin of a key") from e


def _arrived(row: Sequence[Any]) -> Key | None:
    """A key that came with a session; None if it is damaged."""
    try:
        actor, once, same, outcome, reply = (None if one is None else str(one) for one in row)
        if actor is None or once is None or same is None or _origin(same.encode()) is None:
            return None
        f"{actor}{once}{outcome}".encode()  # the store refuses what UTF-8 cannot say
        return actor, once, same.encode(), outcome, None if reply is None else reply.encode()
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


class OnceKeys:
    def __init__(self, store: Store, private: bytes) -> None:
        self._store = store
        self._secret = blake2b(private, digest_size=DIGEST_BYTES, person=b"holdfast once").digest()

    def digest(self, kind: str, content: bytes, secret: bytes = b"") -> bytes:
        """Tells acts apart without keeping their content."""
        key, said = secret or self._secret, kind.encode() + b"\0" + content
        return blake2b(said, digest_size=DIGEST_BYTES, key=key).digest()

    async def find(self, session: str, actor: str, once: str, digest: Digest) -> KeyedAct | None:
        """The act to which the key of this operator belongs."""
        found: dict[str, KeyedAct] = await self._store.run(lambda db: table.once(db, session, once))
        return _chosen(found, actor, digest)

    async def keep(
        self, session: str, actor: str, once: str, same: bytes, outcome: str, reply: bytes | None
    ) -> None:
        """Keeps the answer to an act that was recorded after its effect, as the newest entry."""

        def job(db: apsw.Connection) -> None:
            seq = table.tip(db, session).seq
            table.put_once(db, session, actor, once, same, seq, outcome, reply)

        await self._store.run(job)

    async def complete(
        self, session: str, actor: str, once: str, outcome: str, reply: bytes | None
    ) -> None:
        """Keeps the answer to an act whose key is stored."""
        await self._store.run(
            lambda db: table.complete_once(db, session, actor, once, outcome, reply)
        )

    # ------------------------------------------------------------ branches

    async def of(self, session: str) -> tuple[table.Tip, list[Key]]:
        """The end of a session's record, and its idempotency keys, at this moment."""
        found: tuple[table.Tip, list[Key]] = await self._store.run(
            lambda db: (table.tip(db, session), table.once_keys(db, session))
        )
        return found

    async def inherit(self, keys: Sequence[Key], branches: Sequence[str]) -> None:
        """Give branches the idempotency keys of their parent."""

        def job(db: apsw.Connection) -> None:
            for branch in branches:
                table.inherit_once(db, keys, branch)

        await self._store.run(job)

    async def disinherit(self, branches: Sequence[str]) -> None:
        """Undo it, for branches that do not begin."""

        def job(db: apsw.Connection) -> None:
            for branch in branches:
                table.forget_once(db, branch)

        await self._store.run(job)

    # ------------------------------------------------------------ other machines

    async def travelling(self, session: str, after: int, time: int) -> tuple[Row, ...]:
        """The newest keys of a session, for a machine at which it goes on as it was at `time`.

        That moment is later than entry `after`. An act that was not over then has no answer there,
        because memory and files are without its effect, or with a part of it.
        """
        found, late = await self._store.run(
            lambda db: (
                table.newest_once(db, session, KEYS_MAX),
                table.not_over_at(db, session, after, time),
            )
        )
        room, rows = REPLIES_BYTES, list[Row]()
        for once, act in found:
            origin = _origin(act.same) or _Origin(act.same, self._secret, act.client, act.number)
            outcome, reply = (act.outcome, act.reply) if act.seq not in late else (None, None)
            text = reply.decode() if reply is not None else None
            room -= len(text or "")
            rows.append((act.actor, once, origin.packed(), outcome, text if room >= 0 else None))
        return tuple(rows)

    async def arrive(self, session: str, rows: Iterable[Sequence[Any]]) -> None:
        """Store the keys that came with a session. What this machine knows of a key stays."""
        keys = [key for row in islice(rows, KEYS_MAX) if (key := _arrived(row)) is not None]
        await self._store.run(lambda db: table.arrived_once(db, session, keys))


def _chosen(found: Mapping[str, KeyedAct], actor: str, digest: Digest) -> KeyedAct | None:
    for name in sorted(found, key=lambda name: name != actor):
        act = found[name]
        origin = _origin(act.same)
        if origin is not None and compare_digest(digest(origin.secret), origin.digest):
            return act._replace(same=digest(b""), client=origin.client, number=origin.number)
        if name == actor:
            return act  # if it is of another act, its digest says so
    return None
