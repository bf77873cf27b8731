"""The state of a live shell, parsed from the snapshot that it writes beside a mark.

The shell function is `_hf_shape` in host/shell/bash.rc and zsh.rc.

    bash ::= "hf1" "bash" SEQ `declare -p` `alias -p` OPTIONS NAMES `declare -f` `hash -l` TRAPS END
    zsh  ::= "hf1" "zsh" SEQ `setopt` `typeset -p` PAIRS PAIRS PAIRS TRAPS
             ("?" | PAIRS `hash -L`) END
    sh   ::= "hf1" "posix" SEQ `set` `export -p` `alias` FLAGS TRAPS END
    each field ends with NUL; PAIRS ::= COUNT { NAME VALUE }; END ::= "end " SEQ; "?": not listed

Parsing is total: for any bytes the result is a Snapshot or None, and None means that nothing is
known. A shell on a full disk writes a part without the end. Bytes after the end belong to an
earlier snapshot. Values are only compared, never run. A variable or an alias that is not understood
voids the whole snapshot. A trap that is not understood forms one piece with all traps after it, so
that a change is still noticed.

State that changes by itself (a counter, the time, the last status) is left out, and so is our own.
Code that runs in the shell itself can write any snapshot, as it can write any mark:
docs/reference/originators.md says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

from holdfast.model.words import names_of

SNAPSHOT_BYTES: Final = 1 << 20  # a larger snapshot is not parsed
PIECES_MAX: Final = 16_384
ALIAS_WORDS: Final = 16  # commands of an alias that are kept, to follow it
DIGEST_BYTES: Final = 12

# Kind and name, as in core/originators/originators.py; also ("hash", name): a program whose path
# the shell remembers.
Piece = tuple[str, str]
CWD: Final[Piece] = ("cwd", "")


# Variables that change by themselves or belong to this program. The last third are zsh's views of
# itself, which exist after the first use: the content is listed under other kinds.
_VOLATILE: Final = names_of(
    """
    RANDOM SRANDOM SECONDS LINENO EPOCHSECONDS EPOCHREALTIME _ PIPESTATUS FUNCNAME HISTCMD
    DIRSTACK OPTIND OPTARG OPTERR COLUMNS LINES GROUPS BASHPID BASH_ARGC BASH_ARGV
    BASH_ARGV0 BASH_LINENO BASH_SOURCE BASH_COMMAND BASH_SUBSHELL BASH_ALIASES BASH_CMDS
    BASH_REMATCH BASH_MONOSECONDS BASH_TRAPSIG BASHOPTS SHELLOPTS PWD PATH path PPID
    COMP_WORDBREAKS argv 0 status pipestatus ? ! # * @ - $ TTYIDLE TRY_BLOCK_ERROR
    TRY_BLOCK_INTERRUPT ZSH_EVAL_CONTEXT ERRNO ZSH_SUBSHELL KEYBOARD_HACK MATCH MBEGIN MEND
    match mbegin mend options aliases dis_aliases galiases dis_galiases saliases dis_saliases
    functions dis_functions functions_source dis_functions_source builtins dis_builtins reswords
    dis_reswords patchars dis_patchars modules parameters commands nameddirs userdirs usergroups
    dirstack history historywords jobdirs jobtexts jobstates funcfiletrace funcsourcetrace
    funcstack functrace
    """
)
# Options that we set ourselves, or that hold only during a run.
_PASSING: Final = frozenset(("execfail", "xtrace", "localoptions", "shinstdin", "stdin"))
PROMPTS: Final = ("PS0", "PS1", "PS2", "PS3", "PS4", "PROMPT", "RPS1", "RPROMPT", "prompt")
_RUNS: Final = re.compile(rb"`|\$\((?!\()")
_SPAN: Final = rb"\"(?:[^\"\\]|\\.)*+\"|\$'(?:[^'\\]|\\.)*+'|'[^']*+'|\\.|[^\"'\\\n]"
_VARIABLE: Final = re.compile(
    rb"(declare|typeset|export|readonly|local)((?: -[^\s]*)*+)"
    rb" (?:([A-Za-z_]\w*) )?([^\s=]+)(?:=((?:" + _SPAN + rb")*+))?\n",
    re.S,
)
_ARRAY: Final = re.compile(rb" -\w*[aA]")
_ASSIGNMENT: Final = re.compile(rb"([A-Za-z_]\w*)=((?:" + _SPAN + rb")*+)\n", re.S)
_ALIAS: Final = re.compile(rb"(?:alias )?(?:-- )?([^\s=]+)=((?:" + _SPAN + rb")*+)\n", re.S)
_TRAP: Final = re.compile(
    rb"trap -- ((?:\"(?:[^\"\\]|\\.)*+\"|'[^']*+'|\$'(?:[^'\\]|\\.)*+'|\\.|[^\"'\\\s])*+) (\S+)\n",
    re.S,
)
_HEAD: Final = re.compile(rb"^(?:function )?(\S+) \(\) *\n", re.M)
_HASHED: Final = re.compile(rb"(?:builtin hash -p (\S+) (\S+)|hash ([^\s=]+)=(\S+))\n")
# Possessive: an unclosed quote must not be searched again from every position before it.
_WORD: Final = re.compile(
    rb"(?:\"(?:[^\"\\]|\\.)*+\"|\$'(?:[^'\\]|\\.)*+'|'[^']*+'|\\.|[^\"'\\\s])++", re.S
)
_QUOTED: Final = re.compile(
    rb"\"((?:[^\"\\]|\\.)*+)\"|\$'((?:[^'\\]|\\.)*+)'|'([^']*+)'|\\(.)|([^\"'\\]+)", re.S
)
_ESCAPED: Final = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|C-(.)|(.))", re.S)
_ESCAPES: Final = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"e": b"\x1b",
    b"E": b"\x1b",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


class Snapshot(NamedTuple):
    seq: int  # the number of the mark
    values: dict[Piece, bytes]  # the value of each piece; after `sealed` only a keyed digest
    path: tuple[str, ...] = ()
    cwd: str = ""
    exported: frozenset[str] = frozenset()
    aliases: dict[str, tuple[str, ...]] = {}  # the commands in each alias
    hashed: dict[str, str] = {}
    functions: bool = False  # functions and remembered programs were listed
    traps: bool = False  # traps were listed
    active: frozenset[str] = frozenset()  # prompts that run a command each time they are shown
    # Aliases for every word of a line (zsh); with a leading dot: for names with that suffix.
    anywhere: frozenset[str] = frozenset()
    # The exported variables as programs get them; after `sealed` only keyed digests.
    environment: dict[str, bytes] = {}


class _Odd(Exception):
    """The text is not in the format that a shell writes."""


def read(data: bytes) -> Snapshot | None:
    """Parse a snapshot; None if the shell did not write a complete and valid one."""
    if len(data) > SNAPSHOT_BYTES:
        return None
    fields = data.split(b"\0")
    try:
        if fields[0] != b"hf1" or not re.fullmatch(rb"[0-9]{1,18}", fields[2]):
            return None
        reader = {b"bash": _bash, b"zsh": _zsh, b"posix": _posix}.get(fields[1])
        found = reader(int(fields[2]), fields[3:]) if reader is not None else None
    except (_Odd, IndexError, ValueError, RecursionError):
        return None
    return found if found is not None and len(found.values) <= PIECES_MAX else None


def sealed(snapshot: Snapshot, key: bytes) -> Snapshot:
    """Replace values by keyed digests; only the parts for finding a program stay readable."""
    return snapshot._replace(
        values={
            piece: _digest(value, key, piece[0].encode()[:16])
            for piece, value in snapshot.values.items()
        },
        environment={
            name: environment_digest(value, key) for name, value in snapshot.environment.items()
        },
    )


def environment_digest(value: bytes, key: bytes) -> bytes:
    """Return the digest of the value of an exported variable, as `sealed` makes it."""
    return _digest(value, key, b"environment")


def _digest(value: bytes, key: bytes, person: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_BYTES, key=key, person=person).digest()


# ---------------------------------------------------------------- the shells


def _active(values: dict[Piece, bytes]) -> frozenset[str]:
    return frozenset(name for name in PROMPTS if _RUNS.search(values.get(("variable", name), b"")))


def _bash(seq: int, fields: list[bytes]) -> Snapshot | None:
    variables, aliases, options, names, bodies, hashed, traps, end, _ = fields[:9]
    if end != b"end %d" % seq:
        return None
    values: dict[Piece, bytes] = {}
    environment: dict[str, bytes] = {}
    path, cwd, exported = _variables(variables, values, environment)
    known = _aliases(aliases, values)
    _flags, *sets = options.split(b" ")
    for word in (one for group in sets for one in group.split(b":") if one):
        if _text(word) not in _PASSING:
            values["option", _text(word)] = b"on"
    remembered: dict[str, str] = {}
    if names != b"?":
        _bodies(names, bodies, values)
        remembered = _remembered(hashed, values)
    if traps != b"?":
        _traps(traps, values)
    made = Snapshot(seq, values, path, cwd, exported, known, remembered, environment=environment)
    return made._replace(functions=names != b"?", traps=traps != b"?", active=_active(values))


def _zsh(seq: int, fields: list[bytes]) -> Snapshot | None:
    values: dict[Piece, bytes] = {}
    for line in fields[0].split(b"\n"):
        name, _, state = line.partition(b" ")
        if name and _text(name) not in _PASSING:
            values["option", _text(name)] = state
    environment: dict[str, bytes] = {}
    path, cwd, exported = _variables(fields[1], values, environment)
    at, known, anywhere = 2, dict[str, tuple[str, ...]](), set[str]()
    for how in ("", "g", "s"):
        at, pairs = _pairs(fields, at)
        for name, value in pairs:
            shown = "." * (how == "s") + _text(name)
            values["alias", shown] = value
            if how:
                anywhere.add(shown)
            else:
                known[shown] = _words(value)
    _traps(fields[at], values)
    at, seen, remembered = at + 1, fields[at + 1] != b"?", dict[str, str]()
    if seen:
        at, pairs = _pairs(fields, at)
        for name, value in pairs:
            if not name.startswith(b"_hf_"):
                values["function", _text(name)] = value
        remembered = _remembered(fields[at], values, frozenset(path))
    if fields[at + 1] != b"end %d" % seq or at + 2 == len(fields):
        return None
    made = Snapshot(seq, values, path, cwd, exported, known, remembered, seen, True)
    return made._replace(
        active=_active(values), anywhere=frozenset(anywhere), environment=environment
    )


def _posix(seq: int, fields: list[bytes]) -> Snapshot | None:
    variables, exports, aliases, flags, traps, end, _ = fields[:7]
    if end != b"end %d" % seq:
        return None
    values: dict[Piece, bytes] = {}
    exported = frozenset(_text(found[4]) for found in _all(_VARIABLE, exports))
    entries: tuple[str, ...] = ()
    cwd = ""
    environment: dict[str, bytes] = {}
    for found in _all(_ASSIGNMENT, variables):
        name, value = _text(found[1]), found[2]
        if name in exported:
            environment[name] = _plain(value)
        if name == "PATH":
            entries = _entries(value)
        elif name == "PWD":
            cwd, values[CWD] = _text(_plain(value)), value
        elif name not in _VOLATILE and not name.startswith("_hf"):
            values["variable", name] = (b"export " if name in exported else b"") + value
    known = _aliases(aliases, values)
    for flag in flags.decode("ascii", "replace"):
        if flag not in "x":
            values["option", flag] = b"on"
    _traps(traps, values)
    made = Snapshot(seq, values, entries, cwd, exported, known, traps=True)
    return made._replace(active=_active(values), environment=environment)


def _all(pattern: re.Pattern[bytes], text: bytes) -> Iterator[re.Match[bytes]]:
    """Yield matches that cover the text from end to end."""
    at = 0
    while at < len(text):
        found = pattern.match(text, at)
        if found is None:
            raise _Odd
        at = found.end()
        yield found


def _pairs(fields: list[bytes], at: int) -> tuple[int, list[tuple[bytes, bytes]]]:
    count = int(fields[at])
    flat = fields[at + 1 : at + 1 + 2 * count]
    if not 0 <= count <= PIECES_MAX or len(flat) != 2 * count:
        raise _Odd
    return at + 1 + 2 * count, list(zip(flat[::2], flat[1::2], strict=True))


# ---------------------------------------------------------------- listings


def _variables(
    text: bytes, values: dict[Piece, bytes], environment: dict[str, bytes]
) -> tuple[tuple[str, ...], str, frozenset[str]]:
    entries: tuple[str, ...] = ()
    cwd, exported = "", set[str]()
    # a variable that is not understood hides even its name, so the whole listing must match
    for found in _all(_VARIABLE, text):
        how, flags, tied, raw, value = found.groups()
        name = _text(tied or raw)
        if (tied is not None and b"a" in flags) or name.startswith("_hf"):
            continue  # zsh lists tied variables twice
        # Each `cd` changes OLDPWD: only `cd -` and texts that name the variable use it.
        if name != "OLDPWD" and (how == b"export" or b"x" in flags):
            exported.add(name)
            if value is not None and not _ARRAY.search(flags):  # no program gets an array
                environment[name] = _plain(value)
        if name == "PATH" and value is not None:
            entries = _entries(value)
            values["variable", "PATH"] = how + flags + b"\n" + value
        elif name == "PWD" and value is not None:
            cwd = _text(_plain(value))
            values[CWD] = value
        elif name not in _VOLATILE:
            values["variable", name] = (
                how + flags + b"\n" + (b"-" if value is None else b"=" + value)
            )
    return entries, cwd, frozenset(exported)


def _aliases(text: bytes, values: dict[Piece, bytes]) -> dict[str, tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}
    for found in _all(_ALIAS, text):
        values["alias", _text(found[1])] = found[2]
        known[_text(found[1])] = _words(_plain(found[2]))
    return known


def _traps(text: bytes, values: dict[Piece, bytes]) -> None:
    at = 0
    while at < len(text):
        found = _TRAP.match(text, at)
        if found is None:
            values["trap", "*"] = text[at:]
            return
        at = found.end()
        values["trap", _text(found[2].removeprefix(b"SIG"))] = found[1]


def _bodies(names: bytes, text: bytes, values: dict[Piece, bytes]) -> None:
    """Split functions: a function extends from a head to the next head.

    Text in a function may look like a head, so only the first head of each listed name counts.
    """
    wanted, heads = dict.fromkeys(names.split()), list[tuple[int, bytes]]()
    for found in _HEAD.finditer(text):
        if found[1] in wanted:
            del wanted[found[1]]
            heads.append((found.start(), found[1]))
    for (start, name), (end, _) in zip(heads, [*heads[1:], (len(text), b"")], strict=False):
        if not name.startswith(b"_hf_"):
            values["function", _text(name)] = text[start:end]
    all_of_it = blake2b(text).digest() if wanted else b""
    for name in wanted:  # listed but not found: any part of the text may be it
        values["function", _text(name)] = all_of_it


def _remembered(
    text: bytes, values: dict[Piece, bytes], usual: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Parse the programs whose path the shell remembers.

    zsh remembers whole directories: programs with an unchanged name in a `usual` directory are left
    out.
    """
    known: dict[str, str] = {}
    for found in _HASHED.finditer(text):
        name, place = found[2] or found[3], found[1] or found[4]
        above, _, base = _text(_plain(place)).rpartition("/")
        if above in usual and base == _text(name):
            continue
        known[_text(name)] = f"{above}/{base}"
        values["hash", _text(name)] = place
    return known


