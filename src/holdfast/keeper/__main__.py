"""Start the nursery without site packages: `python -I -S .../keeper/__main__.py RUN_DIRECTORY`.

Modules of the standard library are imported first. Then `fill_gaps` fills the gaps that they left
in the heap, so that the keeper's own code lies together in memory (keeper/heap.py).
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
