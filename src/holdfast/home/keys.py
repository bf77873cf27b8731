"""Identities as files: one key each under HOME/keys, readable by this account alone.

    NAME.key    canonical JSON {v, kind, public, created, private}, or {v, kind, public, created, locked} under a passphrase
    machine     the same with kind "machine": the key of this installation, the root of its envelopes; made by the host

A file with the wrong owner or mode is refused, not repaired: somebody else may have read it. A file appears whole or not at all, is never written
over by `make`, and is replaced only to put its passphrase on or take it off. A passphrase comes from a callable that asks for it (on the
terminal), never from arguments or the environment, where other processes see it.
Reading a plain key imports no cryptography: an attach pays for signing when it signs. So whether the private key belongs to the public one is not
checked here for plain files; a signature made with a wrong one is refused by whoever verifies it.

The keys for relays have no files: the X25519 key of sealed channels and the route keys follow from the identity's own (`static`, `route_key`; model/agreement.py says how). A
second file for each would have to be made, locked, unlocked, copied and removed together with the first, and every step could fail between the two. What is lost
is little: who has the identity's key could have any other key signed by it anyway, and what was sealed stays sealed, by the keys of its moment.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from holdfast import home as homes
from holdfast.home import Home
from holdfast.model import agreement, base64url, canonical, signing
from holdfast.model.errors import HoldfastError, Impossible, NotFound, Refused, Unavailable, Usage
from holdfast.model.ids import OPERATOR_KINDS, check_name

MACHINE: Final = "machine"
SUFFIX: Final = ".key"
FILE_BYTES: Final = 4096
_UNFINISHED: Final = ".new-"  # a file on its way; one that is older than this was left by a crash:
UNFINISHED_S: Final = 3600.0
Ask = Callable[[str], str]
"""Asks a person for a passphrase; is told which key it is for."""


class Identity(NamedTuple):
    """A name with its key. `private` is None while it is locked."""

    name: str
    kind: str
    public: bytes
    created: int
    private: bytes | None
    locked: bool
    path: str

    def __repr__(self) -> str:  # also ends up in tracebacks and logs
        return f"Identity({self.name!r}, {self.kind!r}, {signing.show(self.public)}{', locked' if self.locked else ''})"

    def secret(self) -> bytes:
        if self.private is None:
            raise Refused(
                f"the key of {self.name} is locked", "its passphrase is needed: use a terminal"
            )
        return self.private


def directory(home: Home) -> str:
    return f"{home.state}/keys"


def make(home: Home, name: str, kind: str, now: float, ask: Ask | None = None) -> Identity:
    """A new identity with a new key, under a passphrase if there is somebody to ask for one. Refused if the name is taken."""
    check_name(name)
    if kind not in OPERATOR_KINDS:
        raise Usage(f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}")
    return _make(home, name, kind, now, ask)


def machine(home: Home, now: float) -> Identity:
    """This installation's own identity, made if there is none."""
    try:
        return load_machine(home)
    except NotFound:
        pass
    try:
        return _make(home, MACHINE, MACHINE, now, None)
    except Refused:  # another process was quicker
        return load_machine(home)


def load(home: Home, name: str) -> Identity:
    """The identity as its file has it, locked or not."""
    check_name(name)
    found = _load(_path(home, name), name)
    if found.kind not in OPERATOR_KINDS:
        raise _broken(found.path, f"the kind {found.kind!a}")
    return found


def load_machine(home: Home) -> Identity:
    found = _load(_path(home, MACHINE, ""), MACHINE)
    if found.kind != MACHINE or found.locked:
        raise _broken(found.path, "it is no machine's key")
    return found


def installed(home: Home) -> bool:
    """Whether there was ever a host here. Where there was none, identities are those that joined machines elsewhere."""
    return os.path.lexists(_path(home, MACHINE, ""))


def opened(identity: Identity, ask: Ask) -> Identity:
    """With its private key, asking for the passphrase if it is locked. The file stays as it is."""
    if identity.private is not None:
        return identity
    from holdfast.model import sealing

    value = _read(identity.path)
    try:
        locked = value["locked"]
        sealed = sealing.Sealed(
            locked["n"],
            base64url.decode(locked["salt"]),
            base64url.decode(locked["nonce"]),
            base64url.decode(locked["sealed"]),
        )
        private = sealing.unseal(sealed, ask(identity.name), _beside(identity))
    except sealing.WrongPassphrase as e:
        raise Refused(
            f"that is not the passphrase of {identity.name}",
            "try again; a passphrase that is forgotten cannot be recovered, make a new key",
        ) from e
    except (KeyError, TypeError, ValueError) as e:
        raise _broken(identity.path, str(e)) from e
    if signing.public(private) != identity.public:
        raise _broken(identity.path, "its parts belong to different keys")
    return identity._replace(private=private)


def static(identity: Identity) -> bytes:
    """The private X25519 key of its sealed channels. Refused while the identity is locked."""
    return agreement.derive(identity.secret(), agreement.STATIC)


def route_key(machine: Identity, relay: str) -> bytes:
    """The private Ed25519 key of this machine at one relay: another at each, so that relays cannot tell that they serve the same machine."""
    return agreement.derive(machine.secret(), agreement.ROUTE + b"\0" + relay.encode())


