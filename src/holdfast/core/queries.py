"""Which output may hold a question to the terminal.

A program that asks (DA, DSR, DECRQM, colours ...) waits for the answer, so such a chunk is shown to the emulator at once instead of
a little later. A false alarm costs one early feed; a miss (a query split between chunks) costs 20 ms. The emulator decides.
"""

from __future__ import annotations

import re

QUERY_HINT = re.compile(rb"\x05|\x1b(?:\[[?>=]?[0-9;]*\$?[cnpqtux]|Z|P[+$]|_G|\][0-9]+;(?:[0-9]+;)?\?)")
