"""Four failures that no log of past acts can prevent, answered from the machine (S2, S4, S8, P5).

1. A background server dies silently: which client learns that, when, with which code or signal, and
   which act had started the server.
2. A command blocks on an unseen question: sudo, ssh, apt, git and `read -s`, each recognised by the
   kernel's word and never by a still screen.
3. A crash in the middle of several steps: which of them were applied, which is in flight, with
   which exit codes, so that no step is done twice.
4. A belief about the machine that is no longer true: an old reference is resolved now.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands.followers import Follower
from tests.support.commands.graphs import forks_are_reported, graph, process
from tests.support.commands.results import the_error
from tests.support.installation import (
    DEADLINE_S,
    Installation,
    eventually,
    installation,
    state_of,
)
from tests.support.ordinary_user import OrdinaryUser, needs

SERVER = "import socket, sys; l = socket.create_server(('127.0.0.1', int(sys.argv[1]))); l.accept()"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        made.people("agent", kind="agent")
        made.people("ann")
        yield made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def server(hf: Installation) -> Path:
    """A program that an agent may start without approval: its code is in a file of the project."""
    file = hf.user / "server.py"
    file.write_text(SERVER)
    return file


# ---------------------------------------------------------------- 1. silent death


def test_s2_p5_the_silent_death_of_a_server_is_reported_with_its_act(
    hf: Installation,
) -> None:
    """The agent's log says that the server runs. The machine is asked."""
    if not forks_are_reported():
        pytest.skip(
            "the kernel does not tell of processes here: that it is gone is seen (test_graph), "
            "not how"
        )
    hf.ready("dev")
    port = free_port()
    started = hf.ok(
        "run", "dev", "--as", "agent", "--json", "--", f"{sys.executable} {server(hf)} {port} &"
    ).json
    assert started["exit_code"] == 0 and started["ref"]
    log = f"dev server running on :{port} ({started['ref']})"  # what an agent would write down
    up = hf.ok("wait", "dev", "--for", f"port:{port}", "--timeout", "60", "--json").json
    assert (up["actor"], up["act"]) == ("agent", started["ref"])
    following = hf.start("graph", "dev", "--follow", "--json")
    events = hf.start("events", "dev", "--follow", "--json")
    hf.under_way("graph", 1)
    hf.under_way("events", 1)
    names = hf.home / "run" / "memory" / str(hf.get("dev")["id"]) / "lineage"
    eventually(
        lambda: names.exists() and str(up["pid"]) in names.read_text(),
        "the host to have looked at it",
    )
    os.kill(int(up["pid"]), signal.SIGSEGV)

    def next_of(
        stream: subprocess.Popen[bytes], wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        assert stream.stdout is not None
        for line in stream.stdout:
            found: dict[str, Any] = json.loads(line)
            if wanted(found):
                return found
        raise AssertionError(stream.communicate())

    # followers of the graph and of the events are told at once
    gone = next_of(following, lambda c: c["change"] == "exited" and c["pid"] == up["pid"])
    assert (gone["signal"], gone["exit_code"], gone["actor"], gone["act"]) == (
        11,
        None,
        "agent",
        started["ref"],
    )
    event = next_of(events, lambda e: e["event"] == "process.exited" and e["pid"] == up["pid"])
    assert (event["signal"], event["actor"], event["act"]) == ("SIGSEGV", "agent", started["ref"])
    # a later client finds it in the events, and by the reference in the log
    later = [e for e in hf.ok("events", "dev", "--json").records if e["event"] == "process.exited"]
    assert [e["pid"] for e in later] == [up["pid"]]
    claim = hf.ok("resolve", log.rpartition("(")[2].rstrip(")"), "--json").json
    assert (claim["act"], claim["running"], claim["exit_code"]) == ("applied", [], 0) and claim[
        "died"
    ][0]["signal"] == "SIGSEGV"
    assert "nothing of it runs" in hf.ok("resolve", started["ref"]).out
    # "is it running?" is answered from the kernel
    assert hf.cli("graph", "dev", "--port", str(port)).rc == 3
    the_error(hf.attempt("wait", "dev", "--for", f"port:{port}", "--timeout", "0.3", "--json"), 124)
    hf.end("dev")


def test_p5_processes_that_a_command_waits_for_are_not_reported_as_left_behind(
    hf: Installation,
) -> None:
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of processes here")
    hf.ready("front")
    hf.ok("run", "front", "--", "sh -c 'exit 3'; ls / | cat >/dev/null; $(true)")
    hf.ok("send", "front", "sh -c 'sh -c true; exit 4'", "--enter")
    hf.wait("front", "idle")
    hf.ok("run", "front", "--", "(sleep 0.3; exit 5) & disown")
    eventually(
        lambda: any(
            e["event"] == "process.exited" and e["exit_code"] == 5
            for e in hf.ok("events", "front", "--json").records
        ),
        "the end of the job",
    )
    assert {
        e["exit_code"]
        for e in hf.ok("events", "front", "--json").records
        if e["event"] == "process.exited"
    } == {5}
    hf.end("front")


def test_p5_ten_thousand_exits_push_no_other_event_out_of_the_log(
    hf: Installation,
) -> None:
    if not forks_are_reported():
        pytest.skip("the kernel does not tell of processes here")
    hf.ready("many")
    hf.ok("run", "many", "--", "for i in $(seq 300); do (sleep 0.2 &) ; done")
    eventually(
        lambda: not any("sleep" in " ".join(p["argv"]) for p in graph(hf, "many")["processes"]),
        "all to have ended",
    )
    found = hf.ok("events", "many", "--json", "--limit", "1000").records
    assert 0 < len([e for e in found if e["event"] == "process.exited"]) < 150 and any(
        e["event"] == "session.started" for e in found
    )
    hf.end("many")


# ---------------------------------------------------------------- 2. blocked unseen


class Asked:
    """A session, and a client that is told about it."""

    def __init__(self, hf: Installation, name: str) -> None:
        self.hf, self.name = hf, name
        hf.ready(name)
        self.follower = Follower(hf, name)
        self.follower.until("idle")

    def told(self, kind: str, *typed: str) -> dict[str, Any]:
        for text in typed:
            self.hf.quick("send", self.name, text, "--enter")
        return self.follower.until(kind)

    def noticed(self, kind: str, *typed: str) -> dict[str, Any]:
        """The same, also by the client that waits for it."""
        seen = self.told(kind, *typed)
        waited: dict[str, Any] = json.loads(
            self.hf.quick(
                "wait", self.name, "--for", kind, "--timeout", f"{DEADLINE_S:g}", "--json"
            )
        )
        assert waited["for"] == kind and seen["pid"] in (None, waited["pid"])
        return seen


@pytest.fixture
def asked(hf: Installation, request: pytest.FixtureRequest) -> Iterator[Asked]:
    made = Asked(hf, request.node.name[8:48])
    yield made
    hf.end(made.name)


def test_s2_sudo_asks_for_a_password(asked: Asked, user: OrdinaryUser) -> None:
    seen = asked.noticed("secret", f"runuser -u {user.name} -- sudo -k cat /etc/shadow")
    assert "sudo" in seen["foreground"]
    asked.noticed("secret", "wrong")  # "Sorry, try again."
    assert asked.noticed("idle", "opensesame")


def test_s2_sudo_in_an_ordinary_users_own_installation(user: OrdinaryUser) -> None:
    """There the process belongs to root and is closed to the host."""
    python = user.python("apsw", "holdfast")

    def hold(*args: str) -> str:
        done = user.run(["env", f"HOLDFAST_HOME={user.home}/hf", python, "-m", "holdfast", *args])
        assert done is not None and done.returncode == 0, (args, done)
        return done.stdout

    (user.home / "hf").mkdir(mode=0o700)
    (user.home / "hf/config.toml").write_text("[relay]\nstart = false\n")
    os.chown(user.home / "hf", user.uid, user.gid)
    os.chown(user.home / "hf/config.toml", user.uid, user.gid)
    try:
        hold("new", "work", "--no-attach", "--", "bash")
        hold("wait", "work", "--for", "idle", "--timeout", "60")
        hold("send", "work", "sudo -k true", "--enter")
        assert json.loads(hold("wait", "work", "--for", "secret", "--timeout", "60", "--json"))[
            "foreground"
        ].startswith("sudo")
        assert "work: waits for a secret (sudo -k true, since" in hold("attention")
        hold("send", "work", "opensesame", "--enter")
        hold("wait", "work", "--for", "idle", "--timeout", "60")
        hold("end", "work")
    finally:
        hold("down")


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[int]:
    """A real sshd, on loopback, with a host key that no client knows."""
    needs("sshd", "ssh", "ssh-keygen")
    if os.geteuid() != 0:
        pytest.skip("sshd needs root")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/key\nPidFile none\n"
        "PasswordAuthentication yes\nUsePAM no\nLoginGraceTime 60\n"
    )
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(config)])
    try:

        def listens() -> bool:
            assert server.poll() is None
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        eventually(listens, "sshd")
        yield port
    finally:
        server.terminate()
        server.wait()


