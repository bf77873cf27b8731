"""Attacks on files from a contained session (T4), in a default installation of a user.

The session's code must change nothing outside its workspace, leave nothing that a program outside
executes later, and read no secret. The processes and the kernel are attacked in the files beside
this one; test_containment_as_user.py repeats all of them as an ordinary user.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.containment.lab import PYTHON, ROOT, RUN_S, SECRET, SECRETS, Lab, session
from tests.support.containment.lab import lab as lab
from tests.support.installation import Result

LATER_EXECUTED = (
    ".bashrc",
    ".profile",
    ".bash_profile",
    ".zshenv",
    ".inputrc",
    ".ssh/authorized_keys",
    ".ssh/config",
    ".ssh/rc",
    ".config/systemd/user/evil.service",
    ".config/systemd/user/default.target.wants/evil.service",
    ".config/autostart/evil.desktop",
    ".config/environment.d/evil.conf",
    ".local/share/dbus-1/services/evil.service",
    ".local/bin/git",
    ".local/state/evil",
    ".gitconfig",
    ".config/git/config",
    ".tmux.conf",
    ".vimrc",
    ".config/fish/config.fish",
    f".local/lib/python3.{sys.version_info.minor}/site-packages/usercustomize.py",
    "other-project/.git/hooks/pre-commit",
    ".config/holdfast/config.toml",
    ".config/holdfast/policy.toml",
)
ALLOW_ALL = """version = 1
[[rule]]
name = "all"
verdict = "allow"
because = "the walls are attacked, not the gate"
"""
# Each tries to make a setuid or setgid copy of `id` at `file`.
COPY = """
import shlex
import shutil
program = open('/usr/bin/id', 'rb').read()
shutil.copy('/usr/bin/id', file)
"""
SET_ID = {
    "setuid": COPY + "print(tries(os.chmod, file, 0o4755))",
    "setgid": COPY + "print(tries(os.chown, file, 0, 42), tries(os.chmod, file, 0o2755))",
    "descriptor": COPY + "print(tries(os.fchmod, os.open(file, os.O_RDONLY), 0o6755))",
    "fchmodat2": COPY + "print(tries(lambda: check(libc.syscall(452, -100, file.encode(), 0o4755,"
    " 0))))",
    "open": COPY + "os.unlink(file); os.umask(0)\n"
    "fd = tries(os.open, file, os.O_CREAT | os.O_RDWR, 0o4755)\n"
    "print(fd, tries(os.write, fd, program) if isinstance(fd, int) else '')",
    "openat2": COPY + "os.unlink(file); os.umask(0)\n"
    "how = struct.pack('QQQ', os.O_CREAT | os.O_RDWR, 0o4755, 0)\n"
    "fd = libc.syscall(437, -100, file.encode(), how, 24)\n"
    "print(fd, fd > 0 and os.write(fd, program))",
    "mknod": COPY + "os.unlink(file); os.umask(0)\n"
    "print(tries(os.mknod, file, 0o104755), tries(lambda: open(file, 'r+b').write(program)))",
    # An overlay copies a program of the system with its mode; writes by a mapping keep the mode.
    "overlay": """
import mmap
print(libc.unshare(0x10000000 | 0x20000), tries(put, '/proc/self/setgroups', 'deny'))
print(tries(put, '/proc/self/uid_map', '0 0 1'), tries(put, '/proc/self/gid_map', '0 0 1'))
for name in ('upper', 'work', 'merged'):
    os.makedirs(f'{top}/{name}', exist_ok=True)
options = f'lowerdir=/usr/bin,upperdir={top}/upper,workdir={top}/work,userxattr'
print(libc.mount(b'o', f'{top}/merged'.encode(), b'overlay', 0, options.encode()))
def rewrite():
    os.utime(f'{top}/merged/passwd')
    fd = os.open(f'{top}/merged/passwd', os.O_RDWR)
    program = open('/usr/bin/id', 'rb').read()
    mmap.mmap(fd, os.fstat(fd).st_size)[:len(program)] = program
    os.rename(f'{top}/upper/passwd', file)
