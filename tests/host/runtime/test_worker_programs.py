"""A nursery becomes a worker program of the host."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.runtime import worker_programs
from holdfast.host.runtime.worker_programs import WorkerProgram
from tests.support.keeper import Nursery


@pytest.fixture(autouse=True)
def started_by_the_nursery(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Iterator[None]:
    nursery = Nursery(short_path)
    known = (str(short_path / "nursery.sock"), [b"PATH=/usr/bin"])
    monkeypatch.setattr(worker_programs, "_nursery", [known])
    yield
    nursery.close()


def test_a_worker_gets_its_descriptors_and_leads_a_group() -> None:
    ours, theirs = os.pipe()
    code = "import os, sys; os.write(int(sys.argv[1]), b'%d' % os.getpgrp())"
    worker = WorkerProgram([sys.executable, "-c", code], (theirs,))
    os.close(theirs)
    with open(ours, "rb") as said:
        assert said.read() == b"%d" % worker.pid
    worker.wait()


def test_a_worker_whose_program_is_missing_is_refused_with_the_reason() -> None:
    with pytest.raises(OSError, match="/nonexistent/python cannot be executed") as refused:
        WorkerProgram(["/nonexistent/python"], ())
    assert refused.value.errno == errno.ENOENT
