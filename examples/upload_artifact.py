"""Uploads an artifact into a session, and unpacks it there.

    python upload_artifact.py SESSION FILE [DIRECTORY]

An upload that was interrupted continues where it stopped: run the program again. The file appears
whole or not at all, and the record names the operator as its author.
"""

from __future__ import annotations

import asyncio
import shlex
import sys

import holdfast


def progress(done: int, size: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{100 * done // max(size, 1)}%", end="", file=sys.stderr, flush=True)


async def main(name: str, local: str, directory: str = ".") -> int:
    async with holdfast.connect() as client:
        session = await client.sessions.get(name)
        sent = await session.files.put(local, directory, progress=progress)
        print(f"{sent.path}: {sent.size} bytes, sha256 {sent.sha256}")
        if not sent.path.endswith(".tar.gz"):
            return 0
        path = shlex.quote(sent.path)
        unpacked = await session.run(f"tar -xzf {path} -C {shlex.quote(directory)}")
        print(unpacked.output, end="")
        return unpacked.exit_code or 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