print(tries(rewrite))
""",
}
# In a mount namespace without the session's mounts, a mount point of the session can be renamed.
# The user namespace has no map of ids: root inside may not map its own.
RENAME = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
above, name = os.path.split(sys.argv[1])
held = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
def check(result):
    if result:
        sys.exit(os.strerror(ctypes.get_errno()))
if os.fork() == 0:
    check(libc.unshare(0x10000000 | 0x20000))
    check(libc.mount(b'none', b'/dev/shm', b'tmpfs', 0, None))
    os.chdir('/dev/shm')
    check(libc.syscall({PIVOT_ROOT}, b'.', b'.'))
    check(libc.umount2(b'.', 2))
    os.rename(name, name + '.was', src_dir_fd=held, dst_dir_fd=held)
    print('RENAMED')
    sys.exit()
os.wait()
""".replace("{PIVOT_ROOT}", {"x86_64": "155"}.get(os.uname().machine, "41"))
# Each writes its argument; some by another name, interpreter or call.
WRITERS = {
    "shell": 'mkdir -p "${1%/*}"; echo evil >>"$1"',
    "copy": 'echo evil >/tmp/evil; mkdir -p "${1%/*}"; cp -f /tmp/evil "$1"',
    "rename": 'echo evil >/tmp/e2; mkdir -p "${1%/*}"; mv -f "$1" "$1~"; mv /tmp/e2 "$1"',
    "link": 'mkdir -p "${1%/*}"; ln -sf /tmp/evil "$1"',
    "dots": 'cd {project} && echo evil >>"../${1#{home}/}"',
    "self": 'echo evil >>"/proc/self/root$1"; echo evil >>"/proc/self/cwd/../${1#{home}/}"',
    "init": 'echo evil >>"/proc/1/root$1"; echo evil >>"/proc/1/cwd$1"',
    "delete": 'rm -f "$1"; rmdir "${1%/*}"',
    "mode": 'chmod 777 "$1" "${1%/*}"; touch -d 2001-01-01 "$1"',
}


# ---------------------------------------------------------------- files that run later, outside


@pytest.mark.parametrize("way", WRITERS)
def test_t4_files_that_programs_outside_execute_later(lab: Lab, way: str) -> None:
    writer = WRITERS[way].replace("{project}", str(lab.project)).replace("{home}", str(lab.user))
    with lab.untouched():
        lab.sh(
            f"write() {{ {writer}; }}\n"
            + "".join(f"write {lab.user}/{name}\n" for name in LATER_EXECUTED)
        )


@pytest.mark.parametrize("interpreter", ["python", "perl", "awk"])
def test_t4_files_that_run_later_by_another_interpreter(lab: Lab, interpreter: str) -> None:
    if shutil.which({"python": PYTHON}.get(interpreter, interpreter)) is None:
        pytest.skip(f"{interpreter} is not installed")
    with lab.untouched():
        for name in (".bashrc", ".new", ".config/holdfast/policy.toml"):
            path = f"{lab.user}/{name}"
            if interpreter == "python":
                lab.py(
                    f"directory, name = os.path.split({path!r})\n"
                    "print(tries(os.makedirs, directory), tries(os.chdir, directory))\n"
                    "at = os.open('.', os.O_PATH)\nflags = os.O_CREAT | os.O_RDWR | os.O_TRUNC\n"
                    "print(tries(lambda: os.open(name, flags, dir_fd=at)))"
                )
            elif interpreter == "perl":
                lab.sh(f"perl -e 'mkdir q({lab.user}/.config/holdfast); open F, q(>>{path})'")
            else:
                lab.sh(f'awk \'BEGIN {{ print "evil" >> "{path}" }}\'')


def test_t4_a_directory_that_appears_later(lab: Lab) -> None:
    """The list of mounts was made before: what appears afterwards must be as far away."""
    lab.plant(lab.user / ".config/holdfast/policy.toml", "version = 1\nextends = 'default'\n")
    lab.plant(lab.user / ".config/later/secret", SECRET)
    try:
        with lab.untouched():
            out = lab.sh(
                f"cat ~/.config/later/secret {lab.user}/.config/later/secret\n"
                f"cd {lab.user}/.config; for f in later/secret holdfast/policy.toml\n"
                "do rm -f $f; echo evil >$f; done"
            )
        assert SECRET not in out
    finally:
        for name in ("holdfast", "later"):
            shutil.rmtree(lab.user / ".config" / name, ignore_errors=True)


@pytest.mark.parametrize("ancestor", [".local", ".local/share", ".local/share/uv/tools", ""])
def test_t4_no_ancestor_of_the_installation_is_renamed(lab: Lab, ancestor: str) -> None:
    """The package that is left in its place would be executed by the next host."""
    path = lab.user / ancestor
    with lab.untouched():
        inode = path.stat().st_ino
        lab.sh(f"mv {path} {path}.gone && mkdir -p {lab.package} && echo evil >{lab.package}/a.py")
        assert path.stat().st_ino == inode


