"""Reconnecting at any byte, also inside a sequence of which the viewer must not see the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.model.limits import SNAPSHOT_QUIET_S
from tests.support.busy_machine import stripped
from tests.support.checkers.history import Output, check_output
from tests.support.clients import Attached, Lean
from tests.support.stage import Stage

CLIPBOARD = (b"\x1b]52;c;", b"QUJD" * 40_000, b"\x07")  # never shown to viewers
TITLE = (b"\x1b]2;", b"t" * 3000, b"\x07")  # passes
ORDER = (
    b"\x1b[8;",
    b"0" * 50 + b"24;80",
    b"t",
)  # to resize the window: removed, held back until its end
COLOUR = (b"\x1b[38;2;", b"0" * 20 + b"255;128;0", b"mcolour\x1b[0m")
PARTS = {"clipboard": CLIPBOARD, "title": TITLE, "order": ORDER, "colour": COLOUR}

PROGRAM = """
import os, sys, tty
tty.setraw(0)
def out(data):
    while data: data = data[os.write(1, data):]
out(b"begin|")
for part in ({},):
    os.read(0, 1)
    out(part)
out(b"|end")
os.read(0, 1)
"""


def halves(parts: tuple[bytes, bytes, bytes]) -> list[bytes]:
    """The sequence, cut in three places, one of them inside its body."""
    opener, body, closer = parts
    cut = len(body) // 2
    return [opener + body[:1], body[1:cut], body[cut:] + closer]


@pytest.mark.parametrize("name", list(PARTS))
@pytest.mark.parametrize("how", ["cut", "kill", "both"])
def test_s4_resuming_inside_a_sequence(stage: Stage, name: str, how: str) -> None:
    """The viewer is away while the next part comes, or the host is, or both are."""
    stage.start_host()
    pieces = halves(PARTS[name])
    stage.new(
        "part",
        [sys.executable, "-I", "-S", "-c", PROGRAM.format(", ".join(_python(p) for p in pieces))],
    )
    typist, viewer = Lean(stage, "part").attached(), Lean(stage, "part").attached()
    client = Attached(stage, "part", eye=False).attached()
    raw, mark = b"begin|", len(client.data)
    for n, piece in enumerate(pieces):
        stage.pump.until(
            lambda: stage.session("part")["output"]["end"] >= len(raw),
            f"{len(raw)} bytes are there",
        )
        if n:
            stage.pump.until(
                lambda: viewer.live and (viewer.position or 0) + 4096 >= len(raw),
                "the viewer has them",
            )
        if how != "kill":
            viewer.away = True
            viewer.cut()
        if how != "cut":
            stage.kill_host()
            stage.start_host(wait=False)
        stage.pump.until(lambda: typist.live, "the typist is back")
        typist.type(b"k")
        raw += piece
        stage.pump.until(
            lambda: stage.session("part")["output"]["end"] >= len(raw),
            f"{len(raw)} bytes are there",
        )
        viewer.away = False
        stage.pump.until(lambda: viewer.live, "the viewer is back")
    raw += b"|end"
    stage.pump.until(
        lambda: viewer.position == len(raw),
        lambda: f"all is shown: {viewer.position} of {len(raw)}",
    )
    assert [
        str(f)[:500] for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))
    ] == []
    stage.pump.until(lambda: b"|end" in client.data, "the terminal shows the end")
    shown = bytes(client.data[mark:])
    assert stripped(raw).removeprefix(b"begin|") in shown.replace(b"begin|", b"")


def _python(data: bytes) -> str:
    """An expression for bytes that are mostly one repetition."""
    for unit in (b"QUJD", b"UJDQ"):
        count = data.count(unit)
        if count > 1000 and unit * count in data:
            head, _, tail = data.partition(unit * count)
            return f"{head!r} + {unit!r} * {count} + {tail!r}"
    return repr(data)


@pytest.mark.parametrize("name", ["order", "clipboard"])
def test_s4_a_shell_whose_screen_was_kept_inside_a_sequence(stage: Stage, name: str) -> None:
    """The host's own offset, stored with the screen, is inside a sequence when the host dies."""
    stage.start_host()
    pieces = halves(PARTS[name])
    program = Path(stage.directory, "program.py")
    program.write_text(PROGRAM.format(", ".join(_python(p) for p in pieces)))
    stage.new("sh", ["bash"])
    stage.pump.until(
        lambda: stage.view("sh")["waiting"]["for"] == "idle", "the shell is at its prompt"
    )
    viewer = Lean(stage, "sh").attached()
    viewer.type(f"{sys.executable} -I -S {program}\r".encode())
    stage.pump.until(
        lambda: any("begin|" in line for line in stage.view("sh")["lines"]), "the program has begun"
    )
    begun = int(stage.session("sh")["output"]["end"]) - len(b"begin|")
    raw = b"begin|"
    for piece in pieces:
        stage.pump.until(
            lambda: stage.session("sh")["output"]["end"] >= begun + len(raw),
            f"{len(raw)} bytes are there",
        )
        stage.pump.during(1.5 * SNAPSHOT_QUIET_S)  # until the screen is stored
        stage.kill_host()
        stage.start_host()
        stage.pump.until(lambda: viewer.live, "the viewer is back")
        viewer.type(b"k")
        raw += piece
    raw += b"|end"
    stage.pump.until(
        lambda: (viewer.position or 0) >= begun + len(raw),
        lambda: f"all is shown: {viewer.position} of {begun + len(raw)}",
    )
    shown = b"".join(one.data for one in viewer.log if isinstance(one, Output))
    assert shown.endswith(b"begin|" + stripped(raw).removeprefix(b"begin|")), shown[-300:]
