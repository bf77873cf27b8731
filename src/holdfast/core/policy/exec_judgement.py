"""Commands with open words that the exec gate judges, so no question is needed now (P4). Pure.

At input depth a text is judged, and a part of it cannot be known: `rm "$x"`, `python -c`. In a
contained session every program is judged when it starts, with all its words (`execution.py`), and
all other effects stay inside the walls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.core.shellcode.effects import effect
from holdfast.core.shellcode.facts import Command
from holdfast.core.shellcode.interpreters import is_shell
from holdfast.core.shellcode.places import base, under
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.reasons import Reason

if TYPE_CHECKING:
    from holdfast.core.policy.conditions import Request

# Reasons that the words of an exec settle: the kernel names the program and all its words.
_SETTLED_AT_EXEC: Final = frozenset(("arguments", "place", "code", "stdin", "eval", "elsewhere"))


def judged_at_exec(request: Request, command: Command | None, reasons: Sequence[Reason]) -> bool:
    """The exec gate sees the open words of the text before the effect.

    So an open word of a command is no reason to ask now. Three things are left to ask
    about. A builtin never becomes an exec. Nor does a redirection, but without a share it can
    only write to the workspace and to the session's own directories. A statement for a database
    server takes effect outside of the walls. Of `rm -rf *`, `rm "$x"/*` and `find -exec rm`,
    each exec shows only some of the files. A value that the shell evaluates may contain a builtin:
    that ends at the walls.
    """
    if request.walls is None or request.gate != "exec":
        return False
    codes = {reason.code for reason in reasons}
    if command is None:
        return codes == {"arithmetic"}
    if not command.name:
        return False
    if not (codes or command.open_words):
        return False
    alone = request.walls.shares == ()
    codes -= {"redirect"} if alone else set()
    names, name = programs().names, command.name
    if name in programs().builtins and name not in names.bounded_builtins:
        return alone and not codes
    codes -= {"glob"} if _patterns_are_inside(command, request) else set()
    codes -= {"shaping"} if _shapes_itself_only(command) else set()
    return codes <= _SETTLED_AT_EXEC and not (
        (name in programs().databases and name not in names.local_databases)
        or ("eval" in codes and not is_shell(name))
        or ("elsewhere" in codes and name not in names.inside_session)
        or (not alone and any(r.writes and r.places is None for r in command.redirects))
        or _destroys_what_it_finds(command)
    )


def _patterns_are_inside(command: Command, request: Request) -> bool:
    """Say whether no pattern for written files stands for the content of a whole place of work."""
    walls = request.walls
    own = (walls.workspace, *walls.own) if walls else ()
    whole = [place for place in (request.cwd, request.project, *own) if place]
    patterns = [place for item in command.writes for place in item if place.glob]
    return all(not any(under(top, base(place)) for top in whole) for place in patterns)


def _shapes_itself_only(command: Command) -> bool:
    """Say whether only variables of this program (`PATH=x make`) change what words mean.

    Variables that are set without a program stay set in the shell.
    """
    shaping = {r.detail for r in command.reasons if r.code == "shaping"}
    return command.name not in programs().builtins and shaping <= {*command.assigns}


def named_at_exec(command: Command) -> bool:
    """Say whether the exec gate knows this program by its name.

    These programs come with the system. Other programs may be installed anywhere; then the exec
    gate knows only a path.
    """
    names = programs().names
    return (
        effect(command.name) is not None
        or command.name in names.writers
        or command.name in names.bounded_builtins
    )


def _destroys_what_it_finds(command: Command) -> bool:
    row = effect(command.name)
    if row is None or row.destroys != "always":
        return False
    unknown = [word for word in command.words if word.text is None]
    return any(w.why == "more" or not {"*", "?", "["}.isdisjoint(w.shown) for w in unknown)
