"""Which file a path leads to for another task (P4): in that task's root, along its links."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from errno import ENOENT, ENOTDIR
from pathlib import Path

import pytest

from holdfast.host.exec_gate import path_lookup

Task = Callable[..., int]


@pytest.fixture
def task() -> Iterator[Task]:
    """Starts tasks that wait in a directory, perhaps below another root.

    They are forks: below an empty root there is no program to run.
    """
    made: list[int] = []

    def begin(cwd: Path, root: Path | None = None, uid: int = 0) -> int:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(cwd)
                if root is not None:
                    os.chroot(root)
                if uid:
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                os.write(write, b"x")
                signal.pause()
            finally:
                os._exit(1)
        made.append(pid)
        os.close(write)
        assert os.read(read, 1) == b"x", "the task did not start"
        os.close(read)
        return pid

    yield begin
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def found(pid: int, path: str) -> str | int:
    file, proc_path = path_lookup.named(pid, path)
    return path_lookup.resolved(pid, file, proc_path)


def absent(pid: int, path: str) -> int:
    return path_lookup.absent_now(pid, path_lookup.named(pid, path)[1])


def test_p4_a_missing_file_is_known_at_once_if_the_kernel_has_cached_it(
    task: Task, tmp_path: Path
) -> None:
    pid = task(tmp_path)
    name = f"{tmp_path}/nothing"
    assert found(pid, name) == ENOENT and not os.path.exists(name)
    assert absent(pid, name) == absent(pid, f"{tmp_path}/./nothing") == ENOENT, (
        "the kernel has cached that"
    )
    (tmp_path / "nothing").write_text("")
    assert not absent(pid, name) and found(pid, name) == name
    (tmp_path / "nothing").unlink()
    assert absent(pid, name) == ENOENT


def test_p4_without_the_kernels_cache_a_missing_file_is_not_reported_at_once(
    task: Task, tmp_path: Path
) -> None:
    pid = task(tmp_path)
    assert not absent(pid, f"{tmp_path}/{'never'}{os.getpid()}"), (
        "not in the kernel's cache: it would have to ask a file system"
    )


@pytest.mark.parametrize(
    "link",
    [
        "/proc/self/fd/{fd}",
        "../../../../../../../../proc/self/fd/{fd}",
        "/proc/thread-self/fd/{fd}",
    ],
)
def test_p4_a_descriptor_of_the_task_is_not_taken_for_missing(
    task: Task, tmp_path: Path, link: str
) -> None:
    """The task has descriptor 777, this process has not."""
    fd = os.open("/usr/bin/env", os.O_RDONLY)
    os.dup2(fd, 777)
    pid = task(tmp_path)
    os.close(777)
    os.close(fd)
    (tmp_path / "trick").symlink_to(link.format(fd=777))
    (tmp_path / "chain").symlink_to("trick")
    for path in (f"{tmp_path}/trick", f"{tmp_path}/chain"):
        assert not absent(pid, path) and found(pid, path) == os.path.realpath("/usr/bin/env")
    for path in ("/proc/./self/fd/777", "//proc/self/fd/777", "/proc/../proc/thread-self/fd/777"):
        assert not absent(pid, path) and found(pid, path) == os.path.realpath("/usr/bin/env")
    assert (
        found(pid, "/proc/self/fd/777")
        == found(pid, "/dev/fd/777")
        == os.path.realpath("/usr/bin/env")
    )


def test_p4_a_directory_that_is_a_link_is_followed(task: Task, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "by").symlink_to("real")
    pid = task(tmp_path)
    assert (
        found(pid, f"{tmp_path}/by/nothing")
        == found(pid, "by/nothing")
        == found(pid, "../nothing")
        == ENOENT
    )
    (tmp_path / "real" / "it").write_text("#!/usr/bin/env -S x y\n")
    assert found(pid, f"{tmp_path}/by/it") == found(pid, "by/it") == f"{tmp_path}/real/it"
    assert found(pid, f"{tmp_path}/real/it/below") == ENOTDIR, "it is no directory"
    script = path_lookup.script(pid, path_lookup.named(pid, "by/it")[1])
    assert (
        script is not None
        and script.by == ("/usr/bin/env", "-S x y")
        and script.file == os.path.realpath("/usr/bin/env")
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the root of a task")
def test_p4_an_absolute_link_is_followed_in_the_root_of_the_task(
    task: Task, tmp_path: Path
) -> None:
    """The same paths lead elsewhere, or nowhere, in this process's root."""
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    (root / "opt" / "tool").write_text("#!/opt/runner\n")
    (root / "opt" / "runner").write_text("")
    (root / "it").symlink_to("/opt/tool")
    (root / "none").symlink_to(f"{tmp_path}/outside")
    (tmp_path / "outside").write_text("")
    pid = task(root, root)
    assert found(pid, "/it") == f"{root}/opt/tool" and found(pid, "/none") == ENOENT, (
        "the link leads nowhere there"
    )
    script = path_lookup.script(pid, path_lookup.named(pid, "/it")[1])
    assert script is not None and script == (("/opt/runner",), f"{root}/opt/runner")
    assert found(pid, "/usr/bin/env") == found(pid, "/opt/../../../../usr/bin/env") == ENOENT, (
        "there is none below that root"
    )
    assert (
        found(pid, "opt/nothing") == found(pid, "../../../usr/bin/env") == ENOENT
        and found(pid, "../../opt/tool") == f"{root}/opt/tool"
    ), "`..` in its root is its root"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the root of a task")
