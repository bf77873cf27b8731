"""What was staged to be run later, outside of every session, and by whom: crontabs, `at` jobs, timers of the service manager (P3).

Whatever runs them (cron, atd, the service manager) is no process of a session: what it starts and writes has no author here. What can be seen is who wrote the file that says what is run, as
far as this account may look at the directories where such files lie. Only what somebody shaped since the first session began is told; the machine's own timers are not.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from typing import Any, Final

from holdfast.core.originators import Shaped
from holdfast.host.notified import cwd_of
from holdfast.host.session import Session
from holdfast.host.writers import Writers

EACH_MAX: Final = 128  # files of one directory
_FILES: Final = ("/etc/crontab", "/etc/anacrontab")
_OF_ACCOUNT: Final = ("/var/spool/cron/crontabs", "/var/spool/cron/tabs", "/var/spool/cron")
_DIRECTORIES: Final = (
    "/etc/cron.d",
    "/etc/cron.hourly",
    "/etc/cron.daily",
    "/etc/cron.weekly",
    "/etc/cron.monthly",
    "/var/spool/cron/atjobs",
    "/var/spool/at",
    "/var/spool/cron/atspool",
)
_UNITS: Final = ("/etc/systemd/system", "/run/systemd/system")
_HOME_UNITS: Final = (".config/systemd/user", ".local/share/systemd/user")


async def timers(writers: Writers, session: Session) -> list[dict[str, Any]]:
    """Of directories that do not answer, none."""
    staged = await writers.looked(session, candidates, f"/proc/{session.record.root_pid}")
    return _shown(await writers.each(session, staged or ()), session)


async def written(writers: Writers, session: Session, names: list[Any]) -> dict[str, Any]:
    """Who wrote these; `file_events`: whether the kernel tells. What does not begin with a slash is meant from where the session's program is."""
    where = cwd_of(session.record.root_pid)
    found = await writers.each(
        session,
        [
            name if where is None else os.path.join(where, name)
            for name in names
            if isinstance(name, str)
        ],
    )
    return {
        "wrote": _shown(found, session),
        "file_events": writers.told,
        "not_told": dict(writers.refused),
    }


def candidates(process: str) -> list[str]:
    """As the process that has this directory in /proc names them; those that are there."""
    try:
        account = pwd.getpwuid(os.stat(process).st_uid)
    except (OSError, KeyError):
        return []
    root, home = f"{process}/root", account.pw_dir
    found = [
        path
        for path in (*_FILES, *(f"{where}/{account.pw_name}" for where in _OF_ACCOUNT))
        if os.path.isfile(root + path)
    ]
    for where in _DIRECTORIES:
        found += _listed(root, where, "")
    for where in (*_UNITS, *(f"{home}/{one}" for one in _HOME_UNITS)):
        found += _listed(root, where, ".timer")
    return found


def _listed(root: str, where: str, ending: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(root + where) as entries:
        return sorted(
            f"{where}/{one.name}"
            for one, _ in zip(entries, range(EACH_MAX), strict=False)
            if one.name.endswith(ending) and not one.name.startswith(".") and one.is_file()
        )
    return []


def _shown(found: tuple[Shaped, ...], session: Session) -> list[dict[str, Any]]:
    return [one.show(session.ref) for one in found]
