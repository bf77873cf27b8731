"""A throwaway user of this machine with an interpreter: for tests that root passes too easily."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.host.policy.shfmt import find_shfmt

SITE_PACKAGES = Path(pytest.__file__).resolve().parent.parent
SOURCE = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 280.0
ACCOUNT_LIMIT_S = 60.0
REPEATED = "HOLDFAST_TESTS_REPEATED"  # in the environment of a repetition as an ordinary user
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    name: str
    uid: int
    gid: int
    home: Path

    def run(self, argv: list[str]) -> subprocess.CompletedProcess[str] | None:
        """Run to the end, with this source tree and the libraries; None if not permitted."""
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "USER": self.name,
            "PYTHONPATH": f"{SOURCE / 'src'}:{SOURCE}:{SITE_PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
            REPEATED: "1",
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
        """An interpreter with `modules` that the user may run; ours may lie in root's home."""
        check = f"import sys, {', '.join(modules)}; assert sys.version_info >= (3, 11)"
        for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
            probe = self.run([candidate, "-c", check])
            if probe is not None and probe.returncode == 0:
                return candidate
        pytest.skip(f"no interpreter that an ordinary user may run finds {', '.join(modules)}")

    def own_python(self, *modules: str) -> str:
        """The same in an environment of the user, with the shell grammar for the gate."""
        place = self.home / "python"
        made = self.run([self.python("venv", *modules), "-m", "venv", "--without-pip", str(place)])
        assert made is not None and made.returncode == 0, made
        shutil.copy(str(find_shfmt()), place / "bin" / "shfmt")
        return str(place / "bin" / "python")


@contextlib.contextmanager
def ordinary_user(parent: Path | None = None) -> Iterator[OrdinaryUser]:
    """A user made with useradd, with a home below `parent` (default: /tmp); removed with its files.

    Skips, with the reason, unless root.
    """
    if os.getuid() != 0:
        pytest.skip("needs root to make a throwaway user")
    if shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("useradd and userdel are not installed")
    name = f"hf{secrets.token_hex(4)}"
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
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
    """Change accounts, one change at a time on a machine.

    An account is removed after the last process has gone: waits for that.
    """
    end = time.monotonic() + ACCOUNT_LIMIT_S
    while (done := subprocess.run(argv, capture_output=True, text=True)).returncode:
        assert (
            "lock" in done.stderr or "currently used" in done.stderr
        ) and time.monotonic() < end, (argv, done)
        select.select([], [], [], 0.1)


def _end_all_of(uid: int) -> None:
    """Kill until no process is left: an account with dying processes cannot be removed."""
    end = time.monotonic() + ACCOUNT_LIMIT_S
    while left := _processes_of(uid):
        assert time.monotonic() < end, f"processes of {uid} do not end: {left}"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        select.select([], [], [], 0.01)


def _processes_of(uid: int) -> list[int]:
    """The running processes of this user; a zombie belongs to its parent."""
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


def needs(*programs: str) -> None:
    """Skips the test, with the reason, unless all of these programs are installed."""
    for program in programs:
        if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin") is None:
            pytest.skip(f"{program} is not installed here")


@pytest.fixture(scope="module")
def user() -> Iterator[OrdinaryUser]:
    """A user with a password that is allowed to become root."""
    needs("sudo", "chpasswd")
    with ordinary_user() as made:
        rule = Path(f"/etc/sudoers.d/{made.name}")
        if not rule.parent.is_dir():
            pytest.skip("no /etc/sudoers.d here")
        rule.write_text(f"{made.name} ALL=(ALL) ALL\n")
        rule.chmod(0o440)
        try:
            subprocess.run(["chpasswd"], input=f"{made.name}:opensesame\n", text=True, check=True)
            yield made
        finally:
            rule.unlink()


def cases(values: Sequence[T], *, again: Sequence[T]) -> Sequence[T]:
    """All values, but in a repetition as an ordinary user only those of `again`.

    For cases whose difference is independent of the account, such as the moment of a crash.
    """
    assert all(value in values for value in again)
    return again if REPEATED in os.environ else values


def passes_as_ordinary_user(*files: str) -> None:
    """Runs test files once more as an ordinary user; the calling test is skipped there."""
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw")
        for site in (user.home / "python/lib").glob("python*/site-packages"):
            (site / "libraries.pth").write_text(f"{SITE_PACKAGES}\n")
        done = user.run(
            [
                *(python, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("--import-mode=importlib", "--rootdir", str(SOURCE), *files),
            ]
        )
        assert done is not None and done.returncode == 0, (
            (done.stdout[-3000:] + done.stderr[-1000:]) if done else "it did not run"
        )
        assert " passed" in done.stdout
