"""Runs one errand: a question to another machine, or the delivery of a copy.

    standard input    {machine, op, fields}                        ask
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
from typing import TYPE_CHECKING

from holdfast import home as homes
from holdfast.client.engine.engine import Engine
from holdfast.client.link import Link
from holdfast.courier.delivery import Delivery
from holdfast.home import machines
from holdfast.model.errors import HoldfastError, Unavailable

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


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
        if "op" in errand:
            return await engine.ask(errand["op"], errand["wait_s"], **errand["fields"])
        return await Delivery(engine, errand, tell).run()
    finally:
        await engine.close()


if __name__ == "__main__":
    sys.exit(main())
