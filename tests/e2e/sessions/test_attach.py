"""`attach` on a real terminal: every byte both ways, and a restored terminal on every way out."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.attach.terminal import RESET
from holdfast.host.terminal.screen import Screen
from holdfast.model.errors import Ambiguous, HoldfastError
from tests.support.checkers.history import difference
from tests.support.commands.attached import attached
from tests.support.installation import (
    DEADLINE_S,
    Installation,
    alive,
    eventually,
    installation,
    state_of,
)
from tests.support.terminal_modes import DIRT, FRESH_LINE, state

INSIDE = str(Path(__file__).parents[2] / "support" / "inside_session.py")
PREFIX = b"\x1c"
# Without titles of attach, where bytes are compared.
CONFIG = "[turn]\nidle_s = 0.5\n[attach]\ntitle = false\n"
EVERY_BYTE = bytes(range(256))
MODES_LEFT_ON = {
    b"25",
    b"7",
    b"8",
}  # the cursor shows, lines wrap, keys repeat: the state of a fresh terminal


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), CONFIG) as made:
        yield made


def modes_on(output: bytes | bytearray) -> set[bytes]:
    """Private modes that this output leaves set."""
    on = set(MODES_LEFT_ON)
    for numbers, act in re.findall(rb"\x1b\[\?([0-9;]+)([hl])", bytes(output)):
        for number in numbers.split(b";"):
            on.add(number) if act == b"h" else on.discard(number)
    return on


# ---------------------------------------------------------------- bytes


@pytest.mark.smoke
def test_every_byte_value_reaches_the_program(hf: Installation, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    data = (
        EVERY_BYTE
        + EVERY_BYTE[::-1]
        + b"\xe4\xf6\xfc\x1b[A\x1bOP"
        + bytes(b for b in range(256) for _ in range(3))
    )
    hf.new("in", "--", sys.executable, INSIDE, "record", str(taken), str(len(data)))
    terminal = attached(hf, "in", see="READY")
    terminal.send(data.replace(PREFIX, PREFIX + PREFIX))
    terminal.see("DONE")
    assert taken.read_bytes() == data
    terminal.leave()
    hf.end("in")


def test_every_byte_value_reaches_the_terminal(hf: Installation, tmp_path: Path) -> None:
    """All but ENQ, which makes a terminal answer, and C1 bytes, which some terminals obey."""
    data = (
        b"".join(b"<" + bytes([b]) + b">" for b in range(256))
        + "äöü€😀".encode()
        + b"\xff\xfe\r\n\n\r"
    )
    source = tmp_path / "source"
    source.write_bytes(data)
    hf.new("out", "--", sys.executable, INSIDE, "emit", str(source))
    terminal = attached(hf, "out", see="READY")
    terminal.send(b"x")
    terminal.expect(b"BEGIN.*END")
    shown = bytes(terminal.output).rpartition(b"BEGIN")[2].partition(b"END")[0]
    assert shown == re.sub(rb"<[\x80-\x9f]>", "<\ufffd>".encode(), data.replace(b"\x05", b""))
    terminal.leave()
    hf.end("out")


@pytest.mark.parametrize(
    ("made", "looks", "written"),
    [
        (("--clipboard",), ("--clipboard",), True),
        (("--clipboard",), (), False),
        ((), ("--clipboard",), False),
    ],
)
def test_s6_the_clipboard_is_written_where_session_and_viewer_allow_it(
    hf: Installation, tmp_path: Path, made: tuple[str, ...], looks: tuple[str, ...], written: bool
) -> None:
    write, ask = b"\x1b]52;c;Y29weQ==\x07", b"\x1b]52;c;?\x07"
    source = tmp_path / "source"
    source.write_bytes(b"1" + write + b"2" + ask + b"3")
    hf.new("copies", *made, "--", sys.executable, INSIDE, "emit", str(source))
    terminal = attached(hf, "copies", *looks, see="READY")
    assert (b"not made with --clipboard" in terminal.output) == (not made)
    terminal.send(b"x")
    terminal.expect(b"BEGIN.*END")
    shown = bytes(terminal.output).rpartition(b"BEGIN")[2].partition(b"END")[0]
    assert shown == b"1" + (write if written else b"") + b"23"
    terminal.leave()
    hf.end("copies")


def test_the_terminal_is_raw_while_attached(hf: Installation) -> None:
    import termios

    hf.ready("raw")
    terminal = attached(hf, "raw")
    iflag, oflag, _, lflag = terminal.attributes()[:4]
    assert not lflag & (termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    assert not iflag & (termios.ICRNL | termios.IXON | termios.ISTRIP) and not oflag & termios.OPOST
    terminal.leave()
    hf.end("raw")


# ---------------------------------------------------------------- every way out


@pytest.mark.parametrize("way", ["detach", "end", "TERM", "HUP", "INT", "QUIT", "down"])
def test_the_users_terminal_is_as_before_on_every_way_out(hf: Installation, way: str) -> None:
    hf.new("modes", "--", sys.executable, INSIDE, "modes")
    terminal = attached(hf, "modes", see="READY")
    assert modes_on(terminal.output) >= {
        b"1000",
        b"1006",
        b"1004",
        b"2004",
        b"1",
    } and b"25" not in modes_on(terminal.output)
    assert not terminal.restored
    if way == "detach":
        terminal.send(PREFIX + b"d")
    elif way == "end":
        terminal.send(b"x")
    elif way == "down":
        hf.ok("down")
    else:
        terminal.signal(getattr(signal, f"SIG{way}"))
    code = terminal.wait()
    assert terminal.restored
    assert modes_on(terminal.output) == MODES_LEFT_ON
    tail = bytes(terminal.output).rpartition(b"\x1b[?1049l")[2]
    assert tail, "the alternate screen was not left"
    for reset in (b"\x1b[r", b"\x1b[0m", b"\x1b>", b"\x1b[23;0t"):
        assert reset in tail, reset
    words = {
        "detach": b"detached from modes; it keeps running",
        "end": b"modes ended (exit code 0)",
        "down": b"the host was stopped",
    }
    assert words.get(way, b"detached from modes; it keeps running") in tail
    assert code == {"detach": 0, "end": 0, "down": 5}.get(way) or code == 128 + getattr(
        signal, f"SIG{way}", 0
    )
    if way == "down":
        hf.ok("up", "--detach")
    if way != "end":
        assert hf.get("modes")["state"] == "detached"
        hf.end("modes")


def test_no_mode_of_the_session_is_left_in_the_users_terminal(
    hf: Installation, tmp_path: Path
) -> None:
    """All output that passes to viewers, into an emulator that stands for the user's terminal."""
    source = tmp_path / "source"
    source.write_bytes(
        b"".join(dirt for name, dirt in DIRT.items() if "middle" not in name) + b"\x1b[?25h"
    )
    hf.new("dirty", "--", sys.executable, INSIDE, "emit", str(source))
    terminal = attached(hf, "dirty", see="READY")
    terminal.send(b"x")
    terminal.expect(b"BEGIN.*END")
    assert terminal.leave() == 0
    user, clean = Screen(80, 24), Screen(80, 24)
    user.feed(bytes(terminal.output))
    clean.feed(FRESH_LINE)
    assert state(user) == state(clean)
    hf.end("dirty")


