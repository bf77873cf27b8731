"""The act that started each process (P5).

A state machine, driven by forks, exits, entered lines and the shell's marks. There is no access
to the clock or /proc. A process belongs to the act that started its parent, unless the parent takes
orders from the terminal. Then the process belongs to the order.

1. Two kinds of processes take orders. The session's own shell reports by marks when it begins an
   order. An inner interpreter in the foreground (a nested shell, a REPL, an editor) does not: while
   the interpreter has the terminal, the children belong to the last input. The interpreter may
   still work on an earlier line, so every actor who typed since its start is named as well, and
   so is the actor who started the interpreter.
2. Forks are reported in time: a fork that precedes a mark is reported first. Marks may be late. A
   line counts from the moment of entering, with all typists, before the shell can read the line. So
   an order is known before the processes of the order, whether mark or fork comes first.
3. A line that is entered while another program runs (typed ahead) may be input of that program, or
   may still be unread. If a line was entered since the prompt, the earlier lines were input. If
   not, the first of them begins. Typists of every line that may be meant are named as others. This
   includes typists who completed the line (an open quote, a paste), and typists on a line that
   another key than Return may have entered. An interrupt removes no name from a line before the
   shell shows that it gave up the line, because the character can be quoted. If the shell starts a
   process while such lines wait, the process may belong to the command before, or to the next
   command, with marks on the way. The process belongs to the next command if that begins before the
   wait for marks is over (`certain`). The other author is named too.
4. Without an entered line, processes that the shell starts at the prompt are the shell's own (a
   hook, a prompt with `$(...)`) and belong to no act.
5. Nothing is guessed. A process whose start was not observed (lost events, an absent host) has the
   act of the parent if the parent is known and takes no orders. Otherwise the cause is UNKNOWN.

Pids are reused: a member is forgotten when it exits, and a different start time means a different
process. A loss of events can only make members missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

LINES_KEPT: Final = 64  # entered but not begun; beyond that the oldest are dropped
MEMBERS_MAX: Final = 65_536
DOUBTFUL_MAX: Final = 1024
TYPISTS_MAX: Final = 64
OTHERS_MAX: Final = 16  # names in one cause
EXITS_KEPT: Final = 256
ACTS_KEPT: Final = 4096  # acts whose originators are kept

Saved = dict[str, Any]  # JSON for the next host


class Cause(NamedTuple):
    """The order that started a process."""

    actor: str  # the operator who gave the order
    act: int | None  # the number of the act in the session
    others: tuple[str, ...] = ()  # other operators who had a part in the order

    def ref(self, session: str) -> str | None:
        """Return the reference to the act; `session` is the reference to the session."""
        return None if self.act is None else f"{session}#{self.act}"


UNKNOWN: Final = Cause("unknown", None)
SHELL: Final = Cause("shell", None)  # the shell's own doing


class Member(NamedTuple):
    start: int  # start time of the process; 0: not read yet
    parent: int
    cause: Cause
    since: int = 0  # the number of inputs that preceded its order; 0: not known


class Lineage:
    """The processes of a session, and the causing orders."""

    def __init__(self, root: int, born: Cause, shell: bool) -> None:
        """Start with the first process of the session; `shell`: it reports by marks."""
        self.root, self._shell = root, shell
        self._members: dict[int, Member] = {root: Member(0, 0, born)}
        self._ahead: deque[Cause] = deque(maxlen=LINES_KEPT)  # entered before the last prompt
        self._entered: deque[Cause] = deque(maxlen=LINES_KEPT)  # entered since the last prompt
        self._now: Cause | None = None  # the order that the shell executes
        self._last: Cause | None = None  # the last input of all
        self._line: dict[str, None] = {}  # typists of the line that is not entered yet
        # Typists of an interrupted line, until the shell shows that it gave up the line.
        self._given_up: dict[str, None] = {}
        self._doubtful: list[int] = []  # children of the shell that may belong to the next line
        self._prompted = False
        self._marks = 0  # the last mark of the shell that was processed
        self._known_marks = 0  # marks that the last host processed; they may be read again
        self.exits: dict[int, int] = {}  # exit codes of the newest commands, by act
        self._shaped: dict[int, tuple[str, ...]] = {}  # originators by act
        self.opened = False  # the shell showed a first prompt, so the start files are done
        self.typists: dict[str, None] | None = {}  # all typists so far; None: not known
        self._inputs = self._inputs_before = 0  # all inputs; those before the last prompt
        self._input_of: dict[str, int] = {}  # the number of the last input of each typist

    # ------------------------------------------------------------ orders

    def typed(self, actor: str, act: int, data: bytes) -> None:
        """Note bytes that are about to be written to the terminal."""
        self._last = Cause(actor, act)
        if self.typists is not None and actor not in self.typists:
            self.typists = (
                {**self.typists, actor: None} if len(self.typists) < TYPISTS_MAX else None
            )
        self._inputs += 1
        if self.typists is not None:
            self._input_of[actor] = self._inputs
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
        """Note the number of the mark that the next events come from; a new host rereads some."""
        self._marks = number

    @property
    def already_known(self) -> bool:
        """The last host processed the present mark."""
        return 0 < self._marks <= self._known_marks

    def begun(self) -> Cause:
        """Note that the shell begins to execute a line; return its cause."""
        if self.already_known:
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
        """The order that the shell executes; None: the shell is at its prompt."""
        return self._now

    @property
    def doubtful(self) -> frozenset[int]:
        return frozenset(self._doubtful)

    def certain(self, pids: Collection[int]) -> None:
        """Note that all marks have arrived that were on their way for these doubtful processes."""
        self._doubtful = [pid for pid in self._doubtful if pid not in pids]

    def finished(self, code: int) -> None:
        """Note the exit code of the order that the shell executes."""
        if self._now is not None and self._now.act is not None and not self.already_known:
            self.exits[self._now.act] = code
            if len(self.exits) > EXITS_KEPT:
                del self.exits[next(iter(self.exits))]

    def ending(self) -> Cause:
        """Return the order that ended the first program, if the program ended by itself.

        A shell ends in an order (`exit`), or at the end of input (C-d), which is the last input on
        the unfinished line. Another program may end by itself or by input: the operator is known
        only if no other operator had a part.
        """
        if not self._shell:
            born = self._members[self.root].cause
            names = dict.fromkeys((born.actor, *born.others, *(self.typists or ())))
            if self.typists is not None and len(names) == 1:
                return born
            return _shared(UNKNOWN, names)
        if self._now is not None:
            return _shared(self._now, self.typed_since(self._inputs_before))
        if self._entered or self._ahead:
            return self._likely()
        if self._typists and self._last is not None:
            return _shared(self._last, self._typists)
        return UNKNOWN

    def over(self, cause: Cause) -> bool:
        """Say whether the command of that cause has ended.

        This is so if the shell is at the prompt or executes a later order. Input for a program
        inside of a command is a later order than the command.
        """
        if cause.act is None or any(one.act == cause.act for one in (*self._entered, *self._ahead)):
            return False
        return self._now is None or (self._now.act is not None and self._now.act > cause.act)

    def prompt(self) -> None:
        """Note that the shell shows a prompt."""
        if self.already_known:
            return
        self._keep_typists()
        self._now, self._prompted, self.opened = None, True, True
        self._inputs_before = self._inputs
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
        else:  # the unfinished line, entered by another key than Return
            self._line.clear()
            self._given_up.clear()
        return chosen

    def _likely(self) -> Cause:
        """Return the order that begins next, with the typists of all lines that may be meant.

        These are earlier lines (input of a program, or unread), later lines that complete it, and
        a line that another key than Return enters.
        """
        if self._entered:
            chosen, *more = self._entered
            return _shared(chosen, _names([*self._ahead, *more]))
        chosen, *more = self._ahead or (UNKNOWN,)
        return _shared(chosen, (*_names(more), *self._typists))

    # ------------------------------------------------------------ processes

    def forked(self, parent: int, child: int, takes_orders: Callable[[int], bool]) -> bool:
        """Note a fork; return whether the parent is a member.

        `takes_orders` says whether a process is an interpreter that has the terminal. It is called
        only if the answer matters.
        """
        found = self._members.get(parent)
        if found is None or len(self._members) >= MEMBERS_MAX:
            return False
        cause = self._ordered(parent, found, takes_orders)
        since = self._inputs_before if parent == self.root and self._shell else found.since
        self._members[child] = Member(0, parent, cause, since)
        doubt = parent == self.root and self._shell and self._between
        if doubt and len(self._doubtful) < DOUBTFUL_MAX:
            self._doubtful.append(child)
        return True

    @property
    def _between(self) -> bool:
        """A child of the shell may belong to an order with a mark on the way."""
        return (
            bool(self._ahead)
            if self._now is not None
            else not (self._entered or self._ahead) and bool(self._typists)
        )

    def _ordered(self, parent: int, member: Member, takes_orders: Callable[[int], bool]) -> Cause:
        if parent == self.root and self._shell:
            if self._now is not None:
                return self._now
            return self._likely() if self._entered or self._ahead else SHELL
        if self._last is not None:
            meant = _shared(self._last, (*_names([member.cause]), *self.typed_since(member.since)))
            if meant != member.cause and takes_orders(parent):
                return meant
        return member.cause

    @property
    def inputs(self) -> int:
        """The number of the last input."""
        return self._inputs

    def typed_since(self, number: int) -> list[str]:
        """Return the typists since that input; "unknown" if there may be more."""
        if self.typists is None:
            return [UNKNOWN.actor]
        # a typist without a number typed before this host knew of it
        return [name for name in self.typists if self._input_of.get(name, number + 1) > number]

    def doing(self, pid: int, was: Member | None, takes_orders: Callable[[int], bool]) -> Cause:
        """Return the order behind the present action of a process, such as a write.

        `was` is the member if the process has exited. Actors who typed while the process had the
        terminal may have ordered the action, so they are named too.
        """
        member = was if was is not None else self._members.get(pid)
        if member is None:
            return UNKNOWN
        cause = self._ordered(pid, member, takes_orders)
        if pid in self._doubtful or (pid == self.root and self._shell and self._between):
            return _shared(cause, (*_names([*self._ahead, *self._entered]), *self._typists))
        if self._now is not None and self._last is not None and member.cause == self._now:
            return _shared(cause, (self._last.actor,))
        return cause

    def behind(self, pid: int, in_foreground: Callable[[int], bool]) -> Cause:
        """Return the cause of an exec with every operator who may have had a part in it.

        A program in the foreground may read what is typed, and may still work on earlier input. So
        each typist since the order began has a part in what the programs of the order execute.
        """
        member = self._members.get(pid)
        if member is None:
            return UNKNOWN
        if not self._present(member) and not in_foreground(pid):
            return member.cause
        return _shared(member.cause, self.typed_since(member.since))

    def _present(self, member: Member) -> bool:
        """Say whether the process belongs to the order that the shell executes."""
        return not self._shell or (self._now is not None and member.since == self._inputs_before)

    def _keep_typists(self) -> None:
        """At the end of an order: name its typists for the programs that it leaves running."""
        names = self.typed_since(self._inputs_before)
        if self._now is None or not {*names} - {self._now.actor}:
            return
        for pid, one in self._members.items():
            if pid != self.root and one.since == self._inputs_before:
                self._members[pid] = one._replace(cause=_shared(one.cause, names))

    def inputs_of(self) -> Collection[str] | None:
        """Return the operators who made the session or ever gave input; None: not known."""
        if self.typists is None:
            return None
        return {*self.typists, self._members[self.root].cause.actor}

    def member(self, pid: int) -> Member | None:
        return self._members.get(pid)

    def exited(self, pid: int) -> Member | None:
        """Forget a process and return the entry; the children stay."""
        return self._members.pop(pid, None) if pid != self.root else None

    def found(
        self,
        living: Mapping[int, tuple[int, int]],
        before: Collection[int] | None = None,
        whole: bool = True,
    ) -> list[int]:
        """Compare the members with the kernel's: pid -> (start, parent). Return the new pids.

        A vanished process is forgotten. The start of a new process was not observed. `before` holds
        the members when the scan began, if it took time: a later member may be missing in `living`,
        and an exited member may be in it. Not `whole`: there are more processes.
        """
        new = list[int]()
        for pid, one in [*self._members.items()]:
            if pid != self.root and (
                one.start not in (0, living[pid][0])
                if pid in living
                else whole and (before is None or pid in before)
            ):
                del self._members[pid]
        self.started({pid: start for pid, (start, _) in living.items()})
        helpers = _above(self.root, living)
        for pid in _downwards(living):
            start, parent = living[pid]
            if (
                pid not in self._members
                and (before is None or pid not in before)
                and len(self._members) < MEMBERS_MAX
            ):
                above = self._members.get(self.root if pid in helpers else parent)
                adopted = parent in helpers and pid not in helpers
                unseen = adopted or (parent == self.root and self._shell)
                self._members[pid] = Member(
                    start, parent, above.cause if above is not None and not unseen else UNKNOWN
                )
                new.append(pid)
        return new

    def unstarted(self) -> list[int]:
        """Return the members whose start time is not known yet."""
        return [pid for pid, one in self._members.items() if not one.start]

    def started(self, starts: Mapping[int, int]) -> None:
        for pid, start in starts.items():
            if (known := self._members.get(pid)) is not None:
                self._members[pid] = known._replace(start=start)

    def same(self, pid: int, start: int) -> bool:
        """Say whether a process with this start time is the member with that pid."""
        member = self._members.get(pid)
        return member is not None and member.start in (0, start)

    def of(self, pid: int) -> Cause:
        member = self._members.get(pid)
        return member.cause if member is not None else UNKNOWN

    def shaped(self, act: int, names: Iterable[str]) -> None:
        """Note the originators of an act, as they were reported to the gate."""
        self._shaped[act] = tuple(names)[:OTHERS_MAX]
        if len(self._shaped) > ACTS_KEPT:
            del self._shaped[next(iter(self._shaped))]

    def originators(self, cause: Cause) -> tuple[str, ...]:
        """Return the originators of a cause, without its actor; "unknown" last, if any."""
        known = self._shaped.get(cause.act) if cause.act is not None else None
        found = dict.fromkeys((*cause.others, *(known or ())))
        found.pop(cause.actor, None)
        unseen = known is None or found.pop(UNKNOWN.actor, 0) is None
        return (*found, UNKNOWN.actor) if unseen else tuple(found)

    def parent_of(self, pid: int) -> int | None:
        """Return the process that started this process, even after an adoption."""
        member = self._members.get(pid)
        return member.parent if member is not None and member.parent else None

    def started_by(self, operator: str) -> set[int]:
        """Return the processes that this operator's acts started.

        Processes of unknown cause below them belong to them, and so do the shell's own. The
        session's shell is not among them: it works for every operator.
        """
        mine = {pid for pid, one in self._members.items() if one.cause.actor == operator}
        if self._shell:
            mine.discard(self.root)
        nobody = [
            pid
            for pid, one in self._members.items()
            if one.cause.actor in (UNKNOWN.actor, SHELL.actor) and pid != self.root
        ]
        grown = bool(mine)
        while grown:
            below = [pid for pid in nobody if pid not in mine and self.parent_of(pid) in mine]
            mine.update(below)
            grown = bool(below)
        return mine

    def tops(self) -> list[int]:
        """Return the jobs: children of the shell, and processes whose parent is gone."""
        return [
            pid
            for pid, one in self._members.items()
            if pid != self.root and (one.parent == self.root or one.parent not in self._members)
        ]

    @property
    def members(self) -> Collection[int]:
        return self._members.keys()

    # ------------------------------------------------------------ for the next host

    def save(self) -> Saved:
        return {
            "members": [
                [pid, m.start, m.parent, *saved_cause(m.cause)]
                for pid, m in self._members.items()
                if m.start
            ],
            "now": None if self._now is None else saved_cause(self._now),
            "last": None if self._last is None else saved_cause(self._last),
            "prompted": self._prompted,
            "marks": max(self._marks, self._known_marks),
            "exits": [*map(list, self.exits.items())],
            "shaped": [[act, *names] for act, names in self._shaped.items()],
            "opened": self.opened,
            "typists": None if self.typists is None else list(self.typists),
            **(
                {
                    "inputs": [self._inputs, self._inputs_before, self._input_of],
                    "since": [[pid, m.since] for pid, m in self._members.items() if m.start],
                }
                if self._inputs
                else {}
            ),
        }

    def restore(self, saved: Saved) -> None:
        """Load the state of the last host. The caller must then call `found` with all processes."""
        members = {
            int(pid): Member(int(start), int(parent), read_cause(cause))
            for pid, start, parent, *cause in saved["members"]
        }
        now, last = (saved[one] and read_cause(saved[one]) for one in ("now", "last"))
        marks = int(saved.get("marks", 0))
        exits = {int(act): int(code) for act, code in saved.get("exits", ())}
        shaped = {int(act): tuple(map(str, names)) for act, *names in saved.get("shaped", ())}
        typists = saved.get("typists")
        self.typists = None if typists is None else dict.fromkeys(map(str, typists))
        inputs, before, input_of = saved.get("inputs", (0, 0, {}))
        self._inputs, self._inputs_before = int(inputs), int(before)
        self._input_of = {str(name): int(number) for name, number in input_of.items()}
        for pid, since in saved.get("since", ()):
            members[pid] = members[pid]._replace(since=int(since))
        self.opened = bool(saved.get("opened", True))
        self._members |= members
        self._known_marks, self.exits, self._shaped = marks, exits, shaped
        self._now, self._last, self._prompted = now, last, bool(saved["prompted"])


def _shared(cause: Cause, more: Iterable[str]) -> Cause:
    names = dict.fromkeys((*cause.others, *more))
    names.pop(cause.actor, None)
    if len(names) > OTHERS_MAX:
        names = dict.fromkeys((UNKNOWN.actor, *tuple(names)[: OTHERS_MAX - 1]))
    return cause._replace(others=tuple(names))


def _names(causes: Iterable[Cause]) -> list[str]:
    return [name for one in causes for name in (one.actor, *one.others)]


def saved_cause(cause: Cause) -> list[str | int | list[str] | None]:
    return [cause.actor, cause.act, list(cause.others)]


def read_cause(saved: Sequence[Any]) -> Cause:
    actor, act, others = saved
    return Cause(str(actor), None if act is None else int(act), tuple(map(str, others)))


def _above(root: int, living: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return processes 1 and 2 of a contained session, the root's parents.

    They began with the session, and process 2 adopts orphans.
    """
    found = set[int]()
    pid = root
    while pid in living and (pid := living[pid][1]) in living and pid not in found:
        found.add(pid)
    return found


def _downwards(living: Mapping[int, tuple[int, int]]) -> list[int]:
    """Return the pids so that parents precede their children."""
    below: dict[int, list[int]] = {}
    for pid, (_, parent) in living.items():
        below.setdefault(parent, []).append(pid)
    order = [pid for pid, (_, parent) in living.items() if parent not in living]
    for pid in order:
        order += below.get(pid, ())
    return order
