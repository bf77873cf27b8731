"""Links are followed below the root of a session's first process, as the kernel would (P4)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.core.policy.conditions import Actor, Request
from holdfast.core.policy.policy import Verdict
from holdfast.host.policy.gate import Gate
from holdfast.host.policy.links import links_inside
from holdfast.model.errors import Unavailable


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def test_p4_links_lead_where_the_kernel_follows_them(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name, target in (
        ("relative", "a/b"),
        ("absolute", str(tmp_path / "a")),
        ("up", "a/../relative/.."),
        ("chain", "up"),
        ("dangling", "nowhere/x"),
        ("a/b/back", "../../absolute"),
    ):
        (tmp_path / name).symlink_to(target)
    with links_inside(os.getpid(), started(os.getpid()), str(tmp_path)) as real:
        for path in (
            *("relative/x", "absolute/b/x", "up/x", "chain/b", "dangling", "a/b/back/b/new"),
            *("./a//b/", "relative/../x", "../x", ""),
        ):
            assert real(f"{tmp_path}/{path}") == os.path.realpath(tmp_path / path), path
        assert real("/proc/self/cwd/relative") == f"{tmp_path}/a/b"
        assert real(f"/proc/self/root{tmp_path}/up") == f"{tmp_path}/a"


def test_p4_a_loop_of_links_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with links_inside(os.getpid(), started(os.getpid()), None) as real:
        assert real(f"{tmp_path}/loop/x") == f"{tmp_path}/loop/x"


def test_p4_without_the_sessions_first_process_an_act_is_refused() -> None:
    gone = (os.getpid(), started(os.getpid()) - 1)
    request = Request(
        "run", Actor("bot"), "s", content=b"rm x", cwd="/srv", contained=True, first=gone
    )

    async def refused() -> None:
        gate = Gate(None)
        try:
            assert (await gate.judge(request)).verdict is Verdict.REFUSE
            with pytest.raises(Unavailable):
                await gate.facts_in_thread(request)
        finally:
            gate.close()

    asyncio.run(refused())


def test_a_session_that_has_ended_has_no_links() -> None:
    """An operator's line may end the session before the host looks at the line."""
    child = os.fork()
    if not child:
        os._exit(0)
    start = started(child)
    os.waitpid(child, 0)
    with pytest.raises(ProcessLookupError), links_inside(child, start, None):
        pass
