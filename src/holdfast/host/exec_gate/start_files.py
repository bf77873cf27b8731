"""The author of the programs that a shell starts from its start files, before the first prompt.

These programs belong to no act: no operator has typed yet. They do what the start files say, so
they count as the doing of the author of these files:

1. An operator that is not a person and is recorded as a writer of a start file, perhaps only.
2. Otherwise the operator that made the session, if that is not a person. An exception are start
   files that were all written by people, as the record of writers has it.
3. Otherwise people.

The files are looked up when such a program starts, so after the shell has read them. Not noticed:
files that the start files read in turn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.host.acts.act_context import home_of
from holdfast.host.session.session import Session

LOOK_S: Final = 5.0
_BASH: Final = (".bashrc", ".bash_profile", ".bash_login", ".profile")
_ZSH: Final = (".zshenv", ".zprofile", ".zshrc", ".zlogin")
_HOME: Final = {"bash": _BASH, "zsh": _ZSH, "posix": (".profile",)}

FileAuthors = Callable[[Session, Iterable[str]], Awaitable[tuple[Shaped, ...]]]
KindOf = Callable[[str], str | None]


async def author_of(session: Session, authors: FileAuthors, kind_of: KindOf) -> str | None:
    """The operator behind the start files of a session's shell; None: people."""
    home, maker = home_of(session), str(session.label.get("by"))
    names = _HOME.get(session.commands.kind or "", ())
    files = [f"{home}/{name}" for name in names] if home else []
    try:
        existing = await asyncio.wait_for(
            session.in_thread(_existing, session.record.root_pid, files), LOOK_S
        )
        found = await authors(session, existing)
    except (TimeoutError, OSError):
        existing, found = (), ()
    return author(maker, existing, found, kind_of)


def author(
    maker: str, files: Sequence[str], found: Sequence[Shaped], kind_of: KindOf
) -> str | None:
    """The decision. `files`: the start files; `found`: their known authors."""
    known = [one for one in found if one.actor != UNKNOWN]
    for one in known:
        if kind_of(one.actor) != "human":
            return one.actor
    if kind_of(maker) == "human":
        return None
    by_people = {one.name for one in known} - {one.name for one in found if one not in known}
    return None if files and all(file in by_people for file in files) else maker


def _existing(root: int, files: Sequence[str]) -> tuple[str, ...]:
    """Those of the files that the session's first process can see."""
    return tuple(file for file in files if os.path.lexists(f"/proc/{root}/root{file}"))
