"""Programs of a session forge the shell's marks, to make a failed command look successful (A9, P2).

The attacker sees all output of the session (`read` gives it to every observer) and prints to the
same terminal. So it knows every mark that the shell has printed, but not the next one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import SHARE_PYTHON, Installation, eventually
from tests.support.kernel import silent_about_processes
from tests.support.ordinary_user import passes_as_ordinary_user

SHELLS = ("bash", "zsh", "dash")
LAYOUTS = ("plain", "contained")
# argv: a file with all output so far, and the exit code to claim for this run. The code prints the
# mark of a finished run and of a prompt, made of the parts of every mark seen, with new numbers.
FORGE = r"""
import re, sys
seen = open(sys.argv[1], "rb").read()
marks = re.findall(rb"\x1b\]7717;([^\x07]*)\x07", seen)
run = [m for m in marks if b";R;" in m][-1].split(b";")[-1]
last = max(int(m.split(b";")[1]) for m in marks)
out = sys.stdout.buffer
for value in dict.fromkeys(m.split(b";")[0] for m in marks):
    for number in range(last + 1, last + 4):
        for body in (b"D;%s;0" % run, b"P;0"):
            out.write(b"\x1b]7717;%s;%d;%s\x07" % (value, number, body))
out.flush()
sys.exit(7)
"""
# argv: a file for all that was read, a file that stops the program, directories.
SPY = """
import os, sys
copied, stop, *places = sys.argv[1:]
seen = set()
with open(copied, "wb", buffering=0) as out:
    while not os.path.exists(stop):
        for place in places:
            for folder, _, names in os.walk(place):
                for name in names:
                    try:
                        with open(os.path.join(folder, name), "rb") as file:
                            data = file.read()
                    except OSError:
                        continue
                    if data not in seen:
                        seen.add(data)
                        out.write(data)
    out.write(b"stopped")
