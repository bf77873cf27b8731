"""Terminals inside tool calls. The editor does not know our terminals, so it gets their text.

The agent names a terminal in the content of a tool call. The editor gets the command, the session,
the state and the output instead, and again when the command is held and when it is over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faces.acp.terminals import Terminal
    from holdfast.model.jsontext import Json

TOOL_CALLS_KEPT: Final = 64  # the newest that name a terminal
SHOWN_CHARS: Final = 8000  # the end of the output


def described(terminal: Terminal) -> str:
    """The terminal as Markdown."""
    name, shown = terminal.place.session.name, terminal.output()["output"]
    lines = f"$ {terminal.command}\n{shown[-SHOWN_CHARS:]}".rstrip("\n")
    fence = "`" * (1 + max((2, *map(len, re.findall("`+", lines)))))
    return f"{fence}\n{lines}\n{fence}\nsession {name} (`holdfast attach {name}`)"


class ToolCalls:
    """The tool calls that name a terminal."""

    def __init__(self, find: Callable[[object], Terminal | None]) -> None:
        self._find = find
        self._known: dict[tuple[object, object], list[Json]] = {}

    def replaced(self, message: Json) -> Json | None:
        """The message of the agent with text for our terminals; None if it names no terminal."""
        params = message.get("params")
        if not isinstance(params, dict):
            return None
        for key in ("update", "toolCall"):
            call = params.get(key)
            content = call.get("content") if isinstance(call, dict) else None
            if isinstance(call, dict) and isinstance(content, list) and self._named(content):
                self._keep((params.get("sessionId"), call.get("toolCallId")), content)
                call = {**call, "content": self._as_text(content)}
                return {**message, "params": {**params, key: call}}
        return None

    def again(self, terminal: Terminal) -> list[Json]:
        """The updates for the editor after a change of this terminal."""
        return [
            {
                "jsonrpc": "2.0",
                "method": "session/update",
                "params": {
                    "sessionId": session,
                    "update": {
                        "sessionUpdate": "tool_call_update",
                        "toolCallId": call,
                        "content": self._as_text(content),
                    },
                },
            }
            for (session, call), content in self._known.items()
            if terminal in self._named(content)
        ]

    def _named(self, content: list[Json]) -> list[Terminal]:
        found = [self._terminal(one) for one in content]
        return [one for one in found if one is not None]

    def _terminal(self, item: object) -> Terminal | None:
        named = isinstance(item, dict) and item.get("type") == "terminal"
        return self._find(item.get("terminalId")) if named and isinstance(item, dict) else None

    def _as_text(self, content: list[Json]) -> list[Json]:
        def text(item: Json) -> Json:
            if (terminal := self._terminal(item)) is None:
                return item
            block = {"type": "text", "text": described(terminal)}
            return {"type": "content", "content": block}

        return [text(one) for one in content]

    def _keep(self, call: tuple[object, object], content: list[Json]) -> None:
        if not all(isinstance(one, str) for one in call):
            return
        self._known.pop(call, None)
        self._known[call] = content
        for old in list(self._known)[:-TOOL_CALLS_KEPT]:
            del self._known[old]
