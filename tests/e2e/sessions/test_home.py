"""The home in every bad state: a typed error with the remedy, no loss, and recovery."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.results import the_error
from tests.support.installation import DEADLINE_S, Installation, alive, eventually, installation
from tests.support.ordinary_user import OrdinaryUser, ordinary_user


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("bad")) as made:
        yield made


# ---------------------------------------------------------------- the directory


def test_a_home_that_others_can_reach_is_refused(made: Installation) -> None:
    made.home.mkdir(mode=0o755)
    error = the_error(made.attempt("ls", "--json"), 7)
    assert "0755" in error["message"] and error["recover"] == f"chmod 700 {made.home}"
    os.chmod(made.home, 0o700)
    made.ok("ls")
    os.chmod(made.home / "run", 0o777)
    os.kill(made.host_pid, signal.SIGKILL)
    assert "run" in the_error(made.attempt("ls", "--json"), 7)["message"]
    os.chmod(made.home / "run", 0o700)


def test_a_shared_directory_is_not_advised_to_be_closed(made: Installation) -> None:
    made.home.mkdir()
    os.chmod(made.home, 0o1777)
    assert "chmod" not in the_error(made.attempt("ls", "--json"), 7)["recover"]
    os.chmod(made.home, 0o700)


@pytest.mark.parametrize("what", ["file", "below a file", "dangling link", "loop"])
def test_a_home_that_is_no_directory_is_refused(made: Installation, what: str) -> None:
    if what == "file":
        made.home.write_text("")
    elif what == "below a file":
        (made.base / "plain").write_text("")
        made.env["HOLDFAST_HOME"] = str(made.base / "plain" / "hf")
    elif what == "dangling link":
        made.home.symlink_to(made.base / "nowhere" / "at" / "all")
    else:
        made.home.symlink_to(made.home)
    for command in (("ls",), ("new", "x"), ("up",), ("run", "x", "--", "true")):
        result = made.cli(*command)
        assert (
            result.rc in (5, 7, 255)
            and "Traceback" not in result.err
            and len(result.err.splitlines()) == 2
        ), result


def test_a_home_behind_a_link_and_with_a_very_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 60 for _ in range(4)])
    deep.mkdir(parents=True)
    (tmp_path / "base").mkdir()
    with installation(tmp_path / "base", home=deep / "hf") as made:
        assert len(str(made.home)) > 250
        session = made.new("deep")
        assert made.ok("run", "deep", "--", "echo $HOLDFAST_HOME").out.strip() == str(made.home)
        os.kill(made.host_pid, signal.SIGKILL)
        assert made.get("deep")["pid"] == session["pid"]
        terminal = made.attach("deep")
        terminal.see("$")
        assert terminal.leave() == 0
        made.end("deep")


# ---------------------------------------------------------------- stale files, other hosts


def test_one_host_per_home_is_enforced(made: Installation) -> None:
    made.ok("up", "--detach")
    pid = made.host_pid
    second = subprocess.run(
        [sys.executable, "-m", "holdfast.host.main"],
        env=made.env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode == 3 and "another host" in second.stderr
    assert made.host_pid == pid and made.cli("ls").rc == 0
    many = [made.start("up", "--json", env={}) for _ in range(4)]
    assert all(p.wait(timeout=DEADLINE_S) == 0 for p in many)
    assert made.host_pid == pid


def test_many_clients_that_all_start_the_host_get_one(made: Installation) -> None:
    many = [made.start("new", f"n{i}", "--json") for i in range(6)]
    for process in many:
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    eventually(
        lambda: (
            [pid for pid, words in made.processes().items() if "holdfast.host.main" in words]
            == [made.host_pid]
        ),
        "those that were too late to leave",
    )
    assert len(made.ls()) == 6


def test_stale_sockets_and_locks_do_not_lie(made: Installation) -> None:
    """Stale sockets and locks.

    A dead host's socket, a lock file with the pid of a living process, sockets of dead keepers,
    files that are no sockets.
    """
    made.home.mkdir(mode=0o700)
    run = made.home / "run"
    run.mkdir(mode=0o700)
    (run / "host.lock").write_text(f"{os.getpid()}\n")  # reused by this very process
    (run / "nursery.lock").write_text("1\n")
    for name in ("host.sock", "nursery.sock", "0123456789ab.keeper"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(run / name))
    (run / "abcdefghjkmn.keeper").write_text("not a socket")
    (run / "directory000.keeper").mkdir()
    (run / "s").mkdir()
    (run / "s" / "leftover").mkdir()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # the wrong kind of socket
    listening.bind(str(run / "stream000000.keeper"))
    listening.listen()
    session = made.new("works")
    assert made.ok("run", "works", "--", "echo fine").out == "fine\n"
    assert made.host_pid != os.getpid()
    assert not (run / "0123456789ab.keeper").exists() and not (run / "s" / "leftover").exists()
    states = {s["id"]: s["state"] for s in made.ls()}
    assert states.pop(session["id"]) == "detached"
    assert set(states.values()) <= {"unknown"}
    listening.close()
    made.end("works")


def test_a_keeper_that_does_not_answer_is_unknown_and_blocks_no_other(made: Installation) -> None:
    """S2: an unreachable session is unknown, never its last answer; it is back when it answers."""
    stuck, good = made.new("stuck"), made.new("good")
    os.kill(stuck["keeper"], signal.SIGSTOP)
    os.kill(made.host_pid, signal.SIGKILL)
    sessions = {s["name"]: s for s in made.ls()}
    assert sessions["good"]["pid"] == good["pid"] and sessions["good"]["state"] == "detached"
    assert (
        sessions["stuck"]["state"] == "unknown"
        and sessions["stuck"]["liveness"]["process"] == "unknown"
    )
    assert "unknown" in made.ok("ls").out
    assert the_error(made.attempt("who", "stuck", "--json"), 5)["retry_safe"] is True
    the_error(made.attempt("new", "stuck", "--json"), 4)
    os.kill(stuck["keeper"], signal.SIGCONT)
    again = eventually(
        lambda: next(
            (s for s in made.ls() if s["id"] == stuck["id"] and s["state"] == "detached"), None
        ),
        "its keeper's answer",
    )
    assert again is not None and again["pid"] == stuck["pid"] and again["name"] == "stuck"
    os.kill(stuck["keeper"], signal.SIGSTOP)
    os.kill(made.host_pid, signal.SIGKILL)
    made.ls()
    os.kill(stuck["keeper"], signal.SIGKILL)
    eventually(lambda: made.get("stuck")["epoch"] == 2, "its next incarnation")


def test_a_lost_keeper_is_said_so(made: Installation) -> None:
    lost = made.new("lost")
    os.kill(lost["keeper"], signal.SIGKILL)
    eventually(lambda: made.get("lost")["epoch"] == 2, "its next incarnation")
    said = made.ok("events", "lost").out
    assert "lost: its keeper died" in said and "session.re_established" in said


# ---------------------------------------------------------------- the database


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "middle", "row"])
def test_a_corrupt_database_is_put_aside_and_sessions_are_found_again(
    made: Installation, damage: str
) -> None:
    live = made.new("live")
    for n in range(30 if damage == "middle" else 0):
        made.quick("rename", live["id"], f"live{n}")
    made.quick("rename", live["id"], "live")
    path = made.home / "state.db"
    made.ok("down")
    data = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(os.urandom(len(data)))
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2 + 100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "middle":
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))
    else:
        import apsw

        db = apsw.Connection(str(path))
        db.execute('UPDATE sessions SET body = \'{"id": 1, "surprise"\'')
        db.close()
    if damage in (
        "garbage",
        "truncated",
        "middle",
    ):  # the rights are lost with the file, and do not fall to the first user
        refused = made.attempt("up", "--detach")
        assert refused.rc == 4 and "operator recover" in refused.err
        assert "admin" in made.ok("operator", "recover").out
    made.ok("up", "--detach")
    again = made.get("live")
    assert (again["id"], again["pid"], again["state"], again["argv"]) == (
        live["id"],
        live["pid"],
        "detached",
        live["argv"],
    )
    assert made.ok("run", "live", "--", "echo alive").out == "alive\n"
    aside = list(made.home.glob("state.db.unreadable-*"))
    assert bool(aside) == (damage in ("garbage", "truncated", "middle"))
    assert all(p.stat().st_mode & 0o077 == 0 for p in made.home.iterdir())
    made.end("live")


def test_a_database_of_a_newer_release_is_left_alone(made: Installation) -> None:
    import apsw

    made.ok("up", "--detach")
    made.ok("down")
    db = apsw.Connection(str(made.home / "state.db"))
    db.execute("PRAGMA user_version=99")
    db.close()
    assert "newer release" in the_error(made.attempt("up", "--json"), 5)["message"]
    assert not list(made.home.glob("state.db.unreadable-*"))


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[turn\n", "config.toml"),
        ("[turn]\nidle_s = 'x'\n", "turn.idle_s must be float"),
        ("[turn]\nidle_s = true\n", "must be float"),
        ("[turn]\nidle_s = -1\n", "between"),
        ("[turn]\nidle = 3\n", "unknown option turn.idle"),
        ("stray = 1\n", "is not inside a section"),
        ("[session]\nring_bytes = 1\n", "between"),
        ("[session]\nring_bytes = 1.5\n", "must be int"),
        ("\xff\xfe", "config.toml"),
    ],
)
def test_errors_in_the_configuration_are_usage_with_the_place(
    made: Installation, text: str, says: str
) -> None:
    made.configure("")
    (made.home / "config.toml").write_bytes(text.encode("latin-1"))
    for command in (("config", "show"), ("new", "x")):
        error = the_error(made.attempt(*command, "--json"), 2)
        assert says in error["message"] and str(made.home) in error["message"] and error["recover"]
    made.configure("")
    made.ok("ls")


def test_a_host_is_not_replaced_when_the_next_one_could_not_start(made: Installation) -> None:
    made.ok("up", "--detach")
    pid = made.host_pid
    made.configure("[turn\n")
    os.kill(pid, signal.SIGHUP)
    eventually(
        lambda: "not replaced" in (made.home / "host.log").read_text(), "the refusal in the log"
    )
    assert alive(pid)
    made.configure("")
    made.ok("ls")


# ---------------------------------------------------------------- limits


def test_the_host_takes_the_descriptors_it_may_have_and_sessions_get_the_users(
    made: Installation,
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    argv = [
        "prlimit",
        f"--nofile=256:{hard}",
        *(os.fsdecode(a) for a in made.argv(("new", "limits", "--json"))),
    ]
    subprocess.run(argv, env=made.env, check=True, capture_output=True)
    limits = (
        Path(f"/proc/{made.host_pid}/limits").read_text().split("Max open files")[1].split()[:2]
    )
    assert limits == [str(hard), str(hard)]
    for _ in range(2):
        assert made.ok("run", "limits", "--", "ulimit -n").out == "256\n"
        os.kill(made.host_pid, signal.SIGHUP)
    made.end("limits")


# ---------------------------------------------------------------- a full disk


@contextlib.contextmanager
def small_disk(base: Path) -> Iterator[Path]:
    """A tmpfs of its own, which can be filled without harm."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small tmpfs")
    at = base / "disk"
    at.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(at)], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def fill(at: Path) -> Path:
    """Fill the disk to the last byte."""
    ballast = at / "ballast"
    with open(ballast, "ab", buffering=0) as f:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    f.write(b"\0" * size)
    return ballast


