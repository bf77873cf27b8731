"""Terminals of xterm.js, which `scripts/xterm` installs into .cache/xterm."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / ".cache/xterm/node_modules/@xterm/headless"
SCRIPT = Path(__file__).with_name("xtermjs.js")
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a terminal shows. A cell is (text, width, colour, inverse, link)."""

    rows: tuple[tuple[tuple[str, int, int, bool, str], ...], ...]
    history: tuple[str, ...]
    x: int
    y: int
    type: str

    def text(self, y: int) -> str:
        return "".join(cell[0] for cell in self.rows[y]).rstrip()

    @property
    def lines(self) -> list[str]:
        return [self.text(y) for y in range(len(self.rows))]


def shown(jobs: list[tuple[int, int, list[bytes]]]) -> list[Shown]:
    """Feed each (columns, rows, pieces) to its own terminal; skip the test without xterm.js."""
    if not PACKAGE.is_dir() or shutil.which("node") is None:
        pytest.skip("xterm.js is not installed here: see scripts/xterm")
    body = [
        {"cols": cols, "rows": rows, "data": [base64.b64encode(one).decode() for one in pieces]}
        for cols, rows, pieces in jobs
    ]
    ran = subprocess.run(
        ["node", SCRIPT, PACKAGE],
        input=json.dumps(body).encode(),
        capture_output=True,
        timeout=ANSWER_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return [
        Shown(
            tuple(tuple((c[0], c[1], c[2], c[3], c[4]) for c in row) for row in one["rows"]),
            tuple(one["history"]),
            one["x"],
            one["y"],
            one["type"],
        )
        for one in json.loads(ran.stdout)
    ]
