"""The trees behind PATH: enough for the tools to run, and no credentials."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from holdfast.core.containment.entries import Entry, Kind
from holdfast.core.containment.tools import Limits, tools
from tests.support.containment.file_table import FileTable

HOME = "/home/u"
LIMITS = Limits(HOME, (f"{HOME}/.local/state/holdfast", f"{HOME}/.config/holdfast"), ("/usr",))


def trees(content: Mapping[str, str | None], *path: str, limits: Limits = LIMITS) -> list[str]:
    return [entry.target for entry in tools(FileTable(content), path, limits)]


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        ([".nvm/versions/node/v22/bin/node"], ".nvm/versions/node/v22/bin", [".nvm"]),
        ([".pyenv/shims/python", ".pyenv/versions/3.12/bin/python"], ".pyenv/shims", [".pyenv"]),
        (
            [".cargo/bin/cargo", ".cargo/credentials.toml", ".rustup/toolchains/x"],
            ".cargo/bin",
            [".cargo/bin", ".rustup"],
        ),
        (
            [".local/bin/black", ".local/lib/x", ".local/share/uv/credentials/x"],
            ".local/bin",
            [".local/bin", ".local/lib"],
        ),
        ([".volta/bin/node"], ".volta/bin", [".volta"]),
        ([".asdf/shims/x", ".tool-versions"], ".asdf/shims", [".asdf", ".tool-versions"]),
        ([".local/share/mise/shims/x"], ".local/share/mise/shims", [".local/share/mise"]),
        ([".sdkman/candidates/java/25/bin/java"], ".sdkman/candidates/java/25/bin", [".sdkman"]),
        (["go/bin/x", "go/src/secret"], "go/bin", ["go/bin"]),
        ([".deno/bin/deno"], ".deno/bin", [".deno/bin"]),
        ([".bun/bin/bun"], ".bun/bin", [".bun/bin"]),
        (["bin/x", "secret"], "bin", ["bin"]),
        (["Documents/bin/x", "Documents/letter"], "Documents/bin", ["Documents/bin"]),
        (["app/bin/x", "app/lib/y"], "app/bin", ["app"]),
        (["flat/x"], "flat", ["flat"]),
    ],
)
def test_each_manager_gets_its_trees(files: list[str], path: str, expected: list[str]) -> None:
    content: dict[str, str | None] = {f"{HOME}/{name}": "x" for name in files}
    assert trees(content, f"{HOME}/{path}") == [f"{HOME}/{tree}" for tree in expected]


def test_system_directories_missing_and_relative_entries_add_nothing() -> None:
    assert trees({"/usr/bin/x": "x"}, "/usr/bin", "", ".", "bin", "/nowhere", HOME) == []


@pytest.mark.parametrize(
    "place",
    ["", ".local", ".local/state", ".local/state/holdfast/bin", ".config", ".config/holdfast/bin"],
)
def test_t4_never_holdfast_nor_what_contains_it(place: str) -> None:
    content: dict[str, str | None] = {f"{HOME}/{place}/x": "x", f"{HOME}/{place}/lib/y": "x"}
    assert trees(content, f"{HOME}/{place}".rstrip("/")) == []


def test_bin_below_a_parent_of_the_state_shows_only_itself() -> None:
    limits = Limits("/home/u", ("/srv/hf/state",), ())
    content: dict[str, str | None] = {"/srv/hf/bin/x": "x", "/srv/hf/lib/y": "x"}
    assert trees(content, "/srv/hf/bin", limits=limits) == ["/srv/hf/bin"]


def test_a_path_entry_that_is_a_link_exists_inside_too() -> None:
    shell = f"{HOME}/.local/state/fnm_multishells/1"
    node = f"{HOME}/.local/share/fnm/node-versions/v22/installation"
    content = {f"{node}/bin/node": "x", shell: f"-> {node}"}
    assert tools(FileTable(content), [f"{shell}/bin"], LIMITS) == [
        Entry(Kind.READ, f"{HOME}/.local/share/fnm", f"{HOME}/.local/share/fnm"),
        Entry(Kind.READ, f"{shell}/bin", f"{node}/bin"),
    ]


def test_a_venv_brings_its_base_python() -> None:
    content = {
        f"{HOME}/env/pyvenv.cfg": f"home = {HOME}/.pyenv/versions/3.12/bin\nversion = 3.12",
        f"{HOME}/env/bin/python": "x",
        f"{HOME}/.pyenv/versions/3.12/bin/python3": "x",
    }
    assert trees(content, f"{HOME}/env/bin") == [f"{HOME}/env", f"{HOME}/.pyenv"]


def test_links_to_programs_bring_their_tree_or_only_the_program() -> None:
    content = {
        f"{HOME}/bin/node": f"-> {HOME}/.nvm/versions/node/v22/bin/node",
        f"{HOME}/.nvm/versions/node/v22/bin/node": "x",
        f"{HOME}/bin/mine": f"-> {HOME}/src/tool/mine.py",
        f"{HOME}/src/tool/mine.py": "x",
        f"{HOME}/src/tool/.env": "secret",
        f"{HOME}/bin/key": f"-> {HOME}/.config/holdfast/key",
        f"{HOME}/.config/holdfast/key": "x",
        f"{HOME}/bin/broken": "-> /nowhere",
    }
    assert trees(content, f"{HOME}/bin") == [
        f"{HOME}/bin",
        f"{HOME}/src/tool/mine.py",
        f"{HOME}/.nvm",
    ]


def test_a_tree_in_the_workspace_is_not_shown_again() -> None:
    limits = LIMITS._replace(shown=(f"{HOME}/src/app",))
    content: dict[str, str | None] = {f"{HOME}/src/app/.venv/bin/python": "x"}
    assert trees(content, f"{HOME}/src/app/.venv/bin", limits=limits) == []


SECRETS = {f"{HOME}/.ssh/id": "key", f"{HOME}/.aws/credentials": "key"}


@pytest.mark.parametrize(
    "content",
    [
        {"/data/app/.venv/bin/key": f"-> {HOME}/.ssh/id"},
        {"/data/app/.venv/bin/x": "", "/data/app/.venv/pyvenv.cfg": f"home = {HOME}/.ssh\n"},
        {"/data/app/.venv/bin": f"-> {HOME}/.ssh"},
        {"/data/app/.venv": f"-> {HOME}/.aws", f"{HOME}/.aws/bin/x": ""},
        {"/data/app/.venv/bin/key": "-> ../../away/id", "/data/app/away": f"-> {HOME}/.ssh"},
        {f"{HOME}/.local/bin/tool": "-> /data/app/tool", "/data/app/tool": f"-> {HOME}/.ssh/id"},
        {f"{HOME}/bin": "-> /data/app/bin", "/data/app/bin": f"-> {HOME}/.ssh"},
    ],
)
@pytest.mark.parametrize("workspace", ["/data/app", "/elsewhere"])
def test_t4_links_that_a_session_made_show_no_other_place(
    content: dict[str, str | None], workspace: str
) -> None:
    """In this session's workspace, or in the workspace of another."""
    limits = LIMITS._replace(shown=("/usr", workspace), writable=(workspace,))
    path = ("/data/app/.venv/bin", f"{HOME}/.local/bin", f"{HOME}/bin")
    found = trees({**SECRETS, **content}, *path, limits=limits)
    assert not [tree for tree in found if ".ssh" in tree or ".aws" in tree or tree == HOME]


def test_a_venv_in_a_workspace_brings_the_python_of_a_manager() -> None:
    found = trees(
        {
            "/data/app/.venv/bin/python": f"-> {HOME}/.pyenv/versions/3.12/bin/python3",
            "/data/app/.venv/pyvenv.cfg": f"home = {HOME}/.pyenv/versions/3.12/bin\n",
            f"{HOME}/.pyenv/versions/3.12/bin/python3": "",
        },
        "/data/app/.venv/bin",
        limits=LIMITS._replace(shown=("/usr", "/data/app"), writable=("/data/app",)),
    )
    assert found == [f"{HOME}/.pyenv"]