@pytest.mark.parametrize(
    "file",
    [
        "bin/shfmt",
        "bin/python",
        "bin/holdfast",
        "pyvenv.cfg",
        "{site}/evil.pth",
        "{site}/sitecustomize.py",
        "{site}/apsw/__init__.py",
        "{site}/holdfast/__init__.py",
        "{site}/holdfast/host/main.py",
        "{site}/holdfast/__pycache__/evil.pyc",
        "{site}/holdfast/host/typing.py",
    ],
)
def test_t4_no_file_of_the_installation_is_replaced(lab: Lab, file: str) -> None:
    """By its name, by a rename, by its link's target, and by its inode."""
    at = lab.environment / file.replace("{site}", str(lab.package.parent))
    with lab.untouched():
        lab.sh(
            f"mkdir -p {at.parent}; echo evil >/tmp/evil; cat /tmp/evil >>{at}; "
            f"cp --remove-destination /tmp/evil {at}; mv -f /tmp/evil {at}; rm -f {at}; "
            f"truncate -s 0 {at}; ln -sf /tmp/evil {at}; ln {at} {lab.project}/linked; "
            f"echo evil >>{lab.project}/linked; chmod 666 {lab.project}/linked"
        )


def test_t4_the_next_host_executes_nothing_of_the_session(lab: Lab) -> None:
    """After all attempts: the host parses with its own shfmt and starts from its own package."""
    mark = lab.base / "executed-outside"
    evil = f"#!/bin/sh\\ntouch {mark}\\nexec /usr/bin/cat\\n"
    site = lab.package.parent
    lab.sh(
        f"for f in {lab.shfmt} {lab.bin}/shfmt; do printf '{evil}' >$f; chmod +x $f; done\n"
        f"for f in {site}/evil.pth {site}/sitecustomize.py {lab.package}/host/__init__.py\n"
        f'do echo \'import os; open("{mark}", "w")\' >>$f; done'
    )
    lab.ok("down")
    lab.ok("up", "--detach")
    assert lab.output("echo parsed | cat") == "parsed\n"
    assert not mark.exists()


def test_t4_a_persons_commands_in_the_workspace_execute_nothing_of_it(lab: Lab) -> None:
    """`python -m` looks in the working directory first: Holdfast's own processes must not."""
    mark = lab.user / "executed"
    modules = "holdfast/__init__.py json.py asyncio.py subprocess.py sitecustomize.py"
    lab.sh(
        f"cd {lab.project}; mkdir holdfast; for file in {modules}; do "
        f'echo \'open("{mark}", "a").write(__file__)\' >$file; done'
    )

    def person(*words: str) -> subprocess.CompletedProcess[str]:
        command = [lab.python, "-P", "-m", "holdfast", *words]
        return subprocess.run(
            command, cwd=lab.project, env=lab.env, capture_output=True, text=True, timeout=RUN_S
        )

    host = lab.host_pid
    try:
        os.kill(host, signal.SIGSTOP)
        try:
            halted = person("halt", "lab")
        finally:
            os.kill(host, signal.SIGCONT)
        assert halted.returncode == 0 and "is halted" in halted.stdout, halted
        assert person("resume", "lab").returncode == 0
        os.kill(host, signal.SIGKILL)
        for words in (("up", "--detach"), ("ls",), ("run", "lab", "--", "true")):
            done = person(*words)
            assert done.returncode == 0, done
        assert not mark.exists(), mark.read_text()
    finally:
        lab.sh(f"cd {lab.project}; rm -rf holdfast {modules}")


def test_t4_the_session_has_no_crontab_outside(lab: Lab) -> None:
    spools = [Path(p) for p in ("/var/spool/cron/crontabs", "/var/spool/cron", "/etc/cron.d")]
    name = lab.base.name
    lab.sh(
        f"echo '* * * * * touch /tmp/{name}' >/tmp/tab; crontab /tmp/tab; echo true | at now\n"
        + "".join(f"mkdir -p {at}; cp /tmp/tab {at}/{name}\n" for at in spools)
    )
    try:
        assert not any((at / name).exists() for at in spools)
        if shutil.which("crontab"):
            listed = subprocess.run(["crontab", "-l"], capture_output=True, text=True).stdout
            assert name not in listed
    finally:
        for at in spools:
            with contextlib.suppress(OSError):
                (at / name).unlink()


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not write there anywhere")
def test_t4_root_writes_no_file_of_the_system(lab: Lab) -> None:
    name = f"{lab.base.name}.evil"
    places = (
        "/ /etc /usr /usr/bin /usr/local/bin /lib /opt /srv /var/lib /var/tmp /boot /home /root"
    )
    lab.sh(f"for d in {places}; do mkdir -p $d; echo evil >$d/{name}; done; echo evil >>/etc/hosts")
    try:
        assert [at for at in places.split() if (Path(at) / name).exists()] == []
        assert "evil" not in Path("/etc/hosts").read_text()
    finally:
        for at in places.split():
            (Path(at) / name).unlink(missing_ok=True)
        hosts = Path("/etc/hosts")
        if "evil\n" in hosts.read_text():
            hosts.write_text(hosts.read_text().replace("evil\n", ""))


