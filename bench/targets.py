"""The target figures of Holdfast, in one table, and how a verdict is formed from measurements.

A figure is a ratio to another tool of the same round, or an absolute value where the promise is one
("at once" is a matter of milliseconds, not of other tools). Some count only if a condition holds
too: a rate at which bytes are dropped is no rate. This module has no results; results come in as
the rounds of a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Rounds = Sequence[Mapping[str, Mapping[str, float | None]]]  # per round: tool -> metric -> value
NEVER = float("inf")
# A viewer beside a stalled viewer counts as held up if its output takes this much longer
HELD_UP_SLOWDOWN = 3.0
ZERO_WAKEUPS = 0.005  # per session and second: "0", with room for one in 200 s


class Reached(StrEnum):
    AIM = "aim"
    MUST = "must"
    NO = "NO"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Target:
    measure: str
    metric: str
    # The tool the value is divided by, in the same round; None: the value itself
    against: str | None
    must: float
    aim: float
    at_least: bool  # or at most
    words: str
    must_hold: tuple[tuple[str, float, bool], ...] = ()  # (metric, bound, at_least), in every round


_ALL_BYTES = (("exact", 1.0, True),)
_RIGHT_SCREEN = (("correct", 1.0, True),)

TARGETS = (
    Target("echo", "p50_us", "tmux", 2.0, 1.0, False, "echo, attached, p50"),
    Target(
        "bulk_plain_1",
        "MBps",
        "raw",
        0.6,
        0.8,
        True,
        "bulk, 1 viewer, plain, every byte",
        _ALL_BYTES,
    ),
    Target(
        "bulk_ansi_1", "MBps", "raw", 0.6, 0.8, True, "bulk, 1 viewer, ANSI, every byte", _ALL_BYTES
    ),
    Target("bulk_plain_0", "MBps", "raw", 0.9, 1.0, True, "bulk, no viewer, plain"),
    Target("bulk_ansi_0", "MBps", "raw", 0.9, 1.0, True, "bulk, no viewer, ANSI"),
    Target(
        "bulk_plain_8",
        "MBps",
        "tmux",
        1.0,
        2.0,
        True,
        "bulk, 8 viewers, every byte to each",
        _ALL_BYTES,
    ),
    *(
        Target(
            "commands",
            f"{name}_x",
            None,
            3.0,
            2.0,
            False,
            f"processor time of `{name}`, x bare Python",
        )
        for name in ("ls", "run", "attach")
    ),
    Target(
        "reattach_live",
        "ms",
        None,
        100.0,
        40.0,
        False,
        "reattach to a correct screen, ms",
        _RIGHT_SCREEN,
    ),
    Target(
        "reattach_static",
        "ms",
        None,
        100.0,
        40.0,
        False,
        "the same, program never repaints, ms",
        _RIGHT_SCREEN,
    ),
    Target(
        "stall",
        "slowdown",
        None,
        HELD_UP_SLOWDOWN,
        HELD_UP_SLOWDOWN,
        False,
        "slowdown by a stalled viewer beside",
        (("held_up", 0.0, False), *_ALL_BYTES),
    ),
    Target(
        "memory",
        "kb_per_session",
        None,
        700.0,
        300.0,
        False,
        "own memory per idle session, KB (PSS)",
    ),
    Target(
        "memory",
        "wakeups_per_s_per_session",
        None,
        ZERO_WAKEUPS,
        ZERO_WAKEUPS,
        False,
        "idle: wake-ups per second and session",
    ),
)

# From another machine: the measures of `holdfast-relay`, beside ssh and tmux. Also one number each.
RELAYED_TARGETS = (
    Target("echo", "p50_us", "ssh+tmux", 1.0, 1.0, False, "echo through a relay, p50"),
    Target(
        "bulk_plain_1",
        "MBps",
        "raw",
        0.5,
        0.5,
        True,
        "bulk through a relay, sealed, plain, every byte",
        _ALL_BYTES,
    ),
)

# Of `python -m bench.elsewhere`.
BACK_MS, SLOWED = 1000.0, 2.0
ELSEWHERE_TARGETS = (
    *(
        Target(
            f"reconnect_{how}",
            "back_ms",
            None,
            BACK_MS,
            BACK_MS,
            False,
            f"reconnect, {words}: since the relay is there, ms",
        )
        for how, words in (
            ("term", "relay restarted"),
            ("kill", "relay killed and restarted"),
            ("away", "relay killed, five seconds away"),
        )
    ),
    Target(
        "viewers",
        "slowdown",
        None,
        SLOWED,
        SLOWED,
        False,
        "100 viewers: slowdown by one that does not read",
        (("exact", 1.0, True), ("exact_beside", 1.0, True)),
    ),
)

# Of `python -m bench.operators`. One number each: the limit is also the aim.
SEIZE_MS, HALT_MS, VERIFY_PER_S = 10.0, 20.0, 20_000.0
_TRUE = (("complete", 1.0, True), ("late", 0.0, False))

OPERATOR_TARGETS = (
    *(
        Target(
            f"seize_{when}",
            "effective_p99_ms",
            None,
            SEIZE_MS,
            SEIZE_MS,
            False,
            f"seize, {words}: old holder refused, p99, ms",
            (("flushed", 1.0, True),),
        )
        for when, words in (
            ("idle", "idle session"),
            ("output", "output flood"),
            ("input", "the holder floods"),
        )
    ),
    *(
        Target(
            f"halt_{what}",
            "took_p99_ms",
            None,
            HALT_MS,
            HALT_MS,
            False,
            f"halt, {words}, p99, ms",
            _TRUE,
        )
        for what, words in (
            ("quiet", "quiet session"),
            ("plain", "200 forking, plain"),
            ("contained", "200 forking, contained"),
        )
    ),
    Target(
        "halt_user",
        "halt_p99_ms",
        None,
        HALT_MS,
        HALT_MS,
        False,
        "halt, 200 forking, contained, ordinary user, p99, ms",
        (("complete", 1.0, True),),
    ),
    Target(
        "verify",
        "commands_all_per_s",
        None,
        VERIFY_PER_S,
        VERIFY_PER_S,
        True,
        "verify, each act signed, all processors, acts/s",
    ),
    Target(
        "verify",
        "keys_all_per_s",
        None,
        VERIFY_PER_S,
        VERIFY_PER_S,
        True,
        "verify, keys under covers, all processors, acts/s",
    ),
)


@dataclass(frozen=True)
class Verdict:
    target: Target
    value: float | None  # median over rounds; None: not measured
    low: float | None
    high: float | None
    rounds: int
    broken: tuple[str, ...]  # conditions that did not hold
    reached: Reached


def values_of(rounds: Rounds, tool: str, metric: str, against: str | None = None) -> list[float]:
    """One value per round in which the metric exists; `never` is infinite.

    With `against`: the ratio of the same round.
    """
    found = []
    for one in rounds:
        mine = one.get(tool, {})
        if metric not in mine:
            continue
        value = NEVER if mine[metric] is None else float(mine[metric] or 0.0)
        if against is None:
            found.append(value)
        elif other := one.get(against, {}).get(metric):
            found.append(value / other)
    return found


def judge(target: Target, rounds: Rounds, tool: str) -> Verdict:
    values = values_of(rounds, tool, target.metric, target.against)
    if not values:
        return Verdict(target, None, None, None, 0, (), Reached.UNKNOWN)
    middle = statistics.median(values)
    broken = tuple(
        metric
        for metric, bound, at_least in target.must_hold
        if any(not _meets(v, bound, at_least) for v in values_of(rounds, tool, metric))
    )
    if broken or not _meets(middle, target.must, target.at_least):
        reached = Reached.NO
    else:
        reached = Reached.AIM if _meets(middle, target.aim, target.at_least) else Reached.MUST
    return Verdict(target, middle, min(values), max(values), len(values), broken, reached)


def _meets(value: float, bound: float, at_least: bool) -> bool:
    return value >= bound if at_least else value <= bound
