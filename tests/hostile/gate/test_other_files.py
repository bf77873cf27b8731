"""Programs that show a task other files at the paths of listed programs (A5, P4).

A grant for `python3,git` lets code run in Python. That code makes namespaces in which
`/usr/bin/git` is another program, or changes its root directory, and executes "git".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.policy import command_limit
from tests.support.exec_gate.gated_session import LAYOUTS
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user

PYTHON = "/usr/bin/python3"
START = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)
def apart(flags):
    uid, gid = os.getuid(), os.getgid()
    call("unshare", 0x10000000 | flags)
    maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in maps.items():
        try:
            open(f"/proc/self/{name}", "w").write(text)
        except OSError:
            pass
def start(name):
    child = os.fork()
    if child == 0:
        try:
            os.execv("/usr/bin/git", ["git", "--version"])
        except OSError as e:
            open(name, "w").write(f"refused {e.errno}")
        os._exit(0)
    os.waitpid(child, 0)
    if not os.path.exists(name):
        open(name, "w").write("ran")
here = os.open(".", os.O_PATH)
"""
WAYS = {
    "mounts": START
    + """
apart(0x20000)
call("mount", b"/usr/bin/id", b"/usr/bin/git", None, 4096, None)
start("said")
""",
    "same mounts in another namespace": START
    + """
apart(0x20000)
start("said")
""",
    "the same files in another user namespace": START
    + """
apart(0)
start("said")
""",
    "root": START
    + """
apart(0)
os.makedirs("root/usr/bin", exist_ok=True)
open("root/usr/bin/git", "wb").write(open(STATIC, "rb").read())
os.chmod("root/usr/bin/git", 0o755)
os.chroot("root")
os.fchdir(here)
start("said")
""",
    "none": START + 'start("said")\n',
}


@pytest.fixture(scope="module", params=LAYOUTS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        (made.user / "work").mkdir()
        made.new("lab", request.param, "--cwd", str(made.user / "work"), "--", "bash")
        made.people("bot", rights="", kind="agent")
        rights = ("--rights", "observe,run,turn.request", "--session", "lab")
        made.ok("grant", "bot", *rights, "--commands", "python3,python3.11,git")
        yield made


def refusals(hf: Installation) -> list[dict[str, Any]]:
    records = hf.ok("events", "lab", "--limit", "100000", "--json").records
    return [e for e in records if e["event"] == "exec.refused"]


@pytest.mark.parametrize("way", list(WAYS))
def test_a5_a_listed_name_counts_only_among_the_files_of_the_session(
    lab: Installation, way: str
) -> None:
    work = lab.user / "work"
    (work / "said").unlink(missing_ok=True)
    (work / "attack.py").write_text(WAYS[way].replace("STATIC", json.dumps(PYTHON)))
    before = len(refusals(lab))
    done = lab.cli("--as", "bot", "run", "lab", "--", f"{PYTHON} attack.py")
    lab.cli("--as", "bot", "turn", "lab", "release")
    if way == "none":
        assert (work / "said").read_text() == "ran", done
        return
    if not (work / "said").exists():
        assert "PermissionError" in done.out or "OSError" in done.out, done
        pytest.skip(f"this session does not let code do that: {done.out[-200:]}")
    assert (work / "said").read_text() == "refused 13", done
    eventually(lambda: len(refusals(lab)) > before, "the refusal is reported")
    assert refusals(lab)[-1]["rule"] == command_limit.RULE


def test_a5_the_same_holds_for_an_ordinary_user() -> None:
    passes_as_ordinary_user(__file__)
