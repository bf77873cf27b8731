"""The file tree of a contained session, as people and agents meet it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands.attached import attached
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import ordinary_user

TOOL_FILES = "session.tool_files"
CONFIG = """[relay]
start = false
[contain]
workspaces = ["{base}/work"]
share = ["{base}/books"]
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = tmp_path_factory.mktemp("house")
    for name in ("books", "private", "work/app", "work/plain"):
        (base / name).mkdir(parents=True)
    (base / "books" / "page").write_text("a page")
    (base / "private" / "letter").write_text("a letter")
    subprocess.run(["git", "init", "-q", str(base / "work" / "app")], check=True)
    with installation(base, config=CONFIG.format(base=base)) as made:
        made.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", made.env["PYTHONPATH"])
        (made.account / ".gitconfig").write_text("[user]\nname = Ann\nemail = a@b\n")
        (made.account / ".ssh").mkdir()
        (made.account / ".ssh" / "id_ed25519").write_text("a key")
        made.ok("up", "--detach")
        made.people("bot", rights="execute,observe", kind="agent", plain=False)
        yield made


def inside(house: Installation, name: str, text: str) -> str:
    """What a command prints. A person runs it: an agent might have to wait for an approval."""
    return house.cli("run", name, "--", text).out


def test_t4_a_session_sees_its_list_and_nothing_else(house: Installation) -> None:
    app = house.base / "work" / "app"
    made = house.new("mine", "--contained", "--cwd", str(app))
    assert made["sees"].startswith("sees the system") and str(app) in made["sees"]
    house.wait("mine", "idle")
    out = inside(house, "mine", f"pwd; ls -A {house.base}; ls -A ~; cat ~/.ssh/id_ed25519")
    assert str(app) in out and "private" not in out and "a key" not in out
    assert ".gitconfig" in out and "hf" not in out.split()
    assert "Ann" in inside(house, "mine", "git config user.name; git status")
    for place in ("/usr/x", "/etc/x", str(house.base / "books" / "x")):
        assert "ead-only" in house.cli("run", "mine", "--", f"touch {place} 2>&1").out
    assert "a page" in inside(house, "mine", f"cat {house.base}/books/page")
    inside(house, "mine", "echo mine >~/note; echo mine >/tmp/note; echo mine >made")
    assert (app / "made").read_text() == "mine\n"
    assert not (house.account / "note").exists() and not Path("/tmp/note").exists()
    assert made["sees"] in house.ok("who", "mine").out
    assert "HOLDFAST_HOME" not in inside(house, "mine", "env")
    house.ok("end", "mine")
    eventually(lambda: not os.listdir(house.home / "contained"), "its directories to be removed")


def test_a_home_can_be_kept_and_used_again(house: Installation) -> None:
    for round in (1, 2):
        house.ready("keeps", "--contained", "--keep-home", "--cwd", str(house.base / "work/plain"))
        inside(house, "keeps", f"echo {round} >>~/rounds; echo {round} >>/tmp/rounds")
        out = inside(house, "keeps", "cat ~/rounds /tmp/rounds")
        house.ok("end", "keeps")
    assert out.split() == ["1", "2", "1", "2"]
    [kept] = (house.home / "kept").iterdir()
    assert kept.name.endswith("+keeps") and (kept / "home" / "rounds").exists()


def test_t4_workspaces_and_shares_that_are_refused(house: Installation) -> None:
    for args, word in (
        (("--cwd", str(house.account)), "home directory"),
        (("--cwd", str(house.home)), "Holdfast's state"),
        (("--cwd", "/"), "file system"),
        (("--cwd", "/tmp", "--share", str(house.home)), "Holdfast's own files"),
        (("--cwd", "/tmp", "--share", str(house.account)), "home directory"),
    ):
        failed = house.cli("new", "--contained", "--no-attach", *args)
        assert failed.rc == 4 and word in failed.err, failed
        assert len(failed.err.splitlines()) == 2, "the second line is the advice"
    failed = house.cli("new", "--plain", "--no-attach", "--net", "none")
    assert failed.rc == 2 and "contained" in failed.err


