"""Every command of the surface: text for people, keys for programs, and the exit codes."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from tests.support.commands.results import the_error, the_line
from tests.support.installation import DEADLINE_S, Installation, alive, eventually

SESSION_KEYS = {
    "id",
    "name",
    "machine",
    "state",
    "liveness",
    "epoch",
    "created",
    "idle_s",
    "size",
    "operators",
    "turn",
    "output",
}
ID = re.compile(r"[0-9a-hjkmnp-tv-z]{12}")


# ---------------------------------------------------------------- up and down


@pytest.mark.smoke
def test_up_is_idempotent_and_says_where_to_go_next(hf: Installation) -> None:
    first = hf.ok("up", "--detach").out
    pid = hf.host_pid
    assert "starting the host" in first and "holdfast new" in first and str(hf.home) in first
    second = hf.ok("up", "--detach").out
    assert "starting" not in second and f"holdfast {__version__} is up" in second
    assert hf.host_pid == pid
    body = hf.ok("up", "--json").json
    assert (
        body["pid"] == pid
        and body["started"] is False
        and body["home"] == str(hf.home)
        and body["release"] == __version__
    )
    assert isinstance(body["sessions"], list)


@pytest.mark.smoke
def test_s4_down_leaves_sessions_running_and_up_brings_them_back(hf: Installation) -> None:
    made = hf.new("stays")
    assert "1 session keeps running" in hf.ok("down").out
    assert alive(made["pid"]) and alive(made["keeper"])
    eventually(lambda: hf.peer("nursery.sock") is None, "the nursery to go with the host")
    eventually(
        lambda: set(hf.processes()) == {made["pid"], made["keeper"]},
        "nothing but the sessions to be left",
    )
    assert hf.ok("down", "--json").json["pid"] is None
    assert "is not running" in hf.ok("down").out
    assert the_error(hf.attempt("ls", "--json"), 5)["retry_safe"] is True
    assert "holdfast up" in the_line(hf.attempt("ls"), 5)
    out = hf.ok("up", "--detach").out
    assert "stays" in out and "holdfast attach stays" in out
    again = hf.get("stays")
    assert (again["id"], again["pid"], again["keeper"], again["epoch"]) == (
        made["id"],
        made["pid"],
        made["keeper"],
        1,
    )
    hf.end("stays")


def test_a_session_that_has_just_ended_leaves_nothing_when_the_host_goes_down(
    hf: Installation,
) -> None:
    for n in range(5):
        made = hf.new("short", "--", "cat")
        if n % 2:
            hf.end("short")
        else:
            os.kill(made["pid"], 9)
            hf.wait("short", "exit")
        hf.quick("down")
        eventually(lambda: not hf.processes(), "everything to be gone")
        hf.quick("up", "--detach")
        assert hf.get("short")["exit_code"] in (129, 137)
        hf.quick("forget", "short")


def test_a_killed_host_is_started_again_by_the_next_client(hf: Installation) -> None:
    hf.ok("up", "--detach")
    made = hf.new("orphan")
    old = hf.host_pid
    os.kill(old, 9)
    eventually(lambda: not alive(old), "death of the host")
    assert [s["pid"] for s in hf.ls()] == [made["pid"]]
    assert hf.host_pid != old
    hf.end("orphan")


@pytest.mark.parametrize(
    "point", ["host.create.recorded", "host.create.spawned", "host.spawn.sent"]
)
def test_s4_new_makes_one_session_though_the_host_dies_while_making_it(
    fresh: Installation, point: str
) -> None:
    fresh.ok("up", "--detach", env={"HOLDFAST_PROBE": f"kill@{point}"})
    made = fresh.cli("new", "once", "--json")
    assert made.rc == 0, made
    assert [s["name"] for s in fresh.ls("--all") if s["state"] != "ended"] == ["once"]
    assert fresh.get("once")["id"] == made.json["id"]
    eventually(lambda: len(fresh.keepers()) == 1, "one keeper")


def test_s4_end_is_answered_though_the_host_is_replaced_meanwhile(fresh: Installation) -> None:
    fresh.new("ends", "--", "bash", "-c", "trap '' HUP; echo armed; sleep 1000; sleep 1000")
    fresh.wait("ends", "text:armed")
    ending = fresh.start("end", "ends", "--json")
    eventually(
        lambda: any(
            e["event"] == "session.end_asked" for e in fresh.ok("events", "ends", "--json").records
        ),
        "the request",
    )
    os.kill(fresh.host_pid, 9)
    out, err = ending.communicate(timeout=DEADLINE_S)
    assert ending.returncode == 0 and json.loads(out)["name"] == "ends", err
    assert fresh.get("ends")["state"] == "ended"


# ---------------------------------------------------------------- new


def test_new_prints_the_id(hf: Installation) -> None:
    out = hf.ok("new", "printed").out
    assert ID.fullmatch(out.strip())
    assert hf.get("printed")["id"] == out.strip()
    hf.end("printed")


def test_new_json_has_the_keys_of_ls_and_says_whether_it_existed(hf: Installation) -> None:
    made = hf.new("twice")
    assert made.keys() >= SESSION_KEYS and made["existed"] is False
    again = hf.ok("new", "-A", "twice", "--json").json
    assert again["id"] == made["id"] and again["existed"] is True
    assert "twice" in the_line(hf.attempt("new", "twice"), 4)
    assert "-A" in the_error(hf.attempt("new", "twice", "--json"), 4)["recover"]
    hf.end("twice")


def test_two_new_a_at_once_make_one_session(hf: Installation) -> None:
    both = [hf.start("new", "-A", "shared", "--json") for _ in range(3)]
    ids = {json.loads(p.communicate(timeout=DEADLINE_S)[0])["id"] for p in both}
    assert len(ids) == 1
    hf.end("shared")


def test_new_takes_cwd_env_size_and_a_program_with_arguments(
    hf: Installation, tmp_path: Path
) -> None:
    script = 'pwd; echo "$COLOUR"; stty size; for a; do echo "<$a>"; done; read x'
    made = hf.new(
        "full",
        "--cwd",
        str(tmp_path),
        "--env",
        "COLOUR=blue=green",
        "--size",
        "100x30",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "two words",
        "--json",
        "",
        "é",
    )
    assert (
        made["size"] == {"cols": 100, "rows": 30}
        and made["cwd"] == str(tmp_path)
        and made["argv"][0] == "sh"
    )
    hf.wait("full", "text:<é>")
    assert hf.screen("full").split("\n")[:7] == [
        str(tmp_path),
        "blue=green",
        "30 100",
        "<two words>",
        "<--json>",
        "<>",
        "<é>",
    ]
    hf.end("full")


def test_new_without_a_name_takes_everything_after_the_dashes_as_the_program(
    hf: Installation,
) -> None:
    made = hf.ok("new", "--json", "--", "sleep", "1000").json
    assert made["argv"] == ["sleep", "1000"] and made["name"].startswith("sleep-")
    hf.end(made["id"])


def test_new_takes_the_callers_environment_cleaned(hf: Installation) -> None:
    dirty = {
        "TMUX": "x",
        "STY": "y",
        "COLUMNS": "7",
        "HOLDFAST_SESSION": "zz",
        "MINE": "kept",
        "TERM": "screen",
        "NOTIFY_SOCKET": "/x",
    }
    made = hf.new("env", "--", "sh", "-c", "read x", env=dirty)
    inside = Path(f"/proc/{made['pid']}/environ").read_bytes().decode().split("\0")
    env = dict(item.split("=", 1) for item in inside if item)
    assert (
        env["MINE"] == "kept"
        and env["TERM"] == "xterm-256color"
        and env["HOLDFAST_SESSION"] == made["id"]
    )
    assert not {"TMUX", "STY", "COLUMNS", "NOTIFY_SOCKET"} & env.keys()
    assert env["HOLDFAST_HOME"] == str(hf.home)
    hf.end("env")


def test_new_refuses_malformed_arguments(hf: Installation) -> None:
    for args in (
        ("--size", "80"),
        ("--size", "0x0"),
        ("--size", "1x24"),
        ("--size", "²x24"),
        ("--size", "100000x24"),
        ("--env", "NOEQUALS"),
        ("--env", "=x"),
        ("--cwd", "/nonexistent/dir"),
        ("--", "/nonexistent/program"),
        ("--", "/etc/passwd"),
        ("--bogus",),
    ):
        result = hf.cli("new", "bad", *args)
        the_line(result, 2)
        assert the_error(hf.attempt("new", "bad", "--json", *args), 2)
    assert all(s["name"] != "bad" for s in hf.ls("--all")), "a session that never was is listed"


# ---------------------------------------------------------------- ls, rename, end, forget


def test_ls_json_has_the_promised_keys(hf: Installation) -> None:
    hf.new("listed")
    [session] = [s for s in hf.ls() if s["name"] == "listed"]
    assert session.keys() >= SESSION_KEYS
    assert (
        session["liveness"].keys() >= {"process", "host", "relay"}
        and session["liveness"]["process"] == "alive"
    )
    assert session["state"] == "detached" and session["size"] == {"cols": 80, "rows": 24}
    assert (
        session["output"].keys() >= {"start", "end"}
        and session["turn"] is None
        and session["operators"] == []
    )
    assert isinstance(session["created"], float) and isinstance(session["idle_s"], float)
    hf.ok("send", "listed", "x")
    turn = hf.get("listed")["turn"]
    assert turn["holder"] == "tester" and abs(turn["since"] - session["created"]) < 60
    hf.end("listed")


def test_ls_for_people_shows_what_the_surface_promises(hf: Installation) -> None:
    made = hf.new("seen")
    head, *rows = hf.ok("ls").out.splitlines()
    assert head.split() == [
        "ID",
        "NAME",
        "STATE",
        "LIVENESS",
        "OPERATORS",
        "TURN",
        "AGE",
        "IDLE",
        "SIZE",
        "OUTPUT",
        "MACHINE",
    ]
    row = next(r for r in rows if made["id"] in r).split()
    assert (
        row[1:4] == ["seen", "detached", "alive"]
        and row[8] == "80x24"
        and re.fullmatch(r"\d[\d.]* (B|kB|MB|GB)", f"{row[9]} {row[10]}")
    )
    assert row[11] == os.uname().nodename
    assert "\x1b" not in head
    hf.end("seen")


def test_ended_sessions_stay_with_code_screen_and_reason_until_forgotten(hf: Installation) -> None:
    hf.new("over", "--", "sh", "-c", "echo last words; exit 3")
    assert (
        hf.ok("wait", "over", "--for", "exit", "--timeout", "120", "--json").json["exit_code"] == 3
    )
    assert all(s["name"] != "over" for s in hf.ls())
    ended = hf.get("over")
    assert ended.keys() >= SESSION_KEYS and ended["state"] == "ended" and ended["exit_code"] == 3
    assert ended["liveness"]["process"] == "ended" and ended["output"]["end"] > 0
    assert "last words" in hf.screen("over")
    assert hf.ok("view", "over", "--json").json.keys() >= hf_view_keys()
    assert "ended (3)" in hf.ok("ls", "-a").out
    assert "last words" in hf.ok("view", ended["id"][:6]).out
    for command in (
        ("send", "over", "x"),
        ("end", "over"),
        ("attach", "over"),
        ("rename", "over", "other"),
    ):
        assert "ended" in hf.cli(*command).err or command[0] == "attach"
    assert ended["id"] in hf.ok("forget", "over").out
    assert the_error(hf.attempt("forget", "over", "--json"), 3)
    assert the_error(hf.attempt("view", "over", "--json"), 3)
    assert all(s["id"] != ended["id"] for s in hf.ls("--all"))


def hf_view_keys() -> set[str]:
    return {
        "id",
        "name",
        "state",
        "size",
        "lines",
        "ansi",
        "cursor",
        "alternate",
        "title",
        "modes",
        "offset",
        "exit_code",
        "waiting",
    }


def test_forget_refuses_a_session_that_runs(hf: Installation) -> None:
    hf.new("running")
    assert "end it first" in the_line(hf.attempt("forget", "running"), 4)
    hf.end("running")
    hf.ok("forget", "running")


def test_rename_changes_the_name_and_nothing_else(hf: Installation) -> None:
    made, other = hf.new("before"), hf.new("taken")
    assert "is now after" in hf.ok("rename", "before", "after").out
    assert hf.get("after")["id"] == made["id"] and hf.get("after")["pid"] == made["pid"]
    renamed = hf.ok("rename", made["id"], "after", "--json").json
    assert (renamed["id"], renamed["name"]) == (made["id"], "after") and renamed["recorded"][
        "seq"
    ] > 0
    the_error(hf.attempt("rename", "after", "taken", "--json"), 4)
    the_error(hf.attempt("rename", "before", "x", "--json"), 3)
    the_error(hf.attempt("rename", "after", "-x", "--json"), 2)
    os.kill(hf.host_pid, 9)
    assert hf.get("after")["id"] == made["id"], "the name is not durable"
    hf.end("after", other["id"])


def test_end_states_the_signal_that_did_it(hf: Installation) -> None:
    hf.new("soft")
    hf.new(
        "hard", "--", "bash", "-c", "trap '' HUP TERM; echo armed; while :; do read -t 1000; done"
    )
    hf.wait("hard", "text:armed")
    assert hf.ok("end", "soft", "--json").json["signal"] == "SIGHUP"
    gone = hf.ok("end", "hard", "--json").json
    assert (
        gone["signal"] == "SIGKILL"
        and gone["exit_code"] == 137
        and gone["reason"] == "killed by SIGKILL"
    )


def test_a_name_is_free_as_soon_as_its_session_has_ended(hf: Installation) -> None:
    for n in range(5):
        hf.new("again", "--", "sh", "-c", f"read x; exit {n}")
        if n % 2:
            hf.end("again")
        else:
            hf.quick("send", "again", "--enter")
            hf.wait("again", "exit")
    assert len([s for s in hf.ls("--all") if s["name"] == "again"]) == 5
    for _ in range(5):
        hf.quick("forget", "again")


def test_end_continues_past_a_session_that_does_not_exist(hf: Installation) -> None:
    hf.new("one")
    hf.new("two")
    assert "nothere" in the_line(hf.attempt("end", "one", "nothere", "two"), 3)
    assert {"one", "two"}.isdisjoint(s["name"] for s in hf.ls())


def test_a_session_is_addressed_by_name_id_and_unique_prefix(hf: Installation) -> None:
    made = hf.new("addressed")
    for text in ("addressed", made["id"], made["id"][:7]):
        assert hf.ok("who", text, "--json").json["id"] == made["id"]
    for text in ("", "nothere", made["id"] + "x", "A" * 5000, "\x1b[31m", "../x"):
        assert the_error(hf.attempt("who", text, "--json"), 3)
        assert "\x1b" not in hf.cli("who", text).err
    hf.end("addressed")


# ---------------------------------------------------------------- send, view, read, who


def test_the_id_of_an_ended_session_is_not_taken_as_the_prefix_of_a_name(hf: Installation) -> None:
    """The id begins by chance like another session's name, which has three characters.

    Ending the first twice does not end the other: three characters never stand for an id.
    """
    living = hf.new("living", "--", "cat")
    name = living["id"][:3]
    hf.new(name, "--", "cat")
    hf.end(name)
    for command in ("end", "view", "forget"):
        result = hf.cli(command, name)
        assert result.rc == (3 if command == "end" else 0), (command, result)
    assert hf.cli("who", name).rc == 3
    assert hf.ok("who", living["id"][:4], "--json").json["id"] == living["id"]
    hf.end("living")


def test_send_types_text_and_keys(hf: Installation) -> None:
    hf.ready("typed")
    assert hf.ok("send", "typed", "echo $((6*7))").out == ""
    sent = hf.ok("send", "typed", "--enter", "--json").json
    assert sent["bytes"] == 1 and sent["ref"].startswith(f"hf:{sent['id']}@1#")
    hf.wait("typed", "text:(?m)^42$")
    hf.wait("typed", "idle")
    hf.ok(
        "send", "typed", "echo up", "--key", "Home", "--key", "C-k", "--key", "Up", "--key", "Enter"
    )
    eventually(lambda: hf.screen("typed").split("\n").count("42") == 2, "the line before, again")
    hf.ok("send", "typed", "-", stdin=b"echo from-stdin\r")
    hf.wait("typed", "text:(?m)^from-stdin$")
    the_error(hf.attempt("send", "typed", "--json"), 2)
    assert (
        "Escape" in the_error(hf.attempt("send", "typed", "--key", "Nokey", "--json"), 2)["recover"]
    )
    the_error(hf.attempt("send", "nothere", "x", "--json"), 3)
    hf.end("typed")


def test_send_refuses_a_line_that_the_terminal_would_cut(hf: Installation) -> None:
    hf.new("canon", "--", "cat")
    hf.wait("canon", "input")
    error = the_error(hf.attempt("send", "canon", "x" * 5000, "--json"), 7)
    assert "4095" in error["message"] and "run" in error["recover"]
    hf.end("canon")


def test_send_paste_is_bracketed_when_the_program_asked_for_it(hf: Installation) -> None:
    hf.new(
        "paste",
        "--",
        "sh",
        "-c",
        "stty raw -echo; printf '\\033[?2004hready'; dd bs=1 count=18 2>/dev/null | od -An -c; "
        "read x",
    )
    hf.wait("paste", "text:ready")
    hf.ok("send", "paste", "two\nli", "--paste")
    hf.ok("wait", "paste", "--for", r"text:2   0   0   ~   t   w   o  \\n", "--timeout", "120")
    hf.end("paste")


def test_view_formats(hf: Installation) -> None:
    hf.new(
        "looked",
        "--",
        "sh",
        "-c",
        r"printf '\033]0;a title\007plain \033[31mred\033[0m\n\033[?2004h'; read x",
    )
    hf.wait("looked", "text:red")
    hf.wait("looked", "input")
    assert hf.ok("view", "looked").raw == b"plain red\n"
    assert (
        b"\x1b[" in hf.ok("view", "looked", "--format", "ansi").raw
        and b"red" in hf.ok("view", "looked", "--format", "ansi").raw
    )
    body = hf.ok("view", "looked", "--format", "json").json
    assert body == {**hf.ok("view", "looked", "--json").json}
    assert body.keys() >= hf_view_keys()
    assert (
        body["cursor"] == {"x": 0, "y": 1, "visible": True}
        and body["title"] == "a title"
        and body["alternate"] is False
    )
    assert (
        body["modes"]["bracketed_paste"] is True
        and body["lines"][0].rstrip() == "plain red"
        and len(body["lines"]) == 24
    )
    assert body["waiting"]["for"] == "input" and body["waiting"]["foreground"]
    the_error(hf.attempt("view", "looked", "--format", "pdf", "--json"), 2)
    hf.end("looked")


def test_view_history_of_many_wide_lines_arrives(hf: Installation) -> None:
    """10 MB of scrollback is more than one frame may carry: the newest lines come."""
    hf.new(
        "wide",
        "--size",
        "1000x24",
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 9000 ]; do printf '%0999d\\n' $i; i=$((i+1)); done; echo end; read x",
    )
    hf.wait("wide", "text:(?m)^end$")
    body = hf.ok("view", "wide", "--json", "--history", "9000").json
    assert body["history"][-1].strip("0") and len(body["history"]) > 1000
    numbers = [int(line) for line in body["history"]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and numbers[-1] >= 8900
    hf.end("wide")


def test_s5_read_gives_exact_bytes_from_an_offset(hf: Installation) -> None:
    """Raw means raw: including sequences that viewers' terminals must not see."""
    wanted = b"one\r\ntwo \x1b[c\x1b[6n\x1b]52;c;eA==\x07\xff\xfe three\r\n"
    (hf.user / "raw").write_bytes(wanted.replace(b"\r\n", b"\n"))
    hf.new("raw", "--", "sh", "-c", "stty -echo; cat raw; read x; read x; echo more")
    hf.wait("raw", "text:three")
    assert hf.ok("read", "raw").raw == wanted
    assert hf.ok("read", "raw", "--from", "5").raw == wanted[5:]
    records = hf.ok("read", "raw", "--json").records
    assert b"".join(base64.b64decode(r["data"]) for r in records) == wanted
    assert (
        records[0]["offset"] == 0
        and records[-1]["end"] == len(wanted)
        and all(r["gap"] is None for r in records)
    )
    the_error(hf.attempt("read", "raw", "--from", "99999", "--json"), 2)
    the_error(hf.attempt("read", "raw", "--from", "-1", "--json"), 2)
    follower = hf.start("read", "raw", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.read(len(wanted)) == wanted
    hf.ok("send", "raw", "\r\r")
    rest, _ = follower.communicate(timeout=DEADLINE_S)
    assert rest == b"more\r\n" and follower.returncode == 0


def test_s5_a_read_of_rolled_off_output_fails_and_gives_the_range(fresh: Installation) -> None:
    fresh.configure("[session]\nring_bytes = 65536\n")
    fresh.new(
        "rolls", "--", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo end; read x"
    )
    fresh.wait("rolls", "text:(?m)^end$")
    kept = eventually(
        lambda: (o := fresh.get("rolls")["output"])["start"] > 0 and o, "the ring to roll"
    )
    result = fresh.cli("read", "rolls", "--from", "0")
    assert f"0 to {kept['start']}" in the_line(result, 6)
    assert len(result.raw) == kept["end"] - kept["start"]
    result = fresh.cli("read", "rolls", "--from", "0", "--json")
    assert result.rc == 6
    assert result.records[0]["gap"] == {"start": 0, "end": kept["start"]}
    assert result.records[-1]["error"]["code"] == 6
    whole = fresh.ok("read", "rolls").raw
    assert len(whole) == kept["end"] - kept["start"]


def test_who_shows_operators_and_turn(hf: Installation) -> None:
    hf.ready("who")
    said = hf.ok("who", "who").out.splitlines()
    assert (
        said[:2] == ["nobody is attached", "turn: free"]
        and said[2].startswith("not sandboxed: ")
        and "can reach its keys" in said[2]
    )
    terminal = hf.attach("who", size=(90, 25))
    terminal.expect(r"\$ ")
    body = hf.ok("who", "who", "--json").json
    assert [(o["operator"], o["modality"], o["observe"], o["size"]) for o in body["operators"]] == [
        ("tester", "cli", False, {"cols": 90, "rows": 25})
    ]
    assert body["turn"] is None
    at = len(terminal.output)
    terminal.send("x")
    terminal.expect("x", at)
    out = hf.ok("who", "who").out
    assert "tester" in out and "90x25" in out and "turn: tester" in out
    terminal.leave()
    hf.end("who")


# ---------------------------------------------------------------- turn, identity


def test_a1_a_second_operator_is_refused_while_the_turn_is_held(fresh: Installation) -> None:
    fresh.configure("[turn]\nidle_s = 600\n")
    fresh.people("ann", "bob")
    fresh.new("contended", "--", "cat")
    fresh.ok("--as", "ann", "send", "contended", "a", "--enter")
    error = the_error(fresh.attempt("--as", "bob", "send", "contended", "b", "--json"), 4)
    assert (
        error["name"] == "turn_held" and "ann" in error["message"] and error["retry_safe"] is True
    )
    assert "ann" in the_line(fresh.attempt("send", "contended", "b", env={"HOLDFAST_AS": "bob"}), 4)
    assert the_error(fresh.attempt("turn", "contended", "hand", "bob", "--as", "bob", "--json"), 4)
    assert fresh.ok("--as=ann", "turn", "contended", "release").out == "the turn is free\n"
    assert fresh.ok("turn", "contended", "request", "--as", "bob").out == "the turn is bob's\n"
    fresh.ok("--as", "bob", "send", "contended", "b")
    for bad in ("", "-x", "a b", "é", "x" * 65):
        assert fresh.cli("--as", bad, "ls").rc == 2, bad
    assert fresh.cli("--as").rc == 2


def test_a2_the_turn_lapses_after_the_configured_time(fresh: Installation) -> None:
    fresh.configure("[turn]\nidle_s = 0.3\n")
    fresh.people("ann", "bob")
    fresh.new("lapses", "--", "cat")
    fresh.ok("--as", "ann", "send", "lapses", "a", "--enter")
    eventually(lambda: fresh.cli("--as", "bob", "send", "lapses", "b").rc == 0, "the turn to lapse")


# ---------------------------------------------------------------- events, resolve


def test_s9_every_change_is_an_event(hf: Installation) -> None:
    made = hf.new("eventful", "--", "sh", "-c", "exit 5")
    hf.wait("eventful", "exit")
    events = eventually(
        lambda: (
            (e := hf.ok("events", "eventful", "--json").records)
            and e[-1]["event"] == "session.exited"
            and e
        ),
        "the end",
    )
    assert [e["event"] for e in events] == ["session.started", "session.exited"]
    assert all(e["session"] == made["id"] and e["time"] and e["number"] for e in events)
    assert events[-1]["exit_code"] == 5 and (events[-1]["before"], events[-1]["after"]) == (
        "detached",
        "ended",
    )
    assert "session.exited" in hf.ok("events", "eventful").out
    assert len(hf.ok("events", "--limit", "1", "--json").records) == 1
    the_error(hf.attempt("events", "nothere", "--json"), 3)


def test_events_follow_misses_nothing_between_history_and_live(hf: Installation) -> None:
    follower = hf.start("events", "--follow", "--json")
    assert follower.stdout is not None
    first = json.loads(follower.stdout.readline())
    made = [hf.new(f"follow-{i}") for i in range(3)]
    hf.end(*(m["id"] for m in made))
    numbers: list[int] = [first["number"]]
    seen: list[dict[str, Any]] = []
    while (
        len(
            [
                e
                for e in seen
                if e["event"] == "session.exited" and e["session"] in {m["id"] for m in made}
            ]
        )
        < 3
    ):
        seen.append(json.loads(follower.stdout.readline()))
        numbers.append(seen[-1]["number"])
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), (
        "an event is missing or doubled"
    )


