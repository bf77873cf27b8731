"""The variables that may redirect a program, compared with the first prompt (P4). Pure.

`git clean` works on another repository if GIT_WORK_TREE says so. The approver of a text sees the
text, not the variables of the shell. So an approval covers a program only if its variables are
those that the shell exported at its first prompt, or that the approved text itself assigns. Three
kinds do not count:

- names that change only how a program shows a result, or that every shell sets (HARMLESS);
- all names but those of the dynamic linker and the C library, for programs that take all
  orders as arguments (CLOSED);
- PATH: it decides which programs a covered program starts, and all of these are covered.
"""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from holdfast.core.policy import command_limit
from holdfast.model.words import names_of

# Names and values that differ from the first prompt. The value None: the variable is missing.
Changes = tuple[tuple[str, str | None], ...]

# Names besides those that `command_limit.is_harmless` knows with their values.
HARMLESS: Final = names_of(
    """
    _ PWD OLDPWD SHLVL PATH TERM_PROGRAM LS_COLORS GREP_COLORS PS1 PS2 PROMPT RPROMPT HISTFILE
    HISTSIZE HISTFILESIZE HISTCONTROL SAVEHIST VIRTUAL_ENV VIRTUAL_ENV_PROMPT
    CONDA_PROMPT_MODIFIER WINDOWID OPTIND ZSH_EVAL_CONTEXT
    """
)
CLOSED: Final = names_of(
    """
    chattr chgrp chmod chown cp dd install kill killall ln mkdir mkfifo mknod mv pkill rm rmdir
    shred tee touch truncate unlink
    """
)
LOADER: Final = names_of("GLIBC_TUNABLES GCONV_PATH LOCPATH NLSPATH POSIXLY_CORRECT")
LOADER_PREFIXES: Final = ("LD_",)
PATHS: Final = ("/", "./", "../", "~/")  # beginnings of values that are shown


def counted(changes: Changes, program: str) -> Changes:
    """Return the changes that may redirect the program of this name."""
    if program in CLOSED:
        return tuple(
            one for one in changes if one[0] in LOADER or one[0].startswith(LOADER_PREFIXES)
        )
    return tuple(
        (name, value)
        for name, value in changes
        if name not in HARMLESS and not command_limit.is_harmless(name, value or "")
    )


def changes(
    now: Iterable[tuple[str, bytes]], known: Mapping[str, bytes], digest: Callable[[bytes], bytes]
) -> Changes:
    """Compare variables with the digests of the values at the first prompt.

    A name that stands twice counts with its second value too: programs differ in which they use.
    """
    found = dict[tuple[str, str | None], None]()
    names = set[str]()
    for name, value in now:
        if name in names or not hmac.compare_digest(known.get(name, b""), digest(value)):
            found[name, value.decode("utf-8", "backslashreplace")] = None
        names.add(name)
    found |= {(name, None): None for name in known if name not in names}
    return tuple(sorted(found, key=lambda one: (one[0], one[1] or "")))


def shown(counted: Changes) -> str:
    """Return all changes for an approver. Only values that are paths: others may be secrets.

    No name and no value is left out or cut, because the agent chooses them: it could push the one
    that matters out of sight. A question that gets too long cannot be approved. The variables that
    the program has come before those that it lacks.
    """
    has = [
        shlex.quote(f"{name}={value}" if value.startswith(PATHS) else name)
        for name, value in counted
        if value is not None
    ]
    lacks = [f"without {shlex.quote(name)}" for name, value in counted if value is None]
    return ", ".join((*has, *lacks))


def fingerprint(counted: Changes, digest: Callable[[bytes], bytes]) -> str:
    """Return what stands for names and values in an approval, whether they are shown or not."""
    said = repr(counted).encode("utf-8", "backslashreplace")
    return digest(said).hex()
