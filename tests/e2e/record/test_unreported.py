"""Originators on an ordinary user's host: the kernel reports no writes and no opens (P3)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.originators.activity import SLACK_S
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user

ordinary = pytest.mark.skipif(os.geteuid() == 0, reason="the kernel reports writes to root")
# Longer than the time in which two acts may both have caused a change.
THINKS = "sleep 0.7"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("eve", "bob")
        for name in ("shared", "apart"):
            place = made.user / name
            place.mkdir()
            (place / "Makefile").write_text("-include part.mk\nall:;@echo made\n")
            (place / "main.sh").write_text("test ! -e lib.sh || . ./lib.sh\n")
            (place / "main.py").write_text("try:\n import helper\nexcept ImportError: pass\n")
        # No act runs close to the change of these files: their author is not in doubt.
        written = time.time()
        eventually(lambda: time.time() > written + 2 * SLACK_S, "the files to be old")
        made.ok("new", "s", "--no-attach", "--cwd", str(made.user))
        made.wait("s", "idle")
        yield made


def run(hf: Installation, who: str, *texts: str) -> list[str]:
    """Runs the lines; returns the originators of the last line."""
    hf.quick("--as", who, "seize", "s")
    for text in (THINKS, *texts, THINKS):
        hf.ok("--as", who, "run", "s", "--", text)
    entries: list[Any] = hf.ok("log", "s", "--json", "--limit", "1000").records
    intent = [e for e in entries if e["content"] == texts[-1] and e["phase"] == "intent"][-1]
    print(who, texts[-1], intent["facts"])  # shown if the test fails
    found: list[str] = intent["originators"]
    return found


@ordinary
def test_p3_a_program_that_may_include_anothers_file_has_an_unknown_originator(
    house: Installation,
) -> None:
    shared, apart = house.user / "shared", house.user / "apart"
    run(house, "eve", f"cd {shared}", "echo 'x=1' > lib.sh; echo 'x = 1' > helper.py")
    run(house, "eve", f"cd {house.user}")
    for command in ("make", "bash main.sh", ". ./main.sh", "python3 main.py"):
        assert "unknown" in run(house, "bob", f"cd {shared}", command), command
        assert "unknown" not in run(house, "bob", f"cd {apart}", command), command
    assert "unknown" not in run(house, "bob", f"cd {shared}", "ls -l"), "ls reads no code"


@ordinary
def test_p3_the_only_running_order_is_the_perhaps_author_of_a_change(house: Installation) -> None:
    place = house.user / "apart"
    run(house, "eve", f"cd {place}", "echo echo hello > calm.sh")
    assert run(house, "bob", "sh calm.sh") == ["eve", "unknown"]
    assert run(house, "bob", "cat calm.sh") == ["eve"]
    gate = house.gate("job")
    run(house, "eve", f"(cat {gate}; echo echo late > late.sh) &")
    run(house, "bob", "echo mine > mine.txt")
    assert run(house, "bob", "cat mine.txt") == ["eve", "unknown"], "eve's job may have written it"
    gate.open()
    run(house, "bob", "wait; test -s late.sh")
    run(house, "bob", "echo mine > mine.txt")
    assert run(house, "bob", "cat mine.txt") == ["eve"], "the directory is eve's choice"


@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_p3_the_same_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(str(Path(__file__)))
