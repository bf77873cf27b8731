"""The figures from another machine come from terminals that showed output.

No figure is judged here.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench import elsewhere, measures, report
from bench.elsewhere import coming_back, watching
from bench.measures import Bench, Sizes
from bench.peers import Holdfast, Raw, Relayed, SshTmux
from bench.report import verdicts
from bench.targets import Reached
from bench.terminal import read_until


@pytest.mark.alone
def test_a_client_comes_back_after_a_restart_of_the_relay() -> None:
    found = coming_back(1, ("reconnect_kill",))
    [one] = found["reconnect_kill"]
    assert (one["holdfast-relay"]["back_ms"] or 0) > 0
    assert elsewhere.WAYS["reconnect_kill"][0] is signal.SIGKILL


@pytest.mark.alone
def test_all_viewers_get_every_byte_and_memory_is_seen(tmp_path: Path) -> None:
    [one] = watching(Bench(Sizes(mb=0.1, viewers=2), str(tmp_path)), (Raw, Holdfast, Relayed))
    assert set(one) == {"raw", "holdfast", "holdfast-relay"}
    for tool in ("holdfast", "holdfast-relay"):
        assert one[tool]["exact"] == one[tool]["exact_beside"] == 1.0
        assert (one[tool]["host_mib_most"] or 0) >= (one[tool]["host_mib"] or 0) > 0
    assert (one["holdfast-relay"]["relay_mib"] or 0) > 0
    assert "| holdfast-relay |" in report.table("viewers", list(one), [one])


def test_ssh_takes_no_key_for_itself(tmp_path: Path) -> None:
    """A tilde at the beginning of a line is a key like any other."""
    if not SshTmux.available():
        pytest.skip("needs sshd, ssh and tmux")
    if os.geteuid():
        pytest.skip("the sshd of an ordinary user opens no terminal")
    peer = SshTmux()
    try:
        with measures.session(peer, ["sh", "-c", "stty raw -echo; printf THERE; exec cat"], 1) as (
            _,
            [terminal],
        ):
            read_until([terminal], [b"THERE"], 30.0)
            terminal.send(b"\r~")
            read_until([terminal], [b"~"], 30.0)
    finally:
        peer.close()


def test_measures_through_a_relay_have_their_own_targets() -> None:
    rounds = [{"raw": {"MBps": 80.0}, "holdfast-relay": {"MBps": 41.0, "exact": 1.0}}]
    [verdict] = verdicts({"bulk_plain_1": rounds}, "holdfast-relay")
    assert verdict.reached is Reached.AIM
    [verdict] = verdicts({"bulk_plain_1": rounds}, "holdfast")
    assert verdict.reached is Reached.UNKNOWN
