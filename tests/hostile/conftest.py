"""One installation per test module; some tests need an installation of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands.through_relay import honest_again as honest_again
from tests.support.commands.through_relay import relay as relay
from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        yield made


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("fresh"), "[turn]\nidle_s = 600\n") as made:
        yield made