def test_s2_ssh_asks_about_a_key_it_does_not_know_and_then_for_a_password(
    asked: Asked, sshd: int, hf: Installation, tmp_path: Path
) -> None:
    options = (
        f"-F none -p {sshd} -o UserKnownHostsFile={tmp_path}/known -o GlobalKnownHostsFile=none -o "
        "PubkeyAuthentication=no -o PreferredAuthentications=password"
    )
    question = asked.noticed("input", f"ssh {options} nobody@127.0.0.1 true")
    assert question["foreground"].startswith("ssh ")
    secret = asked.noticed("secret", "yes")
    assert secret["pid"] in (None, question["pid"])
    hf.quick("send", asked.name, "--key", "C-c")
    asked.noticed("idle")


def test_s2_apt_asks_whether_to_continue(asked: Asked, tmp_path: Path) -> None:
    """For a package that is installed in a separate root directory."""
    needs("apt-get")
    for directory in ("state/lists/partial", "cache/archives/partial", "etc"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "status").write_text(
        "Package: hf-nothing\nStatus: install ok installed\nPriority: optional\nSection: misc\n"
        "Maintainer: nobody <nobody@localhost>\n"
        "Architecture: all\nVersion: 1.0\nDescription: nothing\n\n"
    )
    world = (
        f"-o Dir::State={tmp_path}/state -o Dir::Cache={tmp_path}/cache -o "
        f"Dir::State::status={tmp_path}/status -o Dir::Etc={tmp_path}/etc -o Debug::NoLocking=1"
    )
    seen = asked.noticed("input", f"apt-get {world} remove hf-nothing")
    assert seen["foreground"].startswith("apt-get ")
    asked.noticed("idle", "n")


