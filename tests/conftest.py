"""What all tests rely on: the signals of an ordinary terminal, however the run itself was started; and no limits on speed where nobody set one."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# A run started in the background or under nohup has these ignored, programs inherit that, and Ctrl-C would reach nobody.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(_number, signal.SIG_DFL)

# An example that took longer than others says something about the machine, not about what is tested. The examples are the same in every run, so that a
# run says something about a change and not about luck; HYPOTHESIS_PROFILE=explore looks for others.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
