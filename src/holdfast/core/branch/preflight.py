"""Decides whether a session can be forked, beside what a checkpoint needs, and names the losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from holdfast.core.checkpoint.preflight import NAMED_MAX, Preflight, amount

BRANCHES_MAX: Final = 16  # of one fork
LAYERS_MAX: Final = 8  # a branch of a branch of ...: overlayfs takes the list in 256 bytes
SNAPSHOT_BYTES_MAX: Final = 4 << 30  # of all files that are copied
SNAPSHOT_ENTRIES_MAX: Final = 250_000  # each one is looked at while the programs stand still
COPIED_PER_S: Final = 0.3e9
ENTRIES_PER_S: Final = 8_000  # small files


class Wish(NamedTuple):
    """Facts about a fork.

    `branches`: how many. `bytes` and `entries`: of the files to copy. `depth`: of layers.

    `listening`: sockets on the machine's network, as "tcp 0.0.0.0:8080". `outside`: connections
    out of the session. `single`: files that are shared singly, for writing. `room`: sessions that
    may be made. `memory`: bytes that the machine has available. `state`: of the session.
    """

    branches: int
    bytes: int = 0
    entries: int = 0
    depth: int = 1
    free: int = 0
    memory: int = 0
    room: int = BRANCHES_MAX
    listening: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    odd_path: str = ""
    state: str = "detached"


class Promise(NamedTuple):
    """What a fork under way will use: sessions, and bytes of memory and on the disk."""

    branches: int
    memory: int
    disk: int


def beside(wish: Wish, promised: Iterable[Promise]) -> Wish:
    """The same facts without what other forks were promised."""
    for one in promised:
        wish = wish._replace(
            room=wish.room - one.branches,
            memory=wish.memory - one.memory,
            free=wish.free - one.disk,
        )
    return wish


def judge(found: Preflight, wish: Wish) -> Preflight:
    """`found`: whether the processes can be saved."""
    own = [one for one in found.losses if "TCP connections" not in one]
    blockers = (*found.blockers, *_blockers(found, wish))
    seconds = found.seconds * (1 + wish.branches)
    seconds += wish.bytes / COPIED_PER_S + wish.entries / ENTRIES_PER_S
    size = found.bytes + wish.bytes
    return Preflight(blockers, (*own, *_losses(found, wish)), size, round(seconds, 1))


def _blockers(found: Preflight, wish: Wish) -> Iterator[str]:
    if wish.state not in ("live", "detached"):
        yield f"it is {wish.state}" + ("; resume it first" if wish.state == "halted" else "")
    if not 1 <= wish.branches <= BRANCHES_MAX:
        yield f"{wish.branches} branches were asked for; a fork makes 1 to {BRANCHES_MAX}"
    elif wish.branches > wish.room:
        yield f"only {max(0, wish.room)} more sessions may be made; end some"
    if wish.bytes > SNAPSHOT_BYTES_MAX:
        yield (
            f"its files have more than {amount(SNAPSHOT_BYTES_MAX)}, which a fork would copy; "
            "start the session in a smaller directory"
        )
    if wish.entries > SNAPSHOT_ENTRIES_MAX:
        yield (
            f"its directories have more than {SNAPSHOT_ENTRIES_MAX} files, which a fork would "
            "copy; start the session in a smaller directory"
        )
    if found.bytes + wish.bytes > wish.free:
        needed = amount(found.bytes + wish.bytes)
        yield f"the disk has {amount(max(0, wish.free))} free; about {needed} are needed"
    if found.bytes * wish.branches > wish.memory:
        yield (
            f"each branch needs its own memory, {amount(found.bytes * wish.branches)} in all; the "
            f"machine has {amount(max(0, wish.memory))}"
        )
    if wish.depth > LAYERS_MAX:
        yield f"branches of branches end at a depth of {LAYERS_MAX}"
    if wish.listening:
        yield (
            f"it listens on the machine's network ({_named(wish.listening)}), where only one "
            "program can; a session with `--net own` or `--net none` can be forked"
        )
    if wish.single:
        yield f"it shares single files for writing ({_named(wish.single)}); share a directory"
    if wish.odd_path:
        yield f"the path {wish.odd_path!a} has a newline"


def _losses(found: Preflight, wish: Wish) -> Iterator[str]:
    if wish.outside:
        yield f"the branches do not have these connections: {_named(wish.outside)}"


def _named(found: tuple[str, ...]) -> str:
    more = len(found) - NAMED_MAX
    return ", ".join(found[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
