"""How Holdfast starts a module of its own as a program.

`python -m` looks for the module in the working directory first. A person may work in a directory
that code of a contained session fills, so that directory must not count: -P leaves it out.
"""

from __future__ import annotations

import sys


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs this module, from the installation of this process."""
    return [sys.executable, "-P", "-m", name, *arguments]


def lean(package: str, *arguments: str) -> list[str]:
    """The command that runs a package of Holdfast without site packages; it starts sooner."""
    path = f"{__file__.rsplit('/', 2)[0]}/{package}/__main__.py"
    return [sys.executable, "-I", "-S", "-X", "utf8", path, *arguments]
