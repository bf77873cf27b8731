"""A viewer that does not read costs bounded memory and blocks no other; a reader gets every byte.

Terminal queries get one answer.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.wire import frames
from tests.support import workload
from tests.support.busy_machine import stripped
from tests.support.checkers.history import Output, check_output
from tests.support.clients import Attached, Lean
from tests.support.stage import DEADLINE_S, Stage

MiB = 1 << 20
BLOCKS = 62_000  # 50 MB
SMALL = "[session]\nring_bytes = 1048576\npace_s = 0.1\n"
PATIENT = "[session]\npace_s = 60.0\n"  # a viewer that reads keeps up, on the slowest machine too


def flood(stage: Stage, name: str, blocks: int, code: int) -> bytes:
    """A session that floods when it gets a line, then waits for another; all its output."""
    command = " ".join(workload.command("flood", blocks, code))
    stage.new(
        name,
        [
            "sh",
            "-c",
            f"stty raw -echo; echo GATE; head -c1 >/dev/null; {command}; head -c1 >/dev/null; "
            f"exit {code}",
        ],
    )
    stage.pump.until(lambda: stage.session(name)["output"]["end"] >= 5, f"{name} listens")
    return b"GATE\n" + workload.flood(blocks)


def read_all(stage: Stage, reader: Lean, upto: int) -> int:
    """Flood until the reader has all output; return the largest growth of the host's memory."""
    before, most, begun = stage.rss(stage.host), 0, time.monotonic()
    reader.type(b"\n")
    while (reader.position or 0) < upto:
        assert time.monotonic() < begun + 2 * DEADLINE_S, f"{reader.position} of {upto}"
        stage.pump.turn(0.05)
        most = max(most, stage.rss(stage.host) - before)
    return most


@pytest.mark.alone
def test_s6_a_viewer_that_stops_reading(stage: Stage) -> None:
    """Two stalled viewers beside one that reads: the host sends to one, one reads the ring itself.

    The reader gets several times the size of the ring, while they take nothing. The bench measures
    how long that takes.
    """
    stage.start_host()
    raw = flood(stage, "flood", BLOCKS, 3)
    reader = Lean(stage, "flood").attached()
    wire, terminal = Lean(stage, "flood", eye=True).attached(), Attached(stage, "flood").attached()
    wire.stall()
    terminal.stall()
    grown = read_all(stage, reader, len(raw))
    assert [str(f) for f in check_output(reader.log, raw, strip=stripped, until=len(raw))] == []
    assert len(reader.screens) == 1, "the one that reads was skipped"
    assert grown < 40 * MiB, f"{grown >> 20} MiB for two that do not read"
    wire.unstall()
    terminal.unstall()
    stage.pump.until(
        lambda: any(reason == frames.SCREEN_LAG for _, reason in wire.screens),
        "it is told that it lagged",
    )
    assert [str(f) for f in check_output(wire.log, raw, strip=stripped, may_skip=True)] == []
    for eye in (wire.eye, terminal.eye):
        assert eye is not None
        stage.pump.until(
            lambda eye=eye: not eye.differences(stage.view("flood")),  # type: ignore[misc]
            lambda eye=eye: f"the newest screen: {eye.differences(stage.view('flood'))[:3]}",  # type: ignore[misc]
        )
    reader.type(b"\n")
    assert stage.exit_code("flood") == 3


@pytest.mark.parametrize("how", ["terminal stops", "client stops", "terminal stops, host dies"])
@pytest.mark.parametrize("stage", [SMALL], indirect=True)
def test_s6_a_client_that_stopped_until_the_ring_rolled_and_the_session_ended(
    stage: Stage, how: str
) -> None:
    """No host sends a screen to this client any more: attach ends, after the last screen."""
    stage.start_host()
    flood(stage, "flood", 6_000, 3)
    terminal = Attached(stage, "flood").attached()
    os.kill(terminal.pid, signal.SIGSTOP) if how == "client stops" else terminal.stall()
    Lean(stage, "flood").attached().type(b"\n\n")
    stage.pump.until(lambda: stage.ended("flood"), "the session ends")
    if how.endswith("host dies"):
        stage.kill_host()
    os.kill(terminal.pid, signal.SIGCONT) if how == "client stops" else terminal.unstall()
    assert terminal.wait() == 0
    if not how.endswith("host dies"):
        assert b"[holdfast] flood ended (exit code 3)" in terminal.data
        assert b">>>" in terminal.data, "the end of the flood is on the last screen"


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s6_eight_viewers_get_every_byte(stage: Stage) -> None:
    stage.start_host()
    raw = flood(stage, "flood", 12_000, 4)
    viewers = [Lean(stage, "flood").attached() for _ in range(6)]
    terminals = [Attached(stage, "flood", eye=False).attached() for _ in range(2)]
    begun = [len(t.data) for t in terminals]
    viewers[0].type(b"\n")
    want = stripped(raw)[len(b"GATE\n") :]

    def all_have_it() -> bool:  # before the comparison, since a comparing client does not read
        return all((v.position or 0) >= len(raw) for v in viewers) and all(
            len(t.data) >= begin + len(want) for t, begin in zip(terminals, begun, strict=True)
        )

    stage.pump.until(all_have_it, lambda: f"all of it: {[v.position for v in viewers]}")
    for viewer in viewers:
        assert [str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))] == []
        assert len(viewer.screens) == 1
    for terminal, begin in zip(terminals, begun, strict=True):
        assert bytes(terminal.data[begin:]).endswith(want)


