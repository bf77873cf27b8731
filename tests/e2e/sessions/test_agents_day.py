"""A day of an agent in a contained session: its tools work, and no person is asked.

A person makes the session in a git work tree, with the default policy and two shares; the agent
acts by `run`. Some tools also run in a session that the agent made itself. The servers of the day
(git, a package index, an npm registry) listen on the loopback of the session. Another test does ten
acts that cannot be undone: a person is asked exactly once for each, and nothing happens before the
answer.

A row of the table in docs/reference/containment.md names its test here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import ordinary_user

CONFIG = """[relay]
start = false
[contain]
workspaces = ["{base}/work"]
"""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
ASKED = "approval.asked"
HOLD_S = "0.2"  # a question stays open for the test to find; the command gives up

SERVER = """import http.server, os
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello from inside")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Hello)
with open("port.new", "w") as f: f.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
"""
CLIENT = """import os, urllib.request
while not os.path.exists("port"): os.sched_yield()
print(urllib.request.urlopen("http://127.0.0.1:" + open("port").read()).read().decode())
"""
# Speaks to a language server: messages with a length over its standard streams.
EDITOR = """import json, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def send(**message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    server.stdin.write(b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body); server.stdin.flush()
send(id=1, method="initialize", params={"processId": None, "rootUri": None, "capabilities": {}})
length = 0
while (line := server.stdout.readline().strip()):
    if line.lower().startswith(b"content-length:"): length = int(line.split(b":")[1])
print("capabilities" in json.loads(server.stdout.read(length))["result"])
send(method="exit"); server.wait()
"""
SHARED_MEMORY = """import multiprocessing, multiprocessing.shared_memory as s
if __name__ == "__main__":
    block = s.SharedMemory(create=True, size=1 << 20); block.close(); block.unlink()
    with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"""
NAMES = """import socket
print(socket.getaddrinfo("localhost", 80, socket.AF_INET)[0][4][0])
try: socket.getaddrinfo("no-such-name.invalid", 80)
except socket.gaierror as e: print("gaierror", e.errno)
"""
FOLLOW = """tail -n0 -f followed >seen & follower=$!
until test -e /proc/$follower/fd/3 && ls -l /proc/$follower/fd | grep -q inotify; do :; done
echo news >>followed
until grep -q news seen; do :; done
kill $follower; cat seen
"""
TMUX = """tmux -f /dev/null new-session -d -s inner 'cat >/dev/null'
tmux list-sessions; tmux kill-server
"""
# A person starts the servers inside, so that they are reachable in a network of its own.
SERVE = """cd {served}
python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1 &
git daemon --listen=127.0.0.1 --port={git_port} --base-path={served} --export-all \\
    >/dev/null 2>&1 &
python3 - {port} {git_port} <<'END'
import os, socket, sys
for port in sys.argv[1:]:
    while True:
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", int(port))) == 0:
                break
        os.sched_yield()
END
"""
# Chromium itself does not start as root with its sandbox.
CHROMIUM = f"chromium --headless {'--no-sandbox' if os.getuid() == 0 else ''}"
PAGE = "'data:text/html,<p>shown</p>'"
PLAYWRIGHT = Path(__file__).parents[3] / ".cache/playwright/node_modules/playwright-core"
PAGE_JS = """const { chromium } = require("./playwright-core");
(async () => {
  const sandbox = process.getuid() !== 0;
  const options = { executablePath: "/usr/bin/chromium", chromiumSandbox: sandbox };
  const browser = await chromium.launch(options);
  const page = await browser.newPage();
  await page.setContent("<p>shown by playwright</p>");
  console.log(await page.textContent("p"));
  await browser.close();
})();
"""
INDEX_JS = """#!/usr/bin/env node
module.exports = 42; if (require.main === module) console.log("a tool of npm");
"""
FILES = {
    "server.py": SERVER,
    "client.py": CLIENT,
    "editor.py": EDITOR,
    "shared_memory.py": SHARED_MEMORY,
    "names.py": NAMES,
    "follow.sh": FOLLOW,
    "inner.sh": TMUX,
    "followed": "",
    "main.c": '#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n',
    "Makefile": "main: main.c\n\tcc -o main main.c\ntest: main\n\t./main | grep built\n",
    "test_one.py": "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\n",
    ".gitignore": "*.log\n",
}


class Day:
    def __init__(self, house: Installation, port: int, git_port: int) -> None:
        self.house, self.port, self.git_port = house, port, git_port
        self.app = house.base / "work" / "app"
        self.answered = 0

    def run(self, text: str, session: str = "day") -> str:
        """What the agent's command prints. It succeeds, and no person is asked."""
        words = ("--as", "bot", "run", session, "--hold", HOLD_S, "--", text)
        done = self.house.cli(*words)
        assert done.rc == 0 and "approval" not in done.err, (text, done)
        return done.out

    def person(self, text: str) -> tuple[int, str]:
        """The exit code and the output of a person's command: the agent's would be asked about."""
        done = self.house.cli("run", "person", "--", f"{text} 2>&1")
        return done.rc, done.out

    def questions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.house.ok("approvals", "--json").json
        return found

    def asked(self) -> int:
        """The number of questions since the beginning."""
        return sum(e["event"] == ASKED for e in self.house.ok("events", "--json").records)


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=SYSTEM_PATH) is None:
            pytest.skip(f"{program} is not installed here")


