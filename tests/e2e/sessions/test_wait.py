"""`wait`: each condition with live programs, and no answer by guessing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.commands.results import the_error, the_line
from tests.support.installation import (
    DEADLINE_S,
    SHARE_PYTHON,
    SOON_S,
    Installation,
    eventually,
    installation,
)

SERVE = (
    "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler); "
    "print('port', s.server_port, flush=True); s.serve_forever()"
)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.ready("sh")
        yield made


def wait_for(hf: Installation, session: str, what: str) -> dict[str, object]:
    found: dict[str, object] = hf.ok(
        "wait", session, "--for", what, "--timeout", "120", "--json"
    ).json
    assert found["for"] == what and found["seen"]
    return found


def not_now(hf: Installation, session: str, what: str) -> str:
    """The condition does not hold: the wait ends at its limit and reports the present state."""
    error = the_error(hf.attempt("wait", session, "--for", what, "--timeout", "0.4", "--json"), 124)
    assert error["name"] == "timed_out" and error["retry_safe"] is True
    return str(error["message"])


def test_idle_command_and_working(hf: Installation) -> None:
    wait_for(hf, "sh", "idle")
    waiter = hf.start("wait", "sh", "--for", "command", "--timeout", "120", "--json")
    hf.under_way("wait", 1)
    gate = hf.gate("gate")
    hf.ok("send", "sh", f"cat {gate}; (exit 4)", "--enter")
    eventually(lambda: hf.view("sh")["waiting"]["foreground"] == f"cat {gate}", "the command")
    assert "cat" in not_now(hf, "sh", "idle")
    not_now(hf, "sh", "input")
    gate.open()
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == 0, err
    assert b'"exit_code": 4' in out
    wait_for(hf, "sh", "idle")


def test_input_is_a_program_that_reads(hf: Installation) -> None:
    hf.ok("send", "sh", "cat", "--enter")
    assert wait_for(hf, "sh", "input")["foreground"] == "cat"
    not_now(hf, "sh", "idle")
    not_now(hf, "sh", "secret")
    hf.ok("send", "sh", "--key", "C-d")
    wait_for(hf, "sh", "idle")
    not_now(hf, "sh", "input")


def test_secret_is_a_prompt_without_echo(hf: Installation) -> None:
    hf.ok("send", "sh", "read -s -p 'Password: ' pw", "--enter")
    wait_for(hf, "sh", "secret")
    not_now(hf, "sh", "input")
    hf.ok("send", "sh", "hunter2", "--enter")
    wait_for(hf, "sh", "idle")
    hf.ok("send", "sh", f"{sys.executable} -c 'import getpass; getpass.getpass()'", "--enter")
    wait_for(hf, "sh", "secret")
    hf.ok("send", "sh", "hunter3", "--enter")
    wait_for(hf, "sh", "idle")
    assert "hunter" not in hf.screen("sh") and "hunter" not in (hf.home / "host.log").read_text()


def test_text_on_the_screen_or_in_later_output(hf: Installation) -> None:
    hf.ok("run", "sh", "--", "echo on-the-''screen")
    assert wait_for(hf, "sh", "text:on-the-scr..n") == {
        **wait_for(hf, "sh", "text:on-the-scr..n"),
        "seen": "on-the-screen",
        "where": "screen",
    }
    waiter = hf.start(
        "wait", "sh", "--for", r"text:item \d+ of 5000\b", "--timeout", "120", "--json"
    )
    hf.under_way("wait", 1)
    hf.ok(
        "send",
        "sh",
        r"for i in $(seq 300 5000); do printf '\033[1mitem %d\033[0m of %d\n' $i 5''000; done; "
        r"clear",
        "--enter",
    )
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == 0 and b"of 5000" in out, err
    not_now(hf, "sh", "text:never said")
    the_error(hf.attempt("wait", "sh", "--for", "text:(", "--json"), 2)
    wait_for(hf, "sh", "idle")


def test_s2_an_anchor_means_a_line_of_later_output_too(hf: Installation) -> None:
    waiter = hf.start("wait", "sh", "--for", "text:^anchored$", "--timeout", "30", "--json")
    hf.under_way("wait", 1)
    hf.view("sh")  # answered after the look of the wait
    hf.ok("send", "sh", "echo anchored", "--enter")
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == 0, err
    assert json.loads(out)["seen"] == "anchored"


def test_text_that_begins_on_the_screen_and_ends_in_later_output(hf: Installation) -> None:
    hf.new("halves", "--", "sh", "-c", "stty raw -echo; echo READY; exec cat -v")
    hf.wait("halves", "text:READY")
    hf.ok("send", "halves", "first ha")
    hf.wait("halves", "text:first ha")
    waiting = hf.start("wait", "halves", "--for", "text:first half", "--json")
    hf.under_way("wait", 1)
    hf.view("halves")  # answered after the look of the wait
    hf.ok("send", "halves", "lf")
    out, err = waiting.communicate(timeout=DEADLINE_S)
    assert waiting.returncode == 0, err
    assert json.loads(out)["seen"] == "first half"
    hf.end("halves")


def since(hf: Installation, session: str, what: str, start: object) -> dict[str, object]:
    found: dict[str, object] = hf.ok(
        "wait",
        session,
        "--for",
        f"text:{what}",
        "--since",
        str(start),
        "--timeout",
        "120",
        "--json",
    ).json
    return found


def test_s2_text_since_an_offset_is_found_though_it_was_printed_before_and_stale_text_is_not(
    hf: Installation,
) -> None:
    hf.ok("run", "sh", "--", "echo sta''le")
    typed = hf.ok("send", "sh", "echo fre''sh; clear", "--enter", "--json").json["offset"]
    assert since(hf, "sh", "fresh", typed)["where"] == "output"
    wait_for(hf, "sh", "idle")
    ran = hf.ok("run", "sh", "--once", "since", "--json", "--", "echo from-a-''run; clear").json
    for start in (ran["output"]["start"], ran["output"]["ref"], ran["ref"]):
        assert since(hf, "sh", "from-a-r.n", start)["seen"] == "from-a-run"
        limited = ("--since", str(start), "--timeout", "0.4", "--json")
        for stale in ("stale", "fresh"):
            error = hf.attempt("wait", "sh", "--for", f"text:{stale}", *limited)
            assert the_error(error, 124)["name"] == "timed_out"
    # A text that began before the offset is not found, and one that comes later is.
    hf.ok("run", "sh", "--", "echo on-the-''screen")
    end = hf.get("sh")["output"]["end"]
    waiting = hf.start("wait", "sh", "--for", "text:on-the-screen", "--since", str(end), "--json")
    hf.under_way("wait", 1)
    hf.ok("run", "sh", "--", "echo on-the-''screen")
    assert waiting.wait(timeout=DEADLINE_S) == 0


def test_s8_text_since_a_run_is_found_by_the_next_host(hf: Installation) -> None:
    ran = hf.ok("run", "sh", "--json", "--", "echo before-the-''death; clear").json
    eventually(
        lambda: any(
            one["facts"].get("act") == ran["act"] for one in hf.ok("log", "sh", "--json").records
        ),
        "the act in the record",
    )
    os.kill(hf.host_pid, 9)
    assert since(hf, "sh", "before-the-death", ran["ref"])["seen"] == "before-the-death"


def test_s2_since_output_that_rolled_off_is_lost_with_the_range_that_is_kept(
    hf: Installation,
) -> None:
    def lost(start: object, code: int) -> dict[str, object]:
        refused = hf.attempt("wait", "sh", "--for", "text:x", "--since", str(start), "--json")
        return the_error(refused, code)

    first = hf.ok("run", "sh", "--json", "--", "echo one").json
    hf.ok("run", "sh", "--", "head -c 9000000 /dev/zero | tr '\\0' y | fold; echo")
    kept = hf.get("sh")["output"]
    for start in (0, first["output"]["ref"], first["ref"]):
        error = lost(start, 6)
        assert error["name"] == "lost" and "rolled off; kept are " in str(error["message"])
        assert f"kept are {kept['start']} to {kept['end']}" in str(error["message"])
    session = hf.get("sh")["id"]
    for wrong in (
        "x",
        "-1",
        "",
        10**12,
        f"hf:{session}",
        "hf:0123456789ab@1:0-1",
        hf.ok("send", "sh", "--key", "C-u", "--json").json["ref"],
    ):
        lost(wrong, 2)
    lost(f"hf:{session}@99:0-1", 6)
    lost(f"hf:{session}@1#999999", 6)
    refused = hf.attempt("wait", "sh", "--for", "idle", "--since", "0", "--json")
    assert "text:REGEX" in str(the_error(refused, 2)["recover"])


def test_port_is_one_that_the_session_listens_on(hf: Installation) -> None:
    hf.ready("server")
    hf.ok("send", "server", f'{sys.executable} -c "{SERVE}"', "--enter")
    seen = wait_for(hf, "server", r"text:port (\d+)\s")
    port = str(seen["seen"]).split()[1]
    found = wait_for(hf, "server", f"port:{port}")
    assert f":{port}" in str(found["seen"]) and isinstance(found["pid"], int)
    not_now(hf, "sh", f"port:{port}")  # a port of another session does not count for this session
    hf.end("server")


def test_exit_of_the_session_and_the_end_of_every_other_wait(hf: Installation) -> None:
    hf.ready("ends")
    waits = {
        what: hf.start("wait", "ends", "--for", what, "--json")
        for what in ("exit", "text:never", "port:1", "secret", "command")
    }
    hf.under_way("wait", len(waits))
    hf.ok("send", "ends", "exit 21", "--enter")
    for what, process in waits.items():
        out, err = process.communicate(timeout=DEADLINE_S)
        if what == "exit":
            assert process.returncode == 0 and b'"exit_code": 21' in out
        elif what == "command":
            assert process.returncode in (0, 3)
        else:
            assert process.returncode == 3 and b"ended" in err
    assert (
        wait_for(hf, "ends", "exit")["exit_code"] == 21
    )  # the event has happened: the answer comes at once
    the_error(hf.attempt("wait", "ends", "--for", "idle", "--json"), 3)


def test_a_pattern_that_would_never_end_blocks_no_other_client(hf: Installation) -> None:
    hf.quick("send", "sh", "echo " + "a" * 60 + "!", "--enter")
    error = the_error(
        hf.attempt("wait", "sh", "--for", "text:(a+)+$", "--timeout", "120", "--json"), 2
    )
    assert "takes too long" in error["message"]
    hf.wait("sh", "idle")


def test_invalid_conditions_are_reported(hf: Installation) -> None:
    for what in (
        "",
        "nonsense",
        "text:",
        "port:",
        "port:0",
        "port:65536",
        "port:²",
        "port:-1",
        "idle:x",
        "x" * 5000,
    ):
        assert (
            "idle, input, secret"
            in the_error(hf.attempt("wait", "sh", "--for", what, "--json"), 2)["recover"]
        )
    for seconds in ("-1", "nan", "inf", "x"):
        the_error(hf.attempt("wait", "sh", "--for", "idle", "--timeout", seconds, "--json"), 2)
    the_line(hf.attempt("wait", "nothere", "--for", "idle"), 3)
    assert "did not happen within 0.2 s" in the_line(
        hf.attempt("wait", "sh", "--for", "exit", "--timeout", "0.2"), 124
    )


def test_s4_a_wait_survives_the_death_of_the_host_and_keeps_its_limit(hf: Installation) -> None:
    waiter = hf.start("wait", "sh", "--for", "text:after-the-''death", "--timeout", "120", "--json")
    limited = hf.start("wait", "sh", "--for", "text:never", "--timeout", "3", "--json")
    hf.under_way("wait", 2)

    def over() -> bool:
        """A host that has both waits gets a second.

        A limit that began anew with each host would never pass.
        """
        eventually(
            lambda: limited.poll() is not None or hf.ask("stats")["under_way"].get("wait", 0) >= 2,
            "both to wait again",
        )
        try:
            limited.wait(1.0)
        except subprocess.TimeoutExpired:
            os.kill(hf.host_pid, 9)
            hf.ls()
            return False
        return True

    eventually(over, "the limit to pass")
    assert limited.returncode == 124
    hf.ok("run", "sh", "--", "echo after-the-\"''\"death")
    assert waiter.wait(timeout=DEADLINE_S) == 0


def test_patterns_that_no_matcher_takes_are_usage(hf: Installation) -> None:
    for pattern in ("a{99999999999}", "(" * 5000, "*"):
        assert hf.cli("wait", "sh", "--for", f"text:{pattern}", "--timeout", "1").rc == 2, pattern[
            :20
        ]


def test_a_wait_for_text_in_a_flood_leaves_the_host_to_others(fresh: Installation) -> None:
    """Under flood there is always more output to search: other requests are answered in between."""
    import time

    fresh.configure("[session]\nring_bytes = 134217728\n")
    fresh.new("flood", "--", "yes", "0123456789" * 6)
    waiter = fresh.start(
        "wait", "flood", "--for", "text:[0-9]{1,10}Z", "--timeout", "120"
    )  # some 10 ms for each piece
    fresh.under_way("wait", 1)
    slowest = 0.0
    for _ in range(40):
        begun = time.monotonic()
        fresh.ask("ping")
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < SOON_S
    assert waiter.poll() is None
    waiter.kill()
    fresh.end("flood")


def test_the_output_of_wait_cannot_act_on_the_terminal(hf: Installation) -> None:
    """The found text is the session's: line ends and C1 controls are shown, never obeyed."""
    hf.quick("run", "sh", "--", "printf 'al''pha\\nom''ega\\n'")
    assert hf.ok(
        "wait", "sh", "--for", "text:(?s)alpha.*omega", "--timeout", "120"
    ).out.splitlines() == ["alpha\\x0aomega"]
    waiter = hf.start("wait", "sh", "--for", "text:begin.*end", "--timeout", "120")
    hf.under_way("wait", 1)
    hf.quick("run", "sh", "--", "printf 'be''gin \\302\\23331m e''nd\\n'; clear")
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert (waiter.returncode, err) == (0, b"")
    assert out == b"begin \\x9b31m end\n"


