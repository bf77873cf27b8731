"""`holdfast drill` holds on this build; each broken build is red on the clause that it breaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.drill.checks import CHECKS
from tests.support.commands.source_copy import changed_source
from tests.support.installation import SOURCE, Installation, eventually

PART_2 = "part 2"
LIMIT_S = 280.0  # of one run; a check has its own limits


class Mutant(NamedTuple):
    """A build in which a promise is broken: `old` becomes `new` in a file below src/holdfast."""

    check: str  # the function that must be red
    file: str
    old: str
    new: str


MUTANTS = {
    "a lost client is not told from one that left": Mutant(
        "client_killed",
        "host/server.py",
        'self.host.leave(conn, "lost")',
        'self.host.leave(conn, "detached")',
    ),
    "output is sent again from its beginning": Mutant(
        "host_killed",
        "client/repeating.py",
        "                self.fields[name] = offset",
        "                pass",
    ),
    "a password prompt is not told from other input": Mutant(
        "blocked",
        "core/session/attention.py",
        "    if facts.icanon and not facts.echo:\n",
        "    if False:\n",
    ),
    "the graph is remembered": Mutant(
        "stale_claim",
        "host/requests/observe.py",
        "    found = await session.looked(of_session, engine.halter.groups, session)\n",
        "    found = graph.__dict__.get(session.id) or await session.looked(\n"
        "        of_session, engine.halter.groups, session\n    )\n"
        "    graph.__dict__[session.id] = found\n",
    ),
    "a busy session counts as idle": Mutant(
        "reaped",
        "host/residency/activity.py",
        "        if busy:\n            self._active_at = time.monotonic()\n",
        '        busy = ""\n',
    ),
    "a drained machine takes new sessions": Mutant(
        "drained",
        "host/residency/draining.py",
        "        if self.state:\n            raise Refused(",
        "        if False:\n            raise Refused(",
    ),
    "a connection that was reset counts as closed": Mutant(
        "connection_reset",
        "core/session/connection_losses.py",
        'kind: Kind = "timeout" if given_up else "reset"',
        'kind: Kind = "timeout" if given_up else "closed"',
    ),
    "exits of background processes are not told": Mutant(
        "background_death",
        "host/originators/background_exits.py",
        "status is None or not lineage.over(was.cause) or session.ending:",
        "True:",
    ),
    "rolled output is not reported": Mutant(
        "history_bounded",
        "host/requests/stream.py",
        "        self.conn.send(frames.gap(self.number, self.offset, to))",
        "        pass",
    ),
    "revoking an operator loses the sessions it made": Mutant(
        "ownerless",
        "host/requests/operators.py",
        "    ctx.act.happened(name=q.name)\n",
        "    ctx.act.happened(name=q.name)\n    for one in host.engine.sessions.values():\n"
        "        __import__('os').kill(one.record.root_pid, 9)\n",
    ),
    "exit codes are not remembered": Mutant(
        "references",
        "host/originators/background_exits.py",
        '            "exit_code": code,',
        '            "exit_code": None,',
    ),
    "the kind of client is not recorded": Mutant(
        "heterogeneous",
        "host/server.py",
        "ids.check_name(operator), ids.check_name(modality)",
        'ids.check_name(operator), "cli"',
    ),
    "an agent acts as a program": Mutant(
        "with_an_agent",
        "faces/cli/services/mcp.py",
        'modality="mcp"',
        'modality="sdk"',
    ),
    "a seized turn stays with its holder": Mutant(
        "two_writers",
        "core/session/turn.py",
        '        return [self._give(operator, previous, now, "seize")]',
        "        return []",
    ),
    "a halt freezes nothing": Mutant(
        "halted",
        "host/requests/turn_and_halt.py",
        "    host.engine.counters.halting.add(done.took_ms / 1000)\n",
        "    await host.engine.halter.resume(execution(session))\n",
    ),
    "rights are not checked": Mutant(
        "reader_cannot_write",
        "host/people/rights.py",
        '        """Returns if this key has the right there and then; ',
        '        """Returns."""\n        return\n        """',
    ),
    "a revocation is forgotten": Mutant(
        "revoked",
        "host/people/authority.py",
        "new = [subject for subject in subjects if subject not in self._roster.revoked]",
        "new: list[Subject] = []",
    ),
    "a repeated input has a new number": Mutant(
        "input_once",
        "client/repeating.py",
        "operation.act and not operation.same_number",
        "operation.act",
    ),
    "nothing is contained": Mutant(
        "contained",
        "host/requests/sessions.py",
        'contained = conn.kind != "human" if q.contained is None else q.contained',
        "contained = False",
    ),
    "a changed record verifies": Mutant(
        "record_verifies",
        "core/record/audit.py",
        '    return any(f.level == "broken" for f in findings)',
        "    return False",
    ),
    "only the trigger is named": Mutant(
        "poisoned",
        "core/originators/originators.py",
        "    return tuple(one for one in items if one.actor != actor)",
        "    return ()",
    ),
    "a policy that cannot be read allows": Mutant(
        "fails_closed",
        "host/policy/gate.py",
        '        return policies.broken(e.message, "file", policies.fingerprint(data))',
        "        return policy_file.default()",
    ),
    "the loss of a keeper is not told": Mutant(
        "keeper_killed",
        "host/session/ending.py",
        '"exited" if status >= 0 else "lost"',
        '"exited"',
    ),
    "a new incarnation has the old epoch": Mutant(
        "power_cut",
        "host/lifecycle/near_end.py",
        "record.epoch + 1",
        "record.epoch",
    ),
    "keep overwrites a file that changed later": Mutant(
        "forked",
        "core/branch/keeping.py",
        "if why and not _named(one.path, take):",
        "if False:",
    ),
    "a session that is saved and stopped runs on": Mutant(
        "restored",
        "host/requests/recovery/checkpoints.py",
        "made = await save(store, session, operator, q.stop, tell, engine.halter, engine.journal)",
        "made = await save(store, session, operator, False, tell, engine.halter, engine.journal)",
    ),
    "a session that has moved is listed as ended here": Mutant(
        "moved",
        "host/copies/copies.py",
        "row.state, row.reason = MOVED, reason",
        "row.reason = reason",
    ),
    "a keeper does not act at its deadline": Mutant(
        "fenced",
        "keeper/fence.py",
        "            or self.up\n",
        "            or True\n",
    ),
    "a takeover does not wait for the lease": Mutant(
        "taken_over",
        "core/lease/changes.py",
        "    if not fenced and not pinned and (wait := ",
        "    if False and (wait := ",
    ),
}


