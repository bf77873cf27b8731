"""The layout of a seccomp notification and of its answer, for the exec gate in keeper and host.

Both use ioctl on the listener. RECV blocks if no notification waits, whatever the descriptor's
flags. It is therefore called only after poll reported a notification, and under a timer (GUARD_S),
because another holder of the descriptor may have been quicker. The buffer for RECV must be all
zero.
"""

from __future__ import annotations

import struct
from typing import Final

# Id, pid (of the thread, as the reader numbers it), flags; nr, arch, ip, args
NOTIFICATION = struct.Struct("<QIIiIQ6Q")
ANSWER = struct.Struct("<QqiI")  # id, value, -errno, flags
ID = struct.Struct("<Q")
CONTINUE: Final = 1  # flag of an answer: the call continues as if there were no gate
RECV: Final = 0xC050_2100
SEND: Final = 0xC018_2101
ID_VALID: Final = 0x4008_2102
GUARD_S: Final = 0.25  # bound for a RECV whose notification another process took

assert NOTIFICATION.size == 80
assert ANSWER.size == 24
