"""A FUSE file system that stops answering, like a dead file server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

READ, FLUSH = 15, 25
needs_fuse = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/dev/fuse"),
    reason="needs root and /dev/fuse to mount a file system",
)

# argv: the mount point. Every name is a file that holds the text /bin/true. The kernel may cache no
# answer. The first line on stdin names the requests (by number) that get no answer from then on; an
# empty line means all of them.
SERVER = """
import ctypes, os, struct, sys, threading
at = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
fuse = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
if libc.mount(b"silent", at.encode(), b"fuse", 0, options):
    sys.exit(99)
silenced, all = set(), set(range(256))
def attributes(node):
    mode = 0o40755 if node == 1 else 0o100755
    times = (0, 0, 0, 0, 0, 0)
    return struct.pack("<QQQQQQIIIIIIIIII", node, 4096, 8, *times, mode, 1, 0, 0, 0, 4096, 0)
def answer(request, node):
    return {
        26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 0, 0, 65536, 1, 0, 0, 0),  # INIT
        1: struct.pack("<QQQQII", 2, 1, 0, 0, 0, 0) + attributes(2),  # LOOKUP
        3: struct.pack("<QII", 0, 0, 0) + attributes(node),  # GETATTR
        14: struct.pack("<QII", 1, 0, 0),  # OPEN
        27: struct.pack("<QII", 1, 0, 0),  # OPENDIR
        15: b"/bin/true\\0".ljust(4096, b"\\0"),  # READ
        25: b"",  # FLUSH
    }.get(request)
def serve():
    while True:
        try:
            _, request, number, node = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 20))
        except OSError:
            return
        if request in silenced or request in (2, 42):  # FORGET and BATCH_FORGET need no answer
            continue
        body = answer(request, node)
        error = -38 if body is None else 0
        os.write(fuse, struct.pack("<IiQ", 16 + len(body or b""), error, number) + (body or b""))
threading.Thread(target=serve, daemon=True).start()
print("mounted", flush=True)
silenced |= {int(word) for word in sys.stdin.readline().split()} or all
print("silent", flush=True)
sys.stdin.readline()
"""


class SilentFilesystem:
    def __init__(self, at: Path) -> None:
        at.mkdir()
        self.at = str(at)
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, self.at], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if not self._says("mounted"):
            pytest.skip("a FUSE file system cannot be mounted here")

    def _says(self, word: str) -> bool:
        assert self._server.stdout is not None
        return self._server.stdout.readline().decode().strip() == word

    def silence(self, *requests: int) -> None:
        """Stop answering these requests, or all."""
        assert self._server.stdin is not None
        self._server.stdin.write(b"%s\n" % " ".join(map(str, requests)).encode())
        self._server.stdin.flush()
        assert self._says("silent")

    def close(self) -> None:
        """Every process that waits for an answer gets an error."""
        self._server.kill()
        self._server.communicate()
        subprocess.run(["umount", "-l", self.at], check=False)


def waits_for_fuse(pid: int) -> bool:
    """Whether a thread of this process waits for a FUSE server, where no signal ends its wait."""
    for wchan in Path("/proc").glob(f"{pid}/task/*/wchan"):
        with contextlib.suppress(OSError):
            if "request_wait_answer" in wchan.read_text():
                return True
    return False
