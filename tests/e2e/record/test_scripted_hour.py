"""Two people and an agent work in one shell, with traps (P3).

An hour of work is compressed: a pause of a person is a short `sleep` in the session. Every entry
names the right actor, and its outcome has the exit code that the caller got. Its originators are
right, or `unknown` is among them; no other operator is named. On ordinary lines `unknown` is rare.
The same holds on an ordinary user's host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import Installation, installation
from tests.support.kernel import silent_about_files
from tests.support.ordinary_user import passes_as_ordinary_user

THINKS = "sleep 0.7"  # longer than the time in which two acts may both have caused a change
UNKNOWN_MAX = 0.05
# The gate is not the subject: it would ask about the agent's traps.
ALLOW = 'version = 1\n[[rule]]\nname = "all"\nverdict = "allow"\nbecause = "yes"\n'
ALLOW += 'when = { unresolvable = "any" }\n'

ORDINARY = (
    (
        "ann",
        """
pwd
ls -la
git init -q .
git config user.email a@example.org
git status
git config user.name ann
git add -A
git commit -q -m first
git log --oneline
cat main.py
python3 main.py
make
make test
grep -n def main.py
""",
    ),
    (
        "bob",
        """
ls
wc -l main.py
git diff
find . -name '*.py'
echo note > notes.txt
cat notes.txt
sort notes.txt
date
which python3
test -f main.py
ls | wc -l
git log -1
git branch
true
""",
    ),
    (
        "bot",
        """
ls
cat main.py
grep -c print main.py
git status
git diff --stat
head -3 Makefile
wc -c main.py
mkdir -p build
cp main.py build/
ls build
stat main.py
python3 main.py
""",
    ),
    (
        "ann",
        """
ls -la
git status
head -1 main.py
uname
id -un
printf done
test -d build
for i in 1 2 3; do echo $i; done
x=5; echo $x
python3 -c 'print(1)'
git diff
git log --oneline
du -s .
tail -1 main.py
""",
    ),
)

# The trap and its author; the lines, of which the last runs into the trap, and their actor; a line
# that removes it.
TRAPS = {
    "alias": ("bot", "alias greet='echo trapped'", "ann", "greet", "unalias greet"),
    "include": ("bot", "echo 'all:;@echo trapped' > part.mk", "bob", "make -f with.mk", "true"),
    "sourced": ("bob", "echo 'echo trapped' > lib.sh", "ann", ". ./lib.sh", "true"),
    "script": ("bot", "echo 'echo trapped' > tool.sh", "ann", "bash tool.sh", "true"),
    "nested": ("bob", "echo 'echo trapped' > inner.sh", "ann", "bash outer.sh", "true"),
    "module": ("bot", "echo 'print(1)' > trap.py", "bob", "python3 -c 'import trap'", "true"),
    "function": ("ann", "greet() { echo trapped; }", "bob", "greet", "unset -f greet"),
    "variable": ("bob", "export TRAPPED=1", "ann", "env", "unset TRAPPED"),
    "path": (
        "bot",
        "mkdir shim; echo 'echo trapped' > shim/free; chmod +x shim/free; PATH=$PWD/shim:$PATH",
        "bob",
        "free",
        "PATH=${PATH#*:}",
    ),
    "job": ("bot", "(sleep 1; echo 'echo late' > late.sh) & ", "ann", "wait\nbash late.sh", "true"),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        (made.home / "policy.toml").write_text(ALLOW)
        made.people("ann", "bob")
        made.people("bot", kind="agent")
        place = made.user / "project"
        place.mkdir()
        for name, text in {
            "main.py": "import helper\ndef main():\n    print(helper.x)\nmain()\n",
            "helper.py": "x = 1\n",
            "Makefile": "all:\n\techo built\ntest:\n\tpython3 main.py\n",
            "with.mk": "-include part.mk\n",
            "outer.sh": ". ./inner.sh\n",
        }.items():
            (place / name).write_text(text)
        made.ok("--as", "ann", "new", "s", "--no-attach", "--cwd", str(place))
        made.wait("s", "idle")
        yield made


def work(hf: Installation, who: str, *lines: str) -> list[int]:
    """The exit code of each line."""
    hf.quick("--as", who, "seize", "s")
    done = [hf.attempt("--as", who, "run", "s", "--json", "--", line) for line in lines]
    assert all(one.rc in (0, 1) for one in done), (who, lines, done)
    return [one.rc for one in done]


def entries(hf: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hf.attempt("log", "s", "--json", "--limit", "1000").records
    return found


def of_line(found: list[dict[str, Any]], line: str) -> tuple[str, set[str]]:
    """The actor of the last such line, and all originators that the record names for it."""
    intent = [e for e in found if e["content"] == line and e["phase"] == "intent"][-1]
    after = [e for e in found if e["intent"] == intent["seq"]]
    return intent["actor"], {name for e in (intent, *after) for name in e["originators"]}


def test_p3_ordinary_lines_of_three_operators_are_rarely_unknown(house: Installation) -> None:
    codes = [
        code
        for who, text in ORDINARY
        for code in work(house, who, THINKS, *text.strip().splitlines(), THINKS)
    ]
    lines = [e for e in entries(house) if e["kind"] == "command" and e["phase"] == "intent"]
    ordinary = [e for e in lines if e["content"] != THINKS]
    assert [e["actor"] for e in ordinary] == [
        who for who, text in ORDINARY for _ in text.strip().splitlines()
    ]
    unknown = [(e["actor"], e["content"]) for e in ordinary if "unknown" in e["originators"]]
    assert len(unknown) < UNKNOWN_MAX * len(ordinary), unknown
    after = {e["intent"]: e for e in entries(house) if e["phase"] == "outcome"}
    outcomes = [after[e["seq"]] for e in lines]
    assert [(e["outcome"], e["facts"]["exit_code"]) for e in outcomes] == [
        ("applied", code) for code in codes
    ]
    for e in ordinary:
        # Only ann's repository and the compiled modules of her first run decide about other lines.
        hers = {"ann"} if e["content"].startswith(("git", "python3")) else set()
        named = {*e["originators"], *after[e["seq"]]["originators"]} - {"unknown"}
        assert named <= hers, (e, named)


@pytest.mark.parametrize("trap", TRAPS)
def test_p3_the_author_of_a_trap_is_named_or_unknown(house: Installation, trap: str) -> None:
    author, made, victim, text, removed = TRAPS[trap]
    lines = text.splitlines()
    work(house, author, made)
    work(house, victim, *lines)
    actor, originators = of_line(entries(house), lines[-1])
    right = {author} if os.geteuid() == 0 and not silent_about_files() else {author, "unknown"}
    assert actor == victim and right & originators, originators
    assert originators <= {author, "unknown"}, "an operator without a part in it is named"
    work(house, author, removed)


def test_p3_a_line_that_another_operator_began_names_both(house: Installation) -> None:
    house.quick("--as", "ann", "seize", "s")
    house.quick("--as", "ann", "send", "s", "echo half")
    house.quick("--as", "bob", "seize", "s")
    house.quick("--as", "bob", "send", "s", " whole", "--enter")
    house.wait("s", "idle")
    entered = [e for e in entries(house) if e["actor"] == "bob" and e["kind"] != "command"]
    assert any({"ann", "unknown"} & {*e["originators"]} for e in entered), entered


@pytest.mark.skipif(os.geteuid() != 0, reason="this is the run as an ordinary user")
def test_p3_the_same_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(str(Path(__file__)))
