"""The figures about file writers come from real writes. No figure is judged here."""

from __future__ import annotations

import os

import pytest

from bench import files


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets reports of file writers")
@pytest.mark.alone
def test_a_load_gives_numbers_and_every_file_its_writer() -> None:
    figures = files.measured(100)
    assert (
        (figures["with_known"] or 0) >= 100
        and figures["with_lost"] == 0.0
        and (figures["with_right"] or 0) > 0
    ), figures
