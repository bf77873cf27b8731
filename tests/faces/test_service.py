"""`holdfast service` against a systemctl that keeps a diary; the units against systemd-analyze."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.core import systemd_units as units
from holdfast.faces.cli import local_relay, service
from holdfast.faces.cli import main as cli
from holdfast.faces.cli.recovery import residency
from holdfast.home import Home
from holdfast.model.errors import Unavailable

SYSTEMCTL = """#!/bin/sh
echo "$*" >>"$DIARY"
case "$*" in
*is-active*) exit 3;;
*"$FAIL"*) echo "it cannot" >&2; exit 1;;
*"show -p"*) echo ActiveState=inactive;;
esac
"""


class Desk:
    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self._capsys = base, capsys
        self.units = base / "config/systemd/user"

    def run(self, *args: str) -> tuple[int, str, str]:
        code = cli.run(["service", *args])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, *args: str) -> Any:
        code, out, err = self.run(args[0], "--json", *args[1:])
        assert code == 0, err
        return json.loads(out)

    @property
    def diary(self) -> list[str]:
        path = self.base / "diary"
        return (
            [
                line.replace("--no-ask-password --no-pager ", "")
                for line in path.read_text().splitlines()
            ]
            if path.exists()
            else []
        )


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """All files below a separate directory: the manager of this machine is never asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "booted").mkdir()
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin/systemctl").chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "DIARY": f"{tmp_path}/diary",
        "FAIL": "nothing fails",
        "HOLDFAST_HOME": f"{tmp_path}/hf",
        "XDG_CONFIG_HOME": f"{tmp_path}/config",
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(service, "BOOTED", str(tmp_path / "booted"))
    monkeypatch.setattr(service, "LINGER", str(tmp_path / "linger"))
    yield Desk(tmp_path, capsys)


def test_without_systemd_it_says_so_and_writes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BOOTED", "/nowhere")
    code, _, err = desk.run("install")
    assert code == 7 and "systemd does not run this machine" in err and "--dry-run" in err
    assert not desk.units.exists() and not desk.diary and not (desk.base / "hf").exists()
    code, out, _ = desk.run("install", "--dry-run")
    assert code == 0 and "ExecStart=" in out and "not here" in out and not desk.units.exists()
    assert desk.json("status")["notes"], "it says why nothing is known"


def test_a_manager_that_does_not_answer_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "show-environment")
    code, _, err = desk.run("install")
    assert code == 7 and "it cannot" in err and "enable-linger" in err and not desk.units.exists()


def test_install_twice_is_installing_once(desk: Desk) -> None:
    code, out, err = desk.run("install")
    assert code == 0, err
    assert sorted(p.name for p in desk.units.iterdir()) == sorted(
        [units.DRAIN, units.HOST, units.NURSERY]
    )
    assert desk.diary[1:] == [
        "--user daemon-reload",
        f"--user enable {units.HOST}",
        f"--user is-active {units.HOST}",
        f"--user start {units.HOST}",
    ]
    assert "lingering is off" in out and "loginctl enable-linger" in out
    before = {p.name: (p.read_text(), p.stat().st_mtime_ns) for p in desk.units.iterdir()}
    (desk.base / "diary").unlink()
    (desk.base / "linger").mkdir()
    (desk.base / "linger" / service._name()).touch()
    code, out, _ = desk.run("install")
    assert (
        code == 0
        and "lingering" not in out
        and {p.name: (p.read_text(), p.stat().st_mtime_ns) for p in desk.units.iterdir()} == before
    )
    assert (
        "--user daemon-reload" not in desk.diary
        and f"--user restart {units.HOST}" not in desk.diary
    )


def test_an_edited_unit_is_left_alone_and_an_old_unit_is_replaced(desk: Desk) -> None:
    desk.run("install")
    host, nursery = desk.units / units.HOST, desk.units / units.NURSERY
    host.write_text(host.read_text() + "# mine\n")
    body = nursery.read_text().split("\n", 4)
    nursery.write_text(units.marked(body[4], str(desk.base / "hf"), "0.0.1"))
    assert {u["name"]: u["file"] for u in desk.json("status")["units"]} == {
        units.HOST: "edited",
        units.NURSERY: "outdated",
        units.DRAIN: "current",
    }
    did = desk.json("install")["did"]
    assert host.read_text().endswith("# mine\n") and any("edited by hand" in line for line in did)
    assert "0.0.1" not in nursery.read_text()
    did = desk.json("uninstall")["did"]
    assert (
        host.exists()
        and not nursery.exists()
        and any(str(host) in line and "yourself" in line for line in did)
    )


def test_uninstall_stops_and_removes(desk: Desk) -> None:
    desk.run("install")
    (desk.base / "diary").unlink()
    desk.json("uninstall", "--dry-run")
    assert len(list(desk.units.iterdir())) == 3
    code, out, _ = desk.run("uninstall")
    assert code == 0 and not list(desk.units.iterdir()) and "sessions keep running" in out
    assert desk.diary[1:] == [
        f"--user stop {units.DRAIN}",
        f"--user disable --now {units.HOST}",
        f"--user stop {units.NURSERY}",
        "--user daemon-reload",
    ]
    assert desk.json("uninstall")["did"] == ["nothing is installed"]