def lock(home: Home, name: str, ask_old: Ask, ask_new: Ask) -> Identity:
    """Puts the key under a passphrase, or under another one."""
    identity = opened(load(home, name), ask_old)
    return _store(identity._replace(locked=True), ask_new, replace=True)


def unlock(home: Home, name: str, ask: Ask) -> Identity:
    """Takes the passphrase off the file."""
    return _store(opened(load(home, name), ask)._replace(locked=False), None, replace=True)


def turned(identity: Identity, kind: str, ask: Ask | None) -> Identity:
    """The same key, of an operator of another kind: a newcomer learns what it was invited as after it has made its key."""
    if kind not in OPERATOR_KINDS:
        raise Usage(f"{kind[:40]!a} is no kind of operator", f"kinds: {', '.join(OPERATOR_KINDS)}")
    return _store(identity._replace(kind=kind), ask, replace=True)


class Listed(NamedTuple):
    name: str
    identity: Identity | None
    trouble: str  # why there is no identity, or empty


def listing(home: Home) -> list[Listed]:
    """All local identities by name; what cannot be used is listed with the reason."""
    try:
        names = sorted(n[: -len(SUFFIX)] for n in os.listdir(directory(home)) if n.endswith(SUFFIX))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise Unavailable(
            f"cannot read {directory(home)}: {e.strerror}", "make it readable for this account"
        ) from e
    found = []
    for name in names:
        try:
            found.append(Listed(name, load(home, name), ""))
        except HoldfastError as e:
            found.append(Listed(name, None, e.message))
    return found


def remove(home: Home, name: str) -> None:
    """Forgets the key. What it was allowed stays allowed to nobody else."""
    check_name(name)
    try:
        os.unlink(_path(home, name))
    except FileNotFoundError as e:
        raise _unknown(name) from e
    except OSError as e:
        raise Unavailable(
            f"cannot remove {_path(home, name)}: {e.strerror}", "make the directory writable"
        ) from e
    _sync(directory(home))


# ------------------------------------------------------------ files


def _path(home: Home, name: str, suffix: str = SUFFIX) -> str:
    return f"{directory(home)}/{name}{suffix}"


def _make(home: Home, name: str, kind: str, now: float, ask: Ask | None) -> Identity:
    folder = directory(home)
    try:
        os.makedirs(
            home.state, mode=0o700, exist_ok=True
        )  # by itself: a mode is for the last directory of a path only
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
    return _store(
        Identity(name, kind, signing.public(private), int(now), private, ask is not None, path),
        ask,
        replace=False,
    )


def _store(identity: Identity, ask: Ask | None, replace: bool) -> Identity:
    """Writes the file, under a new passphrase if it is to be locked."""
    value: dict[str, Any] = _clear(identity)
    if identity.locked:
        from holdfast.model import sealing

        assert ask is not None
        passphrase = ask(identity.name)
        if not passphrase:
            raise Usage(
                "an empty passphrase protects nothing",
                "give one, or make the key without --passphrase",
            )
        sealed = sealing.seal(identity.secret(), passphrase, _beside(identity))
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
    """Whole or not at all; without `replace` only where nothing is."""
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
        _sync(folder)
    except FileExistsError as e:
        raise _taken(name) from e
    except OSError as e:
        raise Unavailable(
            f"cannot write {path}: {e.strerror}", "free disk space or make the directory writable"
        ) from e


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(folder: str) -> None:
    """What a crash left unfinished: it has a key in it that nobody will use."""
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
            raise ValueError("other fields than a key has")
        kind, created = value["kind"], value["created"]
        if type(kind) is not str or type(created) is not int:
            raise ValueError("other fields than a key has")
        private = None if locked else base64url.decode(value["private"])
        if private is not None and len(private) != signing.KEY_BYTES:
            raise ValueError("a private key of another length")
        return Identity(name, kind, signing.read(value["public"]), created, private, locked, path)
    except (TypeError, ValueError, AttributeError) as e:
        raise _broken(path, str(e)) from e


def _read(path: str, name: str = "") -> Any:
    """What the file says, if nobody else could read or change it."""
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
            raise Impossible(f"{path} is not a file", "remove what is there")
        if info.st_uid != os.geteuid():
            raise Impossible(
                f"{path} belongs to user {info.st_uid}, not to you",
                "whoever owns it knows the key: make a new one",
            )
        if info.st_mode & 0o077:
            raise Impossible(
                f"{path} could be read by others (mode {stat.S_IMODE(info.st_mode):04o})",
                f"if nobody has, chmod 600 {path}; otherwise revoke this key and make a new one",
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
        return canonical.decode(data)
    except canonical.NotCanonical as e:
        raise _broken(path, str(e)) from e


def _clear(identity: Identity) -> dict[str, Any]:
    return {
        "v": 1,
        "kind": identity.kind,
        "public": signing.show(identity.public),
        "created": identity.created,
    }


def _beside(identity: Identity) -> bytes:
    """What a locked key is bound to."""
    return b"holdfast/key/1\0" + canonical.encode(_clear(identity))


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"there is no key of {name} here",
        f"`holdfast operator add {name}` makes one; `holdfast operator ls` lists them",
    )


def _taken(name: str) -> Refused:
    return Refused(
        f"there is a key of {name} already", "choose another name, or use the one there is"
    )


def _broken(path: str, why: str) -> Impossible:
    return Impossible(
        f"{path} is not a key file: {why[:100]}",
        "restore it from a copy, or remove it and make a new key",
    )
