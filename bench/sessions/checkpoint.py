"""The pause of a session that is saved, and the whole of checkpoint and restore beside plain CRIU.

    python -m bench.sessions.checkpoint [--mb 14,200,1024] [--rounds 3] [--load N]

The program is a Python process with a heap of that size. The pause is what the checkpointer
measures: from the first seized process until CRIU has let go of all. Plain CRIU saves the same
program without a session, as root of the machine, to the same kind of directory; its pause is
"frozen time" of its statistics. Holdfast's times are those of the whole command. `--load` starts N
busy processes beside.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.host.runtime import criu
from tests.support.installation import Installation, installation

PYTHON = "/usr/bin/python3"
HEAP = (
    "import sys, signal\n"
    "heap = [bytes([n % 251]) * (1 << 20) for n in range(int(sys.argv[1]))]\n"
    "open(sys.argv[2], 'w').close()\n"
    "print('HEAP ' + 'READY', flush=True)\n"
    "while True: signal.pause()\n"
)
WAIT_S = 120.0
_FROZEN = re.compile(r"Frozen time: (\d+) us")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sessions.checkpoint")
    parser.add_argument("--mb", default="14,200,1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=int, default=0)
    args = parser.parse_args()
    rows = dict[tuple[int, str], list[float]]()
    with (
        tempfile.TemporaryDirectory(prefix="hfb") as base,
        installation(Path(base)) as hf,
        busy(args.load),
    ):
        for mb in map(int, args.mb.split(",")):
            for _ in range(args.rounds):
                for name, value in (*ours(hf, mb), *plain(Path(base), mb)):
                    rows.setdefault((mb, name), []).append(value)
    names = list(dict.fromkeys(name for _, name in rows))
    print("| heap, MB | " + " | ".join(names) + " |\n|---:|" + "---:|" * len(names))
    for mb in dict.fromkeys(mb for mb, _ in rows):
        print(f"| {mb} | " + " | ".join(shown(rows.get((mb, name), [])) for name in names) + " |")
    print(f"(ms; medians and ranges of {args.rounds} rounds, load {os.getloadavg()[0]:.1f})")
    return 0


def shown(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def ours(hf: Installation, mb: int) -> Iterator[tuple[str, float]]:
    (hf.user / "heap.py").write_text(HEAP)
    hf.new("heap", "--contained", "--", PYTHON, "heap.py", str(mb), "ready")
    hf.wait("heap", "text:HEAP READY")
    for stop in ((), ("--stop",)):
        began = time.monotonic()
        saved = hf.ok("checkpoint", "heap", "--json", *stop).json["saved"]
        took = (time.monotonic() - began) * 1000
        if not stop:
            yield "pause", saved["frozen_ms"]
            yield "checkpoint", took
    began = time.monotonic()
    hf.ok("restore", "heap")
    yield "restore", (time.monotonic() - began) * 1000
    hf.end("heap")
    hf.ok("forget", "heap")


def plain(base: Path, mb: int) -> Iterator[tuple[str, float]]:
    if os.getuid():
        return
    tool, ready, images = criu.find(), base / "ready", base / "images"
    ready.unlink(missing_ok=True)
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir()
    one = subprocess.Popen(
        [PYTHON, "-c", HEAP, str(mb), str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        until = time.monotonic() + WAIT_S
        while not ready.exists() and time.monotonic() < until:
            time.sleep(0.01)
        dump = tool.argv("dump", "-t", str(one.pid), "-D", str(images), "--display-stats")
        began = time.monotonic()
        said = subprocess.run([*dump, "--leave-running"], capture_output=True, text=True)
        took = (time.monotonic() - began) * 1000
        if said.returncode or not (found := _FROZEN.search(said.stdout + said.stderr)):
            raise SystemExit(f"plain CRIU failed: {said.stdout} {said.stderr}")
        yield "pause, plain CRIU", int(found[1]) / 1000
        yield "dump, plain CRIU", took
        one.kill()
        one.wait()
        began = time.monotonic()
        restore = tool.argv("restore", "-d", "-D", str(images))
        subprocess.run(restore, check=True, capture_output=True)
        yield "restore, plain CRIU", (time.monotonic() - began) * 1000
        os.kill(one.pid, 9)
    finally:
        one.kill()
        one.wait()


if __name__ == "__main__":
    sys.exit(main())