def test_s3_a_terminal_that_vanishes_ends_the_client_and_nothing_else(hf: Installation) -> None:
    made = hf.ready("vanish")
    terminal = attached(hf, "vanish")
    terminal.hang_up()
    assert terminal.process.wait(timeout=DEADLINE_S) in (129, -1)
    eventually(lambda: hf.get("vanish")["state"] == "detached", "the session to notice")
    assert alive(made["pid"])
    hf.end("vanish")


def test_a_client_ends_on_term_though_its_terminal_takes_nothing(hf: Installation) -> None:
    hf.new(
        "flood", "--", "sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done"
    )
    terminal = hf.attach("flood")
    terminal.expect("0123456789")
    terminal.signal(signal.SIGTERM)
    assert terminal.process.wait(timeout=DEADLINE_S) == 143
    hf.end("flood")


def test_suspending_gives_the_terminal_back_and_fg_takes_it_again(hf: Installation) -> None:
    hf.ready("susp")
    terminal = attached(hf, "susp")
    terminal.send(PREFIX + b"\x1a")
    terminal.until(lambda: state_of(terminal.process.pid) == "T", "the client to stop")
    assert terminal.restored
    terminal.signal(signal.SIGCONT)
    terminal.until(lambda: not terminal.restored, "raw mode again")
    terminal.send("echo re''sumed\r")
    terminal.see("resumed")
    assert terminal.leave() == 0
    assert terminal.restored
    hf.end("susp")


def test_the_last_output_of_a_session_is_shown_before_its_end_is_told(hf: Installation) -> None:
    hf.new("last", "--", "sh", "-c", "stty -echo; echo READY; read x; seq 200000; exit 4")
    terminal = attached(hf, "last", see="READY")
    terminal.send("\r")
    assert terminal.wait() == 0
    shown = bytes(terminal.output).partition(RESET)[0]
    assert re.search(rb"199999\r\n200000\r\n$", re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)), (
        shown[-200:]
    )
    assert b"last ended (exit code 4)" in terminal.output


