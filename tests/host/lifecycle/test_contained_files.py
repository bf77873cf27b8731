"""What the host does on disk for a contained session: own directories, removal, masks, doors."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.containment import tree
from holdfast.core.containment.entries import Entry, Kind
from holdfast.core.containment.workspace import WorkTree
from holdfast.home import Home
from holdfast.home.settings import Settings
from holdfast.host.lifecycle.contained import (
    doors,
    own_directories,
    placeholders,
    plan,
    removal,
    tool_files,
    walk,
)
from holdfast.host.lifecycle.contained.disk import Disk, open_directory
from holdfast.host.shell import SessionDirectories
from holdfast.model.errors import NotAllowed, NotFound, Refused, Unavailable
from holdfast.wire import spawning as wire


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The home of the account, with a project."""
    made = tmp_path / "home" / "u"
    (made / "src" / "app").mkdir(parents=True)
    return made


@pytest.fixture
def home(account: Path) -> Home:
    state = account / ".local" / "state" / "holdfast"
    (state / "run").mkdir(parents=True, mode=0o700)
    return Home(str(state), str(account / ".config" / "holdfast" / "config.toml"), False)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        yield str(tmp_path / "socket")


def settings(home: Home, text: str = "") -> Settings:
    Path(home.config).parent.mkdir(parents=True, exist_ok=True)
    Path(home.config).write_text(text)
    return Settings.load(home)


def machine(home: Home) -> plan.Machine:
    account = home.state.removesuffix("/.local/state/holdfast")
    return plan.Machine(home, {"HOME": account, "PATH": "/usr/bin"})


def decide(home: Home, wanted: plan.Wanted, config: str = "") -> plan.Decision:
    return plan.decide(machine(home), settings(home, config), wanted)


def built(home: Home, wanted: plan.Wanted, config: str = "") -> plan.Built:
    decision = decide(home, wanted, config)
    directories = SessionDirectories.as_outside(Path(home.run, "r"), Path(home.run, "s"))
    return plan.build(machine(home), decision, "s1", "ann+work", directories)


def mounts(made: plan.Built) -> dict[str, wire.Mount]:
    return {os.fsdecode(m.target): m for m in made.containment.mounts}


# ------------------------------------------------------------ removal


