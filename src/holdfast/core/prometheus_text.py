"""Metrics in the text format of Prometheus (version 0.0.4), and histograms to collect them.

Not `prometheus_client`: it needs no less code here, is a dependency of tests only, and would be
loaded by every host and relay.

A family has a name, a kind and a line of help. Label values come from small fixed sets,
decided where they are counted. The name of a person, a session or a command as a label would create
a permanent series, and reveal the name to every reader of the page.

A single thread at a time writes a `Histogram`. A second thread may read, and sees a state that is
at most an observation old.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeVar

TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]
# Upper bounds of waiting times in seconds.
SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


K = TypeVar("K", bound=str | tuple[str, ...])


class Sample(NamedTuple):
    name: str
    labels: Labels
    value: float


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def samples(self, name: str) -> list[Sample]:
        counts, so_far, out = tuple(self._counts), 0, list[Sample]()
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
            so_far += count
            out.append(Sample(f"{name}_bucket", (("le", bound),), so_far))
        return [*out, Sample(f"{name}_sum", (), self.sum), Sample(f"{name}_count", (), so_far)]


class Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    values: Mapping[Labels, float] | Histogram

    @property
    def samples(self) -> list[Sample]:
        if isinstance(self.values, Histogram):
            return self.values.samples(self.name)
        return [Sample(self.name, labels, value) for labels, value in sorted(self.values.items())]

    def show(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "help": self.help,
            "samples": [
                {"name": name, "labels": dict(labels), "value": value}
                for name, labels, value in self.samples
            ],
        }


def one(name: str, kind: Kind, help: str, value: float) -> Family:
    return Family(name, kind, help, {(): value})


def by(
    name: str,
    kind: Kind,
    help: str,
    labels: tuple[str, ...],
    counts: Mapping[K, float],
) -> Family:
    """Make a family from counts; a key is a label value, or a tuple with a value per label."""
    return Family(
        name,
        kind,
        help,
        {
            tuple(zip(labels, (key,) if isinstance(key, str) else key, strict=True)): value
            for key, value in counts.items()
        },
    )


def render(families: Iterable[Family]) -> str:
    out = list[str]()
    for family in families:
        out += [f"# HELP {family.name} {_help(family.help)}", f"# TYPE {family.name} {family.kind}"]
        out += [
            f"{name}{_labels(labels)} {_number(value)}" for name, labels, value in family.samples
        ]
    return "\n".join(out) + "\n"


def _labels(labels: Labels) -> str:
    return (
        "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"
        if labels
        else ""
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
