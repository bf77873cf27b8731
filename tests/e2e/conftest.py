"""An installation per test module: hosts are shared where a test does not disturb the next test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.commands.through_relay import honest_again as honest_again
from tests.support.commands.through_relay import relay as relay
from tests.support.installation import Installation, installation
from tests.support.ordinary_user import user as user


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """For tests that break the installation itself."""
    with installation(tmp_path_factory.mktemp("fresh")) as made:
        yield made
