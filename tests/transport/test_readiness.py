"""Messages to a service manager: one datagram, or none at all."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import pytest

from holdfast.transport import readiness


@pytest.mark.parametrize("abstract", [False, True])
def test_the_words_arrive_as_one_datagram(tmp_path: Path, abstract: bool) -> None:
    name = f"@holdfast-{secrets.token_hex(8)}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        assert readiness.tell(name, readiness.READY, "STATUS=serves")
        assert manager.recv(4096, socket.MSG_DONTWAIT) == b"READY=1\nSTATUS=serves"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify", "@nobody-listens-here"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    assert not readiness.tell(address, readiness.READY)


def test_a_manager_that_does_not_listen_causes_no_wait(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        while readiness.tell(name, readiness.READY):
            pass
