"""A program that tries to outlive its session, in the way that the first argument names.

The program writes a line into the file of the second argument when it has escaped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

NEWPID, SUBREAPER = 0x20000000, 36


def deaf() -> None:
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def leave() -> None:
    """Twice forked, in a session of its own, without the terminal."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)


def there(where: str) -> None:
    with open(where, "a") as file:
        file.write("there\n")


def main(way: str, where: str, *more: str) -> None:
    libc = ctypes.CDLL(None)
    if way != "polite":
        deaf()
    if way == "namespace":
        libc.unshare(NEWPID)
        if os.fork():
            os._exit(0)
        os.setsid()
    else:
        leave()
    if way == "subreaper":
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
        if not os.fork():
            leave()
    elif way == "group":
        os.mkdir(more[0])
        if not os.path.exists(f"{more[0]}/cgroup.procs"):
            os.rmdir(more[0])
            os._exit(1)  # this file system does not exist
        with open(f"{more[0]}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    there(where)
    if way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while way == "breeder":
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.alarm(1)
            signal.pause()
        os.wait()
    while True:
        time.sleep(3600)  # poll: idle for as long as possible


if __name__ == "__main__":
    main(*sys.argv[1:])
