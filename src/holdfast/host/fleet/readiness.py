"""Checks of what another machine needs to go on with sessions: the store of leases, and moves.

Modules of the host are imported by the check that needs them: the doctor must also work where one
of their libraries is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from typing import Final

from holdfast.home import Home, programs
from holdfast.host.doctor.check import Check, Outcome, Surroundings, failed, judged, readable
from holdfast.host.doctor.libc import call
from holdfast.host.doctor.machine import dotted, version_of
from holdfast.host.runtime import criu
from holdfast.model.errors import HoldfastError, Impossible

ETCD_MIN: Final = (3, 5, 16)  # earlier ones have faults in leases
ANSWER_S: Final = 4.0
TIMER_S: Final = 0.02
COURIER: Final = "holdfast.courier"
_NO_HOME: Final = Outcome(None, "no home is set, so it was not checked", "set HOLDFAST_HOME")


def _home(surroundings: Surroundings) -> Home | None:
    if surroundings.home is None:
        return None
    state = str(surroundings.home)
    return Home(state, surroundings.config or f"{state}/config.toml", True)


def _leases(surroundings: Surroundings) -> Outcome:
    home = _home(surroundings)
    if home is None:
        return _NO_HOME
    from holdfast.home.settings import Settings
    from holdfast.host.leases.etcd import EtcdStore
    from holdfast.host.leases.opening import open_store

    try:
        settings = Settings.load(home)
        if settings.lease.store == "sqlite":
            place = settings.lease.path or "in the home"
            said = f"SQLite, {place}: for homes of this machine only"
            return judged(_timer_fires(), f"{said}{_CLOCK}", _CLOCK_FIX)
        store = open_store(home, settings)
        assert isinstance(store, EtcdStore)
        with contextlib.closing(store):
            have = version_of(store.version(ANSWER_S))
            said = f"etcd {dotted(have)} answers"
            if have < ETCD_MIN:
                return failed(said, f"upgrade the members to etcd {dotted(ETCD_MIN)} or later")
            store.check(ANSWER_S)
    except HoldfastError as error:
        return failed(error.message, error.recover)
    return judged(_timer_fires(), f"{said}{_CLOCK}", _CLOCK_FIX)


_CLOCK: Final = "; CLOCK_BOOTTIME, which decides about leases, wakes processes"
_CLOCK_FIX: Final = "the timer of CLOCK_BOOTTIME did not fire: use Linux 3.15 or later"


def _timer_fires() -> bool:
    """Whether the clock by which keepers freeze sessions wakes a process."""
    fd = call("timerfd_create", time.CLOCK_BOOTTIME, os.O_CLOEXEC)
    spec = (ctypes.c_char * 32).from_buffer_copy(
        b"".join(n.to_bytes(8, "little") for n in (0, 0, 0, int(TIMER_S * 1e9)))
    )
    call("timerfd_settime", fd, 0, spec, None)
    fired = readable(fd, ANSWER_S)
    os.close(fd)
    return fired


def _move(surroundings: Surroundings) -> Outcome:
    home = _home(surroundings)
    if home is None:
        return _NO_HOME
    from holdfast.host.copies import trusted

    try:
        found = criu.find(surroundings.criu)
        names = [one.machine.name for one in trusted.listing(home)]
    except Impossible as error:
        return failed(f"sessions can neither leave nor arrive: {error.message}", error.recover)
    except HoldfastError as error:
        return failed(error.message, error.recover)
    courier = subprocess.run(
        programs.module(COURIER, "--check"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd="/",
        timeout=ANSWER_S * 2,
        check=False,
    )
    if courier.returncode:
        last = courier.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return failed(f"the courier does not start: {last[:200]}", "install Holdfast again")
    to = f"to {', '.join(names)}" if names else "to no machine yet: `holdfast machines trust`"
    return Outcome(True, f"CRIU {found.version} and the courier start; sessions may move {to}")


CHECKS: tuple[Check, ...] = (
    Check(
        "leases", "The store of leases", "rehome, restores that no second host can make", _leases
    ),
    Check("move", "Moving sessions", "move, checkpoint --to, restore --lost", _move),
)
