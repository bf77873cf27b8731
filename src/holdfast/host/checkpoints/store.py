"""The checkpoints on the disk: core/checkpoint/manifest.py describes the files.

Order of a save: the objects are on the disk, then the manifest gets its name. Order of a removal:
the manifest goes, then the objects that no other manifest names. So a crash at any step leaves
whole checkpoints only, and perhaps objects that no manifest names; the next save or removal of the
session sweeps these. A checkpoint that is being copied here has its manifest under another name,
which protects its objects (copies.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint import retention
from holdfast.core.checkpoint.manifest import Damaged, Header, Manifest, Unreadable
from holdfast.home import Home, keys
from holdfast.home.keys import Identity
from holdfast.host.checkpoints import packing
from holdfast.host.checkpoints.image_keys import ImageKeys
from holdfast.host.checkpoints.objects import Objects, write_file, write_whole
from holdfast.host.checkpoints.scratch import Scratch
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.host.storage.spool_files import DiskFiles, Files
from holdfast.model import agreement, signing
from holdfast.model.errors import Impossible, NotFound, Refused
from holdfast.model.ids import is_session_id
from holdfast.model.limits import CHECKPOINT_BYTES, CHECKPOINTS_KEPT
from holdfast.wire import keeper as wire
from holdfast.wire.checkpointing import REPLACED_FILE

DIRECTORY: Final = "checkpoints"
PLAN: Final = "plan"  # in the directory of files for the next host
LAST_OUTPUT: Final = "last-output"


class Checkpoints:
    """All checkpoints of a home."""

    def __init__(
        self,
        home: Home,
        criu: str,
        machine: Identity,
        keep: int = CHECKPOINTS_KEPT,
        most: int = CHECKPOINT_BYTES,
        files: Files | None = None,
    ) -> None:
        """`criu`: the value of HOLDFAST_CRIU."""
        self.top = Path(home.state) / DIRECTORY
        self.criu = criu
        self._busy, self._lock = set[str](), threading.Lock()
        self.saving = set[str]()  # those of the busy sessions that are being saved
        self.scratch = Scratch(home.state)
        self.files: Files = files or DiskFiles()
        self.public = agreement.public(keys.images_key(machine))  # to which images are sealed
        self.trusted: Callable[[bytes], bool] = lambda maker: maker == machine.public
        self.maker = machine.public.hex()  # of the checkpoints made here
        self._machine, self._keep, self._most = machine, keep, most

    @property
    def busy(self) -> Collection[str]:
        """Sessions that are saved, restored, forked, pruned or forgotten."""
        return self._busy

    @contextlib.contextmanager
    def using(self, session: str, name: str = "the session") -> Iterator[None]:
        """Keep all others from the session's checkpoints. Refused if another has them.

        Threads may call this.
        """
        with self._lock:
            if session in self._busy:
                raise Refused(f"{name} is being saved, restored or forked", "wait until it is over")
            self._busy.add(session)
        try:
            yield
        finally:
            self._busy.discard(session)

    # ------------------------------------------------------------ finding

    def headers(self, session: str) -> list[Header]:
        """What can be read of a session's checkpoints without a key, oldest first."""
        found = []
        for name in self._names(session):
            with contextlib.suppress(OSError, Unreadable):
                found.append(self.header(session, name))
        return sorted(found, key=forms.age)

    def of(self, session: str) -> list[Manifest]:
        """The checkpoints of a session that this machine can open, oldest first."""
        found = []
        for name in self._names(session):
            with contextlib.suppress(OSError, Unreadable, Impossible):
                found.append(self.read(session, name))
        return sorted(found, key=forms.age)

    def all(self) -> list[Manifest]:
        return [one for session in sorted(self.sessions()) for one in self.of(session)]

    def sessions(self) -> set[str]:
        """Sessions with a directory here."""
        with contextlib.suppress(OSError):
            return {name for name in self.files.listdir(str(self.top)) if is_session_id(name)}
        return set()

    def keep(self, session: str) -> bool:
        """Whether the session has a checkpoint, so that its directories must stay."""
        return any(True for _ in self._names(session))

    def _names(self, session: str, manifest: str = forms.NAME) -> Iterator[str]:
        """Ids of the checkpoints with such a manifest."""
        with contextlib.suppress(OSError):
            for name in self.files.listdir(str(self.top / session)):
                if forms.is_id(name):
                    with contextlib.suppress(OSError):
                        if manifest in self.files.listdir(str(self.place(session, name))):
                            yield name

    def header(self, session: str, checkpoint: str, manifest: str = forms.NAME) -> Header:
        """OSError or Unreadable if it cannot be read."""
        found = forms.header(self.manifest(session, checkpoint, manifest))
        if (found.session, found.id) != (session, checkpoint):
            raise Unreadable("it belongs to another place")
        return found

    def manifest(self, session: str, checkpoint: str, manifest: str = forms.NAME) -> bytes:
        """The bytes of a manifest."""
        path = f"{self.place(session, checkpoint)}/{manifest}"
        data = self.files.read(path, forms.BYTES_MAX + 1)
        if len(data) > forms.BYTES_MAX:
            raise Unreadable("its manifest is too long")
        return data

    def read(self, session: str, checkpoint: str) -> Manifest:
        """All facts. OSError, Unreadable or Impossible if they cannot be read."""
        found = self.header(session, checkpoint)
        maker = bytes.fromhex(found.maker)
        if not self.trusted(maker):
            raise Impossible(
                f"{checkpoint} was made by the machine {signing.show(maker)}, which is not trusted"
            )
        key = self.keys(session).open(found.key)
        return forms.decode(self.manifest(session, checkpoint), key)

    def chosen(self, session: str, word: str) -> Manifest:
        """A checkpoint by the beginning of its id, or the newest that can be opened.

        Impossible if none can; the error names one of them (`checkpoint`).
        """
        names = [self.one(session, word)] if word else self.ids(session)
        found, problem, bad = list[Manifest](), "", ""
        for name in names:
            try:
                found.append(self.read(session, name))
            except (OSError, Unreadable) as e:
                problem, bad = f"{name} cannot be used: {e}", name
            except Impossible as e:
                problem, bad = f"{name} cannot be used: {e.message}", name
        newest = forms.newest(found)
        if newest is not None:
            return newest
        if problem:
            recover = "`holdfast checkpoint --list` lists what can be used"
            raise Impossible(problem, recover, checkpoint=bad)
        raise NotFound("the session has no checkpoint", "`holdfast checkpoint --list` lists them")

    def ids(self, session: str) -> list[str]:
        """All complete checkpoints, also those that cannot be read."""
        return sorted(self._names(session))

    def one(self, session: str, word: str) -> str:
        """The checkpoint whose id begins with a word."""
        found = [name for name in self.ids(session) if name.startswith(word or "?")]
        if len(found) != 1 and word not in found:
            raise NotFound(
                f"{word[:40]} is the beginning of {len(found)} checkpoints"
                if found
                else f"no checkpoint {word[:40]}",
                "`holdfast checkpoint --list` lists them",
            )
        return word if word in found else found[0]

    def place(self, session: str, checkpoint: str) -> Path:
        return self.top / session / checkpoint

    def keys(self, session: str) -> ImageKeys:
        private = keys.images_key(self._machine)
        return ImageKeys(self.files, str(self.top), session, private)

    def objects(self, session: str) -> Objects:
        return Objects(self.files, str(self.top / session))

    # ------------------------------------------------------------ saving

    def pack(
        self,
        draft: Manifest,
        sources: packing.Sources,
        done: packing.Done = lambda count: None,
        stop: threading.Event | None = None,
    ) -> Manifest:
        """Store a checkpoint: everything is on the disk when this returns."""
        key = self.keys(draft.session).current()
        known, objects = self.known(draft.session, key.id), self.objects(draft.session)
        packed = packing.Packer(key, objects, known, done, stop).pack(sources)
        took_ms = round((time.time() - draft.at) * 1000, 1)
        return self.commit(replace(draft, **packed._asdict(), took_ms=took_ms), key)

    def known(self, session: str, key: str) -> dict[str, tuple[int, str]]:
        """Size and name of the stored objects with that key, by mark; a later one counts more."""
        found = dict[str, tuple[int, str]]()
        for one in self.of(session):
            if one.key == key:
                stored = [one.files[path] for path in sorted(one.files)]
                found.update(zip(one.marks, stored, strict=False))
        return found

    def commit(self, manifest: Manifest, key: ImageKey) -> Manifest:
        """Seal and sign the manifest, and give the checkpoint its name; its objects are stored."""
        data = forms.encode(manifest, key, self._machine.secret())
        if len(data) > forms.BYTES_MAX:
            raise Impossible(f"the list of its files has {len(data) >> 20} MiB, which is too long")
        place = str(self.place(manifest.session, manifest.id))
        self.files.make_directory(place)
        write_whole(self.files, place, forms.NAME, data)
        for directory in (self.top / manifest.session, self.top, self.top.parent):
            self.files.sync_path(str(directory))
        return forms.decode(data, key)

    def free(self) -> int:
        self.top.mkdir(mode=0o700, exist_ok=True)
        disk = os.statvfs(self.top)
        return disk.f_bavail * disk.f_frsize

    # ------------------------------------------------------------ removing

    def remove(self, session: str, checkpoint: str = "") -> None:
        """Remove a checkpoint with the objects that no other uses, or all of the session."""
        if not checkpoint:
            shutil.rmtree(self.top / session, ignore_errors=True)
            return
        place = str(self.place(session, checkpoint))
        with contextlib.suppress(FileNotFoundError):
            self.files.unlink(f"{place}/{forms.NAME}")
            self.files.sync_path(place)
        self.sweep_session(session)

    def remove_one(self, session: str, checkpoint: str) -> int:
        """Remove a checkpoint; return the bytes of stored files that are gone with it."""
        before = self._stored(session)
        self.remove(session, checkpoint)
        after = self._stored(session)
        return sum(size for path, size in before.items() if path not in after)

    def _stored(self, session: str) -> dict[str, int]:
        files = (one.files.items() for one in self.headers(session))
        return {path: size for one in files for path, (size, _) in one}

    def sweep_session(self, session: str) -> None:
        """Remove unfinished directories, and objects that no manifest names.

        While a manifest is damaged, its objects are not known, so all stay.
        """
        used, complete = set[str](), True
        for kind in (forms.NAME, forms.COMING):
            for name in self._names(session, kind):
                try:
                    files = self.header(session, name, kind).files
                    used |= {path.partition("/")[2] for path in files}
                except (OSError, Unreadable):
                    complete = False
        whole = {*self._names(session), *self._names(session, forms.COMING)}
        with contextlib.suppress(OSError):
            for name in self.files.listdir(str(self.top / session)):
                if forms.is_id(name) and name not in whole:
                    place = str(self.place(session, name))
                    for one in self.files.listdir(place):
                        self.files.unlink(f"{place}/{one}")
                    self.files.remove_directory(place)
        objects = self.objects(session)
        objects.sweep(used if complete else used | objects.present())

    def prune(self, session: str) -> None:
        """Remove old checkpoints, after a save of `session`, which the caller uses."""
        free = {one for one in self.sessions() if one == session or one not in self.busy}
        headers = {one.id: one for name in free for one in self.headers(name)}
        kept = [
            retention.Kept(
                one.session,
                one.id,
                one.epoch,
                one.at,
                {path: size for path, (size, _) in one.files.items()},
            )
            for one in headers.values()
        ]
        surplus = retention.surplus(kept, self._keep, self._most, self._usable)
        for one in surplus:
            if one.session == session:
                self.remove(session, one.id)
                continue
            with contextlib.suppress(Refused), self.using(one.session):
                if self._replaceable(headers[one.id]):
                    self.remove(one.session, one.id)

    def _replaceable(self, old: Header) -> bool:
        """Whether a newer checkpoint of the session can be used."""
        newer = (one for one in self.headers(old.session) if forms.age(one) > forms.age(old))
        return any(map(self._usable, newer))

    def _usable(self, one: retention.Kept | Header) -> bool:
        """Whether it can be opened, and its objects are there. Their content is not read."""
        with contextlib.suppress(OSError, Unreadable, Impossible):
            self.read(one.session, one.id)
            return {Path(path).name for path in one.files} <= self.objects(one.session).present()
        return False

    # ------------------------------------------------------------ restoring

    def content(self, manifest: Manifest, name: str) -> bytes:
        key = self.keys(manifest.session).open(manifest.key)
        return packing.content(key, self.objects(manifest.session), manifest, name)

    def plan(self, manifest: Manifest) -> wire.Spawn:
        """How the session is made here. Of another machine's, only this machine decides that."""
        if bytes.fromhex(manifest.maker) == self._machine.public:
            return read_plan(self.content(manifest, forms.PLAN))
        try:
            return read_plan((self.top / manifest.session / PLAN).read_bytes())
        except OSError as e:
            raise Impossible("the checkpoint of another machine was not laid out here") from e

    def unpack(self, manifest: Manifest, epoch: int, output: bytes, done: packing.Done) -> Path:
        """A directory of plain images for CRIU; every object is checked."""
        key = self.keys(manifest.session).open(manifest.key)
        place = self.scratch.make(f"thaw-{manifest.session}-{epoch}", manifest.bytes)
        try:
            packing.unpack(key, self.objects(manifest.session), manifest, place, done)
            (place / "output").write_bytes(output)
        except BaseException:
            self.scratch.clear(place)
            raise
        return place

    def replaced(self, session: str, epoch: int, place: Path) -> Path:
        """A new archive on the disk, for the newer content that a restore in `place` replaces."""
        above = self.top / session
        names = (f"replaced-{epoch}{more}.tar" for more in ("", *(f"-{n}" for n in range(2, 100))))
        kept = next(above / name for name in names if not os.path.lexists(above / name))
        write_file(self.files, str(kept), b"")
        self.files.sync_path(str(above))
        (place / REPLACED_FILE).symlink_to(kept)
        return kept

    def settle_replaced(self, kept: Path) -> tuple[str, ...]:
        """The files in the archive; an empty archive is removed. No launcher writes any more."""
        names = list[str]()
        with contextlib.suppress(tarfile.TarError), tarfile.open(kept) as opened:
            names = opened.getnames()
        if not names:
            kept.unlink()
        return tuple(f"/{name}" for name in names)

    # ------------------------------------------------------------ the output of a lost incarnation

    def keep_last_output(self, session: str, data: bytes) -> None:
        """Keep the output of an incarnation that ends, sealed, for a later restore."""
        key = self.keys(session).current()
        sealed = key.seal_facts(LAST_OUTPUT, data)
        write_whole(
            self.files, str(self.top / session), LAST_OUTPUT, key.id.encode() + b"\n" + sealed
        )

    def last_output(self, session: str) -> bytes:
        """Empty if there is none, or if it cannot be opened."""
        with contextlib.suppress(OSError, Damaged, Impossible):
            path = self.top / session / LAST_OUTPUT
            key_id, _, sealed = path.read_bytes().partition(b"\n")
            return (
                self.keys(session)
                .open(key_id.decode("ascii", "replace"))
                .open_facts(LAST_OUTPUT, sealed)
            )
        return b""

    def drop_last_output(self, session: str) -> None:
        (self.top / session / LAST_OUTPUT).unlink(missing_ok=True)


def write_plan(directory: str, request: wire.Spawn) -> None:
    """Store how a session was made, without its environment and output, which may have secrets."""
    plan = request._replace(argv=(b"saved",), env=(), label=b"", cwd=b"/", thaw=b"", criu=())
    plan = plan._replace(base=0, ring_tail=b"", accepted=0, origins=())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with open(os.open(Path(directory, PLAN), flags, 0o600), "wb") as f:
        f.write(wire.spawn(plan))


def read_plan(data: bytes) -> wire.Spawn:
    """How a session was made; Impossible if that cannot be read."""
    try:
        return wire.read_spawn(data[wire.SPAWN_HEADER.size :])
    except wire.Malformed as e:
        raise Impossible(f"how the session was made cannot be read: {e}") from e
