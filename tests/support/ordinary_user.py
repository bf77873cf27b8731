"""A throwaway user of this machine, and an interpreter it may run: for tests that root passes too easily."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.host.parse import find_shfmt

SITE_PACKAGES = Path(pytest.__file__).resolve().parent.parent
SOURCE = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 280.0
ACCOUNT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    name: str
    uid: int
    gid: int
    home: Path

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str] | None:
        """Run to the end, seeing this source tree and the tests' libraries; None if that may not be run."""
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "USER": self.name,
            "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}:{SITE_PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            return subprocess.run(
                argv,
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                env=environment,
                cwd=self.home,
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_S,
            )
        except OSError:
            return None

    def python(self, *modules: str) -> str:
        """An interpreter that may be run and finds `modules`; the tests' own may lie in root's home."""
        check = f"import sys, {', '.join(modules)}; assert sys.version_info >= (3, 11)"
        for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
            probe = self.run([candidate, "-c", check])
            if probe is not None and probe.returncode == 0:
                return candidate
        pytest.skip(f"no interpreter that an ordinary user may run finds {', '.join(modules)}")

    def own_python(self, *modules: str) -> str:
        """The same in an environment of theirs, with the shell's grammar beside it, which a gate reads commands with."""
        place = self.home / "python"
        made = self.run([self.python("venv", *modules), "-m", "venv", "--without-pip", str(place)])
        assert made is not None and made.returncode == 0, made
        shutil.copy(str(find_shfmt()), place / "bin" / "shfmt")
        return str(place / "bin" / "python")


@contextlib.contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Made with useradd, removed again with all it left. Skips, with the reason, unless root."""
    if os.getuid() != 0:
        pytest.skip("needs root to make a throwaway user")
    if shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("useradd and userdel are not installed")
    name = f"hf{secrets.token_hex(4)}"
    home = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        _account("useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", name)
        try:
            made = pwd.getpwnam(name)
            os.chown(home, made.pw_uid, made.pw_gid)
            yield OrdinaryUser(name, made.pw_uid, made.pw_gid, home)
        finally:
            _end_all_of(pwd.getpwnam(name).pw_uid)
            _account("userdel", name)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _account(*argv: str) -> None:
    """Accounts are changed by one at a time on a machine, and removed when the last process of them is: waits for that."""
    end = time.monotonic() + ACCOUNT_LIMIT_S
    while (done := subprocess.run(argv, capture_output=True, text=True)).returncode:
        assert (
            "lock" in done.stderr or "currently used" in done.stderr
        ) and time.monotonic() < end, (argv, done)
        select.select([], [], [], 0.1)


def _end_all_of(uid: int) -> None:
    """Kills until nobody is left: an account whose processes are still dying cannot be removed."""
    end = time.monotonic() + ACCOUNT_LIMIT_S
    while left := _processes_of(uid):
        assert time.monotonic() < end, f"processes of {uid} do not end: {left}"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        select.select([], [], [], 0.01)


def _processes_of(uid: int) -> list[int]:
    """That run; a zombie is its parent's business."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if (
                entry.isdigit()
                and os.stat(f"/proc/{entry}").st_uid == uid
                and Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                not in "ZX"
            ):
                found.append(int(entry))
    return found
