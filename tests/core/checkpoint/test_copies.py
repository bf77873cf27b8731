"""Descriptions of copies: what a receiver accepts and refuses (core/checkpoint/copies.py)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint.copies import Copy, Entry, Machine, Need, Root, Unusable

SHA = "ab" * 32
HERE = Machine("x86_64", ("avx", "sse2"), "6.18.44", 0, 0, "/root", "4.2.1")
COPY = Copy(
    "0123456789ab",
    "work",
    "cp-0123456789ab",
    3,
    1000.5,
    1001.5,
    True,
    "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "desk",
    HERE,
    (Need("/usr/bin/bash", 10, SHA),),
    {"manifest.json": (5, SHA), f"objects/{SHA}": (5, SHA)},
    (
        Root(
            "shared",
            "/home/ann/code",
            (
                Entry("", "d", 0o755, 0, 0, 1, 0, ""),
                Entry("src", "d", 0o755, 0, 0, 1, 0, ""),
                Entry("src/a", "f", 0o644, 0, 0, 1, 7, "cd" * 32),
                Entry("link", "l", 0o777, 0, 0, 1, 0, "/etc/passwd"),
            ),
        ),
    ),
    ((1, "/home/ann/code/.git/hooks", "/home/ann/code/.git/hooks"),),
    "none",
    (12, "aa"),
)


def changed(**fields: Any) -> bytes:
    return json.dumps({**asdict(COPY), **fields}).encode()


def tree(*entries: tuple[str, str]) -> list[Any]:
    made = [[p, k, 0o644, 0, 0, 1, 0, SHA if k == "f" else "x"] for p, k in entries]
    return [["shared", "/w", made]]


def test_a_description_is_read_back() -> None:
    assert copies.decode(copies.encode(COPY)) == COPY
    assert copies.objects(COPY) == {SHA: 5, "cd" * 32: 7}


@pytest.mark.parametrize(
    "entries",
    [
        [("../etc", "f")],
        [("/etc", "f")],
        [("a", "l"), ("a/b", "f")],
        [("a/b", "f")],
        [("a", "d"), ("a/..", "d")],
        [("a", "f"), ("a", "f")],
        [("a\0", "f")],
        [("a", "s")],
        [("", "l")],
        [("a", "d"), ("", "d")],
    ],
)
def test_t4_a_tree_that_leaves_its_place_is_refused(entries: list[tuple[str, str]]) -> None:
    with pytest.raises(Unusable):
        copies.decode(changed(roots=tree(*entries), mounts=[]))


@pytest.mark.parametrize("target", ["/", "/proc", "/dev/x", "relative", "/a/../b", "/.holdfast/x"])
def test_t4_a_place_of_the_system_cannot_be_brought(target: str) -> None:
    with pytest.raises(Unusable):
        copies.decode(changed(roots=[["shared", target, []]], mounts=[]))


def test_t4_a_mount_that_does_not_travel_is_refused() -> None:
    for target, source in (("/etc", "/etc"), ("/home/ann/code", "/root/.ssh")):
        with pytest.raises(Unusable):
            copies.decode(changed(mounts=[[1, target, source]]))


@pytest.mark.parametrize(
    "fields",
    [
        {"format": 2},
        {"session": "../x"},
        {"name": "\x1b[2J"},
        {"name": "ba9876543210"},
        {"sender_name": "desk\n\x1b[2J"},
        {"checkpoint": "x"},
        {"parts": {"../x": [1, SHA]}},
        {"parts": {"x": [1, "short"]}},
        {"parts": {"x": [-1, SHA]}},
        {"parts": {"x": [1, SHA]}},
        {"parts": {"key": [1 << 20, SHA]}},
        {"parts": {"manifest.json": [1 << 40, SHA]}},
        {"parts": {"manifest.json": [6, SHA], f"objects/{SHA}": [5, SHA]}},
        {"epoch": 1.5},
        {"net": "else"},
        {"record": [float("inf"), ""]},
        {"needs": [["etc/passwd", 1, SHA]]},
        {"needs": [["/a\0b", 1, SHA]]},
        {"needs": [["/\ud800", 1, SHA]]},
        {"needs": [["/a", 1, "x"]]},
        {"mounts": [[1, "/home/ann/code/\0", "/home/ann/code"]]},
        {"epoch": -1},
        {"roots": [["elsewhere", "", []]]},
        {"needs": [1]},
        {"machine": []},
    ],
)
def test_a_description_that_cannot_be_used_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Unusable):
        copies.decode(changed(**fields))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Unusable):
        copies.decode(data)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3)))
def test_a_field_of_any_form_is_refused_or_read(value: Any) -> None:
    for name in asdict(COPY):
        try:
            copies.decode(changed(**{name: value}))
        except Unusable:
            pass


def test_r2_the_differences_of_two_machines_are_named() -> None:
    assert copies.differences(HERE, HERE) == ()
    newer = HERE._replace(flags=("avx", "avx512f", "sse2"), kernel="6.19.0", uid=1000)
    found = " ".join(copies.differences(newer, HERE))
    assert "avx512f" in found and "6.19.0" in found and "1000" in found
    assert copies.differences(HERE, newer._replace(uid=0)) == ()
    [arch] = copies.differences(HERE._replace(processor="aarch64"), HERE)
    assert "aarch64" in arch


@given(st.integers(1, 1 << 40))
def test_r3_a_takeover_has_a_later_epoch_than_the_lost_machine(epoch: int) -> None:
    assert copies.next_epoch(epoch, lost=False) == epoch + 1
    assert copies.next_epoch(epoch, lost=True) > epoch
    assert copies.next_epoch(epoch, lost=True) % copies.LOST_EPOCHS == 0


def test_retries_become_rarer_within_a_bound() -> None:
    pauses = [copies.retry_s(n) for n in range(40)]
    assert pauses[:3] == [5.0, 10.0, 20.0] and pauses[-1] == copies.RETRY_MAX_S
    assert replace(COPY, epoch=4) != COPY


def test_t4_two_trees_in_one_place_are_refused() -> None:
    """A link of the first could lead a file of the second to any place of the machine."""
    link, file = ["a", "l", 0o777, 0, 0, 1, 0, "/etc"], ["a", "f", 0o644, 0, 0, 1, 0, SHA]
    for role, target in (("private", ""), ("shared", "/w")):
        with pytest.raises(Unusable):
            copies.decode(
                changed(roots=[[role, target, [link]], [role, target, [file]]], mounts=[])
            )


@pytest.mark.parametrize("role", ["readable", "notes"])
def test_t4_a_link_where_the_host_writes_is_refused(role: str) -> None:
    for kind in "lp":
        entries = [["token", kind, 0o777, 0, 0, 1, 0, "/etc/passwd"]]
        with pytest.raises(Unusable):
            copies.decode(changed(roots=[[role, "", entries]], mounts=[]))


@pytest.mark.parametrize(
    "entries",
    [
        [["x" * 256, "f", 0o644, 0, 0, 1, 0, SHA]],
        [["\ud800", "f", 0o644, 0, 0, 1, 0, SHA]],
        [["a", "l", 0o777, 0, 0, 1, 0, "x" * 5000]],
        [["a", "f", 0o644, 0, 0, 1 << 70, 0, SHA]],
        [["a", "f", 0o644, 0, 0, 1, 1, SHA], ["b", "f", 0o644, 0, 0, 1, 2, SHA]],
        [[f"{n}", "f", 0o644, 0, 0, 1, 1 << 30, SHA] for n in range(9)],
    ],
)
def test_t4_a_file_that_the_disk_cannot_have_is_refused(entries: list[Any]) -> None:
    with pytest.raises(Unusable):
        copies.decode(changed(roots=[["shared", "/w", entries]], mounts=[]))


def test_the_room_of_a_session_counts_every_file() -> None:
    assert copies.laid_out_bytes(COPY) == 5 + 5 + 7
