"""Records the picture of the README: `python scripts/record_picture.py`.

The script makes a throw-away installation, types real commands into real terminals, and records
their output. It checks that the shown events happened, and then draws the recording
(`picture_svg.py`). Nothing in the terminals is drawn by hand. Only the captions and the titles of
the terminals are added, and long waits are shortened.

1. A program prints rows, and the daemon is killed. The program goes on, and no row is missing.
2. An agent is held at `rm`. A person approves from another terminal, takes over, and hands back.

The agent here is an operator of the kind agent, whose commands this script types.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from picture_svg import Cast, Scene, draw

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/pictures/holdfast.svg"
COLS, DEADLINE_S, KEY_S = 80, 30.0, 0.035
TITLE = "Holdfast: a session outlives its daemon, and an agent waits at rm for a person"
DETACH = "\x1cd"
ROWS = """#!/usr/bin/env python3
import os, time
row = 0
while True:
    row += 1
    print(f"row {row} of process {os.getpid()}", flush=True)
    time.sleep(0.001)
"""
MISSING = """#!/usr/bin/env python3
import re, sys
found = re.findall(r"row (\\d+) of process (\\d+)\\r", sys.stdin.read())
rows = [int(row) for row, _ in found]
missing = set(range(1, max(rows) + 1)) - set(rows)
print(len(rows), "rows,", len(missing), "missing,", len(rows) - len(set(rows)), "twice, by",
      len({process for _, process in found}), "process")
