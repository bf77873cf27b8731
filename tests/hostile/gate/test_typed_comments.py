"""A shell that takes a typed comment for commands, by an option that was set before (P4)."""

from __future__ import annotations

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, free, waiting
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

pytestmark = pytest.mark.skipif(
    find_shfmt() is None, reason="without the shell's grammar every text is asked about"
)
OFF = {"bash": "shopt -u interactive_comments", "zsh": "unsetopt interactivecomments"}


@pytest.mark.parametrize("shell", OFF)
def test_p4_a_typed_comment_does_not_hide_a_command(
    tmp_path_factory: pytest.TempPathFactory, shell: str
) -> None:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as hf:
        hf.people("ann")
        hf.people("bot", rights="execute,observe", kind="agent")
        hf.ready("work", "--plain", "--gate", "input", "--cwd", str(hf.user), "--", shell)
        hf.cli("run", "work", "--", OFF[shell])
        free(hf, "work")
        kept, said = hf.account / "kept", hf.user / "said"
        kept.mkdir()
        line = f"echo x #; rmdir {kept}; touch {said}"
        held = hf.start("--as", "bot", "send", "work", line, "--enter")
        eventually(lambda: waiting(hf) or held.poll() is not None, "a question")
        assert held.poll() is None, held.communicate()
        [question] = waiting(hf)
        approve(hf, question, "deny")
        held.communicate(timeout=DEADLINE_S)
        assert question["text"].startswith("echo x #;") and kept.exists()
        free(hf, "work")
        hf.ok("send", "work", line, "--enter")  # a person's line, which is not asked about
        eventually(said.exists, "the shell runs the comment, so the question was needed")
        assert not kept.exists()
        runs(hf, shell)


def runs(hf: Installation, shell: str) -> None:
    """The text of a `run` is not typed: there a comment is a comment, and not asked about."""
    free(hf, "work")
    assert hf.ok("--as", "bot", "run", "work", "--", "echo x # ; touch never").out == "x\n", shell
    assert not (hf.user / "never").exists()
