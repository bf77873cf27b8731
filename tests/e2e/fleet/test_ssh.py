"""A machine is reached through a stock ssh, without a relay of one's own (T1, T2, S3, S4)."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.commands.results import the_error
from tests.support.commands.sshd import Sshd, sshd
from tests.support.installation import Installation, eventually, installation

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The box. Its relay listens on any free port of its loopback."""
    base = tmp_path_factory.mktemp("there")
    with installation(base, '[relay]\nlisten = "127.0.0.1:0"\n', relay=True) as made:
        made.ok("up", "--detach")
        made.new("work", "--", "bash")
        yield made


@pytest.fixture(scope="module")
def box(there: Installation) -> Iterator[Sshd]:
    with sshd(there.base / "sshd", there.env) as made:
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, box: Sshd) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("here")) as made:
        made.env["PATH"] = box.path(made.env["PATH"])
        made.env["USER"] = "somebody"
        made.ok("host", "connect", box.url)
        made.ok("machines", "rename", "127.0.0.1", "box")
        yield made


def tunnels(box: Sshd) -> list[int]:
    """The ssh processes of this test that carry a connection."""
    found = []
    for one in Path("/proc").iterdir():
        with suppress(OSError):
            words = (one / "cmdline").read_text().split("\0")
            if f"{box.base}/client" in words and "-W" in words:
                found.append(int(one.name))
    return found


@pytest.mark.smoke
def test_t1_a_machine_with_ssh_is_steered_without_a_relay_of_ones_own(
    here: Installation, there: Installation, box: Sshd
) -> None:
    result = here.cli("run", "box/work", "--", "echo on the box; (exit 7)")
    assert (result.rc, result.out) == (7, "on the box\n")
    [machine] = here.ok("machines", "--json").json
    assert (machine["presence"], machine["operator"]) == ("online", "tester")
    assert machine["relays"][0].startswith(f"{box.url}/")
    names = [one["name"] for one in there.ok("device", "--json").json]
    assert len(names) == 2, "this home is a device of the same person"
    eventually(lambda: not tunnels(box), "ssh ends with the command")


def test_t1_each_printed_command_leads_a_newcomer_to_a_session_on_a_fresh_machine(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    fresh, laptop = (tmp_path_factory.mktemp(name) for name in ("fresh", "laptop"))
    config = '[relay]\nlisten = "127.0.0.1:0"\n'
    with (
        installation(fresh, config, relay=True) as there,
        sshd(there.base / "sshd", there.env) as box,
        installation(laptop) as here,
    ):
        here.env["PATH"] = box.path(here.env["PATH"])
        here.env["USER"] = "somebody"

        def printed(*words: str) -> list[str]:
            """The command in the last line of the output."""
            last = here.ok(*words).out.splitlines()[-1]
            return shlex.split(last.strip().removeprefix("holdfast "))

        new = printed("host", "connect", box.url)
        assert new == ["new", "127.0.0.1/main"]
        attach = here.cli("attach", "127.0.0.1/")
        assert (attach.rc, shlex.join(new) in attach.err) == (3, True), attach
        terminal = here.attach(*new)
        terminal.expect("127.0.0.1/main: ")  # the title
        assert terminal.leave() == 0
        assert "main" in here.ok(*printed("host", "connect", box.url)).out
        readme = (ROOT / "README.md").read_text()
        [words] = re.findall(r"^./holdfast (.* )box/main ", readme, re.M)
        terminal = here.attach(*words.split(), "127.0.0.1/main")
        terminal.expect("127.0.0.1/main: ")  # the title
        assert terminal.leave() == 0


def test_t1_connecting_again_changes_nothing(here: Installation, box: Sshd) -> None:
    before = here.ok("machines", "--json").json
    assert here.ok("join", box.url, "--json").json["as"] == "box"
    after = here.ok("machines", "--json").json
    assert [one["relays"] for one in after] == [one["relays"] for one in before]


def test_s4_attach_returns_after_ssh_was_killed(here: Installation, box: Sshd) -> None:
    terminal = here.attach("box/work")
    terminal.send("echo $((40+2))\r")
    terminal.see("42")
    [first] = eventually(lambda: tunnels(box), "a tunnel")
    os.kill(first, signal.SIGKILL)
    terminal.send("echo $((50+7))\r")
    terminal.see("57")
    assert tunnels(box) != [first]
    terminal.leave()
    eventually(lambda: not tunnels(box), "ssh ends with attach")


def test_t1_an_ssh_that_fails_is_named_with_its_last_line(
    here: Installation, box: Sshd, tmp_path: Path
) -> None:
    nowhere = the_error(here.attempt("host", "connect", "ssh://127.0.0.1:1", "--json"), 5)
    assert nowhere["message"].startswith("ssh to 127.0.0.1 failed: ssh: connect to host 127.0.0.1")
    assert "try `ssh 127.0.0.1`" in nowhere["recover"]
    keys = box.base / "authorized"
    keys.rename(box.base / "away")
    try:
        error = the_error(here.attempt("ls", "box/", "--json"), 5)
        assert "ssh to 127.0.0.1 failed" in error["message"]
        assert "Permission denied (publickey" in error["message"]
    finally:
        (box.base / "away").rename(keys)


def test_t4_an_address_for_ssh_is_checked(here: Installation) -> None:
    for url in ("ssh://", "ssh://-oProxyCommand=x", "ssh://a b", "ssh://box:x", "ssh://$(id)@box"):
        the_error(here.attempt("host", "connect", url, "--json"), 2)
