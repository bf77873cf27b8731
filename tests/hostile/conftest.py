"""One installation per test module, as in the other tests with real hosts; some tests need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.harness import Installation, installation


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        yield made


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("fresh"), "[turn]\nidle_s = 600\n") as made:
        yield made
