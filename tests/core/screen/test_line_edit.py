"""Whether a line is empty, as real editors see it: bash's own, and the kernel's."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.screen.line_edit import left_nothing

EMPTY = [
    b"",
    b"\x0c",
    b"\x1b[D",
    b"\x1b[C\x1b[H",
    b"a\x7f",
    b"abc\x15",
    b"abc\x01\x0b",
    b"ab\x1b[D\x1b[D\x1b[3~\x1b[3~",
    b"\xc3\xa4\x7f",
    b"\x1b",
    b"\x7f\x7f",
]
NOT_EMPTY = [
    b"a",
    b"ab\x7f",
    b"abc\x1b[D\x15",
    b"abc\x01",
    b"\x1b[A",
    b"\t",
    b"\x12",
    b"a\x1bb\x7f",
    b"\x1bx",
    b"x\x17",
]


@pytest.mark.parametrize("typed", EMPTY)
def test_a7_deleted_text_is_not_in_the_way(typed: bytes) -> None:
    assert left_nothing(typed, editor=True)


@pytest.mark.parametrize("typed", NOT_EMPTY)
def test_a7_remaining_or_unknown_text_is_in_the_way(typed: bytes) -> None:
    assert not left_nothing(typed, editor=True)


def test_a_terminal_in_line_mode_has_no_cursor() -> None:
    assert left_nothing(b"abc\x15", editor=False) and left_nothing(b"a\x7f", editor=False)
    assert not left_nothing(b"\x1b[D", editor=False) and not left_nothing(b"\x0c", editor=False)


@given(
    st.lists(
        st.sampled_from(
            [
                b"a",
                b"b",
                b"\x7f",
                b"\x15",
                b"\x0b",
                b"\x01",
                b"\x05",
                b"\x02",
                b"\x06",
                b"\x0c",
                b"\x1b[D",
                b"\x1b[C",
                b"\x1b[3~",
            ]
        ),
        max_size=12,
    )
)
def test_nothing_typed_and_everything_killed_is_empty(keys: list[bytes]) -> None:
    assert left_nothing(b"".join(keys) + b"\x05\x15", editor=True)


def test_a7_bash_agrees() -> None:
    """Every example, in a real bash: Enter runs the remaining line."""
    pid, master = pty.fork()
    if not pid:
        os.execvpe(
            "bash",
            ["bash", "--norc", "--noprofile", "-i"],
            {"PS1": "READY>", "TERM": "xterm", "PATH": os.environ["PATH"], "HISTFILE": "/dev/null"},
        )
    seen = b""

    def until(mark: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 20
        while mark not in seen:
            assert select.select([master], [], [], max(0.0, end - time.monotonic()))[0], seen
            seen += os.read(master, 4096)
        seen = seen.partition(mark)[2]

    try:
        until(b"READY>")
        for n, typed in enumerate(
            [*EMPTY[:-2], EMPTY[-1], *NOT_EMPTY[:4]]
        ):  # a lone Escape would swallow the next key
            os.write(
                master, typed + b"\x05 #" + str(n).encode() + b"END\x01echo [$((40+2))] : \r"
            )  # the rest becomes arguments of echo
            until(b"[42] :")
            line = seen
            while b"READY>" not in line:
                line += os.read(master, 4096)
            left = line.partition(b"\r\n")[0].strip()
            assert (left == b"") == left_nothing(typed, editor=True), (typed, left)
            seen = b""
    finally:
        os.close(master)
        subprocess.run(["kill", "-9", str(pid)], check=False)
        os.waitpid(pid, 0)
