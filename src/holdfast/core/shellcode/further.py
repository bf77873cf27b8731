"""Programs that read further files as instructions: an include, a sourced library, a module (P3).

`further` answers for one command: which files below its directory the program may take for code.
The answer is about names only. Most programs read no further code: `ls`, `grep`, `git`.
"""

from __future__ import annotations

import re
from posixpath import dirname
from typing import Final

from holdfast.core.shellcode.facts import Command
from holdfast.core.shellcode.interpreters import inspect, is_shell
from holdfast.model.words import names_of

PLACES_MAX: Final = 4
ANY: Final = ("",)  # every name ends so
_PYTHON: Final = (".py", ".pyc", ".pth", ".so")
_SCRIPT: Final = (".js", ".mjs", ".cjs", ".ts", ".json", ".node")
_ENDS: Final = (
    (re.compile(r"(?:python|pypy|ipython)[\d.]*"), _PYTHON),
    (re.compile(r"pytest|py\.test|tox|nox"), _PYTHON),
    (re.compile(r"node|nodejs|bun|deno|npm|npx|yarn|pnpm"), _SCRIPT),
    (re.compile(r"perl[\d.]*"), (".pl", ".pm", ".t")),
    (re.compile(r"ruby[\d.]*|jruby|rake|bundle"), (".rb", ".rake")),
    (re.compile(r"(?:php|lua)[\d.]*|Rscript|julia|tclsh|guile"), ANY),
)
_ANY: Final = names_of(
    """
    . source make gmake bmake remake ninja just task cargo go gradle gradlew mvn sbt cmake meson
    scons bazel terraform tofu ansible ansible-playbook foreman honcho
    """
)
_MACHINES_OWN: Final = ("/bin/", "/sbin/", "/usr/", "/lib", "/opt/")


def searched(command: Command, cwd: str | None) -> tuple[str, ...]:
    """Return the directories where such files lie: the working directory, and those of operands."""
    named = (place.path for item in command.paths for place in item if not place.glob)
    found = dict.fromkeys((*filter(None, (cwd,)), *filter(None, map(dirname, named))))
    return tuple(one for one in found if not f"{one}/".startswith(_MACHINES_OWN))[:PLACES_MAX]


def further(command: Command) -> tuple[str, ...] | None:
    """Return the ends of names of files that may be read as code; None: no such file."""
    name = command.name
    if name in _ANY:
        return ANY
    if is_shell(name):
        inner = inspect(name, command.words)
        script = inner is None or inner.text is None
        return ANY if script and command.words else None
    for pattern, ends in _ENDS:
        if pattern.fullmatch(name):
            return ends
    if any(not path.startswith(_MACHINES_OWN) for _, path in command.called):
        return ANY
    return None
