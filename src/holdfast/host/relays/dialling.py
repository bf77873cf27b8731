"""Dials a relay in a separate thread, because names and networks may take long to answer.

If the host gives up the line, it does not wait for that thread.
"""

from __future__ import annotations

import asyncio
import threading

from holdfast.home.relays import Relay
from holdfast.model.errors import Unavailable
from holdfast.model.limits import REMOTE_WAIT_S
from holdfast.transport import carriers
from holdfast.transport.carriers import Carrier


async def dialled(loop: asyncio.AbstractEventLoop, relay: Relay) -> Carrier:
    found: asyncio.Future[Carrier] = loop.create_future()

    def tell(made: Carrier | None, why: Exception | None) -> None:
        if found.done():
            if made is not None:
                made.close()
        elif made is not None:
            found.set_result(made)
        else:
            found.set_exception(why or Unavailable("nothing was found"))

    def run() -> None:
        made, why = None, None
        try:
            made = carriers.dial(relay.url, relay.token, relay.ca, REMOTE_WAIT_S)
        except Exception as e:
            why = e
        try:
            loop.call_soon_threadsafe(tell, made, why)
        except RuntimeError:  # the loop is closed
            if made is not None:
                made.close()

    threading.Thread(target=run, name="dialling a relay", daemon=True).start()
    return await found
