"""The authors of files (P3): a table of reported writes, and rules for unreported writes.

A file is known by a key that the caller makes (file system, inode, generation). Names come and go,
and a reused inode is another file. No I/O, no clock.

1. The author of a file is the last writer of the content. Later moves, links and changes of
   attributes add their actors after the author.
2. Writes that were reported between two reads of the kernel's queue have no order among different
   processes, because the kernel joins the events of one process. Writers in the same moment
   (`moment`) are listed too, as `perhaps`.
3. A write by a process of no session removes the entry, and rule 5 applies.
4. After a loss (of events, or of the host: `lost`) an entry counts only if the change time and the
   size of the file still have the settled values. A change time is settled only some time after
   the last event, so that a later write cannot have the same.
5. A file without an entry belongs to the machine if it did not change since before the first
   session began (`horizon`). Otherwise the author is unknown. Change times are wall-clock times: if
   the clock is set back, the horizon goes back with it (`clock`).
6. Without any reports of writes, a file that this account can neither write nor replace also
   belongs to the machine, unless a process of a session changed its account or group. If exactly
   one act was running at the time of the change, that act is named, but not as sure: a process
   outside may have written.

7. A file that the host wrote for a session before its first program (`provided`) belongs to the
   machine while its change time and size are as they were then.

Only the last ENTRIES_MAX files are kept. A dropped entry makes the author unknown, never the
machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.core.originators.lineage import SHELL, Cause
from holdfast.core.originators.lineage import UNKNOWN as UNKNOWN_CAUSE
from holdfast.core.originators.originators import UNKNOWN, Shaped

ENTRIES_MAX: Final = 65_536
SAVED_MAX: Final = 16_384  # the newest entries, for the next host
HANDS_MAX: Final = 4  # actors of one file; if there are more, the last is "unknown"
TICK_NS: Final = 10_000_000
"""Largest tick of the clock for change times: they may be that much older than the change."""
SETTLED_AFTER_NS: Final = 5 * TICK_NS
STEP_S: Final = 0.5  # a clock that is set back by less is being disciplined


Row = list[Any]  # JSON for the next host


class Author(NamedTuple):
    session: str  # the id of the session
    cause: Cause


OUTSIDE: Final = Author("", UNKNOWN_CAUSE)
HOST: Final = Author("", Cause("", None))  # no operator has this name


class Stamp(NamedTuple):
    changed: int  # ctime in ns
    size: int


class Entry(NamedTuple):
    content: Author | None  # the author of the content; None: no write was observed
    hands: tuple[Author, ...]  # actors of later moves, links and other changes
    perhaps: tuple[Author, ...]  # other writers in the same moment
    moment: int
    era: int  # counts losses of events
    stamp: Stamp | None = None


class Table:
    """The entries of all known files."""

    def __init__(self) -> None:
        self.horizon = math.inf  # wall-clock time when the first session began
        self.moment = 1  # incremented when all reported events are processed
        self.era = 1
        self._entries: dict[bytes, Entry] = {}  # oldest first
        self._outside: set[bytes] = set()  # files written by no session, in this moment
        # Entries of this moment, shared by the files of an author.
        self._fresh: dict[tuple[Author, ...], Entry] = {}
        self._unsettled: dict[bytes, None] = {}
        self._offset: float | None = None  # wall clock minus monotonic clock
        self._checked = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------ reported events

    def wrote(self, key: bytes, author: Author | None) -> None:
        """Note a write of content. `author` is None for a process outside every session."""
        old = self._entries.pop(key, None)
        if author is None:
            self._outside.add(key)
            self._unsettled.pop(key, None)
            if len(self._outside) > ENTRIES_MAX:
                self.lost()
            return
        perhaps: tuple[Author, ...] = ()
        if old is not None and old.moment == self.moment:
            perhaps = _each(
                (*(() if old.content is None else (old.content,)), *old.perhaps, *old.hands), author
            )
        if key in self._outside:
            perhaps = _each((*perhaps, OUTSIDE), author)
        fresh = self._fresh.get((author, *perhaps))
        if fresh is None:
            fresh = self._fresh[(author, *perhaps)] = Entry(
                author, (), perhaps, self.moment, self.era
            )
        self._put(key, fresh)

    def made(self, key: bytes, author: Author | None) -> None:
        """Note a new name: of a new file, or a link to a known file."""
        (self.wrote if key not in self._entries else self.touched)(key, author)

    def touched(self, key: bytes, author: Author | None) -> None:
        """Note that a file was moved or linked, or that its attributes changed."""
        old = self._entries.get(key)
        if old is None:
            if author is None:
                return
            old = Entry(None, (), (), self.moment, self.era)
        elif old.era != self.era:  # the old content cannot be proven any more
            old = Entry(None, old.hands, (), self.moment, self.era)
        who = author or OUTSIDE
        hands = old.hands if who in old.hands or who == old.content else (*old.hands, who)
        if len(hands) > HANDS_MAX:
            hands = (*hands[: HANDS_MAX - 1], OUTSIDE)
        self._entries.pop(key, None)
        self._put(key, old._replace(hands=hands, stamp=None))

    def _put(self, key: bytes, entry: Entry) -> None:
        self._entries[key] = entry
        self._unsettled[key] = None
        if len(self._entries) > ENTRIES_MAX:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._unsettled.pop(oldest, None)

    def provided(self, key: bytes, stamp: Stamp, author: Author = HOST) -> None:
        """Note a file that the host wrote; all events about it must have been processed."""
        self._entries.pop(key, None)
        self._put(key, Entry(author, (), (), 0, 0, stamp))
        self._unsettled.pop(key, None)

    def uploaded(self, key: bytes, author: Author) -> None:
        """Note a file that an operator wrote through the host, where later writes are reported.

        All events about it must have been processed.
        """
        self._entries.pop(key, None)
        self._outside.discard(key)
        self._put(key, Entry(author, (), (), self.moment, self.era))

    def gone(self, key: bytes) -> None:
        """Note that the file itself was deleted, not only a name."""
        if self._entries.pop(key, None) is not None:
            self._unsettled.pop(key, None)

    def all_told(self) -> None:
        """Note that all events up to now were processed: a later event happened later."""
        self.moment += 1
        self._outside.clear()
        self._fresh.clear()

    def lost(self) -> None:
        self.era += 1
        self._unsettled.clear()
        self.all_told()

    def lost_on(self, system: bytes) -> None:
        """Note a loss on a file system; `system` is the prefix of the keys."""
        for key in [key for key in self._entries if system and key.startswith(system)]:
            self._entries[key] = self._entries[key]._replace(era=0)
            self._unsettled.pop(key, None)

    # ------------------------------------------------------------ proof, for after a loss

    def unsettled(self, most: int) -> list[tuple[bytes, Entry]]:
        """Return the newest entries whose change time is not settled."""
        return [(key, self._entries[key]) for key in islice(reversed(self._unsettled), most)]

    def settled(self, key: bytes, entry: Entry, stamp: Stamp | None, now_ns: int) -> bool:
        """Settle an entry with the observed change time; None: unknown.

        The entry must come from `unsettled`, and no event may have been processed since.
        """
        if self._entries.get(key) != entry or entry.era != self.era:
            return False
        if stamp is None:
            self._unsettled.pop(key, None)
            return False
        if not 0 <= stamp.changed <= now_ns - SETTLED_AFTER_NS:
            return False
        self._entries[key] = entry._replace(stamp=stamp)
        self._unsettled.pop(key, None)
        return True

    # ------------------------------------------------------------ answers

    def entry(self, key: bytes, stamp: Stamp) -> Entry | None:
        found = self._entries.get(key)
        return (
            found if found is not None and (found.era == self.era or found.stamp == stamp) else None
        )

    def known(self, key: bytes) -> Entry | None:
        """Return the entry of a file whose writes were all reported."""
        found = self._entries.get(key)
        return found if found is not None and found.era == self.era else None

    def forget_acts(self, session: str) -> None:
        """Forget the numbers of a session's acts: its next incarnation counts them anew."""
        for key, one in self._entries.items():
            content, *others = (
                author._replace(cause=author.cause._replace(act=None))
                if author is not None and author.session == session
                else author
                for author in (one.content, *one.hands, *one.perhaps)
            )
            known = [author for author in others if author is not None]
            cut = len(one.hands)
            self._entries[key] = one._replace(
                content=content, hands=tuple(known[:cut]), perhaps=tuple(known[cut:])
            )

    def keys(self) -> Iterator[bytes]:
        """Yield the files with an entry, oldest first."""
        yield from [*self._entries]

    def began(self, at: float) -> None:
        """Note that a session began."""
        self.horizon = min(self.horizon, at)

    def old(self, stamp: Stamp) -> bool:
        """Say whether the file did not change since before the first session."""
        return stamp.changed < self.horizon * 1e9 - TICK_NS

    def clock(self, wall: float, steady: float) -> None:
        """Note the time of both clocks.

        After the wall clock is set back, a changed file may look older than it is.
        """
        offset = wall - steady
        if self._offset is not None and offset < self._offset - STEP_S:
            self.horizon = min(self.horizon, wall - (steady - self._checked))
        self._offset, self._checked = offset, steady

    # ------------------------------------------------------------ for the next host

    def save(self) -> Iterator[Row]:
        """Yield a row of common values, then one row per author and per file, newest last."""
        newest = [*islice(reversed(self._entries.items()), SAVED_MAX)]
        return _rows(
            [self.horizon if math.isfinite(self.horizon) else None, self._offset, self._checked],
            newest,
        )

    def restore(self, rows: Iterable[Row], same_boot: bool) -> None:
        """Load the entries of the last host; none of them counts without proof."""
        lines = iter(rows)
        horizon, offset, checked = next(lines)
        authors, entries = list[Author](), dict[bytes, Entry]()
        for row in lines:
            if len(row) == 4:
                session, actor, act, others = row
                authors.append(
                    Author(
                        str(session),
                        Cause(
                            str(actor), None if act is None else int(act), tuple(map(str, others))
                        ),
                    )
                )
            else:
                key, content, hands, perhaps, changed, size = row
                entries[bytes.fromhex(key)] = Entry(
                    None if content is None else authors[content],
                    tuple(authors[n] for n in hands),
                    tuple(authors[n] for n in perhaps),
                    0,
                    0,
                    Stamp(int(changed), int(size)),
                )
                if len(entries) >= SAVED_MAX:
                    break
        if horizon is not None:
            self.began(float(horizon))
        if same_boot and offset is not None:
            self._offset, self._checked = float(offset), float(checked)
        self._entries = entries | self._entries


