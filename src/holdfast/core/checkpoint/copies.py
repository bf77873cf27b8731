"""The description of a copy: a checkpoint that another machine keeps, with all that belongs to it.

A copy is complete when every object of `objects` is there. An object is the content of a file, and
its name is the SHA-256 of the content. So a second copy sends changed contents only. The receiver
trusts no path of the sender: `decode` accepts only trees in which every parent is a directory of
the same tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.pieces import OBJECT_MAX
from holdfast.model import signing
from holdfast.model.contained import NETWORKS
from holdfast.model.errors import Usage
from holdfast.model.ids import check_name, is_checkpoint_id, is_digest, is_session_id

FORMAT: Final = 1
BYTES_MAX: Final = 64 << 20  # of a description
KEY_BYTES_MAX: Final = 4096  # of the sealed key
MOUNTS_MAX: Final = 4096
NAME_BYTES_MAX: Final = 255  # of a file
ENTRIES_MAX: Final = 200_000  # files and directories that travel with a checkpoint
FILES_BYTES_MAX: Final = 8 << 30  # of these files
NEEDS_MAX: Final = 4096
PATH_BYTES_MAX: Final = 4096
TEXT_CHARS: Final = 300
DIRECTORY, FILE, LINK, FIFO = "d", "f", "l", "p"
# Where a tree belongs: directories of the session itself, and places that it was given to write.
PRIVATE, READABLE, WRITABLE, NOTES, SHARED = "private", "readable", "writable", "notes", "shared"
ROLES: Final = (PRIVATE, READABLE, WRITABLE, NOTES, SHARED)
_OF_HOST: Final = (READABLE, NOTES)  # in these the host itself writes files
KEY: Final = "key"  # the part with the secret of the checkpoint, sealed to the receiver
_PARTS_MAX: Final = {forms.NAME: forms.BYTES_MAX, KEY: KEY_BYTES_MAX}
_RESERVED: Final = ("/proc", "/dev", "/sys", "/.holdfast")
LOST_EPOCHS: Final = 100  # the machine that is lost may have begun incarnations unknown here


class Unusable(Exception):
    """A description that this release cannot use; the text says why."""


class Entry(NamedTuple):
    """A file of a tree; an empty path is the top directory.

    `ref`: the object of a file, or the target of a link.
    """

    path: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    ref: str


class Root(NamedTuple):
    """A tree of files. `target`: of SHARED, the path inside the session."""

    role: str
    target: str
    entries: tuple[Entry, ...]


class Machine(NamedTuple):
    """The facts about a machine that decide whether it can run the saved processes."""

    processor: str
    flags: tuple[str, ...]
    kernel: str
    uid: int
    gid: int
    home: str  # of the account: the session sees its own home at this path
    criu: str  # empty: none


class Need(NamedTuple):
    """A file that the processes have open or mapped, and that does not travel."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Copy:
    """`parts`: the files of the checkpoint. `mounts`: kind, target and source within SHARED trees.

    `record`: number and hash of the last entry of the session's record at that moment. `final`: the
    processes ended with the checkpoint.
    """

    session: str
    name: str
    checkpoint: str
    epoch: int
    at: float
    made: float
    final: bool
    sender: str  # the machine's key
    sender_name: str
    machine: Machine
    needs: tuple[Need, ...]
    parts: dict[str, tuple[int, str]]
    roots: tuple[Root, ...]
    mounts: tuple[tuple[int, str, str], ...]
    net: str
    record: tuple[int, str]
    format: int = FORMAT


def encode(copy: Copy) -> bytes:
    return json.dumps(asdict(copy), separators=(",", ":")).encode()


def decode(data: bytes) -> Copy:
    """Unusable, with the reason, if a receiver must not use it."""
    if len(data) > BYTES_MAX:
        raise Unusable("the description is too long")
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise Unusable(f"it has format {found['format']}; this release knows {FORMAT}")
        machine = found["machine"]
        copy = Copy(
            **{
                **found,
                "machine": _machine(machine),
                "needs": tuple(Need(str(p), int(s), str(h)) for p, s, h in found["needs"]),
                "parts": {str(n): (int(s), str(h)) for n, (s, h) in found["parts"].items()},
                "roots": tuple(
                    Root(str(role), str(target), tuple(map(_entry, entries)))
                    for role, target, entries in found["roots"]
                ),
                "mounts": tuple((int(k), str(t), str(s)) for k, t, s in found["mounts"]),
                "record": (int(found["record"][0]), str(found["record"][1])),
            }
        )
        _check(copy)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as e:
        raise Unusable(f"the description is damaged: {type(e).__name__}: {e}"[:200]) from e
    return copy


def _machine(found: list[Any] | dict[str, Any]) -> Machine:
    values = list(found.values()) if isinstance(found, dict) else found
    processor, flags, kernel, uid, gid, home, criu = values
    return Machine(
        str(processor), tuple(map(str, flags)), str(kernel), int(uid), int(gid), str(home),
        str(criu),
    )  # fmt: skip


