"""`unknown` is rare: ordinary lines of a person, or of two, have known originators (P3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, installation
from tests.support.kernel import silent_about_files
from tests.support.ordinary_user import passes_as_ordinary_user

LINES = r"""
cd project
ls -la
pwd
echo hello
git init -q .
git config user.email ann@example.org
git config user.name ann
git add -A
git commit -q -m first
git status
git log --oneline
git diff
cat main.py
python3 main.py
python3 -c 'print(1)'
make
make test
grep -n def main.py
wc -l main.py
mkdir -p build
touch build/x
cp main.py build/
mv build/x build/y
rm build/y
find . -name '*.py'
x=5; echo $x
export GREETING=hi
env | grep GREETING
for i in 1 2 3; do echo $i; done
date
which python3
test -f main.py
echo data > out.txt
sort out.txt
sed -i s/data/more/ out.txt
cat out.txt
./run.sh
bash run.sh
tar cf build/a.tar main.py
diff main.py build/main.py
cd ..
cd -
ls | wc -l
true
""".strip().splitlines()
BLOCK = 11  # lines before the other person continues


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("bob")
        yield made


def project(hf: Installation, session: str) -> None:
    place = hf.user / session / "project"
    place.mkdir(parents=True)
    files = {
        "main.py": "import helper\ndef main():\n    print(helper.x)\nmain()\n",
        "helper.py": "x = 1\n",
        "Makefile": "all:\n\techo built\ntest:\n\tpython3 main.py\n",
        "run.sh": "#!/bin/sh\necho run\n",
    }
    for name, text in files.items():
        (place / name).write_text(text)
    (place / "run.sh").chmod(0o755)


def unknown(hf: Installation, session: str, *people: str) -> list[Any]:
    """The lines with an unknown originator, after the people have typed all lines in turns."""
    hf.ok("new", session, "--no-attach", "--cwd", str(hf.user / session))
    hf.wait(session, "idle")
    for n, line in enumerate(LINES):
        who = people[n // BLOCK % len(people)]
        if n % BLOCK == 0:
            hf.ok("--as", who, "seize", session)
        assert hf.cli("--as", who, "run", session, "--", line).rc in (0, 1), line
    intents = [
        e
        for e in hf.ok("log", session, "--json", "--limit", "1000").records
        if e["kind"] == "command" and e["phase"] == "intent"
    ]
    assert len(intents) == len(LINES)
    return [(e["content"], e["facts"]) for e in intents if "unknown" in e["originators"]]


def test_p3_ordinary_lines_have_known_originators(house: Installation) -> None:
    """A lone person beside an operator that never gave input; then two people, as root."""
    both = os.geteuid() == 0 and not silent_about_files()
    sessions = {"lone": ("tester",)} | ({"two": ("tester", "bob")} if both else {})
    for session in sessions:
        project(house, session)
    for session, people in sessions.items():
        found = unknown(house, session, *people)
        assert len(found) < len(LINES) * 0.05, found


@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_p3_the_same_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(str(Path(__file__)))
