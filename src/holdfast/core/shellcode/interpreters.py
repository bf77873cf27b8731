"""Programs that run a program: from their arguments, from what they read, or from a file.

A file is an ordinary program, like any other that is run. Arguments and input are not: `python -c`, `perl -e`, `curl | sh` do
what their text says, in a language that is not looked at here. Shells are the exception, for `sh -c 'text'` can be looked at
like the command itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from holdfast.core.effects import operands
from holdfast.core.reasons import Reason
from holdfast.core.words import Word

SHELLS: Final[dict[str, str]] = {
    "sh": "posix",
    "dash": "posix",
    "ash": "posix",
    "bash": "bash",
    "rbash": "bash",
    "zsh": "zsh",
    "ksh": "",
    "mksh": "mksh",
    "fish": "",
    "csh": "",
    "tcsh": "",
    "xonsh": "",
    "nu": "",
    "elvish": "",
}
_SHELL_VALUED: Final = ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
_ASK_ONLY: Final = frozenset(("-V", "-v", "-h", "-?", "--version", "--help", "-VV"))


class Language(NamedTuple):
    names: str  # a regular expression
    inline: str  # letters and long options that are followed by code
    valued: str = ""  # options that take the next word
    stops: str = ""  # options after which the rest belongs to a module or file
    joined: str = ""  # letters that take the rest of their word


LANGUAGES: Final = (
    Language(r"python[\d.]*|pypy[\d.]*|ipython[\d.]*", "c", "-W -X --check-hash-based-pycs", "m"),
    Language(r"perl[\d.]*", "eE", "", "", "IMmDCx"),
    Language(r"ruby[\d.]*|jruby", "e", "-r -C -E", "", "IKxT"),
    Language(r"node|nodejs|bun|deno", "ep --eval --print", "-r --require --import", ""),
    Language(r"php[\d.]*", "rBE", "-c -d -z"),
    Language(
        r"lua[\d.]*|luajit|Rscript|julia|elixir|guile|tclsh|groovy|scala|ghc|osascript|swift|raku|escript|erl",
        "ec --eval",
        "",
    ),
    Language(r"pwsh|powershell", "c -Command -EncodedCommand", ""),
)
EDITORS: Final = frozenset(("vi", "vim", "nvim", "ex", "ed", "emacs", "view", "gdb", "lldb"))
DATABASES: Final[dict[str, str]] = {
    "psql": "-c --command",
    "mysql": "-e --execute",
    "mariadb": "-e --execute",
    "sqlite3": "*",
    "sqlplus": "*",
    "mongosh": "--eval",
    "redis-cli": "*",
    "clickhouse-client": "-q --query",
    "duckdb": "-c *",
    "cqlsh": "-e",
}
_LOOKS: Final = re.compile(
    r"\s*(?:select|show|explain|describe|desc|pragma\s+\w+$|get|keys|ping|info|\\d\w*|\.tables|\.schema|\.dump|\.indexes)\b[^;]*;?\s*",
    re.I | re.S,
)
_AWK_ACTS: Final = re.compile(
    r"system\s*\(|getline|(?<!\|)\|(?!\|)|print[^;}\n]*>|@load|@include", re.S
)
CODE_CHARS_MAX: Final = 4096  # of an awk or sed program, or a statement, that is looked at: the patterns above are quadratic


class Inner(NamedTuple):
    reasons: tuple[Reason, ...] = ()
    text: Word | None = None  # for a shell of this dialect
    dialect: str = ""


def inspect(name: str, words: Sequence[Word]) -> Inner | None:
    """What this interpreter runs; None if it is none."""
    if name in SHELLS:
        return _shell(name, words)
    for language in LANGUAGES:
        if re.fullmatch(language.names, name):
            return _language(name, language, words)
    if name in ("awk", "gawk", "mawk", "nawk"):
        return _awk(name, words)
    if name in ("sed", "gsed"):
        return _sed(name, words)
    if name in EDITORS:
        acts = [
            w
            for w in words
            if w.text is None
            or w.text.startswith(
                ("+", "-c", "--cmd", "--eval", "-e", "-s", "-l", "-ex", "-x", "--batch", "-S")
            )
        ]
        return Inner(
            (Reason("code" if acts else "stdin", name),) if acts or name in ("ex", "ed") else ()
        )
    if name in DATABASES:
        return _database(name, words)
    return None


PAGERS: Final = (
    "less",
    "more",
    "most",
    "man",
    "nano",
    "pico",
    "ftp",
    "sftp",
    "lftp",
    "top",
    "htop",
    "git",
    "tig",
    "mutt",
    "info",
    "w3m",
    "lynx",
    "nnn",
    "ranger",
    "mc",
)
"""Programs with a key that runs a command."""


def is_interpreter(name: str) -> bool:
    """Whether lines typed into this program are programs themselves."""
    return (
        name in SHELLS
        or name in EDITORS
        or name in DATABASES
        or name
        in (
            "ssh",
            "mosh",
            "telnet",
            "docker",
            "podman",
            "kubectl",
            "tmux",
            "screen",
            "su",
            "sudo",
            "irb",
            "bc",
            *PAGERS,
        )
        or any(re.fullmatch(x.names, name) for x in LANGUAGES)
    )


def reads_orders(name: str, argv: Callable[[], Sequence[str]]) -> bool:
    """Whether this process does what it reads from its terminal: an interpreter, unless its program comes from a file or its arguments. They are looked at only if need be."""
    if not is_interpreter(name):
        return False
    if name not in SHELLS and not any(re.fullmatch(x.names, name) for x in LANGUAGES):
        return True
    return all(
        word.startswith("-") and word.lstrip("-") not in ("c", "e", "command", "eval")
        for word in argv()[1:]
    )


def _shell(name: str, words: Sequence[Word]) -> Inner:
    at, from_argument, from_input = 0, False, False
    while at < len(words):
        text = words[at].text
        if text is None:
            return Inner((Reason("eval" if from_argument else "stdin", name),))
        if text in _ASK_ONLY and text.startswith("--"):
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
        if not SHELLS[name]:
            return Inner((Reason("shell", name),))
        return Inner((), rest[0], SHELLS[name])
    if (
        from_argument
        or from_input
        or not rest
        or rest[0].text is None
        or rest[0].text in ("/dev/stdin", "-")
        or rest[0].text.startswith(("/dev/fd/", "/proc/"))
    ):
        return Inner((Reason("stdin", name),))
    return Inner()


def _language(name: str, language: Language, words: Sequence[Word]) -> Inner:
    letters, *long = language.inline.split()
    at = 0
    while at < len(words):
        text = words[at].text
        if text is None:
            return Inner((Reason("code", name),))
        if text == "-":
            return Inner((Reason("stdin", name),))
        if not text.startswith("-") or text == "--":
            break
        if text.partition("=")[0] in long or (name in ("deno", "bun") and text == "eval"):
            return Inner((Reason("code", f"{name} {text[:20]}"),))
        if not text.startswith("--"):
            for c in text[1:]:
                if c in letters:
                    return Inner((Reason("code", f"{name} -{c}"),))
                if c in language.stops and language.stops:
                    return Inner()
                if c in language.joined or f"-{c}" in language.valued.split():
                    break  # the rest of the word is its value
        if text in _ASK_ONLY:
            return Inner()
        at += 2 if text in language.valued.split() else 1
    rest = [w for w in words[at:] if w.text != "--"]
    if name in ("deno", "bun") and rest and rest[0].text == "eval":
        return Inner((Reason("code", f"{name} eval"),))
    if not rest:
        only = {w.text or "" for w in words}
        return Inner() if only & {"--test", "--check"} else Inner((Reason("stdin", name),))
    if (
        rest[0].text is None
        or rest[0].text in ("/dev/stdin",)
        or rest[0].text.startswith("/dev/fd/")
    ):
        return Inner((Reason("stdin", name),))
    return Inner()


def _awk(name: str, words: Sequence[Word]) -> Inner:
    given = operands(
        words,
        "-F --field-separator -v --assign -f --file -e --source -i --include -l --load -E --exec",
    )
    if any(
        o in ("-f", "--file", "-E", "--exec", "-i", "--include", "-l", "--load")
        for o, _ in given.values
    ):
        return Inner()
    programs = [v for o, v in given.values if o in ("-e", "--source")] or given.plain[:1]
    if any(
        p.text is None or len(p.text) > CODE_CHARS_MAX or _AWK_ACTS.search(p.text) for p in programs
    ):
        return Inner((Reason("code", name),))
    return Inner()


def _sed(name: str, words: Sequence[Word]) -> Inner:
    given = operands(words, "-e --expression -f --file -l --line-length")
    programs = [v for o, v in given.values if o in ("-e", "--expression")]
    if not programs and not any(o in ("-f", "--file") for o, _ in given.values):
        programs = given.plain[:1]
    for program in programs:
        if program.text is None or not sed_is_plain(program.text):
            return Inner((Reason("code", name),))
    return Inner()


def sed_is_plain(program: str) -> bool:
    """Whether it only prints and edits: no `e`, which runs commands, no `w` and `r`, which touch files. In one pass, for the text may be hostile."""
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
    options = DATABASES[name].split()
    given = operands(
        words,
        " ".join(o for o in options if o != "*")
        + " -h -p -U -u -d -P -n -f --host --port --user --dbname --database",
    )
    texts = [v for o, v in given.values if o in options]
    if "*" in options:
        joined = given.plain if name == "redis-cli" else given.plain[1:]
        if any(w.text is None for w in joined):
            return Inner((Reason("code", name),))
        text = " ".join(w.text or "" for w in joined)
        texts += [Word(text, text)] if text else []
    if any(
        t.text is None or len(t.text) > CODE_CHARS_MAX or not _LOOKS.fullmatch(t.text)
        for t in texts
    ):
        return Inner((Reason("code", name),))
    return Inner() if texts else Inner((Reason("stdin", name),))
