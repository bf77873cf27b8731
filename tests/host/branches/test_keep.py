"""The files of a branch get into the parent's directory; newer files there stay (R5)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.home import Home, keys
from holdfast.host.branches import apply as applying
from holdfast.host.branches import keep
from holdfast.host.branches.branches import Branches, KeepWish
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.host.processes.process import boot_id
from holdfast.host.runtime.progress import Progress
from holdfast.host.runtime.tasks import Tasks
from holdfast.model.errors import Impossible, NotAllowed, Refused
from tests.support.recovery.kept_branch import BRANCH, INSIDE, Stage


def branches(stage: Stage) -> Any:
    """The branches of a host, of which none runs."""
    one: Any = Branches.__new__(Branches)
    home = Home(str(stage.now.parent), "", True)
    checkpoints = Checkpoints(home, "", keys.machine(home, 1.0))
    incarnations = SimpleNamespace(checkpoints=checkpoints)
    one._engine, one.forks = SimpleNamespace(sessions={}, incarnations=incarnations), stage.forks
    one._keeping, one._keeps = set[str](), Tasks(None)
    return one


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_r5_a_file_that_changes_between_the_decision_and_the_copy_stays(stage: Stage) -> None:
    """Contents are copied after the decision, which may take a while."""
    (stage.upper / "file").write_text("branch")
    (stage.upper / "new").write_text("branch")
    decided = stage.decide()
    (stage.now / "file").write_text("newer")
    (stage.now / "new").write_text("newer")
    keep.stage(stage.forks, stage.fork, BRANCH, decided)
    assert stage.apply() == {"file", "new"}
    assert (stage.now / "file").read_text() == (stage.now / "new").read_text() == "newer"


def test_r5_a_file_that_changes_while_its_content_is_copied_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.upper / "file").write_text("branch")
    (stage.upper / "new").write_text("branch")
    stage.stage()

    def meanwhile(name: str) -> None:
        if name == "host.keep.written":
            (stage.now / "file").write_text("newer")
            (stage.now / "new").write_text("newer")

    monkeypatch.setattr(applying, "probe", meanwhile)
    assert stage.apply() == {"file", "new"}
    assert (stage.now / "file").read_text() == (stage.now / "new").read_text() == "newer"


@pytest.mark.parametrize("take", [(), ("deep",)])
def test_r5_a_directory_with_a_new_entry_is_not_removed(
    stage: Stage, take: tuple[str, ...]
) -> None:
    stage.removed("deep")
    stage.stage(take)
    (stage.now / "deep/new").write_text("newer")
    assert stage.apply() == {"deep"}
    assert (stage.now / "deep/new").read_text() == "newer"
    assert not (stage.now / "deep/a").exists()


def test_r5_a_directory_with_a_new_entry_is_not_replaced_by_a_file(stage: Stage) -> None:
    (stage.upper / "deep").write_text("flat")
    stage.stage()
    (stage.now / "deep/new").write_text("newer")
    assert stage.apply() == {"deep"}
    assert (stage.now / "deep/new").read_text() == "newer"


def test_r5_a_directory_that_is_taken_goes_with_the_entries_of_the_decision(stage: Stage) -> None:
    stage.removed("deep")
    (stage.now / "deep/more").mkdir()
    (stage.now / "deep/more/file").write_text("known")
    stage.stage(take=("deep",))
    assert stage.apply() == set()
    assert not (stage.now / "deep").exists()


def test_r5_a_mode_that_changes_after_the_decision_stays(stage: Stage) -> None:
    (stage.upper / "deep").mkdir()
    (stage.upper / "deep").chmod(0o750)
    (stage.upper / "file").write_text("file\n")
    (stage.upper / "file").chmod(0o600)
    stage.stage()
    (stage.now / "deep").chmod(0o711)
    (stage.now / "file").chmod(0o640)
    assert stage.apply() == {"deep", "file"}
    assert (stage.now / "deep").stat().st_mode & 0o777 == 0o711
    assert (stage.now / "file").stat().st_mode & 0o777 == 0o640


def test_r5_a_new_directory_may_inherit_the_bit_of_the_group(stage: Stage) -> None:
    (stage.upper / "made").mkdir()
    (stage.upper / "made").chmod(0o755)
    (stage.upper / "made/file").write_text("branch")
    stage.stage()
    stage.now.chmod(0o2755)
    assert stage.apply() == set()
    assert (stage.now / "made").stat().st_mode & 0o777 == 0o755


def test_r5_a_socket_of_the_parent_stays(stage: Stage) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(stage.now / "new"))
    (stage.upper / "new").write_text("branch")
    found = keep.decide(stage.fork, str(stage.layers), (), ()).conflicts
    assert [one.path for one in found] == [f"{INSIDE}/new"]


def test_r5_a_change_below_a_directory_that_is_none_any_more_can_be_taken(stage: Stage) -> None:
    (stage.upper / "deep").mkdir()
    (stage.upper / "deep/a").write_text("branch")
    for name in ("a", "b"):
        (stage.now / "deep" / name).unlink()
    (stage.now / "deep").rmdir()
    (stage.now / "deep").write_text("flat")
    stage.stage(take=("deep/a",))
    assert stage.apply() == set()
    assert (stage.now / "deep/a").read_text() == "branch"


def test_r5_a_step_that_the_file_system_refuses_is_named_and_the_keep_ends(stage: Stage) -> None:
    """For example: the directory has become a link."""
    (stage.upper / "deep").mkdir()
    (stage.upper / "deep/new").write_text("branch")
    (stage.upper / "file").write_text("branch")
    stage.stage()
    (stage.now / "deep").rename(stage.now / "moved")
    (stage.now / "deep").symlink_to("moved")
    assert stage.apply() == {"deep/new"}
    assert (stage.now / "file").read_text() == "branch"
    assert not (stage.now / "moved/new").exists()


def test_r5_a_keep_waits_for_free_disk_space_or_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.upper / "file").write_text("branch")
    (stage.upper / "new").write_text("branch")
    stage.stage()

    def full(name: str) -> None:
        if name == "host.keep.written" and (stage.now / "file").read_text() == "branch":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(applying, "probe", full)
    with pytest.raises(Impossible, match="not over"):
        applying.apply(stage.forks, stage.fork)
    assert applying.pending(stage.forks, stage.fork) == BRANCH
    monkeypatch.undo()
    assert stage.apply() == set()
    assert (stage.now / "new").read_text() == "branch"


def test_r5_a_resumed_keep_does_not_repeat_steps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has removed a new file since; it does not come back."""
    (stage.upper / "file").write_text("branch")
    (stage.upper / "new").write_text("branch")
    stage.stage()

    class Dies(Exception):
        pass

    def dies(name: str) -> None:
        if name == "host.keep.applied":
            raise Dies

    monkeypatch.setattr(applying, "probe", dies)
    with pytest.raises(Dies):
        applying.apply(stage.forks, stage.fork)
    monkeypatch.undo()
    (stage.now / "new").unlink()
    (stage.now / "file").write_text("newer")
    assert stage.apply() == set()
    assert not (stage.now / "new").exists() and (stage.now / "file").read_text() == "newer"