def wheel(place: Path) -> None:
    """A package with one module, and the index page that lists it."""
    place.mkdir(parents=True)
    files = {
        "tiny.py": "value = 42\ndef main(): print('a tool of pip')\n",
        "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny-pip = tiny:main\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, "tiny-1.0.dist-info/RECORD"))
    with zipfile.ZipFile(place / "tiny-1.0-py3-none-any.whl", "w") as made:
        for name, text in {**files, "tiny-1.0.dist-info/RECORD": record}.items():
            made.writestr(name, text)
    (place / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny</a>')


def npm_package(place: Path, address: str) -> None:
    """A package that runs a script when it is installed, and the registry's page about it."""
    manifest = {"name": "tiny", "version": "1.0.0", "scripts": {"postinstall": "node index.js"}}
    manifest |= {"bin": {"tiny-npm": "index.js"}}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in (
            ("package/package.json", json.dumps(manifest)),
            ("package/index.js", INDEX_JS),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (place / "tiny.tgz").write_bytes(data.getvalue())
    digest = base64.b64encode(hashlib.sha512(data.getvalue()).digest()).decode()
    dist = {"tarball": f"{address}/tiny.tgz", "integrity": f"sha512-{digest}"}
    page = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}}
    page["versions"] = {"1.0.0": {**manifest, "dist": dist}}
    (place / "tiny").write_text(json.dumps(page))


def git(*words: str, cwd: Path) -> None:
    subprocess.run(
        ["git", "-c", "user.name=Ann", "-c", "user.email=a@b", *words],
        cwd=cwd,
        check=True,
        capture_output=True,
    )


def work_tree(base: Path) -> None:
    """A project with a published repository."""
    app, origin = base / "work" / "app", base / "served" / "origin.git"
    app.mkdir(parents=True)
    for name, text in FILES.items():
        (app / name).write_text(text)
    git("init", "-q", "--bare", "-b", "main", str(origin), cwd=base)
    git("init", "-q", "-b", "main", cwd=app)
    git("add", "-A", cwd=app)
    git("commit", "-qm", "begin", cwd=app)
    git("remote", "add", "origin", str(origin), cwd=app)
    git("push", "-q", "origin", "main", "main:old", "main:older", cwd=app)
    git("update-server-info", cwd=origin)


def account_packages(account: Path) -> None:
    """A package that the person installed with `pip install --user`, and its program."""
    version = 'import sys; print("python%d.%d" % sys.version_info[:2])'
    words = ["/usr/bin/python3", "-c", version]
    name = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    packages, programs = account / ".local" / "lib" / name / "site-packages", account / ".local/bin"
    packages.mkdir(parents=True)
    programs.mkdir()
    (packages / "account_package.py").write_text("def main(): print('a tool of the account')\n")
    program = programs / "tool-of-the-account"
    program.write_text("#!/usr/bin/python3\nimport account_package\naccount_package.main()\n")
    program.chmod(0o755)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory that is not below /tmp, where that is possible."""
    with contextlib.ExitStack() as stack:
        where = "/srv" if os.access("/srv", os.W_OK) else None
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="day-", dir=where)))
        place.chmod(0o755)
        yield place


@pytest.fixture(scope="module")
def day(base: Path) -> Iterator[Day]:
    needs("git")
    served = base / "served"
    wheel(served / "simple" / "tiny")
    work_tree(base)
    port, git_port = free_port(), free_port()
    (served / "serve.sh").write_text(SERVE.format(served=served, port=port, git_port=git_port))
    with installation(base, config=CONFIG.format(base=base)) as house:
        npm_package(served, f"http://127.0.0.1:{port}")
        house.env["PYTHONPATH"] = os.environ.get("PYTHONPATH", house.env["PYTHONPATH"])
        (house.account / ".gitconfig").write_text("[user]\nname = Ann\nemail = a@b\n")
        node = house.account / ".nodenv" / "versions" / "v0" / "bin"
        node.mkdir(parents=True)
        (node / "managed-node").write_text('#!/bin/sh\nexec "${0%/bin/*}/lib/real"\n')
        (node.parent / "lib").mkdir()
        (node.parent / "lib" / "real").write_text("#!/bin/sh\necho version manager\n")
        # It has no cloud: its resource is a file of the workspace.
        (node / "terraform").write_text("#!/bin/sh\nrm resource\n")
        for program in (*node.iterdir(), node.parent / "lib" / "real"):
            program.chmod(0o755)
        account_packages(house.account)
        environment = base / "environment"
        made = ["/usr/bin/python3", "-m", "venv", "--without-pip", str(environment)]
        subprocess.run(made, check=True)
        local = house.account / ".local" / "bin"
        house.env["PATH"] = f"{environment}/bin:{node}:{local}:{house.env['PATH']}"
        house.ok("up", "--detach")
        house.people("bot", rights="execute,observe", kind="agent")
        # First, so that the files of the other session's home are newer than a session.
        house.ready("person", "--contained", "--cwd", str(base / "work" / "app"))
        words = ("--cwd", str(base / "work" / "app"), "--share", str(served))
        house.ready("day", "--contained", *words, "--share", f"{served / 'origin.git'}:rw")
        house.ok("run", "day", "--", f"sh {served}/serve.sh")
        house.ok("turn", "day", "release")
        yield Day(house, port, git_port)


@pytest.fixture(autouse=True)
def no_questions(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test of the day leaves a question, or had one that it did not expect."""
    day: Day | None = request.getfixturevalue("day") if "day" in request.fixturenames else None
    before = day.asked() - day.answered if day is not None else 0
    yield
    if day is not None:
        assert day.asked() - day.answered == before


# ---------------------------------------------------------------- works without a question


def test_git_clone_commit_and_push(day: Day) -> None:
    origin = day.house.base / "served" / "origin.git"
    for number, address in enumerate(
        (
            str(origin),
            f"http://127.0.0.1:{day.port}/origin.git",
            f"git://127.0.0.1:{day.git_port}/origin.git",
        )
    ):
        assert "Makefile" in day.run(f"git clone -q {address} copy{number} && ls copy{number}")
    day.run("git checkout -qb work && echo change >>README && git add README")
    assert "Ann" in day.run("git commit -qm change && git log -1 --format=%an")
    day.run("git push -q origin work")
    assert "change" in day.run("git diff main work | cat")


def test_git_worktrees(day: Day) -> None:
    assert "main.c" in day.run("git worktree add -q tree -b tree && ls tree")
    assert "clean" in day.run("git -C tree status && git worktree remove tree")


def test_a_linked_work_tree_as_the_working_directory(day: Day) -> None:
    """Its objects lie in the main repository, which belongs to the workspace."""
    linked = day.house.base / "work" / "linked"
    git("worktree", "add", "-q", str(linked), "-b", "linked", cwd=day.app)
    day.house.ok("--as", "bot", "new", "linked", "--no-attach", "--cwd", str(linked))
    day.house.wait("linked", "idle")
    day.run("echo change >>README && git add README && git commit -qm linked", "linked")
    assert "linked" in day.run("git log -1 --format=%s && git status", "linked")
    hook = "touch $(git rev-parse --git-common-dir)/hooks/x 2>&1"  # the agent would be asked
    day.house.ok("--as", "bot", "turn", "linked", "release")
    assert "ead-only" in day.house.cli("run", "linked", "--", hook).out
    day.house.ok("end", "linked")
    shown = subprocess.run(["git", "-C", str(day.app), "log", "-1", "linked"], capture_output=True)
    assert b"linked" in shown.stdout
    git("worktree", "remove", "--force", str(linked), cwd=day.app)


def test_pip_and_virtual_environments(day: Day) -> None:
    python = "/usr/bin/python3"
    made = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True)
    if made.returncode:
        pytest.skip(f"{python} has no ensurepip")
    day.run(f"{python} -m venv .venv")
    address = f"http://127.0.0.1:{day.port}/simple"
    pip = ".venv/bin/pip --disable-pip-version-check -q install --no-compile"
    day.run(f"{pip} --index-url {address} tiny")
    (day.app / "uses.py").write_text("import tiny; print(tiny.value)\n")
    assert "42" in day.run(". .venv/bin/activate && python uses.py; deactivate")


