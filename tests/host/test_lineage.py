"""What the shell starts before it writes a mark is known before the mark is taken."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.lineage import Cause
from holdfast.host.commands import Commands

NONCE = "n" * 16


def mark(seq: int, body: str) -> bytes:
    return f"\x1b]7717;{NONCE};{seq};{body}\a".encode()


def test_p5_a_process_that_was_started_before_a_prompt_is_not_the_prompts(tmp_path: Path) -> None:
    """The whole command came in one piece: its beginning, its end and the next prompt."""
    commands = Commands({"shell": "bash", "nonce": NONCE, "by": "ann"}, str(tmp_path), {}, root=100)
    commands.feed(0, memoryview(mark(1, "P;0")))
    commands.typed("bob", b"server &\r", 7, 0)

    def told() -> None:
        assert commands.lineage.forked(100, 101, lambda pid: False)

    commands.before_marks = told
    commands.feed(1000, memoryview(mark(2, "C") + b"output" + mark(3, "P;0")))
    assert commands.lineage.of(101) == Cause("bob", 7)
    commands.close()
