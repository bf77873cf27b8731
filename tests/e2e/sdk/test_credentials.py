"""A credential lets a program act without a home and without pairing, also through a relay."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.client import credential
from holdfast.model import signing
from tests.support.commands.afar import Afar
from tests.support.installation import DEADLINE_S

T = TypeVar("T")
PROGRAM = """
import asyncio, holdfast

async def main():
    async with holdfast.connect() as client:
        session = await client.sessions.new("ci", exist_ok=True)
        done = await session.run("echo reached; echo ${HOLDFAST_CREDENTIAL-hidden}")
        print(done.exit_code, done.output)

asyncio.run(main())
"""


def together(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


def issued(far: Afar, name: str, *more: str) -> Path:
    """A new credential file."""
    path = far.there.user / f"{name}.credential"
    far.there.ok("grant", name, "--rights", "execute", "--credential", str(path), *more)
    return path


def elsewhere(path: Path, file: Path) -> Path:
    """The same credential on another machine, where the machine's own home does not exist."""
    found = credential.load(str(path))
    file.write_text(credential.encode(found._replace(home="/nonexistent")))
    file.chmod(0o600)
    return file


async def view(given: str | Path) -> list[str]:
    async with holdfast.connect(given) as client:
        return [one.name for one in await client.sessions.list()]


def test_a9_a_script_without_a_home_acts_through_a_relay(far: Afar, tmp_path: Path) -> None:
    path = elsewhere(issued(far, "ci-1"), tmp_path / "given")
    bare = {"PATH": far.there.env["PATH"], "PYTHONPATH": far.there.env["PYTHONPATH"]}
    home = tmp_path / "no-home"
    for given in (str(path), path.read_text()):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**bare, "HOME": str(home), "HOLDFAST_CREDENTIAL": given},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.stdout == "0 reached\nhidden\n\n", done.stderr
    assert not home.exists()
    acts = far.there.ask("log", session="ci")["entries"]
    assert "ci-1" in str(acts)


def test_m_a_credential_works_on_the_machine_itself_and_for_commands(far: Afar) -> None:
    path = issued(far, "ci-2", "--kind", "agent")
    far.there.new("cred-local")
    assert "cred-local" in together(view(path))
    assert credential.link(credential.load(str(path)), "sdk", False, {}).away is None
    shown = far.here.ok("ls", "--json", env={"HOLDFAST_CREDENTIAL": str(path)}).json
    assert "cred-local" in [one["name"] for one in shown]
    assert {one["machine"] for one in shown} == {shown[0]["machine"]}
    assert far.there.ask("operator.show", name="ci-2")["kind"] == "agent"


def test_a5_expiry_and_revocation_are_explained(far: Afar, tmp_path: Path) -> None:
    path = elsewhere(issued(far, "ci-3", "--expires", "1h"), tmp_path / "ended")
    found = credential.load(str(path))
    assert found.scope.expires is not None
    together(view(path))
    far.there.ok("operator", "revoke", "ci-3")
    with pytest.raises(holdfast.NotAllowed, match="revoked"):
        together(view(path))
    brief = issued(far, "ci-4", "--expires", "1s")
    with pytest.raises(holdfast.NotAllowed, match="expired"):
        while True:
            together(view(brief))


def test_t4_a_credential_is_private(far: Afar, tmp_path: Path) -> None:
    path = issued(far, "ci-5")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    found = credential.load(str(path))
    for secret in (credential.encode(found), found.identity.secret().hex()):
        assert secret not in repr(found) + repr(found.identity)
    path.chmod(0o640)
    with pytest.raises(holdfast.Refused, match="not private"):
        holdfast.connect(path)
    with pytest.raises(holdfast.NotFound):
        holdfast.connect(tmp_path / "missing")
    for wrong in ("hfc1.", "hfc1.AAAA", credential.encode(found)[:-8]):
        with pytest.raises(holdfast.Usage) as refused:
            holdfast.connect(wrong)
        assert len(wrong) < 20 or wrong not in str(refused.value)


def test_a5_a_second_credential_is_a_device_that_can_be_revoked(far: Afar, tmp_path: Path) -> None:
    first = issued(far, "ci-6")
    text = far.there.ok("grant", "ci-6", "--rights", "read", "--credential", "-").out.strip()
    together(view(first))
    together(view(text))
    devices = far.there.ask("device.ls", operator="ci-6")["devices"]
    key = credential.load(text).identity.public
    name = next(one["name"] for one in devices if one["key"] == signing.show(key))
    far.there.ok("device", "revoke", name, "--of", "ci-6")
    with pytest.raises(holdfast.NotAllowed):
        together(view(text))
    together(view(first))
