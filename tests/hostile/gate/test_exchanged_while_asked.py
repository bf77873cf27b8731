"""Code exchanges a program while a person reads the question about it (P4).

The exec of one thread waits in the kernel. Another thread of the same process changes the words,
the variables or the directory meanwhile: the approval is for what the question was about.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, waiting
from tests.support.exec_gate.approval_lab import POLICY, Lab
from tests.support.exec_gate.gated_session import obey
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user

pytestmark = pytest.mark.skipif(
    find_shfmt() is None, reason="without the shell's grammar every text is asked about"
)
# argv: what to exchange. A value that is no path is not shown, because it may be a secret.
EXCHANGE = """
import ctypes, os, select, sys, threading
libc = ctypes.CDLL(None)
words = [ctypes.create_string_buffer(w, 64) for w in (b"git", b"clean", b"-fdqx", b"scratch")]
names = {**os.environb, b"GIT_CONFIG_COUNT": b"1", b"GIT_CONFIG_VALUE_0": b"x/../../victim"}
names[b"GIT_CONFIG_KEY_0"] = b"user.name"
env = {k: ctypes.create_string_buffer(k + b"=" + v, len(k + v) + 64) for k, v in names.items()}
def pointed(buffers):
    found = (ctypes.c_void_p * (len(buffers) + 1))()
    for at, one in enumerate(buffers):
        found[at] = ctypes.addressof(one)
    return found
def start():
    libc.execve(b"/usr/bin/git", pointed(words), pointed(list(env.values())))
    os._exit(9)
threading.Thread(target=start).start()
done = os.path.abspath("stopped")
while not os.path.exists("go"):
    select.select([], [], [], 0.01)
if "words" in sys.argv:
    words[3].value = b"victim"
if "variables" in sys.argv:
    env[b"GIT_CONFIG_KEY_0"].value = b"GIT_CONFIG_KEY_0=core.worktree"
if "directory" in sys.argv:
    os.chdir("other")
os.close(os.open(done, os.O_CREAT))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        obey(made, POLICY)
        made.people("ann")
        made.people("bot", rights="execute,observe", kind="agent")
        found = Lab(made, "bash")
        (found.place / "exchange.py").write_text(EXCHANGE)
        (found.place / "other").mkdir()
        found.done("git init -q .")
        yield found


def exchanged(hf: Installation, lab: Lab, what: str, dies: bool) -> None:
    """Let the code exchange something while the question waits, perhaps while no host runs."""
    if dies:
        os.kill(hf.host_pid, signal.SIGKILL)
    (lab.place / "go").touch()
    eventually((lab.place / "stopped").exists, f"the exchange of the {what}")
    if dies:
        hf.ok("up", "--detach")


def another(lab: Lab, known: set[str]) -> dict[str, Any]:
    return eventually(
        lambda: next((q for q in waiting(lab.hf) if q["id"] not in known), None), "a question"
    )


@pytest.mark.parametrize("dies", [False, True], ids=["one host", "two hosts"])
@pytest.mark.parametrize("what", ["words", "variables", "directory", "nothing"])
def test_p4_an_approval_is_for_the_program_that_the_question_was_about(
    lab: Lab, what: str, dies: bool
) -> None:
    lab.clean()
    # An approval whose program changed while no host ran stays, unused, until it lapses.
    before = {q["id"] for q in waiting(lab.hf)}
    held = lab.run(f"/usr/bin/python3 exchange.py {what}")
    question = another(lab, before)
    assert "scratch" in question["text"] and "GIT_CONFIG_KEY_0" in question["text"]
    exchanged(lab.hf, lab, what, dies)
    lab.hf.cli("--as", "ann", "approve", question["id"], "--yes", "--binding", question["binding"])
    if what == "nothing":
        held.communicate(timeout=DEADLINE_S)
        # Without a control group the shell may have seen the job stopped, and did not wait for it.
        eventually(lambda: lab.left() == ["victim"], "the approved program runs")
        return
    other = another(lab, {*before, question["id"]})
    assert lab.left() == ["scratch", "victim"]
    approve(lab.hf, other, "deny")
    held.communicate(timeout=DEADLINE_S)
    assert lab.left() == ["scratch", "victim"]


def test_p4_the_same_as_an_ordinary_user(lab: Lab) -> None:
    passes_as_ordinary_user(__file__)
