"""The kernel's word on writes: what it says, how a file is named, what is made of a message that is odd."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.host.ordinary_user import ordinary_user

from holdfast.host import fileevents, paths, process
from holdfast.host.fileevents import CREATE, WRITES, Events, Mount, key_of, opened, parsed, writable
from holdfast.testing.kernel import silent_about_files

SILENT = silent_about_files()
told = pytest.mark.skipif(bool(SILENT), reason=f"nobody is told who writes files here: {SILENT}")


def named(path: Path) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        return key_of(fd) or b""
    finally:
        os.close(fd)


@told
def test_p3_a_file_is_told_by_the_name_that_is_found_for_its_path(tmp_path: Path) -> None:
    async def main() -> None:
        found, empty = list[fileevents.Event](), asyncio.Event()
        events = Events(found.extend, empty.set, lambda: None)
        try:
            events.mark(str(tmp_path))
            child = await asyncio.create_subprocess_exec(
                "sh",
                "-c",
                f"cd {tmp_path}; echo x > file; ln -s file link; mkdir directory; echo y >/dev/shm/holdfast-{os.getpid()}",
            )
            await child.wait()
            await empty.wait()
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
            assert len({key[:8] for key in by_key}) == 1, (
                "only what is on the file system that was marked"
            )
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


def test_a_message_without_a_file_and_ones_own_are_passed_over_and_a_loss_is_told() -> None:
    key = b"k" * 24
    assert parsed(
        message(8, 7, (2, b"d" * 24), (1, key))
        + message(2, 7, (2, b"d" * 24))
        + message(2, 9, (1, key)),
        9,
    ) == (3, [(8, 7, key)], False)
    assert parsed(message(0x4000, 0), 1) == (1, [], True)
    assert parsed(message(8, 7, (1, key), version=4), 1) == (1, [], True), "another language"
    assert parsed(b"", 1) == (0, [], False) and parsed(b"\0" * 24, 1)[2]
    assert parsed(message(8, 7, (5, b"")[:2], (1, key)), 1)[1] == [(8, 7, key)]


def test_the_mount_table_is_read_for_what_sessions_can_write() -> None:
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
        Mount("254:0", "/", "ext4", "/dev/vda"),
        Mount("0:30", "/with blank", "tmpfs", "tmpfs"),
        Mount("254:0", "/again", "ext4", "/dev/vda"),
    ]
    assert fileevents.device_number("254:16") == 254 << 20 | 16


# ------------------------------------------------------------ paths


def pieces(path: str) -> list[paths.Piece]:
    found = process.read_stat(os.getpid())
    assert found is not None
    return paths.look(os.getpid(), found.start, path)


def test_a_path_is_walked_link_by_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "relative").symlink_to("a/b/../file")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    found = pieces(f"{tmp_path}/absolute")
    assert [one.kind for one in found if one.kind != "directory"] == [
        "link",
        "link",
        "file",
    ] and found[-1].key == named(tmp_path / "a" / "file")
    assert (
        found[-1].stamp.changed == (tmp_path / "a" / "file").stat().st_ctime_ns
        and found[-1].stamp.size == 1
    )
    assert pieces(f"{tmp_path}/loop") == [paths.UNKNOWN] and pieces("/" + "a/" * 5000) in (
        [],
        [paths.UNKNOWN],
    )
    assert pieces(f"{tmp_path}/dangling") == [] and pieces(f"{tmp_path}/a/file/below") == []
    assert pieces("/proc/self/fd/0") == [paths.UNKNOWN] and pieces("/dev/stdin") == [
        paths.UNKNOWN
    ], "another process's own"
    assert not any(
        one.kind != "directory"
        for path in ("/dev/null", "/proc/cpuinfo", "/")
        for one in pieces(path)
    )
    assert pieces("\0") == [paths.UNKNOWN] and paths.look(os.getpid(), 1, "/etc") == [
        paths.UNKNOWN
    ], "another process had this pid"
    assert paths.look(1 << 22 | 5, 1, "/etc") == [paths.UNKNOWN]


def test_of_many_paths_what_lies_in_a_directory_that_is_missing_is_not_looked_for(
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
    facts, found = process.read_stat(os.getpid()), dict[str, list[paths.Piece]]()
    assert facts is not None
    paths.look_all(os.getpid(), facts.start, wanted, found)
    assert [path for path in wanted if any(one.kind == "file" for one in found[path])] == [
        f"{tmp_path}/there/file",
        f"{tmp_path}///there/./file",
    ]
    for path in wanted:
        assert found[path] == pieces(path), "alone it is the same"
    missing: set[str] = set()
    root = os.open("/", os.O_PATH)
    for path in wanted:
        paths._look(root, path, missing)
    os.close(root)
    assert missing == {f"{tmp_path}/no"}


def test_p3_an_ordinary_user_is_refused_and_knows_what_it_cannot_write() -> None:
    code = """
import asyncio, os, tempfile
from holdfast.host import fileevents, paths, process
async def main():
    try:
        fileevents.Events(print, print, print).mark("/")
    except OSError:
        print("refused")
asyncio.run(main())
start = process.read_stat(os.getpid()).start
def last(path):
    return paths.look(os.getpid(), start, path)[-1].ours
mine = tempfile.mkdtemp()
open(f"{mine}/file", "w").close()
os.mkdir(f"{mine}/sub"); open(f"{mine}/sub/file", "w").close(); os.chmod(f"{mine}/sub/file", 0o400); os.chmod(f"{mine}/sub", 0o500)
os.symlink("/etc/passwd", f"{mine}/link")
print(last("/etc/passwd"), last(f"{mine}/file"), last(f"{mine}/sub/file"), paths.look(os.getpid(), start, f"{mine}/link")[0].ours, last("/tmp"))
"""
    with ordinary_user() as user:
        done = user.run([user.python("os"), "-c", code])
        assert done is not None and done.returncode == 0, done
        assert done.stdout.split() == ["refused", "False", "True", "True", "True", "True"], done


def test_in_a_sandbox_without_privilege_there_is_a_reason() -> None:
    if os.geteuid():
        pytest.skip("needs to give up what root has")
    code = "from holdfast.testing.kernel import silent_about_files; print(silent_about_files())"
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
def test_what_could_not_be_taken_counts_as_lost_and_what_is_written_later_is_told(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        found, lost, errors, more = (
            list[fileevents.Event](),
            list[str](),
            list[object](),
            asyncio.Event(),
        )
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(context.get("exception"))
        )

        def take(events: list[fileevents.Event]) -> None:
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
