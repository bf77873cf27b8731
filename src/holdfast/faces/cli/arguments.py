"""The arguments of a command, without `argparse` for the ordinary command line.

`argparse` takes 11 ms to import and to set up, as long as the interpreter takes to start. Each
command declares its arguments as a text, see `usage`; here the declarations are recorded, and a
command line with a single possible meaning is parsed by these declarations. For all other command
lines (`--help`, errors, `-n5`, values that begin with a dash, positionals on both sides of an
option) `parsed` returns None, and the caller asks `argparse`. tests/faces/test_arguments.py
compares the two.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from typing import Any


class Arguments:
    """The values, as attributes, like `argparse.Namespace`."""


class Unclear(Exception):
    """This needs `argparse`."""


class Argument:
    """A call of `add_argument`, with the defaults of `argparse`."""

    def __init__(
        self,
        *flags: str,
        action: str = "store",
        nargs: str | None = None,
        const: Any = None,
        default: Any = None,
        type: Callable[[str], Any] = str,
        choices: Sequence[str] | None = None,
        required: bool = False,
        dest: str | None = None,
        help: str | None = None,
        metavar: str | None = None,
    ) -> None:
        self.flags = flags if flags[0].startswith("-") else ()
        name = next((flag for flag in flags if flag.startswith("--")), flags[0])
        self.dest = dest or name.lstrip("-").replace("-", "_")
        self.action, self.nargs, self.required = action, nargs, required
        self.const = True if action == "store_true" else const
        self.default = False if action == "store_true" else default
        self.type, self.choices = type, choices
        if action not in ("store", "store_true", "store_const", "append"):
            raise Unclear
        if self.flags and nargs is not None:
            raise Unclear

    def value(self, text: str) -> Any:
        try:
            value = self.type(text)
        except (TypeError, ValueError) as e:
            raise Unclear from e
        if self.choices is not None and value not in self.choices:
            raise Unclear
        return value

    def initial(self) -> Any:
        """The default value; a default text is converted like a given text."""
        return self.type(self.default) if isinstance(self.default, str) else self.default


class Declarations:
    """Takes the place of the parser to which a command adds arguments."""

    description = epilog = ""

    def __init__(self) -> None:
        self.all: list[Argument] = []

    def add_argument(self, *flags: str, **fields: Any) -> None:
        self.all.append(Argument(*flags, **fields))

    def __getattr__(self, name: str) -> Any:  # groups and the like
        raise Unclear(name)


# The type of a value, by the word that stands for the value.
TYPES = {"S": float, "N": int, "LINES": int, "OFFSET": int, "PID": int, "PORT": int, "MIB": int}


def usage(text: str) -> Callable[[ArgumentParser], None]:
    """Declares arguments as the help shows them: the argument, two blanks, the explanation.

    `--flag`, `--option VALUE`, `--option [VALUE]`, `--option VALUE...` (repeatable), `WORD`,
    `[WORD]`, `WORD...` and `[WORD...]`. Words in lower case are the possible values. A default
    follows the value: `--size small|large=small`. If the attribute has another name than the
    option or the word, the name precedes: `name=[WORD]`. The paragraphs before the last describe
    the command.
    """

    def declare(p: ArgumentParser) -> None:
        *about, last = text.strip("\n").rstrip().split("\n\n")
        if about:
            p.description = "\n\n".join(about)
        for row in joined(last):
            written, _, help = row.partition("  ")
            names, fields = _declared(written)
            p.add_argument(*names, **fields, help=help or None)

    return declare


def joined(text: str) -> list[str]:
    """The rows of a text; a line that is indented further continues the row before."""
    lines = text.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    rows: list[str] = []
    for line in lines:
        if line[indent] == " ":
            rows[-1] += " " + line.strip()
        else:
            rows.append(line.strip())
    return rows


def _declared(written: str) -> tuple[list[str], dict[str, Any]]:
    """The names and fields of an argument, for `add_argument`."""
    dest, _, rest = written.partition("=")
    if not dest.isidentifier() or not rest:
        dest, rest = "", written
    *flags, word = rest.split()
    if word.startswith("-"):
        return [*flags, word], {"action": "store_true"} | ({"dest": dest} if dest else {})
    shown, optional, repeated = word.strip("[]").removesuffix("..."), "[" in word, "..." in word
    value, _, default = shown.rpartition("=")
    if not value or default != default.lower():
        value, default = shown, ""
    fields: dict[str, Any] = {}
    if value == value.lower():
        fields["choices"] = value.split("|")
    else:
        fields["metavar"] = value
        if value in TYPES:
            fields["type"] = TYPES[value]
    if default:
        fields["default"] = fields.get("type", str)(default)
    if not flags:
        fields["nargs"] = ("*" if optional else "+") if repeated else "?" if optional else None
        return [dest or value.lower()], fields
    if repeated:
        fields |= {"action": "append", "default": []}
    elif optional:
        fields |= {"nargs": "?", "const": ""}
    return flags, fields | ({"dest": dest} if dest else {})


def parsed(declare: Callable[[Any], None], words: list[str]) -> Arguments | None:
    """The values of a command line; None if only `argparse` can tell."""
    declared = Declarations()
    try:
        declare(declared)
        return _values(declared, words)
    except Unclear:
        return None


def _values(declared: Declarations, words: list[str]) -> Arguments:
    result = Arguments()
    options = {flag: argument for argument in declared.all for flag in argument.flags}
    missing = {argument.dest for argument in declared.all if argument.required}
    for argument in declared.all:
        if argument.dest not in result.__dict__:
            setattr(result, argument.dest, argument.initial())
    given: list[str] = []
    closed = False  # an option followed the positionals
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            if closed:
                raise Unclear
            given.append(word)
            continue
        closed = bool(given)
        flag, equals, text = word.partition("=")
        option = options.get(flag)
        if option is None or (equals and (not flag.startswith("--") or option.const is not None)):
            raise Unclear
        missing.discard(option.dest)
        if option.action in ("store_true", "store_const"):
            setattr(result, option.dest, option.const)
            continue
        if not equals:
            text = next(rest, "-")
            if text.startswith("-"):
                raise Unclear
        value = option.value(text)
        if option.action == "append":
            value = [*(getattr(result, option.dest) or ()), value]
        setattr(result, option.dest, value)
    if missing:
        raise Unclear
    _assign(result, [one for one in declared.all if not one.flags], given)
    return result


def _assign(result: Arguments, positionals: list[Argument], given: list[str]) -> None:
    """Gives each positional as many words as possible; enough remain for later positionals."""
    needed = sum(argument.nargs in (None, "+") for argument in positionals)
    spare = len(given) - needed
    if spare < 0:
        raise Unclear
    at = 0
    for argument in positionals:
        least = int(argument.nargs in (None, "+"))
        more = {None: 0, "?": min(1, spare)}.get(argument.nargs, spare)
        words = given[at : at + least + more]
        at, spare = at + least + more, spare - more
        if argument.nargs is None or (argument.nargs == "?" and words):
            setattr(result, argument.dest, argument.value(words[0]))
        elif words:
            setattr(result, argument.dest, [argument.value(word) for word in words])
        elif argument.nargs == "*" and argument.default is None:
            setattr(result, argument.dest, [])
    if at < len(given):
        raise Unclear
