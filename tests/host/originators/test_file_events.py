"""File events of the kernel: their content, the names of files, and malformed messages."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.host.originators import file_events, path_writers
from holdfast.host.originators.file_events import (
    CREATE,
    WRITES,
    Events,
    key_of,
    opened,
    parsed,
)
from holdfast.host.originators.writers import writable
from holdfast.host.processes import process
from holdfast.host.runtime.filesystems import Mount
from tests.support.kernel import silent_about_files
from tests.support.ordinary_user import ordinary_user

SILENT = silent_about_files()
told = pytest.mark.skipif(
    bool(SILENT), reason=f"the kernel does not report who writes files: {SILENT}"
)


def named(path: Path) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        return key_of(fd) or b""
    finally:
        os.close(fd)


@told
def test_p3_a_file_is_told_by_the_name_that_is_found_for_its_path(tmp_path: Path) -> None:
    async def main() -> None:
        found = list[file_events.Event]()
        events = Events(found.extend, lambda: None, lambda: None)
        try:
            events.mark(str(tmp_path))
            child = await asyncio.create_subprocess_exec(
                "sh",
                "-c",
                f"cd {tmp_path}; echo x > file; ln -s file link; mkdir directory; "
                f"echo y >/dev/shm/holdfast-{os.getpid()}",
            )
            await child.wait()
            while not events.read():  # on a busy machine the queue may have been empty before
                pass
            os.unlink(f"/dev/shm/holdfast-{os.getpid()}")
            by_key = {key: mask for mask, _, key in found}
            assert (
                by_key[named(tmp_path / "file")] & WRITES
                and by_key[named(tmp_path / "file")] & CREATE
            )
            assert (
                by_key[named(tmp_path / "link")] & CREATE
                and by_key[named(tmp_path / "directory")] & CREATE
            )
            assert len({key[:8] for key in by_key}) == 1, "only events of the marked file system"
            assert child.pid in {pid for _, pid, _ in found} and os.getpid() not in {
                pid for _, pid, _ in found
            }
            mount = os.open(tmp_path, os.O_RDONLY)
            fd = opened(mount, named(tmp_path / "file"))
            assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "file"))
            assert events.marked()
            for one in (mount, fd):
                os.close(one)
        finally:
            events.close()
            events.close()
            assert not events.marked() and events.read()

    asyncio.run(asyncio.wait_for(main(), 60))


def message(mask: int, pid: int, *infos: tuple[int, bytes], version: int = 3) -> bytes:
    body = b"".join(struct.pack("=BBH", kind, 0, 4 + len(data)) + data for kind, data in infos)
    return struct.pack("=IBBHQii", 24 + len(body), version, 0, 24, mask, -1, pid) + body


def test_messages_without_a_file_and_own_messages_are_skipped_and_a_loss_is_reported() -> None:
    key = b"k" * 24
    assert parsed(
        message(8, 7, (2, b"d" * 24), (1, key))
        + message(2, 7, (2, b"d" * 24))
        + message(2, 9, (1, key)),
        9,
    ) == (3, [(8, 7, key)], False)
    assert parsed(message(0x4000, 0), 1) == (1, [], True)
    assert parsed(message(8, 7, (1, key), version=4), 1) == (1, [], True), (
        "another version of the format"
    )
    assert parsed(b"", 1) == (0, [], False) and parsed(b"\0" * 24, 1)[2]
    assert parsed(message(8, 7, (5, b"")[:2], (1, key)), 1)[1] == [(8, 7, key)]


def test_the_mount_table_gives_the_file_systems_that_sessions_can_write() -> None:
    table = """22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
