"""Commands that run an inner command: `sudo env A=b nice rm x` is judged as `rm x`.

A wrapper is removed only if every word up to the inner command is understood. After an unknown
option nothing is certain, because the value may be the word that looks like the command. That is a
reason for "unresolvable", never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.core.shellcode.effects import operands
from holdfast.core.shellcode.programs import Names, Wrapper, programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

_ASSIGN: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)


class Peeled(NamedTuple):
    rest: list[Word]  # the inner command; empty if there is none
    reasons: tuple[Reason, ...] = ()
    text: Word | None = None  # a text that a shell runs
    assigns: tuple[tuple[str, Word], ...] = ()
    more: bool = False  # further arguments will be appended
    writes: tuple[Word, ...] = ()  # files that the wrapper itself writes


def as_git(words: list[Word]) -> list[Word]:
    """Return `git clean` for the program `git-clean`."""
    above, slash, base = (words[0].text or "").rpartition("/")
    names = programs().names
    if (
        base.startswith("git-")
        and base[4:] in names.git_commands
        and (not slash or above in names.git_directories | names.system_directories)
    ):
        return [Word("git", "git"), Word(base[4:], base[4:]), *words[1:]]
    return words


def find(name: str, words: Sequence[Word]) -> tuple[str, Wrapper, Sequence[Word]] | None:
    """Return the wrapper that this command is, with the words that follow its name."""
    known = programs().wrappers
    if name in known:
        return name, known[name], words
    if words and (both := f"{name} {words[0].text}") in known:
        return both, known[both], words[1:]
    return None


def elsewhere(name: str, words: Sequence[Word]) -> bool:
    """Say whether the command runs on a different machine, root directory or time."""
    names = programs().names
    if name in names.elsewhere:
        return True
    plain = [w.text or "" for w in words if w.text is None or not w.text.startswith("-")]
    return any(f"{name} {' '.join(plain[:n])}" in names.elsewhere_subcommands for n in (1, 2))


def peel(name: str, wrapper: Wrapper, words: Sequence[Word]) -> Peeled:
    """Return the command or the text inside of a wrapper."""
    at = 0
    assigns: list[tuple[str, Word]] = []
    reasons: list[Reason] = []
    script: Word | None = None
    skip = wrapper.operands
    while at < len(words):
        text = words[at].text
        if text is None:
            break
        short = not text.startswith("--")
        option, given, value = (text, "", "") if short else text.partition("=")
        if text == "--":
            at += 1
            break
        if option in wrapper.query:
            return Peeled([], writes=_written(wrapper, words))
        if option in wrapper.text:
            if given:
                script = Word(value, value)
            elif at + 1 < len(words):
                at += 1
                script = words[at]
        elif option in wrapper.moves or (
            short
            and len(text) > 2
            and any(text.startswith(m) for m in wrapper.moves if len(m) == 2)
        ):
            reasons.append(Reason("place", f"{name} {option}"))
            at += 0 if given or (short and len(text) > 2) else 1
        elif option in wrapper.valued:
            at += 0 if given else 1
        elif option in wrapper.bare or (wrapper.numbers and re.fullmatch(r"-\d+", text)):
            pass
        elif (
            short
            and text.startswith("-")
            and (takes := _cluster(text, wrapper.valued, wrapper.bare)) is not None
        ):
            at += takes
        elif text.startswith("-") and text != "-":
            return Peeled([], (Reason("option", f"{name} {text[:40]}"),))
        elif wrapper.assigns and (m := _ASSIGN.fullmatch(text)):
            assigns.append((m[1], Word(m[2], m[2])))
        elif skip:
            skip -= 1
        else:
            break
        at += 1
    rest = list(words[at:])
    if "*" in wrapper.text:
        return _joined(name, rest, reasons)
    writes = _written(wrapper, words[: at + skip])
    rest = rest[skip:]
    if script is not None:
        return Peeled([], tuple(reasons), script, tuple(assigns), writes=writes)
    if not rest and wrapper.alone:
        reasons.append(Reason(wrapper.alone, name))
    return Peeled(rest, tuple(reasons), None, tuple(assigns), wrapper.more, writes)


def _written(wrapper: Wrapper, own: Sequence[Word]) -> tuple[Word, ...]:
    """Return the files that a wrapper writes, from the words before the inner command."""
    if not wrapper.targets and not wrapper.writes:
        return ()
    given = operands(own, (*wrapper.valued, *wrapper.text))
    files = [value for option, value in given.values if option in wrapper.targets]
    return (*files, *(given.plain if wrapper.writes else ()))


def _cluster(text: str, valued: Names, bare: Names) -> int | None:
    """Count the further words that `-nE` or `-n5` takes; None if a letter is not known."""
    for at, c in enumerate(text[1:], 1):
        if f"-{c}" in valued:
            return 1 if at == len(text) - 1 else 0
        if f"-{c}" not in bare:
            return None
    return 0 if len(text) > 1 else None


def _joined(name: str, rest: list[Word], reasons: list[Reason]) -> Peeled:
    """Join the operands: `watch a b` gives `a b` to a shell."""
    if any(w.text is None for w in rest):
        return Peeled([], (*reasons, Reason("eval", name)))
    text = " ".join(w.text or "" for w in rest)
    return Peeled([], tuple(reasons), Word(text, text) if text else None)
