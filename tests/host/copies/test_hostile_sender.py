"""Copies of other machines' sessions: what a sender can and cannot do (host/copies)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.copies import SHARED, Copy, Entry, Machine, Need, Root
from holdfast.host.copies import facts, trees
from holdfast.host.copies.received import HEADER_BYTES, Received
from holdfast.host.copies.trees import Outbox
from holdfast.model import signing
from holdfast.model.errors import HoldfastError, NotAllowed, NotFound, Refused
from tests.support.recovery.manifests import KEY, MACHINE, MADE

SESSION, CHECKPOINT = "0123456789ab", "cp-0123456789ab"
SHA = "ab" * 32
COPY = Copy(
    SESSION,
    "work",
    CHECKPOINT,
    3,
    1000.5,
    1001.5,
    True,
    signing.show(signing.public(MACHINE)),
    "desk",
    Machine("x86_64", (), "6.18.44", 0, 0, "/root", "4.2.1"),
    (),
    {},
    (),
    (),
    "none",
    (12, "aa"),
)


def signed(copy: Copy, **fields: Any) -> tuple[Copy, bytes]:
    """The copy with a checkpoint of the machine that it names."""
    named = {"session": copy.session, "id": copy.checkpoint, "epoch": copy.epoch}
    made = replace(MADE, **{**named, "ended": copy.final, **fields})
    data = forms.encode(made, KEY, MACHINE)
    part = len(data), hashlib.sha256(data).hexdigest()
    return replace(copy, parts={**copy.parts, forms.NAME: part}), data


def described(
    received: Received,
    copy: Copy,
    sender: str,
    checkpoint: str = CHECKPOINT,
    manifest: bool = True,
    **fields: Any,
) -> None:
    """Offer a copy, and bring its description and its manifest."""
    copy, made = signed(replace(copy, checkpoint=checkpoint), **fields)
    data = copies.encode(copy)
    sha = hashlib.sha256(data).hexdigest()
    received.offer(copy.session, checkpoint, sender, sha, len(data), copy.epoch)
    for content in (data, made) if manifest else (data,):
        sink = received.sink(copy.session, checkpoint, sender)
        sink.feed(message(content))
        sink.close()


def message(data: bytes, offset: int = 0) -> bytes:
    head = hashlib.sha256(data).digest() + offset.to_bytes(8, "big")
    return head + (len(data) - offset).to_bytes(8, "big") + data[offset:]


def test_t4_an_object_is_named_by_a_hash_only(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    with pytest.raises(NotFound):
        received.offer(SESSION, CHECKPOINT, "desk", "../../../keys/machine", 10, 1)


def test_t4_a_sender_that_does_not_ask_for_room_gets_none(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 19)
    big = replace(COPY, parts={f"objects/{SHA}": (1 << 20, SHA)})
    described(received, big, "desk", manifest=False)
    with pytest.raises(Refused, match="room"):
        received.sink(SESSION, CHECKPOINT, "desk")
    assert HEADER_BYTES == 48


def test_t4_a_copy_of_a_second_machine_does_not_replace_one_that_arrived_first(
    tmp_path: Path,
) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    described(received, replace(COPY, name="evil"), "other", "cp-ba9876543210")
    received.commit(SESSION, CHECKPOINT, "desk")
    with pytest.raises(NotAllowed):
        received.commit(SESSION, "cp-ba9876543210", "other")
    assert [one.name for one in received.of(SESSION)] == ["work"]


def test_t4_a_needed_file_is_no_device_and_no_pipe(tmp_path: Path) -> None:
    """Else a sender could let this machine read without an end."""
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", f"{tmp_path}/pipe"):
        [said] = facts.changed([Need(path, 0, SHA)])
        assert "no file" in said


def test_t4_a_directory_that_becomes_a_link_while_it_is_sent_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, secret = tmp_path / "work", tmp_path / "secret"
    for top in (work / "a", secret):
        top.mkdir(parents=True)
        (top / "key").write_text(top.name)
    entry: Callable[..., Entry] = trees._entry

    def exchange(path: str, *rest: object) -> Entry:
        """Each entry is noted before its directory is listed."""
        if path == "a":
            (work / "a").rename(work / "b")
            (work / "a").symlink_to(secret)
        return entry(path, *rest)

    monkeypatch.setattr(trees, "_entry", exchange)
    outbox = Outbox(str(tmp_path), SESSION)
    root = outbox.tree(SHARED, "/w", str(work), set())
    assert [one.path for one in root.entries] == ["", "a"]
    assert not [*outbox.objects.iterdir()]


def test_r2_a_tree_travels_with_all_kinds(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "d/e").mkdir(parents=True)
    (work / "d/e/f").write_text("text")
    (work / "d/l").symlink_to("e")
    os.mkfifo(work / "p")
    (work / "d").chmod(0o500)
    outbox = Outbox(str(tmp_path), SESSION)
    root = outbox.tree(SHARED, "/w", str(work), set())
    trees.lay_out(root.entries, str(tmp_path / "there"), lambda sha: outbox.objects / sha)
    assert (tmp_path / "there/d/l/f").read_text() == "text"
    assert (tmp_path / "there/d").stat().st_mode & 0o777 == 0o500
    assert (tmp_path / "there/p").is_fifo()


def test_r2_contents_that_a_power_cut_may_have_torn_are_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system may have the name of a content, and the index, without the bytes."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "f").write_text("text")
    for boot, content in (("first", "text"), ("first", ""), ("second", "text")):
        monkeypatch.setattr(trees, "boot_id", lambda boot=boot: boot)
        outbox = Outbox(str(tmp_path), SESSION)
        outbox.tree(SHARED, "/w", str(work), set())
        outbox.looked()
        [kept] = outbox.objects.iterdir()
        assert kept.read_text() == content, "within a boot, what is there serves"
        kept.write_text("")


def test_t4_a_file_is_not_laid_out_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "content").write_text("evil")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a").symlink_to(tmp_path / "victim")
    root = Root(SHARED, "/w", (Entry("a", "f", 0o644, 0, 0, 1, 4, SHA),))
    with pytest.raises((OSError, HoldfastError)):
        trees.lay_out(root.entries, str(tmp_path / "there"), lambda sha: tmp_path / "content")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", ["..", "", "/", "a/b", ".", "x" * 5000, "\0", "0123456789a/"])
def test_t4_an_invented_id_deletes_and_reads_nothing(tmp_path: Path, name: str) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    received.commit(SESSION, CHECKPOINT, "desk")
    before = sorted(tmp_path.rglob("*"))
    attempts: list[Callable[[], object]] = [
        lambda: received.drop(name),
        lambda: received.offer(name, CHECKPOINT, "desk", SHA, 10, 1),
        lambda: received.offer(SESSION, name, "desk", SHA, 10, 1),
        lambda: received.missing(name, CHECKPOINT, "desk", 0),
        lambda: received.sink(SESSION, name, "desk"),
        lambda: received.commit(name, CHECKPOINT, "desk"),
        lambda: received.taken_of(name, "desk"),
        lambda: received.take(name, 1, 0.0, "desk"),
        lambda: received.content(SESSION, name),
        lambda: trees.remove(str(tmp_path), name),
        lambda: Outbox(str(tmp_path), name),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_r3_a_claim_is_forgotten_when_its_machine_has_run_the_session_since(
    tmp_path: Path,
) -> None:
    """desk -> vault -> desk -> vault."""
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    received.commit(SESSION, CHECKPOINT, "desk")
    assert received.taken_of(SESSION, "desk") is None
    received.take(SESSION, 4, 1000.0, "desk")
    received.drop(SESSION)
    found = received.taken_of(SESSION, "desk")
    assert found is not None and found["epoch"] == 4
    with pytest.raises(Refused, match="incarnation 4"):
        described(received, COPY, "desk")
    with pytest.raises(NotFound):
        received.commit(SESSION, CHECKPOINT, "desk")
    described(received, replace(COPY, epoch=5), "desk", "cp-ba9876543210")
    received.commit(SESSION, "cp-ba9876543210", "desk")
    assert received.taken_of(SESSION, "desk") is None
    received.take(SESSION, 6, 2000.0, "desk")
    received.untake(SESSION, "desk")
    assert received.taken_of(SESSION, "desk") is None


def test_r3_a_claim_outlives_claims_of_later_machines(tmp_path: Path) -> None:
    """The answer to desk was lost; the session went on to a third machine, and came back."""
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    received.commit(SESSION, CHECKPOINT, "desk")
    received.take(SESSION, 4, 1000.0, "desk")
    received.drop(SESSION)
    described(received, replace(COPY, epoch=5), "third", "cp-ba9876543210")
    received.commit(SESSION, "cp-ba9876543210", "third")
    before = received.taken_of(SESSION, "desk")
    received.take(SESSION, 6, 2000.0, "third")
    after = received.taken_of(SESSION, "desk")
    assert before is not None and after is not None and before["epoch"] == after["epoch"] == 4


def test_t4_a_description_of_another_incarnation_than_offered_is_refused(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    data = copies.encode(COPY)
    sha = hashlib.sha256(data)
    received.offer(SESSION, CHECKPOINT, "desk", sha.hexdigest(), len(data), COPY.epoch + 1)
    sink = received.sink(SESSION, CHECKPOINT, "desk")
    sink.feed(sha.digest() + bytes(8) + len(data).to_bytes(8, "big") + data)
    with pytest.raises(Refused, match="another copy"):
        received.commit(SESSION, CHECKPOINT, "desk")


def test_t4_a_machine_withdraws_only_what_it_brought(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    assert not received.withdrawn(SESSION, "other")
    received.commit(SESSION, CHECKPOINT, "desk")
    assert not received.withdrawn(SESSION, "other") and received.withdrawn(SESSION, "desk")
    assert [one.checkpoint for one in received.of(SESSION)] == [CHECKPOINT]


def contents(*sizes: int) -> tuple[Copy, list[bytes]]:
    made = [os.urandom(size) for size in sizes]
    named = [(len(data), hashlib.sha256(data).hexdigest()) for data in made]
    return replace(COPY, parts={f"objects/{sha}": (size, sha) for size, sha in named}), made


def test_t4_transfers_at_the_same_time_get_no_more_room_than_there_is(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1_000_000)
    for number, session in enumerate((SESSION, "ba9876543210")):
        copy, _ = contents(600_000)
        described(received, replace(copy, session=session), "desk", manifest=False)
        if number:
            with pytest.raises(Refused, match="room"):
                received.sink(session, CHECKPOINT, "desk")
        else:
            first = received.sink(session, CHECKPOINT, "desk")
    first.close()
    received.sink("ba9876543210", CHECKPOINT, "desk").close()


def test_t4_a_second_transfer_of_a_session_ends_the_first(tmp_path: Path) -> None:
    """Else two transfers would write one file, longer than its size."""
    received = Received(str(tmp_path), 1 << 30)
    copy, [data] = contents(1000)
    described(received, copy, "desk")
    first = received.sink(SESSION, CHECKPOINT, "desk")
    first.feed(message(data)[:500])
    second = received.sink(SESSION, CHECKPOINT, "desk")
    with pytest.raises(Refused, match="another transfer"):
        first.feed(message(data)[500:])
    second.feed(message(data, 500 - HEADER_BYTES))
    second.close()
    assert received.commit(SESSION, CHECKPOINT, "desk").checkpoint == CHECKPOINT
    received.verify(copy)


def test_an_offer_that_was_not_completed_keeps_no_old_contents(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, replace(COPY, name="never"), "desk", "cp-000000000000")
    for number in range(1, 5):
        copy, [data] = contents(1000 + number)
        copy = replace(copy, at=float(number))
        described(received, copy, "desk", f"cp-00000000000{number}")
        sink = received.sink(SESSION, f"cp-00000000000{number}", "desk")
        sink.feed(message(data))
        sink.close()
        received.commit(SESSION, f"cp-00000000000{number}", "desk")
    place = tmp_path / "copies" / SESSION
    assert len(received.of(SESSION)) == 2 and not [*place.glob("*.offer")]
    assert len([*(place / "objects").iterdir()]) == 4


def test_an_offer_that_never_arrived_is_forgotten_after_some_time(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk")
    [path] = (tmp_path / "copies" / SESSION).glob("*.offer")
    assert received.expired(path.stat().st_mtime - 1) == []
    assert received.expired(path.stat().st_mtime + 1) == [(SESSION, CHECKPOINT, "desk")]
    assert not [*(tmp_path / "copies" / SESSION / "objects").iterdir()]
    with pytest.raises(NotFound):
        received.sink(SESSION, CHECKPOINT, "desk")


def test_t4_a_part_longer_than_its_content_does_not_stop_a_transfer(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    copy, [data] = contents(100)
    described(received, copy, "desk")
    (tmp_path / "copies" / SESSION / "parts" / hashlib.sha256(data).hexdigest()).write_bytes(
        bytes(200)
    )
    sink = received.sink(SESSION, CHECKPOINT, "desk")
    sink.feed(message(data))
    sink.close()
    assert received.commit(SESSION, CHECKPOINT, "desk").epoch == COPY.epoch


@pytest.mark.parametrize(
    "fields",
    [{"session": "ba9876543210"}, {"id": "cp-ba9876543210"}, {"epoch": 9}, {"ended": False}],
)
def test_t4_a_checkpoint_of_another_session_or_moment_is_refused(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    received = Received(str(tmp_path), 1 << 30)
    described(received, COPY, "desk", **fields)
    with pytest.raises(Refused, match="another one"):
        received.commit(SESSION, CHECKPOINT, "desk")


def test_t4_a_machine_brings_no_session_in_the_name_of_another_machine(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    named = replace(COPY, sender="ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
    described(received, named, "desk")
    with pytest.raises(Refused, match="another one"):
        received.commit(SESSION, CHECKPOINT, "desk")
    assert received.of(SESSION) == []


def test_t4_a_second_machine_does_not_end_a_transfer(tmp_path: Path) -> None:
    received = Received(str(tmp_path), 1 << 30)
    copy, [data] = contents(1000)
    described(received, copy, "desk")
    described(received, replace(COPY, name="evil"), "other", "cp-ba9876543210")
    sink = received.sink(SESSION, CHECKPOINT, "desk")
    sink.feed(message(data)[:500])
    with pytest.raises(NotAllowed):
        received.sink(SESSION, "cp-ba9876543210", "other")
    sink.feed(message(data)[500:])
    sink.close()
    received.sink(SESSION, "cp-ba9876543210", "other").close()
    assert received.commit(SESSION, CHECKPOINT, "desk").checkpoint == CHECKPOINT
