"""S6: after detach, reconnect or kill of the host, what a terminal shows equals the host's model.

Real programs draw, a real `holdfast attach` shows it on a real terminal, and two independent emulators look at that terminal.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.fault.clients import Attached
from tests.fault.stage import Stage

PROGRAMS: dict[str, tuple[list[str], list[bytes]]] = {
    "less": (["less", "-R", "TEXT"], [b" ", b"b", b"G", b"g", b"j", b"/line 1\r", b"d", b"u"]),
    "vim": (["vim", "-u", "NONE", "-i", "NONE", "-N", "-n", "TEXT"],
            [b"\x06", b"\x02", b"G", b"gg", b"ihello \xe6\x97\xa5\xe6\x9c\xac\x1b", b"dd", b"u", b"5j", b"A end\x1b"]),
    "top": (["top", "-d", "600"], [b" ", b"1", b"M", b"P", b"t", b"m", b"c"]),
    "tmux": (["tmux", "-L", "SOCKET", "-f", "/dev/null", "new-session", "cat TEXT; exec sh"],
             [b"echo \x1b[31mred\r", b"ls -la / \r", b"\x02%", b"\x02o", b"printf '\\033[38;2;1;200;3mx\\n'\r", b"\x02\""]),
}


def quiet(stage: Stage, name: str) -> int:
    """The offset at which the session has stopped writing for a while."""
    last, since = -1, 0
    while since < 6:
        now = int(stage.session(name)["output"]["end"])
        since = since + 1 if now == last else 0
        last = now
        stage.pump.during(0.02)
    return last


def same(stage: Stage, name: str, client: Attached, what: str) -> None:
    assert client.eye is not None
    eye = client.eye
    quiet(stage, name)
    differences: list[str] = ["not looked yet"]

    def equal() -> bool:
        differences[:] = eye.differences(stage.view(name))
        return not differences

    try:
        stage.pump.until(equal, what, 10)
    except AssertionError as e:
        raise AssertionError(f"{what}: {differences[:6]}") from e


@pytest.mark.parametrize("program", PROGRAMS)
def test_s6_screens_are_right_after_detach_and_host_kill(stage: Stage, program: str) -> None:
    argv, keys = PROGRAMS[program]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    text = Path(stage.directory, "text")
    text.write_text("".join(f"line {i} \x1b[3{i % 8}mcolour\x1b[0m 日本 é {'x' * (i % 70)}\n" for i in range(400)))
    argv = [a.replace("TEXT", str(text)).replace("SOCKET", f"hf{random.randrange(10**9)}") for a in argv]
    rng = random.Random(program)
    stage.start_host()
    stage.new(program, argv)
    stage.pump.until(lambda: stage.session(program)["output"]["end"] > 50, f"{program} draws")
    quiet(stage, program)
    client = Attached(stage, program).attached()
    same(stage, program, client, f"{program}: first attach")
    for n in range(12):
        for _ in range(rng.randint(1, 4)):
            client.type(rng.choice(keys))
            stage.pump.during(0.03)
        fate = n % 3
        if fate == 0:                                   # the client dies; another one comes
            client.close()
            client = Attached(stage, program).attached()
        elif fate == 1:                                 # the host dies; the client comes back by itself
            stage.kill_host()
            stage.find_host()
        else:                                           # both die
            client.close()
            stage.kill_host()
            stage.start_host()
            client = Attached(stage, program).attached()
        same(stage, program, client, f"{program}: round {n}, fate {fate}")
    client.close()
    stage.ask("end", session=program)
