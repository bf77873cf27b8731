"""The part of a session that this room uses: identity, processes and threads to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Rooted(Protocol):
    root_pid: int


class SessionProcesses(Protocol):
    """Implemented by host/session/session.py."""

    @property
    def id(self) -> str: ...
    @property
    def keeper_pid(self) -> int: ...
    @property
    def record(self) -> Rooted: ...
    @property
    def layout(self) -> Mapping[str, str]: ...
    @property
    def host_only_directory(self) -> str: ...
    async def looked(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
