"""Waiting for a machine at its relay: told at once when the machine is back.

Wrong words of a relay cost at most time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import presence
from holdfast.client.presence import Watching
from holdfast.core.sealed import route as routes
from holdfast.home.machines import Machine, Way
from holdfast.model import signing
from tests.support.relays import WAIT_S, RelayProcess, host, watches

LONG_S = 3600.0  # longer than any test: an earlier end was announced


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with RelayProcess(str(tmp_path / "relay"), "--metrics", "127.0.0.1:0") as made:
        yield made


def machine(relay: RelayProcess, secret: bytes, pass_: bytes) -> Machine:
    public = signing.public(secret)
    nowhere = Way("ws://127.0.0.1:1", routes.route(public), pass_)
    return Machine(
        "box", public, bytes(32), "ann", 0, (nowhere, Way(relay.url, routes.route(public), pass_))
    )


def test_t3_a_waiting_client_is_told_when_the_machine_is_back_and_not_before(
    relay: RelayProcess,
) -> None:
    async def body() -> None:
        token = relay.token()
        async with host(relay.url, token) as first:
            await first.register()
            secret, passes = first.secret, first.passes
        watching = Watching(machine(relay, secret, passes[0]), LONG_S)
        back = threading.Thread(target=watching.wait, daemon=True)
        back.start()
        while watches(relay) != 1:
            await asyncio.sleep(0.02)  # poll
        assert back.is_alive()
        async with host(relay.url) as again:
            again.secret, again.passes = secret, passes
            await again.register(2)
            await asyncio.to_thread(back.join, WAIT_S)
            assert not back.is_alive()
        watching.close()
        while watches(relay):
            await asyncio.sleep(0.02)  # poll

    asyncio.run(asyncio.wait_for(body(), 5 * WAIT_S))


def test_a_cancelled_wait_ends_at_once(relay: RelayProcess) -> None:
    secret = signing.generate()
    watching = Watching(machine(relay, secret, bytes(32)), LONG_S)
    waits = threading.Thread(target=watching.wait, daemon=True)
    waits.start()
    watching.cancel()
    waits.join(WAIT_S)
    assert not waits.is_alive()
    watching.close()


def test_t4_a_relay_that_lies_is_asked_less_and_less_and_one_that_is_silent_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses, lies = [0.0], list[float](), True

    def until(self: Watching, deadline: float, listening: bool = True) -> bool:
        if not listening:
            pauses.append(round(deadline - clock[0], 6))
        if not listening or not lies:
            clock[0] = deadline
        return listening and lies

    monkeypatch.setattr(Watching, "_until", until)
    monkeypatch.setattr("holdfast.client.presence.time.monotonic", lambda: clock[0])
    watching = Watching(Machine("box", bytes(32), bytes(32), "ann", 0, ()))
    for _ in range(20):
        watching.wait()
    assert pauses == sorted(pauses) and len(pauses) == 19 and pauses[-1] == presence.WATCH_LOOK_S
    lies, before = False, clock[0]
    watching.wait()
    assert round(clock[0] - before, 6) == presence.WATCH_LOOK_S, "dialled all the same"
    pauses.clear()
    watching.wait()
    assert not pauses
    watching.close()
