"""The manifest of a checkpoint, format 3, and the files that it names.

    <state>/checkpoints/SESSION/
        CHECKPOINT/manifest.json   this module; written last: a directory without it is incomplete
        objects/SHA-256            sealed pieces, which checkpoints of the session share
        keys/KEY/MACHINE           the secret of the checkpoints, sealed to a machine

    manifest.json ::= HEADER newline SIGNATURE newline

HEADER is one line of JSON. It has what the owner of a disk may know (PLAIN): ids, times and sizes,
and size and SHA-256 of every stored file (`objects`). All other facts are sealed in it, with the
`tree`: which parts of which objects make each file. SIGNATURE is that of the machine that made the
checkpoint, over the exact bytes of HEADER. So a machine that only stores a checkpoint can neither
read nor alter it, and can check that it is complete.

FORMAT rises when an older release could not read a checkpoint. Unknown keys are ignored. Format 2
differs in the marks of its objects only.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Protocol

from holdfast.core.checkpoint.pieces import OBJECT_MAX, Part
from holdfast.model import signing
from holdfast.model.ids import is_session_id
from holdfast.model.words import words_of

FORMAT: Final = 3
_OLDEST: Final = 2
_READABLE: Final = f"{_OLDEST} to {FORMAT}"
PREFIX: Final = "cp-"
NAME: Final = "manifest.json"
COMING: Final = "manifest.coming"  # of a checkpoint that is being copied here
IMAGES, OUTPUT, SCREEN, PLAN = "images", "output", "screen", "plan"
OBJECTS, KEYS = "objects", "keys"
DOMAIN: Final = "checkpoint/2"  # of the signature
BYTES_MAX: Final = 64 << 20  # of a manifest: some 100 GB of memory
_FACTS: Final = "facts"
_ID: Final = re.compile(r"cp-[0-9a-f]{12}")
_KEY: Final = re.compile(r"[0-9a-f]{16}")
_FILE: Final = re.compile(rf"{OBJECTS}/[0-9a-f]{{64}}")


class Damaged(Exception):
    """The bytes are not what was sealed, or another key sealed them."""


class Secret(Protocol):
    """The key that seals the facts (host/checkpoints/sealing.py)."""

    @property
    def id(self) -> str: ...

    def seal_facts(self, purpose: str, data: bytes) -> bytes: ...

    def open_facts(self, purpose: str, sealed: bytes) -> bytes:
        """Raises Damaged."""


class Unreadable(Exception):
    """A manifest that this release cannot use; the text says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """What can be read without a key. `files`: size and SHA-256 by path below the session.

    `bytes`: of all files before they were packed. `added`: bytes of stored files that no earlier
    checkpoint had. `head`: the end of the output. `key`: the id of the secret. `maker`: the
    Ed25519 key of the machine that made it.
    """

    id: str
    session: str
    epoch: int
    at: float
    ended: bool
    bytes: int
    added: int
    head: int
    key: str
    maker: str
    files: dict[str, tuple[int, str]]
    format: int = FORMAT

    @property
    def stored(self) -> int:
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts about a saved session. `ended`: the processes ended with the checkpoint.

    `sequence` and `origins` are the watermark of acts: the last act that the session had taken, and
    the last act of each client. `head`: the end of the output at that moment. `tree`: the parts of
    objects that make each file; a part names an object by its place in the sorted `files`. `marks`:
    of the objects, in that order (host/checkpoints/sealing.py).
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
    machine: dict[str, str]  # of the machine: boot, kernel, processor, cpu, criu
    tree: dict[str, tuple[Part, ...]]
    marks: tuple[str, ...]
    terminal: tuple[int, ...] = ()  # termios flags
    origins: tuple[tuple[int, int, int], ...] = ()
    losses: tuple[str, ...] = ()
    written: tuple[str, ...] = ()  # files open for writing, which were copied
    frozen_ms: float = 0.0
    took_ms: float = 0.0
    holdfast: str = ""
    connections: tuple[dict[str, Any], ...] = ()  # rows of core/session/connections.py
    key: str = ""
    maker: str = ""
    added: int = 0
    halted: str = ""  # the kind of halt (core/session/halt.py)
    stops: tuple[dict[str, Any], ...] = ()  # stopped operators: operator, by, how, pids inside
    once: tuple[Any, ...] = ()  # idempotency keys (host/storage/once_keys.py)
    in_flight: tuple[dict[str, Any], ...] = ()  # acts caught in the middle (acts_beside.py)
    entry: int = 0  # an entry of the record before that moment; later acts have later entries
    format: int = FORMAT
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        return sum(size for size, _ in self.files.values())

    def objects(self) -> list[str]:
        """Names of the objects, as `tree` counts them."""
        return [path.partition("/")[2] for path in sorted(self.files)]