def test_s8_references_resolve_to_live_ended_or_unknown(hf: Installation) -> None:
    made = hf.new("refd", "--", "cat")
    sent = hf.ok("send", "refd", "x", "--json").json
    ref = made["ref"]
    live = hf.ok("resolve", ref, "--json").json
    assert live["known"] and live["state"] == "live" and live["session"]["id"] == made["id"]
    assert "live, here" in hf.ok("resolve", ref).out
    assert hf.ok("resolve", sent["ref"], "--json").json["act"] == "applied"
    eventually(lambda: hf.get("refd")["output"]["end"] >= 1, "echo")
    assert hf.ok("resolve", f"{ref}:0-1", "--json").json["kept"] is True
    assert hf.ok("resolve", f"{ref}:0-999999", "--json").json["kept"] is False
    assert hf.ok("resolve", f"hf:{made['id']}@7", "--json").json["state"] == "another incarnation"
    hf.end("refd")
    ended = hf.ok("resolve", ref, "--json").json
    assert ended["state"] == "ended" and ended["exit_code"] == 129
    assert "ended with 129" in hf.ok("resolve", ref).out
    hf.ok("forget", "refd")
    unknown = hf.cli("resolve", ref, "--json")
    assert unknown.rc == 3 and unknown.json["known"] is False
    assert "no longer known" in hf.cli("resolve", ref).out
    for bad in ("", "hf:", "hf:short", f"{ref}#", f"{ref}:9-3", "x" * 9000):
        the_error(hf.attempt("resolve", bad, "--json"), 2)