def test_programs_of_pip_are_installed_in_the_own_home(day: Day) -> None:
    made = subprocess.run(["/usr/bin/python3", "-m", "pip", "--version"], capture_output=True)
    if made.returncode:
        pytest.skip("/usr/bin/python3 has no pip")
    assert "a tool of the account" in day.run("tool-of-the-account")
    assert "ead-only" in day.person("touch ~/.local/bin/x")[1]
    address = f"http://127.0.0.1:{day.port}/simple"
    how = "--user --break-system-packages --disable-pip-version-check -q --no-compile"
    known = "--break-system-packages" in day.run("/usr/bin/python3 -m pip install --help")
    how = how if known else how.replace("--break-system-packages ", "")
    day.run(f"/usr/bin/python3 -m pip install {how} --index-url {address} tiny")
    assert "a tool of pip" in day.run("tiny-pip")
    assert "a tool of the account" in day.run("tool-of-the-account")


def test_programs_of_npm_are_installed_in_the_own_home(day: Day) -> None:
    needs("node", "npm")
    how = "--no-audit --no-fund --no-update-notifier"
    day.run(f"npm install -g {how} --registry http://127.0.0.1:{day.port} tiny")
    assert "a tool of npm" in day.run("tiny-npm")


def test_programs_of_cargo_are_installed_in_the_own_home(day: Day) -> None:
    needs("cargo", "cc")
    (day.app / "crate" / "src").mkdir(parents=True)
    (day.app / "crate" / "src" / "main.rs").write_text('fn main() { println!("a tool of cargo"); }')
    (day.app / "crate" / "Cargo.toml").write_text(
        '[package]\nname = "tiny-cargo"\nversion = "1.0.0"'
    )
    day.run("cargo install -q --offline --path crate")
    assert "a tool of cargo" in day.run("tiny-cargo")


