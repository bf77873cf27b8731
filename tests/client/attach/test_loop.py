"""The frames that the attach loop sends, and their order."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from holdfast.client.attach import loop
from holdfast.wire import frames
from tests.support.keeper import stop
from tests.support.peers.scripted_host import Peer, host

SOURCE = Path(loop.__file__).parents[3]
ATTACH = (
    "import sys; from holdfast.client.attach.loop import Attachment; "
    "from holdfast.client.attach.prefix import Prefix; from holdfast.client.link import Link; "
    "from holdfast.home import Home\n"
    "a = Attachment(Link(Home(sys.argv[1], '', True), 'ann', autostart=False), 's', False, False, "
    "Prefix(b'\\x1c', 'C-x'), None, None)\n"
    "a.begin(); a.run()"
)


def test_a_size_goes_before_the_keys_typed_after_it(tmp_path: Path) -> None:
    """Otherwise a program started by those keys would see the old size.

    The client comes late to both: a busy machine.
    """
    sent: list[tuple[int, bytes]] = []

    def play(peer: Peer) -> None:
        peer.welcome()
        number, body = peer.request()
        assert body["op"] == "attach"
        peer.sock.sendall(
            frames.reply(
                number,
                {"id": "s", "name": "s", "acked": 0, "resume": None, "epoch": 1, "seen": None},
                True,
            )
        )
        peer.sock.sendall(frames.screen(0, 0, frames.SCREEN_ATTACH, 80, 24, b"SHOWN"))
        while not sent or sent[-1][0] != frames.INPUT:
            sent.append(peer.next())
        peer.sock.sendall(frames.pack_json(frames.BYE, {"reason": "down", "message": "enough"}))

    master, slave = os.openpty()
    with host(tmp_path, play):
        process = subprocess.Popen(
            [sys.executable, "-c", ATTACH, str(tmp_path)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        shown = b""
        while b"SHOWN" not in shown:
            assert select.select([master], [], [], 120)[0], shown
            shown += os.read(master, 4096)
        stop(process.pid)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        os.write(master, b"k")
        assert select.select([slave], [], [], 120)[0], "the key is there"
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(120) == 0
    kinds = [kind for kind, _ in sent]
    assert frames.RESIZE in kinds, "the size came after the key"
    assert frames.read_resize(dict(sent)[frames.RESIZE])[1:] == (100, 30)
    os.close(master)
    os.close(slave)


def test_attaching_loads_nothing_that_it_can_do_without() -> None:
    """Most of the time to a screen is imports: each of these would add 1 to 20 ms."""
    heavy = (
        "base64",
        "contextlib",
        "json",
        "re",
        "socket",
        "threading",
        "typing",
        "dataclasses",
        "inspect",
        "subprocess",
        "shutil",
        "asyncio",
        "hashlib",
        "argparse",
        "logging",
        "tempfile",
        "importlib.metadata",
        "cryptography",
        "google.protobuf",
        "holdfast.wire.outer",
        "holdfast.wire.noise",
    )
    code = (
        "import sys, holdfast.client.attach.loop, holdfast.faces.cli.main; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout == "[]\n"
