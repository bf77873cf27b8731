"""Runs one errand: a question to another machine, or the delivery of a copy.

    standard input    {machine, op, wait_s, fields}                ask
                      {machine, op, wait_s, each: [fields]}        ask many times: {replies}
                      {machine, session, checkpoint, epoch, name, description, objects}   deliver
    standard output   {"progress": bytes, "of": bytes, "until": when a silent machine is given up}
                      {"done": {...}} or {"error": as on the wire}

`machine` is an entry as in machines.json; its `identity` names the key of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Final

from holdfast import home as homes
from holdfast.client.engine.engine import Engine
from holdfast.client.link import Link
from holdfast.courier.delivery import Delivery
from holdfast.home import machines
from holdfast.model.errors import HoldfastError, TimedOut, Unavailable

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

AT_ONCE: Final = 16  # requests under way; a host takes 256 of a client


def main() -> int:
    if sys.argv[1:] == ["--check"]:  # `holdfast doctor`: everything could be imported
        return 0
    errand = json.load(sys.stdin)
    try:
        tell({"done": asyncio.run(_run(errand))})
    except HoldfastError as e:
        tell({"error": e.to_wire()})
    except (OSError, ValueError, KeyError) as e:
        tell({"error": Unavailable(f"the errand failed: {type(e).__name__}: {e}").to_wire()})
    return 0


def tell(line: Json) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(line), flush=True)


async def _run(errand: Json) -> Json:
    home, machine = homes.resolve(os.environ), machines.read(errand["machine"])
    engine = Engine(lambda: Link(home, machine.operator, "service", False, None, machine))
    try:
        if "each" in errand:
            return {"replies": await ask_each(engine, errand)}
        if "op" in errand:
            return await engine.ask(errand["op"], errand["wait_s"], **errand["fields"])
        return await Delivery(engine, errand, tell).run()
    finally:
        await engine.close()


async def ask_each(engine: Engine, errand: Json) -> list[Json]:
    """The reply to each request, or its error, before the time is over."""
    slots, until = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop().time() + errand["wait_s"]

    async def ask(fields: Json) -> Json:
        try:
            async with asyncio.timeout_at(until), slots:
                return await engine.ask(errand["op"], errand["wait_s"], **fields)
        except HoldfastError as e:
            return {"error": e.to_wire()}
        except TimeoutError:
            return {"error": TimedOut("no answer in time", "try again").to_wire()}

    return await asyncio.gather(*map(ask, errand["each"]))


if __name__ == "__main__":
    sys.exit(main())
