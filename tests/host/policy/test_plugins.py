"""Plug-in policies in their worker: a valid answer of the plug-in, or a refusal with the reason."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.policy.policy import Decision, Verdict
from holdfast.host.policy import plugins
from holdfast.host.policy.plugins import Plugin, Worker, discover
from tests.support import hostile_policies

HERE = str(Path(__file__).parents[2] / "support")
QUESTION: dict[str, Any] = {
    "commands": [{"name": "ls"}],
    "text": "ls",
    "kind": "agent",
    "cwd": "/",
    "name": "text",
}
Make = Callable[..., Worker]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Worker] = []

    def one(function: str, **more: Any) -> Worker:
        made.append(
            Worker(
                Plugin("test", f"hostile_policies:{function}"),
                paths=[HERE],
                **{"answer_s": 20.0, "start_s": 60.0, **more},
            )
        )
        return made[-1]

    yield one
    for worker in made:
        worker.close()


def ask(worker: Worker, *names: str, **more: Any) -> Decision:
    return worker.judge({**QUESTION, "commands": [{"name": n} for n in names], **more}, "v")


def refused(decision: Decision) -> str:
    assert decision.verdict is Verdict.REFUSE and decision.because.startswith(
        "the policy test gave no answer: "
    ), decision
    assert decision.because.isprintable()
    return decision.because.removeprefix("the policy test gave no answer: ")


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # poll
    return True


def test_p4_a_well_behaved_plugin(make: Make) -> None:
    worker = make("decent")
    assert ask(worker, "rm") == Decision(Verdict.REFUSE, "rm", "no rm", "", "test", "v")
    assert ask(worker, "mv") == Decision(Verdict.ASK, "", "mv?", "", "test", "v", (), ("human",), 2)
    assert (
        ask(worker, "frob").verdict is Verdict.ALLOW
        and ask(worker, "ls").verdict is Verdict.NOTHING
    )
    assert worker.starts == 1, "one process for many acts"
    assert "agent" in ask(make("echo")).because


@pytest.mark.parametrize(
    ("function", "why"), [("hang", "in time"), ("spin", "in time"), ("die", "ended")]
)
def test_p4_a_plugin_that_hangs_or_dies_is_ended_and_started_anew(
    function: str, why: str, make: Make
) -> None:
    worker = make(function)
    worker.start()
    pid = worker.pid
    worker.answer_s = 0.3
    assert pid is not None and why in refused(ask(worker))
    assert until(lambda: gone(pid)) and worker.pid is None
    worker.plugin = Plugin("test", "hostile_policies:decent")
    worker.answer_s = 20.0
    assert ask(worker, "frob").verdict is Verdict.ALLOW and worker.starts == 2


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("fail", "RuntimeError: I \\u{1b}[31mwill not"),
        ("leave", "SystemExit"),
        ("dig", "RecursionError"),
        ("unanswerable", "not JSON serializable"),
        ("huge", "too large"),
    ],
)
def test_p4_a_plugin_that_fails_is_a_refusal_with_the_reason(
    function: str, why: str, make: Make
) -> None:
    assert why in refused(ask(make(function)))


def test_p4_a_plugin_that_eats_memory_meets_its_limit(make: Make) -> None:
    worker = make("eat", memory=400 << 20)
    assert "memory" in refused(ask(worker))
    assert "memory" in refused(ask(worker)), "and the host goes on"


@pytest.mark.parametrize("said", hostile_policies.SAID)
def test_p4_nonsense_is_a_refusal(said: str, nonsense: Worker) -> None:
    assert "form" in refused(ask(nonsense, name=said))


@pytest.fixture(scope="module")
def nonsense() -> Iterator[Worker]:
    worker = Worker(Plugin("test", "hostile_policies:nonsense"), 20.0, 60.0, paths=[HERE])
    yield worker
    worker.close()


def test_the_printed_output_of_a_plugin_is_no_answer(make: Make) -> None:
    assert ask(make("talk")).verdict is Verdict.NOTHING


def test_p4_a_forked_child_of_a_plugin_gives_no_answer(make: Make) -> None:
    worker = make("fork")
    for _ in range(3):
        decision = ask(worker)
        assert decision.verdict is Verdict.REFUSE and decision.because == "the parent says so"
    assert worker.starts == 1


def test_p4_the_children_of_a_plugin_end_with_it(make: Make, tmp_path: Path) -> None:
    worker = make("brood")
    worker.start()
    worker.answer_s = 3.0
    assert "in time" in refused(ask(worker, cwd=str(tmp_path)))
    for pid in map(int, (tmp_path / "brood").read_text().split()):
        assert until(lambda pid=pid: gone(pid))  # type: ignore[misc]


def test_p4_a_forged_answer_does_not_count(make: Make) -> None:
    assert ask(make("forge")).verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    "target",
    [
        "no.such.module:x",
        "hostile_policies:no_such",
        "hostile_policies:not_a_function",
        "hostile_policies",
        "",
    ],
)
def test_p4_a_plugin_that_does_not_load_refuses_all_acts(target: str) -> None:
    worker = Worker(Plugin("test", target), paths=[HERE], start_s=60.0)
    assert "did not load" in refused(ask(worker))
    worker.close()


def test_p4_a_plugin_that_keeps_failing_is_left_alone_for_a_while(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make("die")
    monkeypatch.setattr(plugins, "PATIENCE_S", 600.0)
    for _ in range(plugins.FAILURES_MAX):
        refused(ask(worker))
    assert "keeps failing" in refused(ask(worker)) and worker.starts == plugins.FAILURES_MAX
    monkeypatch.setattr(plugins, "PATIENCE_S", 0.0)
    assert "ended" in refused(ask(worker)), "and tried again later"


def test_a_worker_dies_with_its_host(make: Make) -> None:
    """No process is left behind that could answer for a policy that is no longer in force."""
    pid = os.fork()
    if pid == 0:
        worker = Worker(Plugin("test", "hostile_policies:hang"), paths=[HERE], start_s=60.0)
        worker.start()
        Path(f"/tmp/holdfast-worker-{os.getpid()}").write_text(str(worker.pid))
        os._exit(0)
    os.waitpid(pid, 0)
    note = Path(f"/tmp/holdfast-worker-{pid}")
    left = int(note.read_text())
    note.unlink()
    assert until(lambda: gone(left))


def test_installed_plugins_are_found_by_their_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "house_rules-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[holdfast.policy]\nhouse = house_rules:judge\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Plugin("house", "house_rules:judge", "1.2") in discover()