@pytest.mark.parametrize("outside", [False, True])
def test_r5_a_file_with_another_name_conflicts(stage: Stage, tmp_path: Path, outside: bool) -> None:
    """Written anew, it would no longer be the same file as the other name."""
    other = tmp_path / "outside" if outside else stage.now / "other"
    os.link(stage.now / "file", other)
    (stage.upper / "file").write_text("branch")
    [conflict] = keep.decide(stage.fork, str(stage.layers), (), ()).conflicts
    assert conflict.path == f"{INSIDE}/file" and "name of the same file" in conflict.why
    stage.stage(take=("file",))
    assert stage.apply() == set()
    assert (stage.now / "file").read_text() == "branch" and other.read_text() == "file\n"


def test_r5_names_of_one_file_in_the_branch_are_names_of_one_file_afterwards(
    stage: Stage,
) -> None:
    (stage.upper / "a").write_text("branch")
    (stage.upper / "deep").mkdir()
    (stage.upper / "deep").chmod((stage.now / "deep").stat().st_mode)
    os.link(stage.upper / "a", stage.upper / "deep/new")
    old = stage.now / "file"  # copied up, and unchanged
    (stage.upper / "file").write_text(old.read_text())
    times = old.stat().st_atime_ns, old.stat().st_mtime_ns
    os.utime(stage.upper / "file", ns=times)
    (stage.upper / "file").chmod(old.stat().st_mode)
    os.link(stage.upper / "file", stage.upper / "second")
    stage.stage()
    assert stage.apply() == set()
    assert (stage.now / "a").samefile(stage.now / "deep/new")
    assert (stage.now / "file").samefile(stage.now / "second")


def test_a5_an_operator_whose_right_ended_while_files_were_read_does_not_commit(
    stage: Stage,
) -> None:
    (stage.upper / "file").write_text("branch")
    one = branches(stage)

    def allowed() -> None:
        assert applying.pending(stage.forks, stage.fork), "everything is read"
        raise NotAllowed("revoked", "ask")

    with pytest.raises(NotAllowed):
        asyncio.run(one.keep(stage.fork, BRANCH, KeepWish(), allowed, Progress()))
    assert (stage.now / "file").read_text() == "file\n"
    assert not applying.pending(stage.forks, stage.fork) and not one._keeping