"""
MAKEFILE = """test:
\t@echo 12 passed
release:
\t@echo 1.3 is released
"""


class Terminal:
    """bash on a terminal of its own; a thread records the output."""

    def __init__(self, title: str, rows: int, prompt: str, env: dict[str, str], cwd: Path) -> None:
        self.cast = Cast(title, COLS, rows)
        self._began = time.monotonic()
        self._text, self._news = "", threading.Condition()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            words = ["bash", "--norc", "--noprofile"]
            shown = f"\\[\\e[1;36m\\]{prompt[:-2]}\\[\\e[0m\\]$ "
            os.execvpe("bash", words, {**env, "PS1": shown})
        size = struct.pack("HHHH", rows, COLS, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self._thread = threading.Thread(target=self._record)
        self._thread.start()
        self.see(r"\$ ")

    def _record(self) -> None:
        pending = b""
        while True:
            try:
                pending += os.read(self._fd, 1 << 16)
            except OSError:
                return
            with self._news:
                text = pending.decode("utf-8", "ignore")
                pending = pending[len(text.encode()) :]
                self.cast.events.append((time.monotonic() - self._began, text))
                self._text += text
                self._news.notify_all()

    def see(self, pattern: str, since: int = 0) -> re.Match[str]:
        """Waits for a regular expression in the output after `since`."""
        with self._news:
            found = self._news.wait_for(
                lambda: re.search(pattern, self._text[since:], re.DOTALL), DEADLINE_S
            )
        if not found:
            raise SystemExit(f"{self.cast.title}: no {pattern!r} in {self._text[since:][-2000:]!r}")
        return found

    @property
    def mark(self) -> int:
        return len(self._text)

    def type(self, text: str, pace: float) -> None:
        for key in text:
            os.write(self._fd, key.encode())
            time.sleep(pace)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._thread.join(DEADLINE_S)
        os.close(self._fd)


class Stage:
    """A throw-away installation, and what is being recorded."""

    def __init__(self, base: Path, short: bool) -> None:
        self.home = base / "ann"
        self.pace = 0.0 if short else 1.0
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "HOLDFAST_HOME": str(base / "hf"),
            "HOLDFAST_AS": "ann",
            "USER": "ann",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        if "PYTHONPATH" in os.environ:
            self.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self.lock = base / "hf/run/host.lock"
        self.home.mkdir()
        (self.home / ".bashrc").write_text("PS1='\\[\\e[1;32m\\]work\\[\\e[0m\\]$ '\n")
        self.scenes: list[Scene] = []
        self.terminals: list[Terminal] = []
        self.facts: list[str] = []

    def holdfast(self, *words: str) -> str:
        done = subprocess.run(
            ["holdfast", *words], env=self.env, cwd=self.home, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"holdfast {' '.join(words)}: {done.stderr}")
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.holdfast(*words, "--json"))

    def pause(self, seconds: float) -> None:
        """For the viewer; the script itself waits only for events."""
        time.sleep(seconds * self.pace)

    def scene(self, *terminals: Terminal) -> None:
        self.terminals += terminals
        self._began = time.monotonic()
        for one in terminals:  # both begin with the prompt
            one.cast.events = [(0.0, "".join(text for _, text in one.cast.events))]
            one._began = self._began
        self.scenes.append(Scene([one.cast for one in terminals], [], 0.0))

    def caption(self, text: str) -> None:
        self.scenes[-1].captions.append((time.monotonic() - self._began, text))

    def type(self, terminal: Terminal, text: str, enter: str = "\r") -> int:
        """Types a line; returns the place in the output before its answer."""
        self.pause(0.6)
        terminal.type(text, KEY_S * self.pace)
        self.pause(0.4)
        mark = terminal.mark
        terminal.type(enter, 0)
        return mark

    def cut(self, seconds: float) -> None:
        self.pause(seconds)
        self.scenes[-1].end = time.monotonic() - self._began

    def check(self, holds: bool, fact: str) -> None:
        if not holds:
            raise SystemExit(f"not true: {fact}")
        self.facts.append(fact)  # goes into the description of the picture

    def close(self) -> None:
        for one in self.terminals:
            one.close()
        if self.lock.exists():
            for session in self.json("ls"):
                self.holdfast("end", session["id"])
            self.holdfast("down")


def survives(stage: Stage) -> None:
    for name, text in (("rows", ROWS), ("missing", MISSING)):
        (stage.home / name).write_text(text)
        (stage.home / name).chmod(0o755)
    stage.holdfast("up", "--detach")
    left = Terminal("ann, attached", 11, "ann$ ", stage.env, stage.home)
    right = Terminal("ann, a second terminal", 10, "ann$ ", stage.env, stage.home)
    stage.scene(left, right)
    stage.caption("A program prints a row each millisecond, in a session")
    mark = stage.type(left, "holdfast new work")
    left.see("work.*\\$ ", mark)
    stage.holdfast("wait", "work", "--for", "idle")
    mark = stage.type(left, "~/rows")
    process = left.see(r"row \d+ of process (\d+)\r", mark)[1]
    stage.pause(2)
    stage.caption("kill -9 the daemon itself, while the program prints")
    before = int(stage.lock.read_text())
    stage.type(right, "kill -9 $(cat $HOLDFAST_HOME/run/host.lock)")
    end = time.monotonic() + DEADLINE_S
    while (after := int(stage.lock.read_text() or before)) == before:
        if time.monotonic() > end:
            raise SystemExit("no new daemon")
        time.sleep(0.02)
    stage.caption("A new daemon takes over; the program has noticed nothing")
    mark = left.mark
    left.see(rf"row \d+ of process {process}\r", mark)
    stage.pause(2.5)
    mark = stage.type(right, "holdfast ls")
    right.see("work.*\\$ ", mark)
    stage.pause(1.5)
    stage.type(left, "", "\x03")
    stage.holdfast("wait", "work", "--for", "idle")
    stage.caption("No output byte is lost or doubled")
    mark = stage.type(right, "holdfast read work | ./missing")
    count = right.see(r"(\d+) rows, 0 missing, 0 twice, by 1 process", mark)[1]
    stage.check(after != before, f"daemon {before} was killed, daemon {after} took over")
    stage.check(int(count) > 0, f"process {process} printed {count} rows, none lost or doubled")
    stage.cut(4)


def held(stage: Stage) -> None:
    shop, releases = stage.home / "work/shop", stage.home / "work/releases"
    shop.mkdir(parents=True)
    (releases / "1.2").mkdir(parents=True)
    (shop / "Makefile").write_text(MAKEFILE)
    stage.holdfast("operator", "add", "builder", "--kind", "agent")
    stage.holdfast(
        *("new", "build", "--contained", "--no-attach", "--size", f"{COLS}x12"),
        *(f"--cwd={shop}", f"--share={releases}:rw"),
    )
    stage.holdfast("wait", "build", "--for", "idle")
    stage.holdfast("run", "build", "--", "PS1='build$ '; clear")
    stage.holdfast("turn", "build", "release")
    stage.holdfast("grant", "builder", "--rights", "execute", "--session", "build")
    agent_env = {**stage.env, "HOLDFAST_AS": "builder"}
    agent = Terminal("builder, an agent", 9, "builder$ ", agent_env, shop)
    ann = Terminal("ann, another terminal", 12, "ann$ ", stage.env, shop)
    stage.scene(agent, ann)
    stage.caption("An agent works in a session of its own, behind a wall")
    mark = stage.type(agent, "holdfast run build -- make test")
    agent.see(r"12 passed.*\$ ", mark)
    stage.pause(1)
    stage.caption("rm outside of its directory is held, before it starts")
    mark = stage.type(agent, "holdfast run build -- rm -rf ../releases/1.2")
    question = agent.see(r"holdfast approve (q\w+)", mark)[1]
    stage.pause(3)
    stage.check((releases / "1.2").is_dir(), "rm was held before it deleted anything")
    stage.caption("A person decides, from any other terminal")
    mark = stage.type(ann, f"holdfast approve {question[:4]}")
    ann.see(r"\[y/N\]|\? ", mark)
    stage.pause(2)
    answered = agent.mark
    mark = stage.type(ann, "y")
    agent.see(r"builder\x1b\[0m\$ ", answered)
    ann.see(r"ann\x1b\[0m\$ ", mark)
    stage.check(not (releases / "1.2").exists(), f"{question} was approved, and rm ran once")
    stage.pause(2)
    stage.caption("The person takes over; the agent is refused meanwhile")
    mark = stage.type(ann, "holdfast attach build --take")
    ann.see(r"build\$ ", mark)
    mark = stage.type(agent, "holdfast run build -- make release")
    agent.see(r"held by ann.*builder\x1b\[0m\$ ", mark)
    stage.pause(1.5)
    mark = stage.type(ann, "mkdir -v ../releases/tested")
    ann.see("created directory", mark)
    stage.facts.append("the agent was refused while ann had the turn")
    stage.pause(1.5)
    stage.caption("... and hands back")
    mark = stage.type(ann, "", DETACH)
    ann.see(r"ann\x1b\[0m\$ ", mark)
    mark = stage.type(ann, "holdfast turn build hand builder")
    ann.see(r"ann\x1b\[0m\$ ", mark)
    mark = stage.type(agent, "holdfast run build -- make release")
    agent.see(r"1.3 is released.*\$ ", mark)
    stage.pause(2)
    stage.caption("The record: who did what, with which verdict, signed")
    mark = stage.type(ann, "clear; holdfast log build --agent builder")
    ann.see(r"make release.*ann\x1b\[0m\$ ", mark)
    stage.holdfast("log", "verify", "build")
    stage.facts.append("the record of the session verifies")
    stage.cut(4)


def casts(stage: Stage, place: Path) -> None:
    """The recordings as asciicast v2, for other players."""
    place.mkdir(parents=True, exist_ok=True)
    for number, cast in enumerate(one for scene in stage.scenes for one in scene.casts):
        head = {"version": 2, "width": cast.cols, "height": cast.rows, "title": cast.title}
        lines = [head, *([round(at, 3), "o", text] for at, text in cast.events)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (place / f"{number}.cast").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURE)
    parser.add_argument("--short", action="store_true", help="type at once, without pauses")
    parser.add_argument("--casts", type=Path, help="write the recordings here, as asciicast v2")
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    stage = Stage(base, args.short)
    try:
        survives(stage)
        held(stage)
    finally:
        stage.close()
        shutil.rmtree(base, ignore_errors=True)
    if args.casts:
        casts(stage, args.casts)
    facts = "; ".join(stage.facts)
    args.picture.write_text(draw(stage.scenes, TITLE, f"Recorded. {facts}."))
    print(f"{args.picture}: {args.picture.stat().st_size / 1000:.0f} kB", *stage.facts, sep="\n")


if __name__ == "__main__":
    main()
