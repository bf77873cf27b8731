"""The gate in the host: in time, off the loop, reloading its file, refusing when in doubt."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import ACTS, UNGATED, Decision, Verdict, explain
from holdfast.core.shellcode.facts import Unparseable
from holdfast.host.policy.cedar import SCHEMA
from holdfast.host.policy.gate import JUDGING_ALL, JUDGING_EACH, Gate, load, mounted
from holdfast.host.policy.links import real
from holdfast.host.policy.plugins import Plugin, Worker
from holdfast.host.policy.shfmt import Parser

HERE = str(Path(__file__).parents[2] / "support")
PARSER = Parser(wait_s=60.0)
ALLOW = (
    'version = 1\n[[rule]]\nname = "all"\nverdict = "allow"\nbecause = "yes"\n'
    'when = { unresolvable = "any" }\n'
)
Open = Callable[..., Gate]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[Gate] = []

    def one(text: str | None = None, **more: Any) -> Gate:
        if text is not None:
            (tmp_path / "policy.toml").write_text(text)
        made.append(
            Gate(
                str(tmp_path / "policy.toml"),
                **{"parser": PARSER, "judge_s": 60.0, "worker": worker, **more},
            )
        )
        return made[-1]

    yield one
    for gate in made:
        gate.close()


def worker(plugin: Plugin) -> Worker:
    return Worker(plugin, 20.0, 60.0, paths=[HERE])


def hostile(function: str) -> Plugin:
    return Plugin("test", f"hostile_policies:{function}")


def request(text: str = "ls", act: str = "run", kind: str = "agent", **more: Any) -> Request:
    return Request(
        act,
        Actor("bot", "kb", kind),
        "s1",
        "work",
        1,
        text.encode(),
        **{"cwd": "/home/ann/p", "project": "/home/ann/p", "home": "/home/ann", **more},
    )


def judge(gate: Gate, *requests: Request) -> list[Decision]:
    async def all_of_them() -> list[Decision]:
        return list(await asyncio.gather(*(gate.judge(r) for r in requests)))

    return asyncio.run(all_of_them())


def verdicts(gate: Gate, *requests: Request) -> list[str]:
    return [str(d.verdict) for d in judge(gate, *requests)]


def test_p4_without_a_file_the_default_policy_is_in_force(opened: Open) -> None:
    gate = opened()
    assert verdicts(
        gate,
        request("ls"),
        request("rm -rf /logs"),
        request("rm -rf /"),
        request("eval x"),
        request("eval x", kind="human"),
    ) == ["allow", "ask", "refuse", "ask", "allow"]
    assert gate.policy.source == "default"


def test_p4_the_file_is_read_again_when_it_changes(opened: Open, tmp_path: Path) -> None:
    told: list[str] = []
    gate = opened(ALLOW, on_policy=told.append)
    file = tmp_path / "policy.toml"
    first = gate.version
    assert judge(gate, request("eval x"))[0].rule == "all" and told == []
    file.write_text(ALLOW.replace('"allow"', '"refuse"'))
    decision = judge(gate, request("ls"))[0]
    assert (
        decision.verdict is Verdict.REFUSE
        and decision.version == gate.version != first
        and told == [gate.version]
    )
    other = tmp_path / "other"
    other.write_text(ALLOW)
    os.replace(other, file)
    assert verdicts(gate, request("ls")) == ["allow"] and gate.version == first and len(told) == 2
    file.unlink()
    assert verdicts(gate, request("eval x")) == ["ask"]


@pytest.mark.parametrize("text", ["nonsense", "version = 2", ALLOW + "x = 1\n", ALLOW + ALLOW[12:]])
def test_p4_a_policy_that_cannot_be_used_refuses_everything_but_stopping_and_looking(
    text: str, opened: Open
) -> None:
    gate = opened(text)
    for act in ("run", "line", "keys", "end", "signal", "resize"):
        decision = judge(gate, request("ls", act=act, kind="human"))[0]
        assert decision.verdict is Verdict.REFUSE and "policy.toml" in explain(decision)
    assert (
        verdicts(gate, *(request("", act=a) for a in ("seize", "halt", "observe"))) == ["allow"] * 3
    )


def test_p4_a_policy_that_cannot_be_read_or_that_others_could_write_refuses(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text(ALLOW)
    assert not load(str(file)).broken
    for mode in (0o666, 0o664, 0o602):
        file.chmod(mode)
        assert "other accounts" in load(str(file)).broken
    file.chmod(0o600)
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in load(str(file)).broken
    (tmp_path / "d").mkdir()
    assert load(str(tmp_path / "d")).broken and load(f"{file}/x").broken
    assert load(str(tmp_path / "none")).source == "default"


def test_p4_a_missing_parser_makes_only_agents_ask(opened: Open) -> None:
    gate = opened(parser=Parser("/nonexistent"))
    decision = judge(gate, request("ls"))[0]
    assert decision.verdict is Verdict.ASK and "the parser failed" in explain(decision)
    assert verdicts(gate, request("ls", kind="human")) == ["allow"]


class Stuck(Parser):
    """A parser that waits until the test lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = 0
        self.free = False

    def __call__(self, text: str, dialect: str) -> Any:
        self.entered += 1
        deadline = time.monotonic() + 30
        while not self.free and time.monotonic() < deadline:
            time.sleep(0.01)  # poll
        raise Unparseable("parser")


