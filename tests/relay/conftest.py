"""A relay in a separate process for each test that needs one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.relays import RelayProcess

Start = Callable[..., RelayProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(*options, **limits)`: limits of model/limits.py that are other than usual."""
    with ExitStack() as running:

        def begin(*options: str, **limits: Any) -> RelayProcess:
            return running.enter_context(
                RelayProcess(str(tmp_path / "relay"), *options, limits=limits)
            )

        yield begin
