"""python -m holdfast.checkpointer FD: see wire/checkpointing.py."""

from __future__ import annotations

import socket
import sys

from holdfast.checkpointer.dump import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