def test_a_full_disk_harms_no_session_and_is_over_when_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        (tmp_path / "base").mkdir()
        with installation(tmp_path / "base", home=disk / "hf") as made:
            live, dying = made.ready("live"), made.ready("dying")
            made.ok("run", "live", "--", "echo before")
            pid = made.host_pid
            ballast = fill(disk)
            for _ in range(30):  # space left in the database's files is used up, too
                if made.cli("new", "filler", "--json", "--", "true").rc:
                    break
            error = the_error(made.attempt("new", "refused", "--json"), 5)
            assert error["recover"] and "refused" not in [s["name"] for s in made.ls("--all")]
            for n in range(50):  # an act that cannot be recorded is not done
                if (
                    refused := made.attempt(
                        "send", "live", f"echo refused-{n}", "--enter", "--json"
                    )
                ).rc:
                    break
            assert "free disk space" in the_error(refused, 5)["recover"]
            the_error(made.attempt("rename", "live", "renamed", "--json"), 5)
            terminal = made.attach("live")  # attached clients continue: the record of keys follows
            terminal.see("$")
            terminal.send("echo while''-full\r")
            terminal.see("while-full")
            assert terminal.leave() == 0
            assert f"refused-{n}" not in made.screen("live")
            assert (
                made.ok("seize", "live").rc == 0
                and made.ok("halt", "live").rc == 0
                and made.ok("resume", "live").rc == 0
            )
            terminal = made.attach("dying")
            terminal.see("$")
            terminal.send("exit 33\r")
            terminal.wait()
            eventually(lambda: made.get("dying")["state"] == "ended", "the end")
            assert made.get("dying")["exit_code"] == 33
            assert made.host_pid == pid and alive(live["pid"])
            ballast.unlink()
            made.ok("new", "after", "--no-attach")
            assert made.ok("run", "live", "--", "echo after").out == "after\n"
            made.ok("rename", "live", "renamed")
            eventually(
                lambda: not alive(dying["keeper"]),
                "the keeper to be let go once its end is durable",
            )
            os.kill(made.host_pid, signal.SIGKILL)
            assert made.get("dying")["exit_code"] == 33, "an end that was told is forgotten"
            assert made.get("renamed")["id"] == live["id"]
            made.end("renamed", "after")