# ---------------------------------------------------------------- links


def test_t4_no_hard_link_leads_into_the_workspace(lab: Lab) -> None:
    outside = lab.user / ".bashrc"
    with lab.untouched():
        lab.sh(
            f"ln {outside} {lab.project}/rc; ln -L /proc/self/root{outside} {lab.project}/rc2\n"
            f"ln {lab.shfmt} {lab.project}/tool; ln /usr/bin/env {lab.project}/env\n"
            f"for f in rc rc2 tool env; do echo evil >>{lab.project}/$f; done"
        )
        assert outside.stat().st_nlink == 1 and lab.shfmt.stat().st_nlink == 1
        env = Path("/usr/bin/env").stat()
        assert not any(os.path.samestat(env, p.stat()) for p in lab.project.glob("env"))


@pytest.mark.parametrize("target", [".ssh", ".aws", "other-project", "."])
def test_t4_no_symbolic_link_leads_out_of_the_workspace(lab: Lab, target: str) -> None:
    """A link made inside, and one that was there before."""
    link = lab.project / "out"
    link.unlink(missing_ok=True)
    link.symlink_to(lab.user / target)
    with lab.untouched():
        out = lab.sh(
            f"cd {lab.project}; grep -rs 'secre[t]-' out/ ; echo evil >out/evil; ls -A out/; "
            f"ln -sfn ../{target} out; grep -rs 'secre[t]-' out/; echo evil >out/evil"
        )
    assert SECRET not in out


def test_t4_an_agents_directory_does_not_lead_out(lab: Lab, agent: str) -> None:
    """A link in the workspace as the directory of a new session."""
    link = lab.project / "elsewhere"
    link.unlink(missing_ok=True)
    link.symlink_to(lab.user / ".ssh")
    with lab.untouched():
        out = looks(lab, agent, "link", str(link), "cat id_ed25519; echo evil >authorized_keys")
    assert SECRET not in out


def test_t4_a_directory_that_is_exchanged_while_a_session_starts(lab: Lab, agent: str) -> None:
    """renameat2 exchanges the directory and a link to ~/.ssh all the time."""
    directory, link = lab.project / "turning", lab.project / "turning.link"
    directory.mkdir()
    link.symlink_to(lab.user / ".ssh")
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        f"while not libc.renameat2(-100, b'{directory}', -100, b'{link}', 2): pass"
    )
    exchange = subprocess.Popen([sys.executable, "-c", code])
    try:
        with lab.untouched():
            for attempt in range(6):
                out = looks(lab, agent, f"turn{attempt}", str(directory), "cat *; echo evil >rc")
                assert SECRET not in out
    finally:
        exchange.kill()
        exchange.wait()
        for path in (directory, link):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def looks(lab: Lab, agent: str, name: str, cwd: str, script: str) -> str:
    """What an agent sees from a session of its own in that directory, if it gets one."""
    repository = (Path(cwd) / ".git").is_dir()  # then it is the workspace
    file = lab.plant((Path(cwd) if repository else lab.project) / "look.sh", script)
    made = lab.attempt("--as", agent, "new", name, "--json", "--cwd", cwd, "--", "bash")
    if made.rc:
        return made.err
    try:
        return lab.output(f"cd {cwd}; sh {file} </dev/null 2>&1", name, "--as", agent)
    finally:
        lab.end(name)


# ---------------------------------------------------------------- git, for agents


@pytest.fixture(scope="module")
def agent(lab: Lab) -> Iterator[str]:
    """A human has listed the workspaces of agents, and no policy is in their way.

    `~/loose` is no repository.

    The other tests want no such directory.
    """
    lab.people("bot", rights="admin", kind="agent")
    directory = lab.user / ".config/holdfast"
    listed = f'["{lab.project}", "{lab.user}/loose"]'
    lab.plant(directory / "config.toml", f"[contain]\nworkspaces = {listed}\n")
    lab.plant(directory / "policy.toml", ALLOW_ALL).chmod(0o600)
    lab.ok("down")
    lab.ok("up", "--detach", env={"OF_THE_HOST": SECRET})
    yield "bot"
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def bots(lab: Lab, agent: str) -> Iterator[str]:
    """A session that the agent made, in the workspace, with the default layout of agents."""
    made: Result = lab.attempt(
        "--as", agent, "new", "bots", "--json", "--cwd", str(lab.project), "--", "bash"
    )
    assert made.rc == 0 and made.json["layout"] == "contained", made
    lab.wait("bots", "idle")
    yield "bots"
    lab.end("bots")


