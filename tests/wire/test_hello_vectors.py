"""How a client proves its identity, byte for byte as in tests/vectors/hello.json."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import signing
from holdfast.wire import frames, hello
from tests.vectors import cases

FILE = "hello.json"
DOMAIN = "hello/1"


def introduction(given: dict[str, Any]) -> dict[str, Any]:
    """All messages until a client is welcome, and the name of the channel from then on."""
    words, challenge = given["hello"], given["challenge"]
    said = hello.statement(words, challenge, given["channel"])
    signature = signing.sign(bytes.fromhex(given["private"]), DOMAIN, said)
    proof = {"signature": signature.hex(), **given["proof"]}
    return {
        "statement": said.hex(),
        "signature": signature.hex(),
        "binding": hello.binding(said, signature),
        "origin": hello.origin(words["key"], words["client"]),
        "frames": [
            frames.pack_json(kind, body).hex()
            for kind, body in (
                (0x01, words),
                (0x89, challenge),
                (0x07, proof),
                (0x81, given["welcome"]),
            )
        ],
    }


def origin(given: dict[str, Any]) -> int:
    return hello.origin(given["key"], given["client"])


MAKE = {"introduction": introduction, "origin": origin}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_an_introduction_does_not_change(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "introduction"), ids=cases.name)
def test_an_introduction_is_read_back_and_proves_its_sender(case: cases.Case) -> None:
    given, found = case["input"], case["expected"]
    key, signature = signing.read(given["hello"]["key"]), bytes.fromhex(found["signature"])
    assert key == signing.public(bytes.fromhex(given["private"]))
    assert signing.verify(key, DOMAIN, bytes.fromhex(found["statement"]), signature)
    splitter = frames.Splitter(frames.FROM_CLIENT | frames.FROM_HOST)
    read = list(splitter.feed(bytes.fromhex("".join(found["frames"]))))
    assert [frames.read_json(payload) for _, payload in read] == [
        given["hello"],
        given["challenge"],
        {"signature": found["signature"], **given["proof"]},
        given["welcome"],
    ]
