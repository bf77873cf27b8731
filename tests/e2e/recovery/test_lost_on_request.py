"""`restore` of a lost session without a checkpoint (R1)."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

from tests.support.installation import Installation, eventually


def test_r1_two_restores_of_a_lost_session_begin_one_incarnation(hf: Installation) -> None:
    hf.ready("twice")
    for epoch in (1, 2):  # the second loss within a minute is final until `restore`
        eventually(lambda e=epoch: hf.get("twice")["epoch"] == e or None, "the incarnation")  # type: ignore[misc]
        hf.wait("twice", "idle")
        os.kill(hf.get("twice")["keeper"], signal.SIGKILL)
    session = eventually(
        lambda: next(
            (s for s in hf.ok("ls", "--all", "--json").json if s["state"] == "ended"), None
        ),
        "the end of the session",
    )
    with ThreadPoolExecutor(2) as pool:
        done = [*pool.map(lambda _: hf.attempt("restore", "twice"), range(2))]
    assert sorted(one.rc for one in done) == [0, 4], done
    found = hf.get("twice")
    assert (found["id"], found["epoch"]) == (session["id"], 3)
    assert hf.ok("run", "twice", "--", "echo here").out == "here\n"