def test_npm(day: Day) -> None:
    needs("node", "npm")
    (day.app / "uses.js").write_text("console.log(require('tiny'));\n")
    how = "--no-audit --no-fund --no-update-notifier"
    day.run(f"npm install {how} --registry http://127.0.0.1:{day.port} tiny")
    assert "42" in day.run("node uses.js")


def test_build_and_test(day: Day) -> None:
    needs("make", "cc")
    assert "built" in day.run("make test")
    day.run("python3 -m unittest -q test_one")


def test_a_server_in_the_background(day: Day) -> None:
    day.run("python3 server.py & true")
    assert "hello from inside" in day.run("python3 client.py")
    day.run("kill %1; wait; rm port")


def test_a_language_server(day: Day) -> None:
    needs("pylsp")
    assert "True" in day.run("/usr/bin/python3 editor.py pylsp")


def test_version_managers(day: Day) -> None:
    assert "version manager" in day.run("managed-node")
    code, said = day.person("touch ~/.nodenv/x")
    assert code and "ead-only" in said, said


def test_the_python_behind_path(day: Day) -> None:
    assert str(day.house.base / "environment") in day.run("python -m site 2>&1 || true")


def test_dns(day: Day) -> None:
    assert day.run("python3 names.py").split()[:2] == ["127.0.0.1", "gaierror"]


