"""The tool set `files`: list, search, read, write and edit files of a session.

The tools stand on `session.files` of the SDK, so every call is an act behind the gate, signed and
recorded. An edit is a read and a write: a change of another program between the two is lost.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from holdfast.faces.mcp import tools
from holdfast.faces.mcp.acts import APPROVAL_WAIT_S, Act
from holdfast.faces.mcp.text import chars, cut, hidden
from holdfast.model.errors import Changed, Impossible, Usage

if TYPE_CHECKING:
    from holdfast.faces.mcp.calls import Acting
    from holdfast.model.jsontext import Json
    from holdfast.sdk.files import Files
    from holdfast.sdk.results import FileInfo, FileMatch

FILE_BYTES: Final = 4 << 20  # of a file that the tools read or edit
FOUND: Final = 500  # entries in one answer
NARROWER: Final = "name a deeper path or a pattern"


class FileTools:
    """The tools of the set. `act`: begins an act and waits for its result."""

    def __init__(self, act: Acting, secrets: Mapping[str, str]) -> None:
        self._act, self._secrets = act, secrets

    async def find_files(
        self, path: str = ".", pattern: str = "", text: str = "", session: str | None = None
    ) -> Json:
        async def do(act: Act) -> Json:
            files, more = _files(act), ""
            if pattern or text:
                found = await files.search(pattern or "*", path, text=text, limit=FOUND)
                rows, more = [_match(one) for one in found.matches], found.cut
            else:
                entries = await files.ls(path, limit=FOUND + 1)
                rows = [_entry(one) for one in entries[:FOUND]]
                more = "entries" if len(entries) > FOUND else ""
            shown, left = list[str](), tools.CHARS
            for row in rows:
                if (left := left - len(row)) < 0:
                    more = "size of the answer"
                    break
                shown.append(hidden(row, self._secrets))
            bound = {"more": f"ended at a bound ({more}): {NARROWER}"} if more else {}
            return {"found": shown, **bound}

        return await self._act(session, ("find_files", path, pattern, text), do)

    async def read_file(
        self,
        path: str,
        line: int = 1,
        lines: int | None = None,
        max_chars: int = tools.CHARS,
        session: str | None = None,
    ) -> Json:
        if line < 1 or (lines is not None and lines < 1):
            raise Usage("line and lines begin at 1")

        async def do(act: Act) -> Json:
            data = await _content(_files(act), path)
            rows = list(io.StringIO(data.decode("utf-8", "replace"), newline="\n"))
            end = len(rows) if lines is None else min(len(rows), line - 1 + lines)
            at, left = line - 1, chars(max_chars)
            while at < end and (at == line - 1 or len(rows[at]) <= left):
                left -= len(rows[at])
                at += 1
            text = hidden("".join(rows[line - 1 : at]), self._secrets)
            following = {"next": at + 1} if at < len(rows) else {}
            # Only a first line that is too long by itself is cut.
            shown = cut(text, chars(max_chars), "a longer max_chars has them")
            return {"line": line, "lines": len(rows), "text": shown, **following}

        return await self._act(session, ("read_file", path, line, lines), do)

    async def write_file(
        self,
        path: str,
        text: str,
        session: str | None = None,
        once: str | None = None,
        intent: str | None = None,
    ) -> Json:
        async def do(act: Act) -> Json:
            files = _files(act, intent)
            done = await files.write_bytes(path, _bytes(text), parents=True, once=once)
            return {"path": done.path, "bytes": done.size, "replaced": done.replaced}

        return await self._act(session, ("write_file", path, text), do, once)

    async def edit_file(
        self,
        path: str,
        old: str,
        new: str,
        all: bool = False,
        session: str | None = None,
        once: str | None = None,
        intent: str | None = None,
    ) -> Json:
        if not old or old == new:
            raise Usage("old is empty, or the same as new")

        async def do(act: Act) -> Json:
            files, was, becomes = _files(act, intent), _bytes(old), _bytes(new)
            data = await _content(files, path)
            if (count := data.count(was)) != 1 and not (count and all):
                also = "; new is there already" if becomes and becomes in data else ""
                raise Changed(
                    f"old occurs {count} times in {path}{also}",
                    "read the file again and repeat its exact text"
                    if not count
                    else "give more of the text around it, or all",
                )
            done = await files.write_bytes(path, data.replace(was, becomes), once=once)
            line = data[: data.index(was)].count(b"\n") + 1
            return {"path": done.path, "replacements": count, "line": line}

        return await self._act(session, ("edit_file", path, old, new, all), do, once)

    async def close(self) -> None:
        """Nothing stays open."""


def _files(act: Act, intent: str | None = None) -> Files:
    return act.session.files.acting(hold=APPROVAL_WAIT_S, intent=intent, on_held=act.held)


async def _content(files: Files, path: str) -> bytes:
    """The bytes of a text file."""
    found = bytearray()
    async with contextlib.aclosing(files.stream(path)) as pieces:
        async for piece in pieces:
            found += piece
            if len(found) > FILE_BYTES:
                raise Impossible(
                    f"{path} has more than {FILE_BYTES} bytes", "use run, with sed or tail"
                )
    if b"\0" in found:
        raise Impossible(f"{path} is no text", "use run, with file or xxd")
    return bytes(found)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Usage("the text has half of a character", "send valid Unicode") from None


_SHOWN: Final[Mapping[str, Callable[[FileInfo], str]]] = {
    "file": lambda one: f"{one.name} {one.size}",
    "directory": lambda one: f"{one.name}/",
    "link": lambda one: f"{one.name} -> {one.target}",
}


def _entry(one: FileInfo) -> str:
    shown = _SHOWN.get(one.type)
    return shown(one) if shown else f"{one.name} ({one.type})"


def _match(one: FileMatch) -> str:
    if one.line is not None:
        return f"{one.path}:{one.line}: {one.text}"
    return f"{one.path}/" if one.type == "directory" else one.path