CRIU = SOURCE.parent / ".cache/criu"


def environment(place: Path, source: Path) -> dict[str, str]:
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(place),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(source),
    }
    if CRIU.exists():  # a copy of the source has none of its own
        environ["HOLDFAST_CRIU"] = str(CRIU)
    return environ


def drill(place: Path, source: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "drill", *words],
        env=environment(place, source),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_o_every_promise_holds_on_this_build(tmp_path: Path) -> None:
    done = drill(tmp_path, SOURCE, "--json", "--html", str(tmp_path / "drill.html"))
    results = json.loads(done.stdout)["results"]
    broken = [one for one in results if one["verdict"] == "broken"]
    assert done.returncode == 0 and not broken, broken
    assert find_spec("mcp") is None or all(
        one["verdict"] != "not_here" or "CRIU" in one["evidence"] for one in results
    )
    assert all(one["evidence"] for one in results if one["verdict"] == "held")
    page = (tmp_path / "drill.html").read_text()
    assert page.count('<tr class="held">') == sum(one["verdict"] == "held" for one in results)


def test_o_every_check_has_a_mutant() -> None:
    assert {mutant.check for mutant in MUTANTS.values()} == {one.run.__name__ for one in CHECKS}


@pytest.mark.parametrize("name", MUTANTS)
def test_o_a_broken_promise_is_red(tmp_path: Path, name: str) -> None:
    mutant = MUTANTS[name]
    source = changed_source(tmp_path / "src", mutant.file, mutant.old, mutant.new)
    [check] = [one for one in CHECKS if one.run.__name__ == mutant.check]
    beside = check.mode == PART_2  # its four checks are near to each other: exactly one is red
    done = drill(tmp_path, source, "--json", PART_2 if beside else mutant.check)
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 1, results
    assert {one["name"] for one in results if one["verdict"] == "broken"} == {check.name}, results


def test_o_a_live_drill_leaves_the_installation_as_it_was(hf: Installation) -> None:
    hf.ready("mine")
    before = hf.host_pid, hf.get("mine")["pid"], hf.quick("operator", "ls", "--json")
    environ = hf.env | {"HOLDFAST_AS": "tester"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "drill", "--live", "--json"],
        env=environ,
        cwd=hf.user,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 0, [one for one in results if one["verdict"] == "broken"]
    said = {one["name"]: one["verdict"] for one in results}
    for check in CHECKS:
        assert said[check.name] == ("not_live" if check.not_live else "held")
    assert (hf.host_pid, hf.get("mine")["pid"], hf.quick("operator", "ls", "--json")) == before
    assert [one["name"] for one in json.loads(hf.quick("ls", "--all", "--json"))] == ["mine"]


def test_m_without_the_library_for_mcp_the_drill_names_what_is_missing(tmp_path: Path) -> None:
    missing = 'find_spec("a_library_that_is_not_here")'
    source = changed_source(tmp_path / "src", "drill/checks.py", 'find_spec("mcp")', missing)
    done = drill(tmp_path, source, "--json", "with_an_agent")
    [result] = json.loads(done.stdout)["results"]
    assert (done.returncode, result["verdict"]) == (0, "not_here")
    assert "holdfast[mcp]" in result["evidence"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_o_a_drill_that_a_signal_ends_leaves_nothing(tmp_path: Path, number: int) -> None:
    with tempfile.TemporaryDirectory(prefix="hf-") as top:  # short: the path of a socket
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "drill", "S4"],
            env=environment(tmp_path, SOURCE) | {"TMPDIR": top},
            cwd=tmp_path,
        )
        eventually(lambda: [*Path(top).glob("*/home/run/*keeper*")] or None, "a session")
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 130
        assert not os.listdir(top)
        assert not [one for one in Path("/proc").glob("[0-9]*") if top.encode() in environ(one)]


def environ(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes()
    return b""


def test_an_unknown_clause_is_refused(tmp_path: Path) -> None:
    done = drill(tmp_path, SOURCE, "Z9")
    assert done.returncode == 2 and "no check for Z9" in done.stderr