def test_shared_memory_and_many_processes(day: Day) -> None:
    assert "[1, 2]" in day.run("python3 shared_memory.py")


def test_inotify(day: Day) -> None:
    assert "news" in day.run("sh follow.sh")


def test_tmux(day: Day) -> None:
    needs("tmux")
    assert "inner: 1 windows" in day.run("sh inner.sh")
    day.run("tmux -f /dev/null new-session -d -s typed && tmux kill-server")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python3 -c 'print(6 * 7)'", "42"),
        ("python3 - <<'END'\nprint(6 * 7)\nEND", "42"),
        ("awk 'BEGIN { print 42 > \"/dev/stderr\" }' 2>&1", "42"),
        ("mkdir -p ~/x/y && echo 42 >~/x/y/z && cat ~/x/y/z", "42"),
        ("echo fund=false >~/.npmrc && cat ~/.npmrc", "fund"),
        ("rm -f k k.pub; ssh-keygen -q -t ed25519 -N '' -f ./k && ls k.pub", "k.pub"),
        ('t=$(mktemp -d) && touch $t/a $t/b && rm -rf "$t" && ls $t 2>&1 || true', "No such"),
        ('for n in 1 2; do cp Makefile "copy.$n"; done && rm copy.1 copy.2 && echo 42', "42"),
        ("touch a.tmp && find . -name '*.tmp' -exec touch {} + && echo 42", "42"),
        ("sleep 60 & kill $!; wait; echo 42", "42"),
        ("mkdir -p out/a && rm -rf out/* && ls -A out && echo 42", "42"),
        ("PATH=$PWD:$PATH python3 -c 'print(42)'", "42"),
        ("vim -es '+1s/main/other/' '+wq! copied' Makefile; head -1 copied", "other"),
    ],
)
def test_everyday_texts(day: Day, text: str, shown: str) -> None:
    assert shown in day.run(text)


def test_open_words_are_judged_when_the_program_starts(day: Day) -> None:
    """A delete outside of the workspace is asked about, although the text did not show it."""
    day.run("mkdir -p ~/kept")
    asked = day.asked()
    process = day.house.start("--as", "bot", "run", "day", "--", 'x=~/kept; rm -rf "$x"')
    [question] = eventually(day.questions, "a question about the rm that starts")
    assert question["act"] == "exec" and question["rule"] == "deletes stay inside"
    assert in_home("kept")(day)
    day.house.ok("deny", question["id"], "--yes", "--binding", question["binding"])
    process.communicate(timeout=60)
    day.answered += 1
    assert in_home("kept")(day) and day.asked() == asked + 1


@pytest.mark.parametrize(
    ("program", "text", "shown"),
    [
        ("vim", "vim --version", "VIM"),
        ("man", "man -P cat ls 2>&1", "LS(1)"),
        ("less", "less -F Makefile", "main.c"),
        ("ps", "ps -e", "hf-root"),
        ("top", "top -bn1", "hf-root"),
        ("openssl", "openssl version", "OpenSSL"),
        ("free", "free -m && nproc && df -h . && uptime && id && hostname", "Mem:"),
        ("locale", "locale && date", "LANG"),
        ("script", "cat /proc/self/status | grep NoNewPrivs && tty", "/dev/pts/"),
    ],
)
def test_everyday_programs(day: Day, program: str, text: str, shown: str) -> None:
    needs(program)
    if program == "man" and not Path("/usr/share/man/man1/ls.1.gz").exists():
        pytest.skip("manuals are not installed here")
    assert shown in day.run(text)


def test_chromium(day: Day) -> None:
    needs("chromium")
    assert "<p>shown</p>" in day.run(f"{CHROMIUM} --dump-dom {PAGE} 2>&1")