def test_units_of_another_home_are_not_taken_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.run("install")
    monkeypatch.setenv("HOLDFAST_HOME", f"{desk.base}/other")
    for act in ("install", "uninstall"):
        code, _, err = desk.run(act)
        assert code == 4 and f"{desk.base}/hf" in err
    assert len(list(desk.units.iterdir())) == 3


def test_a_manager_that_refuses_is_quoted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", f"start {units.HOST}")
    code, _, err = desk.run("install")
    assert code == 5 and "it cannot" in err and "journalctl --user -u" in err


def test_the_relay_is_a_unit_of_its_own(desk: Desk) -> None:
    made = desk.json(
        "install", "--relay", "--dry-run", "--system", "--", "--listen", "0.0.0.0:8410", "--no-tls"
    )
    assert [u["name"] for u in made["units"]] == [units.RELAY] and made["units"][0]["text"].count(
        "--listen 0.0.0.0:8410 --no-tls"
    ) == 1
    assert made["units"][0]["path"] == f"/etc/systemd/system/{units.RELAY}"


def test_a_relay_that_up_started_gives_way_to_the_unit_and_up_asks_the_manager_from_then_on(
    desk: Desk,
) -> None:
    home = Home(f"{desk.base}/hf", f"{desk.base}/hf/config.toml", True)
    homes.prepare(home)
    running, _ = local_relay.begin(home)
    try:
        assert running.by == "up" and local_relay.found(home) == running
        did = desk.json("install", "--relay")["did"]
        assert (
            any(f"process {running.pid}" in line for line in did)
            and local_relay.found(home) is None
        )
        with pytest.raises(Unavailable, match="its unit"):
            local_relay.begin(home)
        assert (
            desk.diary[-1] == "--user start holdfast-relay.service"
            and local_relay.found(home) is None
        ), "it started nothing of its own, which would be in the unit's way"
        desk.run("uninstall", "--relay")
        again, started = local_relay.begin(home)
        assert started and again.by == "up" and again.url == running.url
    finally:
        local_relay.down(home)
    assert local_relay.found(home) is None


@pytest.mark.parametrize(
    "args",
    [
        ("install", "extra"),
        ("install", "--account", "ann"),
        ("start",),
        ("install", "--user", "--system"),
        ("status", "--relay", "--", "--listen", "x"),
    ],
)
def test_usage(desk: Desk, args: tuple[str, ...]) -> None:
    assert desk.run(*args)[0] == 2


def test_only_root_installs_for_the_machine(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert service.why_not("system") == (
        "only root can install units of the machine",
        "run it as root, with --account NAME for the host of an account; or without --system",
    )
    assert desk.run("install", "--system", "--account", "no-such-account-here")[0] == 3


@pytest.mark.parametrize("manager", ["user", "system"])
@pytest.mark.parametrize(
    "name",
    ["plain", "with space", "per%cent h%h", "dol$lar $HOME ${HOME}", "quote\"d 'and' back\\slash"],
)
def test_systemd_itself_finds_nothing_wrong(tmp_path: Path, manager: str, name: str) -> None:
    """systemd-analyze looks for the program, so it does not find a wrongly quoted path."""
    examiner = shutil.which("systemd-analyze")
    if examiner is None:
        pytest.skip("there is no systemd-analyze on this machine")
    program = tmp_path / name.replace('"', "").replace("'", "").replace("\\", "") / "python"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    installation = units.Installation(
        "user" if manager == "user" else "system",
        "root",
        str(program),
        str(tmp_path / name / "hf"),
        "1.0",
        (("HOLDFAST_HOME", str(tmp_path / name / "hf")),),
    )
    texts = {
        units.NURSERY: units.nursery(installation),
        units.HOST: units.host(installation),
        units.DRAIN: units.drain(installation),
        units.RELAY: units.relay(installation, ["--listen", "127.0.0.1:443"]),
    }
    (tmp_path / "units").mkdir()
    for unit, text in texts.items():
        # systemd before 254 warns about this key and ignores it.
        known = re.sub(r"(?m)^DelegateSubgroup=.*\n", "", text)
        (tmp_path / "units" / unit).write_text(known)

    def examine() -> tuple[int, str]:
        done = subprocess.run(
            [
                examiner,
                f"--{manager}",
                "verify",
                "--man=no",
                "--recursive-errors=no",
                *(str(tmp_path / "units" / unit) for unit in texts),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        )
        return done.returncode, "\n".join(
            line for line in done.stderr.splitlines() if "holdfast" in line or done.returncode
        )

    code, said = examine()
    if code and "Failed to initialize manager" in said:
        pytest.skip(f"systemd-analyze cannot work here: {said.splitlines()[-1]}")
    assert (code, said) == (0, "")
    broken = tmp_path / "units" / units.NURSERY
    broken.write_text(
        broken.read_text()
        .replace("ExecStart=", "ExecStart=/nowhere", 1)
        .replace("KillMode=", "KilMode=")
    )
    code, said = examine()
    assert code and "KilMode" in said, "it does look"


@pytest.mark.parametrize(("state", "drains"), [("stopping", True), ("running", False), ("", False)])
def test_r9_the_stop_command_drains_only_at_a_shutdown(
    state: str, drains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "systemctl"
    asked.write_text(f"#!/bin/sh\necho $* >>{tmp_path}/asked\necho {state}\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert residency._shuts_down("user") is drains
    assert (tmp_path / "asked").read_text() == "--user is-system-running\n"