@pytest.mark.parametrize(
    "way",
    [
        "echo evil >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
        "cp /bin/true .git/hooks/post-checkout",
        "mv .git/hooks .git/hooks2; mkdir .git/hooks; echo evil >.git/hooks/pre-commit",
        "mv .git .git2; mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit",
        "ln -sfn /tmp .git/hooks; ln -sfn /tmp .git",
        f'{PYTHON} -c \'import os; os.rename(".git", "git"); os.mkdir(".git")\'',
        "cd .git/hooks && echo evil >./pre-push; cd ..; mv hooks ../old",
        "unshare -Urm sh -c 'mount -o remount,rw,bind .git/hooks; umount .git/hooks; "
        "echo evil >.git/hooks/pre-commit'",
        f"{PYTHON} -c {shlex.quote(RENAME)} $PWD/.git/hooks; mkdir .git/hooks",
        f"{PYTHON} -c {shlex.quote(RENAME)} $PWD/.git; mkdir -p .git/hooks",
    ],
)
def test_t4_an_agent_leaves_no_git_hook(lab: Lab, bots: str, way: str) -> None:
    git, hooks = lab.project / ".git", lab.project / ".git/hooks"
    inodes = git.lstat().st_ino, hooks.lstat().st_ino
    names = set(os.listdir(hooks))
    lab.sh(f"cd {lab.project}; {way}", bots, "--as", "bot")
    assert (git.lstat().st_ino, hooks.lstat().st_ino) == inodes
    assert set(os.listdir(hooks)) == names


@pytest.mark.parametrize("place", ["/.holdfast", "/.holdfast/session", "/.holdfast/session/own"])
def test_t4_the_hosts_files_in_a_session_cannot_be_exchanged(lab: Lab, place: str) -> None:
    """In a session that a human made: its programs may have mount namespaces."""
    free = lab.project / "free"
    free.mkdir()
    for path in (place, str(free)):
        out = lab.py(RENAME.replace("sys.argv[1]", repr(path)))
        assert ("RENAMED" in out) == (path == str(free)), out
    (lab.project / "free.was").rmdir()


def test_t4_an_agent_makes_no_hooks_where_there_were_none(lab: Lab, agent: str) -> None:
    """Some repositories have no directory for hooks: git makes it from a template."""
    repository = lab.project / "without-hooks"
    subprocess.run(["git", "init", "-q", "--template=", str(repository)], check=True)
    script = "mkdir -p .git/hooks; echo evil >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"
    looks(lab, agent, "hookless", str(repository), script)
    assert not (repository / ".git/hooks/pre-commit").exists()


def test_t4_an_agent_hides_no_repository_from_its_next_session(lab: Lab, agent: str) -> None:
    """Without HEAD git sees no repository, until HEAD is put back."""
    repository = lab.project / "hidden"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    looks(lab, agent, "hides", str(repository), "mv .git/HEAD .git/HEAD2")
    script = "mv .git .git2; mv .git/hooks .git/h; echo evil >.git/hooks/pre-commit"
    looks(lab, agent, "writes", str(repository), f"{script}; mv .git/HEAD2 .git/HEAD")
    assert (repository / ".git/HEAD").exists()
    assert not (repository / ".git/hooks/pre-commit").exists()


IDENTITY = ("-c", "user.name=A person", "-c", "user.email=person@example.org")


