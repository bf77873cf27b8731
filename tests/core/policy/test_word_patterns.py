"""The words that an approved command covers, compared with a naive reference (P4)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy import word_patterns
from holdfast.core.policy.act_facts import facts_of
from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.word_patterns import STEPS_MAX, Steps, WordPattern, pattern
from holdfast.core.shellcode.words import Word
from holdfast.host.policy.shfmt import Parser

PARSER = Parser()


def approved(text: str) -> tuple[WordPattern, ...]:
    """The pattern of the first command of a text."""
    request = Request("run", Actor("bot"), content=text.encode(), cwd="/srv/app", home="/home/u")
    facts = facts_of(request, PARSER)
    assert facts is not None and facts.commands
    return pattern(facts.commands[0].words)


def matches(patterns: Sequence[WordPattern], found: Sequence[Word], steps: int = STEPS_MAX) -> bool:
    return word_patterns.matches(patterns, found, Steps(steps))


def words(*texts: str) -> list[Word]:
    return [Word(text, text) for text in texts]


def test_p4_many_open_words_are_compared_in_few_steps() -> None:
    """A regular expression for these words took longer than the universe is old."""
    several = approved('rm -f x "$a"y $b $c *.a *.b $d *.c *.d $e *.e $f *.f z')
    assert not matches(several, words("-f", "x", *["a"] * 150))
    alternating = approved("rm " + "$a x " * 500 + "z")
    assert not matches(alternating, words(*["x"] * 5000)), "beyond the limit it is asked about"
    assert matches(approved("rm $a $b $c z"), words(*["x"] * 5000, "z"))


def test_p4_a_pattern_is_compared_in_few_steps() -> None:
    text = "rm " + "*a" * 500 + "*b"
    assert not matches(approved(text), words("a" * 4000))
    assert not matches(approved("rm *" + "a" * 2000 + "b*"), words(*["a" * 4000] * 400))


@pytest.mark.parametrize(
    ("text", "word", "covered"),
    [
        ("rm *.log", "a.log", True),
        ("rm *.log", "*.log", True),
        ("rm *.log", "/root/precious", False),
        ("rm *.log", "/root/a.log", False),
        ("rm *.log", "sub/a.log", False),
        ("rm *.log", ".a.log", False),
        ("rm *.log", "-a.log", False),
        ("rm .*.log", ".a.log", True),
        ("rm ./*.log", "./-a.log", True),
        ("rm -*", "-a", True),
        ("rm /root/own*", "/root/own/../precious", False),
        ("rm /root/own*", "/root/own1", True),
        ("rm /root/own*", "/root/own", True),
        ("rm /root/own/*", "/root/own/..", False),
        ("rm .*", "..", False),
        ("rm ../*.log", "../a.log", True),
        ("rm */a", "b/a", True),
        ("rm */a", "../a", False),
        ("rm */", "b/", True),
        ("rm a?c", "abc", True),
        ("rm a?c", "a/c", False),
        ("rm a[bc]d", "acd", True),
        ("rm a[bc]d", "aed", False),
        ("rm a[!bc]d", "aed", True),
        ("rm a[a-c]d", "abd", True),
        ("rm a[a-c]d", "a-d", False),
        ("rm a[z-a]d", "abd", False),
        ("rm 'a*'*", "abc", False),
        ("rm 'a*'*", "a*c", True),
        ("rm @(a|b).log", "a.log", True),
        ('rm "/a/$x"', "/a/b", True),
        ('rm "/a/$x"', "/a/b/c", True),
        ('rm "/a/$x"', "/a/../b", False),
        ('rm "/a/$x"', "/b", False),
        ('rm "/a/$x/.."', "/a/b/..", False),
        ('rm ~/"$x"', "/home/u/b", True),
        ('rm ~/"$x"', "/home/v", False),
        ("rm /a/$x", "/a/..", False),
        ("rm /a/$x", "/b", True),
        ('rm "/a/$@"', "/b", True),
        ("rm $x", "../b", True),
        ('rm "$x"', "/b", True),
        ("rm {a,b}", "c", True),
    ],
)
def test_p4_a_pattern_covers_the_words_that_the_shell_makes_of_it(
    text: str, word: str, covered: bool
) -> None:
    assert matches(approved(text), words(word)) is covered


def test_p4_an_unknown_word_covers_the_same_unknown_word() -> None:
    text = approved('rm "/a/$x"')
    assert matches(text, [Word(None, '"/a/$x"')])
    assert not matches(text, [Word(None, '"/$x"')])
    assert not matches(approved("rm *"), [Word(None, "$x")])


# ---------------------------------------------------------------- against a naive reference


def naive(patterns: Sequence[WordPattern], given_words: Sequence[str]) -> bool:
    if not patterns:
        return not given_words
    first = patterns[0]
    if first.many and naive(patterns[1:], given_words):
        return True
    return bool(
        given_words
        and naive_fit(first, given_words[0])
        and naive(patterns if first.many else patterns[1:], given_words[1:])
    )


def naive_fit(one: WordPattern, word: str) -> bool:
    if one.text is None:
        return True
    if one.special is None or one.text == word:
        return one.text == word
    here, there = one.text.split("/"), word.split("/")
    return (
        len(here) == len(there)
        and not (word.startswith("-") and not one.text.startswith("-"))
        and all(
            a == b
            if not re.search(r"[*?]", a)
            else b not in (".", "..")
            and (a.startswith(".") or not b.startswith("."))
            and re.fullmatch(fnmatch.translate(a), b) is not None
            for a, b in zip(here, there, strict=True)
        )
    )


def as_pattern(text: str) -> WordPattern:
    if text == "$":
        return WordPattern(None)
    special = tuple(i for i, c in enumerate(text) if c in "*?")
    return WordPattern(text, special or None)


PATTERNS = st.lists(st.text("ab*?/.-$", min_size=1, max_size=5).map(as_pattern), max_size=5)
WORDS = st.lists(st.text("ab/.-", max_size=5), max_size=5)


@given(PATTERNS, WORDS)
def test_p4_the_comparison_is_that_of_a_naive_reference(
    patterns: list[WordPattern], found: list[str]
) -> None:
    assert matches(patterns, words(*found)) == naive(patterns, found)


def test_p4_a_comparison_beyond_the_limit_is_no_match() -> None:
    assert matches(approved("rm $a"), words("a", "b"), 2)
    assert not matches(approved("rm $a"), words("a", "b"), 1)
