"""Programs that run a program from arguments, from input, or from a file.

A program in a file is judged like any other program that is run. Arguments and input are different:
`python -c`, `perl -e` and `curl | sh` run a text in a language that is not analysed here.
Shells are the exception, because `sh -c 'text'` can be analysed like the command itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.core.shellcode.effects import operands
from holdfast.core.shellcode.programs import Language, programs
from holdfast.core.shellcode.reasons import Reason
from holdfast.core.shellcode.words import Word

CODE_CHARS_MAX: Final = 4096
"""Size limit of an awk program or a statement that is matched: the patterns are quadratic."""
_SHELL_VALUED: Final = ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
_QUERIES: Final = frozenset(("-V", "-v", "-h", "-?", "--version", "--help", "-VV"))
_STATEMENT_READS: Final = re.compile(
    r"\s*(?:select|show|explain|describe|desc|pragma\s+\w+$|get|keys|ping|info|\\d\w*"
    r"|\.tables|\.schema|\.dump|\.indexes)\b[^;]*;?\s*",
    re.I | re.S,
)
_AWK_ACTS: Final = re.compile(
    r"system\s*\(|getline|(?<!\|)\|(?!\|)|print[^;}\n]*>|@load|@include", re.S
)


class Inner(NamedTuple):
    reasons: tuple[Reason, ...] = ()
    text: Word | None = None  # a text for a shell of this dialect
    dialect: str = ""


def shell_grammar(name: str) -> str | None:
    """Return the grammar of a shell ("" if there is no parser); None for other programs."""
    return programs().shells.get(name)


def is_shell(name: str) -> bool:
    return name in programs().shells


def is_pager(name: str) -> bool:
    """Say whether the program has a key that runs a command."""
    return name in programs().names.pagers


def is_interpreter(name: str) -> bool:
    """Say whether lines typed into this program are programs themselves."""
    names = programs().names
    return (
        is_shell(name)
        or name in names.editors
        or name in programs().databases
        or name in names.consoles
        or name in names.pagers
        or _language(name) is not None
    )


def reads_orders(name: str, argv: Callable[[], Sequence[str]]) -> bool:
    """Say whether this process acts on the lines of the terminal.

    An interpreter does, unless the program comes from a file or from the arguments. `argv` is
    called only if the name does not decide.
    """
    if not is_shell(name) and _language(name) is None:
        return is_interpreter(name)
    return all(
        word.startswith("-") and word.lstrip("-") not in ("c", "e", "command", "eval")
        for word in argv()[1:]
    )


def inspect(name: str, words: Sequence[Word]) -> Inner | None:
    """Return the program of this interpreter; None for other programs."""
    names = programs().names
    if is_shell(name):
        return _shell(name, words)
    if (language := _language(name)) is not None:
        return _inline(name, language, words)
    if name in ("awk", "gawk", "mawk", "nawk"):
        return _awk(name, words)
    if name in ("sed", "gsed"):
        return _sed(name, words)
    if name in names.editors:
        acts = any(w.text is None or w.text.startswith(names.editor_code) for w in words)
        if acts or name in ("ex", "ed"):
            return Inner((Reason("code" if acts else "stdin", name),))
        return Inner()
    if name in programs().databases:
        return _database(name, words)
    return None


def _language(name: str) -> Language | None:
    languages = programs().languages.items()
    return next((row for pattern, row in languages if re.fullmatch(pattern, name)), None)


def _shell(name: str, words: Sequence[Word]) -> Inner:
    at, from_argument, from_input = 0, False, False
    while at < len(words):
        text = words[at].text
        if text is None:
            return Inner((Reason("eval" if from_argument else "stdin", name),))
        if text in ("--version", "--help"):
            return Inner()
        if text == "--" or text == "-":
            at += 1
            break
        if text in _SHELL_VALUED:
            at += 1
        elif text.startswith(("-", "+")) and len(text) > 1:
            if not text.startswith("--"):
                from_argument |= "c" in text[1:] and text[0] == "-"
                from_input |= "s" in text[1:] and text[0] == "-"
                if text[-1] in "oO":
                    at += 1
        else:
            break
        at += 1
    rest = words[at:]
    if from_argument and rest:
        if rest[0].text is None:
            return Inner((Reason("eval", f"{name} -c"),))
        grammar = shell_grammar(name)
        return Inner((), rest[0], grammar) if grammar else Inner((Reason("shell", name),))
    script = rest[0].text if rest else None
    if from_argument or from_input or script is None or script == "-":
        return Inner((Reason("stdin", name),))
    return _from_file(name, script, "/dev/fd/", "/proc/")


def _from_file(name: str, path: str | None, *inputs: str) -> Inner:
    """Judge a script by path: below `inputs` the script may be the interpreter's input."""
    unknown = path is None or path == "/dev/stdin" or path.startswith(inputs)
    return Inner((Reason("stdin", name),) if unknown else ())