def test_r5_a_keep_goes_on_when_its_client_leaves(stage: Stage) -> None:
    """A second keep must not begin beside the first one's thread."""
    (stage.upper / "file").write_text("branch")
    one = branches(stage)

    async def leaves() -> None:
        staged = asyncio.Event()
        progress = Progress(lambda **facts: staged.set())
        keeping = one.keep(stage.fork, BRANCH, KeepWish(), lambda: None, progress)
        request = asyncio.ensure_future(keeping)
        await staged.wait()
        request.cancel()
        assert (await request).done

    asyncio.run(leaves())
    assert (stage.now / "file").read_text() == "branch" and not one._keeping


def test_r5_a_keep_is_given_up_before_the_first_file_is_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stage.upper / "file").write_text("branch")
    one, read, cancelled = branches(stage), asyncio.Event(), threading.Event()
    decide = keep.decide

    async def leaves() -> None:
        loop = asyncio.get_running_loop()

        def slow(*args: Any) -> Any:
            loop.call_soon_threadsafe(read.set)
            assert cancelled.wait(30)
            return decide(*args)

        monkeypatch.setattr(keep, "decide", slow)
        keeping = one.keep(stage.fork, BRANCH, KeepWish(), lambda: None, Progress())
        request = asyncio.ensure_future(keeping)
        await read.wait()
        request.cancel()
        loop.call_soon(cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(leaves())
    assert (stage.now / "file").read_text() == "file\n"
    assert not applying.pending(stage.forks, stage.fork) and not one._keeping


def test_r5_a_branch_that_is_being_saved_or_whose_parent_is_forked_is_not_kept(
    stage: Stage,
) -> None:
    one = branches(stage)

    def refused(match: str) -> None:
        keeping = one.keep(stage.fork, BRANCH, KeepWish(), lambda: None, Progress())
        with pytest.raises(Refused, match=match):
            asyncio.run(keeping)

    for session, name in ((BRANCH, "b"), (stage.fork.parent, "p")):
        with one._engine.incarnations.checkpoints.using(session):
            refused(f"{name} is being saved, restored or forked")


def test_r5_two_keeps_in_one_directory_do_not_mix(stage: Stage) -> None:
    """The first was interrupted with a file half written; the second gives it up."""
    (stage.upper / "new").write_text("branch")
    stage.stage()
    [step] = applying.steps(stage.forks, stage.fork)
    place = stage.forks.place(stage.fork.id) / keep.KEEP
    half = stage.now / applying.temporary(step, place)
    half.write_text("half")
    assert stage.fork.id in half.name
    applying.abandon(stage.forks, stage.fork)
    assert not half.exists() and not applying.pending(stage.forks, stage.fork)
    assert not (stage.now / "new").exists()


@pytest.mark.parametrize("boot", ["", "another boot\n"])
def test_r5_progress_counts_if_it_is_whole_and_of_this_boot(stage: Stage, boot: str) -> None:
    """After a power cut the file system may have lost steps, and a full disk cuts a line."""
    for name in ("file", "new"):
        (stage.upper / name).write_text("branch")
    stage.stage()
    path = stage.forks.place(stage.fork.id) / keep.KEEP / applying.PROGRESS
    this = f"{boot_id()}\n"
    path.write_text(f"{boot or this}0 \n1")
    assert stage.apply() == set()
    assert (stage.now / "new").read_text() == "branch"
    assert (stage.now / "file").read_text() == ("branch" if boot else "file\n")


def test_r5_the_interrupted_keep_of_a_discarded_branch_hinders_no_other(stage: Stage) -> None:
    (stage.upper / "file").write_text("branch")
    stage.stage()
    assert applying.pending(stage.forks, stage.fork) == BRANCH
    stage.fork.branch(BRANCH).gone = True
    assert not applying.pending(stage.forks, stage.fork)


def test_r5_a_discard_waits_until_the_branch_has_left_nothing_behind(stage: Stage) -> None:
    """The burial of the branch still uses its directories."""
    one, order = branches(stage), list[str]()

    async def run() -> None:
        over, waits = asyncio.Event(), asyncio.Event()

        async def buried(session: str) -> None:
            waits.set()
            await over.wait()
            order.append("buried")

        async def drop(session: str) -> None:
            order.append("dropped")

        async def observe() -> None:
            order.append("observed")

        one._engine.incarnations.buried_by_now = buried
        one._engine.incarnations.drop = drop
        discarding = asyncio.create_task(one.discard(BRANCH, "b", "ann", observe))
        waiting = asyncio.create_task(waits.wait())
        await asyncio.wait({discarding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert waits.is_set() and order == ["observed"] and stage.upper.exists()
        over.set()
        await discarding

    asyncio.run(run())
    assert order == ["observed", "buried", "dropped"] and not stage.upper.exists()
