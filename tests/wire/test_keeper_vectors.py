"""Every packet between host, keeper and nursery from named parts, and back (packets.json)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.wire import keeper, spawning
from tests.vectors import cases

FILE = "packets.json"
TEXTS = ("session", "socket")  # of a request for a keeper; the rest is bytes
CODES = {
    "hello": 1,
    "input": 2,
    "resize": 3,
    "signal": 4,
    "flush": 5,
    "withdraw": 6,
    "consumed": 7,
    "query": 8,
    "release": 9,
    "fence": 10,
    "label": 11,
    "listen": 12,
    "silence": 13,
    "gate": 14,
    "welcome": 0x81,
    "refused": 0x82,
    "rejected": 0x83,
    "withdrawn": 0x84,
    "state": 0x85,
    "exited": 0x86,
    "gated": 0x87,
    "cut_off": 0x88,
}
ACTS = ("input", "resize", "signal", "flush")
BUILD: dict[str, Callable[..., bytes]] = {
    "hello": lambda lowest, highest, term: keeper.hello(term, lowest, highest),
    "withdraw": keeper.withdraw,
    "consumed": keeper.consumed,
    "query": keeper.query,
    "release": keeper.release,
    "fence": keeper.fence,
    "listen": keeper.listen,
    "silence": keeper.silence,
    "gate": keeper.gate,
    "gated": keeper.gated,
    "cut_off": keeper.cut_off,
    "refused": keeper.refused,
    "rejected": keeper.rejected,
    "exited": keeper.exited,
    "withdrawn": keeper.withdrawn,
    "state": keeper.state,
    "label": lambda data: keeper.label(bytes.fromhex(data)),
    "welcome": lambda *parts: _welcome(parts),
}
BODY: dict[str, Callable[..., bytes]] = {
    "input": bytes.fromhex,
    "resize": keeper.resize_body,
    "signal": keeper.signal_body,
    "flush": keeper.flush_body,
}
READ: dict[str, Callable[[bytes], Any]] = {
    "hello": keeper.read_hello,
    "withdraw": keeper.read_two,
    "fence": keeper.read_two,
    "consumed": lambda p: [keeper.read_one(p)],
    "label": lambda p: [keeper.read_label(p)],
    "query": lambda p: [keeper.read_query(p)],
    "listen": lambda p: [keeper.read_query(p)],
    "silence": lambda p: [keeper.read_query(p)],
    "gated": lambda p: [keeper.read_gated(p)],
    "cut_off": lambda p: list(map(int, keeper.read_cut_off(p))),
    "release": lambda p: [],
    "gate": lambda p: [],
    "refused": keeper.read_refused,
    "rejected": keeper.read_rejected,
    "withdrawn": lambda p: [keeper.read_withdrawn(p)],
    "exited": keeper.read_exited,
    "state": keeper.read_state,
    "welcome": keeper.read_welcome,
}
READ_BODY: dict[str, Callable[[bytes], Any]] = {
    "input": lambda b: [b],
    "resize": keeper.read_size,
    "signal": keeper.read_signal,
    "flush": lambda b: [keeper.read_flush(b)],
}


def _welcome(parts: tuple[Any, ...]) -> bytes:
    build: Callable[..., bytes] = keeper.welcome
    return build(*parts[:10], parts[10].encode(), bytes.fromhex(parts[11]), *parts[12:])


def packet(given: dict[str, Any]) -> str:
    kind, parts = given["packet"], list(given["parts"].values())
    if kind in ACTS:
        act = tuple(given["act"].values())
        return keeper.act(CODES[kind], act, BODY[kind](*parts)).hex()
    return BUILD[kind](*parts).hex()


def spawn(given: dict[str, Any]) -> str:
    """A request for a keeper."""

    def raw(name: str, value: Any) -> Any:
        if name == "origins":
            return tuple(spawning.Origin(*one) for one in value)
        if name == "containment":
            mounts = (
                spawning.Mount(kind, bytes.fromhex(target), bytes.fromhex(source))
                for kind, target, source in value["mounts"]
            )
            return spawning.Containment(tuple(mounts), value["net"])
        if isinstance(value, list):
            return tuple(map(bytes.fromhex, value))
        return bytes.fromhex(value) if isinstance(value, str) and name not in TEXTS else value

    return spawning.spawn(spawning.Spawn(**{n: raw(n, v) for n, v in given.items()})).hex()


def answer(given: dict[str, Any]) -> str:
    """The nursery's."""
    text = bytes.fromhex(given["text"])
    head = (given["result"], given["errno"], given["pid"], len(text))
    return (spawning.SPAWN_REPLY.pack(*head) + text).hex()


def leave(given: dict[str, Any]) -> str:
    return spawning.QUIT_MAGIC.hex()


MAKE = {"packet": packet, "spawn": spawn, "answer": answer, "quit": leave}


@pytest.mark.parametrize("case", cases.load(FILE), ids=cases.name)
def test_t6_a_packet_has_the_bytes_that_it_had(case: cases.Case) -> None:
    assert cases.made(MAKE, case) == case["expected"]


@pytest.mark.parametrize("case", cases.load(FILE, "packet"), ids=cases.name)
def test_t6_a_packet_is_read_back_unchanged(case: cases.Case) -> None:
    kind, parts = case["input"]["packet"], list(case["input"]["parts"].values())
    data = bytes.fromhex(case["expected"])
    assert data[0] == CODES[kind]
    if kind in ACTS:
        fields, body = keeper.read_act(data)
        assert list(fields) == list(case["input"]["act"].values())
        assert cases.bare(READ_BODY[kind](body)) == parts
    else:
        assert cases.bare(READ[kind](data)) == parts


@pytest.mark.parametrize("case", cases.load(FILE, "spawn"), ids=cases.name)
def test_t6_a_request_for_a_keeper_is_read_back_unchanged(case: cases.Case) -> None:
    data = bytes.fromhex(case["expected"])
    assert data[:10] == b"HFS1\x01\0" + (len(data) - 10).to_bytes(4, "little")
    found = spawning.read_spawn(data[10:])
    for name, value in case["input"].items():
        wanted = list(value.values()) if name == "containment" else value
        assert cases.bare(getattr(found, name)) == wanted, name


def test_t6_every_packet_has_a_vector() -> None:
    found = {bytes.fromhex(case["expected"])[0] for case in cases.load(FILE, "packet")}
    assert found == set(CODES.values())
    assert found == {
        *range(keeper.HELLO, keeper.GATE + 1),
        *range(keeper.WELCOME, keeper.CUT_OFF + 1),
    }


def test_t6_every_tag_of_a_request_has_a_vector() -> None:
    tags = set[int]()
    for case in cases.load(FILE, "spawn"):
        data, at = bytes.fromhex(case["expected"]), 10
        while at < len(data):
            tags.add(data[at])
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    assert tags == {*range(1, 20), *range(23, 26), *range(27, 30)}
