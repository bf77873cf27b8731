"""Limits of a session on memory, processes, processor time and disk: values, words and ways.

Pure. host/processes/cgroups.py writes the values to a control group, host/lifecycle/limits.py
chooses the way, host/lifecycle/limit_watch.py watches the values that the kernel does not bound.

A limit has a way, which says what the promise is worth:

- `cgroup`: the kernel bounds the whole session.
- `rlimit`: the kernel bounds the whole session by RLIMIT_NPROC, which counts the processes of a
  user namespace. Set before the namespace is made, it would count all processes of the account
  instead (tried on Linux 6.18: 30 other processes used up a limit of 20). The machine's root is
  exempt, also inside a user namespace.
- `each process`: RLIMIT_DATA bounds each process, not their sum. Programs that reserve writable
  memory on a large scale do not start (AddressSanitizer needs 16 TiB; node, Java and Go do not).
  So this way is used only for a limit that a person configured or asked for.
- `nice`: a lower priority.
- `watch`: the host looks now and then, and halts a session that is above its limit.
- `none`: the machine cannot bound this resource for this account.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, NamedTuple

from holdfast.model import sizes
from holdfast.model.errors import Usage

Way = Literal["cgroup", "rlimit", "each process", "nice", "watch", "none"]
CGROUP: Final[Way] = "cgroup"
RLIMIT: Final[Way] = "rlimit"
EACH: Final[Way] = "each process"
NICE: Final[Way] = "nice"
WATCH: Final[Way] = "watch"
NONE: Final[Way] = "none"

WORDS: Final[dict[Way, str]] = {
    CGROUP: "by the kernel",
    RLIMIT: "by the kernel",
    EACH: "each process, not their sum",
    NICE: "by priority",
    WATCH: "halted above it",
    NONE: "not kept on this machine",
}
RESOURCES: Final = ("memory", "processes", "cpu", "disk")
CONTROLLERS: Final = {"memory": "memory", "processes": "pids", "cpu": "cpu"}
UNLIMITED: Final = "none"

# Reclaiming begins here, before the kernel kills at the limit itself.
HIGH_PERCENT: Final = 90
BOUNDS: Final = {
    "memory": (16 << 20, sizes.BYTES_MAX),
    "processes": (16, 1 << 22),  # a shell with a pipeline; the kernel's largest pid
    "cpu": (1, 10_000),
    "disk": (1 << 20, sizes.BYTES_MAX),
}
CPU_ORDINARY: Final = 100


class Limits(NamedTuple):
    """Bytes, a count, a weight and bytes. None: no limit."""

    memory: int | None = None
    processes: int | None = None
    cpu: int | None = None
    disk: int | None = None


class Whole(NamedTuple):
    """The machine's memory and the size of the file system, in bytes: the bases of percentages."""

    memory: int
    disk: int


def amount(resource: str, text: str, whole: Whole) -> int | None:
    """Return the value of a limit."""
    if text.lower() == UNLIMITED:
        return None
    low, high = BOUNDS[resource]
    try:
        if resource in ("memory", "disk"):
            value = sizes.read(text, getattr(whole, resource))
            low = 1 if text.endswith("%") else low
        else:
            value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1
    except ValueError as e:
        raise Usage(f"{resource}={text[:40]!a}: {e}, or none") from e
    if not low <= value <= high:
        raise Usage(f"{resource}={text[:40]!a}: the least is {low}, the most {high}, or none")
    return value


def parsed(text: str) -> dict[str, str]:
    """Return the parts of `memory=4G,processes=2000`, checked."""
    found: dict[str, str] = {}
    for part in text.split(","):
        resource, equals, value = part.strip().partition("=")
        if resource not in RESOURCES or not equals or resource in found:
            raise Usage(
                f"--limit {part.strip()[:40]!a} is not RESOURCE=VALUE",
                f"resources, each once: {', '.join(RESOURCES)}; "
                "for example --limit memory=4G,processes=2000",
            )
        amount(resource, value, Whole(1 << 40, 1 << 40))
        found[resource] = value
    return found


def resolved(texts: Mapping[str, str], whole: Whole) -> Limits:
    return Limits(**{one: amount(one, text, whole) for one, text in texts.items()})


def narrowed(base: Limits, asked: Limits) -> Limits:
    """Return the lower one of each pair: a request that must not widen the base."""
    return Limits(
        *(
            min((one for one in pair if one is not None), default=None)
            for pair in zip(base, asked, strict=True)
        )
    )


def replaced(base: Limits, asked: Limits, given: Collection[str]) -> Limits:
    """Return the base with the given resources as they were asked for."""
    return Limits(
        *((asked if one in given else base)[number] for number, one in enumerate(RESOURCES))
    )


def ways(
    limits: Limits, grouped: Collection[str], given: Collection[str], mapped: bool, contained: bool
) -> dict[str, Way]:
    """Return the way of each limit.

    `grouped`: resources that the session's control group bounds. `given`: resources that a person
    chose. `mapped`: RLIMIT_NPROC counts this session's processes alone, and binds its account.
    """
    found: dict[str, Way] = {}
    for resource, limit in zip(RESOURCES, limits, strict=True):
        if limit is not None:
            found[resource] = (
                CGROUP if resource in grouped else _other(resource, given, mapped, contained)
            )
    return found


def _other(resource: str, given: Collection[str], mapped: bool, contained: bool) -> Way:
    if resource == "memory":
        return EACH if resource in given else NONE
    if resource == "processes":
        return RLIMIT if mapped else WATCH
    if resource == "cpu":
        return NICE
    return WATCH if contained else NONE


def nice(weight: int) -> int:
    """Return the nice value whose share comes nearest to this weight; never a higher priority."""
    value = 0
    while value < 19 and weight * 1.25 ** (value + 1) <= CPU_ORDINARY * 1.12:
        value += 1
    return value


def group_files(limits: Limits, memory: int, swap: int) -> dict[str, dict[str, str]]:
    """Return the files of a cgroup v2 and their contents, by resource; the last file binds.

    `memory` and `swap` are the machine's: a session gets the same share of both.
    """
    found: dict[str, dict[str, str]] = {}
    if limits.memory is not None:
        found["memory"] = {
            "memory.high": str(limits.memory * HIGH_PERCENT // 100),
            "memory.swap.max": str(swap * min(limits.memory, memory) // memory),
            "memory.max": str(limits.memory),
        }
    if limits.processes is not None:
        found["processes"] = {"pids.max": str(limits.processes)}
    if limits.cpu is not None:
        found["cpu"] = {"cpu.weight": str(limits.cpu)}
    return found


def oom_kills(text: str) -> int:
    """Return the counter of kills for memory in memory.events or /proc/vmstat."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdecimal():
            return int(value)
    return 0


def says(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line about the limits of a session, as the summary has them."""
    words = {
        "memory": lambda n: f"{sizes.show(n)} of memory",
        "processes": lambda n: f"{n} processes",
        "cpu": lambda n: f"processor weight {n}",
        "disk": lambda n: f"{sizes.show(n)} of disk",
    }
    shown = [
        f"{words[name](one['limit'])} ({WORDS[one['by']]})"
        for name, one in found.items()
        if name in words and one["by"] in WORDS
    ]
    return f"limits: {', '.join(shown)}" if shown else "limits: none"
