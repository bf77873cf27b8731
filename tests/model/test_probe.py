"""Probes are inert until a composition root arms them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model import probe
from holdfast.testing import probes


def test_an_unarmed_probe_does_nothing() -> None:
    probe.probe("host.anything")


@pytest.mark.parametrize("text", ["nonsense", "kil@x", "explode@x#2", "random:1:x"])
def test_a_directive_with_a_typo_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        probes.arm_from(text)


def test_a_process_is_killed_at_exactly_the_nth_passing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "from holdfast.testing import probes; from holdfast.model.probe import probe\n"
        f"probes.arm_from('kill@b#2,log:{log}')\n"
        "for name in 'abab': probe(name)\nprint('survived')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env={"PYTHONPATH": str(Path(probe.__file__).parents[2])},
    )
    assert done.returncode == -9 and done.stdout == b""
    assert log.read_text().split() == list("abab")
