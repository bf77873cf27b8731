"""The file tree of a contained session, assembled from a list in a new mount namespace.

The root is a small tmpfs, read-only once it is complete. Everything else is shown from the list of
wire.Mount. Sources and targets are walked component by component without following links: a
directory that is exchanged for a link meanwhile is refused, and a link that earlier programs left
in a kept home leads nowhere. All sources are copied before the first mount.

Mounts are made with open_tree, mount_setattr and move_mount (Linux 5.12): a mount has its
attributes, with everything mounted below it, before it can be seen.

cgroup file systems are never shown, because CLONE_INTO_CGROUP needs only a directory that can be
named. The parts of /proc that belong to the machine and not to a process are read-only: on a root
host they belong to uid 0 inside too, and a change of mode or owner would count everywhere. So is
/proc/1, for the same reason: no program inside may change init. Files there that not every user of
the machine may read, and the lists of keys, are covered: uid 0 inside could read them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from holdfast.wire import spawning as wire

_REC, _PRIVATE, _DETACH = 0x4000, 1 << 18, 2
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_CLONE_TREE = 0x8_0001 | _AT_EMPTY_PATH | _AT_RECURSIVE  # OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC
_MOVE_EMPTY_PATHS = 0x44  # both ends are descriptors
_SET_FLAG, _SET_STRING, _CREATE, _CLOEXEC = 0, 1, 6, 1
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*
_ATTRIBUTES = struct.Struct("QQQQ")  # set, clear, propagation, user namespace
# Numbers of system calls that glibc before 2.36 has no function for; the same on every machine.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

_BASES = (b"/tmp", b"/usr")  # where the tree is assembled; covered in the new namespace only
_LOCATION = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTRIBUTES_OF = {
    wire.MOUNT_READ: _RDONLY | _NOSUID | _NODEV,
    wire.MOUNT_WRITE: _NOSUID | _NODEV,
    wire.MOUNT_FIXED: _RDONLY | _NOSUID | _NODEV,
    wire.MOUNT_LAYERED: _NOSUID | _NODEV,
    # A read-only mount protects the owner and the mode of a node. Writing to the device works.
    wire.MOUNT_DEVICE: _RDONLY | _NOSUID | _NOEXEC,
}
_SECRET = ("keys", "key-users")  # of /proc, beside the files that are not public
_COVER = _RDONLY | _NOSUID | _NODEV | _NOEXEC
_DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
_DEV = (
    *(wire.Mount(wire.MOUNT_DEVICE, b"/dev/" + name, b"/dev/" + name) for name in _DEVICES),
    wire.Mount(wire.MOUNT_MEMORY, b"/dev/shm", b"50%"),
    wire.Mount(wire.MOUNT_LINK, b"/dev/ptmx", b"pts/ptmx"),
    wire.Mount(wire.MOUNT_LINK, b"/dev/fd", b"/proc/self/fd"),
    wire.Mount(wire.MOUNT_LINK, b"/dev/stdin", b"/proc/self/fd/0"),
    wire.Mount(wire.MOUNT_LINK, b"/dev/stdout", b"/proc/self/fd/1"),
    wire.Mount(wire.MOUNT_LINK, b"/dev/stderr", b"/proc/self/fd/2"),
)
# The machine has 4,096 terminals by default.
_PTS = (
    (b"newinstance", None),
    (b"ptmxmode", b"0666"),
    (b"mode", b"0600"),
    (b"max", b"256"),
)


_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class NotAllowed(Exception):
    """The machine does not allow a step of the containment: the step and the kernel's error."""

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number  # the errno


class NotAsPlanned(NotAllowed):
    """A path of the list is not what the host saw there: it was replaced or removed meanwhile."""

    def __init__(self, path: bytes, why: str | None) -> None:
        super().__init__(f"{wire.NOT_AS_PLANNED}{_shown(path)}: {why}")


_libc = ctypes.CDLL(None, use_errno=True)


def call(step: str, name: str, *arguments: object) -> int:
    """Call a function of libc; NotAllowed with the step's name if it fails."""
    ctypes.set_errno(0)
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise NotAllowed(f"{step}: {os.strerror(number)}", number)
    return result


