"""Prepares the restore of a session: the request to the nursery and the screen.

The new incarnation continues the numbers of the last: the next epoch, the next offset of the
output, and the same numbers of acts, so that no act is taken twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.session.limits import Limits
from holdfast.host.checkpoints.store import Checkpoints, read_plan
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
UNSEEN_BYTES: Final = 1 << 40  # more than a session prints without a host
_LAST = struct.Struct("<Q")


class Prepared(NamedTuple):
    """A restore that can begin. `base`: the first offset of new output."""

    manifest: Manifest
    row: SessionRow
    label: dict[str, Any]
    request: wire.Spawn
    limits: Wanted
    place: Path
    base: int
    patience_s: float


def prepare(checkpoints: Checkpoints, manifest: Manifest, last: SessionRow) -> Prepared:
    """Check every file, and lay out the images. `last`: the row of the last incarnation."""
    checkpoints.verify(manifest)
    _check_machine(manifest)
    found = criu.find(checkpoints.criu)
    directory = checkpoints.place(manifest.session, manifest.id)
    plan = read_plan((directory / forms.PLAN).read_bytes())
    base, output = _output(checkpoints, manifest, last)
    epoch = last.epoch + 1
    place = checkpoints.copy_for_thaw(manifest, epoch, output[-plan.ring_bytes :])
    limited = of_label(manifest.label)
    label = {**manifest.label, "name": last.name}
    row = SessionRow(**{**manifest.row, "name": last.name, "state": "restoring", "epoch": epoch})
    row.boot, row.reason, row.viewers = process.boot_id(), "", 0
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
        base,
        PATIENCE_S + manifest.bytes / BYTES_PER_S,
    )


def _check_machine(manifest: Manifest) -> None:
    made = manifest.machine.get("processor")
    if made != os.uname().machine:
        raise Impossible(f"{manifest.id} was made on {made}; this machine is {os.uname().machine}")


def _output(checkpoints: Checkpoints, manifest: Manifest, last: SessionRow) -> tuple[int, bytes]:
    """The first offset of new output, and the bytes before.

    A lost incarnation may have printed more after the checkpoint. Those offsets are used up. If no
    host saw the end, their number is unknown, and the output continues far behind.
    """
    saved = (checkpoints.place(manifest.session, manifest.id) / forms.OUTPUT).read_bytes()
    ended, output = last_output(checkpoints, manifest.session)
    heads = (one.head for one in checkpoints.of(manifest.session))
    base = max(manifest.head, ended, last.output_end, *heads)
    seen = ended or last.state == "checkpointed" or last.output_end > last.output_start
    if not seen:
        base += UNSEEN_BYTES
    if base == manifest.head:
        return base, saved
    return base, output if base == ended else b""


def keep_last_output(checkpoints: Checkpoints, session: str, end: int, output: bytes) -> None:
    """Keep the output of an incarnation that ends, for a later restore."""
    checkpoints.last_output(session).write_bytes(_LAST.pack(end) + output)


def last_output(checkpoints: Checkpoints, session: str) -> tuple[int, bytes]:
    with contextlib.suppress(OSError, struct.error):
        data = checkpoints.last_output(session).read_bytes()
        return _LAST.unpack_from(data)[0], data[_LAST.size :][-RING_BYTES_MAX:]
    return 0, b""


def show(checkpoints: Checkpoints, made: Prepared, snapshot_fd: int) -> None:
    """Give the new keeper the screen of the moment of the checkpoint."""
    directory = checkpoints.place(made.manifest.session, made.manifest.id)
    head, _, blob = (directory / forms.SCREEN).read_bytes().partition(b"\n")
    found = json.loads(head)
    offset = found["offset"] if made.base == made.manifest.head else made.base
    notes = {**found["notes"], "scanned": made.base, "active": time.time()}
    view.store(snapshot_fd, offset, notes, blob)
