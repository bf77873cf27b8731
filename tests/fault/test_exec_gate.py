"""S4 at exec depth: the host dies again and again; each waiting exec is still answered."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.exec_gate.gated_session import LAYOUTS, NO_TAC, obey
from tests.support.installation import eventually, installation

KILLS = 10
KILLS_LONG = 60  # in the soak
WORK = """
n=0
while [ ! -e %s ]; do
    n=$((n+1))
    if [ "$(/bin/echo $n)" = $n ]; then echo good; else echo bad $n; fi
    tac /dev/null 2>/dev/null
    [ $? = 126 ] && echo good || echo bad tac $n
done >> %s
echo over
"""


@pytest.mark.parametrize("count", [KILLS, pytest.param(KILLS_LONG, marks=pytest.mark.soak)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_s4_every_exec_is_right_whenever_the_host_dies(
    tmp_path_factory: pytest.TempPathFactory, layout: str, count: int
) -> None:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as hf:
        obey(hf, NO_TAC)
        hf.new("lab", layout, "--cwd", str(hf.user), "--", "bash")
        results = hf.user / "results"
        results.touch()
        (hf.user / "work.sh").write_text(WORK % (hf.user / "enough", results))
        hf.ok("run", "lab", "--", f"bash {hf.user}/work.sh > {hf.user}/out 2>&1 &")
        rng, kills = random.Random(30), 0
        while kills < count:
            goal = lines(results) + rng.randrange(2, 12)
            eventually(lambda goal=goal: lines(results) >= goal, "some more execs")  # type: ignore[misc]
            os.kill(hf.host_pid, signal.SIGKILL)
            kills += 1
            hf.ok("ls")  # the command line starts the next host
        (hf.user / "enough").touch()
        out = hf.user / "out"
        eventually(lambda: out.read_bytes().endswith(b"over\n"), "the end of the work")
        assert out.read_bytes() == b"over\n"
        told = results.read_text().splitlines()
        assert (
            not [line for line in told if line != "good"][:5]
            and len(told) > 2 * count
            and kills == count
        )
        print(f"{len(told)} execs, {kills} kills")


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")
