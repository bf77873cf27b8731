"""Prepares the restore of a session: the request to the nursery and the screen.

The new incarnation continues the numbers of the last: the next epoch, the next offset of the
output, and the same numbers of acts, so that no act is taken twice.
"""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.session.limits import Limits
from holdfast.host.checkpoints import halts, machine
from holdfast.host.checkpoints.packing import Done
from holdfast.host.checkpoints.store import Checkpoints
from holdfast.host.lifecycle.limits import Wanted, of_label
from holdfast.host.processes import process
from holdfast.host.runtime import criu
from holdfast.host.storage.store import SessionRow
from holdfast.host.terminal import view
from holdfast.model.errors import Impossible
from holdfast.model.limits import RING_BYTES_MAX
from holdfast.wire import keeper as wire

PATIENCE_S: Final = 20.0  # for a small session
BYTES_PER_S: Final = 0.1e9  # far below the 0.7 to 1 GB/s that were measured
RECOVER: Final = "restore it on a machine like the one that it was saved on"
UNSEEN_BYTES: Final = 1 << 40  # more than a session prints without a host
_LAST = struct.Struct("<Q")


class Screen(NamedTuple):
    """Of the moment of a checkpoint: the offset up to which it shows output, notes, and itself."""

    offset: int
    notes: dict[str, Any]
    blob: bytes


class Prepared(NamedTuple):
    """A restore that can begin. `base`: the first offset of new output."""

    manifest: Manifest
    row: SessionRow
    label: dict[str, Any]
    request: wire.Spawn
    limits: Wanted
    place: Path
    kept: Path  # the archive of replaced contents
    screen: Screen
    base: int
    patience_s: float


def prepare(checkpoints: Checkpoints, manifest: Manifest, last: SessionRow, done: Done) -> Prepared:
    """Check every file, and lay out the images. `last`: the row of the last incarnation."""
    found = criu.find(checkpoints.criu)
    if why := machine.obstacle(manifest.machine, found):
        raise Impossible(f"{manifest.id} cannot be restored here: {why}", RECOVER)
    plan = checkpoints.plan(manifest)
    screen = read_screen(checkpoints, manifest)
    base, output = _output(checkpoints, manifest, last)
    epoch = last.epoch + 1
    place = checkpoints.unpack(manifest, epoch, output[-plan.ring_bytes :], done)
    halts.write(place, manifest)
    try:
        machine.check_files(place, plan.containment, manifest.written)
        if plan.containment is not None:
            plan = plan._replace(containment=machine.still_there(plan.containment))
        else:
            machine.check_numbers(place)
        kept = checkpoints.replaced(manifest.session, epoch, place)
    except BaseException:
        checkpoints.scratch.clear(place)
        raise
    limited = of_label(manifest.label)
    label = {**manifest.label, "name": last.name}
    given = {"id": manifest.session, "name": last.name, "state": "restoring", "epoch": epoch}
    row = SessionRow(**{**manifest.row, **given})
    row.boot, row.reason, row.viewers = process.boot_id(), "", 0
    row.rehomable = last.rehomable  # an operator may have changed that since the checkpoint
    row.output_start = row.output_end = base  # until a host files the end
    cols, rows = manifest.size
    return Prepared(
        manifest,
        row,
        label,
        plan._replace(
            epoch=epoch,
            argv=(),
            label=json.dumps(label).encode(),
            cols=cols,
            rows=rows,
            base=base,
            accepted=max(manifest.sequence, 0),
            origins=tuple(wire.Origin(*one) for one in manifest.origins),
            thaw=os.fsencode(place),
            criu=tuple(map(os.fsencode, (found.program, found.loader, *found.libraries))),
        ),
        Wanted(Limits(**{name: one["limit"] for name, one in limited.items()}), frozenset(limited)),
        place,
        kept,
        screen,
        base,
        PATIENCE_S + manifest.bytes / BYTES_PER_S,
    )


def _output(checkpoints: Checkpoints, manifest: Manifest, last: SessionRow) -> tuple[int, bytes]:
    """The first offset of new output, and the bytes before.

    A lost incarnation may have printed more after the checkpoint. Those offsets are used up. If no
    host saw the end, their number is unknown, and the output continues far behind.
    """
    saved = checkpoints.content(manifest, forms.OUTPUT)
    ended, output = last_output(checkpoints, manifest.session)
    heads = (one.head for one in checkpoints.headers(manifest.session))
    base = max(manifest.head, ended, last.output_end, *heads)
    seen = ended or last.state == "checkpointed" or last.output_end > last.output_start
    if not seen:
        base += UNSEEN_BYTES
    if base == manifest.head:
        return base, saved
    return base, output if base == ended else b""


def keep_last_output(checkpoints: Checkpoints, session: str, end: int, output: bytes) -> None:
    """Keep the output of an incarnation that ends, for a later restore."""
    checkpoints.keep_last_output(session, _LAST.pack(end) + output)


def last_output(checkpoints: Checkpoints, session: str) -> tuple[int, bytes]:
    data = checkpoints.last_output(session)
    if len(data) >= _LAST.size:
        return _LAST.unpack_from(data)[0], data[_LAST.size :][-RING_BYTES_MAX:]
    return 0, b""


def read_screen(checkpoints: Checkpoints, manifest: Manifest) -> Screen:
    """Impossible if it is not a screen: another machine may have made the checkpoint."""
    head, _, blob = checkpoints.content(manifest, forms.SCREEN).partition(b"\n")
    try:
        found = json.loads(head)
        if not 0 <= (offset := int(found["offset"])) < 1 << 63:
            raise ValueError(f"it is of output at {offset}")
        return Screen(offset, dict(found["notes"]), blob)
    except (ValueError, KeyError, TypeError) as e:
        why = f"the screen of {manifest.id} cannot be read: {type(e).__name__}: {e}"
        raise Impossible(why, "an older checkpoint may do: `holdfast checkpoint --list`") from e


def show(screen: Screen, manifest: Manifest, base: int, snapshot_fd: int) -> None:
    """Give the new keeper the screen of the moment of the checkpoint.

    `base`: the first offset of new output.
    """
    offset = screen.offset if base == manifest.head else base
    notes = {**screen.notes, "scanned": base, "active": time.time()}
    view.store(snapshot_fd, offset, notes, screen.blob)