def test_a_directory_of_the_system_gives_no_workspace_and_says_so(house: Installation) -> None:
    made = house.new("system", "--contained", "--cwd", "/usr/lib")
    assert "no workspace: /usr is read-only" in made["sees"]
    house.wait("system", "idle")
    assert inside(house, "system", "pwd").strip() == "/usr/lib"
    house.ok("end", "system")


def test_a5_an_agent_gets_what_the_configuration_lists(house: Installation) -> None:
    app, plain = house.base / "work" / "app", house.base / "private"
    made = house.ok("--as", "bot", "new", "theirs", "--json", "--cwd", str(app)).json
    assert made["layout"] == "contained" and str(app) in made["sees"]
    house.wait("theirs", "idle")
    out = inside(house, "theirs", "touch .git/hooks/post-commit; mv .git x; touch ok")
    assert not (app / ".git" / "hooks" / "post-commit").exists() and (app / ".git").is_dir(), out
    assert (app / "ok").exists()
    house.ok("end", "theirs")
    made = house.ok("--as", "bot", "new", "stray", "--json", "--cwd", str(plain)).json
    assert "contain.workspaces" in made["sees"]
    house.wait("stray", "idle")
    out = inside(house, "stray", f"pwd; cat {plain}/letter")
    assert str(house.account) in out and "a letter" not in out
    house.ok("end", "stray")


@pytest.mark.parametrize(
    "flags",
    [
        ("--share", "{base}/private"),
        ("--share", "{base}/books:rw"),
        ("--door", "docker"),
        ("--door", "ssh-agent"),
        ("--keep-home",),
    ],
)
def test_a5_an_agent_cannot_ask_for_more(house: Installation, flags: tuple[str, ...]) -> None:
    words = [flag.format(base=house.base) for flag in flags]
    failed = house.cli("--as", "bot", "new", "--no-attach", "--cwd", "/tmp", *words)
    assert failed.rc == 4 and "human" in failed.err, failed


def test_an_agents_path_comes_from_the_host(house: Installation) -> None:
    tools = house.base / "private" / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "tool").write_text("#!/bin/sh\necho tool\n")
    (tools / "tool").chmod(0o755)
    env = {"PATH": f"{tools}:{house.env['PATH']}"}
    house.ok("--as", "bot", "new", "finds", "--no-attach", "--cwd", "/tmp", env=env)
    house.wait("finds", "idle")
    assert "tool\n" not in inside(house, "finds", "tool")
    house.ok("end", "finds")
    house.ok("new", "has", "--contained", "--no-attach", "--cwd", "/tmp", env=env)
    house.wait("has", "idle")
    assert inside(house, "has", "tool") == "tool\n"
    house.ok("end", "has")


MOVE_HOOKS = (
    "mv .git/hooks .git/h; mkdir -p .git/hooks; mv .git git; echo evil >.git/hooks/pre-commit; "
    "ln -s /bin/true .git/hooks/post-commit; true"
)


@pytest.mark.parametrize("how", ["workspace", "share"])
def test_t4_an_agent_in_a_persons_session_leaves_no_git_hook(house: Installation, how: str) -> None:
    app = house.base / "work" / "app"
    words = ("--cwd", str(app)) if how == "workspace" else ("--cwd", "/tmp", "--share", f"{app}:rw")
    house.ready(how, "--contained", *words)
    house.ok("turn", how, "release")
    before = sorted(os.listdir(app / ".git" / "hooks"))
    if how == "workspace":
        text = "(echo evil >.git/hooks/pre-commit) 2>&1"
        done = house.cli("--as", "bot", "run", how, "--hold", "0.2", "--", text)
        assert "ead-only" in done.out, done
    inside(house, how, f"cd {app}; {MOVE_HOOKS}")  # the agent's would be asked about
    assert sorted(os.listdir(app / ".git" / "hooks")) == before
    house.ok("end", how)


