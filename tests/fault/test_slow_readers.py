"""A viewer that does not read costs bounded memory and delays nobody; one that reads gets every byte."""

from __future__ import annotations

import time

from tests.fault.clients import Attached, Lean
from tests.fault.stage import Stage

from holdfast.testing.history import Output
from holdfast.wire import frames

MiB = 1 << 20


def flood(stage: Stage, name: str, count: int) -> None:
    """A session that writes `count` numbered lines when it gets a line, then END."""
    script = f"stty -echo; echo READY; read x; i=0; seq -f 'line %09.0f ........................................' {count}; echo THE-END; exec cat"
    stage.new(name, ["sh", "-c", script])
    stage.pump.until(lambda: "READY" in "".join(stage.view(name)["lines"]), "the program listens")


def output(viewer: Lean, newest: int = 0) -> bytes:
    """What the viewer got after its screen, or of the newest pieces only."""
    return b"".join(piece.data for piece in viewer.log[-newest:] if isinstance(piece, Output))


def expected(count: int) -> bytes:
    return b"".join(b"line %09d ........................................\r\n" % i for i in range(1, count + 1))


def test_every_viewer_that_reads_gets_every_byte(stage: Stage) -> None:
    stage.start_host()
    flood(stage, "f", 100_000)
    viewers = [Lean(stage, "f").attached() for _ in range(8)]
    viewers[0].type(b"\n")
    want = expected(100_000) + b"THE-END\r\n"
    begin = len(b"READY\r\n")
    for viewer in viewers:
        stage.pump.until(lambda viewer=viewer: (viewer.position or 0) >= begin + len(want),  # type: ignore[misc]
                         lambda viewer=viewer: f"all of it: {viewer.position}", 60)  # type: ignore[misc]
        got = output(viewer)
        assert got.endswith(want), "a viewer that reads missed something"
        assert len(viewer.screens) == 1, viewer.screens


def test_a_stalled_viewer_costs_bounded_memory_and_delays_nobody(stage: Stage) -> None:
    stage.start_host()
    flood(stage, "f", 600_000)                              # 33 MB, four times the ring
    stalled = Attached(stage, "f").attached()
    lean = Lean(stage, "f", size=(80, 24)).attached()
    reader = Lean(stage, "f").attached()
    stalled.stall()
    lean.stall()
    before = stage.rss(stage.host)
    begun = time.monotonic()
    reader.type(b"\n")
    stage.pump.until(lambda: b"THE-END" in output(reader, 3), "the reader sees the end", 100)
    took = time.monotonic() - begun
    assert reader.screens[1:] == [], "the reader was skipped too"
    assert stage.rss(stage.host) - before < 48 * MiB
    assert took < 60, "the session stood still for a viewer that does not read"
    lean.unstall()
    stage.pump.until(lambda: any(reason == frames.SCREEN_LAG for _, reason in lean.screens), "it is told that it lagged")
    stalled.unstall()
    assert stalled.eye is not None
    eye = stalled.eye
    stage.pump.until(lambda: not eye.differences(stage.view("f")), lambda: f"the newest screen: {eye.differences(stage.view('f'))[:4]}")


def test_queries_are_answered_once_whoever_watches(stage: Stage) -> None:
    stage.start_host()
    ask = "stty raw -echo; printf '\\033[c\\033[6n\\033[?2004$p'; dd bs=1 count=30 2>/dev/null | od -An -c | tr -d ' \\n'; echo; echo DONE; exec cat"
    for viewers in (0, 8):
        name = f"q{viewers}"
        stage.new(name, ["sh", "-c", f"read x; {ask}"])
        clients = [Attached(stage, name, eye=False).attached() for _ in range(viewers)]
        stage.ask("send", session=name, text="\n", seq=1)
        stage.pump.during(1.0)                              # the length of the fault: time for a second answer to come, if there were one
        stage.ask("send", session=name, text="#" * 30, seq=2)   # fills what dd still waits for
        stage.pump.until(lambda name=name: "DONE" in "".join(stage.view(name)["lines"]), "the answers were read")  # type: ignore[misc]
        shown = "".join(stage.view(name)["lines"])
        assert shown.count("[?62") + shown.count("[?6") >= 1, shown
        assert shown.count(";1$y") + shown.count(";2$y") == 1, shown
        assert shown.count("R") == 1, shown
        for client in clients:
            client.close()


