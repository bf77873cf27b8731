"""A checkpoint goes only to a processor with every feature that its programs may use (R2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.checkpoint.processor import explain, features, missing
from holdfast.host.checkpoints import machine
from holdfast.wire.checkpointing import Criu
from holdfast.wire.spawning import (
    MOUNT_DEVICE,
    MOUNT_EMPTY,
    MOUNT_FIXED,
    MOUNT_LAYERED,
    MOUNT_LINK,
    MOUNT_READ,
    MOUNT_WRITE,
    Containment,
    Mount,
)
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

X86 = "processor\t: {}\nflags\t\t: fpu sse2 avx2 {} retpoline ibrs_enhanced md_clear\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\n"


def test_r2_only_features_count_that_programs_may_use() -> None:
    assert features(X86.format(0, "avx512f") + X86.format(1, "avx512f")) == [
        *("avx2", "avx512f", "sse2"),
    ]
    assert features(X86.format(0, "avx512f") + X86.format(1, "")) == ["avx2", "sse2"]
    assert features(ARM) == ["asimd", "fp", "sve"]
    assert features("") == []


def test_r2_a_feature_that_is_missing_is_named() -> None:
    assert missing("sse2 avx2", ["avx2", "fma", "sse2"]) == []
    assert missing("sse2 avx2", ["sse2"]) == ["avx2"]
    assert missing("", []) == []
    assert "lacks avx2, which" in explain(["avx2"])
    assert explain(list("abcdefgh")).endswith("f and 2 more, which its programs may use")


def test_r2_this_machine_can_restore_what_it_saved() -> None:
    tool = Criu("/nonexistent", "/nonexistent", (), "4.2.1")
    made = machine.facts(tool, "boot")
    assert machine.obstacle(made, tool) == ""
    assert "lacks avx1024" in machine.obstacle({**made, "features": "avx1024"}, tool)
    other = machine.obstacle({**made, "processor": "riscv64"}, tool)
    assert other == f"it was made on riscv64; this machine is {os.uname().machine}"


def test_r2_another_kernel_is_tried_in_namespaces() -> None:
    broken = Criu("/nonexistent", "/nonexistent", (), "4.2.1")
    made = {**machine.facts(broken, "boot"), "kernel": "1.2.3"}
    assert "cannot restore programs: FileNotFoundError" in machine.obstacle(made, broken)
    assert machine.obstacle(made, criu()) == ""


@pytest.mark.skipif(os.getuid() != 0, reason="it is being run as an ordinary user")
def test_r2_an_ordinary_user_may_go_on_under_another_kernel() -> None:
    criu()
    passes_as_ordinary_user(__file__)


def test_r2_only_places_that_were_read_may_be_missing(tmp_path: Path) -> None:
    there, linked, gone = tmp_path / "there", tmp_path / "linked", tmp_path / "gone"
    there.mkdir()
    linked.symlink_to(there)

    def mount(kind: int, source: Path) -> Mount:
        return Mount(kind, b"/inside", os.fsencode(source))

    stays = [mount(MOUNT_READ, there), mount(MOUNT_LINK, Path("text")), mount(MOUNT_EMPTY, gone)]
    stays += [mount(kind, gone) for kind in (MOUNT_WRITE, MOUNT_FIXED, MOUNT_LAYERED)]
    leaves = [mount(kind, one) for kind in (MOUNT_READ, MOUNT_DEVICE) for one in (gone, linked)]
    found = machine.still_there(Containment((*leaves, *stays)))
    assert found == Containment(tuple(stays))
