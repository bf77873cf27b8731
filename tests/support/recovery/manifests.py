"""A manifest with every field, for tests."""

from __future__ import annotations

from holdfast.core.checkpoint.manifest import Manifest
from holdfast.core.checkpoint.pieces import Part
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.model import signing

KEY = ImageKey("0123456789ab", bytes(32))
MACHINE = bytes(range(32))
MADE = Manifest(
    id="cp-0123456789ab",
    session="0123456789ab",
    name="work",
    epoch=2,
    at=1700000000.5,
    by="ann",
    ended=True,
    bytes=4711,
    head=100,
    sequence=7,
    size=(80, 24),
    label={"name": "work"},
    row={"argv": ["bash"]},
    files={f"objects/{'ab' * 32}": (10, "ab" * 32)},
    machine={"processor": "x86_64"},
    tree={"images/pstree.img": (Part(0, 0, 10),)},
    marks=("cd" * 20,),
    terminal=(1, 2, 3, 4),
    origins=((9, 3, 7),),
    losses=("a loss",),
    written=("/w/file",),
    added=10,
    key=KEY.id,
    maker=signing.public(MACHINE).hex(),
)
