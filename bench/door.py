"""What an act costs on its way through the door: typed text (`send`) and a command with its exit code (`run`), tmux beside.

Two kinds of clients, each compared with its like. Connected: one client that stays (Holdfast's own connection; tmux in control mode), and
asks again and again. Processes: a command of the shell for each act (`holdfast send`, `tmux send-keys`), whose start is most of it.
Rounds alternate between the tools, so that both meet the same machine.

They do not promise the same. `send` returns when the terminal has taken the text, behind a turn and rights; `send-keys` returns when the
server has it. `run` knows the command's exit code and output by itself; tmux is told to type `CMD; tmux wait-for -S done` and waits for that.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from bench import processes
from bench.halt import percentile
from bench.peers import Tmux
from bench.stage import Stage

Values = dict[str, float | None]
QUIET = ("sh", "-c", "stty raw -echo; echo READY; exec cat >/dev/null")
SHELL = ("bash", "--norc", "--noprofile")
SESSION_S = 60.0


class Control:
    """A tmux client in control mode: a command in, its %end out."""

    def __init__(self, tmux: Tmux, session: str) -> None:
        self._process = subprocess.Popen(
            tmux.control_argv(session),
            env=tmux.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._ended()  # attached

    def _ended(self) -> None:
        while line := self._from.readline():
            if line.startswith(b"%end"):
                return
            if line.startswith(b"%error"):
                break
        raise RuntimeError("tmux in control mode failed")

    def ask(self, *commands: str) -> None:
        self._to.write("".join(f"{command}\n" for command in commands).encode())
        self._to.flush()
        for _ in commands:
            self._ended()

    def close(self) -> None:
        self._to.close()
        self._from.close()
        self._process.terminate()
        self._process.wait()


def costs(stage: Stage, acts: int, processes_started: int) -> dict[str, dict[str, Values]]:
    """Measure -> tool -> figures."""
    tmux = Tmux() if Tmux.available() else None
    try:
        return _costs(stage, tmux, acts, processes_started)
    finally:
        if tmux is not None:
            tmux.close()


def _costs(
    stage: Stage, tmux: Tmux | None, acts: int, started: int
) -> dict[str, dict[str, Values]]:
    stage.start("door", QUIET)
    stage.start("shell", ())
    stage.wait("door", "text:READY")
    stage.wait("shell", "idle")
    ann = stage.link("ann")

    def send() -> None:
        ann.request("send", session="door", text="x", keys=[], seq=ann.next_sequence())

    def run() -> None:
        ann.request(
            "run",
            session="shell",
            text="true",
            seq=ann.next_sequence(),
            timeout=SESSION_S,
            resume=None,
        )

    pairs: dict[str, dict[str, Callable[[], object]]] = {
        "send, connected": {"holdfast": send},
        "run, connected": {"holdfast": run},
        "send, a process each": {
            "holdfast": lambda: stage.peer.ask("--as", "ann", "send", "door", "x")
        },
        "run, a process each": {
            "holdfast": lambda: stage.peer.ask("--as", "ann", "run", "shell", "--", "true")
        },
    }
    control = None
    if tmux is not None:
        tmux.start("door", QUIET)
        tmux.start("shell", SHELL)
        control = Control(tmux, "door")
        told = f"send-keys -t shell 'true; {' '.join(tmux.control_argv('')[:3])} wait-for -S done' Enter"
        pairs["send, connected"]["tmux"] = lambda: control.ask("send-keys -t door x")
        pairs["run, connected"]["tmux"] = lambda: control.ask(told, "wait-for done")
        pairs["send, a process each"]["tmux"] = lambda: tmux.ask("send-keys", "-t", "door", "x")
        pairs["run, a process each"]["tmux"] = lambda: tmux.ask(
            *_words(told), ";", "wait-for", "done"
        )
    try:
        return {
            name: _alternating(pair, started if name.endswith("each") else acts)
            for name, pair in pairs.items()
        }
    finally:
        if control is not None:
            control.close()
        ann.close()
        stage.end("door", "shell")


def _words(told: str) -> list[str]:
    before, line, after = told.split("'")
    return [*before.split(), line, *after.split()]


def _alternating(tools: dict[str, Callable[[], object]], count: int) -> dict[str, Values]:
    for once in tools.values():
        once()
    times: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(count):
        for tool, once in tools.items():
            begin = time.perf_counter()
            once()
            times[tool].append(time.perf_counter() - begin)
    processes.reap()
    return {
        tool: {
            "p50_us": percentile(all_, 0.5) * 1e6,
            "p99_us": percentile(all_, 0.99) * 1e6,
            "per_s": len(all_) / sum(all_),
        }
        for tool, all_ in times.items()
    }