def test_scrollback_of_any_size_can_be_attached_to(hf: Installation) -> None:
    """More scrollback than one frame may carry: the newest part comes."""
    script = (
        "for i in range(4000): print(f'{i:04d} ' + "
        "''.join(f'\\x1b[38;2;{i%256};{x};{i//16}m{x%10}' for x in range(150)))\n"
        "print('\\x1b[0mREADY'); input()"
    )
    hf.new("deep", "--size", "160x40", "--", sys.executable, "-c", script)
    hf.wait("deep", "text:READY")
    terminal = attached(hf, "deep", "--scrollback", "4000", size=(160, 40), see="READY")
    assert "3999 0123" in bytes(re.sub(rb"\x1b\[[0-9;:]*m", b"", bytes(terminal.output))).decode(
        "utf-8", "replace"
    )
    assert terminal.leave() == 0
    hf.end("deep")


# ---------------------------------------------------------------- messages


def test_status_lines_report_events_and_can_be_turned_off(fresh: Installation) -> None:
    fresh.ready("status")
    terminal = attached(fresh, "status")
    session = fresh.get("status")["id"]
    assert (
        f"[holdfast] attached to status ({session}); C-\\ ? for help, C-\\ d to detach".encode()
        in terminal.output
    )
    terminal.leave()
    assert (
        b"[holdfast] detached from status; it keeps running. `holdfast attach status` comes back."
        in terminal.output
    )
    fresh.configure("[attach]\nstatus = false\n")
    terminal = attached(fresh, "status")
    terminal.leave()
    assert b"[holdfast]" not in terminal.output
    made = fresh.attach("new", "silent")
    made.until(lambda: made.rows()[0] == "$", "a prompt")
    assert fresh.get("silent")["id"].encode() + b"\r\n" in made.output
    made.leave()


def test_the_prefix_key_can_be_changed(fresh: Installation) -> None:
    fresh.configure('[attach]\nprefix = "C-b"\n')
    fresh.ready("prefix")
    terminal = attached(fresh, "prefix")
    assert b"C-b ? for help" in terminal.output
    terminal.send(b"\x02?")
    terminal.see("C-b d    detach")
    terminal.send(b"x")
    terminal.send(b"\x02d")
    assert terminal.wait() == 0
    fresh.configure('[attach]\nprefix = "x"\n')
    refused = fresh.attach("prefix")
    assert refused.wait() == 2 and b"prefix" in refused.output


def test_help_covers_the_screen_and_any_key_returns(hf: Installation) -> None:
    hf.ready("help")
    hf.ok("run", "help", "--", "echo under''neath")
    terminal = attached(hf, "help", see="underneath")
    terminal.send(PREFIX + b"?")
    terminal.see("Any key returns")
    rows = terminal.rows()
    assert any("attached to help" in r for r in rows) and not any("underneath" in r for r in rows)
    for key in ("d ", "s ", "n p", "l ", "a t", "r ", "C-z", "C-\\"):
        assert any(f"C-\\ {key}" in r for r in rows), key
    terminal.send(b"q")
    terminal.see("underneath")
    assert not any("Any key" in r for r in terminal.rows())
    terminal.send("echo $((40+2))\r")
    terminal.see("42")
    assert "q" not in "".join(r for r in terminal.rows() if "echo $" in r).replace("echo", ""), (
        "the key that closed help was typed"
    )
    terminal.leave()
    hf.end("help")


def test_an_unknown_command_key_is_told_and_not_typed(hf: Installation) -> None:
    hf.ready("unknown")
    terminal = attached(hf, "unknown")
    terminal.send(PREFIX + b"Z")
    terminal.see("no such command")
    terminal.until(
        lambda: not any("no such command" in r for r in terminal.rows()), "the notice to go"
    )
    assert "Z" not in "".join(terminal.rows())
    terminal.leave()
    hf.end("unknown")


# ---------------------------------------------------------------- sessions


def test_switching_between_sessions(hf: Installation) -> None:
    for name in ("sw1", "sw2"):
        hf.ready(name)
        hf.ok("run", name, "--", f"PS1='{name}> '")
    terminal = attached(hf, "sw1", see="sw1>")
    terminal.send(PREFIX + b"s")
    terminal.see("choose a session")
    row = next(r for r in terminal.rows() if "sw2" in r)
    terminal.send(row.split()[0].encode())
    terminal.see("sw2>")
    assert not any("sw1>" in r for r in terminal.rows())
    terminal.send(PREFIX + b"l")
    terminal.see("sw1>")
    for key in (b"n", b"p"):
        terminal.send(PREFIX + key + b"echo typed-ahead\r")
        terminal.see("sw2> echo typed-ahead" if key == b"n" else "sw1> echo typed-ahead")
    terminal.send(PREFIX + b"s" + row.split()[0].encode() + PREFIX + b"l")
    terminal.see("sw1>")
    assert terminal.leave() == 0
    assert b"detached from sw1" in terminal.output
    hf.end("sw1", "sw2")


