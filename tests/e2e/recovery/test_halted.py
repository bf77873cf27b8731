"""A halted session can be saved, stays halted, and comes back halted (R2, A4, A8).

The workload counts in a mapped file, so an instruction that runs in between shows. Plain sessions
take part as root. The last test runs this file again as an ordinary user, whose halts have no
control group.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import HoldfastError
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3"
LAYOUTS = ["contained", *(["plain"] if ROOT else [])]
COUNT = """\
import mmap, struct, sys, threading
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
def count(place):
    number = 0
    while True:
        number += 1
        struct.pack_into("<Q", memory, place, number)
threading.Thread(target=count, args=(8,), daemon=True).start()
count(0)
"""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        (made.user / "count.py").write_text(COUNT)
        yield made


def counter(hf: Installation, name: str) -> tuple[int, int]:
    try:
        found = struct.unpack("<QQ", (hf.user / f"{name}.count").read_bytes()[:16])
    except (OSError, struct.error):
        return 0, 0
    return int(found[0]), int(found[1])


def counts(hf: Installation, name: str) -> None:
    """Wait until both threads count further."""
    first = counter(hf, name)

    def more() -> bool | None:
        now = counter(hf, name)
        return (now[0] > first[0] and now[1] > first[1]) or None

    eventually(more, "the counters to go on")


def begun(hf: Installation, name: str, layout: str = "contained") -> None:
    """A session with a counter in the background, a stopped job, and a variable."""
    hf.ready(name, f"--{layout}")
    hf.quick("run", name, "--", f"X=kept; {PYTHON} count.py {name}.count & sleep 1234 &")
    hf.quick("run", name, "--", "kill -STOP %2")
    counts(hf, name)


def lives(hf: Installation, name: str) -> None:
    """The session goes on after a resume; its stopped job is still stopped."""
    hf.quick("resume", name)
    counts(hf, name)
    assert hf.ok("run", name, "--", "echo $X").out == "kept\n"
    jobs = hf.ok("run", name, "--", "jobs").out
    assert jobs.count("Running") == 1 and jobs.count("Stopped") == 1, jobs


def saved(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    said: dict[str, Any] = hf.ok("checkpoint", name, "--json", *args).json["saved"]
    return said


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a4_r2_a_halted_session_stays_halted_while_it_is_saved(
    hf: Installation, layout: str
) -> None:
    name = f"halted-{layout}"
    begun(hf, name, layout)
    hf.quick("halt", name)
    before = counter(hf, name)
    for _ in range(2):
        saved(hf, name)
        assert hf.get(name)["state"] == "halted" and counter(hf, name) == before
    assert hf.cli("run", name, "--", "true").rc
    assert counter(hf, name) == before
    lives(hf, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a4_r2_a_halted_session_comes_back_halted(hf: Installation, layout: str) -> None:
    name = f"comes-{layout}"
    begun(hf, name, layout)
    hf.quick("halt", name)
    before = counter(hf, name)
    saved(hf, name, "--stop")
    assert counter(hf, name) == before
    said = hf.ok("restore", name).out
    assert f"it is still halted, as when it was saved; `holdfast resume {name}`" in said
    assert hf.get(name)["state"] == "halted" and counter(hf, name) == before
    terminal = hf.attach(name, size=(120, 24))
    terminal.see(f"{name} is halted")
    saved(hf, name, "--stop")
    assert hf.ok("restore", name, "--json").json["halted"] is True
    terminal.see("R resumes")
    assert terminal.leave() == 0
    listed = hf.ok("events", name, "--json").records
    told = [one for one in listed if one["event"] == "session.restored"]
    assert [one["halted"] for one in told] == [True, True]
    assert hf.get(name)["state"] == "halted" and counter(hf, name) == before
    lives(hf, name)
    hf.quick("halt", name)
    before = counter(hf, name)
    assert hf.get(name)["state"] == "halted"
    lives(hf, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a4_a_failed_checkpoint_leaves_the_halt_as_it_was(hf: Installation, layout: str) -> None:
    """CRIU fails when all processes are seized and thawed: a connection is not accepted yet."""
    name = f"fails-{layout}"
    begun(hf, name, layout)
    code = (
        "import socket,signal; s=socket.create_server(('127.0.0.1',0)); "
        "c=socket.create_connection(s.getsockname()); "
        "print('PRE' + 'PARED', flush=True); signal.pause()"
    )
    hf.quick("send", name, f'{PYTHON} -c "{code}" &', "--enter")
    hf.wait(name, "text:PREPARED")
    hf.quick("halt", name)
    before = counter(hf, name)
    for stop in ((), ("--stop",)):
        refused = hf.cli("checkpoint", name, *stop)
        assert refused.rc == 7 and "not yet accepted" in refused.err
        assert hf.get(name)["state"] == "halted" and counter(hf, name) == before
    hf.quick("resume", name)
    counts(hf, name)


@pytest.mark.parametrize("step", ["begun", "saved"])
def test_a4_a_session_can_be_halted_while_it_is_saved(hf: Installation, step: str) -> None:
    name = f"during-{step}"
    begun(hf, name)
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    other = Link(homes.resolve(hf.env), "tester", autostart=False)

    answers = list[Any]()

    def halt(event: Any) -> None:
        if event.get("step") == step:
            answers.append(other.request("halt", session=name))

    try:
        link.request("checkpoint", session=name, on_event=halt)
    finally:
        link.close()
        other.close()
    assert answers[0]["complete"]
    assert hf.get(name)["state"] == "halted"
    before = counter(hf, name)
    assert hf.get(name)["state"] == "halted" and counter(hf, name) == before
    lives(hf, name)


@pytest.mark.parametrize("operator", ["", "ann"])
def test_a4_a8_a_halt_that_is_too_late_for_a_last_checkpoint_is_refused(
    hf: Installation, operator: str
) -> None:
    """The checkpoint is of before the halt; an acknowledged halt would be lost."""
    if operator:
        hf.people(operator, rights="execute,observe")
    name = f"late{operator}"
    begun(hf, name)
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    other = Link(homes.resolve(hf.env), "tester", autostart=False)
    refused, asked = list[str](), dict[str, Any](operator=operator) if operator else {}

    def halt(event: Any) -> None:
        if event.get("step") == "begun":
            with pytest.raises(HoldfastError) as found:
                other.request("halt", session=name, **asked)
            refused.append(found.value.message)

    try:
        link.request("checkpoint", session=name, stop=True, on_event=halt)
    finally:
        link.close()
        other.close()
    assert "saved meanwhile" in refused[0]
    hf.ok("restore", name)
    counts(hf, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a8_r2_a_stopped_operator_stays_stopped(hf: Installation, layout: str) -> None:
    bot, some = f"bot-{layout}", f"some-{layout}"
    hf.people(bot, rights="execute,observe")
    hf.ready(some, f"--{layout}")
    hf.quick("--as", bot, "run", some, "--", f"{PYTHON} count.py {some}.count &")
    counts(hf, some)
    hf.quick("--as", bot, "send", some, "sleep 4321", "--enter")
    eventually(lambda: "sleep 4321" in hf.quick("graph", some) or None, "the job")
    hf.ok("halt", some, "--operator", bot)
    before = counter(hf, some)
    saved(hf, some)
    assert counter(hf, some) == before
    assert hf.ok("run", some, "--", "echo on").out == "on\n"
    saved(hf, some, "--stop")
    hf.ok("restore", some)
    assert hf.ok("run", some, "--", "echo on").out == "on\n"
    assert counter(hf, some) == before
    refused = hf.cli("--as", bot, "run", some, "--", "true")
    assert refused.rc and f"stopped {bot}" in refused.err
    hf.ok("resume", some, "--operator", bot)
    counts(hf, some)
    assert "Stopped" not in hf.ok("run", some, "--", "jobs").out


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r2_all_of_this_as_an_ordinary_user() -> None:
    criu()
    passes_as_ordinary_user(__file__)