@pytest.fixture(scope="module")
def own(day: Day) -> Iterator[int]:
    """A session that the agent made by default, and the port of the servers in it."""
    served, port = day.app / "served", free_port()
    wheel(served / "simple" / "tiny")
    npm_package(served, f"http://127.0.0.1:{port}")
    with (day.app / ".git" / "info" / "exclude").open("a") as file:
        file.write("served\n.own\nnode_modules\npackage*.json\n")
    day.house.ok("--as", "bot", "new", "alone", "--no-attach", "--cwd", str(day.app))
    day.house.wait("alone", "idle")
    server = f"python3 -m http.server --bind 127.0.0.1 --directory served {port}"
    day.run(f"{server} >/dev/null 2>&1 &", "alone")
    day.run(
        f"python3 - <<'END'\nimport os, socket\nwhile socket.socket().connect_ex(('127.0.0.1', "
        f"{port})): os.sched_yield()\nEND",
        "alone",
    )
    yield port
    day.house.ok("end", "alone")


def test_pip_in_a_session_that_the_agent_made(day: Day, own: int) -> None:
    made = subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], capture_output=True)
    if made.returncode:
        pytest.skip("/usr/bin/python3 has no ensurepip")
    day.run("/usr/bin/python3 -m venv .own", "alone")
    pip = ".own/bin/pip --disable-pip-version-check -q install --no-compile"
    day.run(f"{pip} --index-url http://127.0.0.1:{own}/simple tiny", "alone")
    assert "42" in day.run(".own/bin/python -c 'import tiny; print(tiny.value)'", "alone")


def test_npm_in_a_session_that_the_agent_made(day: Day, own: int) -> None:
    needs("node", "npm")
    how = "--no-audit --no-fund --no-update-notifier"
    day.run(f"npm install {how} --registry http://127.0.0.1:{own} tiny", "alone")
    assert "42" in day.run("node -e \"console.log(require('tiny'))\"", "alone")


def test_chromium_in_a_session_that_the_agent_made(day: Day, own: int) -> None:
    needs("chromium")
    assert "<p>shown</p>" in day.run(f"{CHROMIUM} --dump-dom {PAGE} 2>&1", "alone")


def test_playwright(day: Day, own: int) -> None:
    """The library of scripts/playwright with the machine's Chromium, in the agent's own session."""
    needs("chromium", "node")
    if not PLAYWRIGHT.is_dir():
        pytest.skip("playwright-core is not installed here: see scripts/playwright")
    shutil.copytree(PLAYWRIGHT, day.app / "served" / "playwright-core")
    (day.app / "served" / "page.js").write_text(PAGE_JS)
    assert "shown by playwright" in day.run("node served/page.js", "alone")


def test_a_session_that_the_agent_made(day: Day) -> None:
    words = ("--as", "bot", "new", "own", "--no-attach", "--cwd", str(day.app))
    day.house.ok(*words)
    day.house.wait("own", "idle")
    day.run("echo agent >own.txt && git add own.txt && git commit -qm own", "own")
    assert "42" in day.run('file=$(mktemp) && echo 42 >"$file" && cat "$file"', "own")
    hook = day.run("touch .git/hooks/post-commit 2>&1 || true", "own")
    assert "ead-only" in hook
    day.house.ok("end", "own")


# ---------------------------------------------------------------- refused, with a sentence


def test_docker_is_refused(day: Day) -> None:
    needs("docker")
    assert "Cannot connect to the Docker daemon" in day.run("docker ps 2>&1 || true")


def test_gpu_is_not_shown(day: Day) -> None:
    assert "No such file" in day.run("ls /dev/dri /dev/kfd 2>&1 || true")


def test_apt_is_refused(day: Day) -> None:
    needs("apt-get")
    code, said = day.person("apt-get -y install cowsay")
    root = "Archives directory /var/cache/apt/archives/partial is missing"
    user = "Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)"
    assert code and (root if os.getuid() == 0 else user) in said, said


def test_sudo_is_refused(day: Day) -> None:
    needs("sudo")
    code, said = day.person("sudo -n true")
    assert code and "sudo" in said, said


