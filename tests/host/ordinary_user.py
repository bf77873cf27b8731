"""A throwaway user of this machine, and an interpreter it may run: for tests that root passes too easily."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SITE_PACKAGES = Path(pytest.__file__).resolve().parent.parent
SOURCE = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 280.0


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    name: str
    uid: int
    gid: int
    home: Path

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str] | None:
        """Run to the end, seeing this source tree and the tests' libraries; None if that may not be run."""
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8",
                       "HOME": str(self.home), "TMPDIR": str(self.home), "USER": self.name,
                       "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}:{SITE_PACKAGES}",
                       "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            return subprocess.run(argv, user=self.uid, group=self.gid, extra_groups=[], env=environment,
                                  cwd=self.home, capture_output=True, text=True, timeout=RUN_LIMIT_S)
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
        subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", name],
                       check=True, capture_output=True)
        try:
            made = pwd.getpwnam(name)
            os.chown(home, made.pw_uid, made.pw_gid)
            yield OrdinaryUser(name, made.pw_uid, made.pw_gid, home)
        finally:
            _kill_all_of(pwd.getpwnam(name).pw_uid)
            subprocess.run(["userdel", name], check=True, capture_output=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _kill_all_of(uid: int) -> None:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                os.kill(int(entry.name), 9)