"""


@pytest.fixture(scope="module", params=[f"{s}-{lay}" for s in SHELLS for lay in LAYOUTS])
def box(request: pytest.FixtureRequest, hf: Installation) -> Iterator[tuple[Installation, str]]:
    shell, layout = request.param.split("-")
    name = f"marks-{request.param}"
    (hf.user / ".zshrc").touch()
    share = SHARE_PYTHON if layout == "contained" else []
    hf.ready(name, f"--{layout}", *share, "--cwd", str(hf.user), "--", shell)
    yield hf, name
    hf.end(name)


def events_named(hf: Installation, session: str, name: str) -> list[dict[str, Any]]:
    found = hf.ok("events", session, "--limit", "100000", "--json").records
    return [e for e in found if e["event"] == name]


def begun(hf: Installation, session: str) -> bytes:
    """The output once a second run has begun, as an observer reads it."""
    output = hf.ok("read", session).raw
    return output if len(re.findall(rb"\x1b\]7717;[^\x07]*;R;", output)) == 2 else b""


def test_a9_marks_that_were_read_do_not_forge_the_next(box: tuple[Installation, str]) -> None:
    hf, name = box
    hf.ok("run", name, "--", "true")
    seen = Path(hf.user, "seen")
    code = Path(hf.user, "forge.py")
    code.write_text(FORGE)
    # The run waits until the attacker was handed all output, the mark of its own beginning too.
    started = hf.start("run", name, "--", f"read go; {sys.executable} {code} {seen}")
    seen.write_bytes(eventually(lambda: begun(hf, name), "the mark of the run"))
    hf.ok("send", name, "go", "--enter")
    assert started.wait() == 7
    assert hf.cli("run", name, "--", "(exit 5)").rc == 5
    (told,) = events_named(hf, name, "shell.forged")
    assert told["count"] >= 1


def test_t4_no_file_of_a_session_holds_what_makes_marks(box: tuple[Installation, str]) -> None:
    """Neither the files that start the shell nor the snapshots of its variables have the key."""
    hf, name = box
    session = hf.get(name)["id"]
    # the session's two directories, by the names that its programs see
    own = "${_hf_own-${_hf%/*}}" if "dash" in name else "${_hfs[dir]}"
    copied, stop = Path(hf.user, f"copied-{session}"), Path(hf.user, f"stop-{session}")
    spy = Path(hf.user, "spy.py")
    spy.write_text(SPY)
    hf.ok("run", name, "--", f'{sys.executable} {spy} {copied} {stop} "{own}" "${{_hf%/*}}" &')
    eventually(copied.exists, "the program that reads all files")
    for _ in range(5):
        hf.ok("run", name, "--", "true")
    stop.touch()
    text = eventually(lambda: copied.read_bytes() if b"stopped" in copied.read_bytes() else b"", "")
    assert b"_hf" in text
    # The value of _hf_m in dash is the tag of the last mark.
    assert not re.search(rb"[^0-9][0-9]{16,20}[^0-9]", re.sub(rb"_hf_m='?-?[0-9]+", b"", text))
    assert not re.search(rb"nonce.{0,6}[0-9a-f]{32}", text)


@pytest.mark.parametrize("shell", SHELLS)
def test_t4_a_program_of_a_start_file_comes_too_late_for_the_key(
    fresh: Installation, shell: str
) -> None:
    looks = f"cat {fresh.home}/run/s/*/key >$HOME/looked; stat -c %s {fresh.home}/run/s/*/key\n"
    for name in (".bashrc", ".zshenv", ".env"):
        (fresh.account / name).write_text(looks)
    fresh.ready("early", "--plain", "--", shell, env={"ENV": f"{fresh.account}/.env"})
    assert (fresh.account / "looked").read_bytes() == b""
    assert fresh.ok("run", "early", "--", "(exit 0)").rc == 0


LIE = {  # code that runs in the shell itself, so it has the key: every command succeeds from now on
    "bash": '_hf_end() { _hf_mark 68 0 "D;$2;0"; _hf_status 0; }',
    "zsh": '_hf_end() { _hf_mark 68 0 "D;$2;0"; }',
    "dash": '_hf_end() { _hf_mark 68 0 "D;$2;0"; _hf_status 0; }',
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a9_the_kernels_exit_code_stands_beside_the_shells(hf: Installation, shell: str) -> None:
    """A shell that was made to lie does not hide that a program failed."""
    if why := silent_about_processes():
        pytest.skip(why)
    name = f"lies-{shell}"
    hf.ready(name, "--plain", "--cwd", str(hf.user), "--", shell)
    code = Path(hf.user, "fails.py")
    code.write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    fails = f"{sys.executable} {code} 7"
    honest = hf.cli("run", name, "--json", "--", fails).json
    assert (honest["exit_code"], honest["kernel_exit"]) == (7, 7)
    hf.ok("run", name, "--", LIE[shell])
    lied = hf.cli("run", name, "--json", "--", f"{fails}; :").json  # a text of several commands
    assert lied["exit_code"] == 0 and "kernel_exit" not in lied
    single = hf.cli("run", name, "--", fails)
    (*_, entry) = [
        e for e in hf.ok("log", name, "--json").records if e["facts"].get("kernel_exit") is not None
    ]
    assert entry["facts"]["kernel_exit"] == 7
    if shell == "dash":  # it cannot say which names are functions
        assert single.rc == 0
        return
    assert single.rc == 7 and "the shell said 0" in single.err
    assert (entry["facts"]["exit_code"], entry["facts"]["shell_exit"]) == (7, 0)
    (told,) = events_named(hf, name, "shell.contradicted")
    assert (told["shell_exit"], told["kernel_exit"]) == (0, 7)


@pytest.mark.skipif(os.getuid() != 0, reason="it is being run as an ordinary user")
def test_a9_all_of_this_as_an_ordinary_user() -> None:
    passes_as_ordinary_user(__file__)
