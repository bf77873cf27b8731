"""Files of a session on another machine, through a relay that dies (T8, S4)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.support.commands.programs import together
from tests.support.commands.through_relay import connect, invitation
from tests.support.installation import DEADLINE_S, Installation, installation
from tests.support.simulation.crooked_carrier import Crooked

EXAMPLE = Path(__file__).parents[3] / "examples" / "upload_artifact.py"
SIZE = 6 << 20

pytestmark = pytest.mark.usefixtures("honest_again")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    """The machine."""
    with installation(tmp_path_factory.mktemp("there")) as made:
        made.ready("work")
        connect(made, relay)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, there: Installation) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("here")) as made:
        joined = made.ok("join", invitation(there), "--as", "ann", "--json").json
        made.ok("machines", "rename", joined["as"], "box")
        yield made


def test_t8_an_artifact_is_uploaded_through_a_relay(
    here: Installation, there: Installation, tmp_path: Path
) -> None:
    local = tmp_path / "artifact"
    local.write_bytes(os.urandom(SIZE))
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "box/work", str(local)],
        env=here.env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert f"{there.user}/artifact: {SIZE} bytes" in done.stdout, done
    assert (there.user / "artifact").read_bytes() == local.read_bytes()


def test_s4_transfers_continue_when_the_relay_cuts_the_line(
    here: Installation, there: Installation, relay: Crooked, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(SIZE))

    async def work() -> None:
        async with holdfast.connect(operator="ann", home=str(here.home)) as client:
            session = await client.sessions.get("box/work")
            cuts: list[int] = []

            def progress(done: int, size: int) -> None:
                if SIZE // 4 < done < size and len(cuts) % 2 == 0:
                    cuts.append(done)
                    relay.cut_all()

            await session.files.put(str(local), "remote", progress=progress)
            assert len(cuts) == 1
            cuts.append(0)
            await session.files.get("remote", str(tmp_path / "back"), progress=progress)
            assert len(cuts) == 3

    together(work())
    assert (there.user / "remote").read_bytes() == local.read_bytes()
    assert (tmp_path / "back").read_bytes() == local.read_bytes()
