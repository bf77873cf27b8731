"""A command line that prints its exit code and the heavy modules it has loaded, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parents[1]
# Each of these costs a command 1 to 10 ms; the bare interpreter takes 10.
HEAVY = (
    "argparse",
    "asyncio",
    "base64",
    "collections",
    "contextlib",
    "cryptography.hazmat.primitives",
    "dataclasses",
    "enum",
    "functools",
    "google.protobuf",
    "hashlib",
    "hmac",
    "importlib",
    "inspect",
    "json",
    "logging",
    "random",
    "re",
    "secrets",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "typing",
)
COMMAND = f"""
import sys
from holdfast.faces.cli.main import run
code = run(sys.argv[1:])
print(code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


def argv(*words: str) -> list[str]:
    return [sys.executable, "-S", "-c", COMMAND, *words]


def environ(more: Mapping[str, str]) -> dict[str, str]:
    """The environment for `argv`: without `site` the interpreter needs its paths."""
    return {**more, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])}