def assemble(mounts: tuple[wire.Mount, ...], program: bytes) -> int:
    """Build the tree in this mount namespace; return a descriptor of its root.

    `program` becomes the executable file /.holdfast/hf-root.
    """
    call("private mounts", "mount", None, b"/", None, ctypes.c_ulong(_REC | _PRIVATE), None)
    listed = _DEV + mounts
    trees = [_source(m) if m.kind in _ATTRIBUTES_OF else -1 for m in listed]
    base = next(path for path in _BASES if os.path.isdir(path))
    _attach(_new(b"tmpfs", (b"mode", b"0755"), (b"size", b"4m")), _location(base), "a new root")
    root = os.open(base, _LOCATION | os.O_DIRECTORY)
    empty = _empty(root)
    for name in (b"/proc", b"/dev/pts", b"/tmp"):
        os.close(_directory(root, name))
    pts = _location(b"dev/pts", root)
    _attach(_new(b"devpts", *_PTS, attributes=_NOSUID | _NOEXEC), pts, "/dev/pts")
    for one, tree in zip(listed, trees, strict=True):
        try:
            _show(root, one, tree, empty)
        except OSError as e:
            raise NotAsPlanned(one.target, e.strerror) from e
        except NotAllowed as e:
            if e.number in _MISSING:
                raise NotAsPlanned(one.target, str(e)) from e
            raise
    os.close(_directory(root, b"/.holdfast"))
    file = os.open(b".holdfast/hf-root", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o555, dir_fd=root)
    os.write(file, program)
    os.fchmod(file, 0o555)
    os.close(file)
    os.rmdir(b".empty", dir_fd=root)
    os.unlink(b".nothing", dir_fd=root)
    _set_attributes(root, _RDONLY | _NOSUID | _NODEV, 0)
    return root


def enter(root: int) -> None:
    """In the first process of a pid namespace: mount /proc and make the tree the root.

    The machine's own /proc must still be there, or the kernel refuses to mount another.
    """
    proc = _new(b"proc", attributes=_NOSUID | _NODEV | _NOEXEC)
    _attach(proc, _location(b"proc", root), "/proc", keep=True)
    listed = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    nothing = _location(b"dev/null", root)  # with _COVER it cannot be opened
    for name in os.listdir(listed):
        place = os.open(name, _LOCATION, dir_fd=proc)
        mode = os.fstat(place).st_mode
        if (name.isdigit() and name != "1") or stat.S_ISLNK(mode):
            os.close(place)
        else:
            secret = stat.S_ISREG(mode) and (name in _SECRET or not mode & stat.S_IROTH)
            _attach(_copy(nothing if secret else place, _COVER), place, f"/proc/{name}")
    os.close(nothing)
    os.close(listed)
    os.close(proc)
    os.fchdir(root)
    call("a new root", "pivot_root", b".", b".")
    call("leaving the machine's files", "umount2", b".", _DETACH)
    os.chdir("/")


