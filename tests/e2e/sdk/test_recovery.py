"""Advice for programs names calls of the API, never commands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast.model.advice import COMMAND
from holdfast.model.errors import ALL
from holdfast.sdk.recovery import for_programs
from tests.support.installation import Installation


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_a9_no_error_tells_a_program_to_type_a_command(kind: type[holdfast.HoldfastError]) -> None:
    for recover in (None, "`holdfast up` starts it", "try --once KEY", "holdfast ls"):
        advice = for_programs(kind("it failed", recover)).recover
        assert not COMMAND.search(advice), advice
        assert advice or not kind("it failed", recover).recover
    kept = "wait until the well-known line-mode ends"
    assert for_programs(kind("it failed", kept)).recover == kept


def test_a9_errors_of_calls_have_advice_for_programs(hf: Installation, tmp_path: Path) -> None:
    hf.ready("sdk-advice")

    async def work() -> list[holdfast.HoldfastError]:
        async with holdfast.connect(operator="tester", home=str(hf.home)) as client:
            session = await client.sessions.get("sdk-advice")
            found = []
            for call in (
                client.sessions.get("no-such-session"),
                client.sessions.get("no-such-machine/x"),
                session.wait("no-such-condition"),
                session.signal(1),
                session.run(""),
                session.turn.hand("no-such-operator"),
            ):
                with pytest.raises(holdfast.HoldfastError) as failed:
                    await call
                found.append(failed.value)
            return found

    errors = asyncio.run(work())
    with pytest.raises(holdfast.NotFound) as missing:
        holdfast.connect(tmp_path / "no-credential")
    for error in (*errors, missing.value):
        assert not COMMAND.search(error.recover), (error, error.recover)
