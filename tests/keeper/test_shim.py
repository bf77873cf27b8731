"""The library that CRIU is loaded with is the one of the source."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdfast.checkpointer import shim

HERE = Path(shim.__file__).parent


def test_the_shim_is_compiled_from_its_source() -> None:
    source = hashlib.sha256((HERE / "shim.c").read_bytes()).hexdigest()
    assert source == shim.SOURCE_SHA256, "run scripts/build_shim"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_there_is_a_shim_for_each_machine(machine: str) -> None:
    assert shim.library(machine).startswith(b"\x7fELF")
