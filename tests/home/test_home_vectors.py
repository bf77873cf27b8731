"""Files of a home that another release reads, byte for byte as in tests/vectors/home.json."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.home import Home, codes, generation, keys, machines, relays
from holdfast.model import signing
from tests.vectors import cases

FILE = "home.json"


@contextmanager
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("keys", "run"):
            os.mkdir(f"{folder}/{name}", 0o700)
        yield Home(folder, f"{folder}/config.toml", True)


def put(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def got(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().hex()


def key(given: dict[str, Any]) -> str:
    """The file of a new identity, or of the machine."""
    with home() as where, pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing, "generate", lambda: bytes.fromhex(given["private"]))
        if given["kind"] == "machine":
            return got(keys.machine(where, given["now"]).path)
        return got(keys.make(where, given["name"], given["kind"], given["now"]).path)


def unlocked(given: dict[str, Any]) -> dict[str, Any]:
    """The value that a file is read as; a locked file is read with its passphrase."""
    with home() as where:
        put(f"{where.state}/keys/{given['name']}.key", bytes.fromhex(given["file"]))
        found = keys.opened(keys.load(where, given["name"]), lambda name: given["passphrase"])
        return {
            "kind": found.kind,
            "created": found.created,
            "private": found.secret().hex(),
            "locked": found.locked,
            "static": keys.static(found).hex(),
        }


def machine(given: dict[str, Any]) -> machines.Machine:
    ways = tuple(
        machines.Way(one["url"], bytes.fromhex(one["route"]), bytes.fromhex(one["pass"]), one["ca"])
        for one in given["ways"]
    )
    return machines.Machine(
        given["name"],
        bytes.fromhex(given["key"]),
        bytes.fromhex(given["static"]),
        given["as"],
        given["added"],
        ways,
        given["identity"],
    )


def known(given: dict[str, Any]) -> str:
    with home() as where:
        for one in given["machines"]:
            machines.keep(where, machine(one))
        return got(machines.path(where))


def dialled(given: dict[str, Any]) -> str:
    with home() as where:
        for one in given["relays"]:
            relays.keep(where, relays.Relay(**one))
        return got(relays.path(where))


def code(given: dict[str, Any]) -> str:
    with home() as where:
        codes.keep(where, given["id"], bytes.fromhex(given["password"]), given["boot"])
        return got(f"{where.run}/{given['id']}.code")


def number(given: dict[str, Any]) -> dict[str, Any]:
    with home() as where:
        if given["file"]:
            put(f"{where.state}/generation", bytes.fromhex(given["file"]))
        following = generation.following(where, given["now"])
        return {"following": following, "file": got(f"{where.state}/generation")}


MAKE = {
    "key": key,
    "unlocked": unlocked,
    "machines": known,
    "relays": dialled,
    "code": code,
    "generation": number,
}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_a_file_of_the_home_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "machines"), ids=cases.name)
def test_the_machines_of_another_release_are_read(case: cases.Case) -> None:
    with home() as where:
        put(machines.path(where), bytes.fromhex(case["expected"]))
        assert machines.listing(where) == [machine(one) for one in case["input"]["machines"]]


@pytest.mark.parametrize("case", cases.load(FILE, "relays"), ids=cases.name)
def test_the_relays_of_another_release_are_read(case: cases.Case) -> None:
    with home() as where:
        put(relays.path(where), bytes.fromhex(case["expected"]))
        assert relays.listing(where) == [relays.Relay(**one) for one in case["input"]["relays"]]


@pytest.mark.parametrize("case", cases.load(FILE, "code"), ids=cases.name)
def test_a_code_of_another_host_is_read(case: cases.Case) -> None:
    given = case["input"]
    with home() as where:
        put(f"{where.run}/{given['id']}.code", bytes.fromhex(case["expected"]))
        found = codes.listing(where, given["boot"])
        assert cases.bare(list(found.items())) == [[given["id"], given["password"]]]
