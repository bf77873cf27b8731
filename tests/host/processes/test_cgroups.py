"""Where sessions' control groups are made, with a tree of directories in place of the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.host.processes import cgroups
from holdfast.host.processes.cgroups import Groups

UNIT = "/app.slice/holdfast-nursery.service"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = {"self": "/app.slice/holdfast-host.service", 7: UNIT}
    for path in where.values():
        (tmp_path / path[1:]).mkdir(parents=True)
    monkeypatch.setattr(cgroups, "_mounted", lambda: (str(tmp_path), "/"))
    monkeypatch.setattr(cgroups, "_of", lambda pid: where.get(pid, ""))
    monkeypatch.setattr(cgroups, "_is_ours", lambda path: path != str(tmp_path))
    return tmp_path


def test_sessions_have_their_groups_in_the_nurserys_unit(tree: Path) -> None:
    made = Groups("/home/x")
    made.make("early")
    made.beside(7, True)
    assert made.make("s1") == f"{tree}{UNIT}/{made.name}/s1" and Path(made.make("s1")).is_dir()
    assert made.remove("early") and made.remove("s1"), "also where the earlier ones are"
    assert not list(tree.rglob(made.name))


def test_the_group_of_a_unit_is_its_managers_to_make(tree: Path) -> None:
    """While the unit is down, its group may be gone.

    Then the session's group is elsewhere, and the host makes no directory in the way of systemd.
    """
    made = Groups("/home/x")
    made.beside(7, True)
    (tree / UNIT[1:]).rmdir()
    assert UNIT not in made.make("s1") and not (tree / UNIT[1:]).exists()


def test_a_nursery_that_is_gone_changes_nothing(tree: Path) -> None:
    made = Groups("/home/x")
    before = made.make("s1")
    made.beside(4711, True)
    assert made.make("s1") == before


def test_a_unit_is_not_taken_for_the_group_of_a_home(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(cgroups, "_write", lambda path, text: written.append(path))
    made = Groups("/home/x")
    made.leave()
    assert not written, "a host in its unit stays there"
    monkeypatch.setattr(cgroups, "_of", lambda pid: f"{UNIT}/{made.name}/session")
    made.leave()
    assert written == [f"{tree}{UNIT}/cgroup.procs"]
