"""A machine behind a real relay, and an empty home elsewhere that is paired with it as `box`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.installation import Installation, installation
from tests.support.relays import RelayProcess


class Afar(NamedTuple):
    there: Installation
    here: Installation
    relay: RelayProcess


def pair(there: Installation, here: Installation, name: str, operator: str = "ann") -> None:
    """Lets the operator of `here` reach `there` through the relay, with all rights."""
    url = there.ok("invite", "--rights", "admin", "--no-wait", "--json").records[0]["url"]
    joined = here.ok("join", url, "--as", operator, "--json").json
    here.ok("machines", "rename", joined["as"], name)


def join_relay(machine: Installation, relay: RelayProcess) -> None:
    token = machine.base / "token"
    token.write_text(relay.token())
    machine.ok("host", "connect", relay.url, "--token", f"@{token}")


@contextlib.contextmanager
def afar(directory: Path, config: str = "") -> Iterator[Afar]:
    for name in ("there", "here"):
        (directory / name).mkdir()
    with (
        RelayProcess(str(directory / "relay")) as relay,
        installation(directory / "there", config) as there,
        installation(directory / "here") as here,
    ):
        join_relay(there, relay)
        pair(there, here, "box")
        yield Afar(there, here, relay)
