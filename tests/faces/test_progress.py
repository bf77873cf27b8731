"""Progress of long work: bytes, time and the time that is left; only on a terminal."""

from __future__ import annotations

import io
import time

from holdfast.faces.cli.recovery.progress import Progress, line


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def tell(progress: Progress, step: str, count: int, **more: float) -> None:
    progress({"event": "progress", "step": step, "bytes": count, **more})


def test_r2_progress_shows_bytes_and_time() -> None:
    clock, out = iter([0.0, 0.1, 1.0, 4.0]), Screen(True)
    progress = Progress("saving work", "packed", True, out, lambda: next(clock))
    tell(progress, "examined", 200_000_000, seconds=6.0)
    assert out.getvalue() == "", "short work shows nothing"
    tell(progress, "saved", 190_000_000)
    shown = "saving work: its processes stand still, 1 s, about 5 s more; Ctrl-C gives up"
    assert shown in out.getvalue()
    tell(progress, "packed", 100_000_000)
    assert "100 of about 200 MB, 4 s, about 4 s more" in out.getvalue()
    progress.clear()
    assert out.getvalue().endswith("\r\x1b[K")


def test_r2_progress_is_quiet_without_a_terminal_and_in_json() -> None:
    for out, show in ((Screen(False), True), (Screen(True), False)):
        clock = iter([0.0, 9.0])
        progress = Progress("saving work", "packed", show, out, lambda c=clock: next(c))  # type: ignore[misc]
        tell(progress, "packed", 5)
        progress.clear()
        assert out.getvalue() == ""


def test_r2_the_time_left_follows_the_rate() -> None:
    assert line("t", "packed", 10, 100, 5, 2) == "t: 0 of about 0 MB, 5 s, about 45 s more"
    assert line("t", "packed", 300, 100, 5, 2) == "t: 0 of about 0 MB, 5 s"
    assert line("t", "begun", 0, 100, 1, 1.5) == "t: begun, 1 s"


def test_r2_the_line_says_what_an_interrupt_does() -> None:
    clock, out = iter([0.0, 1.0, 2.0, 3.0, 3.0]), Screen(True)
    progress = Progress("moving work", "sent", True, out, lambda: next(clock))
    tell(progress, "sent", 50_000_000, stops=True)
    assert out.getvalue().endswith("; Ctrl-C gives up\x1b[K")
    progress.giving_up = True
    progress.paint()
    assert out.getvalue().endswith("; gives up ...\x1b[K")
    tell(progress, "stopped", 0, stops=False)
    progress.giving_up = False
    progress.paint()
    assert out.getvalue().endswith("ended here, 3 s; Ctrl-C leaves it going on\x1b[K")


def test_r2_a_wait_says_when_it_ends() -> None:
    clock, out = iter([0.0, 1.0]), Screen(True)
    progress = Progress("moving work", "sent", True, out, lambda: next(clock))
    tell(
        progress, "vault does not answer", 0, until=time.mktime((2026, 11, 19, 18, 42, 5, 0, 0, -1))
    )
    assert "moving work: vault does not answer; waits until 18:42:05" in out.getvalue()
