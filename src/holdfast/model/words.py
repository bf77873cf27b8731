"""Long lists of short words, written as text."""

from __future__ import annotations


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def names_of(text: str) -> frozenset[str]:
    return frozenset(text.split())
