"""Facts about a session that a fork notes (R5)."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from holdfast.host.branches import parts
from holdfast.host.branches.store import Fork, decode, encode
from holdfast.wire.spawning import MOUNT_READ, MOUNT_WRITE, Mount


def test_r5_the_doors_of_a_session_are_sockets_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "server"))
    mounts = [
        Mount(MOUNT_READ, b"/etc/file", os.fsencode(tmp_path / "file")),
        Mount(MOUNT_READ, b"/run/doors/server", os.fsencode(tmp_path / "server")),
        Mount(MOUNT_WRITE, b"/work", os.fsencode(tmp_path)),
        Mount(MOUNT_READ, b"/gone", os.fsencode(tmp_path / "gone")),
    ]
    assert parts.servers(mounts) == ["/run/doors/server"]


def test_r5_a_fork_of_an_earlier_release_can_be_read() -> None:
    fork = Fork("fk-1", 1.0, "ann", "p", "parent", 1, 1, "", servers=["/run/doors/docker"])
    assert decode(encode(fork)) == fork
    earlier = json.loads(encode(fork))
    del earlier["servers"]
    assert decode(json.dumps(earlier).encode()).servers == []
