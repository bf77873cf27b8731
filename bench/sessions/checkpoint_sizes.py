"""Size and time of checkpoints: the first one, the second one, and a restore.

    python -m bench.sessions.checkpoint_sizes [--mb 0,200,1000] [--rounds 3] [--spread]

The program has a heap of random bytes in one half and of small numbers in the other; between two
checkpoints it changes a twentieth of it, in one place, or with `--spread` every twentieth page. 0
MB: an ordinary shell. Times are milliseconds as the host reports them, of a restore of the whole
command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.installation import Installation, installation

HEAP = """
import os, random, sys
size = int(sys.argv[1]) << 20
heap = bytearray(random.Random(1).randbytes(1 << 20) * 0)
for number in range(size >> 21): heap += os.urandom(1 << 20)
heap += b"".join(number.to_bytes(8, "little") for number in range((size - len(heap)) >> 3))
print("READY", flush=True)
for _ in iter(input, ""):
    step, end = (20 * 4096, len(heap)) if sys.argv[2:] else (4096, len(heap) // 20)
    for at in range(0, end, step): heap[at:at + 16] = os.urandom(16)
    print("CHANGED", flush=True)
"""


def begin(hf: Installation, name: str, mb: int, spread: bool) -> None:
    if not mb:
        hf.ready(name, "--contained")
        return
    hf.new(name, "--contained", "--", "/usr/bin/python3", "-c", HEAP, str(mb), *["spread"] * spread)
    hf.wait(name, "text:READY")


def saved(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hf.ok("checkpoint", name, "--json", *args).out)["saved"]
    return found


def measure(hf: Installation, name: str, mb: int, spread: bool) -> dict[str, float]:
    begin(hf, name, mb, spread)
    first = saved(hf, name)
    hf.quick("send", name, "x", "--enter")
    if mb:
        hf.wait(name, "text:CHANGED")
    second = saved(hf, name)
    saved(hf, name, "--stop")
    began = time.monotonic()
    hf.ok("restore", name)
    took = time.monotonic() - began
    hf.ok("end", name)
    hf.ok("forget", name)
    return {
        "stands still": first["frozen_ms"],
        "first": first["took_ms"],
        "second": second["took_ms"],
        "restore": took * 1000,
        "images, MB": first["bytes"] / 1e6,
        "stored, MB": first["added"] / 1e6,
        "second stored, MB": second["added"] / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sessions.checkpoint_sizes")
    parser.add_argument("--mb", default="0,200,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spread", action="store_true")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as place, installation(Path(place)) as hf:
        for mb in map(int, args.mb.split(",")):
            rounds = [
                measure(hf, f"s{mb}-{number}", mb, args.spread) for number in range(args.rounds)
            ]
            values = {key: [one[key] for one in rounds] for key in rounds[0]}
            shown = ", ".join(
                f"{key} {statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
                for key, found in values.items()
            )
            print(f"{mb} MB, load {os.getloadavg()[0]:.1f}: {shown}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
