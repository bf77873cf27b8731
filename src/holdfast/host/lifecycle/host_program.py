"""The program around a host: its settings, and the operations that need a whole process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostProgram:
    """Where this host runs, and the services of the program around it."""

    replaced: bool = False  # this host has replaced the last one in place
    nursery: str = ""  # the unit of the nursery; empty: the host starts a nursery itself
    descriptors: tuple[int, int] | None = None  # the limit that programs in sessions get
    # The environment of this process: account, shell and programs of sessions that agents make.
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    # Whether this host still owns the home: a second host may run after the lock file is removed.
    still_ours: Callable[[], bool] = lambda: True
    superseded: Callable[[], None] = lambda: None
    replace: Callable[[], None] = lambda: None  # by the next host, if the loop hangs
