"""The kernel's side of the exec gate: the layout of a seccomp notification and of its answer, the same for the keeper and the host.

Both ask by ioctl on the listener. RECV waits if there is nothing, whatever the descriptor's flags say: so it is asked only when poll said that there is something, and under
a timer (GUARD_S), for somebody else who has the descriptor may have been quicker. The buffer that RECV fills must be all zero.
"""

from __future__ import annotations

import struct
from typing import Final

NOTIFICATION = struct.Struct(
    "<QIIiIQ6Q"
)  # id, pid (of the thread, as the reader numbers it), flags; nr, arch, ip, args
ANSWER = struct.Struct("<QqiI")  # id, value, -errno, flags
ID = struct.Struct("<Q")
CONTINUE: Final = 1  # flag of an answer: the call goes on as if there were no gate
RECV: Final = 0xC050_2100
SEND: Final = 0xC018_2101
ID_VALID: Final = 0x4008_2102
GUARD_S: Final = 0.25  # RECV that found nothing after all

assert NOTIFICATION.size == 80
assert ANSWER.size == 24
