"""The cost of the shell integration at a prompt, beside the same shell without it.

    python -m bench.prompt [--rounds 300] [--out FILE]

Return is pressed at an empty prompt on a real terminal, many times, until the next prompt is there.
Two figures are taken for each: the processor time of the shell, as the kernel accounts it, and the
median of the elapsed time. The price is the additional work of a session's shell: its marks, and
its report of functions, aliases and variables (docs/reference/originators.md). `functions`: with as
many functions as bash-completion brings along when some completions were used. `asked`: with those
listed too, as after a line that may define some.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import statistics
import tempfile
import time
from pathlib import Path

from holdfast.host.shell import SessionDirectories, prepare
from holdfast.host.shell.launch import BODIES

ROUNDS = 300
FUNCTIONS = 400
WAIT_S = 10.0
PROMPT = "hf-bench> "
NONCE = "0123456789abcdefBENCH"
_FUNCTION = (
    'fn_{n}() {{ local a=$1 b; for b in "$@"; do if [[ $b == x ]]; then echo "$a"; fi; done; '
    'case $a in x) return 1 ;; y) shift; : "$@" ;; esac; while read -r b; do : "$b"; done; }}\n'
)
Figures = dict[str, float]


class _Terminal:
    def __init__(self, argv: list[str], env: dict[str, str], home: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            os.execvpe(argv[0], argv, env)
        self._seen = b""
        self.prompt()

    def prompt(self) -> None:
        wanted, end = PROMPT.encode(), time.monotonic() + WAIT_S
        while wanted not in self._seen:
            if not select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0]:
                raise RuntimeError(f"no prompt: {self._seen[-200:]!r}")
            self._seen += os.read(self.fd, 65536)
        self._seen = self._seen.partition(wanted)[2]

    def enter(self) -> float:
        began = time.perf_counter()
        os.write(self.fd, b"\r")
        self.prompt()
        return time.perf_counter() - began

    def spent(self) -> int:
        """Nanoseconds on a processor."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def measure(
    shell: str, integrated: bool, functions: int, asked: bool, rounds: int
) -> tuple[float, float]:
    """Microseconds for a prompt: of the processor, and from Return to the prompt."""
    with tempfile.TemporaryDirectory() as base:
        home, directory = Path(base, "home"), Path(base, "session")
        home.mkdir()
        directory.mkdir(mode=0o700)
        directories = SessionDirectories.as_outside(directory, directory)
        text = "".join(_FUNCTION.format(n=n) for n in range(functions)) + f"PS1='{PROMPT}'\n"
        (home / (".zshrc" if shell == "zsh" else ".bashrc")).write_text(text)
        env = {"PATH": os.defpath, "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}
        launch = prepare([shell], directories, NONCE, env, login=False)
        if not asked:
            (directory / BODIES).unlink()
        terminal = _Terminal(
            launch.argv if integrated else [shell], launch.env if integrated else env, home
        )
        try:
            for _ in range(rounds // 10):
                terminal.enter()
            before = terminal.spent()
            passed = statistics.median(terminal.enter() for _ in range(rounds)) * 1e6
            return (terminal.spent() - before) / rounds / 1e3, passed
        finally:
            terminal.close()


def figures(rounds: int) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for shell in ("bash", "zsh"):
        for name, functions, asked in (
            ("alone", 0, False),
            ("functions", FUNCTIONS, False),
            ("functions, asked", FUNCTIONS, True),
        ):
            plain, ours = (
                measure(shell, False, functions, False, rounds),
                measure(shell, True, functions, asked, rounds),
            )
            found[f"{shell}, {name}"] = {
                "plain_us": round(plain[0]),
                "with_us": round(ours[0]),
                "cost_us": round(ours[0] - plain[0]),
                "plain_passed_us": round(plain[1]),
                "with_passed_us": round(ours[1]),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="prompt cost of shell integration")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out")
    args = parser.parse_args()
    found = figures(args.rounds)
    print(
        "prompt cost of shell integration (microseconds of the processor for each prompt;"
        " in brackets the time until the prompt is there)"
    )
    for name, one in found.items():
        print(
            f"  {name:24} plain {one['plain_us']:6.0f} ({one['plain_passed_us']:.0f})"
            f"   with {one['with_us']:6.0f} ({one['with_passed_us']:.0f})"
            f"   cost {one['cost_us']:6.0f}"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
