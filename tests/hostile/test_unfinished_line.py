"""Code in a session forges the note about an unfinished line; the host does not believe it (T4).

Hosts of an earlier build kept that note in the directory that a session's programs can write.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.support.installation import SHARE_PYTHON, Installation, eventually

NAME = "halfline"
# argv: the kind of object to plant, its path, and for a link its target. The code replaces the old
# object by a rename, so that a descriptor which a host had open no longer reaches the path.
PLANT = """
import json, os, struct, sys, zlib
kind, path, target = sys.argv[1:]
fresh = path + ".fresh"
if kind == "link":
    os.symlink(target, fresh)
elif kind == "fifo":
    os.mkfifo(fresh)
else:
    body = json.dumps([[0, 1 << 60, kind == "dirty", kind == "dirty"]]).encode()
    with open(fresh, "wb") as file:
        file.write(struct.pack("<II", zlib.crc32(body), len(body)) + body)
os.rename(fresh, path)
"""


class Box:
    """A contained session whose programs attack its host."""

    def __init__(self, hf: Installation, name: str) -> None:
        self.hf, self.name = hf, name
        made = hf.ready(name, "--contained", *SHARE_PYTHON, "--", "bash")
        self.writable = hf.home / "run" / "s" / made["id"]
        self.host_only = hf.home / "run" / "memory" / made["id"]

    def run(self, *words: str) -> str:
        return self.hf.ok("run", self.name, "--", shlex.join(words)).out

    def plant(self, kind: str, target: Path) -> None:
        inside = f"/.holdfast/session/own/{NAME}"
        self.run(sys.executable, "-c", PLANT, kind, inside, str(target))
        assert os.path.lexists(self.writable / NAME)
        self.hf.wait(self.name, "idle")

    def replace_host(self) -> None:
        before = self.hf.host_pid
        os.kill(before, signal.SIGKILL)
        self.hf.ls()
        assert self.hf.host_pid != before


@pytest.fixture
def box(hf: Installation, request: pytest.FixtureRequest) -> Box:
    return Box(hf, f"box{abs(hash(request.node.name)) % 10**8}")


def test_t4_code_in_a_contained_session_cannot_reach_the_note(box: Box) -> None:
    box.hf.ok("send", box.name, "echo half ")
    assert (box.host_only / NAME).is_file() and not (box.writable / NAME).exists()
    box.hf.ok("send", box.name, "--key", "C-u", "--key", "Enter")
    box.hf.wait(box.name, "idle")
    assert "there" not in box.run("sh", "-c", f"test -e {box.host_only} && echo there; true")


@pytest.mark.parametrize("kind", ["clean", "dirty", "fifo", "link"])
def test_t4_a_planted_note_is_neither_followed_nor_believed(
    box: Box, kind: str, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    box.plant(kind, precious)
    box.replace_host()
    eventually(lambda: not os.path.lexists(box.writable / NAME), "the leftover to go")
    assert box.run("echo", "whole") == "whole\n"
    box.hf.wait(box.name, "idle")
    box.hf.ok("send", box.name, "tr")  # the host opens its file, before an object takes the place
    box.hf.ok("send", box.name, "ue", "--enter")
    box.hf.wait(box.name, "idle")
    box.plant(kind, precious)
    box.hf.ok("send", box.name, "echo half ")  # a second later the screen's snapshot knows it too
    box.replace_host()
    assert "typed on the command line" in box.hf.attempt("run", box.name, "--", "echo no").err
    assert precious.read_bytes() == b"precious"
    box.hf.ok("send", box.name, "--key", "C-c")
    box.hf.end(box.name)
