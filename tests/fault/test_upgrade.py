"""An upgrade under live sessions: a host of an earlier build is replaced by today's code (S4).

The earlier build is a wheel of one commit of the repository's history, installed into an
environment of its own. Sessions are started with it. Then pip installs today's wheel in its place,
and `holdfast up` replaces the host: keepers, clients and database are those of the earlier build.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import __version__
from tests.support.commands.wheels import Environment, build
from tests.support.installation import (
    DEADLINE_S,
    SOURCE,
    Installation,
    alive,
    eventually,
    installation,
)

EARLIER = "f890d1d"  # the last commit before src/ was sorted into rooms
RELEASE = "0.0.1"  # the version of the earlier build, so that `up` sees another release
NUMBERS = 3000  # printed by a session, one per line, before, during and after the upgrade


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the earlier build."""
    got = subprocess.run(["git", "archive", EARLIER], cwd=SOURCE.parent, capture_output=True)
    if got.returncode:
        pytest.skip(f"the history has no commit {EARLIER}: {got.stderr.decode().strip()}")
    place = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", place], input=got.stdout, check=True)
    for file in (place / "pyproject.toml", place / "src/holdfast/__init__.py"):
        text = file.read_text()
        assert f'"{__version__}"' in text
        file.write_text(text.replace(f'"{__version__}"', f'"{RELEASE}"', 1))
    return build(place, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the present source."""
    return build(SOURCE.parent, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory, earlier: Path) -> Environment:
    """An environment with the earlier build."""
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.install(earlier)
    return made


@pytest.fixture
def hf(
    tmp_path_factory: pytest.TempPathFactory, environment: Environment
) -> Iterator[Installation]:
    """An installation that runs the build which is in the environment."""
    with installation(tmp_path_factory.mktemp("upgrade")) as made:
        made.python = str(environment.python)
        made.env["PATH"] = f"{environment.python.parent}:{made.env['PATH'].partition(':')[2]}"
        del made.env["PYTHONPATH"]
        assert made.ok("up", "--detach", "--json").json["release"] == RELEASE
        yield made


@pytest.fixture
def upgrade(hf: Installation, environment: Environment, today: Path) -> Callable[[], None]:
    """Installs today's build in place of the earlier one and runs `up`, as an operator does."""

    def upgraded() -> None:
        before = hf.host_pid
        environment.install(today)
        assert hf.ok("up", "--detach", "--json").json["release"] == __version__
        assert hf.ask("ping")["release"] == __version__
        assert hf.host_pid == before or not alive(before)

    return upgraded


def pids(hf: Installation) -> dict[str, int]:
    """The first process of each session that runs."""
    return {s["name"]: s["pid"] for s in hf.ok("ls", "--json").json}


def started_by(hf: Installation, session: str, words: str) -> tuple[str, str]:
    """The operator and the act that started the process with that command line."""
    processes = hf.ok("graph", session, "--json").json["processes"]
    [found] = [p for p in processes if " ".join(p["argv"]) == words]
    return found["actor"], found["act"]


def test_s4_sessions_of_an_earlier_build_go_on(
    hf: Installation, upgrade: Callable[[], None], tmp_path: Path
) -> None:
    hf.ok("new", "work", "--", "bash")
    hf.ok("new", "box", "--contained", "--", "bash")
    hf.ok("new", "stood", "--", "sh", "-c", "while :; do echo tick; sleep 0.01; done")
    begin, go_on = hf.gate("begin"), hf.gate("go_on")
    loop = "while [ $i -lt {} ]; do i=$((i+1)); echo n$i; done"
    half, rest = loop.format(NUMBERS // 2), loop.format(NUMBERS)
    script = f"i=0; echo ready; cat {begin}; {half}; cat {go_on}; {rest}; read end"
    hf.ok("new", "count", "--", "sh", "-c", script)
    terminal = hf.attach("count")
    terminal.see("ready")
    begin.open()
    terminal.expect(f"n{NUMBERS // 2}\r\n")
    hf.ok("run", "work", "--", "kept=before; sleep 1000 & true")
    hf.ok("run", "box", "--", "kept=inside")
    hf.ok("send", "box", "tr")  # half a line: the earlier host writes a note about it
    hf.ok("send", "box", "ue", "--enter")
    hf.ok("halt", "stood")
    origin = started_by(hf, "work", "sleep 1000")
    halted = next(s for s in hf.ok("ls", "--json").json if s["name"] == "stood")
    before, keepers = pids(hf), sorted(hf.keepers())
    assert [*hf.home.glob("run/s/*/halfline")], "a note where programs of the session can write"
    assert before.keys() == {"work", "box", "stood", "count"}

    upgrade()
    go_on.open()
    terminal.expect(f"n{NUMBERS}\r\n")

    assert pids(hf) == before and sorted(hf.keepers()) == keepers
    assert not [*hf.home.glob("run/s/*/halfline")]
    told = [int(n) for n in re.findall(rb"n(\d+)\r\n", terminal.output)]
    assert told == list(range(1, NUMBERS + 1)), "the attached client missed or repeated output"
    kept = [int(n) for n in re.findall(rb"n(\d+)\r\n", hf.ok("read", "count", "--from", "0").raw)]
    assert kept == list(range(1, NUMBERS + 1)), "the session lost or repeated output"
    terminal.send(b"\r")
    assert terminal.wait() == 0

    assert hf.ok("run", "work", "--", "echo $kept; jobs | grep -c sleep").out == "before\n1\n"
    assert hf.ok("run", "box", "--", "echo $kept").out == "inside\n"
    assert not [*hf.home.glob("run/r/*")], "their shells read the files in the old place"
    stood = hf.get("stood")
    assert stood["state"] == "halted" and stood["output"]["end"] == halted["output"]["end"]
    hf.ok("resume", "stood")
    eventually(
        lambda: hf.get("stood")["output"]["end"] > stood["output"]["end"],
        "the halted session goes on",
    )

    file = tmp_path / "record"
    for name in ("work", "box"):
        assert hf.ok("log", "verify", name, "--json").json["ok"] is True
        file.write_bytes(hf.ok("log", "export", name).raw)
        assert hf.ok("log", "verify", str(file), "--json").json["ok"] is True
        contents = [e["content"] for e in hf.ok("log", name, "--json").records]
        assert any("kept=" in str(c) for c in contents), "the record of the earlier host is shown"
    assert started_by(hf, "work", "sleep 1000") == origin, "which act started it is still known"


def test_p4_an_approval_that_was_asked_for_before_is_given_after(
    hf: Installation, upgrade: Callable[[], None]
) -> None:
    hf.ok("operator", "add", "ann", "--kind", "human")
    hf.ok("grant", "ann", "--rights", "admin")
    hf.ok("operator", "add", "bot", "--kind", "agent")
    hf.ok("grant", "bot", "--rights", "execute,observe")
    hf.ok("new", "lab", "--contained", "--cwd", str(hf.user), "--", "bash")
    held = hf.start("--as", "bot", "run", "lab", "--", "rm -rf /srv/precious; echo deleted")

    def waiting() -> list[dict[str, str]]:
        found: list[dict[str, str]] = hf.ok("--as", "ann", "approvals", "--json").json
        return found

    [asked] = eventually(waiting, "the question")
    upgrade()
    [question] = eventually(waiting, "the question, from the new host")
    assert question["text"] == asked["text"] and question["operator"] == "bot"
    hf.ok("--as", "ann", "approve", question["id"], "--yes", "--binding", question["binding"])
    out, err = held.communicate(timeout=DEADLINE_S)
    assert (held.returncode, out) == (0, b"deleted\n"), err
    assert hf.ok("log", "verify", "lab", "--json").json["ok"] is True