def test_of_several_conditions_the_first_that_holds_is_told(hf: Installation) -> None:
    hf.ready("either")
    found = hf.ok(
        "wait",
        "either",
        "--for",
        "secret",
        "--for",
        "idle",
        "--for",
        "exit",
        "--timeout",
        "120",
        "--json",
    ).json
    assert found["for"] == "idle" and "prompt" in found["seen"]
    assert hf.ok("wait", "either", "--for", "text:never", "--for", "idle").out.startswith("idle: ")
    waiter = hf.start(
        "wait", "either", "--for", "secret", "--for", "text:never said", "--for", "input", "--json"
    )
    hf.under_way("wait", 1)
    hf.ok("send", "either", "cat", "--enter")
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == 0 and b'"for": "input"' in out, err
    late = the_error(
        hf.attempt(
            "wait", "either", "--for", "idle", "--for", "secret", "--timeout", "0.3", "--json"
        ),
        124,
    )
    assert "idle or secret did not happen" in late["message"] and "now: input" in late["message"]
    waiter, without = (
        hf.start("wait", "either", "--for", "secret", *more, "--json")
        for more in (("--for", "exit"), ("--for", "port:1"))
    )
    hf.under_way("wait", 2)
    hf.end("either")
    out, err = waiter.communicate(timeout=DEADLINE_S)
    assert waiter.returncode == 0 and b'"for": "exit"' in out, "its end is one of them"
    out, err = without.communicate(timeout=DEADLINE_S)
    assert without.returncode == 3 and b"cannot happen any more" in err
    assert hf.ok("wait", "either", "--for", "idle", "--for", "exit", "--json").json["for"] == "exit"
    the_error(hf.attempt("wait", "either", "--for", "idle", "--for", "nonsense", "--json"), 2)
    the_error(
        hf.attempt(
            "wait",
            "either",
            *(["--for", "idle"] * 1 + [w for n in range(17) for w in ("--for", f"port:{n + 1}")]),
            "--json",
        ),
        2,
    )


