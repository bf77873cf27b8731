"""A script of an agent changes its directory before it deletes; the policy still asks (P4)."""

from __future__ import annotations

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, waiting
from tests.support.installation import DEADLINE_S, Installation, eventually

pytestmark = pytest.mark.skipif(
    find_shfmt() is None, reason="without the shell's grammar every text is asked about"
)


def test_p4_deletes_of_a_script_stay_inside_of_the_shells_directory(hf: Installation) -> None:
    hf.people("ann")
    hf.people("bot", rights="execute,observe", kind="agent")
    project, shared = hf.user / "project", hf.user / "shared"
    for place in (project / "build", shared / "data"):
        place.mkdir(parents=True)
    (project / "x.sh").write_text(f"(cd build && rmdir ../build)\ncd {shared}\nrm -r data\n")
    share = f"--share={shared}:rw"
    hf.ready("dir", "--contained", share, "--cwd", str(project), "--", "bash")
    held = hf.start("--as", "bot", "run", "dir", "--", "sh x.sh")
    [question] = eventually(lambda: waiting(hf), "the question")
    assert question["act"] == "exec" and question["cwd"] == str(shared), question
    assert not (project / "build").exists(), "inside of the project nothing was asked"
    approve(hf, question, "deny")
    held.communicate(timeout=DEADLINE_S)
    assert (shared / "data").exists()
    hf.end("dir")
