"""A network of its own that this machine cannot connect is refused, with the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.containment import network
from holdfast.core.containment.network import PASTA, SLIRP, Program
from holdfast.host.runtime import connectors
from holdfast.model.errors import Impossible


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(network, "DIRECTORIES", (str(tmp_path),))
    monkeypatch.setattr(network, "TUN", os.devnull)
    return tmp_path


def test_t4_without_a_program_it_is_refused(bin_directory: Path) -> None:
    (bin_directory / PASTA).touch(mode=0o644)  # not executable
    assert connectors.installed() == [] and not connectors.usable()
    with pytest.raises(Impossible) as refused:
        connectors.check(connectors.installed())
    assert refused.value.exit_code == 7 and "passt" in refused.value.recover
    assert "install passt" in connectors.advice()


def test_publishing_needs_pasta(bin_directory: Path) -> None:
    (bin_directory / SLIRP).touch(mode=0o755)
    found = connectors.installed()
    assert found == [Program(SLIRP, f"{bin_directory}/{SLIRP}")] and connectors.usable()
    connectors.check(found)
    with pytest.raises(Impossible, match="pasta"):
        connectors.check(found, (3000,))


def test_a_closed_device_is_refused(bin_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bin_directory / PASTA).touch(mode=0o755)
    device = bin_directory / "tun"
    monkeypatch.setattr(network, "TUN", str(device))
    with pytest.raises(Impossible, match="there is no"):
        connectors.check(connectors.installed())
    device.touch(mode=0o600)
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(device))
    with pytest.raises(Impossible, match="mode 0600"):
        connectors.check(connectors.installed())
    assert not connectors.usable() and "chmod 0666" in connectors.advice()
