"""Places in which a shell evaluates a value, so that unknown text may run as code.

bash, zsh and mksh evaluate arithmetic recursively. If `x` is `a[$(rm y)]`, then `$((x))` reads the
value as an expression, and its subscript runs `rm y`. The same happens in subscripts, in offsets
(`${x:y}`), in numeric tests of `[[ ]]`, and where a builtin takes the name of a variable. A value
that the text does not show is therefore unknown code there. Only numbers are known.

The functions are pure and take nodes of shfmt's tree, or words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.words import Node, Word

# An expression without names: digits and operators, or a number with a base.
_NUMBERS: Final = re.compile(
    r"[\s0-9.+\-*/%()<>=!&|^~?:,]*|[+-]?0[xX][0-9a-fA-F]+|[+-]?[0-9]+#[0-9A-Za-z@_]+"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The name of a variable, also with a subscript that is a number or stands for all elements.
_REFERENCE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[(?:-?[0-9]+|[@*])\])?(?:\+?=.*)?", re.S)
_NUMERIC_TESTS: Final = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))
_NUMERIC_PARAMETERS: Final = frozenset("#?$!")
_ARITHMETIC_SHELLS: Final = frozenset(("zsh", "mksh"))  # also the words of ordinary builtins
_DECLARE: Final = ("declare", "typeset", "local", "private", "readonly", "export")
_BINARY: Final = _NUMERIC_TESTS | {"=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef"}
_UNARY: Final = frozenset(f"-{letter}" for letter in "abcdefghknprstuwxzLOSGN")
# Sources of words: one word in any case; a number in any case.
_ONE_WORD: Final = re.compile(r'"[^"]*"')
_COUNT: Final = re.compile(
    r'"?\$(?:[#?$!]|\{[#?]\}|\{#[A-Za-z0-9_]+(?:\[[@*]\])?\}|\(\([^()`]*\)\))"?'
)
_DESCRIPTOR: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\[")
_SUBSCRIPTED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[")
_SPECIAL: Final = re.compile(r"[$`\\\[]")
# Formats of printf that take no number.
_TEXTS: Final = re.compile(r"(?:[^%]|%%|%-?[0-9]*(?:\.[0-9]+)?[sbq])*", re.S)


def number(text: str | None) -> bool:
    """Say whether the text is certainly an expression of numbers alone."""
    return text is not None and _NUMBERS.fullmatch(text) is not None


def known(node: Any) -> bool:
    """Say whether an arithmetic expression contains only numbers; nested `$(( ))` are numbers."""
    if node is None:
        return True
    kind = node.get("Type")
    if kind == "Word":
        return _numeric(node.get("Parts") or [])
    if kind == "BinaryArithm":
        sets = node.get("Op") == "=" and _VARIABLE.fullmatch(literal(node.get("X")) or "")
        return (bool(sets) or known(node.get("X"))) and known(node.get("Y"))
    return kind in ("UnaryArithm", "ParenArithm") and known(node.get("X"))


def subscript_known(node: Any) -> bool:
    return literal(node) in ("@", "*") or known(node)


def literal(node: Any) -> str | None:
    """Return the text of a word without quotes and expansions; None for other words."""
    parts = (node or {}).get("Parts") or []
    if not parts or any(part.get("Type") != "Lit" for part in parts):
        return None
    return "".join(str(part.get("Value")) for part in parts)


def _numeric(parts: Sequence[Node]) -> bool:
    text = ""
    for part in parts:
        kind = part.get("Type")
        if kind in ("Lit", "SglQuoted") and not part.get("Dollar"):
            text += str(part.get("Value", ""))
        elif (
            kind == "ArithmExp"
            or (kind == "DblQuoted" and _numeric(part.get("Parts") or []))
            or (kind == "ParamExp" and _number_parameter(part))
        ):
            text += "0"
        else:
            return False
    return number(text)


def _number_parameter(node: Node) -> bool:
    """`$#`, `$?`, `$$`, `$!` and lengths (`${#x}`) are numbers, whatever the session did before."""
    more = set(node) - {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param", "Length"}
    name = str((node.get("Param") or {}).get("Value"))
    if node.get("Length"):
        return more <= {"Index"}  # the subscript is looked at by itself
    return not more and name in _NUMERIC_PARAMETERS


def part(node: Node, shell: str) -> str:
    """Say what this part of a word evaluates; "" if that is nothing, or numbers alone.

    Parts of this part are not looked at: the walk visits them.
    """
    return _expansion(node) or _condition(node, shell) or _bracket(node.get("Parts") or [], shell)


def _expansion(node: Node) -> str:
    if node.get("Type") == "ArithmExp" and not known(node.get("X")):
        return "a value in arithmetic"
    if node.get("Type") == "CStyleLoop" and not all(
        known(node.get(k)) for k in ("Init", "Cond", "Post")
    ):
        return "a value in the head of a loop"
    if node.get("Index") is not None and not subscript_known(node["Index"]):
        return "a value in a subscript"
    cut = node.get("Slice") or {}
    if not (known(cut.get("Offset")) and known(cut.get("Length"))):
        return "a value in an offset"
    if node.get("Excl") and not node.get("Names") and literal(node.get("Index")) not in ("@", "*"):
        return "the value of a variable names a variable"
    return ""


def _condition(node: Node, shell: str) -> str:
    """Say what a node of `[[ ]]` evaluates."""
    op = node.get("Op")
    if node.get("Type") == "BinaryTest" and op in _NUMERIC_TESTS:
        return "" if known(node.get("X")) and known(node.get("Y")) else f"a value beside {op}"
    if node.get("Type") == "UnaryTest":
        if op in ("-v", "-R") and not _REFERENCE.fullmatch(literal(node.get("X")) or ""):
            return f"a value after {op}"
        if op == "-t" and shell in _ARITHMETIC_SHELLS and not known(node.get("X")):
            return f"a value after {op}"
    return ""


def command(node: Node) -> str:
    """Say what `(( ))` and `let` evaluate."""
    expressions = [node.get("X"), *(node.get("Exprs") or [])]
    return "" if all(map(known, expressions)) else "a value in arithmetic"


def _bracket(parts: Sequence[Node], shell: str) -> str:
    """Say what a word evaluates between brackets that shfmt reads as text.

    `$[x]` is arithmetic, `$1[x]` and `{name[x]}>file` have a subscript.
    """
    if parts and parts[0].get("Type") == "Lit" and _DESCRIPTOR.match(str(parts[0].get("Value"))):
        return "a value in a subscript"
    for one, other in zip(parts, parts[1:], strict=False):
        if other.get("Type") == "Lit" and str(other.get("Value")).startswith("["):
            if one.get("Type") == "Lit" and str(one.get("Value")).endswith("$"):
                return "$[ ]"
            if one.get("Type") == "ParamExp" and shell == "zsh" and one.get("Short"):
                return "a value in a subscript"
    last = parts[-1] if parts else {}
    if last.get("Type") == "Lit" and str(last.get("Value")).endswith("$["):
        return "$[ ]"
    return ""


# ------------------------------------------------------------ builtins


def assigned(name: str, value: Word | None) -> bool:
    """Say whether the shell evaluates the value that it assigns to this variable."""
    return name in programs().names.integer_variables and not _counts(value)


def builtin(name: str, words: Sequence[Word], values: Sequence[Word], shell: str) -> str:
    """Say what a builtin evaluates; `values` are the values that a declaration assigns."""
    if name in ("test", "[", "[["):
        return _test(name, words if name == "test" else words[:-1], shell)
    if name == "let":
        return "" if all(map(_counts, words)) else "a value in arithmetic"
    if name in ("integer", "float", "nameref"):
        return f"{name} makes a variable evaluate its values"
    if name in ("printf", "print"):
        return _printf(name, words, shell)
    if name in _DECLARE and (found := _declare(name, words, values, shell)):
        return found
    if name == "wait" and any(_option(w, "p") for w in words):
        rest = [w.text or "" for w in words if not (w.text or "").startswith("-")]
        return "" if all(map(_REFERENCE.fullmatch, rest)) else "a value after wait -p"
    row = programs().builtins.get(name)
    if row is not None and (row.sets or row.judge == "declares"):
        texts = [w.text or "" for w in words]
        if any(_SUBSCRIPTED.match(t) and not _REFERENCE.fullmatch(t) for t in texts):
            return f"a subscript in the words of {name}"
        if any(re.split(r"[+=?]", t)[0] in programs().names.integer_variables for t in texts):
            return f"{name} of a variable that evaluates its values"
    if shell in _ARITHMETIC_SHELLS:
        numbers = words if name in programs().names.counting_builtins else _timeouts(name, words)
        if not all(map(_counts, numbers)):
            return f"the words of {name}"
    return ""


def _counts(word: Word | None) -> bool:
    """Say whether a word is certainly a number, or an expression of numbers."""
    return word is not None and (
        number(word.text) if word.text is not None else _COUNT.fullmatch(word.shown) is not None
    )


def _option(word: Word, letters: str) -> bool:
    """Say whether the word may be an option with one of these letters."""
    if word.text is None:
        return _first(word) in ("", "-")
    return word.text.startswith("-") and not {*letters}.isdisjoint(word.text[1:])


def _first(word: Word) -> str:
    """Return the first character of an unknown word; "" if it is unknown too."""
    if _COUNT.fullmatch(word.shown):
        return "0"
    if word.why == "=name":  # zsh: the operator = itself, or the path of a program
        return "="
    shown = word.shown.lstrip('"')
    return "" if not shown or shown[0] in "$`'\\{~<>=" else shown[0]


def _timeouts(name: str, words: Sequence[Word]) -> list[Word]:
    """Return the words after `read -t`, which zsh evaluates."""
    if name != "read":
        return []
    return [
        after
        for word, after in zip(words, words[1:], strict=False)
        if (word.text or "").startswith("-") and (word.text or "").endswith("t")
    ]


def _test(name: str, words: Sequence[Word], shell: str) -> str:
    """`-v NAME` evaluates the subscript of NAME; an unknown word may be `-v` itself."""
    evaluates = shell in _ARITHMETIC_SHELLS
    for at, word in enumerate(words):
        before, after = words[max(at - 1, 0) : at], words[at + 1 : at + 2]
        text = word.text
        if text in ("-v", "-R") and not all(_REFERENCE.fullmatch(w.text or "") for w in after):
            return f"a value after {text}"
        if text == "-t" and evaluates and not all(map(_counts, after)):
            return f"a value after {text}"
        if (
            text in _NUMERIC_TESTS
            and (evaluates or name == "[[")
            and not all(map(_counts, (*before, *after)))
        ):
            return f"a value beside {text}"
    if name != "[[" and not _roles_known(words):
        return f"a word of {name} may be -v"
    return ""


def _roles_known(words: Sequence[Word]) -> bool:
    """Say whether no unknown word of `test` can be an operator.

    `test "$x"` has no operator. In `test OPERATOR "$x"` and `test "$x" = "$y"` it is known.
    """
    unknown = [w for w in words if w.text is None and _first(w) in ("", "-")]
    if any(_ONE_WORD.fullmatch(w.shown) is None or "@" in w.shown for w in unknown):
        return False
    rest = list(words)
    while rest and rest[0].text == "!":
        rest.pop(0)
    if not unknown or len(rest) < 2:
        return True
    return rest[0].text is not None if len(rest) == 2 else _comparisons(rest)


def _comparisons(words: Sequence[Word]) -> bool:
    """Say whether the words are comparisons or tests with known operators, joined by -a or -o."""
    at = 0
    while True:
        if words[at].text == "!":
            return False
        if at + 1 < len(words) and (words[at + 1].text or words[at + 1].shown) in _BINARY:
            at += 3
        elif words[at].text in _UNARY:
            at += 2
        else:
            return False
        if at >= len(words):
            return at == len(words)
        if words[at].text not in ("-a", "-o") or at + 1 == len(words):
            return False
        at += 1


def _declare(name: str, words: Sequence[Word], values: Sequence[Word], shell: str) -> str:
    evaluates = shell in _ARITHMETIC_SHELLS
    plain = name in ("export", "readonly")
    if not plain and any(_option(w, "inEF" if evaluates else "in") for w in words):
        return f"{name} makes a variable evaluate its values"
    # bash reads such a value as `(...)`, with its substitutions, if the variable is an array
    if evaluates or (plain and not any(_option(w, "aA") for w in words)):
        return ""
    given = [*(v.text for v in values), *((w.text or "").partition("=")[2] for w in words)]
    if None in given or any("=" in w.shown for w in words if w.text is None):
        return f"a value that {name} may read as an array"
    if any((text or "").startswith("(") and _SPECIAL.search(text or "") for text in given):
        return f"a value that {name} may read as an array"
    return ""


def _printf(name: str, words: Sequence[Word], shell: str) -> str:
    """`printf -v NAME` evaluates a subscript; zsh evaluates what it prints as a number."""
    at = 0
    while at < len(words) and _option(words[at], "v"):
        if words[at].text is None:
            return "" if len(words) == at + 1 and name == "print" else f"an option of {name}"
        joined = (words[at].text or "").partition("v")[2]
        target = joined or (words[at + 1].text if at + 1 < len(words) else "") or ""
        if not _REFERENCE.fullmatch(target) or target in programs().names.integer_variables:
            return f"a value after {name} -v"
        at += 1 if joined else 2
    if shell not in _ARITHMETIC_SHELLS or all(map(_counts, words[at + 1 :])):
        return ""
    if name == "print":
        return f"the words of {name}" if any(_option(w, "fC") for w in words) else ""
    shape = words[at].text if at < len(words) else ""
    return "" if shape is not None and _TEXTS.fullmatch(shape) else f"the words of {name}"
