"""`run`: one discrete command in the live shell, with exact output and exit code."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkers.history import difference
from tests.support.commands.results import the_error, the_line
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

SHELLS = ("bash", "zsh", "dash")


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 0.5\n") as made:
        for shell in SHELLS:
            made.new(shell, "--", shell)
        yield made


def background(hf: Installation, session: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a run beside the test, and wait until its command is in the foreground."""
    process = hf.start("run", session, "--", *words)
    program = words[0].partition(";")[0]
    eventually(
        lambda: hf.view(session)["waiting"]["foreground"].startswith(program),
        "the command to start",
    )
    return process


def test_run_works_at_once_after_new_and_after_another_run(hf: Installation) -> None:
    """A user need not know when the shell is ready: `run` waits for a starting or busy shell."""
    hf.new("quick")
    for n in range(5):
        assert hf.ok("run", "quick", "--", "echo", str(n)).out == f"{n}\n"
    hf.ok("send", "quick", "true", "--enter")
    assert hf.ok("run", "quick", "--", "echo after a typed line").out == "after a typed line\n"
    hf.end("quick")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.smoke
def test_run_gives_output_and_exit_code_exactly(hf: Installation, shell: str) -> None:
    assert (
        hf.ok(
            "run",
            shell,
            "--",
            "printf",
            "%s\\n",
            "two words",
            "it's",
            '"quoted"',
            "$HOME",
            "a;b",
            "*",
            "é",
        ).out
        == 'two words\nit\'s\n"quoted"\n$HOME\na;b\n*\né\n'
    )
    assert hf.ok("run", shell, "--", "x=7; cd /; export Y=z").raw == b""
    assert hf.ok("run", shell, "--", 'echo "$x $Y $PWD"').out == "7 z /\n"
    for code in (0, 1, 2, 127, 255):
        assert hf.cli("run", shell, "--", f"(exit {code})").rc == code
    assert (
        hf.cli("run", shell, "--", "echo no newline at the end | tr -d '\\n'").raw
        == b"no newline at the end"
    )
    assert hf.cli("run", shell, "--", "nosuchcommand").rc == 127
    assert hf.cli("run", shell, "--", "sh -c 'kill -9 $$'").rc == 137
    heredoc = "cat <<'E'\nline $x `y` \\ \"q\"\n\ttab\nE\nfor i in 1 2\ndo echo $i\ndone\nfalse"
    result = hf.cli("run", shell, "--", heredoc)
    assert (result.rc, result.out) == (1, 'line $x `y` \\ "q"\n\ttab\n1\n2\n')
    assert (
        hf.cli(
            "run", shell, "-", stdin=b"echo from stdin\nexit_code() { return 9; }\nexit_code\n"
        ).rc
        == 9
    )
    assert hf.ok("run", shell, "--", 'cd -- "$HOME"').raw in (b"", str(hf.user).encode() + b"\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_run_takes_a_script_of_100_kb(hf: Installation, shell: str) -> None:
    script = "n=0\n" + "".join(f"n=$((n+1)) # {i:060d}\n" for i in range(1400)) + "echo $n\n"
    assert len(script) > 100_000
    assert hf.ok("run", shell, "-", stdin=script.encode()).out == "1400\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_run_ctrl_c_is_130_and_the_shell_goes_on(hf: Installation, shell: str) -> None:
    process = background(hf, shell, "sleep 1000")
    hf.ok("send", shell, "--key", "C-c")
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert hf.ok("run", shell, "--", "echo alive").out == "alive\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_run_that_asks_is_answered_by_send(hf: Installation, shell: str) -> None:
    process = background(hf, shell, sys.executable, "-c", "print('name?'); print('hello', input())")
    hf.wait(shell, "input")
    hf.ok("send", shell, "you", "--enter")
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert out == b"name?\nyou\nhello you\n"  # the terminal echoes the input


@pytest.mark.parametrize("shell", SHELLS)
def test_run_survives_a_change_of_the_prompt(hf: Installation, shell: str) -> None:
    hf.ok("run", shell, "--", "PS1='new prompt $ '")
    assert hf.ok("run", shell, "--", "echo still").out == "still\n"
    hf.ok("run", shell, "--", "PS1=")
    assert hf.ok("run", shell, "--", "echo no prompt at all").out == "no prompt at all\n"
    hf.ok("run", shell, "--", "PS1='$ '")


@pytest.mark.parametrize("shell", SHELLS)
def test_run_exit_and_exec_end_the_session_with_their_code(hf: Installation, shell: str) -> None:
    hf.new(f"{shell}-exit", "--", shell)
    result = hf.cli("run", f"{shell}-exit", "--", "echo bye; exit 42")
    assert (result.rc, result.out) == (42, "bye\n"), result
    eventually(lambda: hf.get(f"{shell}-exit")["state"] == "ended", "the end")
    assert hf.get(f"{shell}-exit")["exit_code"] == 42
    hf.new(f"{shell}-exec", "--", shell)
    result = hf.cli("run", f"{shell}-exec", "--", "exec sh -c 'echo replaced; exit 17'")
    assert (result.rc, result.out) == (17, "replaced\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_run_output_is_byte_exact(hf: Installation, shell: str, tmp_path: Path) -> None:
    """Random bytes hold every sequence that a viewer's terminal must not see, and every control."""
    source = tmp_path / "random"
    source.write_bytes(random.Random(shell).randbytes(5_000_000 if shell == "bash" else 500_000))
    hf.new(f"{shell}-exact", "--", shell)
    result = hf.ok("run", f"{shell}-exact", "--", f"cat {source}")
    assert difference(result.raw, source.read_bytes()) == ""
    hf.end(f"{shell}-exact")


def test_run_100_mb_complete(hf: Installation) -> None:
    lines = b"".join(b"%07d 0123456789abcdef0123456789abcdef\n" % i for i in range(100_000))
    wanted, count = hashlib.sha256(), 25
    (hf.user / "big").write_bytes(lines)
    for _ in range(count):
        wanted.update(lines)
    with subprocess.Popen(
        hf.argv(("run", "bash", "--", f"for i in $(seq {count}); do cat {hf.user}/big; done")),
        cwd=hf.user,
        env=hf.env,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        got, size = hashlib.sha256(), 0
        while data := process.stdout.read(1 << 20):
            got.update(data)
            size += len(data)
    assert (process.returncode, size, got.hexdigest()) == (
        0,
        len(lines) * count,
        wanted.hexdigest(),
    )
    assert size > 100_000_000


def test_run_json_has_the_code_the_output_and_its_reference(hf: Installation) -> None:
    result = hf.cli(
        "run",
        "bash",
        "--json",
        "--",
        "echo out; echo err >&2; exit_with() { return 3; }; exit_with",
    )
    body = result.json
    assert result.rc == 3 == body["exit_code"]
    assert body["data"] == "out\nerr\n" and body["gap"] == [] and body["lost"] == 0
    assert hf.ok("resolve", body["output"]["ref"], "--json").json["kept"] is True
    start, end = body["output"]["start"], body["output"]["end"]
    assert hf.ok("read", "bash", "--from", str(start)).raw[: end - start] == b"out\r\nerr\r\n"


def test_run_refuses_with_the_name_of_the_foreground_program(hf: Installation) -> None:
    hf.new("busy")
    for program, quit_by in (
        (f"{sys.executable} -q", ("exit()", "--enter")),
        ("vim -u NONE -N", ("--key", "Escape", "--key", ":", "--key", "q", "--key", "Enter")),
    ):
        hf.wait("busy", "idle")
        hf.ok("send", "busy", program, "--enter")
        hf.wait("busy", "input")
        result = hf.cli("run", "busy", "--", "echo", "x")
        assert program.split()[0] in the_line(result, 255) and result.raw == b""
        error = the_error(hf.attempt("run", "busy", "--json", "--", "echo x"), 4, rc=255)
        assert (
            error["name"] == "busy"
            and error["retry_safe"] is True
            and program.split()[0] in error["message"]
        )
        hf.ok("send", "busy", *quit_by)
    hf.wait("busy", "idle")
    assert hf.ok("run", "busy", "--", "echo x").out == "x\n"
    hf.ok("send", "busy", "half a com")
    assert (
        "typed"
        in the_error(hf.attempt("run", "busy", "--json", "--", "echo x"), 4, rc=255)["message"]
    )
    hf.end("busy")


def test_run_in_a_session_without_a_shell_cannot_be_done(hf: Installation) -> None:
    hf.new("cat", "--", "cat")
    assert (
        "cat" in the_error(hf.attempt("run", "cat", "--json", "--", "echo x"), 7, rc=255)["message"]
    )
    hf.end("cat")


def test_run_without_an_exit_code_is_255_and_says_why(hf: Installation) -> None:
    assert "nothere" in the_line(hf.attempt("run", "nothere", "--", "true"), 255)
    the_error(hf.attempt("run", "nothere", "--json", "--", "true"), 3, rc=255)
    the_error(hf.attempt("--as", "x", "run", "nothere", "--json", "--", "true"), 3, rc=255)
    for args in (
        (),
        ("--",),
        ("--", ""),
        ("--", "  "),
        ("--timeout", "-1", "--", "true"),
        ("--timeout", "nan", "--", "true"),
    ):
        the_error(hf.attempt("run", "bash", "--json", *args), 2)


def test_run_timeout_leaves_the_command_running(hf: Installation) -> None:
    hf.ready("slow")
    result = hf.cli("run", "slow", "--timeout", "5", "--", "echo begun; sleep 1000")
    assert result.rc == 255 and result.out == "begun\n" and "still runs" in result.err
    assert the_error(hf.attempt("run", "slow", "--json", "--", "true"), 4, rc=255)["name"] == "busy"
    hf.ok("send", "slow", "--key", "C-c")
    hf.wait("slow", "idle")
    error = the_error(
        hf.attempt("run", "slow", "--timeout", "0.3", "--json", "--", "sleep 1000"), 124, rc=255
    )
    assert error["name"] == "timed_out"
    assert error["retry_safe"] is False  # a retry would run the command a second time
    hf.end("slow")


def test_two_runs_at_once_do_not_mix(hf: Installation) -> None:
    """One of them runs, the others are refused; no output or exit code gets mixed up."""
    hf.ready("race")
    many = [
        hf.start(
            "run",
            "race",
            "--json",
            "--",
            f"sleep 0.3; echo {n}; exit_with() {{ return {n}; }}; exit_with",
        )
        for n in range(1, 7)
    ]
    done = [(n, *p.communicate(timeout=DEADLINE_S), p.returncode) for n, p in enumerate(many, 1)]
    ran = [(n, json.loads(out)) for n, out, _, code in done if code != 255]
    assert ran, done
    for n, body in ran:
        assert body["exit_code"] == n and body["data"] == f"{n}\n"
    for _, _, err, code in done:
        assert code != 255 or json.loads(err)["error"]["name"] == "busy"
    hf.end("race")


def test_a_run_whose_client_is_killed_goes_on_and_gives_its_turn_back(hf: Installation) -> None:
    hf.ready("left")
    gate = hf.gate("left.gate")
    process = background(hf, "left", f"cat {gate}; echo finished")
    process.kill()
    process.communicate()
    eventually(lambda: hf.get("left")["turn"] is None, "the turn to be free")
    gate.open()
    hf.wait("left", "text:(?m)^finished")
    hf.people("other")
    assert hf.ok("--as", "other", "run", "left", "--", "echo next").out == "next\n"
    hf.end("left")


def test_s4_a_run_survives_the_death_of_the_host(hf: Installation) -> None:
    """No byte twice, none missing, the right exit code; also longer than a client waits."""
    hf.ready("through")
    marker = hf.user / "go"
    process = hf.start(
        "run",
        "through",
        "--",
        f"for i in $(seq 20000); do echo $i; done; while [ ! -e {marker} ]; do sleep 0.05; done; "
        "for i in $(seq 20000); do echo $i; done; exit_with() { return 5; }; exit_with",
    )
    assert process.stdout is not None
    wanted = b"".join(b"%d\n" % i for i in range(1, 20001))
    for _ in range(2):
        eventually(
            lambda: hf.view("through")["waiting"]["foreground"].startswith("sleep"), "the middle"
        )
        os.kill(hf.host_pid, signal.SIGKILL)
        hf.ls()
    marker.touch()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5, err
    assert difference(out, wanted + wanted) == ""
    hf.end("through")


def test_run_that_ends_the_session_still_gives_all_of_its_output(hf: Installation) -> None:
    """Also to a slow reader: the session is over, its last output is not."""
    hf.new("last")
    process = hf.start("run", "last", "--", "head -c 6000000 /dev/zero | tr '\\0' x; exit 9")
    hf.wait("last", "exit")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, len(out), set(out)) == (9, 6_000_000, {ord("x")}), err


def test_keys_that_a_pager_took_leave_no_unfinished_line(hf: Installation) -> None:
    """`q` ended the pager and is on no line; the shell is as ready as before."""
    hf.ready("pager")
    hf.ok("send", "pager", "less -X /etc/passwd", "--enter")
    hf.wait("pager", "text:root")
    eventually(
        lambda: "less" in hf.ok("view", "pager", "--format", "json").json["waiting"]["foreground"],
        "less to read",
    )
    hf.ok("send", "pager", "q")
    hf.wait("pager", "idle")
    assert hf.ok("run", "pager", "--", "echo after it").out == "after it\n"
    hf.end("pager")


def test_a7_text_typed_ahead_that_the_shell_has_now_is_not_run_into(hf: Installation) -> None:
    hf.ready("ahead")
    gate = hf.gate("ahead.gate")
    hf.ok("send", "ahead", f"cat {gate}", "--enter")
    hf.ok("send", "ahead", "rm -rf precious")
    gate.open()
    hf.wait("ahead", "idle")
    error = the_error(hf.attempt("run", "ahead", "--json", "--", "echo x"), 4, rc=255)
    assert error["name"] == "busy"
    hf.ok("send", "ahead", "--key", "C-c")
    hf.end("ahead")


def test_flow_control_is_not_typing(hf: Installation) -> None:
    hf.ready("flow")
    gate = hf.gate("flow.gate")
    hf.ok("send", "flow", f"cat {gate}", "--enter")
    hf.ok("send", "flow", "--key", "C-s", "--key", "C-q")
    gate.open()
    hf.wait("flow", "idle")
    assert hf.ok("run", "flow", "--", "echo on").out == "on\n"
    hf.end("flow")


def test_s4_a_host_that_dies_while_a_command_runs_leaves_the_shell_ready(hf: Installation) -> None:
    """A line that was entered is no half of a line, whichever host looks."""
    hf.ready("ready")
    gate = hf.gate("ready.gate")
    process = background(hf, "ready", f"cat {gate}; echo finished")
    os.kill(hf.host_pid, signal.SIGKILL)
    gate.open()
    assert process.wait(timeout=DEADLINE_S) == 0
    assert hf.ok("run", "ready", "--", "echo next").out == "next\n"
    hf.ok("send", "ready", f"cat {gate}", "--enter")
    os.kill(hf.host_pid, signal.SIGKILL)
    gate.open()
    hf.wait("ready", "idle")
    assert hf.ok("run", "ready", "--", "echo again").out == "again\n"
    hf.end("ready")


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash"])
def test_the_typed_trigger_of_a_run_does_not_stay_on_the_screen(
    hf: Installation, shell: str
) -> None:
    """Also where the prompt leaves no room on its line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name = f"clean-{shell}"
    hf.ready(name, "--size", "40x12", "--", shell)
    for text in ("echo one", "PS1='a prompt of nearly all of the line > '", "echo two"):
        hf.ok("run", name, "--", text)
        hf.wait(name, "idle")
    lines = [line for line in hf.view(name)["lines"] if line]
    assert lines[:2] == ["run> echo one", "one"] and not any("_hf" in line for line in lines), lines
    assert lines[-3:-1] == ["run> echo two", "two"], lines
    hf.end(name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "dash"])
def test_a_run_does_not_erase_output_in_front_of_the_prompt(hf: Installation, shell: str) -> None:
    """Output without a newline at its end shares a line with the prompt and the typed trigger."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name = f"unfinished-{shell}"
    hf.ready(name, "--size", "40x24", "--", shell)
    wide = "x" * 35  # so that the trigger begins on this line and ends on the next
    for text in ("printf abc", f"printf {wide}", "printf 'a\\rb'", "echo one"):
        hf.ok("run", name, "--", text)
        hf.wait(name, "idle")
    lines = [line for line in hf.view(name)["lines"] if line]
    assert lines[0] == "run> printf abc" and lines[1].rstrip("%#") == "abc", lines
    assert lines[2:4] == [f"run> printf {wide}"[:40], f"run> printf {wide}"[40:]], lines
    assert lines[4].rstrip("%#") == wide, lines
    assert lines[5] == "run> printf 'a\\rb'", lines
    assert lines[6].startswith("b") and lines[-3:-1] == ["run> echo one", "one"], lines
    hf.end(name)
