"""R1: which ends may belong to a shutdown, and when they are settled."""

from __future__ import annotations

import signal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.session import interruption
from holdfast.core.session.interruption import SETTLED_S, SIGNALS, STEADY_S

CODES = st.integers(-64, 255)
KINDS = st.sampled_from([None, "bash", "zsh", "posix"])
TIMES = st.floats(0, 1e10)


def test_r1_the_signals_are_those_of_a_shutdown() -> None:
    assert {signal.SIGHUP, signal.SIGTERM, signal.SIGKILL} == SIGNALS


@given(CODES, KINDS)
def test_r1_an_end_by_an_operator_is_never_an_interruption(code: int, shell: str | None) -> None:
    assert not interruption.perhaps(code, shell, known=True)


@given(CODES, KINDS)
def test_r1_only_a_signal_or_a_hung_up_zsh_is_perhaps_an_interruption(
    code: int, shell: str | None
) -> None:
    wanted = -code in SIGNALS or (shell, code) == ("zsh", 1)
    assert interruption.perhaps(code, shell, known=False) == wanted


@given(TIMES, TIMES)
def test_r1_an_end_is_settled_in_time_whatever_the_clock_does(ended: float, now: float) -> None:
    assert 0 <= interruption.left_s(ended, now) <= SETTLED_S


@given(st.floats(0, 1e6))
def test_r1_a_session_that_is_lost_again_at_once_waits(lived: float) -> None:
    assert interruption.at_once(None)
    assert interruption.at_once(lived) == (lived >= STEADY_S)