def _inline(name: str, language: Language, words: Sequence[Word]) -> Inner:
    at = 0
    while at < len(words):
        text = words[at].text
        if text is None:
            return Inner((Reason("code", name),))
        if text == "-":
            return Inner((Reason("stdin", name),))
        if not text.startswith("-") or text == "--":
            break
        if text.partition("=")[0] in language.inline_long:
            return Inner((Reason("code", f"{name} {text[:20]}"),))
        if not text.startswith("--"):
            for c in text[1:]:
                if c in language.inline:
                    return Inner((Reason("code", f"{name} -{c}"),))
                if c in language.stops:
                    return Inner()
                if c in language.joined or f"-{c}" in language.valued:
                    break  # the rest of the word is the value
        if text in _QUERIES:
            return Inner()
        at += 2 if text in language.valued else 1
    rest = [w for w in words[at:] if w.text != "--"]
    if name in ("deno", "bun") and rest and rest[0].text == "eval":
        return Inner((Reason("code", f"{name} eval"),))
    if not rest:
        only = {w.text or "" for w in words}
        return Inner() if only & {"--test", "--check"} else Inner((Reason("stdin", name),))
    return _from_file(name, rest[0].text, "/dev/fd/")


def _awk(name: str, words: Sequence[Word]) -> Inner:
    files = programs().names.awk_files
    given = operands(words, (*files, *programs().names.awk_values))
    if any(option in files for option, _ in given.values):
        return Inner()
    texts = [v.text for o, v in given.values if o in ("-e", "--source")]
    for text in texts or [word.text for word in given.plain[:1]]:
        if text is None or len(text) > CODE_CHARS_MAX or _AWK_ACTS.search(text):
            return Inner((Reason("code", name),))
    return Inner()


def _sed(name: str, words: Sequence[Word]) -> Inner:
    options = ("-e", "--expression", "-f", "--file")
    given = operands(words, (*options, "-l", "--line-length"))
    texts = [v.text for o, v in given.values if o in options[:2]]
    if not any(o in options for o, _ in given.values):
        texts = [word.text for word in given.plain[:1]]
    if all(text is not None and sed_is_plain(text) for text in texts):
        return Inner()
    return Inner((Reason("code", name),))


def sed_is_plain(program: str) -> bool:
    """Say whether a sed program only prints and edits.

    Its command `e` runs programs; `w` and `r` use files. The scan is a single pass, because a
    hostile text could make a slower one take very long.
    """
    at, end = 0, len(program)

    def section(at: int, delimiter: str) -> int:
        while at < end and program[at] != delimiter:
            at += 2 if program[at] == "\\" else 1
        return at + 1

    def address(at: int) -> int:
        if at < end and program[at] == "/":
            at = section(at + 1, "/")
            return at + 1 if program[at : at + 1] == "I" else at
        while at < end and (program[at].isdigit() or program[at] in "$~+"):
            at += 1
        return at

    while at < end:
        if program[at] in " \t\n;{}":
            at += 1
            continue
        at = address(at)
        if program[at : at + 1] == ",":
            at = address(at + 1)
        while program[at : at + 1] in (" ", "!"):
            at += 1
        command = program[at : at + 1]
        at += 1
        if command in ("s", "y"):
            delimiter = program[at : at + 1]
            if not delimiter or delimiter in "\\\n":
                return False
            at = section(section(at + 1, delimiter), delimiter)
            while at < end and program[at] in "gpiIM0123456789":
                at += 1
        elif command and command in "aic":
            at = (program.find("\n", at) + 1) or end
            continue
        elif command and command in "pdDPnNhHgGxqQ=lFtbT:":
            while (
                at < end and (program[at].isalnum() or program[at] == " ") and command in "qQtbT:"
            ):
                at += 1
        elif command == "{":
            continue
        else:
            return False
        if at < end and program[at] not in " \t\n;}{":
            return False
    return at == end


def _database(name: str, words: Sequence[Word]) -> Inner:
    options, names = programs().databases[name], programs().names
    given = operands(words, (*options, *names.database_values, *names.database_files))
    texts = [v.text for o, v in given.values if o in options]
    if "*" in options:
        joined = [w.text for w in (given.plain if name == "redis-cli" else given.plain[1:])]
        if None in joined:
            return Inner((Reason("code", name),))
        # Of redis-cli the words are one statement; of other programs each word is.
        texts += [" ".join(filter(None, joined))] if name == "redis-cli" else joined
        texts = [text for text in texts if text != ""]
    if texts and not names.database_files.isdisjoint(o for o, _ in given.values):
        return Inner((Reason("code", name),))
    for text in texts:
        if text is None or len(text) > CODE_CHARS_MAX or not _STATEMENT_READS.fullmatch(text):
            return Inner((Reason("code", name),))
    return Inner() if texts else Inner((Reason("stdin", name),))