def _rows(head: Row, entries: list[tuple[bytes, Entry]]) -> Iterator[Row]:
    yield head
    known: dict[Author, int] = {}
    for key, one in reversed(entries):
        if one.stamp is None:
            continue
        for author in (*(() if one.content is None else (one.content,)), *one.hands, *one.perhaps):
            if author not in known:
                known[author] = len(known)
                yield [
                    author.session,
                    author.cause.actor,
                    author.cause.act,
                    list(author.cause.others),
                ]
        yield [
            key.hex(),
            None if one.content is None else known[one.content],
            [known[a] for a in one.hands],
            [known[a] for a in one.perhaps],
            *one.stamp,
        ]


def _each(authors: Iterable[Author], but: Author) -> tuple[Author, ...]:
    found = [one for one in dict.fromkeys(authors) if one != but]
    return tuple(found) if len(found) <= HANDS_MAX else (*found[: HANDS_MAX - 1], OUTSIDE)


def shaped(entry: Entry, session: str, path: str) -> tuple[Shaped, ...]:
    """Return the originators of the file at `path`, for an act in `session`.

    The author comes first. If the author is unknown, the actors who otherwise changed the file come
    first.
    """
    content = entry.content or OUTSIDE
    known = _of(content, session, path, True)
    hands = [one for hand in entry.hands for one in _of(hand, session, path, True)]
    perhaps = [one for author in entry.perhaps for one in _of(author, session, path, False)]
    found = dict.fromkeys([*known, *hands, *perhaps])
    return (
        *(one for one in found if one.actor != UNKNOWN),
        *(one for one in found if one.actor == UNKNOWN),
    )


