"""The history checker: decides from inputs, reads and output whether a run was right.

The checker is pure: it gets lists and bytes and returns the faults; an empty list means that the
contract allows the history. Tests with real processes collect the histories, and this module judges
them.

Inputs (S4, A7). A client numbers its inputs from 1. A program may have received any interleaving of
the clients' inputs in which each input is whole, occurs once and in its client's order. Every
acknowledged input is there, and no refused input is. An unacknowledged input may be missing, but
only if no later input from the same client arrived: the acknowledgement of a number covers all
numbers below it. Where two clients sent equal bytes the checker tries both readings.

Output (S4, S5, S6). A viewer gets a sequence of screens and output ranges. A screen states its
offset. Each range begins where the previous range ended; a hole or an overlap is a fault, although
the bytes may look right. The bytes of adjoining ranges are those of the raw stream without the
sequences that viewers must not see. A jump forward is allowed only by a screen or a stated gap, and
only where the caller says that the viewer may have lagged.

Rejected: comparing only hashes of the whole (shows that the run is wrong, but not where); deciding
order by time stamps of the clients (two clocks of two processes decide nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

CONTEXT_BYTES = 32  # of the streams, around the place that a fault names
READINGS_MAX = 200_000  # ways to read an ambiguous history before the checker calls it undecided


class Outcome(StrEnum):
    ACKED = "acked"
    UNKNOWN = "unknown"  # the client died, or never heard
    REFUSED = "refused"


class Sent(NamedTuple):
    """One input as seen by its client."""

    client: int
    number: int
    data: bytes
    outcome: Outcome


class Kind(StrEnum):
    LOST = "lost"  # acknowledged, or followed by a later input of its client, and never received
    DOUBLED = "doubled"
    REORDERED = "reordered"  # received, but after a later input of the same client
    TORN = "torn"  # other bytes inside the input, or only a part of it
    UNASKED = "unasked"  # bytes that no client sent, or that were refused
    HOLDERS = "holders"  # two operators held the turn, or not the operator that was reported
    UNDECIDED = "undecided"  # too ambiguous: the test's inputs should differ
    HOLE = "hole"
    OVERLAP = "overlap"
    BACKWARDS = "backwards"  # a screen older than the output already shown
    SKIPPED = "skipped"  # a jump where none was allowed
    DIFFERENT = "different"  # right range, wrong bytes
    INCOMPLETE = "incomplete"  # ended before the stream did
    PROCESS = "process"  # not the same process as before, or a wrong exit code


@dataclass(frozen=True)
class Fault:
    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


# ---------------------------------------------------------------- inputs


def check_input(sent: Iterable[Sent], received: bytes) -> list[Fault]:
    """Check whether `received` is possible for a program whose clients sent `sent`."""
    clients: dict[int, list[Sent]] = {}
    refused: list[Sent] = []
    for one in sorted(sent, key=lambda s: (s.client, s.number)):
        if one.outcome is Outcome.REFUSED:
            refused.append(one)
        elif one.data:
            clients.setdefault(one.client, []).append(one)
    order = list(clients.values())
    try:
        at, taken = _read(order, received)
    except _TooManyReadings:
        return [
            Fault(Kind.UNDECIDED, f"more than {READINGS_MAX} ways to read {len(received)} bytes")
        ]
    faults = [] if at == len(received) else [_why(order, taken, refused, received, at)]
    if not faults:
        for inputs, count in zip(order, taken, strict=True):
            lost = next((i for i in inputs[count:] if i.outcome is Outcome.ACKED), None)
            if lost is not None:
                first = inputs[count]
                faults.append(
                    Fault(
                        Kind.LOST,
                        f"client {first.client} number {first.number} was never received, "
                        f"though {lost.number} was acknowledged",
                    )
                )
    return faults


class _TooManyReadings(Exception):
    pass


def _read(order: Sequence[Sequence[Sent]], received: bytes) -> tuple[int, tuple[int, ...]]:
    """The reading that gets furthest: (bytes read, inputs taken per client).

    If a reading with all acknowledged inputs exists, this is that reading.
    """
    start = (0,) * len(order)
    best = (0, False, start)
    tried: set[tuple[int, ...]] = {start}
    todo: list[tuple[int, tuple[int, ...]]] = [(0, start)]
    while todo:
        at, taken = todo.pop()
        complete = at == len(received) and all(
            all(i.outcome is not Outcome.ACKED for i in inputs[n:])
            for inputs, n in zip(order, taken, strict=True)
        )
        if (at, complete) > best[:2]:
            best = (at, complete, taken)
        if complete:
            break
        for who, inputs in enumerate(order):
            n = taken[who]
            if n < len(inputs) and received.startswith(inputs[n].data, at):
                after = (*taken[:who], n + 1, *taken[who + 1 :])
                if after not in tried:
                    if len(tried) >= READINGS_MAX:
                        raise _TooManyReadings
                    tried.add(after)
                    todo.append((at + len(inputs[n].data), after))
    return best[0], best[2]


def _why(
    order: Sequence[Sequence[Sent]],
    taken: Sequence[int],
    refused: Sequence[Sent],
    received: bytes,
    at: int,
) -> Fault:
    """The fault at `at`, where no reading continues."""

    def there(one: Sent) -> bool:
        return received.startswith(one.data, at)

    around = f"at byte {at} of {len(received)}: {received[at : at + CONTEXT_BYTES]!r}"
    for inputs, n in zip(order, taken, strict=True):
        for one in reversed(inputs[:n]):
            if there(one):
                return Fault(
                    Kind.DOUBLED, f"client {one.client} number {one.number} again {around}"
                )
    for inputs, n in zip(order, taken, strict=True):
        late = next((one for one in inputs[n + 1 :] if there(one)), None)
        if late is not None:
            missing = inputs[n]
            found = received.find(missing.data, at)
            if found >= 0:
                return Fault(
                    Kind.REORDERED,
                    f"client {late.client} number {late.number} before {missing.number} {around}",
                )
            return Fault(
                Kind.LOST,
                f"client {late.client} number {missing.number}: "
                f"{late.number} arrived without it {around}",
            )
    for one in refused:
        if one.data and there(one):
            return Fault(
                Kind.UNASKED,
                f"client {one.client} number {one.number} was refused and yet received {around}",
            )
    for inputs, n in zip(order, taken, strict=True):
        if n < len(inputs) and inputs[n].data[:1] == received[at : at + 1]:
            return Fault(
                Kind.TORN,
                f"client {inputs[n].client} number {inputs[n].number} "
                f"begins but does not go on {around}, "
                f"sent {inputs[n].data[:CONTEXT_BYTES]!r}",
            )
    return Fault(Kind.UNASKED, f"nobody sent this {around}")


# ---------------------------------------------------------------- output


class Output(NamedTuple):
    """Bytes for the raw range [start, end)."""

    start: int
    end: int
    data: bytes


class Screen(NamedTuple):
    """A complete screen that stands at `offset`; output goes on there."""

    offset: int


class Gap(NamedTuple):
    """A stated hole: [start, end) rolled off."""

    start: int
    end: int


Shown = Output | Screen | Gap
Strip = Callable[[bytes], bytes]


def nothing_stripped(raw: bytes) -> bytes:
    return raw


def check_output(
    log: Sequence[Shown],
    raw: bytes,
    *,
    strip: Strip = nothing_stripped,
    base: int = 0,
    start: int | None = None,
    until: int | None = None,
    may_skip: bool = False,
) -> list[Fault]:
    """Check whether a viewer was shown the stream `raw`, which begins at offset `base`, correctly.

    `start`: where the first output must begin if no screen comes before. `until`: the offset that
    the viewer must have reached. `strip`: the part that viewers get of a piece of the raw stream
    that begins where a viewer begins. `may_skip`: whether screens may jump forward.
    """
    faults: list[Fault] = []
    position, begun = start, start
    pieces: list[bytes] = []

    def close_run() -> None:
        if begun is not None and position is not None and position > begun:
            faults.extend(_compare(b"".join(pieces), raw, base, begun, position, strip))
        pieces.clear()

    for one in log:
        if isinstance(one, Output):
            if position is None:
                position = begun = one.start
                faults.append(Fault(Kind.HOLE, f"output at {one.start} before any screen"))
            if one.start != position:
                kind = Kind.HOLE if one.start > position else Kind.OVERLAP
                faults.append(Fault(kind, f"output [{one.start}, {one.end}) after {position}"))
                close_run()
                begun = one.start
            pieces.append(one.data)
            position = one.end
        elif isinstance(one, Gap):
            if position is not None and one.start != position:
                faults.append(
                    Fault(Kind.HOLE, f"a gap [{one.start}, {one.end}) stated after {position}")
                )
            close_run()
            position = begun = one.end
        else:
            if position is not None and one.offset < position:
                faults.append(Fault(Kind.BACKWARDS, f"a screen at {one.offset} after {position}"))
            if position is not None and one.offset > position and not may_skip:
                faults.append(Fault(Kind.SKIPPED, f"from {position} to {one.offset}"))
            close_run()
            position = begun = one.offset
    close_run()
    if until is not None and (position is None or position < until):
        faults.append(Fault(Kind.INCOMPLETE, f"shown up to {position} of {until}"))
    return faults


def _compare(got: bytes, raw: bytes, base: int, begin: int, end: int, strip: Strip) -> list[Fault]:
    if begin < base or end > base + len(raw):
        return [
            Fault(
                Kind.DIFFERENT,
                f"range [{begin}, {end}) is outside of the stream [{base}, {base + len(raw)})",
            )
        ]
    piece = raw[begin - base : end - base]
    want = strip(piece)
    begun = got[len(want) :] if got.startswith(want) else b""
    if begun[:1] == b"\x1b" and piece.endswith(
        begun
    ):  # the beginning of a sequence may be shown or held back: its end is not known yet
        return []
    wrong = difference(got, want)
    return [Fault(Kind.DIFFERENT, f"[{begin}, {end}) {wrong}")] if wrong else []


def difference(got: bytes, want: bytes) -> str:
    """Where and how long byte strings differ, in a few words; empty if they are equal."""
    if got == want:
        return ""
    at = first_difference(got, want)
    low = max(0, at - CONTEXT_BYTES)
    return (
        f"differs {at} bytes in ({len(got)} for {len(want)}): "
        f"got {got[low : at + CONTEXT_BYTES]!r}, expected {want[low : at + CONTEXT_BYTES]!r}"
    )


def first_difference(one: bytes, other: bytes) -> int:
    """Index of the first byte that differs; the shorter length if one is a prefix."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


# ---------------------------------------------------------------- processes


def check_processes(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int] | None]
) -> list[Fault]:
    """Whether each session still has the same process: (pid, start time) by name."""
    return [
        Fault(Kind.PROCESS, f"{name} was {identity}, is {after.get(name)}")
        for name, identity in before.items()
        if after.get(name) != identity
    ]


def check_exits(expected: Mapping[str, int], found: Mapping[str, int | None]) -> list[Fault]:
    """Check whether each session ended with its program's exit code."""
    return [
        Fault(Kind.PROCESS, f"{name} should have ended with {code}, ended with {found.get(name)}")
        for name, code in expected.items()
        if found.get(name) != code
    ]