@pytest.mark.parametrize(
    "way",
    [
        "echo ../../evil >$link/commondir",
        "rm $link/commondir; echo ../../evil >$link/commondir",
        "cp -r $link $link.new; echo ../../evil >$link.new/commondir; mv $link $link.old; "
        "mv $link.new $link",
        "mv .git/worktrees .git/w; mkdir -p $link; echo ../../evil >$link/commondir",
    ],
)
def test_t4_an_agent_leads_no_other_work_tree_to_its_configuration(
    lab: Lab, agent: str, way: str
) -> None:
    """A linked work tree outside of the workspace reads where its configuration is from inside."""
    main, other = lab.project / "with-trees", lab.user / "other-tree"
    mark = lab.user / "executed-by-git"
    git = ("git", "-C", str(main), *IDENTITY)
    subprocess.run(["git", "init", "-q", str(main)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", str(other)], check=True)
    link = main / ".git/worktrees/other-tree"
    try:
        script = (
            "cp -r .git .git/evil; git config -f .git/evil/config core.fsmonitor $PWD/run; "
            f"printf '#!/bin/sh\\ntouch {mark}\\n' >run; chmod 755 run; link={link}; {way}"
        )
        looks(lab, agent, "astray", str(main), script)
        assert (main / "run").exists()
        subprocess.run(["git", "-C", str(other), "status"], check=True, capture_output=True)
        assert not mark.exists() and (link / "commondir").read_text() == "../..\n"
    finally:
        shutil.rmtree(main)
        shutil.rmtree(other)
        mark.unlink(missing_ok=True)


def test_t4_an_agent_leaves_no_hook_in_a_repository_without_a_work_tree(
    lab: Lab, agent: str
) -> None:
    """Nor by hiding that it is one from the next session."""
    bare = lab.project / "bare"
    subprocess.run(["git", "init", "-q", "--bare", "--template=", str(bare)], check=True)
    looks(lab, agent, "hides", str(lab.project), "cd bare; mv HEAD H; mv objects o; mv hooks h")
    script = (
        "cd bare; mkdir -p hooks; echo evil >hooks/pre-receive; chmod 755 hooks/pre-receive; "
        "mv H HEAD; mv o objects"
    )
    looks(lab, agent, "writes", str(lab.project), script)
    assert (bare / "HEAD").exists() and (bare / "objects").exists()
    assert not (bare / "hooks/pre-receive").exists()
    shutil.rmtree(bare)


def test_t4_overlapping_sessions_hide_no_change_of_a_tool_file(lab: Lab) -> None:
    """One session changes a file, a second begins; the first restores it, the second repeats it."""
    place = lab.project / ".nvim.lua"
    with session(lab) as first:
        lab.sh(f"echo evil >{place}", first)
        with session(lab) as second:
            lab.sh(f"rm {place}", first)
            assert str(place) not in lab.ok("end", first).out
            with session(lab) as third:
                lab.sh(f"echo evil >{place}", third)
                for name in (second, third):
                    assert json.loads(lab.ok("who", name, "--json").out)["tool_files"] == [
                        str(place)
                    ]
                place.unlink()


EVIL = "echo evil >{hooks}/pre-commit; chmod 755 {hooks}/pre-commit"


@pytest.mark.parametrize("grant", ["cwd", "share"])
@pytest.mark.parametrize("place", ["work/.git/hooks", "work/.git/objects", "bare/hooks"])
def test_t4_an_agent_gets_no_directory_inside_a_git_directory(
    lab: Lab, agent: str, place: str, grant: str
) -> None:
    """Also not after an earlier session has renamed HEAD, so that git sees no repository."""
    inner = lab.user / "loose"
    subprocess.run(["git", "init", "-q", str(inner / "work")], check=True)
    subprocess.run(["git", "init", "-q", "--bare", str(inner / "bare")], check=True)
    looks(lab, agent, "hides", str(inner / "work"), "mv .git/HEAD .git/H")
    assert not (inner / "work/.git/HEAD").exists()
    hooks = inner / place
    script = lab.plant(lab.project / "look.sh", EVIL.format(hooks=hooks))
    more = ("--cwd", str(hooks)) if grant == "cwd" else ("--share", f"{hooks}:rw")
    made = lab.attempt("--as", agent, "new", "inside", "--json", *more, "--", "bash")
    try:
        if not made.rc:
            lab.output(f"sh {script}", "inside", "--as", agent)
            lab.end("inside")
        assert made.rc and "git directory" in made.err, made
        assert not (hooks / "pre-commit").exists()
    finally:
        shutil.rmtree(inner)


def test_t4_an_agent_hides_no_repository_behind_a_closed_directory(lab: Lab, agent: str) -> None:
    """The next session's host cannot look into it; code inside opens it again."""
    deep = lab.project / "closed/sub"
    subprocess.run(["git", "init", "-q", str(deep)], check=True)
    looks(lab, agent, "hides", str(lab.project), "chmod 000 closed/sub/.git closed/sub closed")
    try:
        said = looks(
            lab,
            agent,
            "writes",
            str(lab.project),
            f"cd {lab.project}; chmod 700 closed closed/sub closed/sub/.git; "
            + EVIL.format(hooks="closed/sub/.git/hooks"),
        )
        os.chmod(deep.parent, 0o700)
        os.chmod(deep, 0o700)
        os.chmod(deep / ".git", 0o700)
        assert not (deep / ".git/hooks/pre-commit").exists()
        assert os.geteuid() == 0 or f"{deep.parent} cannot be read" in said, said
    finally:
        shutil.rmtree(deep.parent)


@pytest.mark.parametrize("named", ["tools/hooks", "./tools/../tools/hooks", '"tools/hooks" # x'])
def test_t4_an_agent_leaves_no_hook_where_the_configuration_names_them(
    lab: Lab, agent: str, named: str
) -> None:
    """core.hooksPath, which a person set before."""
    work = lab.project / "named"
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    with (work / ".git/config").open("a") as file:
        file.write(f"[Core]\n\thookspath = {named}\n")
    try:
        script = "mkdir -p tools/hooks; mv tools t; mkdir -p tools/hooks; "
        looks(lab, agent, "writes", str(work), script + EVIL.format(hooks="tools/hooks"))
        assert not (work / "tools/hooks/pre-commit").exists()
    finally:
        shutil.rmtree(work)


def test_t4_no_repository_is_lost_among_many_entries(lab: Lab, agent: str) -> None:
    """An earlier session leaves so many pipes or repositories that the next look would stop."""
    deep = lab.project / "a/b/c/vendor"
    subprocess.run(["git", "init", "-q", str(deep)], check=True)
    write = f"echo evil >{deep}/.git/hooks/pre-commit && echo WRITTEN"
    for many in (
        "for n in $(seq 65); do mkfifo many/$n; done",
        "for n in $(seq 65); do mkdir -p many/$n/.git; done",
        "cd .git; for n in $(seq 65); do mkdir -p worktrees/$n; touch worktrees/$n/commondir; done",
    ):
        looks(lab, agent, "fills", str(lab.project), f"mkdir many; {many}")
        said = looks(lab, agent, "writes", str(lab.project), write)
        assert "too large to look through" in said and "WRITTEN" not in said, said
        shutil.rmtree(lab.project / "many")
        shutil.rmtree(lab.project / ".git/worktrees", ignore_errors=True)
    assert "WRITTEN" not in looks(lab, agent, "writes", str(lab.project), write)
    shutil.rmtree(lab.project / "a")


# ---------------------------------------------------------------- secrets


def test_t4_no_secret_of_the_user_is_readable(lab: Lab) -> None:
    """By the home's name, by another name of the root, and in the places of other users."""
    tops = [f"{lab.user}", f"{lab.project}/..", "/root", "/home/*"]
    tops += [f"{at}{lab.user}" for at in ("/proc/self/root", "/proc/1/root", "/proc/1/cwd", "//")]
    out = lab.sh("".join(f"cat {top}/{name}; " for top in (*tops, "~") for name in SECRETS))
    assert SECRET not in out


def test_t4_a_link_in_a_directory_of_path_shows_no_secret(lab: Lab) -> None:
    """A virtual environment in the workspace is often in PATH, and code can change it."""
    venv, ssh = lab.project / ".venv", lab.user / ".ssh"
    lab.sh(
        f"mkdir -p {venv}/bin; ln -s {ssh}/id_ed25519 {venv}/bin/key; ln -s {ssh} {venv}/keys; "
        f"ln -s {ssh} {venv}/sbin; echo 'home = {lab.user}/.aws' >{venv}/pyvenv.cfg"
    )
    path = f"{venv}/bin:{venv}/keys:{venv}/sbin:{lab.env['PATH']}"
    lab.new("path", "--contained", "--cwd", str(lab.project), "--", "bash", env={"PATH": path})
    try:
        out = lab.sh(f"cat {venv}/*/* {ssh}/* {lab.user}/.aws/* ~/.ssh/*", "path")
    finally:
        lab.end("path")
    assert SECRET not in out


def test_t4_the_keys_and_sockets_of_holdfast_are_absent(lab: Lab) -> None:
    out = lab.py(f"print([found for found in os.walk('{lab.home}')])")
    assert any(p.name == "host.sock" for p in (lab.home / "run").iterdir())
    for name in ("host.sock", "nursery.sock", "state.db", ".keeper", "keys"):
        assert name not in out
    lab.sh(f"mkdir -p {lab.home}/run; echo evil >{lab.home}/evil")
    assert not (lab.home / "evil").exists()


@pytest.mark.skipif(not ROOT, reason="an ordinary user could not read them anywhere")
def test_t4_root_reads_no_secret_of_the_machine(lab: Lab) -> None:
    planted = Path(tempfile.mkdtemp(prefix="hf-other-", dir="/home"))
    key = Path("/etc/ssh/ssh_host_hf_test_key")
    lab.plant(planted / ".ssh/id_rsa", SECRET)
    made = not key.parent.exists()
    lab.plant(key, SECRET)
    try:
        out = lab.sh(
            "cat /etc/shadow /etc/shadow- /etc/gshadow /etc/sudoers /proc/self/root/etc/shadow\n"
            "grep -rs 'secre[t]-' /home /etc/ssh; find / -xdev -name shadow -exec head {} +"
        )
    finally:
        shutil.rmtree(key.parent) if made else key.unlink()
        shutil.rmtree(planted)
    shadow = Path("/etc/shadow").read_text().splitlines()[0]
    assert SECRET not in out and shadow not in out and "root:" not in out


def test_t4_no_process_shows_the_environment_of_the_host(lab: Lab) -> None:
    out = lab.py(
        "for entry in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for name in ('environ', 'task/%s/environ' % entry):\n"
        "        print(entry, tries(lambda: open(f'/proc/{entry}/{name}', 'rb').read()))"
    )
    assert SECRET not in out


def test_t4_nothing_is_inherited_but_the_terminal(lab: Lab) -> None:
    """Descriptors of every process inside: the terminal, /dev/null, and what they opened inside."""
    out = lab.py(
        "for entry in filter(str.isdigit, os.listdir('/proc')):\n"
        "    fds = tries(os.listdir, f'/proc/{entry}/fd')\n"
        "    for fd in fds if isinstance(fds, list) else []:\n"
        "        print('FD', entry, fd, tries(os.readlink, f'/proc/{entry}/fd/{fd}'))"
    )
    found = [line.split(" ", 3)[1:] for line in out.splitlines() if line.startswith("FD ")]
    assert found
    odd = [
        entry
        for entry in found
        if not entry[2].startswith(("/dev/pts/", "/dev/null", "/proc/"))
        and not entry[2].startswith(("FileNotFoundError", "PermissionError"))
        and not entry[2].startswith(str(lab.project))
    ]
    assert not odd, odd


@pytest.mark.parametrize("link", ["root", "cwd", "fd", "exe", "map_files", "task/1/root"])
def test_t4_no_magic_link_leads_out(lab: Lab, link: str) -> None:
    outside = lab.user / ".ssh/id_ed25519"
    out = lab.py(
        "for entry in filter(str.isdigit, os.listdir('/proc')):\n"
        f"    at = f'/proc/{{entry}}/{link}'\n"
        "    more = tries(os.listdir, at)\n"
        "    for path in [at, *(f'{at}/{name}' for name in more if isinstance(more, list))]:\n"
        f"        for up in ('', '/..', '/../../..', '/../../../../../../..'):\n"
        f"            print(tries(lambda: open(path + up + '{outside}').read()))"
    )
    assert SECRET not in out


def test_t4_a_core_dump_stays_inside(lab: Lab) -> None:
    with lab.untouched():
        lab.sh(
            f"ulimit -c unlimited; cd ~; sh -c 'kill -SEGV $$'; cd /tmp; sh -c 'kill -QUIT $$'; "
            f"cd {lab.user}; sh -c 'kill -ABRT $$'"
        )
    assert not [p for p in Path("/tmp").glob("core*") if p.stat().st_mtime > lab.began]


@pytest.mark.skipif(not ROOT, reason="a file of root, for another user")
@pytest.mark.parametrize("way", SET_ID)
def test_t4_no_program_made_inside_gives_another_user_the_rights_of_root(
    lab: Lab, way: str
) -> None:
    """The workspace is an ordinary directory outside, where setuid counts."""
    file = lab.project / "as-root"
    file.unlink(missing_ok=True)
    lab.py(f"top, file = '{lab.project}', '{file}'\n{SET_ID[way]}")
    if not file.exists():
        return
    with tempfile.TemporaryDirectory(dir=Path.home().anchor) as top:
        Path(top).chmod(0o755)
        os.link(file, f"{top}/id")  # in a directory that another user may enter
        ran = subprocess.run(
            [f"{top}/id"], user=65534, group=65534, extra_groups=[], capture_output=True, text=True
        )
    assert "euid=" not in ran.stdout and "egid=" not in ran.stdout, ran


@pytest.mark.parametrize("nested", ["", "unshare -Ur"])
def test_t4_no_program_made_inside_has_capabilities_outside(lab: Lab, nested: str) -> None:
    file = lab.project / "capable"
    shutil.copy("/usr/bin/id", file)
    lab.plant(
        lab.project / "capable.py",
        "import os, struct\nvalue = struct.pack('<5I', 0x02000001, 1 << 7, 0, 0, 0)\n"
        f"os.setxattr('{file}', 'security.capability', value)",
    )
    lab.sh(f"{nested} {PYTHON} {lab.project}/capable.py")
    value = b""
    with contextlib.suppress(OSError):
        value = os.getxattr(file, "security.capability")
    # A version 3 value binds the capability to the user namespace of the account `root_id`.
    root_id = int.from_bytes(value[20:24], "little") if len(value) == 24 else 0
    assert not value or root_id == os.getuid() != 0, value