# ---------------------------------------------------------------- words


def _entries(value: bytes) -> tuple[str, ...]:
    """Return the entries of PATH: one word with colons, or an array (zsh)."""
    value = value.strip()
    if value.startswith(b"("):
        found = [_plain(one) for one in _WORD.findall(value[1:-1])]
    else:
        found = _plain(value).split(b":")
    return tuple(dict.fromkeys(_text(one) for one in found))


def _plain(value: bytes) -> bytes:
    """Return a word without its quotes."""
    made = bytearray()
    for double, ansi, single, escaped, bare in _QUOTED.findall(value):
        made += (
            re.sub(rb"\\(.)", rb"\1", double, flags=re.S)
            + _ESCAPED.sub(_unescaped, ansi)
            + single
            + escaped
            + bare
        )
    return bytes(made)


def _unescaped(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, control, other = found.groups()
    if octal or hexadecimal:
        return bytes((int(octal or hexadecimal, 8 if octal else 16) & 255,))
    return bytes((control[0] & 31,)) if control else _ESCAPES.get(other, other)


def _words(value: bytes) -> tuple[str, ...]:
    """Return the commands in a plain alias. Arguments may be secrets and are dropped."""
    parts = [
        [word for word in part.split() if b"=" not in word][:1]
        for part in re.split(rb"[;|&()\n]+", value)
    ]
    return tuple(_text(word) for part in parts for word in part)[:ALIAS_WORDS]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
