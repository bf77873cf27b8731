"""A file system that stops to answer (a dead file server, a FUSE program of a session) holds up those who use it, and nobody else."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.harness import Installation, eventually, installation

pytestmark = pytest.mark.skipif(os.getuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse to mount a file system of one's own")

TIMES = 12           # more than the threads that a whole host shares where nothing is shared out

# argv: where to mount. A file system in which every name is an empty file and which believes nothing it was told before, until a line is read from stdin: then it answers nothing.
SERVER = """
import ctypes, os, struct, sys, threading
at = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"silent", at.encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse):
    sys.exit(99)
silent = threading.Event()
def attributes(node):
    return struct.pack("<QQQQQQIIIIIIIIII", node, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755 if node == 1 else 0o100755, 1, 0, 0, 0, 4096, 0)
def serve():
    while True:
        try:
            _, what, number, node = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 20))
        except OSError:
            return
        if silent.is_set() or what in (2, 42):
            continue
        answer = {26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 0, 0, 65536, 1, 0, 0, 0), 1: struct.pack("<QQQQII", 2, 1, 0, 0, 0, 0) + attributes(2),
                  3: struct.pack("<QII", 0, 0, 0) + attributes(node), 14: struct.pack("<QII", 1, 0, 0), 27: struct.pack("<QII", 1, 0, 0)}.get(what, b"")
        os.write(fuse, struct.pack("<IiQ", 16 + len(answer), 0 if answer else -38, number) + answer)
threading.Thread(target=serve, daemon=True).start()
print("mounted", flush=True)
sys.stdin.readline()
silent.set()
print("silent", flush=True)
sys.stdin.readline()
"""


class FileSystem:
    def __init__(self, at: Path) -> None:
        at.mkdir()
        self.at = str(at)
        self._server = subprocess.Popen([sys.executable, "-c", SERVER, self.at], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not self._says("mounted"):
            pytest.skip("it cannot be mounted here")

    def _says(self, word: str) -> bool:
        assert self._server.stdout is not None
        return self._server.stdout.readline().decode().strip() == word

    def hush(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(b"\n")
        self._server.stdin.flush()
        assert self._says("silent")

    def close(self) -> None:
        self._server.kill()                  # whoever waits for it gets an error then
        self._server.communicate()
        subprocess.run(["umount", "-l", self.at], check=False)


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path) as made:
        yield made


@pytest.fixture
def files(hf: Installation, tmp_path: Path) -> Iterator[FileSystem]:
    made = FileSystem(tmp_path / "silent")
    try:
        yield made
    finally:
        made.close()


def others_go_on(hf: Installation) -> None:
    assert hf.ok("run", "other", "--", "echo fine").out == "fine\n"
    assert hf.ok("graph", "other", "--json").json["processes"]
    assert hf.ok("attention", "other", "--json").json
    hf.ok("send", "other", "true", "--enter")


def test_s2_what_a_session_has_open_keeps_nobody_from_looking_at_it(hf: Installation, files: FileSystem) -> None:
    hf.ready("other")
    hf.new("held", "--", sys.executable, "-c", f"import os; os.chdir({files.at!r}); f = os.open('file', os.O_RDONLY); print('there'); os.read(0, 1)")
    eventually(lambda: "there" in hf.screen("held"), "it to be there")
    files.hush()
    for _ in range(TIMES):
        graph = hf.ok("graph", "held", "--files", "--json").json
        assert any(one["cwd"] == files.at for one in graph["processes"]) and any(one["path"] == f"{files.at}/file" for one in graph["files"])
        assert hf.ok("attention", "held", "--json").json["kind"] == "input"
        hf.ok("view", "held")
    others_go_on(hf)
    files.close()                # who is ended would wait for it, too: to close the file
    hf.end("held")


def test_p4_acts_of_a_session_that_stands_there_hold_up_no_other(hf: Installation, files: FileSystem) -> None:
    """What it would run is judged by where it is, and where that is cannot be seen: it is bounded, and said."""
    hf.ready("other")
    hf.ready("held")
    hf.ok("run", "held", "--", f"cd {shlex.quote(files.at)}; PS1='> '")
    files.hush()
    waiting = [hf.start("run", "held", "--timeout", "30", "--", f"cat {shlex.quote(files.at)}/file{n}") for n in range(TIMES)]
    waiting += [hf.start("graph", "held", "--json") for _ in range(TIMES)]
    hung = [hf.attach("held", env={"SSH_AUTH_SOCK": f"{files.at}/agent"}) for _ in range(TIMES)]
    others_go_on(hf)
    for one in hung:
        one.close()
    for process in waiting:
        process.kill()
        process.communicate()
    others_go_on(hf)
    files.close()                # its shell stands still in there, too
    hf.end("held")
