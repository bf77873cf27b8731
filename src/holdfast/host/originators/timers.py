"""Jobs that are scheduled to run outside every session, and the authors of the jobs (P3).

Crontabs, `at` jobs and timers of the service manager are run by daemons that belong to no session.
The programs that the daemons start, and the files that these programs write, have no author here.
But the file that defines a job has an author, if this account may look into the directory. Only
files changed since the first session began are reported, not the machine's own timers.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.core.originators.originators import Shaped
from holdfast.host.originators.writers import Writers
from holdfast.host.processes.process import cwd_of
from holdfast.host.session.session import Session

if TYPE_CHECKING:
    from holdfast.model.canonical import Canonical

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


async def timers(writers: Writers, session: Session) -> list[dict[str, Canonical]]:
    """Scheduled jobs with their authors. A directory that does not answer in time is left out."""
    found = await writers.in_thread(session, candidates, f"/proc/{session.record.root_pid}")
    return _shown(await writers.authors(session, found or ()), session)


async def written(
    writers: Writers, session: Session, names: Iterable[object]
) -> list[dict[str, Canonical]]:
    """The authors of these files.

    A relative path starts at the working directory of the session's program.
    """
    cwd = cwd_of(session.record.root_pid)
    paths = [name for name in names if isinstance(name, str)]
    found = await writers.authors(
        session, paths if cwd is None else [os.path.join(cwd, path) for path in paths]
    )
    return _shown(found, session)


def candidates(process: str) -> list[str]:
    """The paths of existing job files in the root of the process with this /proc directory."""
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


def _shown(found: tuple[Shaped, ...], session: Session) -> list[dict[str, Canonical]]:
    return [one.show(session.ref) for one in found]
