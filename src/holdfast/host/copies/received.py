"""The copies that this machine keeps for other machines.

    <state>/copies/SESSION/
        CHECKPOINT.json     the description of a complete copy (core/checkpoint/copies.py)
        CHECKPOINT.offer    of a copy that is being received: the sender, and the description's hash
        objects/SHA256      a verified content; parts/SHA256: the beginning of one
        taken.json          the session was taken over here: the epoch, the time, and the epoch by
                            the machine that had brought the copy

A session that was taken over needs its copies no more; `taken.json` stays, because the machine that
brought them may ask later.

A copy counts when its description has its name, which happens last. So a cut at any byte leaves the
copies before it as they were, and the next attempt goes on in the part that is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from holdfast.core.checkpoint import copies
from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.copies import Copy, Unusable
from holdfast.host.checkpoints.objects import write_whole
from holdfast.host.storage.spool_files import DiskFiles
from holdfast.model import ids
from holdfast.model.errors import Impossible, NotAllowed, NotFound, Refused, Usage
from holdfast.model.probe import probe

DIRECTORY: Final = "copies"
KEPT: Final = 2  # complete copies of a session
SPARE_BYTES: Final = 256 << 20  # that stay free on the disk
BLOCK: Final = 4096
PAGE: Final = 4000  # objects in one answer
_OBJECTS, _PARTS = "objects", "parts"
_SUFFIX, _OFFER, _SENDER, _TAKEN = ".json", ".offer", ".sender", "taken.json"
_FILES: Final = DiskFiles()
Json = dict[str, Any]


class Received:
    def __init__(self, state: str, quota: int) -> None:
        """`quota`: the bytes that copies may take in all."""
        self.top, self._quota = Path(state) / DIRECTORY, quota
        self._sinks = dict[str, Sink]()  # by session
        self._lock = threading.Lock()  # of the sinks

    # ------------------------------------------------------------ receiving

    def offer(
        self, session: str, checkpoint: str, sender: str, sha: str, size: int, epoch: int
    ) -> None:
        """Begin to receive a copy of that incarnation. `sha`, `size`: of its description."""
        if not 0 < size <= copies.BYTES_MAX:
            raise Refused(f"the description of the copy has {size} bytes")
        self._refuse_older(session, epoch)
        self._refuse_other(session, sender)
        self.room(size)
        place, offered = self._place(session), self._file(session, checkpoint, _OFFER)
        self._object(session, sha)
        for directory in (self.top, place, place / _OBJECTS, place / _PARTS):
            directory.mkdir(mode=0o700, exist_ok=True)
        offer = {"sender": sender, "sha256": sha, "size": size, "epoch": epoch}
        write_whole(_FILES, str(place), offered.name, json.dumps(offer).encode())

    def _refuse_older(self, session: str, epoch: int) -> None:
        """Refuse a copy of an incarnation before the one that was taken over here."""
        taken = self.taken(session)
        if taken is not None and epoch <= taken["epoch"]:
            raise Refused(
                f"the session went on here as incarnation {taken['epoch']}",
                "the incarnation there has to end",
                taken=taken["epoch"],
            )

    def _refuse_other(self, session: str, sender: str) -> None:
        for one in self.of(session):
            if self.sender(session, one.checkpoint) != sender:
                raise NotAllowed("another machine keeps copies of that session here")

    def missing(self, session: str, checkpoint: str, sender: str, after: int) -> Json:
        """The contents that are not here: hash, size and the bytes that are here, page by page."""
        wanted = self._wanted(session, checkpoint, sender)
        have = self._lacking(session, wanted)
        lacking = [*have]
        left = sum(wanted[sha] - have[sha] for sha in lacking)
        self.room(left)
        page = lacking[after : after + PAGE]
        return {
            "objects": [[sha, wanted[sha], have[sha]] for sha in page],
            "bytes": left,
            "more": after + len(page) < len(lacking),
        }

    def _lacking(self, session: str, wanted: dict[str, int]) -> dict[str, int]:
        """The contents that are not here, in order, and the bytes of each that are here."""
        lacking = [sha for sha in sorted(wanted) if not self._object(session, sha).exists()]
        parts = {sha: self._part(session, sha) for sha in lacking}
        for sha, part in parts.items():
            if _length(part) > wanted[sha]:  # of a description that named another size
                part.unlink()
        return {sha: _length(part) for sha, part in parts.items()}

    def room(self, wanted: int) -> int:
        """The bytes that copies may still take; Refused if they are fewer than `wanted`."""
        used = sum(size for size in _sizes(self.top))
        disk = os.statvfs(self.top if self.top.exists() else self.top.parent)
        free = disk.f_bavail * disk.f_frsize - SPARE_BYTES
        if used + wanted > self._quota or wanted > free:
            raise Refused(
                f"the copy needs {wanted / 1e6:.1f} MB; this machine has room for "
                f"{max(0, min(self._quota - used, free)) / 1e6:.1f} MB of copies",
                "`holdfast forget` there removes copies; recovery.copies_bytes is the limit",
            )
        return max(0, min(self._quota - used, free))

    def _wanted(self, session: str, checkpoint: str, sender: str) -> dict[str, int]:
        """All objects of the copy, as far as they are known: first its description."""
        offer = self._offered(session, checkpoint, sender)
        path = self._object(session, offer["sha256"])
        if not path.exists():
            return {offer["sha256"]: offer["size"]}
        return copies.objects(self._described(session, checkpoint, offer))

    def _described(self, session: str, checkpoint: str, offer: Json) -> Copy:
        path = self._object(session, offer["sha256"])
        try:
            copy = copies.decode(path.read_bytes())
        except Unusable as e:
            raise Refused(f"the copy cannot be used: {e}") from e
        if (copy.session, copy.checkpoint, copy.epoch) != (session, checkpoint, offer["epoch"]):
            raise Refused("the description is of another copy")
        return copy

    def _offered(self, session: str, checkpoint: str, sender: str) -> Json:
        with contextlib.suppress(OSError, ValueError):
            found: Json = json.loads(self._file(session, checkpoint, _OFFER).read_text())
            if found["sender"] == sender:
                return found
        raise NotFound("no such copy was offered")

    def sink(self, session: str, checkpoint: str, sender: str) -> Sink:
        """Take contents. A new transfer of a machine ends the one before: it may be dead."""
        wanted = self._wanted(session, checkpoint, sender)
        with self._lock:
            before = self._sinks.get(session)
            if before is not None and before.sender != sender:
                raise NotAllowed("another machine brings that session now")
            self._sinks.pop(session, None)
        if before is not None:
            before.close()
        have = self._lacking(session, wanted)
        left = sum(wanted[sha] - have[sha] for sha in have)
        with self._lock:
            self.room(left + sum(one.left for one in self._sinks.values()))
            self._sinks[session] = made = Sink(self, session, sender, wanted, left)
        return made

    def closed(self, session: str, sink: Sink) -> None:
        with self._lock:
            if self._sinks.get(session) is sink:
                del self._sinks[session]

    def commit(self, session: str, checkpoint: str, sender: str) -> Copy:
        """Make the copy durable and give it its name."""
        place = self._place(session)
        with contextlib.suppress(OSError, Unusable, NotFound):
            if self.sender(session, checkpoint) == sender:
                return self.read(session, checkpoint)  # a repeat of this request
        self._refuse_other(session, sender)
        offer = self._offered(session, checkpoint, sender)
        copy = self._described(session, checkpoint, offer)
        self._refuse_older(session, copy.epoch)
        for sha in copies.objects(copy):
            if not self._object(session, sha).exists():
                raise Refused("the copy is not complete")
        try:
            found = self._object(session, copy.parts[forms.NAME][1]).read_bytes()
            copies.check_manifest(copy, found)
        except (Unusable, KeyError) as e:
            raise Refused(f"the copy cannot be used: {e}") from e
        _FILES.sync_all(str(place))  # many small files make one call cheaper
        probe("copies.commit.begun")
        data = self._object(session, offer["sha256"]).read_bytes()
        write_whole(_FILES, str(place), f"{checkpoint}{_SENDER}", sender.encode())
        write_whole(_FILES, str(place), f"{checkpoint}{_SUFFIX}", data)
        probe("copies.committed")
        for path in place.glob(f"*{_OFFER}"):  # a machine sends one copy of a session at a time
            path.unlink(missing_ok=True)
        self._retain(session)
        return copy

    def _retain(self, session: str) -> None:
        """Remove all but the newest copies, and objects that no copy needs."""
        place, known = self._place(session), self.of(session)
        for old in known[:-KEPT]:
            for suffix in (_SUFFIX, _SENDER):
                self._file(session, old.checkpoint, suffix).unlink(missing_ok=True)
        if any(place.glob(f"*{_OFFER}")):
            return
        needed = {sha for one in known[-KEPT:] for sha in copies.objects(one)}
        for path in (*(place / _OBJECTS).iterdir(), *(place / _PARTS).iterdir()):
            if path.name not in needed or path.parent.name == _PARTS:
                path.unlink(missing_ok=True)

    def expired(self, before: float) -> list[tuple[str, str, str]]:
        """Forget offers older than that, with what has arrived: session, checkpoint and sender."""
        found = list[tuple[str, str, str]]()
        for session in self.sessions():
            for path in self._place(session).glob(f"*{_OFFER}"):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    if path.stat().st_mtime < before:
                        sender = str(json.loads(path.read_text())["sender"])
                        found.append((session, path.name.removesuffix(_OFFER), sender))
                        path.unlink()
            if found and found[-1][0] == session:
                self._retain(session)
        return found

    # ------------------------------------------------------------ finding

    def sessions(self) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(filter(ids.is_session_id, os.listdir(self.top)))
        return []

    def of(self, session: str) -> list[Copy]:
        """The complete copies of a session, oldest first."""
        found = []
        with contextlib.suppress(OSError):
            for name in os.listdir(self._place(session)):
                checkpoint = name.removesuffix(_SUFFIX)
                if name != checkpoint and ids.is_checkpoint_id(checkpoint):
                    with contextlib.suppress(OSError, Unusable):
                        found.append(self.read(session, checkpoint))
        return sorted(found, key=lambda one: one.at)

    def read(self, session: str, checkpoint: str) -> Copy:
        return copies.decode(self._file(session, checkpoint, _SUFFIX).read_bytes())

    def sender(self, session: str, checkpoint: str) -> str:
        """The operator of this machine that brought the copy."""
        try:
            return self._file(session, checkpoint, _SENDER).read_text()
        except OSError:
            return ""

    def content(self, session: str, sha: str) -> Path:
        """The file with a verified content."""
        return self._object(session, sha)

    def verify(self, copy: Copy) -> None:
        """Impossible if a content has changed on the disk since it arrived."""
        for sha, size in copies.objects(copy).items():
            digest, length = hashlib.sha256(), 0
            with contextlib.suppress(OSError), open(self._object(copy.session, sha), "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
                    length += len(piece)
            if length != size or digest.hexdigest() != sha:
                raise Impossible(
                    f"the copy {copy.checkpoint} is damaged here",
                    "choose an older copy: `holdfast checkpoint --list`",
                )

    # ------------------------------------------------------------ takeover

    def take(self, session: str, epoch: int, at: float, sender: str) -> None:
        """Durably claim the session for this machine, before its next incarnation begins."""
        before = (self.taken(session) or {}).get("of", {})
        self._claim(session, {"epoch": epoch, "at": at, "of": {**before, sender: epoch}})
        probe("copies.taken")

    def untake(self, session: str, sender: str) -> None:
        """The incarnation did not begin."""
        if (taken := self.taken(session)) is not None:
            left = {one: epoch for one, epoch in taken["of"].items() if one != sender}
            if left:
                self._claim(session, {**taken, "epoch": max(left.values()), "of": left})
            else:  # possible on a full disk too
                (self._place(session) / _TAKEN).unlink()
                _FILES.sync_path(str(self._place(session)))

    def _claim(self, session: str, taken: Json) -> None:
        place = self._place(session)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(_FILES, str(place), _TAKEN, json.dumps(taken).encode())

    def taken(self, session: str) -> Json | None:
        with contextlib.suppress(OSError, ValueError):
            found: Json = json.loads((self._place(session) / _TAKEN).read_text())
            if "of" not in found:  # of an older release
                found["of"] = dict.fromkeys(map(self._by, self.of(session)), found["epoch"])
            return found if found["of"] else None
        return None

    def taken_of(self, session: str, sender: str) -> Json | None:
        """The same, for the machine that brought the copy; not if it has run the session since."""
        taken = self.taken(session) or {"of": {}}
        brought = [one.epoch for one in self.of(session) if self._by(one) == sender]
        epoch = taken["of"].get(sender, 0)
        return {**taken, "epoch": epoch} if epoch > max(brought, default=0) else None

    def withdrawn(self, session: str, sender: str) -> bool:
        """Forget what that machine has offered; whether complete copies are from it."""
        with contextlib.suppress(OSError, ValueError):
            for path in self._place(session).glob(f"*{_OFFER}"):
                if json.loads(path.read_text())["sender"] == sender:
                    path.unlink(missing_ok=True)
        return any(self._by(one) == sender for one in self.of(session))

    def _by(self, copy: Copy) -> str:
        return self.sender(copy.session, copy.checkpoint)

    def drop(self, session: str) -> None:
        """Remove the copies; what was taken over here stays known."""
        place = self._place(session)
        for directory in (_OBJECTS, _PARTS):
            shutil.rmtree(place / directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in place.iterdir():
                if path.name != _TAKEN:
                    path.unlink()

    # ------------------------------------------------------------ paths

    # The only place where an id becomes part of a path.

    def _place(self, session: str) -> Path:
        if not ids.is_session_id(session):
            raise NotFound("no session has such an id")
        return self.top / session

    def _file(self, session: str, checkpoint: str, suffix: str) -> Path:
        if not ids.is_checkpoint_id(checkpoint):
            raise NotFound("no checkpoint has such an id")
        return self._place(session) / f"{checkpoint}{suffix}"

    def _object(self, session: str, sha: str) -> Path:
        return self._content(session, _OBJECTS, sha)

    def _part(self, session: str, sha: str) -> Path:
        return self._content(session, _PARTS, sha)

    def _content(self, session: str, kind: str, sha: str) -> Path:
        if not ids.is_digest(sha):
            raise NotFound("no content has such a name")
        return self._place(session) / kind / sha


class Sink:
    """Takes a stream of contents; each is a header of HEADER and its bytes.

    A content is verified before it gets its name; one with another hash is dropped. `left`: the
    bytes for which there is room until the end of the stream.
    """

    def __init__(
        self, received: Received, session: str, sender: str, wanted: dict[str, int], left: int
    ) -> None:
        self.sender = sender
        self._received, self._session, self._wanted = received, session, wanted
        self.left = left
        self._lock, self._closed = threading.Lock(), False
        self._head = bytearray()
        self._left = 0
        self._file: int | None = None
        self._digest = hashlib.sha256()
        self._sha = ""
        self.taken = 0

    def feed(self, data: bytes) -> None:
        with self._lock:
            if self._closed:
                raise Refused("another transfer of that session has begun")
            self._feed(memoryview(data))

    def _feed(self, view: memoryview) -> None:
        while view:
            if self._file is None:
                count = HEADER_BYTES - len(self._head)
                self._head += view[:count]
                view = view[count:]
                if len(self._head) == HEADER_BYTES:
                    self._open()
            else:
                piece = view[: self._left]
                view = view[len(piece) :]
                self._digest.update(piece)
                left = piece
                while left:
                    left = left[os.write(self._file, left) :]
                self._left -= len(piece)
                self.left = max(0, self.left - len(piece))
                self.taken += len(piece)
            if self._file is not None and not self._left:
                self._complete()

    def _open(self) -> None:
        sha = bytes(self._head[:32]).hex()
        offset, length = (int.from_bytes(self._head[i : i + 8], "big") for i in (32, 40))
        self._head.clear()
        path = self._received._part(self._session, sha)
        size = self._wanted.get(sha)
        if size is None or offset != _length(path) or offset + length != size:
            raise Usage("that content is not wanted here")
        self._digest, self._sha, self._left = hashlib.sha256(), sha, length
        if offset:
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    self._digest.update(piece)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _complete(self) -> None:
        self._end_part()
        path = self._received._part(self._session, self._sha)
        if self._digest.hexdigest() != self._sha:
            path.unlink()
            raise Refused("a content has another hash than its name", "send it again")
        path.rename(self._received._object(self._session, self._sha))

    def close(self) -> None:
        with self._lock:
            self._closed, self.left = True, 0
            self._end_part()
        self._received.closed(self._session, self)

    def _end_part(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


HEADER_BYTES: Final = 48  # the hash, the offset and the length of what follows


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sizes(top: Path) -> Iterator[int]:
    """A small file takes a block, so that offers and empty files count."""
    for place, _, names in os.walk(top):
        for name in names:
            yield max(_length(Path(place, name)), BLOCK)