def open_terminal(root: int) -> int:
    """Open the master side of a new terminal in the tree's own devpts."""
    return os.open(b"dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=root)


# ---------------------------------------------------------------- places


def _source(one: wire.Mount) -> int:
    """Copy what an entry shows, with everything mounted below it."""
    if one.kind == wire.MOUNT_LAYERED:
        return _layered(one)
    source = _opened(one.source)
    tree = _copy(source, _ATTRIBUTES_OF[one.kind])
    os.close(source)
    return tree


def _layered(one: wire.Mount) -> int:
    """Make an overlay of directories. Its marks are user attributes, as in any user namespace."""
    own, *below = one.source.split(b"\n")
    places = [_opened(path) for path in (own + b"/upper", own + b"/work", *below)]
    upper, work, *lower = (b"/proc/self/fd/%d" % fd for fd in places)
    options = (
        (b"userxattr", None),
        (b"lowerdir", b":".join(lower)),
        (b"upperdir", upper),
        (b"workdir", work),
    )
    try:
        return _new(b"overlay", *options, attributes=_ATTRIBUTES_OF[one.kind])
    finally:
        for fd in places:
            os.close(fd)


def _opened(path: bytes) -> int:
    try:
        return _location(path)
    except OSError as e:
        raise NotAsPlanned(path, e.strerror) from e
    except NotAllowed as e:
        raise NotAsPlanned(path, str(e)) from e


def _location(path: bytes, at: int | None = None) -> int:
    """Open a place without following links, from the root of this process or from `at`."""
    fd = os.open(b"/", _LOCATION) if at is None else os.dup(at)
    for name in path.split(b"/"):
        if name:
            fd = _step(fd, name, 0)
    return fd


def _step(at: int, name: bytes, more: int) -> int:
    try:
        fd = os.open(name, _LOCATION | more, dir_fd=at)
    finally:
        os.close(at)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotAllowed(f"{_shown(name)} is a symbolic link", errno.ELOOP)
    return fd


def _directory(root: int, path: bytes) -> int:
    """Open a directory of the tree, made if it is missing."""
    fd = os.dup(root)
    for name in path.split(b"/"):
        if name:
            try:
                os.mkdir(name, 0o755, dir_fd=fd)
            except FileExistsError:
                pass
            except OSError:
                os.close(fd)
                raise
            fd = _step(fd, name, os.O_DIRECTORY)
    return fd


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")


# ---------------------------------------------------------------- entries


def _show(root: int, one: wire.Mount, tree: int, empty: tuple[int, int]) -> None:
    above, _, name = one.target.rstrip(b"/").rpartition(b"/")
    parent = _directory(root, above)
    try:
        if one.kind == wire.MOUNT_LINK:
            return os.symlink(one.source, name, dir_fd=parent)
        if one.kind == wire.MOUNT_EMPTY:
            return _cover(parent, name, empty)
        if one.kind == wire.MOUNT_MEMORY:
            options = ((b"mode", b"1777"), (b"size", one.source))
            place = _directory(parent, name)
            return _attach(_new(b"tmpfs", *options), place, _shown(one.target))
        is_directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        place = _directory(parent, name) if is_directory else _file(parent, name)
        return _attach(tree, place, _shown(one.target))
    finally:
        os.close(parent)


def _file(parent: int, name: bytes) -> int:
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
    except FileExistsError:
        pass
    return _step(os.dup(parent), name, 0)


def _cover(parent: int, name: bytes, empty: tuple[int, int]) -> None:
    try:
        place = _step(os.dup(parent), name, 0)
    except FileNotFoundError:
        return
    is_directory = stat.S_ISDIR(os.fstat(place).st_mode)
    _attach(_copy(empty[0 if is_directory else 1], _COVER), place, _shown(name))


def _empty(root: int) -> tuple[int, int]:
    """Make an empty directory and an empty file, whose copies cover others."""
    os.mkdir(b".empty", 0o555, dir_fd=root)
    os.close(os.open(b".nothing", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444, dir_fd=root))
    return os.open(b".empty", _LOCATION, dir_fd=root), os.open(b".nothing", _LOCATION, dir_fd=root)


# ---------------------------------------------------------------- mounts


def _new(kind: bytes, *options: tuple[bytes, bytes | None], attributes: int = 6) -> int:
    """Make a file system of its own, not attached yet; by default without setuid and devices."""
    step = f"a file system of type {_shown(kind)}"
    context = _system_call(step, _FSOPEN, kind, _CLOEXEC)
    for key, value in options:
        how = _SET_FLAG if value is None else _SET_STRING
        _system_call(step, _FSCONFIG, context, how, key, value, 0)
    _system_call(step, _FSCONFIG, context, _CREATE, None, None, 0)
    made = _system_call(step, _FSMOUNT, context, _CLOEXEC, attributes)
    os.close(context)
    return made


def _copy(source: int, attributes: int) -> int:
    """Copy the mounts at and below a place, with attributes added to each of them."""
    tree = _system_call("a copy of mounts", _OPEN_TREE, source, b"", _CLONE_TREE)
    _set_attributes(tree, attributes, _AT_RECURSIVE)
    return tree


def _set_attributes(at: int, attributes: int, recursive: int) -> None:
    wanted = _ATTRIBUTES.pack(attributes, 0, 0, 0)
    _system_call(
        "attributes of mounts",
        _MOUNT_SETATTR,
        at,
        b"",
        _AT_EMPTY_PATH | recursive,
        wanted,
        ctypes.c_size_t(len(wanted)),
    )


def _attach(tree: int, place: int, shown: str, keep: bool = False) -> None:
    _system_call(f"mounting {shown}", _MOVE_MOUNT, tree, b"", place, b"", _MOVE_EMPTY_PATHS)
    os.close(place)
    if not keep:
        os.close(tree)


def _system_call(step: str, number: int, *arguments: object) -> int:
    return call(step, "syscall", ctypes.c_long(number), *arguments)