def test_p4_a_judgement_that_takes_too_long_is_a_refusal_and_the_loop_goes_on(opened: Open) -> None:
    stuck = Stuck()
    gate = opened(parser=stuck, judge_s=0.2)

    async def scene() -> tuple[Decision, int]:
        waiting = asyncio.ensure_future(gate.judge(request("ls")))
        turns = 0
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        return waiting.result(), turns

    decision, turns = asyncio.run(scene())
    assert decision.verdict is Verdict.REFUSE and "within 0.2 s" in decision.because and turns > 1
    assert verdicts(gate, *[request(f"ls {n}") for n in range(8)]) == ["refuse"] * 8, (
        "all threads are stuck: everything is refused"
    )
    assert verdicts(gate, request("", act="halt"), request("x", act="keys", kind="human")) == [
        "allow",
        "allow",
    ], "acts that need no thread continue"
    stuck.free = True


def test_p4_an_error_is_a_refusal(opened: Open) -> None:
    class Broken(Parser):
        def __call__(self, text: str, dialect: str) -> Any:
            raise ZeroDivisionError("oops")

    decision = judge(opened(parser=Broken()), request("ls"))[0]
    assert decision.verdict is Verdict.REFUSE and "ZeroDivisionError" in decision.because


def test_acts_that_need_no_parser_are_decided_at_once(opened: Open) -> None:
    gate = opened()
    assert (
        gate.quick(request("x", act="keys", kind="human")) is not None
        and gate.quick(request("", act="resize")) is not None
    )
    assert gate.quick(request("ls")) is None
    decision = gate.quick(request("x", act="keys"))
    assert (
        decision is not None
        and decision.verdict is Verdict.ASK
        and decision.version == gate.version
    )
    assert opened(plugins=[hostile("decent")]).quick(request("", act="resize")) is None, (
        "plug-ins are asked about everything"
    )


def test_p4_plugins_and_rules_together_the_strictest_counts(opened: Open) -> None:
    gate = opened(ALLOW, plugins=[hostile("decent")])
    found = judge(gate, request("ls"), request("rm x"), request("mv a b"), request("frob"))
    assert (
        [str(d.verdict) for d in found] == ["allow", "refuse", "ask", "allow"]
        and found[1].because == "no rm"
        and found[2].approvals == 2
    )
    gate = opened(
        'version = 1\n[[rule]]\nname = "r"\nverdict = "refuse"\nbecause = "no x"\n'
        'when = { words = ["x"] }\n',
        plugins=[hostile("decent")],
    )
    assert verdicts(gate, request("frob"), request("frob x"), request("ls")) == [
        "allow",
        "refuse",
        "refuse",
    ]
    assert opened(ALLOW, plugins=[hostile("decent")]).version != opened(ALLOW).version, (
        "the asked kinds belong to the version"
    )


