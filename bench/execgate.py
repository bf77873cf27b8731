"""The cost of the gate at exec depth: the same work with and without the gate, alternating.

    python -m bench.execgate [--rounds N] [--files N] [--agent] [--json FILE]

    make      `make -j2` of a small generated tree of C files, from clean
    git       `git status` in a repository of some hundred files, several times
    pytest    a run of a few tests that start programs
    storm     programs that exit at once, one after the other and many at once: all cost is the gate

Each figure is the median of the rounds. The ratio is the median of the ratios per round, whose two
halves ran one after the other: the load of the machine changes from minute to minute. --agent: the
work is done by an agent; more rules apply to the programs of an agent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORK = {
    "make": "make -C {tree} -s clean; make -C {tree} -s -j2",
    "git": "for i in $(seq 40); do git -C {repo} status --short >/dev/null; done",
    "pytest": "{python} -m pytest -q -p no:cacheprovider {tests} >/dev/null",
    "storm": "i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done",
    "storm at once": "seq 500 | xargs -P 8 -n 1 /bin/true",
}
TIMED = "s=$(date +%s%N); {work}; e=$(date +%s%N); echo TOOK $((e-s))"
DEPTHS = ("input", "exec")


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="bench.execgate")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--files", type=int, default=24)
    p.add_argument("--only", default="")
    p.add_argument("--agent", action="store_true")
    p.add_argument("--json")
    args = p.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="hf-bench-") as top:
        found = measure(
            Path(top),
            args.rounds,
            args.files,
            args.agent,
            args.only.split(",") if args.only else list(WORK),
        )
    for name, one in found.items():
        print(
            f"{name:14} input {one['input'] * 1e3:8.1f} ms   exec {one['exec'] * 1e3:8.1f} ms"
            f"   ratio {one['ratio']:.3f}"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))
    return 0


def measure(
    top: Path, rounds: int, files: int, agent: bool, names: list[str]
) -> dict[str, dict[str, float]]:
    env = {
        **os.environ,
        "HOLDFAST_HOME": str(top / "hf"),
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        "USER": "bench",
        "SHELL": "/bin/bash",
    }

    def holdfast(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            env=env,
            check=True,
            capture_output=True,
            text=True,
            cwd=top,
        ).stdout

    work = top / "work"  # a workspace: it does not contain the state of Holdfast
    work.mkdir()
    places = {
        "tree": str(tree(work / "tree", files)),
        "repo": str(repository(work / "repo")),
        "tests": str(tests(work / "tests")),
        "python": sys.executable,
    }
    who: tuple[str, ...] = ()
    try:
        if agent:
            holdfast("operator", "add", "bot", "--kind", "agent")
            holdfast("grant", "bot", "--rights", "execute,observe")
            who = ("--as", "bot")
        for depth in DEPTHS:
            holdfast(
                "new",
                depth,
                "--contained",
                "--gate",
                depth,
                "--no-attach",
                "--cwd",
                str(work),
                f"--share={sys.base_prefix}",
                "--",
                "bash",
            )
        took: dict[str, dict[str, list[float]]] = {
            name: {depth: [] for depth in DEPTHS} for name in names
        }
        for number in range(rounds + 1):
            for name in names:
                script = work / "work.sh"
                script.write_text(TIMED.format(work=WORK[name].format(**places)) + "\n")
                for depth in DEPTHS if number % 2 else DEPTHS[::-1]:
                    out = holdfast(*who, "run", depth, "--", f"bash {script}")
                    if number:  # the first is for the caches
                        took[name][depth].append(int(out.rsplit("TOOK", 1)[1]) / 1e9)
    finally:
        subprocess.run(
            [sys.executable, "-m", "holdfast", "end", "input", "exec"],
            env=env,
            capture_output=True,
            cwd=top,
        )
        subprocess.run(
            [sys.executable, "-m", "holdfast", "down"], env=env, capture_output=True, cwd=top
        )
    middle = {
        name: {depth: statistics.median(values) for depth, values in each.items()}
        for name, each in took.items()
    }
    return {
        name: {
            **each,
            "ratio": statistics.median(
                e / i for e, i in zip(took[name]["exec"], took[name]["input"], strict=True)
            ),
        }
        for name, each in middle.items()
    }


def tree(top: Path, files: int) -> Path:
    top.mkdir()
    for n in range(files):
        (top / f"f{n}.c").write_text(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
            + "".join(
                f'int f{n}_{m}(int x) {{ char b[64]; snprintf(b, 64, "%d", x * {m});'
                f" return atoi(b) + {n}; }}\n"
                for m in range(40)
            )
        )
    names = " ".join(f"f{n}.o" for n in range(files))
    (top / "main.c").write_text("int main(void) { return 0; }\n")
    (top / "Makefile").write_text(
        f"all: prog\nprog: main.o {names}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O2 -c -o $@ $<\n"
        "clean:\n\trm -f *.o prog\n"
    )
    return top


def repository(top: Path) -> Path:
    top.mkdir()
    for n in range(300):
        (top / f"file{n}").write_text(f"{n}\n")
    git = shutil.which("git") or "git"
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-qm", "x"],
    ):
        subprocess.run([git, *words], cwd=top, check=True, capture_output=True)
    return top


def tests(top: Path) -> Path:
    top.mkdir()
    (top / "test_it.py").write_text(
        "import subprocess\nimport pytest\n\n\n"
        "@pytest.mark.parametrize('n', range(40))\ndef test_it(n):\n"
        "    done = subprocess.run(['echo', str(n)], capture_output=True)\n"
        "    assert done.stdout == f'{n}\\n'.encode()\n"
    )
    return top


if __name__ == "__main__":
    sys.exit(main())
