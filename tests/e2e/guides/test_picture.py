"""The moving picture of the README shows events that happen on a real installation (M)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.support.installation import SOURCE

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs/pictures/holdfast.svg"
MOST_BYTES = 300_000  # a page on a code host loads it at once
SVG = "{http://www.w3.org/2000/svg}"
SHOWN = (  # in the terminals; numbers and ids differ from run to run
    r"kill -9 \$\(cat \$HOLDFAST_HOME/run/host\.lock\)",
    r"row \d+ of process \d+",
    r"\d+ rows, 0 missing, 0 twice, by 1 process",
    r"holdfast run build -- rm -rf \.\./releases/1\.2",
    r"holdfast: waits for approval",
    r"approve this, once\? \[y/N\] y",
    r"approved q\w+: builder: rm -rf \.\./releases/1\.2",
    r"holdfast attach build --take",
    r"held by ann until released",
    r"holdfast turn build hand builder",
    r"1\.3 is released",
)
TOLD = (
    r"daemon (\d+) was killed, daemon (?!\1\b)\d+ took over",
    r"process \d+ printed \d+ rows, none lost or doubled",
    r"rm was held before it deleted anything",
    r"q\w+ was approved, and rm ran once",
    r"the agent was refused while ann had the turn",
    r"the record of the session verifies",
)


def drawn(picture: Path) -> tuple[str, str]:
    """The text of all rows, one per line, and the description."""
    tree = ElementTree.parse(picture)
    rows = tree.findall(f"{SVG}defs/{SVG}g")
    texts = ["".join(one.text or "" for one in row.iter(f"{SVG}text")) for row in rows]
    return "\n".join(texts), tree.findtext(f"{SVG}desc") or ""


def missing(patterns: tuple[str, ...], text: str) -> list[str]:
    """Without spaces: the picture places words, and leaves out the blanks between them."""
    bare = text.replace(" ", "")
    return [one for one in patterns if not re.search(one.replace(" ", ""), bare)]


def test_m_the_picture_is_a_recording(tmp_path: Path) -> None:
    """Recorded again, without pauses: the same commands have the same outcomes."""
    again, casts = tmp_path / "again.svg", tmp_path / "casts"
    words = [str(again), "--short", "--casts", str(casts)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/record_picture.py"), *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text, told = drawn(again)
    assert missing(TOLD, told) == []
    recorded = ""
    for cast in sorted(casts.iterdir()):
        head, *events = map(json.loads, cast.read_text().splitlines())
        assert head["version"] == 2 and all(kind == "o" for _, kind, _ in events)
        recorded += "".join(data for _, _, data in events)
    plain = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x1b]*\x1b\\)", "", recorded)
    assert missing(SHOWN, plain) == []
    assert missing(SHOWN[1:2], text) == [], "the rows are drawn"


def test_m_the_readme_shows_that_recording() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
    assert PICTURE.stat().st_size < MOST_BYTES
    text, told = drawn(PICTURE)
    assert missing(SHOWN, text) == [] and missing(TOLD, told) == []
    assert "<script" not in PICTURE.read_text()