@pytest.mark.parametrize("function", ["fail", "die", "nonsense", "forge", "no_such"])
def test_p4_a_failing_plugin_refuses_acts_that_the_rules_allow(function: str, opened: Open) -> None:
    gate = opened(ALLOW, plugins=[hostile(function)])
    decision = judge(gate, request("ls", kind="human"))[0]
    assert (
        decision.verdict is Verdict.REFUSE and "the policy test gave no answer" in decision.because
    )
    assert (
        verdicts(
            gate, request("", act="halt"), request("", act="seize"), request("", act="observe")
        )
        == ["allow"] * 3
    )


def test_p4_a_hanging_plugin_costs_its_limit_and_no_more(opened: Open) -> None:
    gate = opened(
        ALLOW, plugins=[hostile("hang")], worker=lambda p: Worker(p, 0.5, 60.0, paths=[HERE])
    )
    assert all(
        "gave no answer" in d.because for d in judge(gate, *[request(f"ls {n}") for n in range(4)])
    )


def test_links_are_followed_in_a_plain_session_only(opened: Open, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "link").symlink_to("/etc")
    gate = opened()
    plain = request("rm link/x", cwd=str(project), project=str(project))
    assert verdicts(
        gate,
        plain,
        request("rm sub/x", cwd=str(project), project=str(project)),
        request("rm link/x", cwd=str(project), project=str(project), contained=True),
    ) == ["ask", "allow", "allow"]
    assert real("/nonexistent/x") == "/nonexistent/x"


def test_mounted_devices_and_their_disks(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/sdq3 / ext4 rw 0 0\n/dev/nvme9n1p2 /x ext4 rw 0 0\nproc /proc proc rw 0 0\n"
        "/dev/mapper/none-x /y ext4 rw 0 0\n"
    )
    assert {"/dev/sdq3", "/dev/sdq", "/dev/nvme9n1p2", "/dev/nvme9n1", "/dev/mapper/none-x"} <= set(
        mounted(str(table))
    )
    assert mounted(str(tmp_path / "none")) == ()


def test_a_gate_can_be_made_before_its_loop(opened: Open) -> None:
    gate = opened()
    assert (
        asyncio.run(gate.judge(request("rm -rf /"))).verdict is Verdict.REFUSE
        and asyncio.run(gate.judge(request("", act="resize"))).verdict is Verdict.ALLOW
    )


# ---------------------------------------------------------------- Cedar

cedarpy = pytest.importorskip("cedarpy", reason="the extra `cedar` is not installed")
PERMIT = "permit(principal, action, resource);\n"
NEUTRAL = "version = 1\n"


@pytest.fixture
def cedar(opened: Open, tmp_path: Path) -> Callable[..., Gate]:
    def one(policies: str, text: str = NEUTRAL) -> Gate:
        (tmp_path / "policy.cedar").write_text(policies)
        return opened(text)

    return one


def test_p4_cedar_permits_forbids_and_says_nothing(cedar: Callable[..., Gate]) -> None:
    gate = cedar(
        'permit(principal, action == Action::"run", resource) when { principal.kind == "agent" && '
        "context.known };\n"
        'forbid(principal, action, resource) when { context.commands.contains("rm") };\n'
    )
    found = judge(
        gate, request("ls"), request("rm x"), request("eval x"), request("ls", kind="human")
    )
    assert [str(d.verdict) for d in found] == ["allow", "refuse", "refuse", "refuse"]
    assert found[1].because == "a Cedar policy forbids it" and "no rule" in found[2].because
    assert verdicts(
        cedar(
            'forbid(principal, action, resource) when { context.commands.contains("rm") };', ALLOW
        ),
        request("ls"),
        request("rm x"),
    ) == ["allow", "refuse"]


def test_p4_cedar_knows_every_act_that_a_policy_is_asked_about(
    cedar: Callable[..., Gate],
) -> None:
    asked = [act for act in ACTS if act not in UNGATED]
    declared = SCHEMA.partition("action ")[2].partition(" appliesTo")[0]
    assert re.findall(r'"(\w+)"', declared) == asked
    gate = cedar(PERMIT)
    assert set(verdicts(gate, *(request("", act=act) for act in asked))) == {"allow"}


