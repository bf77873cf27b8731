"""What all tests rely on: the signals of an ordinary terminal, however the run itself was started."""

from __future__ import annotations

import signal

# A run started in the background or under nohup has these ignored, programs inherit that, and Ctrl-C would reach nobody.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(_number, signal.SIG_DFL)