24 22 0:20 / /proc rw - proc proc rw
25 22 254:16 / /ro ro,relatime - ext4 /dev/vdb rw
26 22 254:32 / /ro2 rw,relatime - ext4 /dev/vdc ro
27 22 0:30 / /with\\040blank rw shared:3 master:2 - tmpfs tmpfs rw,size=4k
28 22 0:31 / /nfs rw - nfs4 server:/x rw
29 22 254:0 /sub /again rw - ext4 /dev/vda rw
nonsense
""".splitlines()
    assert writable(table) == [
        Mount("254:0", "/", "ext4", "/dev/vda", True),
        Mount("0:30", "/with blank", "tmpfs", "tmpfs", True),
        Mount("254:0", "/again", "ext4", "/dev/vda", True),
    ]
    assert file_events.device_number("254:16") == 254 << 20 | 16


# ------------------------------------------------------------ paths


def pieces_here(path: str) -> list[path_writers.Piece]:
    found = process.read_stat(os.getpid())
    assert found is not None
    return path_writers.pieces(os.getpid(), found.start, path)


def test_a_path_is_walked_link_by_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "relative").symlink_to("a/b/../file")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    found = pieces_here(f"{tmp_path}/absolute")
    assert [one.kind for one in found if one.kind != "directory"] == [
        "link",
        "link",
        "file",
    ] and found[-1].key == named(tmp_path / "a" / "file")
    assert (
        found[-1].stamp.changed == (tmp_path / "a" / "file").stat().st_ctime_ns
        and found[-1].stamp.size == 1
    )
    assert pieces_here(f"{tmp_path}/loop") == [path_writers.UNKNOWN] and pieces_here(
        "/" + "a/" * 5000
    ) in (
        [],
        [path_writers.UNKNOWN],
    )
    assert (
        pieces_here(f"{tmp_path}/dangling") == [] and pieces_here(f"{tmp_path}/a/file/below") == []
    )
    assert pieces_here("/proc/self/fd/0") == [path_writers.UNKNOWN] and pieces_here(
        "/dev/stdin"
    ) == [path_writers.UNKNOWN], "another process's own"
    assert not any(
        one.kind != "directory"
        for path in ("/dev/null", "/proc/cpuinfo", "/")
        for one in pieces_here(path)
    )
    assert pieces_here("\0") == [path_writers.UNKNOWN] and path_writers.pieces(
        os.getpid(), 1, "/etc"
    ) == [path_writers.UNKNOWN], "another process had this pid"
    assert path_writers.pieces(1 << 22 | 5, 1, "/etc") == [path_writers.UNKNOWN]


def unstamped(pieces: list[path_writers.Piece]) -> list[path_writers.Piece]:
    """Without the change times of directories: other processes write in /tmp."""
    return [
        one if one.kind == "file" else one._replace(stamp=path_writers.UNKNOWN.stamp)
        for one in pieces
    ]


def test_paths_below_a_missing_directory_are_not_looked_up(
    tmp_path: Path,
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    (tmp_path / "way").symlink_to("gone/further")
    wanted = [
        f"{tmp_path}/{name}"
        for name in (
            "no/a",
            "no/b",
            "no/c/d",
            "there/no",
            "there/file",
            "nothing",
            "way/x",
            "//there/./file",
            "no/../there/file",
            "no",
        )
    ]
    facts, found = process.read_stat(os.getpid()), dict[str, list[path_writers.Piece]]()
    assert facts is not None
    path_writers.pieces_of_all(os.getpid(), facts.start, wanted, found)
    assert [path for path in wanted if any(one.kind == "file" for one in found[path])] == [
        f"{tmp_path}/there/file",
        f"{tmp_path}///there/./file",
    ]
    for path in wanted:
        assert unstamped(found[path]) == unstamped(pieces_here(path)), (
            "the same result as for one path alone"
        )
    missing: set[str] = set()
    root = os.open("/", os.O_PATH)
    for path in wanted:
        path_writers._pieces(root, path, missing)
    os.close(root)
    assert missing == {f"{tmp_path}/no"}


def test_p3_an_ordinary_user_gets_no_events_and_knows_its_unwritable_paths() -> None:
    code = """
import asyncio, os, tempfile
from holdfast.host.originators import file_events, path_writers
from holdfast.host.processes import process
async def main():
    try:
        file_events.Events(print, print, print).mark("/")
    except OSError:
        print("refused")
asyncio.run(main())
start = process.read_stat(os.getpid()).start
def last(path):
    return path_writers.pieces(os.getpid(), start, path)[-1].ours
mine = tempfile.mkdtemp()
open(f"{mine}/file", "w").close()
os.mkdir(f"{mine}/sub"); open(f"{mine}/sub/file", "w").close()
os.chmod(f"{mine}/sub/file", 0o400); os.chmod(f"{mine}/sub", 0o500)
os.symlink("/etc/passwd", f"{mine}/link")
link = path_writers.pieces(os.getpid(), start, f"{mine}/link")[0].ours
print(last("/etc/passwd"), last(f"{mine}/file"), last(f"{mine}/sub/file"), link, last("/tmp"))
"""
    with ordinary_user() as user:
        done = user.run([user.python("os"), "-c", code])
        assert done is not None and done.returncode == 0, done
        assert done.stdout.split() == ["refused", "False", "True", "True", "True", "True"], done


def test_in_a_sandbox_without_privilege_there_is_a_reason() -> None:
    if os.geteuid():
        pytest.skip("needs to give up root's rights")
    code = "from tests.support.kernel import silent_about_files; print(silent_about_files())"
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        pytest.skip(f"no setpriv: {done.stderr}")
    assert "refuses" in done.stdout


@told
def test_a_failed_read_counts_as_a_loss_and_later_writes_are_reported(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        found, lost, errors, more = (
            list[file_events.Event](),
            list[str](),
            list[object](),
            asyncio.Event(),
        )
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(context.get("exception"))
        )

        def take(events: list[file_events.Event]) -> None:
            if not lost:
                raise ZeroDivisionError
            found.extend(events)
            more.set()

        def missed() -> None:
            lost.append("lost")
            more.set()

        events = Events(take, lambda: None, missed)
        try:
            events.mark(str(tmp_path))
            for name in ("first", "second"):
                more.clear()
                await (
                    await asyncio.create_subprocess_exec("sh", "-c", f"echo x > {tmp_path}/{name}")
                ).wait()
                key = named(tmp_path / name)
                while not (
                    key in {key for _, _, key in found} if lost and name == "second" else lost
                ):
                    await asyncio.wait_for(more.wait(), 20)
                    more.clear()
            assert lost == ["lost"] and [type(one) for one in errors] == [ZeroDivisionError]
        finally:
            events.close()

    asyncio.run(asyncio.wait_for(main(), 60))
