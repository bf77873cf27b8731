"""CRIU is asked whether the kernel allows restores, also without capabilities."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import pytest

from holdfast.home import programs
from holdfast.host.runtime import criu
from holdfast.host.runtime.worker_programs import WorkerProgram
from holdfast.wire.checkpointing import Criu
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


def test_a_criu_that_does_not_answer_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[WorkerProgram]()

    class Worker(WorkerProgram):
        def __init__(self, *asked: Any) -> None:
            super().__init__(*asked)
            made.append(self)

    sleeping = [sys.executable, "-c", "import signal; signal.pause()"]
    monkeypatch.setattr(criu, "_TRIAL_S", 0.1)
    monkeypatch.setattr(criu, "WorkerProgram", Worker)
    monkeypatch.setattr(programs, "module", lambda *_: sleeping)
    said = criu.check(Criu("criu", "", ()), ordinary=True)
    assert said == "CRIU does not answer within 0.1 s"
    [worker] = made
    try:
        assert worker.over
    finally:
        worker.kill()
