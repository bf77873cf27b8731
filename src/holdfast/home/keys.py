"""Key files: one per identity, mode 0600, in `keys/` of the Holdfast state directory.

    NAME.key    canonical JSON {v, kind, public, created, private}, or with a passphrase
                {v, kind, public, created, locked}
    machine     the same with kind "machine": the key of this installation, the root of all
                envelopes here; made by the host

A file with the wrong owner or mode is refused, not repaired: other users may have read the file. A
file appears whole or not at all. `make` never overwrites a file; a file is replaced only to add or
remove a passphrase or to change the kind. A passphrase comes from a callable that asks on the
terminal, never from arguments or the environment, which other processes can see.

Reading a plain key imports no cryptography: an attach imports cryptography before signing. So the
reader of a plain file does not check that the private and the public key match. The verifier
refuses signatures made with a wrong key.

The keys for relays have no files. The X25519 key of sealed channels and the route keys are derived
from the identity's key (`static`, `route_key`; model/agreement.py). Separate files would have to be
made, locked, unlocked, copied and removed together with the first, and each step could fail
halfway. Deriving costs little security: a thief of the identity's key could sign any other key
anyway, and past traffic stays sealed by ephemeral keys.
"""

from __future__ import annotations

import os
import stat
import time

from holdfast import home as homes
from holdfast.home import Home, private
from holdfast.model import agreement, base64url, canonical, signing
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS, check_name
from holdfast.model.reserved_names import check_lookalike, check_new_operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from holdfast.model.jsontext import Json

    Ask = Callable[[str], str]  # asks a person for the passphrase of the key with that name

MACHINE: Final = "machine"
SUFFIX: Final = ".key"
FILE_BYTES: Final = 4096
_UNFINISHED: Final = ".new-"  # prefix of a file being written
UNFINISHED_S: Final = 3600.0  # an unfinished file of this age is left over from a crash


