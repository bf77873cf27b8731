"""Starts the nursery, by its path and without site packages: `python -I -S .../keeper/__main__.py RUN_DIRECTORY`.

The standard library's modules come first, then the gaps they left in the heap are filled, then the keeper's own code
is loaded and lies together (keeper/heap.py).
"""

# ruff: noqa: F401, E402
import _ctypes
import _socket
import fcntl
import marshal
import mmap
import select
import struct
import sys
import termios
import typing

if not __package__:
    sys.path.insert(0, __file__.rsplit("/", 3)[0])

from holdfast.keeper.heap import fill_gaps

fill_gaps()

from holdfast.keeper.nursery import main

sys.exit(main())
