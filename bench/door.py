"""The cost of `send`, `run` and `view`, beside tmux and a plain subprocess; the cost of importing.

Two kinds of clients, each compared with its counterpart. Connected: one client that stays
(Holdfast's own connection; tmux in control mode) and repeats its request. Processes: a shell
command for each request (`holdfast send`, `tmux send-keys`); most of the cost is the start of the
process. Rounds alternate between the tools, so that all meet the same machine.

The promises differ. `send` returns when the terminal has taken the text, after the checks of turn
and rights; `send-keys` returns when the server has the text. `run` reports the command's exit code
and output. tmux types `CMD; echo` with a mark and the exit code. In control mode the client waits
for the notification with the mark (`wait-for` would not do: control mode answers it at once).
`polled` looks for the mark with `capture-pane` every POLL_S. `subprocess` starts a shell for each
command, which has no session, record or rights. `import` starts an interpreter that imports
`holdfast`, beside one that imports nothing.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
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
POLL_S = 0.01  # between two looks of a script that polls


class Control:
    """A tmux client in control mode: sends a command, reads up to the %end line."""

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

    def run(self, pane: str, command: str, mark: str) -> None:
        """Types a command, and reads notifications up to the output of its mark."""
        # The two quotes keep the echo of the typed line apart from the output.
        self.ask(f'send-keys -t {pane} \'{command}; echo ""{mark[0]}""{mark[1:]}-$?\' Enter')
        wanted = f"{mark}-0".encode()
        while line := self._from.readline():
            if line.startswith(b"%output") and wanted in line:
                return
        raise RuntimeError("tmux in control mode ended")

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
        "run, connected": {
            "holdfast": run,
            "subprocess": lambda: subprocess.run(["bash", "-c", "true"], check=True),
        },
        "view, connected": {"holdfast": lambda: ann.request("view", session="shell")},
        "send, a process each": {
            "holdfast": lambda: stage.peer.ask("--as", "ann", "send", "door", "x")
        },
        "run, a process each": {
            "holdfast": lambda: stage.peer.ask("--as", "ann", "run", "shell", "--", "true")
        },
        "view, a process each": {
            "holdfast": lambda: stage.peer.ask("--as", "ann", "view", "shell")
        },
        "import, a process each": {
            "holdfast": lambda: _interpreter("import holdfast"),
            "bare Python": lambda: _interpreter("pass"),
        },
    }
    controls: list[Control] = []
    if tmux is not None:
        tmux.start("door", QUIET)
        tmux.start("shell", SHELL)
        door, shell = Control(tmux, "door"), Control(tmux, "shell")
        controls += door, shell
        marks = (f"M{number}" for number in itertools.count())
        pairs["send, connected"]["tmux"] = lambda: door.ask("send-keys -t door x")
        pairs["run, connected"]["tmux"] = lambda: shell.run("shell", "true", next(marks))
        pairs["view, connected"]["tmux"] = lambda: shell.ask("capture-pane -p -t shell")
        pairs["send, a process each"]["tmux"] = lambda: tmux.ask("send-keys", "-t", "door", "x")
        pairs["run, a process each"]["tmux, polled"] = lambda: _polled(tmux, next(marks))
        pairs["view, a process each"]["tmux"] = lambda: tmux.ask(
            "capture-pane", "-p", "-t", "shell"
        )
    try:
        return {
            name: _alternating(pair, started if name.endswith("each") else acts)
            for name, pair in pairs.items()
        }
    finally:
        for control in controls:
            control.close()
        ann.close()
        stage.end("door", "shell")


def _polled(tmux: Tmux, mark: str) -> None:
    """What a script does that has only `send-keys`: type, then look again and again."""
    tmux.ask("send-keys", "-t", "shell", f'true; echo ""{mark[0]}""{mark[1:]}-$?', "Enter")
    while f"{mark}-0" not in tmux.ask("capture-pane", "-p", "-t", "shell"):
        time.sleep(POLL_S)


def _interpreter(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True)


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
            "best_us": min(all_) * 1e6,
            "p50_us": percentile(all_, 0.5) * 1e6,
            "p99_us": percentile(all_, 0.99) * 1e6,
            "per_s": len(all_) / sum(all_),
        }
        for tool, all_ in times.items()
    }