def machine_of(found: Any) -> Machine:
    """Unusable if these are no facts about a machine."""
    try:
        return _machine(found)
    except (ValueError, TypeError, OverflowError) as e:
        raise Unusable("the facts about the machine are damaged") from e


def needs_of(found: Any) -> tuple[Need, ...]:
    try:
        needs = tuple(Need(str(p), int(s), str(h)) for p, s, h in found)
        _check_needs(needs)
    except (ValueError, TypeError) as e:
        raise Unusable("the list of needed files is damaged") from e
    return needs


def _check_needs(needs: tuple[Need, ...]) -> None:
    if len(needs) > NEEDS_MAX:
        raise Unusable("the processes need too many files")
    for one in needs:
        if not one.path.startswith("/") or not _is_path(one.path):
            raise Unusable(f"{one.path[:80]!a} is no path of a needed file")
        _check_object(one.size, one.sha256)


def _entry(found: list[Any]) -> Entry:
    path, kind, mode, uid, gid, mtime, size, ref = found
    return Entry(
        str(path), str(kind), int(mode), int(uid), int(gid), int(mtime), int(size), str(ref)
    )


def _check(copy: Copy) -> None:
    texts = (copy.session, copy.name, copy.checkpoint, copy.sender, copy.sender_name, copy.net)
    if not all(isinstance(one, str) and len(one) <= TEXT_CHARS for one in texts):
        raise Unusable("a text is missing or too long")
    try:
        check_name(copy.name)
    except Usage as e:
        raise Unusable("its session has no valid name") from e
    if not copy.sender_name.isprintable():
        raise Unusable("its machine has no valid name")
    try:
        signing.read(copy.sender)
    except ValueError as e:
        raise Unusable("it names no machine") from e
    if not isinstance(copy.final, bool):
        raise Unusable("it does not say whether the processes ended")
    if type(copy.epoch) is not int or copy.net not in ("", *NETWORKS):
        raise Unusable("its incarnation or its network is unknown")
    numbers = (copy.epoch, copy.at, copy.made, *copy.record[:1])
    if not all(isinstance(one, int | float) and 0 <= one < 1 << 53 for one in numbers):
        raise Unusable("a number is out of range")
    if not is_session_id(copy.session) or not is_checkpoint_id(copy.checkpoint):
        raise Unusable("it names no session or no checkpoint")
    for name, (size, sha) in copy.parts.items():
        _check_object(size, sha)
        if size > _PARTS_MAX.get(name, OBJECT_MAX if forms.is_file(name) else -1):
            raise Unusable(f"{name[:80]!a} is no file of a checkpoint, or too long")
    _check_needs(copy.needs)
    if sum(len(root.entries) for root in copy.roots) > ENTRIES_MAX:
        raise Unusable(f"it has more than {ENTRIES_MAX} files")
    for root in copy.roots:
        if root.role not in ROLES or (root.role == SHARED) != bool(root.target):
            raise Unusable("a tree has no known place")
        if root.target and not _is_target(root.target):
            raise Unusable(f"{root.target[:80]!a} cannot be a place in a session")
        check_tree(root.entries)
        if root.role in _OF_HOST and any(one.kind not in (DIRECTORY, FILE) for one in root.entries):
            raise Unusable("a directory of the host has other entries than files")
    _check_sizes(copy)
    places = [(root.role, root.target) for root in copy.roots]
    if len(set(places)) < len(places):  # a link of one could lead a file of the other elsewhere
        raise Unusable("two trees have the same place")
    shared = [root.target for root in copy.roots if root.role == SHARED]
    if len(copy.mounts) > MOUNTS_MAX:
        raise Unusable("it has too many mounts")
    for _, target, source in copy.mounts:
        inside = any(within(target, top) and within(source, top) for top in shared)
        if not inside or not _is_path(target) or not _is_path(source):
            raise Unusable(f"{target[:80]!a} does not travel with the session")


def check_manifest(copy: Copy, data: bytes) -> None:
    """Unusable unless the machine that the copy names has signed the checkpoint in it.

    So a machine cannot bring a session in the name of another machine.
    """
    try:
        found = forms.header(data)
    except forms.Unreadable as e:
        raise Unusable(f"{e}") from e
    named = (copy.session, copy.checkpoint, copy.epoch, copy.final)
    if found.maker != signing.read(copy.sender).hex() or named != (
        *(found.session, found.id, found.epoch),
        found.ended,
    ):
        raise Unusable("the checkpoint in it is another one")


def _check_sizes(copy: Copy) -> None:
    """Each content has one size, so that the room for the contents is the room for the files."""
    sizes = dict[str, int]()
    files = [(one.size, one.ref) for root in copy.roots for one in root.entries if one.kind == FILE]
    for size, sha in (*copy.parts.values(), *files):
        if sizes.setdefault(sha, size) != size:
            raise Unusable("a content has two sizes")
    if sum(size for size, _ in files) > FILES_BYTES_MAX:
        raise Unusable(f"its files have more than {FILES_BYTES_MAX >> 30} GiB")


