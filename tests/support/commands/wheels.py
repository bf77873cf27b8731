"""Builds wheels of this project and installs them into fresh environments, with pip."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

INSTALL_LIMIT_S = 480.0  # a slow mirror is not a defect


def pip(*args: str | Path, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *args],
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT_S,
    )


def why(done: subprocess.CompletedProcess[str]) -> str:
    """The last error that pip printed."""
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return (lines or done.stderr.splitlines() or ["no reason given"])[-1]


def build(source: Path, place: Path) -> Path:
    """The wheel of a source tree. Skips the test if the build tool cannot be had."""
    # With the build tool of the test environment; otherwise pip fetches one.
    how = ("--no-build-isolation",) if importlib.util.find_spec("hatchling") else ()
    done = pip("wheel", "--quiet", "--no-deps", *how, "--wheel-dir", place, source)
    if done.returncode:
        pytest.skip(f"no wheel can be built here, is the package index in reach? {why(done)}")
    [made] = place.glob("*.whl")
    return made


class Environment:
    """A fresh environment that takes the libraries, but not Holdfast, from the present one."""

    def __init__(self, place: Path) -> None:
        venv.create(place, symlinks=True)
        self.python = place / "bin" / "python"
        [packages] = place.glob("lib/python*/site-packages")
        libraries = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        (packages / "libraries.pth").write_text("\n".join(libraries))
        # The package of shfmt installs a program, which Holdfast seeks beside the interpreter.
        if shfmt := shutil.which("shfmt", path=str(Path(sys.executable).parent)):
            (place / "bin" / "shfmt").symlink_to(shfmt)

    def install(self, wheel: Path) -> None:
        """Installs the wheel in place of an earlier one, as `pip install --upgrade` does."""
        how = ("--quiet", "--no-deps", "--no-index", "--no-compile", "--force-reinstall")
        done = pip("--python", self.python, "install", *how, wheel)
        assert done.returncode == 0, done.stderr
