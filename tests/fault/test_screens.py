"""S6: after any detach, reconnect, redraw or kill of the host, terminals equal the host's model.

Real programs draw; a real `holdfast attach` shows each on a real terminal, and a client of the wire
shows it too; two independent emulators look at both terminals. One host serves them all, so one
kill puts all of them to the test. Every comparison is counted.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support import workload
from tests.support.clients import Attached, Lean
from tests.support.stage import Stage

PROGRAMS: dict[str, tuple[list[str], list[bytes]]] = {
    "less": (
        ["less", "-R", "TEXT"],
        [b" ", b"b", b"G", b"g", b"j", b"/line 1\r", b"d", b"u", b"-S\r", b"\x1b[C", b"\x1b[D"],
    ),
    "vim": (
        ["vim", "-u", "NONE", "-i", "NONE", "-N", "-n", "+set number ruler", "TEXT"],
        [
            b"\x06",
            b"\x02",
            b"G",
            b"gg",
            b"ihello \xe6\x97\xa5\xe6\x9c\xac \xc3\xa9\x1b",
            b"dd",
            b"u",
            b"5j",
            b"A end\x1b",
            b":split\r",
            b":only\r",
            b"/line 7\r",
            b":set hlsearch\r",
            b"v5jd",
            b":r TEXT\r",
        ],
    ),
    "top": (["top", "-d", "600"], [b" ", b"1", b"M", b"P", b"t", b"m", b"c", b"z", b"V", b"E"]),
    "tmux": (
        ["tmux", "-L", "SOCKET", "-f", "/dev/null", "new-session", "cat TEXT; exec sh"],
        [
            b"echo \x1b[31mred\r",
            b"ls -la /\r",
            b"\x02%",
            b"\x02o",
            b"printf '\\033[38;2;1;200;3mx\\n'\r",
            b'\x02"',
            b"\x02x",
            b"y",
            b"cat TEXT\r",
            b"\x02[",
            b"q",
            b"\x02z",
        ],
    ),
    "scene": (workload.command("scene", 8), [b"k"]),
    "marks": (
        workload.command("scene", 9),
        [b"k"],
    ),  # combining characters: the second emulator has none
}


class Show:
    """One program, the terminal of a real client and that of a client of the wire."""

    def __init__(self, stage: Stage, name: str, rng: random.Random) -> None:
        self.stage, self.name, self.rng = stage, name, rng
        text = f"{stage.directory}/text"
        argv, keys = PROGRAMS[name]
        words = {"TEXT": text, "SOCKET": f"hf{Path(stage.directory).name}"}

        def fill(part: str) -> str:
            for word, value in words.items():
                part = part.replace(word, value)
            return part

        self.keys = [fill(key.decode("latin-1")).encode("latin-1") for key in keys]
        stage.new(name, [fill(part) for part in argv])
        stage.pump.until(lambda: stage.session(name)["output"]["end"] > 6, f"{name} draws")
        self.attach()
        self.lean = Lean(stage, name, observe=True, eye=True, second=name != "marks").attached()

    def attach(self) -> None:
        self.client = Attached(self.stage, self.name, second=self.name != "marks").attached()

    def act(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.client.type(self.rng.choice(self.keys))
            self.stage.pump.turn(0.005)

    def back(self) -> bool:
        """The real client is attached (again)."""
        return any(o["pid"] == self.client.pid for o in self.stage.session(self.name)["operators"])

    def differences(self) -> list[str]:
        """Compare each terminal with the model; empty only if the model has not moved meanwhile."""
        stage = self.stage
        view = stage.view(self.name)
        stage.pump.turn(0)
        assert self.client.eye is not None and self.lean.eye is not None
        found = [f"attach: {d}" for d in self.client.eye.differences(view)]
        found += [f"wire: {d}" for d in self.lean.eye.differences(view)]
        if stage.session(self.name)["output"]["end"] != view["offset"]:
            found.append("it still draws")
        return found

    def check(self, what: str) -> None:
        seen: list[str] = []

        def equal() -> bool:
            seen[:] = self.differences()
            return not seen

        self.stage.pump.until(equal, lambda: f"{self.name} is right after {what}: {seen[:4]}")


FATES = ("detach", "kill", "redraw", "kill", "cut", "both")


def shows(stage: Stage, seed: int) -> list[Show]:
    lines = (
        f"line {i} \x1b[3{i % 8}mcolour\x1b[0m 日本 é {'x' * (i % 70)} "
        f"\x1b[38;2;{i % 256};100;200mtrue\x1b[0m\n"
        for i in range(400)
    )
    Path(stage.directory, "text").write_text("".join(lines))
    return [
        Show(stage, name, random.Random(f"{seed}-{name}"))
        for name, (argv, _) in PROGRAMS.items()
        if shutil.which(argv[0])
    ]


def rehearse(stage: Stage, rounds: int, seed: int) -> tuple[int, int]:
    """(comparisons, kills) after so many rounds."""
    rng = random.Random(seed)
    stage.start_host()
    stage.autostart(False)
    all_shows = shows(stage, seed)
    compared = 0
    for show in all_shows:
        show.check("the first attach")
    for n in range(rounds):
        for show in all_shows:
            show.act()
        fate = FATES[n % len(FATES)]
        if rng.random() < 0.5:
            stage.pump.during(rng.uniform(0, 0.1))  # so far into the drawing
        if fate in ("detach", "both"):
            for show in all_shows:
                show.client.close()
        if fate in ("kill", "both"):
            stage.kill_host()
            stage.start_host(wait=fate == "both")
        if fate in ("detach", "both"):
            for show in all_shows:
                show.attach()
        if fate == "cut":
            for show in all_shows:
                show.lean.cut()
        if fate == "redraw":
            for show in all_shows:
                show.client.type(b"\x1cr")  # the prefix key, and redraw
        for show in all_shows:
            stage.pump.until(
                lambda show=show: show.back() and show.lean.live,  # type: ignore[misc]
                f"{show.name} is attached again",
            )
            show.check(f"round {n}: {fate}")
            compared += 2
    return compared, stage.kills


def test_s6_screens_through_detach_reconnect_and_host_kills(stage: Stage) -> None:
    compared, kills = rehearse(stage, 30, 5)
    print(f"{compared} screens compared, {kills} hosts killed")
    assert compared >= 30 * 2 * 4 and kills >= 15


def test_s6_a_size_without_output_outlives_the_host(stage: Stage) -> None:
    """The ring remembers the last size only.

    Output printed at the previous size is drawn right if a snapshot has that size.
    """
    log = Path(stage.directory, "probes")
    stage.start_host(f"log:{log}")
    stage.new("s", ["sh", "-c", r"stty -echo; echo READY; read go; printf '\033[1;90HX'; read go"])
    viewer = Lean(stage, "s").attached()
    stage.pump.until(lambda: stage.view("s")["lines"][0] == "READY", "it waits")

    def stored() -> int:
        return log.read_text().split().count("host.snapshot.stored")

    stage.pump.until(lambda: stored() >= 1, "a snapshot of its output")
    before = stored()
    viewer.resize(100, 30)
    stage.pump.until(lambda: stored() > before, "a snapshot with the new size")
    viewer.type(b"\n")
    stage.pump.until(lambda: stage.session("s")["output"]["end"] > 12, "it prints")
    viewer.resize(120, 40)
    stage.pump.until(
        lambda: stage.session("s")["size"] == {"cols": 120, "rows": 40}, "the last size"
    )
    stage.kill_host()
    stage.start_host()
    view = stage.view("s")
    assert (
        view["size"] == {"cols": 120, "rows": 40} and view["lines"][0] == "READY" + " " * 84 + "X"
    )
    stage.pump.until(lambda: viewer.live, "its viewer is back")
    assert stage.session("s")["size"] == {"cols": 120, "rows": 40}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_s6_screens_for_long(stage: Stage, seed: int) -> None:
    rehearse(stage, 120, seed)