@pytest.mark.parametrize("stage", [PATIENT], indirect=True)
def test_s6_a_viewer_slower_than_the_program_holds_it_back_and_gets_all_of_it(stage: Stage) -> None:
    """The viewer keeps up as far as it must; also when the program has ended long before."""
    stage.start_host()
    raw = flood(stage, "flood", 16_000, 5)
    viewer = Lean(stage, "flood").attached()
    viewer.type(b"\n\n")
    viewer.stall()
    end = time.monotonic() + DEADLINE_S
    while not viewer.ended:
        assert time.monotonic() < end, f"{viewer.position} of {len(raw)}"
        viewer.unstall()
        viewer._readable()  # a quarter of a megabyte at a time ...
        viewer.stall()
        stage.pump.during(0.04)  # ... and no more than six in a second
    assert [str(f) for f in check_output(viewer.log, raw, strip=stripped, until=len(raw))] == []
    assert viewer.ended["exit_code"] == 5


@pytest.mark.parametrize("viewers", [0, 8])
def test_s6_every_terminal_query_is_answered_once_with_any_viewers(
    stage: Stage, viewers: int
) -> None:
    stage.start_host()
    path = f"{stage.directory}/answers"
    lean = []
    stage.new(
        "ask",
        [
            "sh",
            "-c",
            "stty -echo; echo GATE; read go; exec " + " ".join(workload.command("ask", path)),
        ],
    )
    stage.pump.until(lambda: stage.session("ask")["output"]["end"] >= 6, "it listens")
    if viewers:
        lean = [Lean(stage, "ask").attached() for _ in range(viewers - 2)]
        for _ in range(2):
            Attached(stage, "ask").attached()
    stage.ask("send", session="ask", text="\n", seq=1)
    stage.pump.until(
        lambda: any("ASKED" in line for line in stage.view("ask")["lines"]), "all is answered"
    )
    end = stage.session("ask")["output"]["end"]
    stage.pump.until(
        lambda: all(v.position == end for v in lean), "all viewers have seen the questions' places"
    )
    shown = b"".join(one.data for v in lean for one in v.log if isinstance(one, Output))
    assert not [query for query, _ in workload.QUERIES if query[-4:] in shown], (
        "a question reached a viewer"
    )
    stage.ask("send", session="ask", text="<me>" + workload.STOP.decode(), seq=3)
    assert stage.exit_code("ask") == 0
    assert Path(path).read_bytes() == b"".join(answer for _, answer in workload.QUERIES) + b"<me>"


def test_s6_a_screen_too_large_for_one_frame(stage: Stage) -> None:
    """A thousand lines of history, each cell with its own colours: the client gets a screen."""
    stage.start_host()
    program = (
        "import os, sys\n"
        "row = ''.join(f'\\x1b[38;2;{i % 256};{i * 7 % 256};9;48;2;{i * 3 % 256};1;{i * 5 % 256}m▀'"
        " for i in range(200))\n"
        "out = (''.join(f'{row}\\r\\n' for n in range(1100)) + 'DONE').encode()\n"
        "while out: out = out[os.write(1, out):]\n"
        "sys.stdin.read()"
    )
    import sys

    stage.new("wide", [sys.executable, "-I", "-S", "-c", program], size=(200, 50))
    stage.pump.until(
        lambda: any("DONE" in line for line in stage.view("wide")["lines"]), "it is drawn"
    )
    viewer = Lean(stage, "wide", size=(200, 50), eye=True, scrollback=1000).attached()
    assert viewer.eye is not None
    eye = viewer.eye
    stage.pump.until(
        lambda: not eye.differences(stage.view("wide")),
        lambda: f"{eye.differences(stage.view('wide'))[:2]}",
    )
    client = Attached(stage, "wide", size=(200, 50)).attached()
    assert client.eye is not None
    second = client.eye
    stage.pump.until(
        lambda: not second.differences(stage.view("wide")),
        lambda: f"{second.differences(stage.view('wide'))[:2]}",
    )
