"""The wire between host and keeper: golden bytes, round trips, refusals.

Running keepers are never upgraded, so a change of these bytes without a new version cuts hosts off
from live sessions: the vectors in tests/vectors/keeper_wire.json may only grow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.limits import (
    COLS_MAX,
    COLS_MIN,
    CONNECT_COMMANDS,
    CONTAINED_PATHS,
    INPUT_QUEUE_ACTS,
    LABEL_BYTES,
    ORIGINS_KEPT,
    REAPED_KEPT,
    RING_BYTES_MAX,
    ROWS_MAX,
    ROWS_MIN,
    SPAWN_BYTES,
)
from holdfast.wire import keeper as wire
from holdfast.wire import spawning
from tests.support.examples import examples

VECTORS = Path(__file__).parents[1] / "vectors" / "keeper_wire.json"

U8, U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
I32 = st.integers(-(2**31), 2**31 - 1)
ACTS = st.builds(wire.Act, U64, U64, U64, U64, U8)
ORIGINS = st.builds(wire.Origin, U64, U64, U64)
SIZES = st.tuples(st.integers(COLS_MIN, COLS_MAX), st.integers(ROWS_MIN, ROWS_MAX))
TEXT = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"),
    min_size=1,
    max_size=40,
)
WORD = st.binary(max_size=60).map(lambda b: b.replace(b"\0", b"."))
READERS: dict[int, Callable[[bytes], Any]] = {
    wire.HELLO: wire.read_hello,
    wire.INPUT: wire.read_act,
    wire.RESIZE: wire.read_act,
    wire.SIGNAL: wire.read_act,
    wire.FLUSH: wire.read_act,
    wire.WITHDRAW: wire.read_two,
    wire.CONSUMED: wire.read_one,
    wire.QUERY: wire.read_query,
    wire.FENCE: wire.read_two,
    wire.LABEL: wire.read_label,
    wire.LISTEN: wire.read_query,
    wire.SILENCE: wire.read_query,
    wire.WELCOME: wire.read_welcome,
    wire.REFUSED: wire.read_refused,
    wire.REJECTED: wire.read_rejected,
    wire.WITHDRAWN: wire.read_withdrawn,
    wire.STATE: wire.read_state,
    wire.EXITED: wire.read_exited,
}


# ---------------------------------------------------------------- golden bytes


MOUNTED = wire.Containment(
    (
        wire.Mount(wire.MOUNT_READ, b"/usr", b"/usr"),
        wire.Mount(wire.MOUNT_WRITE, b"/home/u", b"/h/k"),
        wire.Mount(wire.MOUNT_DEVICE, b"/dev/fuse", b"/dev/fuse"),
        wire.Mount(wire.MOUNT_LINK, b"/bin", b"usr/bin"),
        wire.Mount(wire.MOUNT_EMPTY, b"/run/x"),
        wire.Mount(wire.MOUNT_MEMORY, b"/run/m", b"1m"),
    ),
    wire.NET_NONE,
)


def built() -> dict[str, bytes]:
    """One packet of every kind, and both keeper requests; the same values as in the vectors."""
    act = wire.Act(0x0102030405060708, 9, 0x1112131415161718, 10, wire.ACT_ACK)
    return {
        "hello": wire.hello(7, 1, 3),
        "input": wire.act(wire.INPUT, act, b"ls\n\xff"),
        "resize": wire.resize(act, 132, 43),
        "signal": wire.signal(act, 15, wire.SCOPE_PROCESS, 4242, 0x2122232425262728),
        "flush": wire.act(wire.FLUSH, act),
        "withdraw": wire.withdraw(3, 77),
        "consumed": wire.consumed(1 << 40),
        "query": wire.query(0xDEADBEEF),
        "release": wire.release(),
        "fence": wire.fence(3, 123456789012345),
        "label": wire.label(b"\x00label"),
        "listen": wire.listen(5),
        "silence": wire.silence(5),
        "welcome": wire.welcome(
            1,
            3,
            7,
            1 << 40,
            1700000000000000001,
            4242,
            987654321,
            -1,
            132,
            43,
            b"0123456789ab",
            b"label",
            [(1, 2, 3), (4, 5, 6)],
            [(77, 256), (78, 9)],
        ),
        "refused": wire.refused(wire.REFUSED_TERM, 8),
        "rejected": wire.rejected(9, wire.REJECT_FULL, 1048576),
        "withdrawn": wire.withdrawn([(9, 100, 65536), (10, 0, 5)]),
        "state": wire.state(0xDEADBEEF, 4243, 4242, 132, 43, 0o42400, 5, 0o277, 0o105073, 17),
        "exited": wire.exited(9, [(77, 256)]),
        "spawn": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                3,
                "0123456789ab.keeper",
                80,
                24,
                8 << 20,
                10_000,
                b"label",
                (b"sh", b"-c", b"exit 3"),
                (b"PATH=/bin", b"X=\xff"),
                b"/tmp",
                0o022,
            )
        ),
        "adopt": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                4,
                "0123456789ab.keeper",
                80,
                24,
                65536,
                10_000,
                adopt_pid=4242,
                base=1 << 40,
                ring_tail=b"tail",
                origins=(wire.Origin(1, 2, 3),),
                accepted=9,
                status=256,
            )
        ),
        "contained": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                3,
                "0123456789ab.keeper",
                80,
                24,
                8 << 20,
                10_000,
                b"label",
                (b"sh",),
                cgroup=b"/sys/fs/cgroup/g",
                containment=MOUNTED,
            )
        ),
        "gated": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                3,
                "0123456789ab.keeper",
                80,
                24,
                8 << 20,
                10_000,
                b"label",
                (b"sh",),
                gate=wire.GATE_REQUIRED,
            )
        ),
        "limited": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                3,
                "0123456789ab.keeper",
                80,
                24,
                8 << 20,
                10_000,
                b"label",
                (b"sh",),
                limits=((6, 4096), (wire.LIMIT_OOM, -17), (wire.LIMIT_NICE, 3)),
            )
        ),
        "connected": wire.spawn(
            wire.Spawn(
                "0123456789ab",
                3,
                "0123456789ab.keeper",
                80,
                24,
                8 << 20,
                10_000,
                b"label",
                (b"sh",),
                containment=wire.Containment((), wire.NET_OWN),
                connect=(b"/usr/bin/pasta\0--netns\0/proc/{pid}/ns/net", b"/bin/other"),
            )
        ),
        "gate": wire.gate(),
        "gate refused": wire.gated(16),
        "cut off": wire.cut_off(9, True),
        "flush of one": wire.act(
            wire.FLUSH, act._replace(flags=wire.ACT_ACK | wire.ACT_REPORT), wire.flush_body(5)
        ),
        "quit": wire.QUIT_MAGIC,
        "spawn reply": wire.SPAWN_REPLY.pack(wire.SPAWN_FAILED, 2, 0, 3) + b"why",
    }


@pytest.mark.parametrize("name", built())
def test_t6_golden_bytes(name: str) -> None:
    vectors = json.loads(VECTORS.read_text())
    assert vectors["version"] == wire.VERSION, (
        "a new version: add its vectors, and keep reading the older ones"
    )
    assert built()[name].hex() == vectors["packets"][name], (
        "the bytes changed without a new version"
    )


REQUESTS = (
    *("spawn", "adopt", "contained", "gated", "limited", "connected"),
    *("quit", "spawn reply"),
)


def test_t6_every_packet_has_a_vector() -> None:
    packets = json.loads(VECTORS.read_text())["packets"]
    assert set(packets) == set(built())
    codes = {
        bytes.fromhex(packet)[0]
        for name, packet in packets.items()
        if name
        not in (
            "spawn",
            "adopt",
            "contained",
            "gated",
            "limited",
            "connected",
            "quit",
            "spawn reply",
        )
    }
    assert codes == {*range(wire.HELLO, wire.GATE + 1), *range(wire.WELCOME, wire.CUT_OFF + 1)}
    for code in codes:
        name = f"0x{code:02x} | "
        assert name in (wire.__doc__ or ""), f"the table at the top of wire/keeper.py lacks {name}"


def test_t6_the_packets_of_the_vectors_are_read() -> None:
    packets = {
        name: bytes.fromhex(text)
        for name, text in json.loads(VECTORS.read_text())["packets"].items()
    }
    assert wire.read_hello(packets["hello"]) == (1, 3, 7)
    act, body = wire.read_act(packets["signal"])
    assert wire.Act(*act) == wire.Act(0x0102030405060708, 9, 0x1112131415161718, 10, 1)
    assert wire.read_signal(body) == (15, wire.SCOPE_PROCESS, 4242, 0x2122232425262728)
    assert wire.read_act(packets["input"])[1] == b"ls\n\xff"
    assert wire.read_size(wire.read_act(packets["resize"])[1]) == (132, 43)
    welcome = wire.read_welcome(packets["welcome"])
    assert (welcome.session, welcome.label, welcome.status, welcome.cols, welcome.rows) == (
        "0123456789ab",
        b"label",
        -1,
        132,
        43,
    )
    assert welcome.origins == ((1, 2, 3), (4, 5, 6)) and welcome.reaped == ((77, 256), (78, 9))
    assert wire.read_state(packets["state"]).lflag == 0o105073
    assert wire.read_exited(packets["exited"]) == (9, [(77, 256)])
    assert wire.read_withdrawn(packets["withdrawn"]) == [(9, 100, 65536), (10, 0, 5)]
    head, adopt = (
        packets["adopt"][: wire.SPAWN_HEADER.size],
        packets["adopt"][wire.SPAWN_HEADER.size :],
    )
    assert wire.SPAWN_HEADER.unpack(head) == (wire.SPAWN_MAGIC, wire.VERSION, len(adopt))
    assert wire.read_spawn(adopt).origins == ((1, 2, 3),) and wire.read_spawn(adopt).status == 256
    plain, contained = (
        wire.read_spawn(packets[name][wire.SPAWN_HEADER.size :]) for name in ("spawn", "contained")
    )
    assert (
        plain.containment is None
        and plain.cgroup == b""
        and contained.cgroup == b"/sys/fs/cgroup/g"
    )
    assert contained.containment == MOUNTED
    limited = wire.read_spawn(packets["limited"][wire.SPAWN_HEADER.size :])
    assert limited.limits == ((6, 4096), (wire.LIMIT_OOM, -17), (wire.LIMIT_NICE, 3))
    assert (
        wire.read_flush(wire.read_act(packets["flush"])[1]) == 0
        and wire.read_flush(wire.read_act(packets["flush of one"])[1]) == 5
    )


# ---------------------------------------------------------------- round trips


@given(U64, U16, U16)
def test_hello_comes_back(term: int, lowest: int, highest: int) -> None:
    assert wire.read_hello(wire.hello(term, lowest, highest)) == (lowest, highest, term)


@given(ACTS, st.binary(max_size=200))
def test_input_comes_back(act: wire.Act, body: bytes) -> None:
    assert wire.read_act(wire.act(wire.INPUT, act, body)) == (act, body)


@given(ACTS, SIZES, st.integers(0, 64), st.integers(0, 3), st.integers(0, 2**31 - 1), U64)
def test_sizes_and_signals_come_back(
    act: wire.Act, size: tuple[int, int], number: int, scope: int, pid: int, start: int
) -> None:
    fields, body = wire.read_act(wire.resize(act, *size))
    assert (fields, wire.read_size(body)) == (act, size)
    fields, body = wire.read_act(wire.signal(act, number, scope, pid, start))
    assert (fields, wire.read_signal(body)) == (act, (number, scope, pid, start))


@given(U64, U64, U32, U8, st.binary(max_size=100))
def test_small_packets_come_back(a: int, b: int, tag: int, reason: int, label: bytes) -> None:
    assert wire.read_two(wire.withdraw(a, b)) == (a, b) == wire.read_two(wire.fence(a, b))
    assert wire.read_one(wire.consumed(a)) == a
    assert (
        wire.read_query(wire.query(tag))
        == wire.read_query(wire.listen(tag))
        == wire.read_query(wire.silence(tag))
        == tag
    )
    assert wire.read_label(wire.label(label)) == label
    assert wire.read_refused(wire.refused(reason, a)) == (reason, a)
    assert wire.read_rejected(wire.rejected(a, reason, b)) == (a, reason, b)


@given(
    I32,
    st.lists(st.tuples(U32, I32), max_size=REAPED_KEPT),
    st.lists(st.tuples(U64, U32, U32), max_size=50),
)
def test_lists_come_back(
    status: int, reaped: list[tuple[int, int]], withdrawn: list[tuple[int, int, int]]
) -> None:
    assert wire.read_exited(wire.exited(status, reaped)) == (status, reaped)
    assert wire.read_withdrawn(wire.withdrawn(withdrawn)) == withdrawn


STATES = st.builds(wire.State, U32, U32, U32, U16, U16, U32, U32, U32, U32, U64)


@given(STATES)
def test_the_state_comes_back(state: wire.State) -> None:
    assert wire.read_state(wire.state(*state)) == state


WELCOMES = st.builds(
    wire.Welcome,
    U16,
    U64,
    U64,
    U64,
    U64,
    U32,
    U64,
    I32,
    U16,
    U16,
    TEXT,
    st.binary(max_size=500),
    st.lists(ORIGINS, max_size=20).map(tuple),
    st.lists(st.tuples(U32, I32), max_size=10).map(tuple),
)


@given(WELCOMES)
def test_the_welcome_comes_back(welcome: wire.Welcome) -> None:
    fields = welcome._replace(session=welcome.session.encode())  # type: ignore[arg-type]
    assert wire.read_welcome(wire.welcome(*fields)) == welcome  # type: ignore[arg-type]


def test_the_largest_welcome_and_withdrawn_fit_into_a_packet() -> None:
    origins = [(2**64 - 1,) * 3] * ORIGINS_KEPT
    top = 2**64 - 1
    packet = wire.welcome(
        1,
        top,
        top,
        top,
        top,
        2**32 - 1,
        2**64 - 1,
        -1,
        1000,
        1000,
        b"s" * 80,
        bytes(LABEL_BYTES),
        origins,
        [(2**32 - 1, -1)] * REAPED_KEPT,
    )
    assert len(packet) < 128 * 1024 and len(wire.read_welcome(packet).origins) == ORIGINS_KEPT
    packet = wire.withdrawn([(2**64 - 1, 2**32 - 1, 2**32 - 1)] * INPUT_QUEUE_ACTS)
    assert len(packet) < 128 * 1024 and len(wire.read_withdrawn(packet)) == INPUT_QUEUE_ACTS


ENTRIES = st.tuples(TEXT.filter(lambda t: "=" not in t), WORD).map(
    lambda e: e[0].encode() + b"=" + e[1]
)
SPAWNS = st.builds(
    wire.Spawn,
    TEXT,
    U64,
    TEXT.filter(lambda t: t not in (".", "..")),
    st.integers(COLS_MIN, COLS_MAX),
    st.integers(ROWS_MIN, ROWS_MAX),
    st.integers(1, RING_BYTES_MAX),
    st.integers(0, 24 * 3600 * 1000),
    st.binary(max_size=200),
    st.lists(WORD.map(lambda w: b"x" + w), min_size=1, max_size=5).map(tuple),
    st.lists(ENTRIES, max_size=8).map(tuple),
    WORD,
    st.integers(0, 0o777),
    st.integers(0, 2**31 - 1),
    st.integers(300, 2**63 - 1),
    st.binary(max_size=300),
    st.lists(ORIGINS, max_size=5).map(tuple),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 0xFFFF),
    cgroup=st.just(b""),
    containment=st.none(),
    gate=st.just(0),
    limits=st.just(()),
    connect=st.just(()),
    thaw=st.just(b""),
    criu=st.just(()),
    deadline_ns=U64,
)
KINDS = st.tuples(st.integers(0, 15), st.integers(0, 2**63 - 1))
LIMITS = st.lists(KINDS | st.just((wire.LIMIT_OOM, -1000)), max_size=4).map(tuple)
PATHS = WORD.map(lambda w: b"/" + w)
MOUNTS = st.builds(wire.Mount, st.integers(wire.MOUNT_READ, wire.MOUNT_MEMORY), PATHS, PATHS)
CONTAINMENTS = st.none() | st.builds(
    wire.Containment, st.lists(MOUNTS, max_size=4).map(tuple), st.integers(0, wire.NET_NONE)
)


@given(SPAWNS, WORD.map(lambda w: b"/" + w) | st.just(b""), CONTAINMENTS, LIMITS)
def test_a_spawn_request_comes_back(
    request: wire.Spawn,
    cgroup: bytes,
    containment: wire.Containment | None,
    limits: tuple[tuple[int, int], ...],
) -> None:
    if not request.adopt_pid:
        request = request._replace(cgroup=cgroup, containment=containment, limits=limits)
    data = wire.spawn(request)
    magic, version, length = wire.SPAWN_HEADER.unpack_from(data)
    assert (magic, version, length) == (
        wire.SPAWN_MAGIC,
        wire.VERSION,
        len(data) - wire.SPAWN_HEADER.size,
    )
    assert wire.read_spawn(data[wire.SPAWN_HEADER.size :]) == request


# ---------------------------------------------------------------- refusals


def read(packet: bytes) -> None:
    """Read a packet as the receiver does: by its first byte. Only Malformed may be raised."""
    reader = READERS.get(packet[0])
    if reader is not None:
        try:
            reader(packet)
        except wire.Malformed:
            pass


@settings(max_examples=examples(500))
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300))
def test_garbage_is_malformed_or_read_but_never_anything_else(code: int, rest: bytes) -> None:
    read(bytes([code]) + rest)


@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(built())), st.data())
def test_a_packet_with_bytes_changed_cut_or_added(name: str, data: st.DataObject) -> None:
    packet = bytearray(built()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(U8)
    packet = packet[: data.draw(st.integers(1, len(packet)))] + data.draw(st.binary(max_size=5))
    read(bytes(packet))
    if name in ("spawn", "adopt", "contained", "limited"):
        try:
            wire.read_spawn(bytes(packet[wire.SPAWN_HEADER.size :]))
        except wire.Malformed:
            pass


@given(st.binary(max_size=400))
def test_garbage_is_no_spawn_request(body: bytes) -> None:
    try:
        wire.read_spawn(body)
    except wire.Malformed:
        return
    raise AssertionError("taken for a request")


def tagged(*items: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([tag]) + len(value).to_bytes(4, "little") + value for tag, value in items)


def parts(request: wire.Spawn) -> list[tuple[int, bytes]]:
    body, found = wire.spawn(request)[wire.SPAWN_HEADER.size :], []
    while body:
        length = int.from_bytes(body[1:5], "little")
        found.append((body[0], body[5 : 5 + length]))
        body = body[5 + length :]
    return found


SOUND = wire.Spawn("s", 1, "s.keeper", 80, 24, 1 << 16, 1000, argv=(b"cat",))


THAW = wire.Spawn(
    *("a", 2, "a.keeper", 80, 24, 1 << 20, 1000),
    containment=wire.Containment(),
    thaw=b"/checkpoint",
    criu=(b"/criu", b"/loader", b"/lib"),
)


@pytest.mark.parametrize("containment", [wire.Containment(), None])
def test_a_request_to_restore_comes_back(containment: wire.Containment | None) -> None:
    request = THAW._replace(base=500, accepted=3, gate=wire.GATE_REQUIRED, containment=containment)
    data = wire.spawn(request)
    assert wire.spawn(wire.read_spawn(data[wire.SPAWN_HEADER.size :])) == data


@pytest.mark.parametrize(
    "change",
    [
        {"argv": (b"sh",)},
        {"adopt_pid": 5},
        {"criu": (b"/criu",)},
        {"criu": (b"/criu", b"loader")},
        {"thaw": b"checkpoint"},
        {"thaw": b"/a\0b"},
        {"thaw": b"", "argv": (b"sh",)},
    ],
)
def test_a_request_to_restore_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    request = THAW._replace(**change)
    data = wire.spawn(request)[wire.SPAWN_HEADER.size :]
    if not request.thaw:
        data += tagged((spawning.T_CRIU, b"/criu"))
    with pytest.raises(wire.Malformed):
        wire.read_spawn(data)


def test_unknown_repeated_and_missing_tags_are_refused() -> None:
    sound = parts(SOUND)
    assert wire.read_spawn(tagged(*sound)) == SOUND
    for tag in (0, 20, 21, 22, *range(spawning.T_DEADLINE + 1, 256)):
        with pytest.raises(wire.Malformed, match="unknown"):
            wire.read_spawn(tagged(*sound, (tag, b"")))
    for tag, value in sound:
        without = tagged(*(item for item in sound if item[0] != tag))
        with pytest.raises(wire.Malformed):
            wire.read_spawn(without)
        if tag not in (spawning.T_ARGV, spawning.T_ENV, spawning.T_ORIGIN):
            with pytest.raises(wire.Malformed, match="repeated"):
                wire.read_spawn(tagged(*sound, (tag, value)))
            if tag not in (
                spawning.T_SESSION,
                spawning.T_SOCKET,
                spawning.T_LABEL,
                spawning.T_CWD,
                spawning.T_RING_TAIL,
            ):
                for other in (value[:-1], value + b"\0"):
                    with pytest.raises(wire.Malformed):
                        wire.read_spawn(tagged(*((t, other if t == tag else v) for t, v in sound)))


@pytest.mark.parametrize(
    "more",
    [
        [(spawning.T_MOUNT, b"\1/x\0/x")],
        [(spawning.T_NET, bytes(8))],
        [(spawning.T_CONTAIN, b"x")],
        [(spawning.T_CONTAIN, b""), (spawning.T_CONTAIN, b"")],
        [(spawning.T_CONTAIN, b""), (spawning.T_NET, b"\3" + bytes(7))],
        *(
            [(spawning.T_CONTAIN, b""), (spawning.T_MOUNT, mount)]
            for mount in (
                b"",
                b"\0/x\0/x",
                b"\x08/x\0/x",
                b"\1x\0/x",
                b"\1/x",
                b"\1/x\0x",
                b"\1/x\0/x\0",
                b"\1/x/../y\0/x",
            )
        ),
        [(spawning.T_CONTAIN, b""), *[(spawning.T_MOUNT, b"\3/x\0x")] * (CONTAINED_PATHS + 1)],
        [(spawning.T_CGROUP, b"x")],
        [(spawning.T_CONNECT, b"/x")],
        [(spawning.T_CONTAIN, b""), (spawning.T_CONNECT, b"/x")],
        *(
            [(spawning.T_CONTAIN, b""), (spawning.T_NET, b"\1" + bytes(7)), *connect]
            for connect in (
                [(spawning.T_CONNECT, b"x")],
                [(spawning.T_CONNECT, b"")],
                [(spawning.T_CONNECT, b"/x")] * (CONNECT_COMMANDS + 1),
            )
        ),
    ],
)
def test_t4_a_containment_that_cannot_be_meant_is_refused(more: list[tuple[int, bytes]]) -> None:
    with pytest.raises(wire.Malformed):
        wire.read_spawn(tagged(*parts(SOUND), *more))
    adopting = parts(SOUND._replace(adopt_pid=7))
    with pytest.raises(wire.Malformed):
        wire.read_spawn(tagged(*adopting, (spawning.T_CONTAIN, b"")))


@pytest.mark.parametrize(
    ("kind", "value"), [(16, 1), (130, 1), (6, -1), (128, 1001), (128, -1001), (129, 20)]
)
def test_t4_a_limit_that_cannot_be_meant_is_refused(kind: int, value: int) -> None:
    with pytest.raises(wire.Malformed, match="a limit"):
        wire.read_spawn(tagged(*parts(SOUND), (spawning.T_LIMIT, spawning.LIMIT.pack(kind, value))))
    sound = (spawning.T_LIMIT, spawning.LIMIT.pack(6, 1))
    with pytest.raises(wire.Malformed, match="taken over"):
        wire.read_spawn(tagged(*parts(SOUND._replace(adopt_pid=7)), sound))
    with pytest.raises(wire.Malformed):
        wire.read_spawn(tagged(*parts(SOUND), (spawning.T_LIMIT, sound[1][:-1])))


def test_packers_refuse_the_values_that_readers_refuse() -> None:
    with pytest.raises(wire.Malformed):
        wire.label(bytes(LABEL_BYTES + 1))
    with pytest.raises(wire.Malformed):
        wire.spawn(SOUND._replace(ring_tail=bytes(SPAWN_BYTES)))


def test_the_nurserys_command_stands_alone() -> None:
    """The command depends neither on PYTHONPATH nor on site packages."""
    command = wire.nursery_command("/run/x")
    assert command[-1] == "/run/x" and Path(command[-2]).is_file() and "-I" in command
