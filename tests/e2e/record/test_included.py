"""Files that a program reads on its own have originators too (P3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.kernel import silent_about_files

pytestmark = pytest.mark.skipif(bool(silent_about_files()), reason=silent_about_files())

CASES = {
    "make": ("echo 'all:;@echo made' > part.mk", "Makefile", "include part.mk\n", "make"),
    "source": ("echo 'x=1' > lib.sh", "main.sh", ". ./lib.sh\n", "bash main.sh"),
    "import": ("echo 'x = 1' > helper.py", "main.py", "import helper\n", "python3 main.py"),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("eve", "bob")
        for _, name, text, _ in CASES.values():
            (made.user / name).write_text(text)
        made.ok("new", "s", "--no-attach", "--cwd", str(made.user))
        made.wait("s", "idle")
        yield made


def run(hf: Installation, who: str, text: str) -> None:
    hf.ok("--as", who, "seize", "s")
    hf.ok("--as", who, "run", "s", "--", text)


def outcome(hf: Installation, text: str) -> dict[str, Any]:
    entries = hf.ok("log", "s", "--json").records
    intent = [e for e in entries if e["content"] == text][-1]
    assert "eve" not in intent["originators"]
    found: dict[str, Any] = next(e for e in entries if e["intent"] == intent["seq"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_p3_the_outcome_names_the_author_of_an_included_file(
    house: Installation, case: str
) -> None:
    trap, _, _, command = CASES[case]
    run(house, "eve", trap)
    run(house, "bob", command)
    found = outcome(house, command)
    assert found["originators"] == ["eve"]
    (file,) = found["facts"]["included"]
    assert (file["kind"], file["actor"]) == ("file", "eve")
    assert file["name"] == str(house.user / trap.rpartition(" ")[2])
    assert f"on eve's file {file['name']}" in house.ok("log", "s").out
    assert house.ok("log", "verify", "s").rc == 0


def test_p3_a_typed_line_gets_an_entry_for_an_included_file(house: Installation) -> None:
    run(house, "eve", "echo 'y = 1' > typed.py")
    house.ok("--as", "bob", "seize", "s")
    house.ok("--as", "bob", "send", "s", "python3 -c 'import typed'", "--enter")

    def look() -> list[dict[str, Any]]:
        return [e for e in house.ok("log", "s", "--json").records if e["kind"] == "included"]

    entry = eventually(look, "the entry")[-1]
    assert (entry["actor"], entry["originators"]) == ("bob", ["eve"])
    assert entry["facts"]["shaped"][0]["name"] == str(house.user / "typed.py")


def test_p3_files_of_the_actor_alone_add_nobody(house: Installation) -> None:
    run(house, "bob", "echo 'z = 1' > mine.py; echo 'import mine' > own.py")
    run(house, "bob", "python3 own.py")
    assert "included" not in outcome(house, "python3 own.py")["facts"]


def test_p3_the_shells_own_snapshots_are_no_included_files(house: Installation) -> None:
    # The shell writes its snapshots into the same few files again and again.
    for who in ("eve", "bob"):
        for number in range(9):
            run(house, who, f": {who} {number}")
    entries = house.ok("log", "s", "--json", "--limit", "1000").records
    assert not [e for e in entries if str(house.home) in str(e["facts"])]
