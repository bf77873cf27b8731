"""The effects of a known program: written files and use of the network.

This is advice, not a sandbox: `make` and `./script` write anywhere, and no table can tell where.
The table covers a few dozen programs with complete information in the arguments. So a rule about
"writes outside of the project" can cover `cp`, `tee` and `sed -i` as well as `>`.

A word that cannot be known makes a program that writes unresolvable. So does a pattern in the
arguments of a program that destroys files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.core.shellcode.programs import Effect, programs
from holdfast.core.shellcode.words import Word

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HERE: Final = Word(".", ".")


class Operands(NamedTuple):
    plain: list[Word]  # words that are not options
    values: list[tuple[str, Word]]  # options and values
    doubtful: frozenset[int] = frozenset()  # operands after an option that may take them as value


def flags(words: Sequence[Word]) -> frozenset[str]:
    """Return the options: `-rf` gives -r, -f and -rf itself; `--force=x` gives --force."""
    found = set[str]()
    for text in (w.text for w in words):
        if text == "--":
            break
        if text is None or not text.startswith("-") or text == "-":
            continue
        option = text.partition("=")[0]
        found.add(option)
        if not text.startswith("--"):
            found.update(f"-{c}" for c in option[1:])
    return frozenset(found)


def operands(
    words: Sequence[Word], valued: Collection[str], bare: Collection[str] = ()
) -> Operands:
    """Separate operands from options.

    `valued` lists the options that take the next word, `bare` those that certainly take none.
    """
    plain, values, doubtful = list[Word](), list[tuple[str, Word]](), set[int]()
    at, ended, unknown = 0, False, False
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        after, unknown = unknown, False
        if ended or text is None or not text.startswith("-") or text == "-":
            doubtful.update((len(plain),) if after else ())
            plain.append(word)
        elif text == "--":
            ended = True
        elif text.startswith("--"):
            name, given, value = text.partition("=")
            if given:
                values.append((name, Word(value, value, -1 if word.glob_at < 0 else 0)))
            elif name in valued and at < len(words):
                values.append((name, words[at]))
                at += 1
            else:
                unknown = name not in bare
        elif text in valued and at < len(words):
            values.append((text, words[at]))
            at += 1
        else:
            for i, c in enumerate(text[1:], 1):
                if f"-{c}" in valued:
                    rest = text[i + 1 :]
                    if rest:
                        values.append((f"-{c}", Word(rest, rest)))
                    elif at < len(words):
                        values.append((f"-{c}", words[at]))
                        at += 1
                    break
            else:
                unknown = text not in bare and "=" not in text
    return Operands(plain, values, frozenset(doubtful))


def subcommands(name: str, words: Sequence[Word]) -> list[Word]:
    """Return the operands, without options: `git -C x push origin` gives push, origin."""
    return operands(words, programs().option_values.get(name, ())).plain


def begins_with(name: str, words: Sequence[Word], wanted: Sequence[str]) -> tuple[bool, bool, bool]:
    """Say whether the operands begin with these words: possibly, in any reading, in each reading.

    A word that is not known may be any word. The word after an unknown option may be its value.
    """
    table = programs()
    found = operands(words, table.option_values.get(name, ()), table.bare_options.get(name, ()))
    exact = open_word = direct = False
    ways = [(0, 0, True, True)]  # operand, wanted word, all words known, no operand left out
    while ways:
        at, done, known, plain = ways.pop()
        if done == len(wanted):
            exact, open_word = exact or known, open_word or not known
            direct = direct or (known and plain and found.doubtful.isdisjoint(range(at)))
        elif at < len(found.plain) and len(ways) < 64:
            text = found.plain[at].text
            if text is None or text == wanted[done]:
                ways.append((at + 1, done + 1, known and text is not None, plain))
            if at in found.doubtful:
                ways.append((at + 1, done, known, False))
        elif at >= len(found.plain):
            # An unknown word may be several: the rest of the wanted words may be among them.
            open_word = open_word or not known
    return open_word, exact, direct


class Words(NamedTuple):
    """The words of a command whose options are all known, or the statement that one is not."""

    known: bool
    options: frozenset[str] = frozenset()
    operands: tuple[str, ...] = ()


def account(name: str, words: Sequence[Word]) -> Words | None:
    """Return the options and operands if each word is listed; None for a program without a list."""
    table = programs()
    first = next((w.text for w in subcommands(name, words)), None)
    row = table.accounted.get(f"{name} {first}") or table.accounted.get(name)
    if row is None:
        return None
    valued = (*row.valued, *table.option_values.get(name, ()))
    options, plain, at, ended = set[str](), list[str](), 0, False
    while at < len(words):
        text = words[at].text
        at += 1
        if text is None:
            return Words(False)
        if ended or not text.startswith("-") or text == "-":
            plain.append(text)
            ended = ended or row.leading
        elif text == "--":
            ended = True
        elif text in row.bare:
            options.add(text)
        elif text in valued:
            options.add(text)
            at += 1
        elif text.startswith("--"):
            if text.partition("=")[0] not in valued:
                return Words(False)
        else:
            for i, c in enumerate(text[1:], 1):
                options.add(f"-{c}")
                if f"-{c}" in valued:
                    at += i == len(text) - 1
                    break
                if f"-{c}" not in row.bare:
                    return Words(False)
    own = plain[1:] if f"{name} {first}" in table.accounted else plain
    known = at == len(words) and all(re.fullmatch(row.operand, text) for text in own)
    return Words(known, frozenset(options), tuple(own))


def network(name: str, words: Sequence[Word]) -> bool:
    """Say whether the command uses the network."""
    if name in programs().names.network:
        return True
    known = programs().network_subcommands.get(name, ())
    rest = [w.text or "" for w in subcommands(name, words)[:2]]
    return any(" ".join(rest[:n]) in known for n in (1, 2)) or any(
        _URL.match(w.text or "") for w in words if name in ("pip", "npm")
    )


def effect(name: str) -> Effect | None:
    return programs().effects.get("mkfs" if name.startswith("mkfs.") else name)


def written(name: str, words: Sequence[Word], has: frozenset[str]) -> list[Word]:
    """Return the words that name written files, if the program is known."""
    if name == "dd":
        texts = [w.text[3:] for w in words if w.text is not None and w.text.startswith("of=")]
        return [Word(text, text) for text in texts]
    if name == "sed":
        return _sed(words, has)
    if name == "tar":
        return _tar(words)
    if name == "find":
        return list(words[: _leading(words)] or [_HERE]) if "-delete" in has else []
    if name == "git":
        subs = subcommands(name, words)
        return subs[2:3] if subs and subs[0].text == "clone" else []
    row = effect(name)
    if row is None:
        return []
    plain, values, _ = operands(words, row.valued)
    found = [value for option, value in values if option in row.targets]
    if row.writes == "all" or has.intersection(row.all_with):
        return found + plain
    if row.writes == "rest":
        return found + plain[1:]
    if row.writes == "last" and not found and len(plain) > 1:
        return plain[-1:]
    if (row.here and not found) or has.intersection(row.here_with):
        return [*found, _HERE]
    return found


def _sed(words: Sequence[Word], has: frozenset[str]) -> list[Word]:
    if "--in-place" not in has and not any(f.startswith("-i") for f in has):
        return []
    programs = ("-e", "--expression", "-f", "--file")
    given = operands(words, (*programs, "-l") if "-i" in has else (*programs, "-l", "-i"))
    return given.plain[0 if any(option in programs for option, _ in given.values) else 1 :]


def _tar(words: Sequence[Word]) -> list[Word]:
    first = words[0].text if words else None
    if first and not first.startswith("-"):
        words = [Word(f"-{first}", first), *words[1:]]
    given = operands(words, ("-f", "--file", "-C", "--directory", "-T", "-X", "--exclude"))
    has = flags(words)
    if has & {"-x", "--extract", "--get"}:
        return [v for o, v in given.values if o in ("-C", "--directory")] or [_HERE]
    if has & {"-c", "--create", "-r", "--append", "-u", "--update"}:
        return [v for o, v in given.values if o in ("-f", "--file")]
    return []


def _leading(words: Sequence[Word]) -> int:
    """Count the words that `find` takes for directories, before the first condition."""
    for n, word in enumerate(words):
        if word.text is not None and (
            (word.text.startswith("-") and word.text not in ("-H", "-L", "-P"))
            or word.text in ("(", "!")
        ):
            return n
    return len(words)


def spoils(name: str, has: frozenset[str]) -> bool:
    """Say whether the command deletes files, or changes files recursively.

    A pattern may not choose the files of a command like that.
    """
    if name in ("dd", "find"):
        return name == "dd" or "-delete" in has
    row = effect(name)
    if row is None or row.destroys != "recursive":
        return row is not None and row.destroys == "always"
    return bool(has & {"-R", "--recursive"})


def path_words(name: str, words: Sequence[Word]) -> Iterator[Word]:
    """Yield every word, or part of a word, that may be a path."""
    if name in programs().names.quiet:
        return
    ended = False
    for word in words:
        text = word.text
        if text is None or not text:
            continue
        if text == "--":
            ended = True
        elif not ended and text.startswith("-") and text != "-":
            _, given, value = text.partition("=")
            if not given and text[2:3] in ("/", "~", "."):
                value = text[2:]
            if value:
                yield Word(value, value)
        else:
            yield from _pieces(word, text)


def _pieces(word: Word, text: str) -> Iterator[Word]:
    if text.startswith("file://"):
        yield Word(text[7:], text[7:])
        return
    if _URL.match(text):
        return
    yield word
    for piece in (
        text.partition("=")[2],
        text[1:] if text.startswith("@") else "",
        *(p for p in text.split(":")[1:] if p.startswith("/")),
    ):
        if piece:
            yield Word(piece, piece)
    if ":" in text and text.startswith("/"):
        yield Word(text.partition(":")[0], text.partition(":")[0])