def laid_out_bytes(copy: Copy) -> int:
    """Room on the disk for a session that begins from the copy, without directories."""
    files = sum(one.size for root in copy.roots for one in root.entries if one.kind == FILE)
    return files + sum(size for size, _ in copy.parts.values())


def _is_path(path: str) -> bool:
    """Whether the system can have a file of that path; ValueError if it cannot be encoded."""
    return "\0" not in path and len(path.encode("utf-8", "surrogateescape")) <= PATH_BYTES_MAX


def _is_target(path: str) -> bool:
    parts = path.split("/")[1:]
    return (
        path.startswith("/")
        and bool(parts[0])
        and not any(part in ("", ".", "..") for part in parts)
        and _is_path(path)
        and not any(within(path, top) for top in _RESERVED)
    )


def within(path: str, top: str) -> bool:
    """Whether a path without `..` is that directory or lies in it."""
    return (path == top or path.startswith(f"{top}/")) and ".." not in path.split("/")


def _check_object(size: int, sha: str) -> None:
    if not is_digest(sha) or not 0 <= size < 1 << 50:
        raise Unusable("an object has no hash or no size")


def check_tree(entries: Iterable[Entry]) -> None:
    """Unusable unless a receiver can make the entries in order, without following a link.

    The first entry may be the top directory itself, with an empty path.
    """
    directories, seen = {""}, set[str]()
    for number, one in enumerate(entries):
        if not number and not one.path and one.kind == DIRECTORY:
            continue
        parent, _, name = one.path.rpartition("/")
        if (
            name in ("", ".", "..")
            or not _is_path(one.path)
            or len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX
            or parent not in directories
            or one.path in seen
            or one.path.startswith("/")
        ):
            raise Unusable(f"{one.path[:80]!a} does not lie in its tree")
        if one.kind not in (DIRECTORY, FILE, LINK, FIFO) or not 0 <= one.mode <= 0o7777:
            raise Unusable(f"{one.path[:80]!a} is of no known kind")
        if min(one.uid, one.gid) < 0 or max(one.uid, one.gid) >= 1 << 32:
            raise Unusable(f"{one.path[:80]!a} has no owner")
        if one.kind == FILE:
            _check_object(one.size, one.ref)
        if abs(one.mtime_ns) >= 1 << 63:
            raise Unusable(f"{one.path[:80]!a} has no time")
        if one.kind == LINK and (not one.ref or not _is_path(one.ref)):
            raise Unusable(f"{one.path[:80]!a} is a link to nothing")
        seen.add(one.path)
        if one.kind == DIRECTORY:
            directories.add(one.path)


def objects(copy: Copy) -> dict[str, int]:
    """The hashes of all contents, and their sizes."""
    found = {sha: size for size, sha in copy.parts.values()}
    for root in copy.roots:
        found |= {one.ref: one.size for one in root.entries if one.kind == FILE}
    return found


def next_epoch(epoch: int, lost: bool) -> int:
    """The epoch of the incarnation that a copy begins.

    A lost machine may have begun incarnations after the copy. So the next hundred is taken, and no
    reference means two incarnations.
    """
    return (epoch // LOST_EPOCHS + 1) * LOST_EPOCHS if lost else epoch + 1


def differences(made_on: Machine, here: Machine) -> tuple[str, ...]:
    """Why processes of one machine cannot go on at another, in sentences."""
    found = []
    if made_on.processor != here.processor:
        return (f"the session runs on {made_on.processor}, and this machine is {here.processor}",)
    if lacking := sorted(set(made_on.flags) - set(here.flags)):
        found.append(f"this processor lacks {', '.join(lacking[:8])}")
    if _version(here.kernel) < _version(made_on.kernel):
        found.append(f"this kernel, {here.kernel}, is older than {made_on.kernel} there")
    if (made_on.uid, made_on.gid) != (here.uid, here.gid):
        found.append(
            f"its files and processes belong to uid {made_on.uid}, and this host has uid {here.uid}"
        )
    if made_on.home != here.home:
        found.append(f"its home is {made_on.home}, and the home of this account is {here.home}")
    if not here.criu:
        found.append("this machine has no CRIU")
    return tuple(found)


def _version(kernel: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", kernel)[:2])


def retry_s(failures: int) -> float:
    """The pause before the next attempt to send a copy."""
    return float(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures, 16)))


def due_s(last: float, every_s: float, now: float) -> float:
    """The pause before the next scheduled copy. A clock that was set back does not make it long."""
    return min(every_s, max(0.0, last + every_s - now))


RETRY_FIRST_S: Final = 5.0
RETRY_MAX_S: Final = 600.0
EVERY_MIN_S: Final = 10.0  # a checkpoint stops all programs for a moment
