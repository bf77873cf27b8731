"""The parts of an answer, in the order of sending."""

from __future__ import annotations

from typing import Any, NamedTuple


class Data(NamedTuple):
    """Output of the session between two offsets; filtered output may have fewer bytes."""

    start: int
    end: int
    data: bytes


class Gap(NamedTuple):
    """Output between two offsets that rolled off before the host could send it."""

    start: int
    end: int


class Event(NamedTuple):
    """An event that belongs to the request, or to the whole connection."""

    name: str
    body: dict[str, Any]


class Reply(NamedTuple):
    """The end of an answer."""

    body: dict[str, Any]


Part = Data | Gap | Event | Reply