def test_keys_typed_into_one_session_are_not_typed_into_the_next(
    hf: Installation, tmp_path: Path
) -> None:
    """A password typed without echo is not acknowledged by output.

    It must not follow the user to another session.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    hf.new("src", "--", sys.executable, INSIDE, "record", str(one), "7")
    hf.new("dst", "--", sys.executable, INSIDE, "record", str(two), "4")
    for name in ("src", "dst"):
        hf.wait(name, "text:READY")
    terminal = attached(hf, "src", see="READY")
    terminal.send(b"secret")
    eventually(lambda: one.exists() and one.read_bytes() == b"secret", "the keys to arrive")
    at = len(terminal.output)
    terminal.send(PREFIX + b"n")
    terminal.expect("READY", at)
    terminal.send(b"here")
    eventually(lambda: two.exists() and len(two.read_bytes()) >= 4, "the keys to arrive")
    assert two.read_bytes() == b"here"
    assert one.read_bytes() == b"secret"
    terminal.leave()
    hf.end("src", "dst")


def test_the_prefix_key_twice_types_it(hf: Installation, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    hf.new("lit", "--", sys.executable, INSIDE, "record", str(taken), "3")
    terminal = attached(hf, "lit", see="READY")
    terminal.send(b"a" + PREFIX)
    terminal.send(PREFIX + b"b")
    terminal.see("DONE")
    assert taken.read_bytes() == b"a" + PREFIX + b"b"
    terminal.leave()
    hf.end("lit")


def test_s3_attach_without_a_name_takes_the_session_used_last(hf: Installation) -> None:
    """Of this operator; before the first use, the newest session. A new host still knows."""
    hf.ready("older")
    hf.ready("newer")
    terminal = hf.attach()
    terminal.see("$")
    terminal.leave()
    assert b"detached from newer" in terminal.output
    attached(hf, "older").leave()
    hf.ok("down")
    hf.ok("up", "--detach")
    terminal = hf.spawn([os.fsdecode(word) for word in hf.argv(("a",))])
    terminal.see("$")
    terminal.leave()
    assert b"detached from older" in terminal.output
    result = hf.cli("attach", "newer")
    assert result.rc == 2 and "terminal" in result.err
    gone = hf.attach("nothere")
    assert (
        gone.wait() == 3
        and gone.restored
        and b"no session" in gone.output
        and b"attached" not in gone.output
    )
    assert "newer ended" in hf.ok("kill", "newer").out
    hf.end("older")


def test_s3_a_unique_beginning_of_a_name_stands_for_the_session(hf: Installation) -> None:
    hf.people("guest", rights="read")
    hf.people("stranger", rights="")
    for name in ("build", "builder", "docs"):
        hf.new(name)
    assert hf.ask("get", session="do")["name"] == "docs"
    assert hf.ask("get", session="build")["name"] == "build", "an exact name wins"
    assert hf.get("builder")["id"] == hf.ask("place", session="builde")["id"]
    with pytest.raises(Ambiguous, match="2 sessions") as caught:
        hf.ask("get", session="bui")
    candidates: Any = caught.value.facts["candidates"]
    assert [one["name"] for one in candidates] == ["build", "builder"]
    result = hf.cli("send", "bui", "x", "--json")
    assert (result.rc, result.json["error"]["name"]) == (2, "ambiguous")
    assert hf.cli("send", "do", "true", "--enter").rc == 0
    with pytest.raises(HoldfastError) as hidden:
        hf.ask("get", "stranger", session="bui")
    assert "build" not in hidden.value.message.replace("'bui'", ""), "names stay unknown"
    hf.end("build", "builder", "docs")
    assert hf.ask("get", session="do")["state"] == "ended"


def test_new_attaches_when_on_a_terminal(hf: Installation) -> None:
    terminal = hf.attach("new", "direct", size=(93, 31))
    terminal.see("$")
    made = hf.get("direct")
    assert (
        f"[holdfast] attached to the new session direct ({made['id']})".encode() in terminal.output
    )
    terminal.send("stty size\r")
    terminal.see("31 93")
    terminal.leave()
    again = hf.attach("new", "-A", "direct", size=(93, 31))
    again.see("31 93")
    assert b"new session" not in again.output
    again.send("exit 6\r")
    assert again.wait() == 0 and b"direct ended (exit code 6)" in again.output


def test_up_on_a_terminal_makes_a_first_session(fresh: Installation) -> None:
    terminal = fresh.attach("up")
    terminal.until(lambda: terminal.rows()[0] == "$", "a prompt")
    assert b"is up" in terminal.output
    terminal.leave()
    assert [s["name"] for s in fresh.ls()] == ["main"]


# ---------------------------------------------------------------- nesting


def test_a_session_is_not_shown_inside_itself(hf: Installation) -> None:
    hf.ready("outer")
    hf.ready("second")
    terminal = attached(hf, "outer")
    program = f"{sys.executable} -m holdfast attach"
    terminal.send(f"clear; {program} outer; echo rc=$?\r")
    terminal.see("rc=4")
    assert any("inside session outer itself" in r for r in terminal.rows())
    terminal.send(f"clear; env -u HOLDFAST_SESSION setsid -w {program} outer; echo rc=$?\r")
    terminal.see("rc=4")
    at = len(terminal.output)
    terminal.send(f"clear; {program} second\r")  # another session may be shown
    terminal.expect(r"attached to second", at)
    terminal.see("$")
    eventually(lambda: hf.get("second")["operators"], "the second attachment")
    terminal.send(
        f"clear; {program} outer; echo rc''=$?\r"
    )  # through that session it would show itself again
    terminal.see("rc=4")
    # Leaves the inner attach: the outer attach takes one prefix
    terminal.send(PREFIX + PREFIX + b"d")
    terminal.until(lambda: b"detached from second" in terminal.output, "leaving the second")
    assert terminal.leave() == 0
    hf.end("outer", "second")


# ---------------------------------------------------------------- agent socket


def test_the_agent_socket_inside_follows_the_newest_client(
    hf: Installation, tmp_path: Path
) -> None:
    agents = []
    for number in (1, 2):
        agent = socket.socket(socket.AF_UNIX)
        agent.bind(str(tmp_path / f"agent{number}"))
        agents.append(agent)
    hf.ready("agent", env={"SSH_AUTH_SOCK": str(tmp_path / "agent1")})
    inside = hf.ok("run", "agent", "--", "echo $SSH_AUTH_SOCK").out.strip()
    assert inside.startswith(str(hf.home)) and os.readlink(inside) == str(tmp_path / "agent1")
    terminal = attached(hf, "agent", env={"SSH_AUTH_SOCK": str(tmp_path / "agent2")})
    assert os.readlink(inside) == str(tmp_path / "agent2")
    assert hf.ok("run", "agent", "--", "echo $SSH_AUTH_SOCK").out.strip() == inside
    terminal.leave()
    attached(hf, "agent", env={"SSH_AUTH_SOCK": str(tmp_path / "nothere")}).leave()
    attached(hf, "agent").leave()
    assert os.readlink(inside) == str(tmp_path / "agent2"), "a client without an agent took it away"
    for agent in agents:
        agent.close()
    hf.end("agent")


# ---------------------------------------------------------------- observing, turns, sizes


def test_an_observer_cannot_type(hf: Installation, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    hf.new("obs", "--", sys.executable, INSIDE, "record", str(taken), "2")
    watcher = attached(hf, "obs", "--observe", see="READY", size=(80, 24))
    assert b"observing" in watcher.output
    watcher.send(b"zz")
    watcher.see("you only observe")
    terminal = attached(hf, "obs", see="READY")
    terminal.send(b"ok")
    terminal.see("DONE")
    watcher.see("DONE")
    assert taken.read_bytes() == b"ok"
    assert [o["observe"] for o in hf.get("obs")["operators"]] == [True, False]
    assert watcher.leave() == 0 and terminal.leave() == 0
    hf.end("obs")


def test_resizing_the_terminal_resizes_the_session(hf: Installation, tmp_path: Path) -> None:
    log = tmp_path / "sizes"
    hf.new("size", "--", sys.executable, INSIDE, "sizes", str(log))
    hf.wait("size", "text:SIZE 80x24")
    terminal = attached(hf, "size", size=(100, 30), see="SIZE 100x30")
    for size in ((120, 40), (61, 17)):
        terminal.resize(*size)
        terminal.see(f"SIZE {size[0]}x{size[1]}")
    for degenerate in ((0, 0), (1, 1), (1, 24), (80, 1), (4000, 3000)):
        terminal.resize(*degenerate)
    terminal.resize(90, 25)
    terminal.see("SIZE 90x25")
    terminal.leave()
    assert log.read_text().split() == ["80x24", "100x30", "120x40", "61x17", "90x25"]
    assert hf.get("size")["size"] == {"cols": 90, "rows": 25}, (
        "the size is kept when all viewers have left"
    )
    hf.end("size")


def test_the_size_follows_the_typing_operator_and_others_see_the_whole_screen(
    hf: Installation, tmp_path: Path
) -> None:
    hf.people("ann", "bob")
    hf.ready("mixed")
    hf.ok("run", "mixed", "--", "PS1='% '; clear")
    eventually(lambda: hf.get("mixed")["turn"] is None, "the turn to lapse")
    big = attached(hf, "mixed", "--as", "ann", size=(100, 30), see="%")
    eventually(lambda: hf.get("mixed")["size"] == {"cols": 100, "rows": 30}, "the first one's size")
    small = attached(hf, "mixed", "--as", "bob", size=(40, 10), see="%")
    assert hf.get("mixed")["size"] == {"cols": 100, "rows": 30}, (
        "a viewer that only looks changes nothing"
    )
    big.send("printf '%0100d' 7; stty size\r")
    big.see("30 100")
    assert "0" * 99 + "7" in big.rows()
    small.until(
        lambda: any("stty size" in r or "30 100" in r for r in small.rows()), "the session, panned"
    )
    assert all(len(r) <= 40 for r in small.rows())
    eventually(lambda: hf.get("mixed")["turn"] is None, "the turn to lapse")
    assert hf.get("mixed")["size"] == {"cols": 100, "rows": 30}, (
        "the size stays when the turn lapses"
    )
    small.send("clear; stty size\r")
    small.see("10 40")
    assert hf.get("mixed")["size"] == {"cols": 40, "rows": 10}
    big.see("10 40")
    eventually(lambda: hf.get("mixed")["turn"] is None, "the turn to lapse")
    big.resize(1, 1)
    big.resize(100, 30)
    big.send("clear; stty size\r")
    big.see("30 100")
    assert small.leave() == 0 and big.leave() == 0
    hf.end("mixed")


def test_a1_keys_of_another_operator_are_refused_and_said_so(
    fresh: Installation, tmp_path: Path
) -> None:
    fresh.configure("[turn]\nidle_s = 600\n")
    taken = tmp_path / "taken"
    fresh.people("ann", "bob")
    fresh.new("held", "--", sys.executable, INSIDE, "record", str(taken), "3")
    ann = attached(fresh, "held", "--as", "ann", see="READY")
    bob = attached(fresh, "held", "--as", "bob", see="READY")
    ann.send(b"a")
    eventually(lambda: taken.exists() and taken.read_bytes() == b"a", "the key")
    bob.send(b"b")
    bob.see("ann holds the turn")
    ann.send(b"a")
    assert ann.leave() == 0
    eventually(
        lambda: fresh.get("held")["turn"] is None, "the turn to be free when its holder has left"
    )
    bob.send(b"c")
    bob.see("DONE")
    assert taken.read_bytes() == b"aac"
    bob.leave()


# ---------------------------------------------------------------- the host comes and goes


@pytest.mark.smoke
def test_s4_attach_reconnects_by_itself_and_keys_arrive_once(
    hf: Installation, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    hf.new("again", "--", sys.executable, INSIDE, "record", str(taken), "600")
    terminal = attached(hf, "again", see="READY")
    sent = b""
    for kill in range(3):
        old = hf.host_pid
        for n in range(20):
            key = b"%d%02d," % (kill, n)
            terminal.send(key)
            sent += key
            if n == 9:
                os.kill(old, signal.SIGKILL)
        eventually(lambda sent=sent: taken.read_bytes() == sent, "every key, once")  # type: ignore[misc]
        assert hf.host_pid != old
    terminal.send(b"." * (600 - len(sent)))
    terminal.see("DONE")
    assert taken.read_bytes() == sent + b"." * (600 - len(sent))
    terminal.leave()
    hf.end("again")


def test_s4_a_host_replaced_in_place_is_not_noticed(hf: Installation) -> None:
    hf.ready("upgrade")
    terminal = attached(hf, "upgrade")
    pid = hf.host_pid
    os.kill(pid, signal.SIGHUP)
    terminal.send("echo af''ter\r")
    terminal.see("after")
    assert hf.host_pid == pid and alive(pid)
    assert not any("holdfast" in r for r in terminal.rows()[2:])
    assert terminal.leave() == 0
    hf.end("upgrade")


def test_a_session_that_ended_while_the_host_was_away_is_told(hf: Installation) -> None:
    made = hf.ready("died")
    terminal = attached(hf, "died")
    os.kill(hf.host_pid, signal.SIGKILL)
    os.kill(made["pid"], signal.SIGKILL)
    assert terminal.wait() == 0
    assert terminal.restored and b"died" in bytes(terminal.output).rpartition(b"\x1b[23;0t")[2]
    assert hf.get("died")["exit_code"] == 137


def test_the_keyboard_works_again_after_the_host_died_while_a_list_was_asked_for(
    hf: Installation,
) -> None:
    hf.ready("listing")
    terminal = attached(hf, "listing")
    pid = hf.host_pid
    os.kill(pid, signal.SIGSTOP)
    terminal.send(PREFIX + b"s")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid), "the host to die")
    terminal.until(
        lambda: hf.host_pid != pid and hf.get("listing")["operators"], "the attachment again"
    )
    terminal.send("\r\recho wo''rks\r")
    terminal.see("works")
    assert terminal.leave() == 0
    hf.end("listing")


def test_a_new_session_says_on_its_screen_how_to_leave_it(hf: Installation) -> None:
    terminal = hf.attach("new", "greeting")
    terminal.see("this is greeting; C-\\ d leaves it running")
    terminal.until(
        lambda: not any("this is greeting" in r for r in terminal.rows()), "the notice to go"
    )
    terminal.leave()
    hf.end("greeting")


def test_a_session_that_ended_before_its_first_screen_is_still_shown(hf: Installation) -> None:
    terminal = hf.attach("new", "brief", "--", "sh", "-c", "echo all of it; exit 7")
    assert terminal.wait() == 0
    assert b"all of it" in terminal.output and b"brief ended (exit code 7)" in terminal.output


def test_a_notice_does_not_wipe_the_list_of_sessions_nor_take_the_keys(hf: Installation) -> None:
    hf.ready("menu")
    terminal = attached(hf, "menu")
    terminal.send(PREFIX + b"~")
    terminal.see("no such command")
    terminal.send(PREFIX + b"s")
    terminal.see("choose a session")
    hf.ok("--as", "tester", "send", "menu", "echo more output", "--enter")
    hf.wait("menu", "text:(?m)^more output")
    assert any("choose a session" in r for r in terminal.rows())
    terminal.send(b"0")
    terminal.see("more output")
    terminal.send("echo ty''ped\r")
    terminal.see("typed")
    assert terminal.leave() == 0
    hf.end("menu")


def test_a_pasted_prefix_key_is_text(hf: Installation, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    data = b"\x1b[200~echo A" + PREFIX + b"d B\x1b[201~"
    hf.new("pasted", "--", sys.executable, INSIDE, "record", str(taken), str(len(data)))
    terminal = attached(hf, "pasted", see="READY")
    terminal.send(data)
    terminal.see("DONE")
    assert taken.read_bytes() == data
    terminal.leave()
    hf.end("pasted")


def test_s3_a_large_paste_into_a_slow_reader_arrives_whole(
    hf: Installation, tmp_path: Path
) -> None:
    """More than keeper and host hold: the user's terminal waits, no byte is dropped."""
    taken, gate = tmp_path / "taken", tmp_path / "gate"
    os.mkfifo(gate)
    data = b"".join(b"%07d " % i for i in range(400_000))
    program = (
        f"import os, tty; tty.setraw(0); print('READY', flush=True); open({str(gate)!r}).close()\n"
        f"f = open({str(taken)!r}, 'wb'); left = {len(data)}\n"
        "while left: d = os.read(0, 65536); f.write(d); left -= len(d)\n"
        "f.close(); print('DONE', flush=True)"
    )
    hf.new("slow", "--", sys.executable, "-c", program)
    terminal = attached(hf, "slow", see="READY")
    sender = threading.Thread(target=terminal.send, args=(data,), daemon=True)
    sender.start()
    eventually(
        lambda: hf.ok("view", "slow", "--format", "json").json["waiting"] is not None,
        "the host to answer beside it",
    )
    os.close(os.open(gate, os.O_WRONLY))
    terminal.see("DONE")
    sender.join(timeout=DEADLINE_S)
    assert difference(taken.read_bytes(), data) == ""
    terminal.leave()