def test_a_host_that_starts_on_a_full_disk_says_so_or_serves(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        (tmp_path / "base").mkdir()
        with installation(tmp_path / "base", home=disk / "hf") as made:
            live = made.ready("live")
            made.ok("down")
            ballast = fill(disk)
            result = made.cli("up", "--json")
            assert result.rc in (0, 5), result
            if result.rc == 5:
                error = the_error(result, 5)
                assert "state.db" in error["message"] and "free disk space" in error["recover"]
            assert alive(live["pid"])
            ballast.unlink()
            made.ok("up", "--detach")
            assert made.get("live")["pid"] == live["pid"]
            made.end("live")


# ---------------------------------------------------------------- an ordinary user


def test_an_ordinary_user_with_a_read_only_and_with_a_foreign_home(tmp_path: Path) -> None:
    with ordinary_user() as user:
        python = user.python("holdfast.host.main", "apsw", "pyghostty")
        home = user.home / "hf"

        def cli(*args: str, where: Path = home) -> Any:
            done = user.run(
                ["env", f"HOLDFAST_HOME={where}", "SHELL=/bin/sh", python, "-m", "holdfast", *args]
            )
            assert done is not None
            return done

        try:
            assert cli("new", "mine", "--no-attach").returncode == 0
            assert cli("run", "mine", "--", "id -un").stdout.strip() == user.name
            foreign = tmp_path / "root-home"
            foreign.mkdir(mode=0o700)
            os.chmod(tmp_path, 0o755)
            refused = cli("ls", where=foreign)
            assert (
                refused.returncode in (5, 7)
                and "Traceback" not in refused.stderr
                and len(refused.stderr.splitlines()) == 2
            ), refused
            read_only = user.home / "ro"
            read_only.mkdir(mode=0o500)
            os.chown(read_only, user.uid, user.gid)
            refused = cli("new", "x", where=read_only)
            assert (
                refused.returncode == 5
                and "cannot create" in refused.stderr
                and "Traceback" not in refused.stderr
            ), refused
            os.chmod(home / "run", 0o500)  # turns read-only under a running host
            os.chmod(home, 0o500)
            refused = cli("new", "second", "--no-attach")
            assert refused.returncode in (5, 7) and "Traceback" not in refused.stderr, refused
            assert cli("run", "mine", "--", "echo still").stdout == "still\n"
            os.chmod(home, 0o700)
            os.chmod(home / "run", 0o700)
            assert cli("new", "third", "--no-attach").returncode == 0
        finally:
            cleanup(user, cli)


def cleanup(user: OrdinaryUser, cli: Any) -> None:
    """End sessions and host by their own commands; leftover processes end with the user."""
    for name in ("mine", "third"):
        cli("end", name)
    cli("down")
