"""The keys of a session's checkpoints: who may open them.

    keys/KEY/MACHINE     the secret KEY, sealed to the X25519 key MACHINE (both in hexadecimal)

A session has one key for all its checkpoints, so that they share objects. The machines that may
open it are the files of its directory.
"""

from __future__ import annotations

import contextlib
from typing import Final

from holdfast.core.checkpoint import manifest as forms
from holdfast.core.checkpoint.manifest import Damaged
from holdfast.host.checkpoints import sealing
from holdfast.host.checkpoints.objects import write_whole
from holdfast.host.checkpoints.sealing import ImageKey
from holdfast.host.storage.spool_files import Files
from holdfast.model import agreement
from holdfast.model.errors import Impossible

_FRESH: Final = "newest"


class ImageKeys:
    """The keys of one session. `private`: the X25519 key of this machine (keys.images_key)."""

    def __init__(self, files: Files, top: str, session: str, private: bytes) -> None:
        self._files, self._session, self._private = files, session, private
        self._above, self._place = f"{top}/{session}", f"{top}/{session}/{forms.KEYS}"
        self._own = agreement.public(private).hex()

    def current(self) -> ImageKey:
        """The key of the next checkpoint: the last one, or a fresh one."""
        last = self._newest()
        if last:
            with contextlib.suppress(Impossible):
                return self.open(last)
        machines = {*self.machines(last)} if last else set()
        fresh = ImageKey.fresh(self._session)
        self._files.make_directory(f"{self._place}/{fresh.id}")
        for machine in sorted({*machines, bytes.fromhex(self._own)}):
            write_whole(
                self._files, f"{self._place}/{fresh.id}", machine.hex(), fresh.wrap(machine)
            )
        write_whole(self._files, self._place, _FRESH, fresh.id.encode())
        self._files.sync_path(self._above)
        return fresh

    def open(self, key_id: str) -> ImageKey:
        """Impossible if this machine may not open these checkpoints."""
        try:
            wrapped = self._read(key_id, self._own)
            return sealing.unwrap(self._private, self._session, key_id, wrapped)
        except OSError as e:
            raise Impossible(
                "it is sealed to other machines",
                "restore it on one of these, or let one of these add this machine",
            ) from e
        except Damaged as e:
            raise Impossible(f"its key cannot be opened: {e}") from e

    # ------------------------------------------------------------ machines that may open

    def machines(self, key_id: str) -> list[bytes]:
        """X25519 keys of the machines that may open the checkpoints with this key."""
        return [bytes.fromhex(name) for name in self._names(key_id) if _is_machine(name)]

    def wrap(self, key_id: str, machine: bytes) -> bytes:
        """The key, sealed to a machine, to be stored here or sent along."""
        return self.open(key_id).wrap(machine)

    def add(self, key_id: str, machine: bytes, wrapped: bytes) -> None:
        """Let a machine open the checkpoints with this key; `wrapped`: see `wrap`."""
        if not forms.is_key(key_id) or not _is_machine(machine.hex()):
            raise Impossible("that is no key of a checkpoint")
        if len(wrapped) != sealing.WRAP_BYTES:
            raise Impossible("that is no sealed key")
        self._files.make_directory(f"{self._place}/{key_id}")
        write_whole(self._files, f"{self._place}/{key_id}", machine.hex(), wrapped)
        for directory in (self._place, self._above):
            self._files.sync_path(directory)

    # ------------------------------------------------------------ files

    def _newest(self) -> str:
        with contextlib.suppress(OSError):
            found = self._files.read(f"{self._place}/{_FRESH}", 64).decode("ascii", "replace")
            if forms.is_key(found):
                return found
        return min(self._ids(), default="")

    def _ids(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [one for one in self._files.listdir(self._place) if forms.is_key(one)]
        return []

    def _names(self, key_id: str) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(self._files.listdir(f"{self._place}/{key_id}"))
        return []

    def _read(self, key_id: str, name: str) -> bytes:
        return self._files.read(f"{self._place}/{key_id}/{name}", sealing.WRAP_BYTES + 1)


def _is_machine(name: str) -> bool:
    return len(name) == 2 * agreement.KEY_BYTES and set(name) <= set("0123456789abcdef")
