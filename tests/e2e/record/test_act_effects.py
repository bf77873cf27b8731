"""What an act of an agent did, in the record and in its trace (G2).

Real sessions of a real host: contained, at exec depth and without, and as an ordinary user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector import Collector, collector
from tests.support.installation import Installation, eventually, installation
from tests.support.kernel import silent_about_files, silent_about_processes
from tests.support.ordinary_user import passes_as_ordinary_user

SILENT = silent_about_files() or silent_about_processes()
told = pytest.mark.skipif(bool(SILENT), reason=f"the kernel does not report files here: {SILENT}")
ROOT = Path(__file__).parents[3]
SERVER = """\
import socket, sys
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
sock.accept()
"""
NOTHING = {"count": 0, "names": []}


@pytest.fixture(scope="module")
def received() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory, received: Collector) -> Iterator[Installation]:
    config = f'[telemetry]\notlp = "{received.url}"\ncommands = true\n[turn]\nidle_s = 600\n'
    with installation(tmp_path_factory.mktemp("home"), config) as made:
        made.people("bot", rights="execute", kind="agent")
        (made.user / "server.py").write_text(SERVER)
        yield made


@pytest.fixture
def work(hf: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.removeprefix("test_g2_").replace("_", "-")[:30]
    hf.ready(name, "--contained", "--cwd", str(hf.user))
    yield name
    hf.quick("end", name)


def entries(hf: Installation, session: str) -> list[dict[str, Any]]:
    return hf.ok("log", session, "--agent", "bot", "--json", "--limit", "1000").records


def of_run(hf: Installation, session: str, *command: str) -> dict[str, Any]:
    """Runs a command as the agent; gives the facts of its outcome."""
    hf.ok("--as", "bot", "run", session, "--timeout", "60", *command)
    found: dict[str, Any] = [e for e in entries(hf, session) if e["phase"] == "outcome"][-1]
    return dict(found["facts"])


def later(hf: Installation, session: str) -> list[dict[str, Any]]:
    return [e for e in entries(hf, session) if e["kind"] == "effects"]


@told
def test_g2_a_run_names_programs_and_files_and_its_words(hf: Installation, work: str) -> None:
    said = ("--intent", "try", "--prompt", "conversation 12, message 4")
    facts = of_run(
        hf,
        work,
        *said,
        "--",
        "cp /etc/hostname one; echo x > two; touch gone; rm gone; ls /dev/null",
    )
    assert facts["effects"] == {
        "programs": {
            "count": 4,
            "names": ["/usr/bin/cp", "/usr/bin/touch", "/usr/bin/rm", "/usr/bin/ls"],
        },
        "files": {"count": 2, "names": [f"{hf.user}/one", f"{hf.user}/two"]},
        "ports": NOTHING,
        "unknown": [],
    }
    (intent,) = [e for e in entries(hf, work) if e["phase"] == "intent"]
    assert intent["facts"]["prompt"] == "conversation 12, message 4"
    assert not later(hf, work), "nothing follows an act that left no process"
    shown = hf.ok("log", work, "--agent", "bot").out
    assert "prompt: conversation 12, message 4" in shown
    assert "programs: /usr/bin/cp, /usr/bin/touch, /usr/bin/rm and 1 more" in shown
    assert f"files: {hf.user}/one, {hf.user}/two" in shown


@told
def test_g2_a_background_port_follows_in_an_entry_and_in_the_trace(
    hf: Installation, received: Collector, work: str
) -> None:
    facts = of_run(hf, work, "--", "python3 server.py > port & disown")
    assert facts["effects"]["ports"] == NOTHING
    port = eventually(lambda: (hf.user / "port").read_text().strip(), "the port")

    def opened() -> dict[str, Any] | None:
        found = [e for e in later(hf, work) if e["facts"]["effects"]["ports"]["count"]]
        return found[-1] if found else None

    entry = eventually(opened, "the entry")
    assert (entry["actor"], entry["act"]) == ("bot", facts["act"])
    effects = entry["facts"]["effects"]
    assert effects["ports"] == {"count": 1, "names": [f"127.0.0.1:{port}"]}
    assert effects["files"] == {"count": 1, "names": [f"{hf.user}/port"]}
    assert effects["unknown"] == []
    assert f"ports: 127.0.0.1:{port}" in hf.ok("log", work).out
    id = hf.get(work)["id"]

    def spans(name: str) -> list[dict[str, Any]]:
        found = [(one, attributes(one)) for one in received.spans if one.name == name]
        mine = {"holdfast.session.id": id, "holdfast.act.sequence": facts["act"]}
        return [
            {**said, "span": one.span_id, "parent": one.parent_span_id}
            for one, said in found
            if mine.items() <= said.items()
        ]

    found = eventually(lambda: spans("effects"), "the span of the port")[-1]
    (act,) = spans("act command")
    assert found["parent"] == act["span"], (found, act)
    assert found["holdfast.effects.ports.names"] == [f"127.0.0.1:{port}"]
    assert act["holdfast.effects.ports.count"] == 0 and act["holdfast.act.exit_code"] == 0
    assert act["holdfast.act.command"] == "python3 server.py > port & disown"
    assert found["holdfast.effects.programs.names"] == effects["programs"]["names"]
    assert len(effects["programs"]["names"]) == 1


@told
def test_g2_a_typed_line_gets_an_entry_when_its_command_is_over(
    hf: Installation, work: str
) -> None:
    os.mkfifo(hf.user / "go")
    hf.ok("--as", "bot", "send", work, "read x <go; touch typed", "--enter")
    assert not later(hf, work)
    (hf.user / "go").write_text("now\n")
    (entry,) = eventually(lambda: later(hf, work), "the entry")
    assert entry["facts"]["effects"]["files"] == {"count": 1, "names": [f"{hf.user}/typed"]}
    assert entry["facts"]["of"].endswith(f"#{entry['act']}")


@told
def test_g2_a_flood_of_files_stays_within_the_bound(hf: Installation, work: str) -> None:
    facts = of_run(
        hf,
        work,
        "--",
        "mkdir flood && cd flood && seq 10000 | xargs touch; rm -rf ../flood/1*; cd ..",
    )
    found = (
        facts.get("effects")
        or eventually(lambda: later(hf, work), "the entry")[-1]["facts"]["effects"]
    )
    assert len(found["files"]["names"]) == 32
    # 1, 10 to 19 and so on are gone again.
    assert found["files"]["count"] == 10_000 - 1112 or "files" in found["unknown"], found
    assert "and " in hf.ok("log", work).out


@told
def test_g2_an_act_of_a_person_has_no_effects_and_the_record_verifies(
    hf: Installation, work: str
) -> None:
    hf.ok("run", work, "--", "touch mine")
    hf.ok("turn", work, "release")
    of_run(hf, work, "--", "touch its")
    every = hf.ok("log", work, "--json").records
    assert [e["actor"] for e in every if "effects" in e["facts"]] == ["bot"]
    export = hf.user / f"{work}.record"
    hf.ok("log", "export", work, str(export))
    script = ROOT / "docs/reference/verify_record.py"
    done = subprocess.run([sys.executable, str(script), str(export)], capture_output=True)
    assert done.returncode == 0, done.stdout
    assert hf.ok("log", "verify", work).rc == 0


@told
def test_g2_without_the_exec_gate_programs_are_still_counted(hf: Installation) -> None:
    hf.people("serv", rights="execute", kind="service")
    hf.ready("plain", "--contained", "--gate", "input", "--cwd", str(hf.user))
    hf.ok("--as", "serv", "run", "plain", "--", "sh -c 'sleep 0.2; true'")
    found = [e for e in hf.ok("log", "plain", "--json").records if e["phase"] == "outcome"][-1]
    programs = found["facts"]["effects"]["programs"]
    assert programs["count"] == 2 and len(programs["names"]) == 2
    hf.quick("end", "plain")


def attributes(span: Any) -> dict[str, Any]:
    def value(one: Any) -> Any:
        which = one.WhichOneof("value")
        if which == "array_value":
            return [value(each) for each in one.array_value.values]
        return getattr(one, which) if which else None

    return {one.key: value(one.value) for one in span.attributes}


def test_g2_a_kind_that_the_machine_cannot_see_is_unknown(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with installation(tmp_path_factory.mktemp("home")) as own:
        own.people("bot", rights="execute,plain", kind="agent")
        own.ready("s", "--cwd", str(own.user))
        effects = of_run(own, "s", "--", "touch seen")["effects"]
        assert ("files" in effects["unknown"]) == bool(SILENT)
        assert effects["files"]["count"] == (0 if SILENT else 1)
        said = "perhaps further" if SILENT else "files:"
        assert said in own.ok("log", "s").out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
def test_g2_an_ordinary_users_host_says_what_it_cannot_see() -> None:
    passes_as_ordinary_user(f"{__file__}::test_g2_a_kind_that_the_machine_cannot_see_is_unknown")
