"""Who made which file what it is (P3): a table of what the kernel told of writes, and a rule for what it did not tell. No I/O, no clock.

A file is known by a key that the caller makes (file system, inode, generation): names come and go, and an inode that is used again is another file.

1. The author of a file is who wrote into it last. Who moved it, linked it or changed its attributes since had a hand in what stands under a name: they are listed after the author.
2. Writes that were told between two looks at the kernel's queue have no order among different processes: the kernel joins those of one process. Whoever wrote in the same moment
   (`moment`) is listed too, as perhaps.
3. What was written by a process of no session has no author here: its entry goes, and rule 5 says what is left.
4. After a loss (of events, or of the host: `lost`) an entry counts only if the file's change time and size are still what they were when it was settled. A change time is settled
   some time after the last event only, so that a later write cannot have the same.
5. A file without an entry is nobody's if it has not changed since before the first session began (`horizon`): the machine's. Otherwise nobody knows. Change times are the wall clock's:
   when that is set back, the horizon goes back with it (`clock`).
6. Where nothing is told of files at all, what this account can neither write nor replace is nobody's too, as long as no process of a session went on as another account or group; and if exactly one act had something running in the moment of the change, it is
   named, but not as sure: somebody outside may have been it.

Only the last ENTRIES_MAX files are kept; what had to go is unknown, never nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from holdfast.core.lineage import SHELL, Cause
from holdfast.core.lineage import UNKNOWN as NOBODY_KNOWS
from holdfast.core.originators import UNKNOWN, Shaped

ENTRIES_MAX: Final = 65_536
SAVED_MAX: Final = 16_384  # the newest, for the next host
HANDS_MAX: Final = 4  # of more, the last is "unknown"
TICK_NS: Final = 10_000_000  # of the clock that change times are made of, at most: they may be that much older than the change
SETTLED_AFTER_NS: Final = 5 * TICK_NS
STEP_S: Final = 0.5  # a clock that is set back by less is being disciplined


class Author(NamedTuple):
    session: str  # its id
    cause: Cause


OUTSIDE: Final = Author("", NOBODY_KNOWS)


class Stamp(NamedTuple):
    changed: int  # ctime in ns
    size: int


class Entry(NamedTuple):
    content: Author | None  # None: nobody was seen to write into it
    hands: tuple[Author, ...]  # who moved, linked or changed it otherwise, since
    perhaps: tuple[Author, ...]  # who wrote in the same moment as the author
    moment: int
    era: int  # between two losses
    stamp: Stamp | None = None


class Table:
    def __init__(self) -> None:
        self.horizon = math.inf  # the wall clock's time when the first session began
        self.moment = 1  # a new one when everything that was told is known
        self.era = 1
        self._entries: dict[bytes, Entry] = {}  # oldest first
        self._outside: set[bytes] = set()  # written by no session, in this moment
        self._fresh: dict[
            tuple[Author, ...], Entry
        ] = {}  # of this moment, one for all files of an author
        self._unsettled: dict[bytes, None] = {}
        self._offset: float | None = None  # of the wall clock to the steady one
        self._checked = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------ what is told

    def wrote(self, key: bytes, author: Author | None) -> None:
        """Content; None: a process of no session."""
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
        """A new name: of something new, or a link to what is known already."""
        (self.wrote if key not in self._entries else self.touched)(key, author)

    def touched(self, key: bytes, author: Author | None) -> None:
        """Moved, linked, or its attributes changed."""
        old = self._entries.get(key)
        if old is None:
            if author is None:
                return
            old = Entry(None, (), (), self.moment, self.era)
        elif old.era != self.era:  # what it was cannot be proven any more
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

    def gone(self, key: bytes) -> None:
        """The file itself, not only one of its names."""
        if self._entries.pop(key, None) is not None:
            self._unsettled.pop(key, None)

    def all_told(self) -> None:
        """Everything up to now: what comes, comes after it."""
        self.moment += 1
        self._outside.clear()
        self._fresh.clear()

    def lost(self) -> None:
        self.era += 1
        self._unsettled.clear()
        self.all_told()

    def lost_on(self, system: bytes) -> None:
        """Of one file system, whose keys begin so: what could not be told of it is not known to be missing."""
        for key in [key for key in self._entries if system and key.startswith(system)]:
            self._entries[key] = self._entries[key]._replace(era=0)
            self._unsettled.pop(key, None)

    # ------------------------------------------------------------ proof, for after a loss

    def unsettled(self, most: int) -> list[tuple[bytes, Entry]]:
        """The newest whose change time is not written down."""
        return [(key, self._entries[key]) for key in islice(reversed(self._unsettled), most)]

    def settled(self, key: bytes, entry: Entry, stamp: Stamp | None, now_ns: int) -> bool:
        """What was found, after `entry` was taken out of `unsettled` and before everything up to now was told; None: its change time cannot be found out."""
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

    def began(self, at: float) -> None:
        """A session did."""
        self.horizon = min(self.horizon, at)

    def old(self, stamp: Stamp) -> bool:
        """It has not changed since before the first session."""
        return stamp.changed < self.horizon * 1e9 - TICK_NS

    def clock(self, wall: float, steady: float) -> None:
        """What both clocks say now. What changed after the wall clock was set back may seem older than it is."""
        offset = wall - steady
        if self._offset is not None and offset < self._offset - STEP_S:
            self.horizon = min(self.horizon, wall - (steady - self._checked))
        self._offset, self._checked = offset, steady

    # ------------------------------------------------------------ for the next host

    def save(self) -> Iterator[list[Any]]:
        """One row for each: first what concerns all, then authors as they come, and files, newest last."""
        newest = [*islice(reversed(self._entries.items()), SAVED_MAX)]
        return _rows(
            [self.horizon if math.isfinite(self.horizon) else None, self._offset, self._checked],
            newest,
        )

    def restore(self, rows: Iterable[Any], same_boot: bool) -> None:
        """What the last host knew: nothing of it counts without proof."""
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


def _rows(head: list[Any], entries: list[tuple[bytes, Entry]]) -> Iterator[list[Any]]:
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
    """As originators of what stands under that path, as somebody in `session` meets it: the author first, or if nobody knows that, who else had a hand in it."""
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
    """Where nobody was told of files: the only one who had something running then, if that is known and it was one."""
    each = tuple(dict.fromkeys(authors or ()))
    if len(each) == 1:
        return tuple(one._replace(sure=False) for one in _of(each[0], session, path, False))
    return (Shaped("file", path, UNKNOWN),)


def _of(author: Author, session: str, path: str, sure: bool) -> list[Shaped]:
    """Their act is named by its number only within the session it belongs to. Who had a hand in the order itself comes after who gave it."""
    cause = author.cause
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
