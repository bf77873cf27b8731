"""Fixtures for a machine that is reached through a relay which a test can make misbehave.

A conftest imports these fixtures; a test module adds `there` (the machine) and `here` (the client's
home).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.installation import Installation
from tests.support.simulation.crooked_carrier import Crooked, honest


@pytest.fixture(scope="module")
def relay() -> Iterator[Crooked]:
    made = Crooked()
    yield made
    made.close()


@pytest.fixture
def honest_again(relay: Crooked) -> Iterator[None]:
    """After the test, make the relay carry every frame unchanged again."""
    yield
    relay.meddle = honest


def connect(machine: Installation, relay: Crooked) -> None:
    machine.ok("host", "connect", relay.url)


def invitation(machine: Installation) -> str:
    """A link that gives its user all rights."""
    made = machine.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]
    return str(made["url"])