def test_asking_twice_before_the_host_answers_is_no_fault(hf: Installation) -> None:
    hf.ready("twice")
    terminal = attached(hf, "twice")
    os.kill(hf.host_pid, signal.SIGSTOP)
    try:
        terminal.send(PREFIX + b"r" + PREFIX + b"r" + PREFIX + b"t" + PREFIX + b"t")
    finally:
        os.kill(hf.host_pid, signal.SIGCONT)
    terminal.send("echo he''re\r")
    terminal.see("here")
    assert terminal.leave() == 0
    hf.end("twice")


def test_s6_notices_of_attach_repeat_no_line_in_the_terminals_own_scrollback(
    fresh: Installation,
) -> None:
    """In tmux, whose history keeps screens that were cleared as a whole.

    A notice, help and a redraw leave each line there once.
    """
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    fresh.ready("once")
    fresh.ok("run", "once", "--", "for i in 1 2 3 4 5 6 7 8 9; do echo LINE-$i-OF-NINE; done")
    server = ["tmux", "-f", "/dev/null", "-S", str(fresh.user / "tmux")]

    def tmux(*words: str) -> str:
        return subprocess.run(
            [*server, *words],
            env=fresh.env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        ).stdout

    def shows(words: str, whole: bool = False) -> int:
        return tmux("capture-pane", "-p", "-t", "x", *(("-S", "-") if whole else ())).count(words)

    tmux(
        "new-session",
        "-d",
        "-s",
        "x",
        "-x",
        "80",
        "-y",
        "24",
        *(
            word.decode() if isinstance(word, bytes) else word
            for word in fresh.argv(("attach", "once"))
        ),
    )
    try:
        eventually(lambda: shows("LINE-9-OF-NINE"), "the screen")
        eventually(lambda: shows("attached") == 0, "the notice to go")
        for key in ("?", "r"):
            tmux("send-keys", "-t", "x", "C-\\", key)
            if key == "?":
                eventually(lambda: shows("Any key returns"), "help")
                tmux("send-keys", "-t", "x", "q")
            eventually(
                lambda: shows("LINE-9-OF-NINE") and not shows("Any key returns"), "the screen again"
            )
        fresh.ok("send", "once", "echo END-OF-IT", "--enter")
        eventually(lambda: shows("END-OF-IT") >= 2, "it goes on")
        assert [shows(f"LINE-{i}-OF-NINE", whole=True) for i in range(1, 10)] == [1] * 9, tmux(
            "capture-pane", "-p", "-t", "x", "-S", "-"
        )
    finally:
        tmux("kill-server")


