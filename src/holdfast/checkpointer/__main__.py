"""python -I -S .../checkpointer/__main__.py FD: see wire/checkpointing.py.

Like the nursery, it is started by path without site packages, and imports little: the start takes a
third of the time. It ends without the interpreter's clean-up, for which the host would wait.
"""

from __future__ import annotations

import _socket
import os
import sys

if not __package__:
    sys.path.insert(0, __file__.rsplit("/", 3)[0])

from holdfast.checkpointer.dump import serve

if __name__ == "__main__":
    serve(_socket.socket(fileno=int(sys.argv[1])))  # type: ignore[arg-type]
    sys.stderr.flush()
    os._exit(0)
