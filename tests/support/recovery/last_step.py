"""The last step of a shutdown by systemd, in a pid namespace: this program is process 1.

    unshare --pid --fork --mount-proc python -m tests.support.recovery.last_step LAYOUT DIRECTORY

It holds a session, sends SIGTERM to its keeper under an ordinary name and then as systemd-shutdown,
and prints what is left after each.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from tests.support.contained_keeper import Contained
from tests.support.keeper import Nursery, below, gone, until

PR_SET_NAME = 15
PROGRAM = ["sh", "-c", "echo READY; exec sleep 600"]


def main(layout: str, directory: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, b"systemd")
    if layout == "contained":
        contained = Contained(directory)
        nursery, link = contained.nursery, contained.run(*PROGRAM)
    else:
        nursery = Nursery(directory)
        link = nursery.run("a", PROGRAM)
    link.wait_for(b"READY")
    [keeper] = nursery.keepers.values()
    session = [keeper, *below(keeper)]
    os.kill(keeper, signal.SIGTERM)
    for _ in range(2):  # a round of the keeper's loop for the signal, and one to be sure
        link.state()
    print("an ordinary SIGTERM leaves", sum(not gone(pid) for pid in session), "of", len(session))
    libc.prctl(PR_SET_NAME, b"systemd-shutdown")
    os.kill(keeper, signal.SIGTERM)
    until(lambda: all(map(gone, session)), "the end of the keeper and all below it")
    nursery.process.terminate()
    print("the last one leaves 0; the nursery ends by", -nursery.process.wait())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
