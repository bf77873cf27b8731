"""Files of a session (T8): look, read, write, remove, move and search below the session's root."""

from __future__ import annotations

from typing import Final

from holdfast.core.contract.message import ABSENT, Absent, SessionAct, message

LS_ENTRIES: Final = 1000  # of one page
SEARCH_MATCHES: Final = 1000  # of one search


@message
class FileInfo:
    """A file. `type`: file, directory, link, fifo, socket or device. `mode`: the permission bits.

    `modified`: seconds since 1970. `owner`: the number of the account. `target`: of a link.
    `version` changes with the content and the attributes; a page of `files.ls` does not have it.
    """

    name: str
    type: str
    size: int
    mode: int
    modified: float
    owner: int
    target: str | Absent = ABSENT
    version: str | Absent = ABSENT
    path: str | Absent = ABSENT


@message
class FilesLs(SessionAct):
    """A page of a directory, ordered by name. `after`: the last name of the page before."""

    path: str = "."
    after: str = ""
    limit: int = LS_ENTRIES


@message
class FilesListed:
    """`path`: the directory, absolute in the session. `more`: another page follows."""

    path: str
    entries: tuple[FileInfo, ...]
    more: bool


@message
class FilesStat(SessionAct):
    """A single file. The last link of the path is not followed."""

    path: str


@message
class FilesGet(SessionAct):
    """The content of a regular file, as DATA frames.

    `from_`: the offset to continue at; `version`: of the file that the first part came from. A file
    with another version is refused, because the parts would not belong together.
    """

    path: str
    from_: int = 0
    version: str = ""


@message
class FilesGot:
    """The file that was sent. `sha256`: of all bytes up to `size`, also those before `from`.

    `changed`: the file changed while it was read.
    """

    path: str
    size: int
    mode: int
    modified: float
    version: str
    sha256: str
    changed: bool


@message
class FilesSearch(SessionAct):
    """Files whose name matches a pattern (`*.py`), below a directory. No link is followed.

    `text`: only lines that contain this text, in regular files. `limit`: the number of matches.
    """

    pattern: str
    path: str = "."
    text: str = ""
    limit: int = SEARCH_MATCHES


@message
class FileMatch:
    """A match. `path`: below the directory of the search. `line`, `text`: of a matching line."""

    path: str
    type: str
    size: int
    line: int | Absent = ABSENT
    text: str | Absent = ABSENT


@message
class FilesFound:
    """`path`: the directory. `cut`: why the search ended early (matches, files, time), else empty.

    `unreadable`: directories and files that could not be read.
    """

    path: str
    matches: tuple[FileMatch, ...]
    cut: str
    unreadable: int


@message
class FilesPut(SessionAct):
    """Writes a file with the bytes that the client sends in STDIN frames.

    `name`: the name to use if `path` is a directory. `size` and `sha256`: of the content, which the
    client then commits to; without them an upload cannot continue. `mode`: the permission bits;
    absent: those of the file that is replaced. `parents`: makes missing directories.
    """

    path: str
    name: str = ""
    size: int | None = None
    sha256: str = ""
    mode: int | None = None
    parents: bool = False


@message
class FilesWritten:
    """The file that was written. `replaced`: a file of that name was there before."""

    path: str
    size: int
    mode: int
    sha256: str
    replaced: bool


@message
class FilesRm(SessionAct):
    """Removes a file, a link or an empty directory; `recursive`: all that is in it too."""

    path: str
    recursive: bool = False


@message
class FilesRemoved:
    """The path that was removed, and its type."""

    path: str
    type: str


@message
class FilesMv(SessionAct):
    """Gives a file another path on the same file system; a file of that path is replaced.

    If `to` is a directory, the file keeps its name there.
    """

    path: str
    to: str


@message
class FilesMoved:
    """The old path and the new path."""

    path: str
    to: str
