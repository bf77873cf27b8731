"""How long a session stands still for a fork, and how long the whole command takes.

    python -m bench.sessions.branches [MB ...]        (14, 200 and 1000 by default)

A program with that much memory notes the largest gap between two beats. Each fork makes two
branches, which are discarded. The fourth row has a workspace of 10,000 files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
FILES = 10_000
PROGRAM = """
import os, sys, time
memory = bytearray(os.urandom(1 << 20) * int(sys.argv[1])); worst = 0; last = time.monotonic()
print("READY", flush=True)
while True:
    now = time.monotonic(); worst = max(worst, now - last); last = now
    open("/tmp/worst.new", "w").write(str(worst)); os.replace("/tmp/worst.new", "/tmp/worst")
    time.sleep(0.001)
"""


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [14, 200, 1000]
    with tempfile.TemporaryDirectory() as top:
        env = {**os.environ, "HOLDFAST_HOME": f"{top}/home"}
        place = Path(top, "work")
        place.mkdir()
        (place / "program.py").write_text(PROGRAM)
        print(
            f"load {os.getloadavg()[0]:.0f}\nMB, files: stood still, largest gap (ms); command (s)"
        )
        for size in sizes:
            _trial(env, place, size)
        for number in range(FILES):
            (place / f"{number}").write_text("x" * 500)
        _trial(env, place, sizes[0])
        _holdfast(env, "down")


def _holdfast(env: dict[str, str], *words: str) -> str:
    done = subprocess.run(["holdfast", *words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    return done.stdout


def _trial(env: dict[str, str], place: Path, size: int) -> None:
    program = ("--", "/usr/bin/python3", "program.py", f"{size}")
    made = json.loads(
        _holdfast(env, "new", "--json", "--contained", "--no-attach", "--cwd", str(place), *program)
    )
    _holdfast(env, "wait", made["id"], "--for", "text:READY", "--timeout", "60")
    found = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        said = json.loads(_holdfast(env, "fork", made["id"], "-n", "2", "--json"))
        took = time.monotonic() - began
        gap = float(Path(f"/proc/{made['pid']}/root/tmp/worst").read_text()) * 1000
        found.append(f"{said['frozen_ms']:.0f}, {gap:.0f}; {took:.1f}")
        for one in said["branches"]:
            _holdfast(env, "discard", one["id"])
    print(f"{size}, {len(list(place.iterdir()))}:", " | ".join(found), flush=True)
    _holdfast(env, "end", made["id"])


if __name__ == "__main__":
    main()
