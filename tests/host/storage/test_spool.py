"""R1: after a crash at any moment, the spool has all output that was durable, and no wrong byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.host.storage import spool as spools
from holdfast.host.storage.spool import Spool
from holdfast.host.storage.spool_format import HEADER_BYTES, RECORD_EXTRA_BYTES
from holdfast.model.errors import Impossible, Unavailable
from holdfast.model.limits import SPOOL_BYTES, SPOOL_FILES_MAX, SPOOL_SEGMENTS
from tests.support.faulty_files import Crash, FaultyFiles

TOP, SESSION, KEY = "/state/spool", "0123456789ab", bytes(range(32))
PIECE = 12
# Segments of two records, so that a short script begins and deletes several.
SMALL = SPOOL_SEGMENTS * (HEADER_BYTES + 2 * (PIECE + RECORD_EXTRA_BYTES))
TEXT = bytes(range(1, 256)) * 40  # each offset has a byte of its own; none is zero
NAMED = {"name": "old"}, {"name": "new"}


def spool(files: FaultyFiles, limit: int = SMALL, epoch: int = 1) -> Spool:
    return Spool(TOP, SESSION, epoch, KEY, limit, files)


def crash_at(number: int) -> Any:
    return lambda count, operation: "crash" if count == number else ""


def stored(files: FaultyFiles, limit: int = SMALL) -> tuple[int, int]:
    """The stored range; checks that it is one piece without a wrong byte."""
    found = spool(files, limit).load()
    assert found.damaged == ""
    if not found.pieces:
        return 0, 0
    [(offset, data)] = found.pieces
    assert data == TEXT[offset : offset + len(data)]
    return offset, offset + len(data)


def write(one: Spool, count: int, progress: list[int]) -> None:
    for number in range(progress[0], count):
        one.append(number * PIECE, TEXT[number * PIECE : (number + 1) * PIECE])
        progress[0] = number + 1


# ---------------------------------------------------------------- crashes


def test_r1_a_crash_at_every_operation_keeps_all_durable_output() -> None:
    appends = 11
    whole, lowest = FaultyFiles(), [0]
    one = spool(whole)
    for count in range(1, appends + 1):
        write(one, count, [count - 1])
        lowest.append(stored(whole)[0])
    assert lowest[-1] > 0, "the bound has removed some output"
    tried = 0
    for number in range(len(whole.done)):
        files, progress = FaultyFiles(fault=crash_at(number)), [0]
        with pytest.raises(Crash):
            write(spool(files), appends, progress)
        [durable] = progress
        for left in files.survivors():
            start, end = stored(left)
            assert durable * PIECE <= end <= (durable + 1) * PIECE
            assert start <= lowest[durable + 1]
            tried += 1
    assert tried > 500


def test_r1_a_new_host_goes_on_after_a_crash_at_every_operation() -> None:
    whole = FaultyFiles()
    write(spool(whole), 6, [0])
    for number in range(len(whole.done)):
        files, progress = FaultyFiles(fault=crash_at(number)), [0]
        with pytest.raises(Crash):
            write(spool(files), 6, progress)
        for left in [*files.survivors()][::7]:
            again = spool(left, epoch=2)
            end = again.end
            again.append(progress[0] * PIECE, TEXT[progress[0] * PIECE : 9 * PIECE])
            assert stored(left)[1] == 9 * PIECE == again.end and end >= progress[0] * PIECE


def test_r1_output_of_a_killed_host_is_durable_before_the_next_host_goes_on() -> None:
    """The kernel still has what the host wrote; only the disk may not have it yet."""
    files = FaultyFiles()
    first = spool(files)
    write(first, 1, [0])
    files.fault = lambda number, operation: "crash" if operation == "sync" else ""
    with pytest.raises(Crash):
        write(first, 2, [1])
    files.fault, files.crashed = lambda number, operation: "", False
    again = spool(files, epoch=2)
    assert again.end == 2 * PIECE
    write(again, 3, [2])
    assert stored(files.after_crash()) == (0, 3 * PIECE)


def test_r1_removing_can_be_cut_short_everywhere_and_done_again() -> None:
    def filled(fault: Any = lambda number, operation: "") -> FaultyFiles:
        files = FaultyFiles()
        one = spool(files)
        write(one, 4, [0])
        one.close()
        files.fault, files.done = fault, []
        return files

    whole = filled()
    spool(whole).remove()
    assert spools.sessions(TOP, whole) == []
    for number in range(len(whole.done)):
        files = filled(crash_at(number))
        with pytest.raises(Crash):
            spool(files).remove()
        for left in files.survivors():
            spool(left).remove()
            assert spools.sessions(TOP, left) == [] and spool(left).load().pieces == ()


# ---------------------------------------------------------------- errors of the disk


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "short"])
def test_r1_an_error_at_every_operation_loses_nothing_and_is_tried_again(fault: str) -> None:
    whole = FaultyFiles()
    write(spool(whole), 6, [0])
    for number in range(len(whole.done)):
        files, progress = FaultyFiles(), [0]
        files.fault = lambda count, operation, n=number: fault if count == n else ""  # type: ignore[misc]
        one = spool(files)
        try:
            write(one, 6, progress)
        except Unavailable as e:
            assert fault in e.message and fault != "short"
            assert stored(files.after_crash())[1] >= progress[0] * PIECE
            write(one, 6, progress)
        assert stored(files)[1] == stored(files.after_crash())[1] == 6 * PIECE


def test_r1_a_disk_that_stays_full_gets_no_more_files() -> None:
    files = FaultyFiles()
    one = spool(files)
    write(one, 1, [0])
    before = {*files.names}
    files.fault = lambda number, operation: "ENOSPC" if operation == "write" else ""
    for _ in range(5):
        with pytest.raises(Unavailable):
            write(one, 2, [1])
    assert {*files.names} == before
    files.fault = lambda number, operation: ""
    write(one, 2, [1])
    assert stored(files) == (0, 2 * PIECE)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),  # bytes of the next output
            st.sampled_from(["", "", "", "crash", "ENOSPC", "EIO", "short", "reopen"]),
            st.integers(0, 6),  # operations until the fault
            st.booleans(),  # names survive
            st.integers(0, 60),  # unsynced bytes that survive
            st.booleans(),  # zeros
        ),
        max_size=25,
    )
)
def test_r1_any_history_of_faults_leaves_a_run_of_the_output_with_all_that_was_durable(
    steps: list[tuple[int, str, int, bool, int, bool]],
) -> None:
    files, epoch, head, durable = FaultyFiles(), 1, 0, 0
    one = spool(files)
    for count, fault, after, names, kept, zeros in steps:
        at = len(files.done) + after
        files.fault = lambda number, operation, at=at, fault=fault: (  # type: ignore[misc]
            fault if number == at and fault != "reopen" else ""
        )
        head += count
        try:
            one.append(durable, TEXT[durable:head])
            durable = head
        except Unavailable:
            pass
        except Crash:
            pass
        files.fault = lambda number, operation: ""
        if files.crashed:
            files = files.after_crash(names, kept, zeros)
        if files.crashed or fault in ("crash", "reopen"):
            epoch += 1
            one = spool(files, epoch=epoch)
            assert one.end >= durable
            durable = one.end
        end = stored(files)[1]
        assert durable <= end <= head
        used = sum(len(inode.data) for inode in files.names.values())
        assert used <= SMALL
    assert stored(files.after_crash())[1] >= durable


# ---------------------------------------------------------------- the bound


def test_the_newest_output_stays_within_the_limit_and_old_segments_are_never_rewritten(
    tmp_path: Path,
) -> None:
    one = Spool(str(tmp_path / "spool"), SESSION, 1, KEY)
    block = os.urandom(100_000)
    inodes = dict[str, tuple[int, int]]()
    for number in range(60):
        one.append(number * len(block), block)
        files = {f.name: f.stat() for f in Path(one.directory).iterdir()}
        assert sum(info.st_size for info in files.values()) <= SPOOL_BYTES
        newest = max(files)
        for name, info in files.items():
            if name != newest:
                assert inodes.setdefault(name, (info.st_ino, info.st_mtime_ns)) == (
                    info.st_ino,
                    info.st_mtime_ns,
                )
    [(start, data)] = one.load().pieces
    assert start + len(data) == 60 * len(block) and len(data) > SPOOL_BYTES * 3 // 4 - len(block)
    assert data == (block * 60)[start:]
    assert {f.stat().st_mode & 0o777 for f in Path(one.directory).iterdir()} == {0o600}
    assert Path(one.directory).stat().st_mode & 0o777 == 0o700


def test_gaps_stay_visible_and_repeated_output_is_stored_once(tmp_path: Path) -> None:
    one = Spool(str(tmp_path / "spool"), SESSION, 1, KEY)
    one.append(10, b"first ")
    one.append(12, b"rst second")
    one.append(100, b"after a gap")
    one.append(50, b"too late")
    assert one.load().pieces == ((10, b"first second"), (100, b"after a gap"))
    assert one.load().end == one.end == 111
    assert Spool(str(tmp_path / "spool"), SESSION, 2, KEY).end == 111


def test_a_limit_of_nothing_stores_nothing(tmp_path: Path) -> None:
    one = Spool(str(tmp_path / "spool"), SESSION, 1, KEY, 0)
    one.append(0, b"output")
    assert one.load().pieces == () and one.end == 0
    assert not Path(one.directory).exists()


def test_many_hosts_leave_a_bounded_number_of_files(tmp_path: Path) -> None:
    for epoch in range(SPOOL_FILES_MAX + 10):
        one = Spool(str(tmp_path / "spool"), SESSION, epoch, KEY)
        one.append(epoch, b"x")
        one.close()
    assert len([*Path(one.directory).iterdir()]) == SPOOL_FILES_MAX
    assert one.load().end == SPOOL_FILES_MAX + 10


# ---------------------------------------------------------------- refusals


def test_r1_a_wrong_key_session_or_version_is_refused_in_words(tmp_path: Path) -> None:
    top = str(tmp_path / "spool")
    one = Spool(top, SESSION, 1, KEY)
    one.append(0, b"output")
    other = Spool(top, SESSION, 1, bytes(32))
    moved = Spool(top, "ba9876543210", 1, KEY)
    Path(moved.directory).mkdir(mode=0o700)
    for file in Path(one.directory).iterdir():
        (Path(moved.directory) / file.name).write_bytes(file.read_bytes())
    for wrong in (other, moved):
        with pytest.raises(Impossible, match="another key or session"):
            wrong.load()
    for file in Path(one.directory).iterdir():
        data = bytearray(file.read_bytes())
        data[9] = 9
        file.write_bytes(data)
    with pytest.raises(Impossible, match="version 9"):
        one.load()


def test_r1_a_host_goes_on_beside_segments_that_it_cannot_open(tmp_path: Path) -> None:
    top = str(tmp_path / "spool")
    before = Spool(top, SESSION, 1, bytes(32))
    before.append(0, b"sealed with a lost key")
    one = Spool(top, SESSION, 2, KEY)
    one.append(22, b"new")
    found = one.load()
    assert found.pieces == ((22, b"new"),) and "output-00000001" in found.damaged


def test_r1_damage_in_the_middle_ends_a_segment_and_is_told(tmp_path: Path) -> None:
    one = Spool(str(tmp_path / "spool"), SESSION, 1, KEY)
    for number in range(3):
        one.append(number * 10, bytes([65 + number]) * 10)
    one.close()
    one.append(30, b"D" * 10)
    path = Path(one.directory) / "output-00000001"
    whole = path.read_bytes()
    for place in range(HEADER_BYTES, len(whole)):
        data = bytearray(whole)
        data[place] ^= 0x40
        path.write_bytes(data)
        found = one.load()
        record = (place - HEADER_BYTES) // (10 + RECORD_EXTRA_BYTES)
        first = b"".join(bytes([65 + n]) * 10 for n in range(record))
        assert found.pieces == (((0, first),) if first else ()) + ((30, b"D" * 10),)
        inside = place - HEADER_BYTES - record * (10 + RECORD_EXTRA_BYTES)
        if record < 2 or inside < RECORD_EXTRA_BYTES - 16:
            assert f"output-00000001: record {record} " in found.damaged


def test_r1_records_that_changed_places_do_not_open(tmp_path: Path) -> None:
    one = Spool(str(tmp_path / "spool"), SESSION, 1, KEY)
    for number in range(3):
        one.append(number * 10, bytes([65 + number]) * 10)
    path, size = Path(one.directory) / "output-00000001", 10 + RECORD_EXTRA_BYTES
    data = path.read_bytes()
    head, records = data[:HEADER_BYTES], data[HEADER_BYTES:]
    first, second, third = (records[at : at + size] for at in (0, size, 2 * size))
    path.write_bytes(head + second + first + third)
    found = one.load()
    assert found.pieces == () and "record 0" in found.damaged