@pytest.mark.parametrize(
    "bad",
    [
        PERMIT
        # An attribute that does not exist: Cedar alone would skip it and allow
        + 'forbid(principal, action, resource) when { context.cmds.contains("rm") };',
        PERMIT + 'forbid(principal, action, resource) when { principal in "agents" };',
        PERMIT + 'forbid(principal, action == Action::"fly", resource);',
        PERMIT + "forbid(",
        PERMIT + "forbid(principal, action, resource) when { context.text like 3 };",
    ],
)
def test_p4_cedar_policies_that_do_not_validate_refuse_everything(
    bad: str, cedar: Callable[..., Gate]
) -> None:
    decision = judge(cedar(bad, ALLOW), request("ls"))[0]
    assert decision.verdict is Verdict.REFUSE and "cedar" in decision.because


def test_p4_a_forbid_that_errs_is_a_refusal_not_a_skip(cedar: Callable[..., Gate]) -> None:
    """The policy validates, but errs at evaluation: Cedar's own answer would be Allow."""
    overflow = (
        PERMIT + "forbid(principal, action, resource) when "
        '{ context.commands.contains("ls") && 9223372036854775807 + 1 > 0 };'
    )
    allowed = cedarpy.is_authorized(
        {"principal": 'A::"x"', "action": 'Action::"y"', "resource": 'A::"z"', "context": {}},
        PERMIT + "forbid(principal, action, resource) when { 9223372036854775807 + 1 > 0 };",
        [],
    )
    assert allowed.decision is cedarpy.Decision.Allow and allowed.diagnostics.errors, (
        "the edge is there"
    )
    found = judge(cedar(overflow, ALLOW), request("ls"), request("pwd"))
    assert [str(d.verdict) for d in found] == ["refuse", "allow"] and "could not evaluate" in found[
        0
    ].because


def test_cedar_comes_and_goes_with_its_file(cedar: Callable[..., Gate], tmp_path: Path) -> None:
    gate = cedar("forbid(principal, action, resource);", ALLOW)
    first = gate.version
    assert verdicts(gate, request("ls")) == ["refuse"]
    (tmp_path / "policy.cedar").write_text(PERMIT + "\n")
    assert verdicts(gate, request("ls")) == ["allow"] and gate.version != first
    (tmp_path / "policy.cedar").unlink()
    assert verdicts(gate, request("ls")) == ["allow"]


def test_p4_a_hanging_judgement_blocks_only_its_session_and_operator(opened: Open) -> None:
    """A file system or a parser that does not answer blocks threads of one session and operator."""
    let_go = threading.Event()

    class Silent(Parser):
        def __call__(self, text: str, dialect: str) -> Any:
            if "hang" in text:
                let_go.wait(120)
            return super().__call__(text, dialect)

    gate = opened(ALLOW, parser=Silent(wait_s=60.0), judge_s=5.0)

    async def scene() -> None:
        hung = [
            asyncio.ensure_future(gate.judge(request(f"hang {n}"))) for n in range(2 * JUDGING_EACH)
        ]
        await asyncio.sleep(0)
        assert (await gate.judge(replace(request("ls"), session="s2"))).verdict is Verdict.ALLOW, (
            "another session of the same operator"
        )
        assert {d.verdict for d in await asyncio.gather(*hung)} == {
            Verdict.REFUSE
        } and "did not decide" in hung[0].result().because
        at_once = await gate.judge(request("ls"))
        assert at_once.verdict is Verdict.REFUSE and "does not answer" in at_once.because
        everywhere = [
            replace(request(f"hang {n}"), session=f"s{n}") for n in range(2, 2 * JUDGING_ALL)
        ]
        refused = await asyncio.gather(*map(gate.judge, everywhere))
        assert {d.verdict for d in refused} == {Verdict.REFUSE}
        assert (
            await gate.judge(replace(request("ls"), actor=Actor("ann", "ka", "human")))
        ).verdict is Verdict.ALLOW, "another operator"

    try:
        asyncio.run(scene())
    finally:
        let_go.set()