def test_removal_follows_no_link_and_needs_no_permissions(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    top = tmp_path / "top"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").write_text("x")
    (top / "link").symlink_to(outside)
    (top / "closed" / "link").symlink_to(outside)
    os.mkfifo(top / "pipe")
    (top / os.fsdecode(b"\xff\n")).write_text("x")
    os.chmod(top / "closed" / "inner", 0)
    os.chmod(top / "closed", 0)
    assert removal.remove(str(top)) == 0
    assert not top.exists() and (outside / "precious").exists()
    assert removal.remove(str(top)) == 0, "what is gone is not an error"


def test_removal_of_a_tree_deeper_than_any_path(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d" * 50, dir_fd=place)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    assert removal.remove(str(top)) == 0 and not top.exists()


def test_removal_of_a_link_in_place_of_the_top(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    assert removal.remove(str(tmp_path / "top")) == 0
    assert (tmp_path / "outside").exists() and not (tmp_path / "top").is_symlink()


# ------------------------------------------------------------ own directories


def test_a_new_home_has_the_skeleton_and_a_name_for_git(
    home: Home, account: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skeleton = tmp_path / "skel"
    skeleton.mkdir()
    (skeleton / ".bashrc").write_text("# new\n")
    (skeleton / "link").symlink_to("/etc/shadow")
    monkeypatch.setattr(own_directories, "SKELETON", str(skeleton))
    (account / ".gitconfig").write_text("[user]\nname = Ann\nemail = a@b\n[core]\neditor = evil\n")
    (account / ".bashrc").write_text("# the human's\n")
    place = own_directories.own(home, "s1")
    own_directories.make(place, 1000, str(account), ".local/state/holdfast")
    new = Path(place.files, "home")
    assert (new / ".bashrc").read_text() == "# new\n" and not (new / "link").exists()
    assert (new / ".gitconfig").read_text() == '[user]\n\tname = "Ann"\n\temail = "a@b"\n'
    assert (new / ".local/state/holdfast").stat().st_mode & 0o777 == 0o555
    assert Path(place.base).stat().st_mode & 0o777 == 0o700
    assert Path(place.files, "tmp").stat().st_mode & 0o7777 == 0o1777
    assert Path(place.base, "run/user/1000").is_dir()


def test_a_kept_home_is_used_again_and_belongs_to_its_operator(home: Home, account: Path) -> None:
    one = own_directories.own(home, "s1", own_directories.kept_name("ann", "work"))
    own_directories.make(one, 1000, str(account), "")
    Path(one.files, "home", "note").write_text("x")
    two = own_directories.own(home, "s2", own_directories.kept_name("ann", "work"))
    own_directories.make(two, 1000, str(account), "")
    assert two.files == one.files and Path(two.files, "home", "note").exists()
    assert own_directories.own(home, "s3", own_directories.kept_name("bot", "work")) != one
    assert removal.remove(two.base) == 0 and Path(two.files, "home", "note").exists()


def test_t4_links_in_a_kept_home_lead_the_host_nowhere(home: Home, account: Path) -> None:
    place = own_directories.own(home, "s1", "ann+work")
    own_directories.make(place, 1000, str(account), "")
    shutil.rmtree(Path(place.files, "home", ".local"))
    Path(place.files, "home", ".local").symlink_to(account / ".local")
    own_directories.make(place, 1000, str(account), ".local/state/holdfast")
    assert Path(home.state).stat().st_mode & 0o777 != 0o555


def test_t4_a_link_in_place_of_a_kept_directory_is_refused(home: Home, account: Path) -> None:
    place = own_directories.own(home, "s1", "ann+work")
    Path(place.files).mkdir(parents=True)
    Path(place.files, "tmp").symlink_to(account)
    with pytest.raises(OSError):
        own_directories.make(place, 1000, str(account), "")


# ------------------------------------------------------------ sockets and pipes


def test_t4_sockets_and_pipes_of_shared_directories_are_found(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    (tmp_path / "a" / "link").symlink_to("/")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "a" / "socket"))
        found = walk.find([str(tmp_path)])
    assert sorted(found.paths) == [f"{tmp_path}/a/b/pipe", f"{tmp_path}/a/socket"]
    assert found.complete and not walk.find([str(tmp_path)], most=2).complete


def test_t4_they_are_masked_in_the_workspace(home: Home, account: Path) -> None:
    app = account / "src" / "app"
    os.mkfifo(app / "pipe")
    made = built(home, plan.Wanted(str(app), {}, human=True))
    assert mounts(made)[f"{app}/pipe"].kind == wire.MOUNT_EMPTY


# ------------------------------------------------------------ doors


def test_doors_lead_to_sockets_at_fixed_places(listening: str) -> None:
    env = {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={listening},guid=1", "DOCKER_HOST": listening}
    opened = doors.open_doors(("ssh-agent", "dbus", "docker"), Disk(), env, listening, 7)
    assert opened.entries == (
        Entry(Kind.READ, "/run/doors/ssh-agent", listening),
        Entry(Kind.READ, "/run/user/7/bus", listening),
        Entry(Kind.READ, "/run/docker.sock", listening),
    )
    assert opened.variables["SSH_AUTH_SOCK"] == "/run/doors/ssh-agent"
    assert "no wall" in opened.warning


def test_a_door_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    for name in ("ssh-agent", "docker", "display"):
        with pytest.raises(Refused):
            doors.open_doors((name,), Disk(), {"DOCKER_HOST": f"{tmp_path}"}, None, 7)


# ------------------------------------------------------------ tool files


def test_changes_of_files_that_tools_execute_are_noticed(tmp_path: Path) -> None:
    names = [".envrc", ".husky", ".vscode/tasks.json", ".git/config", "same"]
    (tmp_path / ".husky").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("[core]")
    (tmp_path / "same").write_text("x")
    before = tool_files.digests(f"{tmp_path}/{name}" for name in names)
    tool_files.save(str(tmp_path), before)
    assert tool_files.changed(before) == []
    (tmp_path / ".envrc").symlink_to("/nowhere")
    (tmp_path / ".husky" / "pre-commit").write_text("x")
    (tmp_path / "vs").mkdir()
    (tmp_path / "vs" / "tasks.json").write_text("{}")
    (tmp_path / ".vscode").symlink_to("vs")
    (tmp_path / ".git" / "config").write_text("[core]fsmonitor=x")
    (tmp_path / "same").write_text("x")
    found = tool_files.changed(tool_files.load(str(tmp_path)))
    assert found == [f"{tmp_path}/{name}" for name in names[:4]]


def test_no_change_of_a_tool_file_is_too_far_inside_to_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    husky, deep, large = tmp_path / ".husky", tmp_path / ".devcontainer", tmp_path / ".envrc"
    husky.mkdir()
    for number in range(300):
        (husky / f"{number:03}").write_text("x")
    (deep / "a/b/c/d/e/f").mkdir(parents=True)
    (deep / "a/b/c/d/e/f/run").write_text("x")
    large.write_bytes(bytes(tool_files.CONTENT_BYTES + 10))
    before = tool_files.digests(map(str, (husky, deep, large)))
    assert tool_files.changed(before) == []
    (husky / "299").write_text("y")
    (deep / "a/b/c/d/e/f/run").write_text("y")
    with large.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"y")
    assert tool_files.changed(before) == [*map(str, (husky, deep, large))]
    monkeypatch.setattr(tool_files, "ENTRIES_MAX", 100)
    assert tool_files.changed(tool_files.digests([str(husky)])) == [str(husky)]


def test_a_pipe_in_place_of_a_tool_file_does_not_stop_the_host(tmp_path: Path) -> None:
    before = tool_files.digests([f"{tmp_path}/.envrc"])
    os.mkfifo(tmp_path / ".envrc")
    assert tool_files.changed(before) == [f"{tmp_path}/.envrc"]


# ------------------------------------------------------------ decisions


def test_a_humans_session_has_its_workspace_and_its_own_home(home: Home, account: Path) -> None:
    app = account / "src" / "app"
    wanted = plan.Wanted(str(app), {"PATH": "/usr/bin:/gone"}, human=True)
    made = built(home, wanted)
    found = mounts(made)
    assert found[str(app)].kind == wire.MOUNT_WRITE and made.cwd == str(app)
    assert os.fsdecode(found[str(account)].source) == f"{home.state}/contained/s1/home"
    assert (
        made.env["HOME"] == str(account)
        and made.env["PATH"] == f"/usr/bin:{account}/.local/session/bin"
    )
    assert not any(os.fsdecode(m.source) == home.state for m in made.containment.mounts)
    assert made.says.startswith("sees the system") and "~/src/app" in made.says
    bounds = {"own": [str(account)], "given": [str(app)], "workspace": str(app)}
    assert made.bounds == {
        **bounds,
        "tools": [],
        "shares": [],
        "net": decide(home, wanted).terms.net,
    }


def test_t4_directories_around_holdfast_are_refused_with_advice(home: Home, account: Path) -> None:
    Path(home.config).parent.mkdir(parents=True)
    for place in (account, account / ".local", account / ".config", Path("/"), Path(home.state)):
        with pytest.raises(Refused) as refused:
            decide(home, plan.Wanted(str(place), {}, human=True))
        assert "--cwd" in refused.value.recover
    with pytest.raises(NotFound):
        decide(home, plan.Wanted(f"{account}/gone", {}, human=True))


def test_t4_a_directory_that_turns_into_a_link_meanwhile_is_a_typed_error(
    home: Home, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lstat sees a link, and readlink finds a directory in its place: EINVAL."""
    link = account / "turning"
    link.symlink_to(account)
    readlink = os.readlink

    def exchanged(path: str) -> str:
        if os.fspath(path) == str(link):
            link.unlink()
            link.mkdir()
        return readlink(path)

    monkeypatch.setattr(os, "readlink", exchanged)
    with pytest.raises(Unavailable, match="turning changed"):
        decide(home, plan.Wanted(str(link), {}, human=True))


def test_a_directory_of_the_system_gives_no_workspace(home: Home, account: Path) -> None:
    for place, inside in (("/tmp", "/tmp"), ("/usr/lib", "/usr/lib")):
        made = built(home, plan.Wanted(place, {}, human=True))
        assert made.cwd == inside and made.notes[0].startswith("no workspace")
    assert built(home, plan.Wanted(str(account), {}, True, chosen=False)).cwd == str(account)


def test_a5_an_agent_has_only_the_workspaces_of_the_configuration(
    home: Home, account: Path
) -> None:
    app, other = account / "src" / "app", account / "other"
    other.mkdir()
    config = f'[contain]\nworkspaces = ["{account}/src"]\n'
    made = built(home, plan.Wanted(str(app), {}, human=False), config)
    assert made.cwd == str(app) and mounts(made)[str(app)].kind == wire.MOUNT_WRITE
    made = built(home, plan.Wanted(str(other), {}, human=False), config)
    assert made.cwd == str(account) and str(other) not in mounts(made)
    assert "contain.workspaces" in made.notes[0]
    (account / "src" / "sneaky").symlink_to(other)
    made = built(home, plan.Wanted(str(account / "src" / "sneaky"), {}, human=False), config)
    assert str(other) not in mounts(made)


def test_a5_an_agent_cannot_choose_path_shares_and_doors(home: Home, account: Path) -> None:
    tools = account / "tools" / "bin"
    tools.mkdir(parents=True)
    wanted = plan.Wanted("/tmp", {"PATH": f"{tools}:/usr/bin"}, human=False)
    made = built(home, wanted)
    assert (
        str(tools) not in mounts(made)
        and made.env["PATH"] == f"/usr/bin:{account}/.local/session/bin"
    )
    human = plan.Wanted("/tmp", {"PATH": f"{tools}:/usr/bin"}, human=True)
    assert str(tools) in mounts(built(home, human))
    for more in ({"share": [str(tools)]}, {"doors": ["docker"]}, {"keep_home": True}):
        with pytest.raises(NotAllowed):
            decide(home, plan.Wanted("/tmp", {}, False, **more))


def test_t4_an_agents_hooks_are_read_only_also_if_they_were_missing(
    home: Home, account: Path
) -> None:
    app = account / "src" / "app"
    (app / ".git").mkdir()
    (app / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    config = '[contain]\nworkspaces = ["~/src"]\ntool_files = "read-only"\n'
    (app / ".envrc").write_text("x")
    found = mounts(built(home, plan.Wanted(str(app), {}, human=False), config))
    assert found[f"{app}/.git"].kind == wire.MOUNT_WRITE
    assert found[f"{app}/.git/hooks"].kind == wire.MOUNT_FIXED
    assert found[f"{app}/.envrc"].kind == wire.MOUNT_FIXED
    (app / ".git" / "hooks").rmdir()
    (app / ".git" / "hooks").symlink_to(app)
    with pytest.raises(Refused):
        decide(home, plan.Wanted(str(app), {}, human=False), config)


def test_t4_an_agent_that_starts_above_repositories_cannot_write_their_hooks(
    home: Home, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name: an earlier session may have renamed HEAD."""
    src = account / "src"
    (src / "app" / ".git").mkdir()
    (src / "bare" / "hooks").mkdir(parents=True)
    (src / "bare" / "HEAD").write_text("ref: refs/heads/main\n")
    (src / "app" / "ui" / "hooks").mkdir(parents=True)
    wanted, config = plan.Wanted(str(src), {}, human=False), '[contain]\nworkspaces = ["~/src"]\n'
    found = mounts(built(home, wanted, config))
    assert found[f"{src}"].kind == wire.MOUNT_WRITE
    fixed = {target for target, mount in found.items() if mount.kind == wire.MOUNT_FIXED}
    assert fixed == {f"{src}/app/.git/hooks", f"{src}/bare/hooks"}
    monkeypatch.setattr(walk, "FOUND_MAX", 0)
    with pytest.raises(Refused, match="too large to look through"):
        built(home, wanted, config)


def test_t4_a_persons_session_whose_hooks_cannot_be_kept_is_closed_to_agents(
    home: Home, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = account / "src" / "app"
    hooks = app / ".git" / "hooks"
    hooks.mkdir(parents=True)
    (app / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    wanted = plan.Wanted(str(app), {}, human=True)
    made = built(home, wanted)
    assert made.hooks_fixed and mounts(made)[str(hooks)].kind == wire.MOUNT_FIXED
    named = plan.Wanted(str(app), {}, human=True, share=[f"{hooks}:rw"])
    made = built(home, named)
    assert not made.hooks_fixed and mounts(made)[str(hooks)].kind == wire.MOUNT_WRITE
    assert any("agents cannot act here" in note for note in made.notes)
    with monkeypatch.context() as patch:
        patch.setattr(walk, "POINTERS_MAX", -1)
        made = built(home, wanted)
        assert not made.hooks_fixed and any("too large" in note for note in made.notes)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "ENTRIES_MAX", len(built(home, wanted).containment.mounts) - 1)
        made = built(home, wanted)
        assert not made.hooks_fixed and str(hooks) not in mounts(made)
    hooks.rmdir()
    hooks.symlink_to(app)
    made = built(home, wanted)
    assert not made.hooks_fixed and any("not a directory" in note for note in made.notes)


def test_shares_are_added_and_checked(home: Home, account: Path, listening: str) -> None:
    (account / "data").mkdir()
    wanted = plan.Wanted("/tmp", {}, human=True, share=["~/data:rw", "/usr"])
    assert mounts(built(home, wanted))[f"{account}/data"].kind == wire.MOUNT_WRITE
    for share in (home.state, str(account), listening, f"{account}/.local/state"):
        with pytest.raises(Refused):
            decide(home, plan.Wanted("/tmp", {}, True, [share]))


def test_an_approver_sees_what_a_session_gets(home: Home, account: Path) -> None:
    wanted = plan.Wanted(f"{account}/src/app", {}, True, ["/usr"], (), "none", True)
    assert decide(home, wanted).details() == {
        "workspace": f"{account}/src/app",
        "share": "/usr",
        "net": "none",
        "keep_home": "True",
    }


def test_t4_the_host_makes_no_hooks_behind_a_directory_that_became_a_link(tmp_path: Path) -> None:
    """Code of another session exchanges a directory of the workspace after the host has looked."""
    work, victim = tmp_path / "work", tmp_path / "victim"
    (work / "sub/.git").mkdir(parents=True)
    (victim / ".git").mkdir(parents=True)
    walked = walk.find([str(work)])
    assert walked.repositories == (f"{work}/sub/.git",)
    (work / "sub").rename(work / "was")
    (work / "sub").symlink_to(victim)
    with pytest.raises(Refused):
        plan._guarded(Disk(), WorkTree(str(work)), walked, [str(work)], str(tmp_path))
    with pytest.raises(NotADirectoryError):
        open_directory(f"{work}/sub/.git/hooks", make=True)
    assert not list((victim / ".git").iterdir())


@pytest.mark.parametrize("text", [None, "x"])
def test_t4_placeholders_are_neither_made_nor_removed_behind_a_link(
    tmp_path: Path, text: str | None
) -> None:
    work, victim, base = tmp_path / "work", tmp_path / "victim", tmp_path / "contained/session"
    (victim / ".git").mkdir(parents=True)
    base.mkdir(parents=True)
    work.symlink_to(victim)
    with pytest.raises(NotADirectoryError):
        placeholders.make(str(base), WorkTree(str(work), f"{work}/.git"))
    assert [path.name for path in victim.rglob("*")] == [".git"]
    place = victim / "kept"
    place.mkdir() if text is None else place.write_text(text)
    (base / placeholders.FILE).write_text(json.dumps({f"{work}/kept": text}))
    placeholders.remove(str(base))
    assert place.exists()


def test_a_removal_of_placeholders_is_no_change_of_tool_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that begins while the placeholders are being removed."""
    work, base = tmp_path / "work", tmp_path / "contained/session"
    work.mkdir()
    base.mkdir(parents=True)
    place = work / ".mcp.json"
    place.touch()
    (base / placeholders.FILE).write_text(json.dumps({str(place): ""}))
    compared = list[str]()

    def compare() -> None:
        placed = placeholders.known(str(base.parent))
        compared.extend(tool_files.changed({str(place): tool_files.ABSENT}, placed))

    thread = threading.Thread(target=compare)
    unlink = os.unlink

    def slow(path: str, **more: int) -> None:
        if path == place.name:  # the list is gone, the placeholder is there
            thread.start()
            thread.join(0.2)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", slow)
    placeholders.remove(str(base))
    thread.join()
    assert not place.exists() and compared == []