def test_s2_git_asks_for_a_name_and_a_password(asked: Asked, hf: Installation) -> None:
    needs("git")

    class Closed(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        name = asked.noticed(
            "input",
            "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null git ls-remote "
            f"http://127.0.0.1:{server.server_port}/x.git",
        )
        assert name["foreground"].startswith("git ")
        asked.noticed("secret", "ann")
        asked.noticed("idle", "hunter2")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_s2_the_shell_itself_asks(asked: Asked) -> None:
    asked.noticed("secret", "read -s -p 'Token: ' token")
    asked.noticed("idle", "x")
    asked.noticed("input", "read -p 'Name: ' name")
    asked.noticed("idle", "x")


def test_s2_the_state_never_follows_from_the_screen(asked: Asked, hf: Installation) -> None:
    """A still screen with a question that no program reads an answer to: the program works.

    A screen that never stands still, and a program that reads: it waits.
    """
    gate = hf.gate("never-the-screen")
    still = asked.told("working", f"printf 'Password: '; cat {gate}")
    assert still["foreground"] == f"cat {gate}"
    gate.open()
    asked.noticed("idle")
    code = (
        "import threading, sys; e = threading.Event(); threading.Thread(target=lambda: "
        "[(sys.stdout.write('.'), sys.stdout.flush()) for _ in iter(lambda: e.wait(0.01), "
        "True)]).start(); input(); e.set()"
    )
    asked.noticed("input", f'{sys.executable} -c "{code}"')
    asked.noticed("idle", "done")


# ---------------------------------------------------------------- 3. completed steps


def test_s4_r7_after_a_crash_it_is_known_which_steps_were_done_and_which_is_in_flight(
    hf: Installation,
) -> None:
    """An agent does three steps. The agent is killed in the second, and so is the host."""
    hf.ready("steps")
    gate, done = hf.gate("second"), hf.user / "done"
    first = hf.cli(
        "run", "steps", "--as", "agent", "--json", "--", f"echo 1 >> {done}; (exit 3)"
    ).json
    agent = hf.start(
        "run",
        "steps",
        "--as",
        "agent",
        "--",
        f"echo 2 >> {done}; cat {gate}; echo 2 >> {done}; (exit 4)",
    )
    eventually(
        lambda: done.exists() and done.read_text() == "1\n2\n", "the second step to be half done"
    )
    kept, pid = (
        hf.home / "run" / "memory" / str(hf.get("steps")["id"]) / "lineage",
        process(hf, "steps", f"cat {gate}")["pid"],
    )
    eventually(
        lambda: kept.exists() and str(pid) in kept.read_text(),
        "the host to have stored its observations",
    )
    agent.kill()
    os.kill(hf.host_pid, signal.SIGKILL)

    def steps() -> list[dict[str, Any]]:
        return [
            e
            for e in hf.ok("log", "steps", "--json").records
            if e["kind"] == "command" or e["kind"] == "exit"
        ]

    # the record says: the first applied, with its exit code; the second applied, not known to have
    # ended. There is no third
    intents = [e for e in steps() if e["phase"] == "intent"]
    assert [e["actor"] for e in intents] == ["agent", "agent"]
    outcomes = {e["intent"]: e for e in steps() if e["phase"] == "outcome"}
    assert outcomes[intents[0]["seq"]]["facts"]["exit_code"] == 3
    assert (
        outcomes[intents[1]["seq"]]["outcome"] == "applied"
        and "exit_code" not in outcomes[intents[1]["seq"]]["facts"]
    )
    # the machine says: the second runs, in the middle
    running = process(hf, "steps", f"cat {gate}")
    act = running["act"] if forks_are_reported() else first["ref"].rpartition("#")[0] + "#2"
    seen = hf.ok("resolve", act, "--json").json
    assert (
        seen["act"] == "applied"
        and seen["exit_code"] is None
        and (seen["under_way"] or not forks_are_reported())
    )
    assert "under way" in hf.ok("resolve", act).out or not forks_are_reported()
    before = hf.ok("resolve", first["ref"], "--json").json
    assert (before["act"], before["exit_code"], before["running"], before["under_way"]) == (
        "applied",
        3,
        [],
        False,
    )
    never = first["ref"].rpartition("#")[0] + "#99"
    assert hf.ok("resolve", never, "--json").json["act"] == "unknown"
    # the step continues, once, and its exit code is collected though no client waits
    gate.open()
    hf.ok("wait", "steps", "--for", "idle", "--timeout", f"{DEADLINE_S:g}")
    assert done.read_text() == "1\n2\n2\n"
    ended = eventually(
        lambda: next((e for e in steps() if e["kind"] == "exit"), None), "its exit in the record"
    )
    assert ended is not None and (
        ended["facts"]["of"],
        ended["facts"]["exit_code"],
        ended["attestation"],
    ) == (intents[1]["seq"], 4, "host")
    assert hf.ok("resolve", act, "--json").json["exit_code"] == 4
    assert "applied, exit 4" in hf.ok("log", "steps").out
    hf.ok("log", "verify", "steps")
    os.kill(
        hf.host_pid, signal.SIGKILL
    )  # the next host sees the same marks again, and reports once
    assert hf.ok("resolve", act, "--json").json["exit_code"] == 4
    assert len([e for e in steps() if e["kind"] == "exit"]) == 1
    hf.end("steps")


def test_s4_a_run_that_outlives_the_host_has_its_end_in_the_record_though_its_client_came_back(
    hf: Installation,
) -> None:
    hf.ready("again")
    gate = hf.gate("again-gate")
    agent = hf.start("run", "again", "--as", "agent", "--", f"cat {gate}; (exit 7)")
    process(hf, "again", f"cat {gate}")
    os.kill(hf.host_pid, signal.SIGKILL)
    hf.ok("ls")  # there is a host again
    eventually(lambda: hf.ask("stats")["under_way"].get("run"), "its client to come back")
    gate.open()
    agent.communicate(timeout=DEADLINE_S)
    assert agent.returncode == 7
    eventually(lambda: "applied, exit 7" in hf.ok("log", "again").out, "its exit in the record")
    assert len([e for e in hf.ok("log", "again", "--json").records if e["kind"] == "exit"]) == 1
    hf.end("again")


def test_s4_a_client_that_dies_alone_leaves_a_run_whose_end_is_recorded(hf: Installation) -> None:
    hf.ready("alone")
    gate = hf.gate("alone-gate")
    agent = hf.start("run", "alone", "--as", "agent", "--", f"cat {gate}; (exit 6)")
    process(hf, "alone", f"cat {gate}")
    agent.kill()
    agent.communicate()
    eventually(lambda: not hf.ask("stats")["under_way"].get("run"), "the host to know")
    timed_out = hf.cli("wait", "alone", "--for", "command", "--timeout", "0.2")
    assert timed_out.rc == 124 and "cat" in timed_out.err
    gate.open()
    hf.wait("alone", "idle")
    eventually(lambda: "applied, exit 6" in hf.ok("log", "alone").out, "its exit in the record")
    hf.end("alone")


# ---------------------------------------------------------------- 4. belief against the graph


def test_s8_a_stale_claim_is_checked_against_the_machine(hf: Installation) -> None:
    """Three references in a transcript: one is live, one ended, one unknown."""
    hf.ready("live")
    hf.ready("over")
    kept = hf.ok("run", "live", "--as", "agent", "--json", "--", "sleep 3001 &").json["ref"]
    assert hf.cli("run", "over", "--as", "agent", "--", "true").rc == 0
    assert hf.cli("run", "over", "--as", "agent", "--", "(exit 3)").rc == 3
    hf.ok("send", "over", "exit 7", "--as", "agent", "--enter")
    gone = hf.get("over")["ref"]
    hf.ok("wait", "over", "--for", "exit", "--timeout", f"{DEADLINE_S:g}")
    live = hf.ok("resolve", kept, "--json").json
    assert live["state"] == "live" and live["act"] == "applied"
    assert [p["command"] for p in live["running"]] == ["sleep 3001"] or not forks_are_reported()
    assert (
        f"runs: sleep 3001 ({live['running'][0]['pid']})" in hf.ok("resolve", kept).out
        if live["running"]
        else not forks_are_reported()
    )
    ended = hf.ok("resolve", gone, "--json").json
    assert (ended["state"], ended["exit_code"]) == ("ended", 7)
    of_an_act = hf.ok("resolve", f"{gone}#2", "--json").json
    assert of_an_act["state"] == "ended", "an act of an ended session has ended, too"
    assert of_an_act["exit_code"] == 3, "its own code, not that of the session"
    typed = hf.ok("resolve", f"{gone}#99", "--json").json
    assert typed["exit_code"] is None and "not known" in hf.ok("resolve", f"{gone}#99").out
    unknown = hf.cli("resolve", "hf:000000000000@1#5", "--json")
    assert unknown.rc == 3 and unknown.json["known"] is False
    hf.ok("forget", "over")
    assert hf.cli("resolve", gone).rc == 3
    # the keeper is stopped: an unanswered question is not answered from old knowledge
    keeper = hf.get("live")["keeper"]
    os.kill(keeper, signal.SIGSTOP)
    try:
        eventually(lambda: state_of(keeper) == "T", "the keeper to stop")
        assert hf.get("live")["liveness"]["process"] == "unknown"
        assert hf.ok("attention", "live", "--json").json["kind"] == "unknown"
    finally:
        os.kill(keeper, signal.SIGCONT)
    hf.wait("live", "idle")
    hf.end("live")
    assert hf.ok("resolve", kept, "--json").json["state"] == "ended", (
        "and so did all that ran in it"
    )
