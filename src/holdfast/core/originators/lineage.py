"""Which act started which process (P5): a machine of forks, exits, entered lines and the shell's marks. It reads no clock and no /proc.

A process belongs to the act that started its parent, unless its parent is one that takes orders from the terminal: then it belongs to the order.

1. Two kinds of process take orders: the session's own shell, which says by marks when it begins one, and another interpreter in the foreground (a shell in the shell, a
   REPL, an editor), which does not: what such a one starts belongs to the last input while it has the terminal, and whoever started the interpreter shaped it.
2. Forks are told in time: those before a mark come before it. Marks may be late.
   A line counts from the moment it is entered, with everybody who typed on it, before the shell can read it: so an order is known here before anything it starts, whatever comes first, mark or fork.
3. Lines entered while something else ran (typed ahead) may have been that program's input, or may still be unread. If a line was entered since the prompt, they were; else
   the first of them is what begins. Whoever typed one that might be meant as well is named among the others: also who completed it (an open quote, a paste), and who is on a line
   that may have been entered by another key than Return. An interrupt takes nobody's name off a line before the shell has shown that it gave it up: the character can be quoted.
   A process that the shell starts while such lines wait may be of the command before or of the next, whose marks are on their way: it is the next one's if that
   begins before the marks have been waited for (`certain`), and the other's author is named too.
4. What the shell starts at its prompt with nothing entered is its own doing (a hook, a prompt with `$(...)`): no act.
5. Nobody is guessed. A process whose beginning was not seen (events were lost, the host was away) has its parent's act as long as the parent is known and takes no
   orders; otherwise its cause is UNKNOWN.

Pids are reused: a member is forgotten when it exits, and one that is found with another start time is another process. What was lost can only be too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

LINES_KEPT: Final = 64  # entered and not begun; of more, the oldest are let go
MEMBERS_MAX: Final = 65_536
DOUBTFUL_MAX: Final = 1024
TYPISTS_MAX: Final = 64
OTHERS_MAX: Final = 16  # names in one cause
EXITS_KEPT: Final = 256
ACTS_KEPT: Final = 4096  # whose originators are known


class Cause(NamedTuple):
    """Why something was started."""

    actor: str  # who gave the order
    act: int | None  # its number in the session
    others: tuple[str, ...] = ()  # who else had a hand in that order

    def ref(self, session: str) -> str | None:
        """The reference to the act, of a session whose own is given."""
        return None if self.act is None else f"{session}#{self.act}"


UNKNOWN: Final = Cause("unknown", None)
SHELL: Final = Cause("shell", None)  # its own doing


class Member(NamedTuple):
    start: int  # 0: not looked at yet
    parent: int
    cause: Cause


class Lineage:
    def __init__(self, root: int, born: Cause, shell: bool) -> None:
        """`root`: the session's first process, and who had it made; whether it is a shell that tells by marks what it does."""
        self.root, self._shell = root, shell
        self._members: dict[int, Member] = {root: Member(0, 0, born)}
        self._ahead: deque[Cause] = deque(maxlen=LINES_KEPT)  # entered before the last prompt
        self._entered: deque[Cause] = deque(maxlen=LINES_KEPT)  # and since
        self._now: Cause | None = None  # what the shell executes
        self._last: Cause | None = None  # the last input of all
        self._line: dict[str, None] = {}  # who has typed on the line that is not entered yet
        self._given_up: dict[
            str, None
        ] = {}  # and on one that was interrupted, until the shell has shown that it let go of it
        self._doubtful: list[int] = []  # started by the shell, perhaps for the next line already
        self._prompted = False
        self._marks = 0  # the last of the shell's that was taken
        self._known_marks = (
            0  # that the last host had taken: what they say is known, though they are read again
        )
        self.exits: dict[int, int] = {}  # of the newest commands, by the act that ordered each
        self._shaped: dict[int, tuple[str, ...]] = {}  # by act: who shaped the state that it ran on
        self.opened = False  # it has asked for the first line: what its start files do is done
        self.typists: (
            dict[str, None] | None
        ) = {}  # everybody who has typed anything, so far; None: not known

    # ------------------------------------------------------------ orders

    def typed(self, actor: str, act: int, data: bytes) -> None:
        """Bytes that are about to be written to the terminal."""
        self._last = Cause(actor, act)
        if self.typists is not None and actor not in self.typists:
            self.typists = (
                {**self.typists, actor: None} if len(self.typists) < TYPISTS_MAX else None
            )
        if b"\r" in data or b"\n" in data:
            lines = data.replace(b"\n", b"\r").split(b"\r")
            for line in lines[:-1]:
                if line or self._typists:
                    (self._entered if self._prompted else self._ahead).append(
                        _shared(self._last, self._typists)
                    )
                self._line.clear()
                self._given_up.clear()
            data = lines[-1]
        before, interrupt, data = data.rpartition(b"\x03")
        if before.replace(b"\x03", b""):
            self._line[actor] = None
        if interrupt and self._prompted and not self._entered:
            self._given_up |= self._line
            self._line.clear()
        if data:
            self._line[actor] = None

    def marked(self, number: int) -> None:
        """The shell's mark that what follows comes from. A new host reads some again."""
        self._marks = number

    @property
    def again(self) -> bool:
        """Whether what the shell says now was known to the last host."""
        return 0 < self._marks <= self._known_marks

    def begun(self) -> Cause:
        """The shell begins to execute a line."""
        if self.again:
            return self._now or UNKNOWN
        cause = self._next()
        for pid in self._doubtful:
            if (one := self._members.get(pid)) is not None:
                self._members[pid] = one._replace(
                    cause=_shared(cause, (one.cause.actor, *one.cause.others))
                )
        self._doubtful.clear()
        self._line, self._given_up = self._typists, {}
        self._now, self._prompted = cause, False
        return cause

    @property
    def now(self) -> Cause | None:
        """Of what the shell executes; None: it is at its prompt."""
        return self._now

    @property
    def doubtful(self) -> frozenset[int]:
        return frozenset(self._doubtful)

    def certain(self, pids: Collection[int]) -> None:
        """All marks have come that were on their way when these were doubtful. Of who was started since, nothing is said."""
        self._doubtful = [pid for pid in self._doubtful if pid not in pids]

    def finished(self, code: int) -> None:
        """What it executes has this exit code."""
        if self._now is not None and self._now.act is not None and not self.again:
            self.exits[self._now.act] = code
            if len(self.exits) > EXITS_KEPT:
                del self.exits[next(iter(self.exits))]

    def over(self, cause: Cause) -> bool:
        """Whether the command of that cause is: the shell is at its prompt, or does something that was ordered later. What was typed into a program inside was ordered later than that one."""
        if cause.act is None or any(one.act == cause.act for one in (*self._entered, *self._ahead)):
            return False
        return self._now is None or (self._now.act is not None and self._now.act > cause.act)

    def prompt(self) -> None:
        """It is done and asks for the next."""
        if self.again:
            return
        self._now, self._prompted, self.opened = None, True, True
        self._ahead.extend(self._entered)
        self._entered.clear()
        self._given_up.clear()

    @property
    def _typists(self) -> dict[str, None]:
        return self._given_up | self._line

    def _next(self) -> Cause:
        chosen = self._likely()
        if self._entered:
            self._entered.popleft()
            self._ahead.clear()
        elif self._ahead:
            self._ahead.popleft()
        else:  # the line itself, by a key that enters it too
            self._line.clear()
            self._given_up.clear()
        return chosen

    def _likely(self) -> Cause:
        """What begins next, and with it whoever typed what may be meant as well: earlier for a program or unread, later to complete it, or on a line that another key than Return enters."""
        if self._entered:
            chosen, *more = self._entered
            return _shared(chosen, _names([*self._ahead, *more]))
        chosen, *more = self._ahead or (UNKNOWN,)
        return _shared(chosen, (*_names(more), *self._typists))

    # ------------------------------------------------------------ processes

    def forked(self, parent: int, child: int, takes_orders: Callable[[int], bool]) -> bool:
        """Whether it is one of ours now. `takes_orders`: whether that process is an interpreter that has the terminal; asked only if it matters."""
        found = self._members.get(parent)
        if found is None or len(self._members) >= MEMBERS_MAX:
            return False
        self._members[child] = Member(0, parent, self._ordered(parent, found, takes_orders))
        if (
            parent == self.root
            and self._shell
            and self._between
            and len(self._doubtful) < DOUBTFUL_MAX
        ):
            self._doubtful.append(child)
        return True

    @property
    def _between(self) -> bool:
        """Whether what the shell starts may be of something whose mark is on its way."""
        return (
            bool(self._ahead)
            if self._now is not None
            else not (self._entered or self._ahead) and bool(self._typists)
        )

    def _ordered(self, parent: int, member: Member, takes_orders: Callable[[int], bool]) -> Cause:
        if parent == self.root and self._shell:
            return (
                self._now
                if self._now is not None
                else self._likely()
                if self._entered or self._ahead
                else SHELL
            )
        if self._last is not None and self._last != member.cause and takes_orders(parent):
            return _shared(self._last, (member.cause.actor, *member.cause.others))
        return member.cause

    def doing(self, pid: int, was: Member | None, takes_orders: Callable[[int], bool]) -> Cause:
        """On whose order a process does what it does now: writes a file, for example. `was`: it has exited since. Whoever typed while it had the terminal may have told it to: they are named too."""
        member = was if was is not None else self._members.get(pid)
        if member is None:
            return UNKNOWN
        cause = self._ordered(pid, member, takes_orders)
        if pid in self._doubtful or (pid == self.root and self._shell and self._between):
            return _shared(cause, (*_names([*self._ahead, *self._entered]), *self._typists))
        if self._now is not None and self._last is not None and member.cause == self._now:
            return _shared(cause, (self._last.actor,))
        return cause

    def member(self, pid: int) -> Member | None:
        return self._members.get(pid)

    def exited(self, pid: int) -> Member | None:
        """What was known of it. Its children stay what they are."""
        return self._members.pop(pid, None) if pid != self.root else None

    def found(
        self,
        living: Mapping[int, tuple[int, int]],
        before: Collection[int] | None = None,
        whole: bool = True,
    ) -> list[int]:
        """What the kernel has: pid -> (start, parent). Who is not there any more is forgotten, who is new was not seen to begin: those are given. `before`: the members when the look began, if it
        took time: who came since may not be in it, and who went since may. Not `whole`: there are more."""
        new = list[int]()
        for pid, one in [*self._members.items()]:
            if pid != self.root and (
                one.start not in (0, living[pid][0])
                if pid in living
                else whole and (before is None or pid in before)
            ):
                del self._members[pid]
        self.started({pid: start for pid, (start, _) in living.items()})
        first = (
            living[self.root][1] if self.root in living else 0
        )  # of a contained session, its own process 1: it began with the session, and takes in whom others left
        for pid in _downwards(living):
            start, parent = living[pid]
            if (
                pid not in self._members
                and (before is None or pid not in before)
                and len(self._members) < MEMBERS_MAX
            ):
                above = self._members.get(self.root if pid == first else parent)
                unseen = parent == first or (parent == self.root and self._shell)
                self._members[pid] = Member(
                    start, parent, above.cause if above is not None and not unseen else UNKNOWN
                )
                new.append(pid)
        return new

    def unstarted(self) -> list[int]:
        """Whose start time nobody has said yet."""
        return [pid for pid, one in self._members.items() if not one.start]

    def started(self, starts: Mapping[int, int]) -> None:
        for pid, start in starts.items():
            if (known := self._members.get(pid)) is not None:
                self._members[pid] = known._replace(start=start)

    def same(self, pid: int, start: int) -> bool:
        """Whether a process with this start time is the one that is known by that pid."""
        member = self._members.get(pid)
        return member is not None and member.start in (0, start)

    def of(self, pid: int) -> Cause:
        member = self._members.get(pid)
        return member.cause if member is not None else UNKNOWN

    def shaped(self, act: int, names: Iterable[str]) -> None:
        """Who shaped the state that an act runs on, as the gate was told."""
        self._shaped[act] = tuple(names)[:OTHERS_MAX]
        if len(self._shaped) > ACTS_KEPT:
            del self._shaped[next(iter(self._shaped))]

    def originators(self, cause: Cause) -> tuple[str, ...]:
        """Of what a cause started, besides its actor; "unknown" at the end where that could not be seen."""
        known = self._shaped.get(cause.act) if cause.act is not None else None
        found = dict.fromkeys((*cause.others, *(known or ())))
        found.pop(cause.actor, None)
        unseen = known is None or found.pop(UNKNOWN.actor, 0) is None
        return (*found, UNKNOWN.actor) if unseen else tuple(found)

    def parent_of(self, pid: int) -> int | None:
        """Who started it, also when that one is gone and another is its parent now."""
        member = self._members.get(pid)
        return member.parent if member is not None and member.parent else None

    def tops(self) -> list[int]:
        """What the shell started, and what has left its parent behind: jobs, as people call them."""
        return [
            pid
            for pid, one in self._members.items()
            if pid != self.root and (one.parent == self.root or one.parent not in self._members)
        ]

    @property
    def members(self) -> Collection[int]:
        return self._members.keys()

    # ------------------------------------------------------------ for the next host

    def save(self) -> dict[str, Any]:
        return {
            "members": [
                [pid, m.start, m.parent, *_plain(m.cause)]
                for pid, m in self._members.items()
                if m.start
            ],
            "now": None if self._now is None else list(_plain(self._now)),
            "last": None if self._last is None else list(_plain(self._last)),
            "prompted": self._prompted,
            "marks": max(self._marks, self._known_marks),
            "exits": [*map(list, self.exits.items())],
            "shaped": [[act, *names] for act, names in self._shaped.items()],
            "opened": self.opened,
            "typists": None if self.typists is None else list(self.typists),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What the last host knew; `found` must follow."""
        members = {
            int(pid): Member(int(start), int(parent), _cause(cause))
            for pid, start, parent, *cause in saved["members"]
        }
        now, last = (None if saved[one] is None else _cause(saved[one]) for one in ("now", "last"))
        marks, exits = (
            int(saved.get("marks", 0)),
            {int(act): int(code) for act, code in saved.get("exits", ())},
        )
        shaped = {int(act): tuple(map(str, names)) for act, *names in saved.get("shaped", ())}
        typists = saved.get("typists")
        self.typists, self.opened = (
            None if typists is None else dict.fromkeys(map(str, typists)),
            bool(saved.get("opened", True)),
        )
        self._members |= members
        self._known_marks, self.exits, self._shaped = marks, exits, shaped
        self._now, self._last, self._prompted = now, last, bool(saved["prompted"])


def _shared(cause: Cause, more: Iterable[str]) -> Cause:
    names = dict.fromkeys((*cause.others, *more))
    names.pop(cause.actor, None)
    return cause._replace(others=tuple(names)[:OTHERS_MAX])


def _names(causes: Iterable[Cause]) -> list[str]:
    return [name for one in causes for name in (one.actor, *one.others)]


def _plain(cause: Cause) -> tuple[str, int | None, list[str]]:
    return cause.actor, cause.act, list(cause.others)


def _cause(saved: Any) -> Cause:
    actor, act, others = saved
    return Cause(str(actor), None if act is None else int(act), tuple(str(name) for name in others))


def _downwards(living: Mapping[int, tuple[int, int]]) -> list[int]:
    """Parents before their children."""
    below: dict[int, list[int]] = {}
    for pid, (_, parent) in living.items():
        below.setdefault(parent, []).append(pid)
    order = [pid for pid, (_, parent) in living.items() if parent not in living]
    for pid in order:
        order += below.get(pid, ())
    return order
