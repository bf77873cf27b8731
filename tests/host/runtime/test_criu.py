"""CRIU is asked whether the kernel allows restores, also without capabilities."""

from __future__ import annotations

import os
import shutil

import pytest

from holdfast.host.runtime import criu
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu as installed


def test_criu_finds_this_kernel_good() -> None:
    assert criu.check(installed(), ordinary=os.geteuid() != 0) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="it is being run as an ordinary user")
def test_criu_finds_this_kernel_good_for_an_ordinary_user() -> None:
    installed()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
