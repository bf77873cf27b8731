"""The wheel: the contents, and a run in an empty environment, without a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.wheels import INSTALL_LIMIT_S, build, pip, why

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(2 * INSTALL_LIMIT_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `holdfast` command of a fresh environment with only the wheel and its dependencies."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", place], check=True, capture_output=True)
    done = pip("install", "--quiet", "--no-compile", wheel, python=place / "bin" / "python")
    if done.returncode:
        pytest.skip(f"the dependencies cannot be installed here: {why(done)}")
    return place / "bin" / "holdfast"


@pytest.fixture
def environment(tmp_path: Path, installed: Path) -> Iterator[dict[str, str]]:
    env = {
        "PATH": f"{installed.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HOLDFAST_HOME": str(tmp_path / "hf"),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "USER": "tester",
    }
    yield env
    for words in (("end", "work"), ("down",)):
        subprocess.run([installed, *words], env=env, capture_output=True, cwd=tmp_path)


def test_the_wheel_has_everything_that_is_read_at_run_time_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    files = subprocess.run(
        ["git", "ls-files", "src/holdfast"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    expected = {name.removeprefix("src/") for name in files.stdout.split()}
    assert {name for name in names if name.startswith("holdfast/")} == expected
    assert {os.path.splitext(name)[1] for name in expected} >= {".py", ".rc", ".sh", ".toml"}
    testing = {n.removeprefix("holdfast/testing/") for n in names if n.startswith("holdfast/te")}
    assert {n for n in testing if not n.startswith("conformance/")} == {"__init__.py", "probes.py"}
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"holdfast"}


def test_an_installed_wheel_works_without_a_checkout(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    def holdfast(*words: str) -> str:
        done = subprocess.run(
            [installed, *words], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, (words, done)
        return done.stdout

    holdfast("up", "--detach")
    holdfast("new", "work", "--", "bash")
    assert holdfast("run", "work", "--", "echo $((6 * 7))") == "42\n"
    assert "work" in holdfast("ls")
    holdfast("end", "work")
    assert "work" not in holdfast("ls")
    holdfast("down")


def test_the_installed_command_imports_no_more_than_the_program(
    installed: Path, environment: dict[str, str]
) -> None:
    """The script that pip writes for an entry point imports `re`, which takes 3 ms."""
    done = subprocess.run(
        [installed.parent / "python", "-X", "importtime", installed, "--version"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "holdfast.faces.cli.main" in modules
    assert not modules & {"re", "enum", "functools"}
