"""`run` with input: bytes from a pipe or a file, beside the terminal (S2, P4, A9)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.stdin import Source
from holdfast.model.errors import OutcomeUnknown
from holdfast.model.limits import UPSTREAM_WINDOW_BYTES
from holdfast.wire import frames
from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.peers.hostile_client import Wire

SHELLS = [shell for shell in ("bash", "zsh", "dash") if shutil.which(shell)]
BINARY = bytes(range(256)) * 5 + b"no end of line"
STREAM_BYTES = 100_000_000
HOST_GROWTH_KIB = 48 * 1024  # far below the stream


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 0.5\n") as made:
        for shell in SHELLS:
            made.ready(shell, "--", shell)
        yield made


def host_peak_kib(hf: Installation) -> int:
    status = Path(f"/proc/{hf.host_pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("shell", SHELLS)
def test_s2_the_command_reads_exactly_the_bytes_of_the_pipe(hf: Installation, shell: str) -> None:
    assert hf.ok("run", shell, "--", "cat | sha256sum", stdin=BINARY).out.split()[0] == (
        hashlib.sha256(BINARY).hexdigest()
    )
    several = "read first\necho got $first\ncat"
    assert hf.ok("run", shell, "--", several, stdin=b"one\ntwo\n").out == "got one\ntwo\n"
    assert hf.ok("run", shell, "--", "cd /; v=kept; cat >/dev/null", stdin=b"x").rc == 0
    kept = hf.ok("run", shell, "--", 'test -t 0 && echo "$PWD $v"')
    assert kept.out == "/ kept\n", "the shell keeps its state and its terminal"


def test_s2_the_command_of_a_contained_session_reads_the_pipe(hf: Installation) -> None:
    hf.new("cage", "--contained", "--cwd", "/tmp", "--", "bash")
    assert hf.ok("run", "cage", "--", "cat", stdin=b"through the wall").out == "through the wall"


def test_s2_a_large_input_streams_and_is_not_held_in_memory(hf: Installation) -> None:
    before = host_peak_kib(hf)
    zeros = subprocess.Popen(["head", "-c", str(STREAM_BYTES), "/dev/zero"], stdout=subprocess.PIPE)
    assert zeros.stdout is not None
    with zeros.stdout:
        run = hf.start("run", "bash", "--", "wc -c", stdin=zeros.stdout.fileno())
    out, err = run.communicate(timeout=DEADLINE_S)
    assert (run.returncode, out.split()) == (0, [str(STREAM_BYTES).encode()]), err
    assert zeros.wait(DEADLINE_S) == 0
    assert host_peak_kib(hf) - before < HOST_GROWTH_KIB


def test_s2_an_open_pipe_does_not_hold_up_a_command_that_ends(hf: Installation) -> None:
    """The pipe stays open and silent, or full: a command that does not read it ends as usual."""
    run = hf.start("run", "bash", "--", "sh -c 'exit 3'", stdin=subprocess.PIPE)
    assert run.wait(DEADLINE_S) == 3
    endless = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    assert endless.stdout is not None
    with endless.stdout:
        run = hf.start("run", "bash", "--", "head -n 1", stdin=endless.stdout.fileno())
    assert run.communicate(timeout=DEADLINE_S)[0] == b"y\n" and run.returncode == 0
    assert endless.wait(DEADLINE_S) == -signal.SIGPIPE


def test_s2_a_loop_over_a_file_goes_on_after_a_command_that_does_not_read(
    hf: Installation, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\nthree\n")
    with lines.open("rb") as file:
        assert os.read(file.fileno(), 4) == b"one\n"
        run = hf.start("run", "bash", "--", "true", stdin=file.fileno())
        assert run.wait(DEADLINE_S) == 0
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 4, "nothing was read"
        run = hf.start("run", "bash", "--", "head -c 4", stdin=file.fileno())
        assert run.communicate(timeout=DEADLINE_S)[0] == b"two\n"


def test_s2_without_input_the_command_reads_the_terminal(hf: Installation) -> None:
    assert hf.ok("run", "bash", "--", "test -t 0; echo $?").out == "0\n", "/dev/null is no input"
    assert hf.ok("run", "bash", "-n", "--", "test -t 0; echo $?", stdin=b"kept").out == "0\n"
    assert hf.ok("run", "bash", "--", "test -t 0; echo $?", stdin=b"passed").out == "1\n"


def test_a9_a_host_that_dies_does_not_cut_the_input_off_silently(
    hf: Installation, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    command = f"head -c 5 >{began}; cat >/dev/null; echo end"
    run = hf.start("run", "bash", "--json", "--", command, stdin=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write(b"first")
    run.stdin.flush()
    eventually(lambda: began.exists() and began.read_bytes() == b"first", "the first bytes")
    os.kill(hf.host_pid, signal.SIGKILL)
    assert run.wait(DEADLINE_S) == 255
    assert run.stdout is not None
    error = json.loads(run.stdout.read())["error"]
    assert error["name"] == "lost" and not error["retry_safe"], error
    assert "only a part, at most 5 bytes" in error["message"], error
    assert hf.ok("run", "bash", "--", "cat", stdin=b"afterwards").out == "afterwards"


def test_p1_the_record_says_that_the_command_read_input_and_how_much(hf: Installation) -> None:
    assert hf.ok("run", "bash", "--", "cat >/dev/null", stdin=b"12345").rc == 0
    entries = hf.ok("log", "bash", "--limit", "10", "--json").records
    assert [e["facts"]["stdin"] for e in entries if "stdin" in e["facts"]][-1] == {
        "bytes": 5,
        "complete": True,
    }
    assert "cat >/dev/null <stdin" in hf.ok("log", "bash").out
    assert json.loads(hf.ok("log", "verify", "bash", "--json").out)["ok"] is True


def test_p4_a_held_run_takes_no_input_and_the_approver_is_told_of_it(
    hf: Installation, tmp_path: Path
) -> None:
    hf.people("bot", rights="execute,new", kind="agent")
    hf.new("held", "--contained", "--cwd", "/tmp", "--", "bash")
    script = tmp_path / "script"
    script.write_text("echo unseen")
    with script.open("rb") as file:
        run = hf.start(
            "--as", "bot", "run", "held", "--json", "--", "sudo cat", stdin=file.fileno()
        )
        [question] = eventually(lambda: hf.ok("approvals", "--json").json, "the question")
        assert "reads input" in question["caution"], question
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
        hf.ok("deny", question["id"])
        assert run.wait(DEADLINE_S) == 255
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


class Greedy(Source):
    """Sends more than the host allows, once it allows some."""

    def wait(self, sock: Any) -> bytes | None:
        if not self.wanted:
            return super().wait(sock)
        self._over = True
        assert self._number is not None and self._allowed == UPSTREAM_WINDOW_BYTES
        return frames.stdin(self._number, 0, bytes(UPSTREAM_WINDOW_BYTES + 1))


def test_s2_a_client_that_sends_more_input_than_allowed_is_disconnected(hf: Installation) -> None:
    client = Wire(hf, "tester", 501)
    nothing = os.open(os.devnull, os.O_RDONLY)
    client.source = Greedy(nothing)
    with pytest.raises(OutcomeUnknown, match="input at 0"):
        client.request("run", session="bash", text="cat >/dev/null", stdin=True)
    os.close(nothing)
    assert hf.ok("run", "bash", "--", "echo fine").out == "fine\n"
    assert the_error(hf.cli("run", "nowhere", "--json", "--", "cat", stdin=b"x"), 3, rc=255)
