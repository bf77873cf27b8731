"""The commands of the guides about other machines, in order, as printed (T1, M).

Only places that a reader fills in are filled in: addresses, links, and the name of the reader.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from collections.abc import Iterator

import pytest

from holdfast.home.config import RELAY_LISTEN
from holdfast.model.address import endpoint
from holdfast.relay.local import PORTS_TRIED
from tests.support.commands.guide import blocks, section
from tests.support.commands.sshd import Sshd, sshd
from tests.support.installation import DEADLINE_S, Installation, Result, eventually, installation
from tests.support.recovery.checkpoint import criu

ADDRESS = "wss://203.0.113.7:8443#sha256-..."


def steps(guide: str, heading: str) -> list[list[str]]:
    """The arguments of each command in a section's blocks; `heading` may be empty."""
    printed = blocks(section(guide, heading))
    lines = [line for block in printed for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    assert found and all(words[0] == "holdfast" for words in found)
    return [words[1:] for words in found]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The machine, after `up`: with the relay that `up` starts."""
    base = tmp_path_factory.mktemp("box")
    with installation(base, '[relay]\nlisten = "127.0.0.1:0"\n', relay=True) as made:
        made.ok("up", "--detach")
        yield made


@pytest.fixture(scope="module")
def by_ssh(box: Installation) -> Iterator[Sshd]:
    with sshd(box.base / "sshd", box.env) as made:
        yield made


def looks_attached(home: Installation, *words: str) -> None:
    terminal = home.attach(*words)
    terminal.send("echo $((40+2))\r")
    terminal.see("42")
    terminal.leave()


@pytest.mark.smoke
def test_m_the_steps_with_ssh_work_as_printed(
    box: Installation, by_ssh: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with installation(tmp_path_factory.mktemp("laptop")) as laptop:
        laptop.env["PATH"] = by_ssh.path(laptop.env["PATH"])
        connect, listing, new, attach = steps("reach-a-machine.md", "With ssh")
        assert "box/" in laptop.ok(*connect).out, "it says how to go on"
        laptop.ok(*new)
        eventually(lambda: "box/work" in laptop.ok(*listing).out, "the list with that machine")
        looks_attached(laptop, *attach)
        box.ok("end", "work")


def served(box: Installation, words: list[str]) -> tuple[subprocess.Popen[bytes], str]:
    """The relay of the guide, on any free port, and the address that it prints."""
    host, port = endpoint(words[-1])
    first = endpoint(RELAY_LISTEN)[1]
    assert port not in range(first, first + PORTS_TRIED), "free beside the relay of `up`"
    relay = box.start(*words[:-1], f"{host}:0", "--name", socket.gethostname())
    assert relay.stdout is not None
    while line := relay.stdout.readline().decode():
        if line.startswith("reached as "):
            return relay, line.removeprefix("reached as ").strip()
    raise AssertionError("it prints no address")


def link_in(said: Result, from_elsewhere: bool = True) -> str:
    found = re.search(r"holdfast join '(holdfast://\S+)'", said.out)
    assert found is not None and from_elsewhere == ("no other machine" not in said.out)
    return found[1]


def test_m_the_steps_through_a_relay_work_as_printed(
    box: Installation, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a relay for others beside the relay that `up` started."""
    box.new("work", "--", "bash")
    serve, token, connect, invite, join, machines, listing, attach = steps(
        "reach-a-machine.md", "Through a relay"
    )
    assert steps("run-a-relay.md", "")[:2] == [serve, token]
    relay, address = served(box, serve)
    secret = box.ok(*token).out
    assert ADDRESS in connect and connect[-1] == "-"
    connected = [address if word == ADDRESS else word for word in connect]
    assert "registered" in box.ok(*connected, stdin=secret.encode()).out
    link = link_in(box.ok(*invite))
    with installation(tmp_path_factory.mktemp("laptop")) as laptop:
        joined = laptop.ok(*(link if word.endswith("://...") else word for word in join)).out
        found = re.search(r"holdfast attach (\S+)/work", joined)
        assert found is not None, "it says how to go on"
        laptop.ok("machines", "rename", found[1], "box")
        assert "online" in laptop.ok(*machines).out
        eventually(lambda: "box/work" in laptop.ok(*listing).out, "the list with that machine")
        looks_attached(laptop, *attach)

    connect, add, join, devices, revoke, grants = steps("add-a-device.md", "")
    assert ADDRESS in connect and grants[-1] == "--grants"
    link = link_in(box.ok(*add))
    with installation(tmp_path_factory.mktemp("phone")) as phone:
        filled = {"holdfast://...": link, "ann": "tester"}
        phone.ok(*(filled.get(word, word) for word in join))
        assert "phone" in box.ok(*devices).out
        box.ok(*revoke)
    relay.terminate()
    relay.wait(DEADLINE_S)
    box.ok("host", "disconnect", address)


def test_r2_a_session_moves_and_a_lost_machine_is_replaced_as_printed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Two homes of one account on this machine; `vault` has the relay that `up` starts."""
    criu()
    guide, relayed = "move-a-session.md", '[relay]\nlisten = "127.0.0.1:0"\n'
    with (
        installation(tmp_path_factory.mktemp("vault"), relayed, relay=True) as vault,
        installation(tmp_path_factory.mktemp("desk")) as desk,
    ):
        desk.env["HOME"] = vault.env["HOME"]
        vault.ok("up", "--detach")
        add, join, rename, trust = steps(guide, "Trust")
        link = link_in(vault.ok(*add), from_elsewhere=False)
        joined = desk.ok(*(link if word.endswith("://...") else word for word in join), "--json")
        name = joined.json["as"]
        desk.ok(*(name if word == "NAME" else word for word in rename))
        desk.ok(*trust)

        new, run, check, move, again = steps(guide, "Move")
        for words in (new, run, check, move):
            desk.ok(*words)
        said = desk.ok(*again).out
        assert said.startswith("3\n") and "sleep 1000" in said
        assert [one["name"] for one in vault.ls("--local")] == ["work"]

        *keep, every, listing = steps(guide, "Keep copies")
        for words in keep:
            desk.ok(*words)
        desk.ok(*every)
        assert "vault" in desk.ok(*listing).out

        restore, run, moved = steps(guide, "The machine is lost")
        desk.ok("down")
        vault.ok(*restore)
        assert vault.ok(*run).out == "4\n"
        desk.ok("up", "--detach")
        eventually(
            lambda: desk.ok(*moved).out.count("moved") == 2 or None, "the end of what desk had"
        )
        for name in ("work", "notes"):
            vault.ok("end", name)
