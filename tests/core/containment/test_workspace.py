"""The workspace: found without git, never around Holdfast; agents cannot write its hooks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.core.containment.entries import Entry, Kind
from holdfast.core.containment.workspace import (
    Protected,
    WorkTree,
    cannot_be_fixed,
    entries,
    git_above,
    guards,
    hooks,
    named_hooks,
    outside,
    placeholders,
    tool_files,
    tools_above,
    work_tree,
)
from holdfast.faces.cli.services import agent_files
from tests.support.containment.file_table import FileTable

HOME = "/home/u"
APP = f"{HOME}/src/app"
PROTECTED = Protected(
    HOME, f"{HOME}/.local/state/holdfast", f"{HOME}/.config/holdfast", (f"{HOME}/venv",)
)


def find(content: Mapping[str, str | None], directory: str) -> WorkTree:
    return work_tree(FileTable(content), directory, lambda top: outside(top, PROTECTED) is None)


@pytest.mark.parametrize(
    ("path", "harmless"),
    [
        ("/", False),
        ("/home", False),
        (HOME, False),
        (f"{HOME}/.local", False),
        (f"{HOME}/.local/state", False),
        (f"{HOME}/.local/state/holdfast", False),
        (f"{HOME}/.local/state/holdfast/run/x", False),
        (f"{HOME}/.config", False),
        (f"{HOME}/venv", False),
        (f"{HOME}/venv/lib", False),
        ("/srv", False),
        ("/usr/src", True),
        ("/etc/x", True),
        ("/opt/x", True),
        ("/tmp", True),
        ("/var/tmp", True),
    ],
)
def test_t4_directories_that_cannot_be_a_workspace(path: str, harmless: bool) -> None:
    found = outside(path, PROTECTED)
    assert found is not None and found.harmless is harmless


@pytest.mark.parametrize("path", [APP, "/srv/app", "/tmp/app", f"{HOME}/.config/nvim", "/data/x"])
def test_directories_that_can(path: str) -> None:
    assert outside(path, PROTECTED) is None


def test_the_work_tree_that_contains_the_directory() -> None:
    content = {f"{APP}/.git/HEAD": "x", f"{APP}/a/b": None}
    assert find(content, f"{APP}/a/b") == WorkTree(APP, f"{APP}/.git")
    assert find({f"{APP}/a": None}, f"{APP}/a") == WorkTree(f"{APP}/a")


def test_a_work_tree_that_would_be_refused_gives_the_directory_alone() -> None:
    content = {f"{HOME}/.git/HEAD": "dotfiles", f"{HOME}/notes": None}
    assert find(content, f"{HOME}/notes") == WorkTree(f"{HOME}/notes")


def linked(back: str) -> dict[str, str | None]:
    common = f"{HOME}/src/main/.git"
    return {
        f"{APP}/.git": f"gitdir: {common}/worktrees/app\n",
        f"{common}/worktrees/app/commondir": "../..\n",
        f"{common}/worktrees/app/gitdir": back + "\n",
        f"{common}/HEAD": "x",
        f"{common}/objects": None,
    }


def test_the_common_directory_of_a_linked_work_tree_belongs_to_it() -> None:
    tree = find(linked(f"{APP}/.git"), APP)
    common = f"{HOME}/src/main/.git"
    assert tree == WorkTree(APP, common, f"{common}/worktrees/app")
    assert entries(tree) == [
        Entry(Kind.WRITE, APP, APP),
        Entry(Kind.WRITE, tree.git, tree.git),
    ]


@pytest.mark.parametrize(
    "content",
    [
        linked(f"{HOME}/src/other/.git"),
        {f"{APP}/.git": f"gitdir: {HOME}/.ssh", f"{HOME}/.ssh/id": "x"},
        {f"{APP}/.git": f"gitdir: {HOME}/.ssh", f"{HOME}/.ssh/commondir": "."},
        {f"{APP}/.git": "gitdir:"},
        {f"{APP}/.git": "nonsense"},
    ],
)
def test_t4_a_git_file_alone_opens_no_other_directory(content: Mapping[str, str | None]) -> None:
    assert find(content, APP) == WorkTree(APP)


def test_a_submodule_leads_to_the_repository_around_it() -> None:
    content = {
        f"{APP}/.git/HEAD": "x",
        f"{APP}/.git/modules/sub/HEAD": "x",
        f"{APP}/sub/.git": "gitdir: ../.git/modules/sub",
    }
    assert find(content, f"{APP}/sub") == WorkTree(APP, f"{APP}/.git")


def test_t4_hooks_are_read_only_and_cannot_be_moved_away() -> None:
    content = {
        f"{APP}/.git/HEAD": "x",
        f"{APP}/.git/hooks": None,
        f"{APP}/.git/modules/lib/core/HEAD": "x",
        f"{APP}/.git/modules/lib/core/hooks": None,
    }
    files, tree = FileTable(content), WorkTree(APP, f"{APP}/.git")
    assert hooks(files, tree) == [f"{APP}/.git/hooks", f"{APP}/.git/modules/lib/core/hooks"]
    found = guards(files, tree, (), [APP])
    assert [(e.kind, e.target.removeprefix(f"{APP}/.git")) for e in found] == [
        (Kind.WRITE, ""),
        (Kind.WRITE, "/modules"),
        (Kind.FIXED, "/hooks"),
        (Kind.WRITE, "/modules/lib"),
        (Kind.WRITE, "/modules/lib/core"),
        (Kind.FIXED, "/modules/lib/core/hooks"),
    ]


def test_t4_the_hooks_of_a_nested_repository_cannot_be_moved_away() -> None:
    content = {f"{APP}/vendor/lib/.git/hooks": None, "/srv/rw/x/.git/hooks": None}
    tree = WorkTree(APP, nested=(f"{APP}/vendor/lib/.git", "/srv/rw/x/.git"))
    found = guards(FileTable(content), tree, (), [APP, "/srv/rw"])
    assert {(e.kind, e.target) for e in found} == {
        (Kind.WRITE, f"{APP}/vendor"),
        (Kind.WRITE, f"{APP}/vendor/lib"),
        (Kind.WRITE, f"{APP}/vendor/lib/.git"),
        (Kind.FIXED, f"{APP}/vendor/lib/.git/hooks"),
        (Kind.WRITE, "/srv/rw/x"),
        (Kind.WRITE, "/srv/rw/x/.git"),
        (Kind.FIXED, "/srv/rw/x/.git/hooks"),
    }


def test_t4_the_git_file_of_a_linked_work_tree_is_read_only() -> None:
    content = linked(f"{APP}/.git") | {f"{HOME}/src/main/.git/hooks": None}
    tree = find(content, APP)
    found = guards(FileTable(content), tree, (), [APP, tree.git])
    assert {(e.kind, e.target) for e in found} == {
        (Kind.FIXED, f"{APP}/.git"),
        (Kind.FIXED, f"{HOME}/src/main/.git/hooks"),
    }


def test_tool_files_can_be_read_only_with_their_directories_pinned() -> None:
    content = {f"{APP}/.vscode/tasks.json": "x", f"{APP}/.envrc": "x"}
    tree = WorkTree(APP)
    files = FileTable(content)
    found = guards(files, tree, tool_files(files, tree), [APP])
    assert found == [
        Entry(Kind.WRITE, f"{APP}/.vscode", f"{APP}/.vscode"),
        Entry(Kind.FIXED, f"{APP}/.envrc", f"{APP}/.envrc"),
        Entry(Kind.FIXED, f"{APP}/.vscode/tasks.json", f"{APP}/.vscode/tasks.json"),
    ]


def test_t4_a_placeholder_takes_the_highest_missing_name() -> None:
    content = {f"{APP}/.git/HEAD": "x", f"{APP}/.vscode/settings.json": "x", f"{APP}/.envrc": "x"}
    files, tree = FileTable(content), WorkTree(APP, f"{APP}/.git")
    found = placeholders(files, tree)
    assert found[f"{APP}/.vscode/tasks.json"] is None and found[f"{APP}/.claude"] is None
    assert not {f"{APP}/.envrc", f"{APP}/.vscode", f"{APP}/.claude/settings.json"} & set(found)
    assert found[f"{APP}/.git/commondir"] == ".\n" and found[f"{APP}/.git/config.worktree"] == ""
    made = {**content, f"{APP}/.claude": None}
    assert f"{APP}/.claude/settings.json" in placeholders(FileTable(made), tree)
    assert placeholders(FileTable(made), tree, (f"{APP}/.claude",)) == found, "of another session"


@pytest.mark.parametrize("name", [".envrc", ".vscode", ".git/config"])
def test_t4_a_tool_file_behind_a_link_cannot_be_fixed(name: str) -> None:
    content = {f"{APP}/.git/HEAD": "x", f"{APP}/.idea/workspace.xml": "x"}
    files, tree = FileTable(content), WorkTree(APP, f"{APP}/.git")
    assert cannot_be_fixed(files, tree) == ""
    files.content[f"{APP}/{name}"] = "-> elsewhere"
    assert cannot_be_fixed(files, tree) == f"{APP}/{name}"


@pytest.mark.parametrize("agent", agent_files.AGENTS)
def test_t4_the_configuration_of_a_known_agent_is_a_tool_file(agent: str) -> None:
    content = {f"{APP}/{path}": "x" for path in agent_files.AGENTS[agent].files}
    found = tool_files(FileTable(content), find(content, APP))
    for path in content:
        assert any(path == one or path.startswith(f"{one}/") for one in found), path


def test_tool_files_of_a_linked_work_tree_are_those_of_its_git_directories() -> None:
    content = linked(f"{APP}/.git")
    found = tool_files(FileTable(content), find(content, APP))
    common = f"{HOME}/src/main/.git"
    for name in ("config", "commondir", "worktrees/app/commondir", "worktrees/app/gitdir"):
        assert f"{common}/{name}" in found
    assert f"{APP}/.git" in found and f"{APP}/.envrc" in found


@pytest.mark.parametrize(
    ("path", "git"),
    [
        (f"{APP}/.git", ""),
        (f"{APP}/src", ""),
        (f"{APP}/.git/hooks", f"{APP}/.git"),
        (f"{APP}/.git/objects/pack", f"{APP}/.git"),
        (f"{HOME}/bare", ""),
        (f"{HOME}/bare/hooks", f"{HOME}/bare"),
    ],
)
def test_t4_a_path_inside_a_git_directory_is_recognised_without_head(path: str, git: str) -> None:
    hidden = {f"{APP}/.git/objects/pack/x": "", f"{APP}/src/x": "", f"{APP}/.git/hooks/x": ""}
    bare = {f"{HOME}/bare/hooks/x": "", f"{HOME}/bare/objects/x": ""}
    assert git_above(FileTable({**hidden, **bare}), path) == git


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        (f"{APP}/.vscode", True),
        (f"{APP}/.husky/_", True),
        (f"{APP}/x/.idea/runConfigurations", True),
        (f"{APP}/.envrc", True),
        (f"{APP}/.config", True),
        (f"{HOME}/.config/other", False),
        (f"{APP}/.vscode/other", False),
        (APP, False),
    ],
)
def test_t4_a_path_with_tool_files_is_recognised(path: str, refused: bool) -> None:
    assert tools_above(path) is refused


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("[core]\n\thooksPath = tools/hooks\n", [f"{APP}/tools/hooks"]),
        ('[CORE] HOOKSPATH = "../app/tools" ; x', [f"{APP}/tools"]),
        (f"[core]\nhooksPath = {APP}/tools\n", [f"{APP}/tools"]),
        ("[core]\nhooksPath = ~/src/app/tools\n", [f"{APP}/tools"]),
        ("[core]\nhooksPath = .\n", [APP]),
        ("[core]\nhooksPath = /usr/share/hooks\n", []),
        ('[core "x"]\nhooksPath = tools\n', []),
        ("[core]\nbare = false\n", []),
    ],
)
def test_t4_the_hooks_that_a_configuration_names(config: str, named: list[str]) -> None:
    files = FileTable({f"{APP}/.git/HEAD": "", f"{APP}/.git/config": config})
    assert named_hooks(files, WorkTree(APP, f"{APP}/.git"), [APP], HOME) == named