def guessed(authors: Iterable[Author] | None, session: str, path: str) -> tuple[Shaped, ...]:
    """Return the originator where writes are not reported.

    That is the only act that was running, or the actor of all acts that were running.
    """
    each = tuple(dict.fromkeys(authors or ()))
    if len(each) > 1 and len({(one.cause.actor, *one.cause.others) for one in each}) == 1:
        each = (Author("", each[0].cause._replace(act=None)),)
    if len(each) == 1:
        return tuple(one._replace(sure=False) for one in _of(each[0], session, path, False))
    return (Shaped("file", path, UNKNOWN),)


def _of(author: Author, session: str, path: str, sure: bool) -> list[Shaped]:
    """Return the author, then the operators who had a part in the order.

    The number of an act is given only within the session it belongs to.
    """
    cause = author.cause
    if author == HOST:
        return []
    if cause.actor in (UNKNOWN, SHELL.actor):
        return [
            Shaped("file", path, UNKNOWN),
            *(
                Shaped("file", path, name, sure=False)
                for name in cause.others
                if name not in (UNKNOWN, SHELL.actor)
            ),
        ]
    act = cause.act if author.session == session else None
    return [
        Shaped("file", path, cause.actor, act, sure),
        *(
            Shaped("file", path, UNKNOWN if name == SHELL.actor else name, None, False)
            for name in cause.others
        ),
    ]