def test_a_halted_session_waits_for_nothing_but_to_be_resumed(hf: Installation) -> None:
    hf.ready("frozen")
    hf.ok("send", "frozen", "cat", "--enter")
    wait_for(hf, "frozen", "input")
    hf.ok("halt", "frozen")
    assert hf.view("frozen")["waiting"]["for"] == "halted"
    error = the_error(
        hf.attempt("wait", "frozen", "--for", "input", "--timeout", "0.4", "--json"), 124
    )
    assert "now: halted" in error["message"] and "resume frozen" in error["recover"]
    waiter = hf.start("wait", "frozen", "--for", "input", "--json")
    hf.under_way("wait", 1)
    hf.ok("resume", "frozen")
    assert waiter.wait(DEADLINE_S) == 0
    hf.end("frozen")


@pytest.mark.parametrize("how", ["127.0.0.1", "::1", "::", "0.0.0.0"])
@pytest.mark.parametrize("layout", ["plain", "contained"])
def test_a_port_by_any_address_held_by_a_daemon_that_left_the_terminal(
    hf: Installation, how: str, layout: str
) -> None:
    name = f"daemon-{layout}-{how.count(':')}-{how.count('.')}-{how[:1].strip(':') or 'x'}"
    contained = ["--contained", *SHARE_PYTHON] if layout == "contained" else []
    made = hf.cli("new", name, "--no-attach", "--json", *contained)
    if made.rc == 7:
        pytest.skip(f"no contained sessions here: {made.err}")
    family = "AF_INET6" if ":" in how else "AF_INET"
    code = (
        f"import os, socket; l = socket.socket(socket.{family}); l.bind(('{how}', 0)); l.listen(); "
        "print(l.getsockname()[1], flush=True); "
        "os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); l.accept()"
    )
    hf.wait(name, "idle")
    result = hf.cli("run", name, "--", f'{sys.executable} -c "{code}"')
    if "Cannot assign requested address" in result.out or "not supported" in result.out:
        pytest.skip("no IPv6 here")
    port = result.out.split()[0]
    found = wait_for(hf, name, f"port:{port}")
    assert f"{f'[{how}]' if ':' in how else how}:{port}" in str(found["seen"])
    assert found["act"] is None or str(found["act"]).startswith(str(hf.get(name)["ref"]))
    hf.end(name)
    assert not os.path.exists(f"/proc/{found['pid']}"), "and it is gone with its session"
