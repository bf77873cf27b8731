"""A request to CRIU, with another program in the place of CRIU."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from holdfast.checkpointer import rpc
from holdfast.checkpointer.criu import Call, Failed, Opened


class Stub:
    """What a call needs of CRIU's files."""

    opener = None
    pipes = ()

    def command(self, *more: bytes) -> tuple[bytes, tuple[bytes, ...]]:
        return b"criu", more


def test_the_end_of_criu_ends_the_call_though_another_process_has_the_socket(
    tmp_path: Path,
) -> None:
    """As when the kernel kills CRIU for memory while it restores processes."""
    reader, writer = os.pipe()

    def execute(path: bytes, argv: tuple[bytes, ...], environment: dict[bytes, bytes]) -> None:
        restored = os.fork()
        while not restored:
            signal.pause()
        os.write(writer, b"%d" % restored)
        os.kill(os.getpid(), signal.SIGKILL)

    images = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    criu = cast(Opened, Stub())
    try:
        with pytest.raises(Failed, match="CRIU ended without an answer"):
            Call(criu, images, rpc.RESTORE, {}, execute=execute).run()
    finally:
        os.kill(int(os.read(reader, 20)), signal.SIGKILL)
        for fd in (reader, writer, images):
            os.close(fd)