def test_p4_a_relative_path_through_an_absolute_link_stays_in_the_root_of_the_task(
    task: Task, tmp_path: Path
) -> None:
    """The link leads to a directory in the task's root and nowhere in ours."""
    root = tmp_path / "root"
    (root / "only" / "there").mkdir(parents=True)
    (root / "only" / "there" / "tool").write_text("")
    (root / "work").mkdir()
    (root / "work" / "by").symlink_to("/only/there")
    (root / "work" / "tool").symlink_to("/only/there/tool")
    (root / "work" / "env").symlink_to("/usr/bin/env")
    pid = task(root / "work", root)
    assert (
        found(pid, "by/tool")
        == found(pid, "./tool")
        == found(pid, "by/../there/tool")
        == f"{root}/only/there/tool"
    )
    assert found(pid, "by/nothing") == found(pid, "env") == ENOENT, (
        "/usr/bin/env exists for this process, not for the task"
    )


def test_p4_magic_links_are_followed_as_for_the_task(task: Task, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    (tmp_path / "me").symlink_to("/proc/self/cwd")
    pid = task(tmp_path)
    for path in (
        "/proc/self/cwd/tool",
        "/proc/self/root{}/tool",
        f"/proc/{pid}/cwd/tool",
        "/proc/self/task/{pid}/cwd/tool",
        "me/tool",
        "{}/me/tool",
        "me/../{name}/me/me/tool",
        "/proc/mounts/../../proc/self/cwd/tool",
    ):
        path = (
            path.replace("{}", str(tmp_path))
            .replace("{pid}", str(pid))
            .replace("{name}", tmp_path.name)
        )
        assert found(pid, path) == (f"{tmp_path}/tool" if "mounts" not in path else ENOTDIR), path
    assert found(pid, "/proc/self/cwd/nothing") == found(pid, "me/nothing") == ENOENT
    assert isinstance(found(pid, "/proc/self/nothing"), str), (
        "a file missing in our /proc may exist in the task's"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_p4_a_task_without_search_permission_does_not_learn_which_files_exist(
    task: Task, tmp_path: Path
) -> None:
    """The kernel answers EACCES, whether or not the file exists; so does the gate."""
    for each in (tmp_path, *tmp_path.parents):
        if each.owner() == "root" and each.is_relative_to("/tmp/pytest-of-root"):
            each.chmod(0o755)
    (tmp_path / "shut").mkdir(0o700)
    (tmp_path / "by").symlink_to("shut")
    paths = [
        f"{tmp_path}/shut/nothing",
        f"{tmp_path}/shut/none/nothing",
        f"{tmp_path}/by/nothing",
        "shut/nothing",
        "shut/../nothing",
    ]
    root, nobody = task(tmp_path), task(tmp_path, uid=65534)
    for path in paths:
        assert (
            found(root, path) == ENOENT
            and isinstance(found(nobody, path), str)
            and not absent(nobody, path)
        ), path
    for path in (f"{tmp_path}/nothing", "nothing", "./none/nothing"):
        assert found(nobody, path) == ENOENT, path
    assert absent(root, paths[0]) == absent(nobody, f"{tmp_path}/nothing") == ENOENT


def test_a_lookup_for_an_ended_task_gives_no_answer(task: Task, tmp_path: Path) -> None:
    pid = task(tmp_path)
    name, proc_path = path_lookup.named(pid, f"{tmp_path}/nothing")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (
        not path_lookup.absent_now(pid, proc_path)
        and path_lookup.resolved(pid, name, proc_path) == name
        and path_lookup.script(pid, proc_path) is None
    )
