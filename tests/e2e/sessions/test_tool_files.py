"""Files that a person's tools execute later, where `contain.tool_files` is "read-only" (T4).

The names are taken from an agent's session also if there is no such file yet. Neither git nor the
person after the end of the session finds a trace of that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.containment.workspace import TOOL_FILES
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user

CONFIG = """[relay]
start = false
[contain]
workspaces = ["{base}/app"]
tool_files = "read-only"
"""
# Each tries to make the file $1.
WAYS = {
    "write": 'mkdir -p "$(dirname "$1")"; echo evil >"$1"',
    "replace": "top=${1%%/*}; mv $top was; rmdir $top; rm -rf $1; mkdir -p $(dirname $1); echo >$1",
    "link": 'echo evil >evil; rmdir "$1"; ln -sfT evil "$1"; ln -sfT evil "${1%%/*}"',
    "inside": 'cd "$(dirname "$1")" && echo evil >"$(basename "$1")/evil"',
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("tools")
    app = base / "app"
    (app / ".vscode").mkdir(parents=True)
    (app / ".vscode" / "settings.json").write_text("{}")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "begin"]):
        identity = ["-c", "user.name=Ann", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(app), *identity, *words], check=True)
    with installation(base, config=CONFIG.format(base=base)) as made:
        made.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", made.env["PYTHONPATH"])
        (made.account / ".gitconfig").write_text("[user]\nname = Ann\nemail = a@b\n")
        made.ok("up", "--detach")
        made.people("bot", rights="execute,observe", kind="agent")
        yield made


def tree_of(app: Path) -> set[str]:
    """Every path of the workspace, but the objects of git."""
    found = {str(path.relative_to(app)) for path in app.rglob("*")}
    return {path for path in found if not path.startswith((".git/objects", ".git/logs"))}


def start(house: Installation, name: str) -> None:
    house.ok("--as", "bot", "new", name, "--no-attach", "--cwd", str(house.base / "app"))
    house.wait(name, "idle")


def inside(house: Installation, name: str, text: str) -> str:
    """What a command prints. A person runs it: an agent might have to wait for an approval."""
    return house.cli("run", name, "--", f"({text}) 2>&1").out


def end(house: Installation, name: str) -> str:
    """End the session, and wait until the host has removed what belongs to it."""
    session, said = house.get(name)["id"], house.ok("end", name).out
    eventually(lambda: not (house.home / "contained" / session).exists(), "the removal")
    return said


def test_t4_a_share_to_be_written_keeps_its_tool_files(house: Installation) -> None:
    shared = house.base / "app/shared"
    shared.mkdir()
    (shared / ".envrc").write_text("")
    work = house.base / "app/elsewhere"
    work.mkdir()
    share = ("--share", f"{shared}:rw", "--cwd", str(work))
    house.ok("--as", "bot", "new", "sharing", "--no-attach", *share)
    house.wait("sharing", "idle")
    said = inside(
        house, "sharing", f"cd {shared}; echo evil >.envrc; echo evil >.mcp.json; echo >x"
    )
    end(house, "sharing")
    assert (shared / "x").exists(), said
    assert (shared / ".envrc").read_text() == "" and not (shared / ".mcp.json").exists(), said
    shutil.rmtree(shared)
    shutil.rmtree(work)


@pytest.mark.parametrize("place", [".vscode", ".husky/_", ".claude"])
@pytest.mark.parametrize("grant", ["cwd", "share"])
def test_t4_an_agent_gets_no_directory_of_tools_to_write(
    house: Installation, place: str, grant: str
) -> None:
    outer = house.base / "app/outer"
    (outer / place).mkdir(parents=True)
    git = house.base / "app/.git"
    git.rename(house.base / "git")
    more = ("--share", f"{outer}/{place}:rw") if grant == "share" else ("--cwd", f"{outer}/{place}")
    made = house.attempt("--as", "bot", "new", "tooling", "--no-attach", *more)
    (house.base / "git").rename(git)
    if not made.rc:
        end(house, "tooling")
    shutil.rmtree(outer)
    assert made.rc == 4 and "tools execute" in made.err, made


@pytest.mark.parametrize("way", WAYS)
def test_t4_an_agent_makes_no_tool_file_that_did_not_exist(house: Installation, way: str) -> None:
    app = house.base / "app"
    before = tree_of(app)
    script = app / "try.sh"
    script.write_text(WAYS[way])
    start(house, "theirs")
    names = " ".join((*TOOL_FILES, ".git/commondir", ".git/config.worktree"))
    out = inside(house, "theirs", f"for name in {names}; do sh try.sh $name; done; echo tried")
    assert "tried" in out
    assert "theirs" in (said := end(house, "theirs")) and str(app) not in said, said
    for name in ("evil", "was", "try.sh"):
        (app / name).unlink(missing_ok=True)
    assert tree_of(app) == before
    assert (app / ".vscode" / "settings.json").read_text() == "{}"


def test_t4_git_takes_no_notice_of_the_names_that_are_taken(house: Installation) -> None:
    app = house.base / "app"
    start(house, "commits")
    assert (app / ".envrc").is_dir() and (app / ".vscode" / "tasks.json").is_dir()
    for place in (app, None):  # of a person outside, and inside
        words = "git status --short; git submodule; git log --oneline | wc -l; git worktree list"
        if place is not None:
            words = words.replace("git ", f"git -C {place} ")
            done = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
            out = done.stdout
        else:
            out = inside(house, "commits", words)
        assert "??" not in out and "fatal" not in out and str(app) in out, out
    out = inside(house, "commits", "echo x >new; git add -A && git commit -qm x && git show --stat")
    assert "1 file changed" in out, out
    out = inside(house, "commits", "git checkout -qb two && git rebase -q HEAD~1 && echo rebased")
    assert "rebased" in out, out
    end(house, "commits")


def test_t4_the_names_stay_taken_until_the_last_session_ends(house: Installation) -> None:
    app = house.base / "app"
    before = tree_of(app)
    house.ready("person", "--contained", "--cwd", str(app))
    start(house, "first")
    start(house, "second")
    assert str(app) not in end(house, "first")
    inside(house, "second", "echo evil >.envrc; mkdir .claude; echo evil >.claude/settings.json")
    assert (app / ".envrc").is_dir() and not list((app / ".claude").iterdir())
    assert not house.get("person").get("tool_files")
    assert str(app / ".envrc") not in house.ok("who", "person").out
    end(house, "second")
    assert tree_of(app) == before
    end(house, "person")


def test_t4_names_that_a_crash_left_taken_are_free_after_the_next_start(
    house: Installation,
) -> None:
    app = house.base / "app"
    before = tree_of(app)
    left = house.home / "contained" / "0123456789ab"
    left.mkdir(parents=True)
    (app / ".envrc").mkdir()
    (left / "placeholders.json").write_text(f'{{"{app}/.envrc": null}}')
    house.ok("down")
    house.ok("up", "--detach")
    eventually(lambda: tree_of(app) == before, "the names to be free")


def test_t4_a_tool_file_behind_a_link_is_refused(house: Installation) -> None:
    app = house.base / "app"
    (app / ".envrc").symlink_to("README")
    refused = house.cli("--as", "bot", "new", "linked", "--no-attach", "--cwd", str(app))
    assert refused.rc == 4 and "is a link" in refused.err, refused
    (app / ".envrc").unlink()


def test_all_of_this_as_an_ordinary_user() -> None:
    if os.getuid() != 0:
        pytest.skip("it is being run as an ordinary user")
    passes_as_ordinary_user(__file__)
