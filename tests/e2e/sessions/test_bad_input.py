"""Wrong input of clients: each gets a typed answer or is disconnected; the host is undisturbed."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.core.contract.codec import request_fields
from holdfast.core.contract.table import OPERATIONS
from holdfast.model.errors import HoldfastError, Usage
from holdfast.model.limits import (
    CLIENTS_MAX,
    FRAME_BYTES,
    HELLO_WAIT_S,
    INPUT_CHUNK_BYTES,
    REQUEST_BYTES,
)
from holdfast.wire import frames
from tests.support.commands.results import the_error
from tests.support.installation import SOON_S, Installation, eventually, installation
from tests.support.peers.raw_client import HELLO, Raw


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.new("cat", "--", "cat")
        yield made


@pytest.fixture(autouse=True)
def unharmed(hf: Installation) -> Iterator[None]:
    """After any input: the same host answers, the same session runs, no traceback in the log."""
    pid, session = hf.host_pid, hf.get("cat")
    yield
    again = eventually(
        lambda: (found := hf.get("cat"))["state"] == "detached" and found,
        "attached clients to have gone",
    )
    assert hf.host_pid == pid
    assert (again["id"], again["pid"]) == (session["id"], session["pid"])
    assert "Traceback" not in (hf.home / "host.log").read_text()


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100,
        b"\xff" * 100,
        random.Random(1).randbytes(4096),
        frames.frame(0x7F, b""),
        frames.frame(frames.REPLY, b"x" * 10),
        struct.pack("<IB", REQUEST_BYTES + 1, frames.HELLO),
        struct.pack("<IB", 0xFFFFFFFF, frames.INPUT),
        frames.frame(frames.HELLO, b""),
        frames.frame(frames.HELLO, b"{"),
        frames.frame(frames.HELLO, b"[]"),
        frames.frame(frames.HELLO, b"\xff\xfe"),
        frames.frame(frames.HELLO, b"[" * 100_000),
        frames.frame(frames.HELLO, b"1" * 10_000),
        frames.frame(frames.HELLO, b'{"version": NaN}'),
        frames.request(1, {"op": "ping"}),
        frames.input_(1, b"x"),
        frames.resize(1, 80, 24),
        frames.cancel(1),
    ],
    ids=lambda b: repr(b[:12]),
)
def test_before_the_introduction_every_other_frame_is_refused(
    hf: Installation, garbage: bytes
) -> None:
    raw = Raw(hf, hello=False).send(garbage)
    last = raw.farewell()
    assert last is not None and last["reason"] in ("protocol", "version") and last["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0, "lowest": 0},
        {"version": 99, "lowest": 99},
        {"version": "1"},
        {"version": None},
        {"version": True, "lowest": True},
        {"lowest": frames.VERSION + 1},
        {"client": 0},
        {"client": 1},
        {"client": -1},
        {"client": 1 << 64},
        {"client": "x"},
        {"client": None},
        {"client": 1.5},
        {"client": True},
        {"operator": ""},
        {"operator": "a b"},
        {"operator": 7},
        {"operator": "x" * 65},
        {"operator": "\x1b[31m"},
        {"operator": "é"},
        {"operator": "-x"},
        {"modality": None},
        {"modality": ""},
        {"modality": ["cli"]},
        {"key": None},
        {"key": "ed25519:"},
        {"key": "ed25519:" + "A" * 42},
        {"key": "rsa:x"},
    ],
    ids=lambda c: json.dumps(c),
)
def test_an_introduction_that_is_wrong_is_refused_with_the_reason(
    hf: Installation, change: dict[str, Any]
) -> None:
    last = Raw(hf, hello=False).send(frames.pack_json(frames.HELLO, {**HELLO, **change})).farewell()
    assert last is not None and last["reason"] in ("protocol", "version")
    assert all(c.isprintable() for c in last["message"])


def test_a_newer_client_that_still_speaks_ours_is_welcome(hf: Installation) -> None:
    raw = Raw(hf, hello=False)
    kind, payload = raw.introduce(hf, 77, version=99, unknown={"field": 1})
    assert kind == frames.WELCOME
    welcome = frames.read_json(payload)
    assert (
        welcome["version"] == frames.VERSION
        and welcome["pid"] == hf.host_pid
        and welcome["home"] == str(hf.home)
    )
    raw.close()


@pytest.mark.parametrize(
    "garbage",
    [
        frames.pack_json(frames.HELLO, HELLO),
        frames.frame(frames.REQUEST, b""),
        frames.frame(frames.REQUEST, b"\1\0\0"),
        frames.frame(frames.REQUEST, b"\1\0\0\0"),
        frames.frame(frames.REQUEST, b"\1\0\0\0[]"),
        frames.frame(frames.REQUEST, b'\1\0\0\0{"op":'),
        frames.frame(frames.RESIZE, b"x"),
        frames.frame(frames.RESIZE, b"x" * 13),
        frames.frame(frames.CANCEL, b"xxxxx"),
        frames.frame(0x86, b""),
        struct.pack("<IB", REQUEST_BYTES + 1, frames.REQUEST),
        frames.request(5, {"op": "wait", "session": "cat", "for": "exit"}) * 2,
    ],
    ids=lambda b: repr(b[:12]),
)
def test_after_the_introduction_an_invalid_frame_ends_the_connection(
    hf: Installation, garbage: bytes
) -> None:
    last = Raw(hf).send(garbage).farewell()
    assert last is not None and last["reason"] == "protocol"


def test_frames_may_arrive_in_any_pieces(hf: Installation) -> None:
    raw = Raw(hf)
    data = frames.request(1, {"op": "ping"}) + frames.request(2, {"op": "who", "session": "cat"})
    for byte in data:
        raw.send(bytes([byte]))
    assert {frames.read_reply(raw.frame()[1])[0] for _ in range(2)} == {1, 2}
    raw.close()


def test_a_connection_cut_in_the_middle_of_a_frame_is_forgotten(hf: Installation) -> None:
    data = frames.request(1, {"op": "send", "session": "cat", "text": "never", "seq": 1})
    for cut in range(1, len(data), 7):
        Raw(hf).send(data[:cut]).close()
    assert "never" not in hf.screen("cat")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"1234",
        struct.pack("<QB", 0, 0) + b"x",
        struct.pack("<QB", 1, 0) + b"x" * (INPUT_CHUNK_BYTES + 1),
    ],
    ids=lambda b: f"{len(b)} bytes",
)
def test_an_input_that_is_none_ends_the_connection(hf: Installation, payload: bytes) -> None:
    raw = Raw(hf)
    assert raw.ask({"op": "attach", "session": "cat", "cols": 80, "rows": 24})[0]
    last = raw.send(frames.frame(frames.INPUT, payload)).farewell()
    assert last is not None and last["reason"] == "protocol"


def test_input_without_an_attachment_is_refused(hf: Installation) -> None:
    raw = Raw(hf).send(frames.input_(1, b"nobody"))
    kind, payload = raw.frame()
    assert kind == frames.EVENT and frames.read_json(payload)["name"] == "refused"
    raw.close()
    assert "nobody" not in hf.screen("cat")


# ---------------------------------------------------------------- requests

WRONG: list[Any] = [
    None,
    True,
    -1,
    1 << 63,
    1 << 70,
    1.5,
    float("nan"),
    float("inf"),
    -1.0,
    "",
    "x" * 5000,
    "\0",
    "\ud800",
    "\udcff",
    [],
    [[]],
    [None],
    {},
    {"a": 1},
]


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - {"down", "doctor"}))
def test_every_field_of_every_operation_refuses_wrong_types(hf: Installation, op: str) -> None:
    """Answered with a typed error or a good answer; never with silence or an internal error."""
    good: dict[str, Any] = {
        "session": "nothere",
        "name": "x",
        "ref": "hf:x",
        "text": "x",
        "seq": 1,
        "for": "idle",
        "cols": 80,
        "rows": 24,
        "argv": [],
        "cwd": "relative",
        "env": {},
        "act": "release",
        "size": None,
        "kind": "agent",
        "key": "ed25519:x",
        "signed": {"statement": "{}", "signature": "00", "salt": "00"},
        "id": "0123456789ab",
        "binding": "00",
        "signature": "00",
        "verifier": "ed25519:x",
        "rights": ["observe"],
        "accept": False,
        "device": "x",
        "to": "x",
        "pid": 1,
        "signal": "TERM",
        "path": "x",
        "record": "nothere",
        "seqs": [1],
        "checkpoint": "cp-000000000000",
        "epoch": 1,
        "sha256": "00" * 32,
        "length": 1,
        "facts": [],
        "needs": [],
        "bytes": 1,
        "entry": {},
        "trusted": True,
        "hashes": [],
    }
    fields = request_fields(OPERATIONS[op].request)
    base = {name: good[name] for name in fields if name in good}
    raw = Raw(hf)
    number = 1
    for name in fields:
        for value in WRONG:
            if name in ("follow", "existing") and value is True:
                continue
            number += 1
            ok, body = raw.ask({"op": op, **base, name: value}, number)
            assert ok or (body["name"] != "error" and body["code"] in (2, 3, 4, 7)), (
                name,
                value,
                body,
            )
    ok, body = raw.ask({"op": op, **base, "nonsense": 1}, number + 1)
    assert not ok and body["name"] == "usage" and "nonsense" in body["message"]
    required = [name for name, field in fields.items() if field.required]
    for name in required:
        ok, body = raw.ask({"op": op, **{k: v for k, v in base.items() if k != name}}, number + 2)
        assert not ok and body["name"] == "usage" and name in body["message"]
    raw.close()


@pytest.mark.parametrize(
    "op", ["", "nonsense", "__init__", None, 7, ["ping"], {"op": "ping"}, "x" * 9000]
)
def test_an_unknown_operation_is_refused_by_name(hf: Installation, op: Any) -> None:
    raw = Raw(hf)
    ok, body = raw.ask({"op": op})
    assert (
        not ok
        and body["name"] == "usage"
        and "unknown operation" in body["message"]
        and len(body["message"]) < 200
    )
    assert raw.ask({"op": "ping"}, 2)[0]
    raw.close()


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (65535, 65535), (1 << 40, 5), (2, 1_000_000)])
def test_a_viewer_of_a_degenerate_size_costs_nothing(
    hf: Installation, size: tuple[int, int]
) -> None:
    raw = Raw(hf)
    begun = time.monotonic()
    assert raw.ask({"op": "attach", "session": "cat", "cols": size[0], "rows": size[1]})[0]
    raw.send(frames.resize(1, min(size[0], 65535), min(size[1], 65535)))
    assert raw.ask({"op": "refresh"}, 2)[0]
    assert raw.ask({"op": "ping"}, 3)[0]
    assert time.monotonic() - begun < SOON_S
    assert hf.get("cat")["size"] == {"cols": 80, "rows": 24}
    raw.close()
    eventually(lambda: not hf.get("cat")["operators"], "the viewer to go")


def test_requests_under_way_are_bounded_per_client(hf: Installation) -> None:
    raw = Raw(hf)
    many = 5000
    for n in range(many):
        raw.send(
            frames.request(n + 1, {"op": "wait", "session": "cat", "for": "exit", "timeout": 0.0})
        )
    ok, body = raw.ask({"op": "ping"}, many + 1)
    assert not ok and body["name"] == "refused" and body["message"]
    for n in range(many):
        raw.send(frames.cancel(n + 1))
    eventually(lambda: raw.ask({"op": "ping"}, many + 2)[0], "room for a request again")
    raw.close()


def test_a_client_that_does_not_read_its_answers_is_let_go(hf: Installation) -> None:
    raw = Raw(hf)
    raw.sock.settimeout(5)
    request = frames.request(1, {"op": "view", "session": "cat", "ansi": True})
    with pytest.raises((OSError, AssertionError)):
        for _ in range(200_000):
            raw.send(request)
    raw.close()


def test_thousands_of_connections_that_say_nothing_are_bounded_and_go(hf: Installation) -> None:
    """They cost descriptors up to a limit, for the time of an introduction."""
    silent = []
    try:
        for _ in range(CLIENTS_MAX + 500):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(str(hf.home / "run/host.sock"))
            except BlockingIOError:
                sock.close()
                break
            silent.append(sock)
        descriptors = len(os.listdir(f"/proc/{hf.host_pid}/fd"))
        assert descriptors < CLIENTS_MAX + 100
        assert hf.cli("ls").rc == 0, "a client could not get in when the silent ones had to go"
    finally:
        for sock in silent:
            sock.close()
    assert HELLO_WAIT_S <= 5
    eventually(
        lambda: len(os.listdir(f"/proc/{hf.host_pid}/fd")) < 100, "the descriptors to be closed"
    )


# ---------------------------------------------------------------- names


def test_names_with_every_odd_character(hf: Installation) -> None:
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    argv: dict[str, Any] = {"argv": ["cat"], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}}
    odd = [
        chr(c)
        for c in (
            *range(0x80),
            0x85,
            0xA0,
            0xAD,
            0xE9,
            0x200B,
            0x202E,
            0x2028,
            0xFEFF,
            0x1F600,
            0xD800,
            0xDCFF,
        )
    ]
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._")
    for name in (
        *[f"n{c}x" for c in odd if c not in allowed | {"-"}],
        *[c for c in odd if c not in allowed],
        "",
        "-x",
        "x" * 65,
        "n\n",
        "..\n",
        "0123456789ab",
    ):
        for op, fields in (
            ("new", {"name": name, **argv}),
            ("rename", {"session": "cat", "name": name}),
        ):
            if op == "new" and not name:
                continue  # no value given: one is chosen
            with pytest.raises(Usage) as refused:
                link.request(op, **fields)
            assert refused.value.message.isascii() and refused.value.message.isprintable(), (
                name,
                refused.value,
            )
    for name in ("a", "_", "...", "..", ".", "A-b_c.9", "0", "x" * 64):
        body = link.request("new", name=name, **argv)
        assert body["name"] == name, body
        assert hf.ok("who", name, "--json").json["id"] == body["id"]
        hf.end(body["id"])
        hf.quick("forget", name)
    eventually(
        lambda: os.listdir(hf.home / "run/s") == [hf.get("cat")["id"]],
        "the files of ended sessions to go",
    )
    link.close()


# ---------------------------------------------------------------- programs and their surroundings


def test_a_missing_program_and_a_missing_directory_are_usage(
    hf: Installation, tmp_path: Path
) -> None:
    (tmp_path / "noexec").write_text("#!/bin/sh\n")
    (tmp_path / "badinterp").write_text("#!/nonexistent/interp\n")
    os.chmod(tmp_path / "badinterp", 0o755)
    for args in (
        ("--", "nosuchprogram"),
        ("--", str(tmp_path)),
        ("--", str(tmp_path / "noexec")),
        ("--", str(tmp_path / "badinterp")),
        ("--", ""),
        ("--cwd", str(tmp_path / "noexec")),
        ("--cwd", str(tmp_path / "gone")),
        ("--cwd", "x" * 5000),
    ):
        error = the_error(hf.attempt("new", "missing", "--json", *args), 2)
        assert error["recover"]
    assert [s["name"] for s in hf.ls("--all")] == ["cat"]


def test_a_deleted_working_directory_is_no_obstacle(hf: Installation, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    result = hf.spawn(
        [
            "sh",
            "-c",
            f"cd {gone}; rmdir {gone}; python -m holdfast new deleted --no-attach; "
            "python -m holdfast ls; echo rc=$?",
        ],
        env={"PATH": hf.env["PATH"]},
    )
    result.wait()
    assert b"rc=0" in result.output and b"Traceback" not in result.output
    assert os.path.isdir(hf.get("deleted")["cwd"])
    hf.end("deleted")
    hf.quick("forget", "deleted")


def test_a_huge_environment_is_passed_or_refused_but_never_cut(hf: Installation) -> None:
    big = {f"VAR{i}": "v" * 1000 for i in range(900)}
    made = hf.new("big", "--", "cat", env=big)
    inside = Path(f"/proc/{made['pid']}/environ").read_bytes().split(b"\0")
    assert sum(item.startswith(b"VAR") for item in inside) == 900
    hf.end("big")
    hf.quick("forget", "big")
    with pytest.raises(Usage):  # the kernel takes 128 KiB per string
        hf.ask("new", argv=["cat"], cwd="/", env={"X": "y" * 200_000, "PATH": "/bin"})
    many = {f"V{i}": "w" * 100_000 for i in range(25)}
    raw = Raw(hf)
    data = frames.request(1, {"op": "new", "argv": ["cat"], "cwd": "/", "env": many})
    assert len(data) > REQUEST_BYTES
    last = raw.push(data[:REQUEST_BYTES]).farewell()
    assert last is not None and str(REQUEST_BYTES) in last["message"]


def test_a_request_too_large_to_send_is_usage_before_it_is_sent(hf: Installation) -> None:
    error = the_error(
        hf.attempt("send", "cat", "-", "--json", stdin=b"x\n" * (REQUEST_BYTES // 2)), 2
    )
    assert str(REQUEST_BYTES) in error["message"]
    the_error(hf.attempt("run", "cat", "--json", "-", stdin=b":\n" * 700_000), 2)


def test_arguments_of_any_length_do_not_break_the_listing(hf: Installation) -> None:
    made = hf.new("long", "--", "sh", "-c", "read x; : " + "a" * 100_000, "sh", "é" * 20_000)
    assert made["argv"][-1] == "..."
    assert len(hf.ok("ls", "--json").raw) < 10_000
    term = hf.ask("ping")["term"]
    os.kill(hf.host_pid, 1)  # replaced in place: the keeper's state must be enough

    def replaced() -> bool:
        try:
            return bool(hf.ask("ping")["term"] > term)
        except HoldfastError:
            return False

    eventually(replaced, "the next host")
    assert hf.get("long")["pid"] == made["pid"]
    hf.end("long")
    hf.quick("forget", "long")


def test_arbitrary_bytes_never_disturb_the_host(hf: Installation) -> None:
    """A short fuzz over the real socket; the pure parsers are fuzzed for longer in tests/fuzz."""
    dice = random.Random(1)
    good = [
        frames.request(1, {"op": "ls"}),
        frames.input_(1, b"x"),
        frames.resize(1, 5, 5),
        frames.cancel(9),
        frames.request(2, {"op": "refresh"}),
    ]
    for _ in range(150):
        raw = Raw(hf, hello=dice.random() < 0.8)
        data = bytearray(b"".join(dice.choice(good) for _ in range(dice.randrange(1, 4))))
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            raw.send(bytes(data))
            raw.sock.shutdown(socket.SHUT_WR)
            while raw.sock.recv(65536):
                pass
        except OSError:
            pass
        raw.close()
    assert FRAME_BYTES > REQUEST_BYTES
