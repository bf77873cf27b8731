"""Compares the words of a program with the words of an approved command. Pure.

A word of the text is one of three kinds:

1. Known: the program must have the same word.
2. A pattern (`*.log`): any number of words that the shell's expansion can produce. Each segment of
   the path is compared by itself, so `*` stands for no `/`, no `..` and no hidden name. A word
   begins with `-` only if the pattern does: it may be an option. The pattern itself matches too,
   since most shells pass a pattern on that names no file.
3. Open (`$x`, `"/a/$x"`): any number of words. If the text tells the beginning, all of them begin
   so. If the text tells any part, they have no segment `..`.

The comparison takes the words one by one and keeps all positions of the text where it may be. The
number of steps for an exec has a limit. Beyond that the program is asked about.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.core.shellcode.words import Word

STEPS_MAX: Final = 200_000  # for all comparisons of an exec; about 0.2 s
PATTERN_CHARS_MAX: Final = 4096  # as PATH_MAX: of a pattern, and of a word that it can produce
STEP_CHARS: Final = 256  # pattern length times word length that counts as another step
_CLASS: Final = re.compile(r"\[([!^]?)((?:\w-\w|[\w.,:+=@%~])+)\]", re.ASCII)


@dataclass(slots=True)
class Steps:
    """The steps that are left for an exec."""

    left: int = STEPS_MAX


class WordPattern(NamedTuple):
    """A word of an approved command."""

    text: str | None  # None: open
    special: tuple[int, ...] | None = None  # positions of pattern characters; None: no pattern
    stem: str | None = None  # of an open word, the known beginning; None: nothing is known
    shown: str = ""  # of an open word with a known part: the source

    @property
    def many(self) -> bool:
        return self.text is None or self.special is not None

    def steps(self, word: Word) -> int:
        if self.special is None or self.text is None:
            return 1
        return 1 + len(self.text) * len(word.text or "") // STEP_CHARS

    def fits(self, word: Word) -> bool:
        if self.text is None:
            if self.stem is None:
                return True
            if word.text is None:
                return word.shown == self.shown
            return word.text.startswith(self.stem) and ".." not in word.text.split("/")
        if word.text is None:
            return False
        return word.text == self.text or (
            self.special is not None and _expands(self.text, self.special, word.text)
        )


def pattern(words: Iterable[Word]) -> tuple[WordPattern, ...]:
    """Return the words of an approved command. Open words that adjoin are one."""
    found = list[WordPattern]()
    for word in words:
        if word.text is None:
            shown = "" if word.stem is None else word.shown
            made = WordPattern(None, None, word.stem, shown)
        else:
            made = WordPattern(word.text, word.special if word.glob else None)
        if not (made.many and found and found[-1] == made):
            found.append(made)
    return tuple(found)


def matches(patterns: Sequence[WordPattern], words: Sequence[Word], steps: Steps) -> bool:
    """Say whether these are the words of the approved command."""
    at = _onward(patterns, (0,))
    for word in words:
        after = list[int]()
        for i in at:
            if i == len(patterns):
                continue
            steps.left -= patterns[i].steps(word)
            if steps.left < 0:
                return False
            if patterns[i].fits(word):
                after.append(i if patterns[i].many else i + 1)
        at = _onward(patterns, after)
        if not at:
            return False
    return len(patterns) in at


def _onward(patterns: Sequence[WordPattern], at: Iterable[int]) -> list[int]:
    """Return these positions, and those behind words that may stand for none, in order."""
    found = list[int]()
    for i in at:
        if found and found[-1] >= i:
            continue
        found.append(i)
        while i < len(patterns) and patterns[i].many:
            i += 1
            found.append(i)
    return found


def _expands(text: str, special: tuple[int, ...], word: str) -> bool:
    """Say whether the expansion of a pattern can produce the word."""
    if len(text) > PATTERN_CHARS_MAX or len(word) > PATTERN_CHARS_MAX:
        return False
    if word.startswith("-") and (not text.startswith("-") or 0 in special):
        return False
    segments, names = _segments(text, special), word.split("/")
    return len(segments) == len(names) and all(
        name == segment
        if isinstance(segment, str)
        else segment is not None and name not in (".", "..") and bool(segment.fullmatch(name))
        for segment, name in zip(segments, names, strict=True)
    )


@functools.lru_cache(256)
def _segments(text: str, special: tuple[int, ...]) -> list[str | re.Pattern[str] | None]:
    """Return an expression or the exact name for each segment; None: it stands for no name."""
    found = list[str | re.Pattern[str] | None]()
    begin = 0
    for segment in text.split("/"):
        inside = {i - begin for i in special if begin <= i < begin + len(segment)}
        found.append(_expression(segment, inside) if inside else segment)
        begin += len(segment) + 1
    return found


def _expression(segment: str, special: set[int]) -> re.Pattern[str] | None:
    """Return the expression for a segment of a pattern; None if it is beyond these rules.

    Each `*` takes as little as possible and is not tried again. For patterns this finds every
    match, and the cost stays bounded.
    """
    pieces, at = [""], 0
    while at < len(segment):
        c = segment[at]
        if at not in special:
            pieces[-1] += re.escape(c)
        elif c == "*":
            pieces.append("")
        elif c == "?":
            pieces[-1] += "."
        elif c == "[" and (m := _CLASS.match(segment, at)):
            pieces[-1] += f"[{'^' if m[1] else ''}{re.escape(m[2]).replace(chr(92) + '-', '-')}]"
            at = m.end() - 1
        else:
            return None
        at += 1
    hidden = "" if segment.startswith(".") and 0 not in special else r"(?!\.)"
    first, *rest = pieces
    body = first
    if rest:
        body += "".join(f"(?>.*?{piece})" for piece in rest[:-1] if piece) + f".*{rest[-1]}"
    try:
        return re.compile(hidden + body, re.DOTALL)
    except re.error:  # `[z-a]`
        return None
