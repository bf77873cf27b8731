"""Copies of Holdfast's source, in which a test changes a file."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.installation import SOURCE


def copy_source(place: Path) -> Path:
    """Copies `src` with its compiled modules: an interpreter needs seconds to compile them."""
    being_written = shutil.ignore_patterns("*.pyc.*")
    return Path(shutil.copytree(SOURCE, place, ignore=being_written))


def changed_source(place: Path, file: str, old: str, new: str) -> Path:
    """A copy in which `old`, which `file` below holdfast/ has once, is `new`."""
    changed = copy_source(place) / "holdfast" / file
    text = changed.read_text()
    assert text.count(old) == 1, f"{file} has changed: mend the test"
    changed.write_text(text.replace(old, new))
    forget_compiled(changed)
    return place


def forget_compiled(module: Path) -> None:
    """Python takes a module that was changed in the same second for the compiled one."""
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*"):
        compiled.unlink()
