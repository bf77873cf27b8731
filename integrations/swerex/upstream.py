"""A pytest plugin: the server of SWE-ReX's own tests uses Holdfast sessions. See README.md."""

import swerex.server
from holdfast_swerex import HoldfastRuntime

setattr(swerex.server, "runtime", HoldfastRuntime())  # noqa: B010, its type is LocalRuntime