class Identity:
    """A name with a key. `private` is None while the key is locked."""

    __slots__ = ("created", "kind", "locked", "name", "path", "private", "public")

    def __init__(
        self,
        name: str,
        kind: str,
        public: bytes,
        created: int,
        private: bytes | None,
        locked: bool,
        path: str,
    ) -> None:
        self.name, self.kind, self.public, self.created = name, kind, public, created
        self.private, self.locked, self.path = private, locked, path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and all(
            getattr(self, field) == getattr(other, field) for field in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def replace(
        self, kind: str | None = None, private: bytes | None = None, locked: bool | None = None
    ) -> Identity:
        """The same identity with these fields changed."""
        return Identity(
            self.name,
            self.kind if kind is None else kind,
            self.public,
            self.created,
            self.private if private is None else private,
            self.locked if locked is None else locked,
            self.path,
        )

    def __repr__(self) -> str:  # appears in tracebacks and logs: without the private key
        locked = ", locked" if self.locked else ""
        return f"Identity({self.name!r}, {self.kind!r}, {signing.show(self.public)}{locked})"

    def secret(self) -> bytes:
        if self.private is None:
            raise Refused(
                f"the key of {self.name} is locked", "its passphrase is needed: use a terminal"
            )
        return self.private


def directory(home: Home) -> str:
    return f"{home.state}/keys"


def make(home: Home, name: str, kind: str, now: float, ask: Ask | None = None) -> Identity:
    """A new identity with a new key. `ask` asks for a passphrase. Refused if the name is taken."""
    check_new_operator(name)
    _check_kind(kind)
    check_lookalike(name, _names(home))
    return _make(home, name, kind, now, ask)


def machine(home: Home, now: float) -> Identity:
    """The identity of this installation, made on the first call."""
    try:
        return load_machine(home)
    except NotFound:
        pass
    try:
        return _make(home, MACHINE, MACHINE, now, None)
    except Refused:  # a concurrent process was faster
        return load_machine(home)


def load(home: Home, name: str) -> Identity:
    """The identity read from the key file, locked or not."""
    check_name(name)
    found = _load(_path(home, name), name)
    if found.kind not in OPERATOR_KINDS:
        raise _broken(found.path, f"the kind {found.kind!a}")
    return found


def load_machine(home: Home) -> Identity:
    found = _load(_path(home, MACHINE, ""), MACHINE)
    if found.kind != MACHINE or found.locked:
        raise _broken(found.path, "it is not the key of a machine")
    return found


def installed(home: Home) -> bool:
    """Whether a host ever ran here. If not, all identities belong to other machines."""
    return os.path.lexists(_path(home, MACHINE, ""))


def opened(identity: Identity, ask: Ask) -> Identity:
    """The identity with the private key; asks for the passphrase of a locked key."""
    if identity.private is not None:
        return identity
    from holdfast.model import sealing

    value = _read(identity.path)
    try:
        locked = value["locked"]
        parts = (base64url.decode(locked[name]) for name in ("salt", "nonce", "sealed"))
        sealed = sealing.Sealed(locked["n"], *parts)
        private = sealing.unseal(sealed, ask(identity.name), _associated_data(identity))
    except sealing.WrongPassphrase as e:
        raise Refused(
            f"that is not the passphrase of {identity.name}",
            "try again; a forgotten passphrase cannot be recovered, make a new key",
        ) from e
    except (KeyError, TypeError, ValueError) as e:
        raise _broken(identity.path, str(e)) from e
    if signing.public(private) != identity.public:
        raise _broken(identity.path, "its parts belong to different keys")
    return identity.replace(private=private)


def static(identity: Identity) -> bytes:
    """The private X25519 key for sealed channels. Refused while the identity is locked."""
    return agreement.derive(identity.secret(), agreement.STATIC)


def route_key(machine: Identity, relay: str) -> bytes:
    """The private Ed25519 key of this machine at this relay.

    Each relay gets a different key, so two relays cannot recognise the same machine.
    """
    return agreement.derive(machine.secret(), agreement.ROUTE + b"\0" + relay.encode())


def spool_key(machine: Identity) -> bytes:
    """The secret that seals the spool of this installation (host/storage/spool_format.py)."""
    return agreement.derive(machine.secret(), agreement.SPOOL)


def images_key(machine: Identity) -> bytes:
    """The private X25519 key that opens keys of checkpoints (host/checkpoints/sealing.py)."""
    return agreement.derive(machine.secret(), agreement.IMAGES)


def remembered_key(machine: Identity) -> bytes:
    """The secret that seals descriptions of sessions (host/storage/remembered.py)."""
    return agreement.derive(machine.secret(), agreement.REMEMBERED)


def lock(home: Home, name: str, ask_old: Ask, ask_new: Ask) -> Identity:
    """Protect the key with a new passphrase."""
    identity = opened(load(home, name), ask_old)
    return _store(identity.replace(locked=True), ask_new, replace=True)


def unlock(home: Home, name: str, ask: Ask) -> Identity:
    """Remove the passphrase from the file."""
    return _store(opened(load(home, name), ask).replace(locked=False), None, replace=True)


def change_kind(identity: Identity, kind: str, ask: Ask | None) -> Identity:
    """Store the key with a different kind of operator.

    A newcomer makes the key before learning the kind in the invitation.
    """
    _check_kind(kind)
    return _store(identity.replace(kind=kind), ask, replace=True)


def _check_kind(kind: str) -> None:
    if kind not in OPERATOR_KINDS:
        kinds = ", ".join(OPERATOR_KINDS)
        raise Usage(f"{kind[:40]!a} is not a kind of operator", f"kinds: {kinds}")


class Listed:
    """A key file: the identity inside, or why there is none (`trouble`)."""

    __slots__ = ("identity", "name", "trouble")

    def __init__(self, name: str, identity: Identity | None, trouble: str) -> None:
        self.name, self.identity, self.trouble = name, identity, trouble


def listing(home: Home) -> list[Listed]:
    """All local identities by name; an unusable file is listed with the reason."""
    found = []
    for name in _names(home):
        try:
            found.append(Listed(name, load(home, name), ""))
        except HoldfastError as e:
            found.append(Listed(name, None, e.message))
    return found


def _names(home: Home) -> list[str]:
    try:
        files = os.listdir(directory(home))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Unavailable(
            f"cannot read {directory(home)}: {e.strerror}", "make it readable for this account"
        ) from e
    return sorted(name[: -len(SUFFIX)] for name in files if name.endswith(SUFFIX))


def remove(home: Home, name: str) -> None:
    """Delete the key. The machine keeps its grants; no other key can use them."""
    check_name(name)
    try:
        os.unlink(_path(home, name))
    except FileNotFoundError as e:
        raise _unknown(name) from e
    except OSError as e:
        raise Unavailable(
            f"cannot remove {_path(home, name)}: {e.strerror}", "make the directory writable"
        ) from e
    private.sync_directory(directory(home))


# ------------------------------------------------------------ files


def _path(home: Home, name: str, suffix: str = SUFFIX) -> str:
    return f"{directory(home)}/{name}{suffix}"


def _make(home: Home, name: str, kind: str, now: float, ask: Ask | None) -> Identity:
    folder = directory(home)
    try:
        # A separate call: makedirs applies the mode only to the last directory.
        os.makedirs(home.state, mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as e:
        raise Unavailable(
            f"cannot create {folder}: {e.strerror}",
            "make that directory writable, or set HOLDFAST_HOME to another one",
        ) from e
    homes.check_private(folder)
    _sweep(folder)
    path = _path(home, name, "" if kind == MACHINE else SUFFIX)
    if os.path.lexists(path):
        raise _taken(name)
    private = signing.generate()
    public, locked = signing.public(private), ask is not None
    made = Identity(name, kind, public, int(now), private, locked, path)
    return _store(made, ask, replace=False)


def _store(identity: Identity, ask: Ask | None, replace: bool) -> Identity:
    """Write the file; asks for a new passphrase if the identity is locked."""
    value: Json = _clear(identity)
    if identity.locked:
        from holdfast.model import sealing

        assert ask is not None
        passphrase = ask(identity.name)
        if not passphrase:
            raise Usage(
                "an empty passphrase protects nothing",
                "give one, or make the key without --passphrase",
            )
        sealed = sealing.seal(identity.secret(), passphrase, _associated_data(identity))
        value["locked"] = {
            "n": sealed.cost,
            "salt": base64url.encode(sealed.salt),
            "nonce": base64url.encode(sealed.nonce),
            "sealed": base64url.encode(sealed.data),
        }
    else:
        value["private"] = base64url.encode(identity.secret())
    _write(identity.path, canonical.encode(value), identity.name, replace)
    return identity


def _write(path: str, data: bytes, name: str, replace: bool) -> None:
    """Write the file atomically; without `replace` only if no file exists."""
    folder = os.path.dirname(path)
    homes.check_private(folder)
    unfinished = f"{folder}/{_UNFINISHED}{os.urandom(8).hex()}"
    try:
        fd = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(unfinished, path)
            else:
                os.link(unfinished, path)
        finally:
            if os.path.lexists(unfinished):
                os.unlink(unfinished)
        private.sync_directory(folder)
    except FileExistsError as e:
        raise _taken(name) from e
    except OSError as e:
        raise Unavailable(
            f"cannot write {path}: {e.strerror}", "free disk space or make the directory writable"
        ) from e


def _sweep(folder: str) -> None:
    """Remove files that a crash left unfinished: each contains an unused key."""
    for name in os.listdir(folder):
        if name.startswith(_UNFINISHED) and not name.endswith(SUFFIX):
            path = f"{folder}/{name}"
            try:
                if time.time() - os.lstat(path).st_mtime > UNFINISHED_S:
                    os.unlink(path)
            except OSError:
                pass


def _load(path: str, name: str) -> Identity:
    value = _read(path, name)
    try:
        locked = "locked" in value
        if (
            value.keys() != {"v", "kind", "public", "created", "locked" if locked else "private"}
            or value["v"] != 1
        ):
            raise ValueError("its fields are not those of a key")
        kind, created = value["kind"], value["created"]
        if type(kind) is not str or type(created) is not int:
            raise ValueError("its fields are not those of a key")
        private = None if locked else base64url.decode(value["private"])
        if private is not None and len(private) != signing.KEY_BYTES:
            raise ValueError("its private key has the wrong length")
        return Identity(name, kind, signing.read(value["public"]), created, private, locked, path)
    except (TypeError, ValueError, AttributeError) as e:
        raise _broken(path, str(e)) from e


def _read(path: str, name: str = "") -> Json:
    """The content of a file that no other user could read or change."""
    try:
        homes.check_private(os.path.dirname(path))
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as e:
        raise _unknown(name) from e
    except OSError as e:
        raise Impossible(
            f"cannot read {path}: {e.strerror}", "make it a file of mode 0600 that belongs to you"
        ) from e
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise Impossible(f"{path} is not a file", "remove it")
        if info.st_uid != os.geteuid():
            raise Impossible(
                f"{path} belongs to user {info.st_uid}, not to you",
                "its owner knows the key: make a new one",
            )
        if info.st_mode & 0o077:
            raise Impossible(
                f"other users could read {path} (mode {stat.S_IMODE(info.st_mode):04o})",
                f"if none did, chmod 600 {path}; otherwise revoke this key and make a new one",
            )
        data = os.read(fd, FILE_BYTES + 1)
    except OSError as e:
        raise Impossible(
            f"cannot read {path}: {e.strerror}", "make it a file of mode 0600 that belongs to you"
        ) from e
    finally:
        os.close(fd)
    if len(data) > FILE_BYTES:
        raise _broken(path, "it is too long")
    try:
        value: Json = canonical.decode(data)
    except canonical.NotCanonical as e:
        raise _broken(path, str(e)) from e
    return value


def _clear(identity: Identity) -> Json:
    return {
        "v": 1,
        "kind": identity.kind,
        "public": signing.show(identity.public),
        "created": identity.created,
    }


def _associated_data(identity: Identity) -> bytes:
    """The public fields that the seal of a locked key is bound to."""
    return b"holdfast/key/1\0" + canonical.encode(_clear(identity))


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"there is no key of {name} here",
        f"`holdfast operator add {name}` makes one; `holdfast operator ls` lists them",
    )


def _taken(name: str) -> Refused:
    return Refused(f"there is already a key of {name}", "choose another name, or use that key")


def _broken(path: str, why: str) -> Impossible:
    return Impossible(
        f"{path} is not a key file: {why[:100]}",
        "restore it from a copy, or remove it and make a new key",
    )
