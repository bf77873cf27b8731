"""What this kernel does here, found out by trying: for tests that are to be skipped with a reason where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import tempfile

from holdfast.host import fileevents, procevents

TRIAL_S = 3.0


@functools.cache
def silent_about_processes() -> str:
    """Why nobody is told of forks here; empty: somebody is. That the question is accepted proves nothing: in a container it is not answered."""

    async def trial() -> bool:
        told = asyncio.Event()
        events = procevents.Events(
            lambda parent, child: told.set() if parent == os.getpid() else None,
            lambda pid, status: None,
            lambda: None,
        )
        try:
            child = await asyncio.create_subprocess_exec("true")
            await child.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), TRIAL_S)
            return told.is_set()
        finally:
            events.close()

    try:
        return "" if asyncio.run(trial()) else "the kernel does not answer (a container?)"
    except OSError as e:
        return f"the kernel refuses: {e.strerror}"


@functools.cache
def silent_about_files() -> str:
    """Why nobody is told which process writes a file here; empty: somebody is."""

    async def trial() -> None:
        events = fileevents.Events(lambda found: None, lambda: None, lambda: None)
        try:
            events.mark(tempfile.gettempdir())
        finally:
            events.close()

    try:
        asyncio.run(trial())
    except (OSError, AttributeError) as e:
        return f"the kernel refuses: {e}"
    return ""