def test_s3_detach_sends_clients_away_and_the_session_goes_on(hf: Installation) -> None:
    hf.people("dora")
    hf.people("reed", rights="read")
    hf.ready("away")
    mine, hers = attached(hf, "away"), attached(hf, "away", "--as", "dora")
    watching = attached(hf, "away", "--as", "reed")
    refused = hf.cli("--as", "reed", "detach", "away", "--others")
    assert refused.rc == 4 and "turn.seize" in refused.err
    assert "1 client of reed" in hf.ok("--as", "reed", "detach", "away").out, "one's own: always"
    assert watching.wait() == 0 and b"reed detached this terminal from away" in watching.output
    assert "1 client of dora" in hf.ok("detach", "away", "--others").out
    assert hers.wait() == 0 and hers.restored
    assert b"tester detached this terminal from away; it keeps running" in hers.output
    (left,) = hf.ask("who", session="away")["operators"]
    assert left["operator"] == "tester"
    assert hf.ok("detach", "away", "--client", left["client"][:8], "--json").json["detached"]
    assert mine.wait() == 0
    assert hf.get("away")["state"] == "detached"
    assert "nothing was detached" in hf.ok("detach", "away").out
    assert hf.cli("detach", "away", "--client", "beef").rc == 3
    sent = [e for e in hf.ask("events", session="away")["events"] if "sent_away" in e["event"]]
    assert [(e["operator"], e["of"]) for e in sent] == [
        ("reed", "reed"),
        ("tester", "dora"),
        ("tester", "tester"),
    ]
    hf.end("away")


def test_s3_a_client_that_does_not_leave_is_disconnected(hf: Installation) -> None:
    hf.ready("stuck")
    client = attached(hf, "stuck")
    client.signal(signal.SIGSTOP)
    assert "1 client" in hf.ok("detach", "stuck").out
    eventually(lambda: hf.get("stuck")["state"] == "detached", "the client to be disconnected")
    client.signal(signal.SIGCONT)
    assert client.wait() in (0, 4) and b"tester detached this" in client.output
    hf.end("stuck")


def test_s3_the_title_shows_the_session_and_the_writer_and_is_restored(
    fresh: Installation,
) -> None:
    fresh.people("bob")
    fresh.ready("named")
    eventually(lambda: fresh.get("named")["turn"] is None, "the turn to lapse")
    terminal = attached(fresh, "named")
    terminal.expect(rb"\x1b\]2;named: the turn is free")
    fresh.ok("--as", "bob", "seize", "named")
    terminal.expect(rb"\x1b\]2;named: bob writes")
    terminal.leave()
    assert bytes(terminal.output).rpartition(b"\x1b]2;")[2].count(b"\x1b[23;0t") == 1
