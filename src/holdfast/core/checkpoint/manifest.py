"""The manifest of a checkpoint: `manifest.json` in its directory.

    <state>/checkpoints/SESSION/CHECKPOINT/
        manifest.json   this module; written last, so a directory without it is no checkpoint
        images/         CRIU's images, memory.tar and written.tar (holdfast/checkpointer)
        output          the ring up to the moment of the checkpoint
        screen          the snapshot of the screen, and the host's notes
        plan            how the session was made: a request to the nursery

FORMAT rises when an older release could not read a manifest. Unknown keys are ignored, so that a
later release can add keys, for sealed or incremental images. `files` has the size and SHA-256 of
every file that a restore reads.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

FORMAT: Final = 1
NAME: Final = "manifest.json"
IMAGES, OUTPUT, SCREEN, PLAN = "images", "output", "screen", "plan"
PREFIX: Final = "cp-"
COMPRESSION: Final = "none"
_ID: Final = re.compile(r"cp-[0-9a-f]{12}")
BYTES_MAX: Final = 16 << 20  # of a manifest


class Unreadable(Exception):
    """A manifest that this release cannot use; the text says why."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts about a saved session. `ended`: the processes ended with the checkpoint.

    `sequence` and `origins` are the watermark of acts: the last act that the session had taken, and
    the last act of each client. `head`: the end of the output at that moment.
    """

    id: str
    session: str
    name: str
    epoch: int
    at: float
    by: str
    ended: bool
    bytes: int
    head: int
    sequence: int
    size: tuple[int, int]
    label: dict[str, Any]
    row: dict[str, Any]  # of the table `sessions`
    files: dict[str, tuple[int, str]]
    machine: dict[str, str]  # of the machine: boot, kernel, processor, criu
    terminal: tuple[int, ...] = ()  # termios flags
    origins: tuple[tuple[int, int, int], ...] = ()
    losses: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # files open for writing, which were copied
    frozen_ms: float = 0.0
    took_ms: float = 0.0
    holdfast: str = ""
    compression: str = COMPRESSION
    format: int = FORMAT
    more: dict[str, Any] = field(default_factory=dict)


_FIELDS: Final = {one.name for one in fields(Manifest)}


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def encode(manifest: Manifest) -> bytes:
    return json.dumps(asdict(manifest), indent=1, sort_keys=True).encode() + b"\n"


def decode(data: bytes) -> Manifest:
    """Unreadable, with the reason, if this release cannot use it."""
    try:
        found = json.loads(data)
        if found["format"] > FORMAT:
            raise Unreadable(
                f"it has format {found['format']}, and this release reads up to {FORMAT}"
            )
        if found["compression"] != COMPRESSION:
            raise Unreadable(f"its images are compressed by {found['compression']}")
        known = {name: value for name, value in found.items() if name in _FIELDS}
        for name in ("terminal", "losses", "written"):
            known[name] = tuple(known[name])
        cols, rows = known["size"]
        return Manifest(
            **{
                **known,
                "size": (int(cols), int(rows)),
                "origins": tuple((int(o), int(n), int(s)) for o, n, s in known["origins"]),
                "files": {n: (int(size), str(sha)) for n, (size, sha) in known["files"].items()},
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Unreadable(f"its manifest is damaged: {type(e).__name__}: {e}") from e


def newest(manifests: list[Manifest]) -> Manifest | None:
    return max(manifests, key=lambda one: one.at, default=None)
