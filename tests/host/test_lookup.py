"""Which file a path leads to for another task: in its root, through its links, and never by what this process happens to be (P4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from errno import ENOENT, ENOTDIR
from pathlib import Path

import pytest

from holdfast.host import lookup

Task = Callable[..., int]


@pytest.fixture
def task() -> Iterator[Task]:
    """Stands still in a directory, perhaps below another root; a fork, for below an empty root there is nothing to run."""
    made: list[int] = []

    def begin(cwd: Path, root: Path | None = None) -> int:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.chdir(cwd)
                if root is not None:
                    os.chroot(root)
                os.write(write, b"x")
                signal.pause()
            finally:
                os._exit(1)
        made.append(pid)
        os.close(write)
        assert os.read(read, 1) == b"x", "it did not begin"
        os.close(read)
        return pid

    yield begin
    for pid in made:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def found(pid: int, path: str) -> str | int:
    file, way = lookup.named(pid, path)
    return lookup.resolved(pid, file, way)


def absent(pid: int, path: str) -> int:
    return lookup.absent_now(pid, lookup.named(pid, path)[1])


def test_p4_what_is_not_there_is_known_at_once_when_the_kernel_remembers(task: Task, tmp_path: Path) -> None:
    pid = task(tmp_path)
    name = f"{tmp_path}/nothing"
    assert found(pid, name) == ENOENT and not os.path.exists(name)
    assert absent(pid, name) == absent(pid, f"{tmp_path}/./nothing") == ENOENT, "it was looked for a moment ago"
    (tmp_path / "nothing").write_text("")
    assert not absent(pid, name) and found(pid, name) == name
    (tmp_path / "nothing").unlink()
    assert absent(pid, name) == ENOENT


def test_p4_what_the_kernel_does_not_remember_is_not_said_at_once(task: Task, tmp_path: Path) -> None:
    pid = task(tmp_path)
    assert not absent(pid, f"{tmp_path}/{'never'}{os.getpid()}"), "nobody has looked for it: a file system would have to be asked"


@pytest.mark.parametrize("link", ["/proc/self/fd/{fd}", "../../../../../../../../proc/self/fd/{fd}", "/proc/thread-self/fd/{fd}"])
def test_p4_what_is_another_one_to_every_process_is_not_taken_for_nothing(task: Task, tmp_path: Path, link: str) -> None:
    """A descriptor that the task has and this process has not."""
    fd = os.open("/usr/bin/env", os.O_RDONLY)
    os.dup2(fd, 777)
    pid = task(tmp_path)
    os.close(777)
    os.close(fd)
    (tmp_path / "trick").symlink_to(link.format(fd=777))
    (tmp_path / "chain").symlink_to("trick")
    for path in (f"{tmp_path}/trick", f"{tmp_path}/chain"):
        assert not absent(pid, path) and found(pid, path) == path
    for path in ("/proc/./self/fd/777", "//proc/self/fd/777", "/proc/../proc/thread-self/fd/777"):
        assert not absent(pid, path) and isinstance(found(pid, path), str)
    assert found(pid, "/proc/self/fd/777") == "/usr/bin/env" and found(pid, "/dev/fd/777") == "/usr/bin/env"


def test_p4_a_directory_that_is_a_link_is_followed(task: Task, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "by").symlink_to("real")
    pid = task(tmp_path)
    assert found(pid, f"{tmp_path}/by/nothing") == found(pid, "by/nothing") == found(pid, "../nothing") == ENOENT
    (tmp_path / "real" / "it").write_text("#!/usr/bin/env -S x y\n")
    assert found(pid, f"{tmp_path}/by/it") == found(pid, "by/it") == f"{tmp_path}/real/it"
    assert found(pid, f"{tmp_path}/real/it/below") == ENOTDIR, "it is no directory"
    script = lookup.script(pid, lookup.named(pid, "by/it")[1])
    assert script is not None and script.by == ("/usr/bin/env", "-S x y") and script.file == os.path.realpath("/usr/bin/env")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the root of a task")
def test_p4_a_link_told_from_the_root_is_followed_in_the_root_of_the_task(task: Task, tmp_path: Path) -> None:
    """The same words lead elsewhere here: to what is there, and to what is not."""
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    (root / "opt" / "tool").write_text("#!/opt/runner\n")
    (root / "opt" / "runner").write_text("")
    (root / "it").symlink_to("/opt/tool")
    (root / "none").symlink_to(f"{tmp_path}/outside")
    (tmp_path / "outside").write_text("")
    pid = task(root, root)
    assert found(pid, "/it") == f"{root}/opt/tool" and found(pid, "/none") == "/none", "a link that leads nowhere is judged by its name"
    script = lookup.script(pid, lookup.named(pid, "/it")[1])
    assert script is not None and script == (("/opt/runner",), f"{root}/opt/runner")
    assert found(pid, "/usr/bin/env") == found(pid, "/opt/../../../../usr/bin/env") == ENOENT, "there is none below that root"
    assert found(pid, "opt/nothing") == str(Path(f"{root}/opt/nothing")), "from a directory below another root nothing is certain"


def test_of_a_task_that_is_gone_nothing_is_said(task: Task, tmp_path: Path) -> None:
    pid = task(tmp_path)
    name, way = lookup.named(pid, f"{tmp_path}/nothing")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not lookup.absent_now(pid, way) and lookup.resolved(pid, name, way) == name and lookup.script(pid, way) is None