def test_t4_hooks_that_a_person_shares_by_name_close_the_session_to_agents(
    house: Installation,
) -> None:
    hooks = house.base / "work" / "app" / ".git" / "hooks"
    words = ("--cwd", str(house.base / "work" / "app"), "--share", f"{hooks}:rw")
    made = house.new("writes", "--contained", *words)
    assert "agents cannot act here" in made["sees"]
    house.wait("writes", "idle")
    inside(house, "writes", "touch .git/hooks/of-the-person")
    assert (hooks / "of-the-person").exists()
    house.ok("turn", "writes", "release")
    refused = house.cli("--as", "bot", "run", "writes", "--", "touch .git/hooks/of-the-agent")
    assert refused.rc == 255 and "git hooks" in refused.err, refused
    assert not (hooks / "of-the-agent").exists()
    house.ok("end", "writes")
    refused = house.cli("--as", "bot", "new", "asks", "--no-attach", *words)
    house.wait("asks", "idle")
    inside(house, "asks", "touch .git/hooks/of-the-agent")
    assert not (hooks / "of-the-agent").exists()
    house.ok("end", "asks")


def test_what_peoples_tools_execute_is_named_at_the_end(house: Installation) -> None:
    app = house.base / "work" / "app"
    house.ok("--as", "bot", "new", "edits", "--no-attach", "--cwd", str(app))
    house.wait("edits", "idle")
    inside(house, "edits", "echo 'rm -rf ~' >.envrc; git config core.pager evil")
    names = [str(app / ".git" / "config"), str(app / ".envrc")]
    assert all(name in house.ok("who", "edits").out for name in names)
    ended = house.ok("end", "edits").out
    assert all(name in ended for name in names), ended
    events = eventually(
        lambda: [e for e in house.ok("events", "--json").records if e["event"] == TOOL_FILES],
        "the event",
    )
    assert events[-1]["changed"] == names


def test_t4_sockets_in_the_workspace_take_no_orders(house: Installation) -> None:
    plain = house.base / "work" / "plain"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(plain / "s"))
        server.listen()
        house.ready("masks", "--contained", "--cwd", str(plain))
        connect = "import socket; socket.socket(socket.AF_UNIX).connect('s')"
        out = inside(house, "masks", f'python3 -c "{connect}" 2>&1')
        assert "refused" in out.lower() or "error" in out.lower(), out
        house.ok("end", "masks")
    (plain / "s").unlink()


def test_t4_attaching_hands_no_ssh_agent_to_a_contained_session(house: Installation) -> None:
    """Nor does attaching to an agent's own session. A person's plain session gets the socket."""
    path = str(house.base / "agent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        env = {"SSH_AUTH_SOCK": path}
        house.ready("closed", "--contained", "--cwd", "/tmp", env=env)
        assert "SSH_AUTH_SOCK" not in inside(house, "closed", "env")
        house.ready("open", "--contained", "--cwd", "/tmp", "--door", "ssh-agent", env=env)
        assert "/run/doors/ssh-agent" in inside(house, "open", "env; test -S $SSH_AUTH_SOCK")
        house.ok("end", "open")
        house.ok("--as", "bot", "new", "theirs", "--no-attach", "--cwd", "/tmp")
        house.ready("plain", "--plain", "--cwd", "/tmp")
        for name, handed in (("closed", False), ("theirs", False), ("plain", True)):
            house.wait(name, "idle")
            attached(house, name, env=env, see="").leave()
            link = house.home / "run" / "s" / house.get(name)["id"] / "agent.sock"
            assert link.is_symlink() == handed, name
            assert (path in inside(house, name, "readlink $SSH_AUTH_SOCK")) == handed, name
        house.ok("end", "closed", "theirs", "plain")


def test_directories_of_a_session_that_died_with_its_host_are_removed(
    house: Installation,
) -> None:
    left = house.home / "contained" / "0123456789ab" / "home"
    left.mkdir(parents=True)
    (left / "x").write_text("x")
    house.ok("down")
    house.ok("up", "--detach")
    eventually(lambda: not left.parent.exists(), "the directories to be removed")


def test_all_of_this_as_an_ordinary_user() -> None:
    if os.getuid() != 0:
        pytest.skip("it is being run as an ordinary user")
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw", "avt")
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not ordinary"]
        done = user.run([python, *words, str(Path(__file__))])
        assert done is not None and done.returncode == 0, done and done.stdout[-6000:]
