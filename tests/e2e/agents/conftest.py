"""An installation with a person and an agent, and a contained session for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.installation import Installation, installation


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("ann")
        made.people("bot", rights="execute", kind="agent")
        yield made


@pytest.fixture
def work(house: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30]
    place = house.user / name
    place.mkdir()
    house.ready(name, "--contained", "--cwd", str(place))
    yield name
    house.quick("end", name)
