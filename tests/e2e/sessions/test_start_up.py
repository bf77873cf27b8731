"""The modules that `run` and `attach` load on a real host, whose answers are signed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.start_up import argv, environ
from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("start_up")) as found:
        yield found


def test_a_run_with_a_receipt_loads_nothing_heavy(hf: Installation) -> None:
    hf.ready("work")
    done = subprocess.run(
        argv("run", "work", "--", "true"),
        env=environ(hf.env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert list(Path(hf.home, "receipts").iterdir())
    assert done.stderr == "0 []\n", done


def test_an_attach_to_plain_output_loads_nothing_heavy(hf: Installation) -> None:
    hf.new("plain", "--", "sh", "-c", "printf READY; exec cat")
    terminal = hf.spawn(argv("attach", "plain"), env=environ({}))
    terminal.see("READY")
    terminal.send("key")
    terminal.see("READYkey")
    assert terminal.leave() == 0
    assert terminal.output.endswith(b"\r\n0 []\r\n"), bytes(terminal.output[-300:])