# ---------------------------------------------------------------- doctor, config


def test_doctor_states_each_problem_its_reason_and_the_remedy(hf: Installation) -> None:
    findings = hf.ok("doctor", "--json").json
    items = findings if isinstance(findings, list) else findings["findings"]
    assert len(items) > 5
    assert "\x1b" not in hf.ok("doctor").out


def test_config_show_prints_values_and_where_they_come_from(fresh: Installation) -> None:
    assert "does not exist" in fresh.ok("config", "show").out
    fresh.configure('[attach]\nprefix = "C-b"\n')
    values = {v["key"]: v for v in fresh.ok("config", "show", "--json").json}
    assert values["attach.prefix"]["value"] == "C-b" and values["attach.prefix"]["source"] == str(
        fresh.home / "config.toml"
    )
    assert values["turn.idle_s"]["source"] == "default"
    assert "from the file" in fresh.ok("config", "show").out
    the_error(fresh.attempt("config", "show", "--bogus", "--json"), 2)
    the_error(fresh.attempt("config", "set", "--json"), 2)


# ---------------------------------------------------------------- the frame around all commands


def test_errors_as_json_are_where_errors_go_and_where_json_is_read(hf: Installation) -> None:
    """On both streams of a real process; once if both are one file."""
    result = hf.cli("who", "nothere", "--json")
    assert (
        result.rc == 3
        and result.json == json.loads(result.err)
        and result.json["error"]["code"] == 3
    )
    result = hf.cli("run", "nothere", "--json", "--", "true")
    assert (
        result.rc == 255
        and result.json == json.loads(result.err)
        and result.json["error"]["code"] == 3
    )
    argv = hf.argv(("who", "nothere", "--json"))
    one = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=hf.env)
    assert (
        one.stdout.count(b"\n") == 1
        and json.loads(one.stdout) == hf.cli("who", "nothere", "--json").json
    )


