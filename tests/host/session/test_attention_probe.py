"""What a session waits for is decided on facts that belong together (S2)."""

from __future__ import annotations

import asyncio
import termios
from types import SimpleNamespace
from typing import Any

from holdfast.host.session.attention_probe import LOOKS, Attention, read_attention

COOKED = SimpleNamespace(lflag=termios.ICANON | termios.ECHO, foreground=7)
RAW = SimpleNamespace(lflag=0, foreground=7)


class Looks:
    """A session that gives these answers to looks, and these terminals after them."""

    def __init__(self, kinds: list[str], terminals: list[Any], prompts: list[bool]) -> None:
        self.kinds, self.terminals, self.prompts = kinds, terminals, prompts
        self.state, self.looks = "live", 0
        self.commands = SimpleNamespace(kind="bash", shell=SimpleNamespace(at_prompt=False))

    async def looked(self, read: Any, session: Any, state: Any, at_prompt: bool) -> Attention:
        self.looks += 1
        return Attention(self.kinds.pop(0), "", "", None, None)

    async def marks_seen(self, within_s: float) -> Any:
        self.commands.shell.at_prompt = self.prompts.pop(0)
        return self.terminals.pop(0)


def read(session: Any) -> str:
    return asyncio.run(read_attention(session, COOKED)).kind  # type: ignore[arg-type]


def test_s2_a_shell_that_gets_to_its_prompt_during_a_look_is_not_taken_for_input() -> None:
    """Its read of the next line is newer than the terminal's mode, which is the command's."""
    assert read(Looks(["input", "idle"], [RAW, RAW], [True, True])) == "idle"


def test_s2_a_prompt_mark_that_comes_during_a_look_is_seen() -> None:
    assert read(Looks(["input", "idle"], [COOKED, COOKED], [True, True])) == "idle"


def test_s2_a_session_that_stays_the_same_is_looked_at_once() -> None:
    session = Looks(["input"], [COOKED], [False])
    assert (read(session), session.looks) == ("input", 1)


def test_s2_a_session_that_works_is_looked_at_once() -> None:
    session = Looks(["working"], [], [])
    assert (read(session), session.looks) == ("working", 1)


def test_s2_a_session_that_changes_all_the_time_is_looked_at_a_bounded_number_of_times() -> None:
    session = Looks(["input"] * LOOKS, [RAW, COOKED] * LOOKS, [True, False] * LOOKS)
    assert (read(session), session.looks) == ("input", LOOKS)
