"""An HTTP request that a relay carries to a service, and the answer: plain bytes inside DATA.

    MESSAGE ::= LENGTH HEAD BODY
    LENGTH      of HEAD, 4 bytes, big-endian, at most CARRIED_HEAD_BYTES
    HEAD        canonical JSON with `v` 1 and `length`, the size of BODY
                a request adds  name, headers {lower case name: value}
                an answer adds  status (200 to 599), type (of the body)

A stream of a relay carries one request and one answer, and then it ends. The messages are not
sealed: the provider that sent the request knows no key of the service. The relay reads both.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.model import canonical
from holdfast.model.errors import PeerFault
from holdfast.model.limits import CARRIED_ANSWER_BYTES, CARRIED_BODY_BYTES, CARRIED_HEAD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

VERSION: Final = 1
LENGTH_BYTES: Final = 4


class Request(NamedTuple):
    """`headers`: by the name in lower case."""

    name: str
    headers: dict[str, str]
    length: int


class Answer(NamedTuple):
    status: int
    type: str
    length: int


def head(message: Request | Answer) -> bytes:
    """LENGTH and HEAD of a message; the body follows."""
    text = canonical.encode({"v": VERSION, **message._asdict()})
    if len(text) > CARRIED_HEAD_BYTES:
        raise ValueError(f"a head of {len(text)} bytes; at most {CARRIED_HEAD_BYTES}")
    return len(text).to_bytes(LENGTH_BYTES, "big") + text


class Incoming:
    """Collects one message; bytes that no message can have raise PeerFault."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.head: Request | Answer | None = None

    def feed(self, data: bytes) -> bool:
        """Adds bytes; tells whether the message is whole."""
        self._data += data
        if self.head is None:
            if len(self._data) < LENGTH_BYTES:
                return False
            end = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if end > LENGTH_BYTES + CARRIED_HEAD_BYTES:
                raise PeerFault("the head of a carried message is too long")
            if len(self._data) < end:
                return False
            self.head = _read(bytes(self._data[LENGTH_BYTES:end]))
            del self._data[:end]
        if len(self._data) > self.head.length:
            raise PeerFault("a carried message is longer than it says")
        return len(self._data) == self.head.length

    @property
    def body(self) -> bytes:
        return bytes(self._data)


def _read(text: bytes) -> Request | Answer:
    try:
        value = canonical.decode(text)
        if not isinstance(value, dict) or value.pop("v", None) != VERSION:
            raise ValueError("not a version that is known here")
        return _answer(value) if "status" in value else _request(value)
    except (ValueError, TypeError, RecursionError) as e:
        raise PeerFault(f"a carried message with a wrong head: {e}") from e


def _request(value: Json) -> Request:
    made = Request(**value)
    if (
        type(made.name) is not str
        or type(made.headers) is not dict
        or not all(type(one) is str for one in made.headers.values())
    ):
        raise ValueError("not the fields of a request")
    _check(made.length, CARRIED_BODY_BYTES)
    return made


def _answer(value: Json) -> Answer:
    made = Answer(**value)
    if type(made.status) is not int or not 200 <= made.status <= 599 or type(made.type) is not str:
        raise ValueError("not the fields of an answer")
    _check(made.length, CARRIED_ANSWER_BYTES)
    if not made.type.isascii() or not made.type.isprintable():
        raise ValueError("not a type of content")
    return made


def _check(length: int, most: int) -> None:
    if type(length) is not int or not 0 <= length <= most:
        raise ValueError(f"a body has at most {most} bytes")
