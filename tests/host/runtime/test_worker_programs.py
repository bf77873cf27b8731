"""A nursery becomes a worker program of the host."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.runtime import worker_programs
from holdfast.host.runtime.worker_programs import WorkerProgram
from tests.support.keeper import Nursery

WORKER = """
import os, socket, sys
line = socket.socket(fileno=int(sys.argv[1]))
line.send(b"%d" % os.getpgrp())
line.recv(1)
"""


@pytest.fixture(autouse=True)
def started_by_the_nursery(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> Iterator[None]:
    nursery = Nursery(short_path)
    known = (str(short_path / "nursery.sock"), [b"PATH=/usr/bin"])
    monkeypatch.setattr(worker_programs, "_nursery", [known])
    yield
    nursery.close()


def test_a_worker_gets_its_descriptors_and_leads_a_group() -> None:
    ours, theirs = socket.socketpair()
    worker = WorkerProgram([sys.executable, "-c", WORKER], (theirs.fileno(),))
    theirs.close()
    with ours:
        assert ours.recv(100) == b"%d" % worker.pid
    worker.wait()


def test_a_worker_whose_program_is_missing_is_refused_with_the_reason() -> None:
    with pytest.raises(OSError, match="/nonexistent/python cannot be executed") as refused:
        WorkerProgram(["/nonexistent/python"], ())
    assert refused.value.errno == errno.ENOENT