def test_the_ssh_agent_is_not_shown(day: Day) -> None:
    needs("ssh-add")
    code, said = day.person("ssh-add -l")
    assert code and "authentication agent" in said, said


# ---------------------------------------------------------------- one question for each


class Irreversible(NamedTuple):
    """An act that cannot be undone. `effect`: prints a state that the act changes."""

    text: str
    rule: str
    before: str  # the agent's preparation, which asks nothing
    effect: Callable[[Day], object]


def tip(branch: str) -> Callable[[Day], object]:
    """The commit of a published branch."""

    def found(day: Day) -> str:
        origin = day.house.base / "served" / "origin.git"
        words = ["git", "-C", str(origin), "for-each-ref", f"refs/heads/{branch}"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    return found


def content(name: str) -> Callable[[Day], object]:
    """The content of a file of the workspace; whether it exists, of a directory."""

    def found(day: Day) -> object:
        place = day.app / name
        return place.read_text() if place.is_file() else place.exists()

    return found


def in_home(name: str) -> Callable[[Day], object]:
    return lambda day: [str(p) for p in day.house.home.glob(f"**/contained/*/home/{name}")]


THROWN_AWAY = "uncommitted work is thrown away with approval"
IRREVERSIBLE = (
    Irreversible("rm -rf ~/old", "deletes stay inside", "mkdir ~/old", in_home("old")),
    Irreversible(
        "git push --force origin work:old",
        "published history is rewritten with approval",
        "git commit -qm more --allow-empty",
        tip("old"),
    ),
    Irreversible(
        "git push origin :older",
        "published branches are overwritten with approval",
        "true",
        tip("older"),
    ),
    Irreversible(
        "git stash drop",
        THROWN_AWAY,
        "echo more >>Makefile && git stash -q",
        content(".git/refs/stash"),
    ),
    Irreversible(
        "git reset --hard",
        "uncommitted work is reset with approval",
        "echo more >>Makefile",
        content("Makefile"),
    ),
    Irreversible(
        "git clean -fdq notes", THROWN_AWAY, "mkdir notes && echo x >notes/x", content("notes")
    ),
    Irreversible(
        "git restore .",
        "changed files are restored with approval",
        "echo more >>Makefile",
        content("Makefile"),
    ),
    Irreversible(
        "find . -name '*.log' -delete",
        "found files are deleted with approval",
        "echo x >a.log",
        content("a.log"),
    ),
    Irreversible(
        "rm -rf .git/refs/tags",
        "the repository itself stays",
        "git tag one",
        content(".git/refs/tags"),
    ),
    Irreversible(
        "terraform destroy -auto-approve",
        "remote resources are changed with approval",
        "echo x >resource",
        content("resource"),
    ),
)


@pytest.mark.parametrize("act", IRREVERSIBLE, ids=lambda act: act.text)
def test_ten_acts_that_cannot_be_undone_ask_once_each(day: Day, act: Irreversible) -> None:
    day.run("git checkout -q work 2>/dev/null || git checkout -qb work")
    day.run(act.before)
    asked, before = day.asked(), act.effect(day)
    assert before, "there is nothing that the act could change"
    process = day.house.start("--as", "bot", "run", "day", "--", act.text)
    [question] = eventually(day.questions, f"a question about {act.text}")
    assert question["rule"] == act.rule and question["text"] == act.text
    assert ".gitconfig" not in json.dumps(question["shaped"]), "Holdfast itself wrote it"
    assert act.effect(day) == before, "it happened before it was approved"
    day.house.ok("approve", question["id"], "--yes", "--binding", question["binding"])
    out, err = process.communicate(timeout=60)
    day.answered += 1
    assert process.returncode == 0, (act.text, out, err)
    assert act.effect(day) != before, "it was approved and did not happen"
    assert day.asked() == asked + 1 and not day.questions(), act.text


def test_all_of_this_as_an_ordinary_user(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("it is being run as an ordinary user")
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    with ordinary_user() as user:
        python = user.own_python("pytest", "apsw", "avt")
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not ordinary"]
        done = user.run([python, *words, str(Path(__file__))])
        assert done is not None and done.returncode == 0, done and done.stdout[-6000:]
