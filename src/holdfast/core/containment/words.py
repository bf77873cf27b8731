"""A line about the places that a contained session can see and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.core.containment.entries import within
from holdfast.model.contained import HOST, NONE, OWN

NAMED_MAX: Final = 4  # paths in a list; the rest is counted
NETWORK: Final = {
    HOST: "the machine's",
    OWN: "its own, without the machine's loopback",
    NONE: "none",
}
PLAIN: Final = "sees and writes all that the host's account can"


def short(path: str, home: str) -> str:
    """A path with `~` for the home."""
    return "~" + path[len(home) :] if home != "/" and within(path, home) else path


def described(
    home: str,
    reads: Iterable[str],
    writes: Iterable[str],
    doors: Sequence[str],
    net: str,
    publish: Sequence[int] = (),
) -> str:
    """For example "sees the system, ~/.nvm and its own home; writes ~/src/app and its own home"."""
    seen = _listed([short(path, home) for path in reads])
    written = _listed([short(path, home) for path in writes])
    parts = [
        f"sees {_joined(['the system', *seen, 'its own home'])}",
        f"writes {_joined([*written, 'its own home'])}",
        f"network: {NETWORK[net]}",
    ]
    if publish:
        parts.append(f"on 127.0.0.1: port {', '.join(map(str, publish))}")
    if doors:
        parts.append(f"open doors: {', '.join(doors)}")
    return "; ".join(parts)


def _listed(names: list[str]) -> list[str]:
    if len(names) <= NAMED_MAX:
        return names
    return [*names[: NAMED_MAX - 1], f"{len(names) - NAMED_MAX + 1} more places"]


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