PLAIN: Final = frozenset(one.name for one in fields(Header))
_LISTS: Final = words_of("terminal losses written marks connections stops once in_flight")
_KNOWN: Final = frozenset(one.name for one in fields(Manifest))


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Whether a secret may have that id."""
    return _KEY.fullmatch(text) is not None


def is_file(path: str) -> bool:
    """Whether a stored file may have that path below the session's directory."""
    return _FILE.fullmatch(path) is not None


def encode(manifest: Manifest, key: Secret, private: bytes) -> bytes:
    """Seal and sign. `private`: the Ed25519 key of this machine."""
    maker = signing.public(private).hex()
    found = asdict(replace(manifest, key=key.id, maker=maker, format=FORMAT))
    plain = {name: value for name, value in found.items() if name in PLAIN and name != "files"}
    plain["objects"] = {sha: size for size, sha in manifest.files.values()}
    facts = json.dumps({n: v for n, v in found.items() if n not in PLAIN}).encode()
    sealed = key.seal_facts(_beside(manifest.id), facts)
    line = json.dumps({**plain, "sealed": base64.b64encode(sealed).decode()}, sort_keys=True)
    signature = signing.sign(private, DOMAIN, line.encode())
    return f"{line}\n{signature.hex()}\n".encode()


def _beside(checkpoint: str) -> str:
    return f"{_FACTS}\0{checkpoint}"


def header(data: bytes) -> Header:
    """What can be read without a key, if the signature of its maker is right. Or Unreadable."""
    return _parsed(data)[0]


def decode(data: bytes, key: Secret) -> Manifest:
    """All facts. Unreadable, with the reason, if this release or this key cannot open them."""
    plain, sealed = _parsed(data)
    try:
        opened = key.open_facts(_beside(plain.id), sealed)
        known = {name: value for name, value in json.loads(opened).items() if name in _KNOWN}
        for name in _LISTS:
            known[name] = tuple(known.get(name, ()))
        cols, rows = known.pop("size")
        tree = {
            str(name): tuple(Part(*map(int, part)) for part in parts)
            for name, parts in known.pop("tree").items()
        }
        origins = tuple((int(o), int(n), int(s)) for o, n, s in known.pop("origins"))
        _check_label(known["label"])
        return Manifest(
            **{**known, **{name: getattr(plain, name) for name in PLAIN}},
            size=(int(cols), int(rows)),
            tree=tree,
            origins=origins,
        )
    except Damaged as e:
        raise Unreadable(f"its facts cannot be opened: {e}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise _damaged(e) from e


def _parsed(data: bytes) -> tuple[Header, bytes]:
    line, _, rest = data.partition(b"\n")
    try:
        if line == b"{":  # the form of format 1
            old = json.loads(data)["format"]
            raise Unreadable(f"it has format {old}, and this release reads {_READABLE}")
        found = json.loads(line)
        if not _OLDEST <= found["format"] <= FORMAT:
            raise Unreadable(f"it has format {found['format']}, and this release reads {_READABLE}")
        signature = bytes.fromhex(rest.strip().decode())
        maker = bytes.fromhex(found["maker"])
        if not signing.verify(maker, DOMAIN, line, signature):
            raise Unreadable("it was altered: the signature of its maker is wrong")
        read = Header(
            id=_text(found["id"], _ID),
            session=_session(found["session"]),
            epoch=int(found["epoch"]),
            at=float(found["at"]),
            ended=bool(found["ended"]),
            bytes=int(found["bytes"]),
            added=int(found["added"]),
            head=int(found["head"]),
            key=_text(found["key"], _KEY),
            maker=maker.hex(),
            files={
                _text(f"{OBJECTS}/{sha}", _FILE): (_size(size), sha)
                for sha, size in found["objects"].items()
            },
        )
        return read, base64.b64decode(found["sealed"], validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as e:
        raise _damaged(e) from e


def _damaged(problem: Exception) -> Unreadable:
    return Unreadable(f"its manifest is damaged: {type(problem).__name__}: {problem}")


def _text(value: str, form: re.Pattern[str]) -> str:
    if form.fullmatch(value) is None:
        raise ValueError(f"{value[:80]!a} is not of the form {form.pattern}")
    return value


def _check_label(label: dict[str, Any]) -> None:
    """Refuse a label whose places cannot be looked at: another machine may have made it."""
    places = (label.get("bounds") or {}).get("shares") or ()
    if not isinstance(places, list | tuple):
        raise TypeError("the shared places are no list")


def _session(value: str) -> str:
    if not is_session_id(value):
        raise ValueError("no id of a session")
    return value


def _size(value: int) -> int:
    if not 0 < int(value) <= OBJECT_MAX:
        raise ValueError(f"an object of {value} bytes")
    return int(value)


def age(one: Header | Manifest) -> tuple[int, float]:
    """Orders the checkpoints of a session, the oldest first: the machine's clock may step back."""
    return one.epoch, one.at


def newest(manifests: list[Manifest]) -> Manifest | None:
    return max(manifests, key=age, default=None)