def test_usage_errors_are_typed(hf: Installation) -> None:
    """More of them in tests/faces, without a new process for each."""
    assert "did you mean attach" in the_line(hf.attempt("atach"), 2)
    assert the_error(hf.attempt("atach", "--json"), 2)["name"] == "usage"
    the_error(hf.attempt("read", "s", "--from", "x", "--json"), 2)
    empty = hf.cli()
    assert empty.rc == 2 and "usage: holdfast" in empty.out


def test_a_closed_output_pipe_is_not_an_error(hf: Installation) -> None:
    process = hf.start("--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=DEADLINE_S) in (0, -13)


def test_output_that_cannot_be_written_is_a_typed_error(hf: Installation) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(hf.argv(("--help",)), stdout=full, stderr=subprocess.PIPE, env=hf.env)
    assert (
        done.returncode == 5 and b"Traceback" not in done.stderr and b"No space left" in done.stderr
    )


def test_odd_bytes_in_names_and_directories_do_not_break_listings(
    hf: Installation, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\x1b[31m \n'\"$(x)"
    os.mkdir(odd)
    done = subprocess.run(
        hf.argv(("new", "odd", "--json", "--cwd", odd)), capture_output=True, env=hf.env
    )
    assert done.returncode == 0, done.stderr
    assert os.readlink(f"/proc/{json.loads(done.stdout)['pid']}/cwd".encode()) == odd
    assert os.fsencode(hf.get("odd")["cwd"]) == odd
    assert "\x1b" not in hf.ok("ls").out
    latin = hf.ok("ls", "--json", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert any(s["name"] == "odd" for s in latin.json)
    hf.end("odd")


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 6, 7, 124, 255])
def test_each_exit_code_of_the_surface_is_provoked_somewhere(code: int) -> None:
    """The codes are a promise: a test of this directory asserts each one."""
    text = "".join(p.read_text() for p in Path(__file__).parents[1].rglob("test_*.py"))
    patterns = {0: r"\.ok\(", 255: r"255"}
    assert re.search(
        patterns.get(code, rf"the_(?:error|line)\((?:[^()]|\([^()]*\))*, {code}\b"), text
    ), code


# ---------------------------------------------------------------- unknown outcomes


def test_p1_an_act_that_is_said_to_be_safe_to_repeat_was_not_done(hf: Installation) -> None:
    """A stopped keeper is asked before any input is sent to it."""
    made = hf.new("stopped", "--", "cat")
    os.kill(made["keeper"], signal.SIGSTOP)
    try:
        eventually(
            lambda: hf.get("stopped")["liveness"]["process"] == "unknown",
            "the stopped keeper to be unknown",
        )
        error = the_error(hf.attempt("send", "stopped", "once", "--enter", "--json"), 5)
        assert error["retry_safe"] is True and "keeper" in error["message"]
    finally:
        os.kill(made["keeper"], signal.SIGCONT)
    hf.ok("send", "stopped", "again", "--enter")
    hf.wait("stopped", "text:again[\\s\\S]*again")
    assert "once" not in hf.screen("stopped")
    hf.end("stopped")


def test_idleness_outlives_the_host(fresh: Installation) -> None:
    fresh.new("quiet", "--", "sh", "-c", "echo said; exec sleep 1000")
    fresh.wait("quiet", "text:said")
    eventually(lambda: fresh.get("quiet")["idle_s"] > 2.5, "two seconds and a half of quiet")
    os.kill(fresh.host_pid, signal.SIGKILL)
    assert fresh.get("quiet")["idle_s"] > 2.5


def test_a_home_that_is_named_from_here_is_the_hosts_home_too(fresh: Installation) -> None:
    made = fresh.ok("ls", "--json", env={"HOLDFAST_HOME": "relative"}, cwd=fresh.base)
    assert made.json == [] and (fresh.base / "relative/run/host.sock").exists()
    fresh.ok("down", env={"HOLDFAST_HOME": "relative"}, cwd=fresh.base)
