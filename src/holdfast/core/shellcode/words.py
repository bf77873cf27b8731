"""Words of a shell command: the text that the program receives, if the source determines this text.

A name can be spelled in many ways (`rm`, `r\\m`, `'r'm`, `$'\\x72m'`), so quoting is removed before
words are compared. A word has no text, only a reason, if it depends on more than the source: on a
variable, a substitution, or a brace expansion that would multiply words. HOME and the working
directory are exceptions, because the caller knows them.

The input is one `Word` node of shfmt's JSON tree. A part of an unknown kind makes the word unknown,
never empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Node = Mapping[str, Any]

_SIMPLE_ESCAPES: Final = {
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "?": "?",
}
_ESCAPE: Final = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})"
    r"|U([0-9a-fA-F]{1,8})|c(.))",
    re.S,
)
_SPECIAL: Final = ("*?", "*?^#")  # in patterns, beside `[`; of zsh the second
# A value that stays one word without quotes.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


@dataclass(frozen=True, slots=True)
class Word:
    text: str | None  # after quote removal; None if it cannot be known
    shown: str  # for display: the text, or the source
    glob_at: int = -1  # position of the first unquoted pattern character in `text`
    why: str = ""  # the reason if `text` is None
    # Not part of the representation. The positions of all unquoted pattern characters in `text`.
    special: tuple[int, ...] = field(default=(), repr=False, compare=False)
    # The text that every word of the expansion begins with, if `text` is None; None: the source
    # tells no part of the text.
    stem: str | None = field(default=None, repr=False, compare=False)

    @property
    def glob(self) -> bool:
        return self.glob_at >= 0


@dataclass(frozen=True, slots=True)
class Known:
    """The shell variables that the caller knows."""

    home: str | None = None
    cwd: str | None = None
    shell: str = "bash"


class _Unknown(Exception):
    """The source does not determine the text."""


def read(node: Node, source: bytes, known: Known) -> Word:
    """Return the word of a `Word` node."""
    shown = _source(node, source)
    try:
        text, plain = _parts(node.get("Parts") or [], known)
    except _Unknown as e:
        return Word(None, shown, why=str(e), stem=_stem(node.get("Parts") or [], known))
    bare = "".join(c if p else "\0" for c, p in zip(text, plain, strict=True))
    if _braces(bare):
        return Word(None, shown, why="braces")
    if known.shell == "zsh" and bare.startswith("="):
        return Word(None, shown, why="=name")
    expanded, bare = _tilde(text, bare, known)
    if expanded is None:
        return Word(None, shown, why="~name")
    at = _glob(bare, known.shell)
    characters = _SPECIAL[known.shell == "zsh"] + "["
    special = tuple(i for i, c in enumerate(bare) if c in characters) if at >= 0 else ()
    return Word(expanded, expanded, at, special=special)


def subscript(text: str) -> bool:
    """Say whether a subscript contains a substitution.

    Arithmetic runs the substitution, even inside the value of a variable.
    """
    for piece in text.split("]"):
        _, opened, inside = piece.partition("[")
        if opened and any(mark in inside for mark in ("$(", "${", "`")):
            return True
    return False


def decode_ansi(value: str) -> str:
    """Decode `$'...'`; bytes that are not UTF-8, and NUL, which ends the string, are unknown."""
    out = bytearray()
    at = 0
    for m in _ESCAPE.finditer(value):
        out += value[at : m.start()].encode("utf-8", "surrogatepass")
        at = m.end()
        simple, octal, hexa, u4, u8, control = m.groups()
        if simple is not None:
            out += _SIMPLE_ESCAPES[simple].encode()
        elif octal is not None:
            out.append(int(octal, 8) & 0xFF)
        elif hexa is not None:
            out.append(int(hexa, 16))
        elif control is not None:
            out += chr(ord(control) & 0x1F).encode()
        else:
            number = int(u4 or u8, 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise _Unknown("a character outside of Unicode")
            out += chr(number).encode()
    out += value[at:].encode("utf-8", "surrogatepass")
    if 0 in out:
        raise _Unknown("a NUL byte")
    try:
        return out.decode()
    except UnicodeDecodeError:
        raise _Unknown("bytes that are not text") from None


def _source(node: Node, source: bytes) -> str:
    try:
        start, end = node["Pos"]["Offset"], node["End"]["Offset"]
        return source[start:end].decode("utf-8", "replace")
    except (KeyError, TypeError):
        return "..."


def _parts(parts: list[Node], known: Known) -> tuple[str, list[bool]]:
    """Return the text, and for each character whether it is unquoted (special to the shell)."""
    text, plain = "", list[bool]()
    for part in parts:
        kind = part.get("Type")
        if kind in ("SglQuoted", "DblQuoted") and text.endswith("$") and plain[-1]:
            raise _Unknown("$'...' that not every shell supports")
        if kind == "Lit":
            piece, bare = _unquoted(_value(part))
        elif kind == "SglQuoted":
            piece = _value(part)
            piece = decode_ansi(piece) if part.get("Dollar") else piece
            bare = [False] * len(piece)
        elif kind == "DblQuoted":
            if part.get("Dollar"):
                raise _Unknown("translated text")
            piece = "".join(_double(inner, known) for inner in part.get("Parts") or [])
            bare = [False] * len(piece)
        elif kind == "ParamExp":
            piece = _variable(part, known)
            if not _PLAIN.fullmatch(piece):
                raise _Unknown("variable")
            bare = [False] * len(piece)
        elif kind == "ExtGlob":
            piece, bare = "*", [True]
        elif kind in ("CmdSubst", "ProcSubst"):
            raise _Unknown("substitution")
        elif kind == "ArithmExp":
            raise _Unknown("arithmetic")
        else:
            raise _Unknown("construct")
        text += piece
        plain += bare
    return text, plain


def _stem(parts: list[Node], known: Known) -> str | None:
    """Return the known beginning of a word with unknown parts; None if no part is known.

    The beginning is empty if the expansion may be several words: unquoted, a pattern, braces.
    """
    stem, partly, open_yet, several = "", False, False, False
    for part in parts:
        quoted = part.get("Type") == "DblQuoted"
        for piece in (part.get("Parts") or []) if quoted else [part]:
            try:
                text = _double(piece, known) if quoted else _parts([piece], known)[0]
            except _Unknown:
                open_yet = True
                listed = (piece.get("Param") or {}).get("Value") in ("@", "*")
                several = several or not quoted or listed or bool(piece.get("Index"))
                continue
            if piece.get("Type") in ("Lit", "ExtGlob") and not quoted:
                if not partly and not open_yet and text.startswith("~/") and known.home:
                    text = known.home + text[1:]
                several = several or any(c in text for c in "~{*?[^#")
            partly = partly or bool(text)
            stem += "" if open_yet else text
    return None if not partly else "" if several else stem


def _value(part: Node) -> str:
    value = part.get("Value", "")
    if not isinstance(value, str):
        raise _Unknown("construct")
    return value


def _double(part: Node, known: Known) -> str:
    kind = part.get("Type")
    if kind == "Lit":
        return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], _value(part))
    if kind == "ParamExp":
        return _variable(part, known)
    raise _Unknown(
        "substitution"
        if kind in ("CmdSubst", "ProcSubst")
        else "arithmetic"
        if kind == "ArithmExp"
        else "construct"
    )


def _variable(part: Node, known: Known) -> str:
    """Return HOME or PWD if written plainly; all other expansions are unknown."""
    given = set(part) - {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param"}
    name = str((part.get("Param") or {}).get("Value"))
    value = {"HOME": known.home, "PWD": known.cwd}.get(name) if not given else None
    if value is None:
        raise _Unknown("variable")
    return value


def _unquoted(value: str) -> tuple[str, list[bool]]:
    text, plain, at = "", list[bool](), 0
    while at < len(value):
        c = value[at]
        if c == "\\" and at + 1 < len(value):
            at += 1
            if value[at] != "\n":
                text += value[at]
                plain.append(False)
        else:
            text += c
            plain.append(True)
        at += 1
    return text, plain


def _tilde(text: str, bare: str, known: Known) -> tuple[str | None, str]:
    """Expand `~` and `~/...` at the beginning, or after the `=` of an apparent assignment."""
    at = 0
    if not bare.startswith("~"):
        m = re.match(r"[A-Za-z_][A-Za-z0-9_]*=(?=~)", bare)
        if m is None:
            return text, bare
        at = m.end()
    rest = bare[at + 1 :]
    if rest and not rest.startswith("/"):
        return None, bare
    if known.home is None:
        return None, bare
    return text[:at] + known.home + text[at + 1 :], bare[:at] + "\0" * len(known.home) + bare[
        at + 1 :
    ]


def _braces(bare: str) -> bool:
    """Say whether the word may contain `{a,b}` or `{1..3}`, in linear time: it may be hostile."""
    _, opened, rest = bare.partition("{")
    body, closed, _ = rest.rpartition("}")
    return bool(opened and closed and ("," in body or ".." in body))


def _glob(bare: str, shell: str) -> int:
    found = [bare.index(c) for c in _SPECIAL[shell == "zsh"] if c in bare]
    at = bare.find("[")
    if at >= 0 and "]" in bare[at + 1 :]:
        found.append(at)
    return min(found, default=-1)
