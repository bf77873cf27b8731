"""Every module has its own installation, which is removed after the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stage import Stage


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """An installation; with a configuration if the test gives one as the fixture's parameter."""
    made = Stage(getattr(request, "param", ""))
    try:
        yield made
    finally:
        made.close()
