"""A machine that is reached through a real relay, for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands.afar import Afar, afar


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Afar]:
    with afar(tmp_path_factory.mktemp("far")) as made:
        yield made
