"""The speed of file transfers on loopback, beside scp.

    python -m bench.sessions.transfer [--mb 100] [--rounds 3]

Each figure is megabytes per second of a whole command, its start included: `holdfast files get` and
`put` on this machine and through a relay, and scp through a private sshd. Holdfast waits until the
file is on the disk and compares SHA-256; scp does neither. rsync takes part if it is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import programs
from bench.peers import Holdfast, Relayed, SshTmux

SESSION = "files"
COMMAND_S = 600.0
Copy = Callable[[str, str, str], list[str]]  # get or put, remote path, local path


def scp(peer: SshTmux) -> Copy:
    def argv(act: str, remote: str, local: str) -> list[str]:
        there = f"there:{remote}"
        return peer.copy_argv(*((there, local) if act == "get" else (local, there)))

    return argv


def rsync(peer: SshTmux) -> Copy:
    def argv(act: str, remote: str, local: str) -> list[str]:
        *options, source, target = scp(peer)(act, remote, local)
        shell = " ".join(["ssh", *options[2:]]).replace(" -P ", " -p ")
        return ["rsync", "--whole-file", "-e", shell, source, target]

    return argv


def files(peer: Holdfast | Relayed) -> Copy:
    def argv(act: str, remote: str, local: str) -> list[str]:
        return peer.files_argv(
            act, SESSION, *((remote, local) if act == "get" else (local, remote))
        )

    return argv


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sessions.transfer")
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    peers: list[Holdfast | Relayed | SshTmux] = [SshTmux(), Holdfast(), Relayed()]
    try:
        for line in table(measured(peers, args.mb, args.rounds)):
            print(line)
    finally:
        for peer in peers:
            if isinstance(peer, Holdfast):
                peer.end(SESSION)
            peer.shut_down()
    return 0


def measured(
    peers: list[Holdfast | Relayed | SshTmux], mb: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """By tool and direction: the megabytes per second of each round."""
    ways: dict[str, tuple[Copy, dict[str, str]]] = {}
    for peer in peers:
        if isinstance(peer, SshTmux):
            ways["scp"] = scp(peer), peer.environ
            if shutil.which("rsync"):
                ways["rsync"] = rsync(peer), peer.environ
        else:
            peer.start(SESSION, programs.IDLE)
            ways[peer.name] = files(peer), peer.environ
    found: dict[str, dict[str, list[float]]] = {name: {"get": [], "put": []} for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(os.urandom(mb * 1_000_000))
        for _ in range(rounds):
            for name, (copy, environ) in ways.items():
                for act, figures in found[name].items():
                    target.unlink(missing_ok=True)
                    first, second = (source, target) if act == "get" else (target, source)
                    begin = time.monotonic()
                    subprocess.run(
                        copy(act, str(first), str(second)),
                        env=environ,
                        check=True,
                        timeout=COMMAND_S,
                        stdout=subprocess.DEVNULL,
                    )
                    figures.append(mb / (time.monotonic() - begin))
                    assert target.stat().st_size == source.stat().st_size, name
    return found


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = [
        "| tool | get, MB/s | put, MB/s | get x scp | put x scp |",
        "|---|---:|---:|---:|---:|",
    ]
    base = {act: statistics.median(found["scp"][act]) for act in ("get", "put")}
    for name, acts in found.items():
        get, put = (statistics.median(acts[act]) for act in ("get", "put"))
        ratios = f"{get / base['get']:.2f} | {put / base['put']:.2f}"
        lines.append(f"| {name} | {get:.0f} | {put:.0f} | {ratios} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
