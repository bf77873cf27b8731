"""Runs one command on several machines at the same time, each in a session of its own.

    python run_on_machines.py COMMAND [MACHINE...]

Without names the command runs on every known machine. A machine that does not answer does not hold
up the others. The exit code is the number of machines on which the command did not succeed.
"""

from __future__ import annotations

import asyncio
import sys

import holdfast


async def one(client: holdfast.Client, machine: str, command: str) -> bool:
    try:
        result = await client.terminal.execute(machine, command, timeout=60)
    except holdfast.HoldfastError as e:
        print(f"{machine}: {e.message}")
        return False
    print(f"{machine}: exit code {result.exit_code}\n{result.output}", end="")
    return result.exit_code == 0


async def main(command: str, *machines: str) -> int:
    async with holdfast.connect() as client:
        names = machines or [known.name for known in await client.machines.known()]
        done = await asyncio.gather(*(one(client, name, command) for name in names))
        return done.count(False)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
