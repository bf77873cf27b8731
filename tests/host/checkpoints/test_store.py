"""Checkpoints on a disk that crashes, fails or is full at any step (R2)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from unittest import mock

import pytest

from holdfast.core.checkpoint.manifest import Manifest
from holdfast.home import Home, keys
from holdfast.host.checkpoints import packing
from holdfast.host.checkpoints.copies import Copies
from holdfast.host.checkpoints.packing import Sources
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.model import agreement
from holdfast.model.errors import HoldfastError, Impossible, Refused
from tests.support.faulty_files import Crash, FaultyFiles
from tests.support.recovery.manifests import MADE

SESSION = MADE.session
SHARED = random.Random(1).randbytes(300_000)
# What a crash may leave of names and bytes that no sync covers.
LEFT = ((False, 0, False), (True, 0, False), (True, 0, True), (True, 1 << 30, False))
CHECKPOINTS = ("cp-000000000001", "cp-000000000002", "cp-000000000003", "cp-000000000004")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "THREADS", 1)  # so that steps have one order


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir(mode=0o700)
    return Home(str(tmp_path / "home"), "", True)


def store(home: Home, files: FaultyFiles | None = None) -> Checkpoints:
    return Checkpoints(home, "", keys.machine(home, 1.0), files=files or FaultyFiles())


def parts(number: int) -> dict[str, bytes]:
    """The files of a checkpoint: most of it is shared."""
    return {"output": b"out", "plan": SHARED, "screen": b"%d" % number}


def save(made: Checkpoints, number: int, images: Path) -> Manifest:
    draft = replace(MADE, id=CHECKPOINTS[number], at=float(number), files={}, tree={}, marks=())
    made.sweep_session(SESSION)
    return made.pack(draft, Sources(images, parts(number), 3))


def check(made: Checkpoints, *wanted: set[int]) -> None:
    """Exactly one of these sets of checkpoints is there, with every byte."""
    found = made.of(SESSION)
    assert {CHECKPOINTS.index(one.id) for one in found} in wanted
    for one in found:
        number = CHECKPOINTS.index(one.id)
        assert {name: made.content(one, name) for name in parts(number)} == parts(number)


def crashes(files: FaultyFiles) -> Iterator[FaultyFiles]:
    """The disks that a crash may have left."""
    for names, kept, zeros in LEFT:
        yield files.after_crash(names, kept, zeros)


def crash_at(step: int, files: FaultyFiles) -> FaultyFiles:
    """The same disk, which crashes at that step."""
    fault = lambda number, operation: "crash" if number == step else ""  # noqa: E731
    return FaultyFiles(dict(files.names), dict(files.durable), fault)


def test_r2_a_crash_at_any_step_of_a_save_leaves_whole_checkpoints(
    home: Home, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    before = FaultyFiles()
    save(store(home, before), 0, images)
    for step in range(1000):
        files = crash_at(step, before.after_crash())
        try:
            save(store(home, files), 1, images)
        except Crash:
            pass
        else:
            assert step > 10, "some steps were tried"
            check(store(home, files.after_crash()), {0, 1})
            return
        for left in crashes(files):
            check(store(home, left), {0}, {0, 1})
            save(store(home, left), 2, images)
            check(store(home, left), {0, 2}, {0, 1, 2})


def test_r2_a_crash_at_any_step_of_a_removal_harms_no_other_checkpoint(
    home: Home, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    before = FaultyFiles()
    for number in (0, 1):
        save(store(home, before), number, images)
    for step in range(1000):
        files = crash_at(step, before.after_crash())
        try:
            store(home, files).remove(SESSION, CHECKPOINTS[0])
        except Crash:
            pass
        else:
            assert step > 3, "some steps were tried"
            check(store(home, files), {1})
            return
        for left in crashes(files):
            made = store(home, left)
            check(made, {1}, {0, 1})
            made.remove(SESSION, CHECKPOINTS[0])
            check(made, {1})


@pytest.mark.parametrize("problem", ["ENOSPC", "EIO"])
def test_r2_a_failing_disk_leaves_the_earlier_checkpoint(
    home: Home, tmp_path: Path, problem: str
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    before = FaultyFiles()
    save(store(home, before), 0, images)
    for step in range(1000):
        files = before.after_crash()
        files.fault = lambda number, operation, at=step: problem if number == at else ""  # type: ignore[misc]
        try:
            save(store(home, files), 1, images)
        except (OSError, HoldfastError):
            check(store(home, files), {0}, {0, 1})
            files.fault = lambda number, operation: ""
            store(home, files).remove(SESSION, CHECKPOINTS[1])
            check(store(home, files), {0})
            save(store(home, files), 2, images)
            check(store(home, files), {0, 2})
        else:
            check(store(home, files), {0, 1})
        if step > len(files.done):
            return


def test_r2_a_new_incarnation_is_newer_whatever_the_clock_says(home: Home, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    made = Checkpoints(home, "", keys.machine(home, 1.0), keep=1, files=FaultyFiles())
    for number, (epoch, at) in enumerate([(1, 9.0), (2, 3.0), (2, 4.0)]):
        draft = replace(MADE, id=CHECKPOINTS[number], epoch=epoch, at=at, files={}, tree={})
        made.pack(draft, Sources(images, parts(number), 3))
    assert made.chosen(SESSION, "").id == CHECKPOINTS[2]
    assert [one.epoch for one in made.headers(SESSION)] == [1, 2, 2]
    made.prune(SESSION)
    check(made, {2})


@pytest.mark.parametrize("what", ["manifest", "object", "maker"])
def test_r2_the_newest_usable_checkpoint_is_not_pruned(
    home: Home, other: Home, tmp_path: Path, what: str
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    files = FaultyFiles()
    made = Checkpoints(home, "", keys.machine(home, 1.0), keep=1, files=files)
    stranger = store(other, files)
    stranger.top = made.top
    first, second = save(made, 0, images), save(stranger if what == "maker" else made, 1, images)
    if what == "manifest":
        files.unlink(f"{made.place(SESSION, second.id)}/manifest.json")
    elif what == "object":
        files.unlink(f"{made.top}/{SESSION}/{min({*second.files} - {*first.files})}")
    made.prune(SESSION)
    assert first.id in made.ids(SESSION)


def test_r2_only_the_holder_lets_go_of_a_session(home: Home) -> None:
    made = store(home)
    with made.using(SESSION, "work"):
        with pytest.raises(Refused, match="work is being saved"), made.using(SESSION, "work"):
            raise AssertionError("it has a holder")
        assert SESSION in made.busy
    assert SESSION not in made.busy
    with pytest.raises(ValueError), made.using(SESSION):
        raise ValueError
    assert SESSION not in made.busy


@pytest.mark.parametrize("used", [False, True])
def test_r2_pruning_leaves_a_session_that_is_in_use(home: Home, tmp_path: Path, used: bool) -> None:
    """A save of another session finds the disk full; this one is being saved too."""
    images = tmp_path / "images"
    images.mkdir()
    made = Checkpoints(home, "", keys.machine(home, 1.0), most=1, files=FaultyFiles())
    for number in (0, 1):
        save(made, number, images)
    made.objects(SESSION).add("ab" * 32, b"of a save that has no manifest yet")
    made.objects(SESSION).keep(["ab" * 32])
    draft = replace(MADE, session="b" * 12, id=CHECKPOINTS[2], files={}, tree={}, marks=())
    with contextlib.ExitStack() as stack:
        if used:
            stack.enter_context(made.using(SESSION))
        made.pack(draft, Sources(images, parts(2), 3))
        made.prune("b" * 12)
    check(made, {0, 1} if used else {1})
    assert ("ab" * 32 in made.objects(SESSION).present()) == used


def test_r2_removing_a_checkpoint_frees_what_no_other_uses(home: Home, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    made = store(home)
    first, second = (save(made, number, images) for number in (0, 1))
    assert first.added == first.stored and second.added < 1000 < second.stored
    assert made.objects(SESSION).present() == {*first.objects(), *second.objects()}
    made.remove(SESSION, first.id)
    assert made.objects(SESSION).present() == {*second.objects()}
    made.remove(SESSION, second.id)
    assert made.objects(SESSION).present() == set()


def test_r2_a_damaged_object_is_not_shared(home: Home, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    files = FaultyFiles()
    made = store(home, files)
    first = save(made, 0, images)
    largest = max(first.files, key=lambda path: first.files[path][0])
    files.names[f"{made.top}/{SESSION}/{largest}"].data = b"rotten"
    with pytest.raises(Impossible, match="is damaged: object"):
        made.content(first, "plan")
    assert made.content(save(made, 1, images), "plan") == SHARED


def test_r2_a_sealed_object_with_other_content_is_refused(home: Home, tmp_path: Path) -> None:
    """The manifest names the stored bytes, so even a holder of the key cannot exchange them."""
    images = tmp_path / "images"
    images.mkdir()
    files = FaultyFiles()
    made = store(home, files)
    first = save(made, 0, images)
    (part,) = first.tree["plan"]
    path, mark = sorted(first.files)[part.piece], first.marks[part.piece]
    other = made.keys(SESSION).open(first.key).seal(mark, bytes(part.length))
    files.names[f"{made.top}/{SESSION}/{path}"].data = other
    with pytest.raises(Impossible, match="it was altered"):
        made.content(first, "plan")


def test_r2_marks_of_format_2_serve(home: Home, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    files = FaultyFiles()
    made = store(home, files)
    first = save(made, 0, images)
    with mock.patch.object(ImageKey, "mark", lambda key, content: sha1(content).hexdigest()):
        second = save(made, 1, images)
    assert {len(mark) for mark in (*first.marks, *second.marks)} == {32, 40}
    check(store(home, files), {0, 1})


# ---------------------------------------------------------------- copies and keys


@pytest.fixture
def other(tmp_path: Path) -> Home:
    (tmp_path / "other").mkdir(mode=0o700)
    return Home(str(tmp_path / "other"), "", True)


def test_r2_a_copy_goes_on_after_a_crash_at_any_step(
    home: Home, other: Home, tmp_path: Path
) -> None:
    """Another machine gets the stored files, opens none, and restores with a key for it."""
    images = tmp_path / "images"
    images.mkdir()
    here = store(home)
    made = save(here, 0, images)
    sender = Copies(here, SESSION)
    maker = keys.machine(home, 1.0).public

    def copy(files: FaultyFiles) -> Checkpoints:
        there = store(other, files)
        there.trusted = lambda one: one == maker
        taker = Copies(there, SESSION)
        expected = taker.expect(sender.manifest(made.id))
        for path in taker.missing(expected):
            taker.write(expected, {path: sender.read(path)})
        there.sweep_session(SESSION)  # a save of the session meanwhile: it spares the copy
        taker.commit(expected)
        return there

    for step in range(1000):
        files = crash_at(step, FaultyFiles())
        try:
            there = copy(files)
        except Crash:
            for left in crashes(files):
                found = store(other, left)
                for whole in found.headers(SESSION):
                    assert not Copies(found, SESSION).missing(whole)
                copy(left)
            continue
        break
    files.fault = lambda number, operation: ""
    assert step > 10 and len(there.headers(SESSION)) == 1
    assert there.of(SESSION) == [], "it has no key"
    with pytest.raises(Impossible, match="sealed to other machines"):
        there.read(SESSION, made.id)
    wrapped = here.keys(SESSION).wrap(made.key, there.public)
    there.keys(SESSION).add(made.key, there.public, wrapped)
    check(there, {0})


def test_r2_a_copy_refuses_strangers_and_altered_files(
    home: Home, other: Home, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    here, there = store(home), store(other)
    made = save(here, 0, images)
    sender, taker = Copies(here, SESSION), Copies(there, SESSION)
    with pytest.raises(Impossible, match="not trusted"):
        taker.expect(sender.manifest(made.id))
    there.trusted = lambda one: True
    with pytest.raises(Impossible, match="another session"):
        Copies(there, "bbbbbbbbbbbb").expect(sender.manifest(made.id))
    expected = taker.expect(sender.manifest(made.id))
    path = taker.missing(expected)[0]
    with pytest.raises(Impossible, match="damaged on the way"):
        taker.write(expected, {path: sender.read(path) + b"x"})
    with pytest.raises(Impossible, match="no file of"):
        taker.write(expected, {"objects/../../state.db": b"x"})
    with pytest.raises(Impossible, match="are missing"):
        taker.commit(expected)
    assert there.headers(SESSION) == [] and not there.objects(SESSION).present()


def test_r2_a_machine_that_was_let_in_opens_the_next_checkpoint(
    home: Home, other: Home, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    files = FaultyFiles()
    here = store(home, files)
    first = save(here, 0, images)
    theirs = keys.images_key(keys.machine(other, 1.0))
    machine = agreement.public(theirs)
    held = here.keys(SESSION)
    held.add(first.key, machine, held.wrap(first.key, machine))
    as_other = store(other, files)
    as_other.top = here.top
    as_other.trusted = lambda one: True
    second = save(here, 1, images)
    assert second.key == first.key and machine in held.machines(second.key)
    check(as_other, {0, 1})
