"""Files of a machine as a table, for decisions that read the machine through `Files`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping


class FileTable:
    """Paths with a content: text is a file, `-> X` a link, None a directory, `!kind` that kind.

    Parents of a path are directories. A path in `closed` is not readable by every user.
    """

    def __init__(self, content: Mapping[str, str | None], closed: tuple[str, ...] = ()) -> None:
        self.content: dict[str, str | None] = dict(content)
        for path in content:
            while (path := posixpath.dirname(path)) != "/":
                self.content.setdefault(path, None)
        self.closed = closed

    def kind(self, path: str) -> str:
        parent = self.real(posixpath.dirname(path))
        path = posixpath.join(parent, posixpath.basename(path))
        if path == "/":
            return "dir"
        if path not in self.content:
            return ""
        match self.content[path]:
            case None:
                return "dir"
            case str(text) if text.startswith("-> "):
                return "link"
            case str(text) if text.startswith("!"):
                return text[1:]
        return "file"

    def link(self, path: str) -> str:
        return (self.content.get(path) or "").removeprefix("-> ")

    def real(self, path: str) -> str:
        found = "/"
        for name in posixpath.normpath(path).strip("/").split("/"):
            found = posixpath.join(found, name)
            text = self.content.get(found)
            if text is not None and text.startswith("-> "):
                found = self.real(posixpath.join(posixpath.dirname(found), text[3:]))
        return posixpath.normpath(found)

    def names(self, path: str) -> list[str]:
        return sorted(
            posixpath.basename(p) for p in self.content if posixpath.dirname(p) == path and p != "/"
        )

    def public(self, path: str) -> bool:
        return path not in self.closed

    def read(self, path: str) -> str:
        path = self.real(path)
        return (self.content[path] or "") if self.kind(path) == "file" else ""
