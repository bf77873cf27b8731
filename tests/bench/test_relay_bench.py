"""The figures of the relay come from frames that arrived. No figure is judged here."""

from __future__ import annotations

from bench import relay


def test_every_measure_gives_numbers() -> None:
    [figures] = relay.connections([4], 0.1).values()
    assert figures["per_s"] > 0 and figures["message_cpu_us"] > 0 and figures["relay_mib"] > 0
    assert relay.forward(1024, 0.2)["messages_per_s"] > 0
    assert all(found["p50_us"] > 0 for found in relay.echo(20).values())
