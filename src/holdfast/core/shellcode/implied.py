"""Files that a program reads without being told and acts on (P3).

Examples are a Makefile, a hook, or a configuration that names programs. `programs.toml` has a row
per program, with the reason why these files matter. The result is a list of candidates. The host
finds the existing candidates and the writers (host/originators/writers.py).

A row holds the files that can decide which programs run, not all files that are read. For example,
the Makefile names the sources that `make` compiles, and the author of the Makefile is known.

1. Some files are searched for from the working directory upwards (`up`). These files are listed for
   every directory above, up to UP_MAX, because the program takes the first that exists.
2. An option that names the file (`-f`) replaces the search. An option that says where to begin
   (`-C`) moves the search.
3. A word without a static value (`$x`) removes no candidate from the list. The file that such a
   word names cannot be listed.
4. Without a known working directory, only files in the home directory can be named.
5. An option with an optional value takes no value here. The next word could be an option too, and
   the file of that option would be hidden.

A table cannot know the further files that these files include (an `include`, a `require`,
core.hooksPath), nor plugins, caches of compiled files, or the actions of the sources.
`docs/reference/writers.md` lists this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from posixpath import dirname, join, normpath
from typing import Final

from holdfast.core.shellcode.effects import operands
from holdfast.core.shellcode.facts import Command
from holdfast.core.shellcode.programs import Reads, programs

UP_MAX: Final = 24  # directories above
FILES_MAX: Final = 256
INTO_MAX: Final = 8  # operands that are taken for directories
PLUS_OPERANDS_MAX: Final = 4  # operands taken for scripts if the first begins with `+`
_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*")
_GIT_FILES: Final = ("config", "config.worktree", "info/attributes")
# With a script, these shells read no start files.
_LOGIN_SHELLS: Final = frozenset(("bash", "sh", "dash", "ksh"))


def implied(command: Command, cwd: str | None, home: str | None = None) -> tuple[str, ...]:
    """Return up to FILES_MAX candidates, most important first. Candidates need not exist."""
    texts = [word.text for word in command.words]
    row = _row(command.name, texts)
    if row is None:
        return ()
    found = operands(command.words, (*row.named, *row.besides, *row.moves, *row.valued))
    options = [(name, word.text) for name, word in found.values]
    plain = [word.text for word in found.plain]
    where = cwd
    for name, value in options:
        if name in row.moves:
            known = value is not None and (where is not None or value.startswith("/"))
            where = normpath(join(where or "/", value or "")) if known else None
    files = [value for name, value in options if name in row.named or name in row.besides]
    if row.all:
        files += plain
    elif row.script:
        plus = bool(plain) and (plain[0] or "").startswith("+")  # an option of a shell
        files += plain[: PLUS_OPERANDS_MAX if plus else 1]
    candidates = [_at(where, value) for value in files if value is not None]
    instead = [value for name, value in options if name in row.named]
    if not instead or None in instead:
        candidates += [_at(where, name) for name in row.here]
        candidates += _above(where, row.up)
        for text in plain[:INTO_MAX] if row.into else ():
            if text and (inside := _at(where, text)) is not None:
                candidates += [*(join(inside, name) for name in row.here), *_above(inside, row.up)]
    if command.name == "git":
        hooks = _hooks(next((text for text in plain if text), None))
        for name, value in options:
            if name == "--git-dir" and value is not None and (directory := _at(where, value)):
                inner = (name.removeprefix(".git/") for name in hooks)
                candidates += [join(directory, name) for name in (*_GIT_FILES, *inner)]
        candidates += _above(where, hooks)
    elif _PYTHON.fullmatch(command.name):
        candidates += _module(where, texts)
    if home is not None and (not row.script or not plain or command.name not in _LOGIN_SHELLS):
        candidates += [join(home, name) for name in row.home]
    return tuple(dict.fromkeys(path for path in candidates if path is not None))[:FILES_MAX]


def _row(name: str, texts: Sequence[str | None]) -> Reads | None:
    reads, modules = programs().reads, programs().python_modules
    if _PYTHON.fullmatch(name):
        module = texts[texts.index("-m") + 1] if "-m" in texts[:-1] else None
        row = reads[modules.get(module or "", "python")]
        return row._replace(script="-c" not in texts and "-m" not in texts)
    both = (f"{name} {text}" for text in texts)
    return next((reads[key] for key in both if key in reads), None) or reads.get(name)


def _module(where: str | None, texts: Sequence[str | None]) -> Iterator[str | None]:
    """Yield the files of `python -m`: a module in the working directory comes first."""
    for text, module in zip(texts, texts[1:], strict=False):
        if text == "-m" and module is not None and re.fullmatch(r"[\w.]+", module):
            path = module.replace(".", "/")
            top = path.split("/")[0]
            for name in (f"{path}.py", f"{path}/__main__.py", f"{path}/__init__.py"):
                yield _at(where, name)
            yield _at(where, f"{top}/__init__.py")


def _hooks(command: str | None) -> list[str]:
    """Return the hooks of a subcommand of git; all hooks if the subcommand is not known."""
    known = programs().git_hooks
    names: Iterable[str] = ()
    if command is None:
        names = dict.fromkeys(name for hooks in known.values() for name in hooks)
    elif command in known:
        refs = command in programs().names.git_ref_updates
        names = (*known[command], "post-index-change", "fsmonitor-watchman")
        names = (*names, "reference-transaction") if refs else names
    modules = [".gitmodules"] if command == "submodule" else []
    return [*(f".git/hooks/{name}" for name in names), *modules]


def _above(where: str | None, names: Sequence[str]) -> list[str]:
    """Return the names in the directory and in every directory above, up to UP_MAX."""
    found, at = list[str](), where
    for _ in range(UP_MAX):
        if at is None or not names:
            break
        found += [join(at, name) for name in names]
        if at == "/":
            break
        at = dirname(at)
    return found


def _at(where: str | None, name: str) -> str | None:
    if name.startswith("/"):
        return normpath(name)
    return None if where is None or name == "-" else normpath(join(where, name))
