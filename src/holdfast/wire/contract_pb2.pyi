from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_HOST: _ClassVar[Role]
    ROLE_CLIENT: _ClassVar[Role]

class CloseCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLOSE_CODE_UNSPECIFIED: _ClassVar[CloseCode]
    CLOSE_CODE_DONE: _ClassVar[CloseCode]
    CLOSE_CODE_REFUSED: _ClassVar[CloseCode]
    CLOSE_CODE_OFFLINE: _ClassVar[CloseCode]
    CLOSE_CODE_UNAUTHORIZED: _ClassVar[CloseCode]
    CLOSE_CODE_REPLACED: _ClassVar[CloseCode]
    CLOSE_CODE_PROTOCOL: _ClassVar[CloseCode]
    CLOSE_CODE_FLOW: _ClassVar[CloseCode]
    CLOSE_CODE_SLOW: _ClassVar[CloseCode]
    CLOSE_CODE_LIMIT: _ClassVar[CloseCode]
    CLOSE_CODE_AWAY: _ClassVar[CloseCode]
    CLOSE_CODE_TIMEOUT: _ClassVar[CloseCode]
    CLOSE_CODE_VERSION: _ClassVar[CloseCode]
    CLOSE_CODE_FAILED: _ClassVar[CloseCode]
ROLE_UNSPECIFIED: Role
ROLE_HOST: Role
ROLE_CLIENT: Role
CLOSE_CODE_UNSPECIFIED: CloseCode
CLOSE_CODE_DONE: CloseCode
CLOSE_CODE_REFUSED: CloseCode
CLOSE_CODE_OFFLINE: CloseCode
CLOSE_CODE_UNAUTHORIZED: CloseCode
CLOSE_CODE_REPLACED: CloseCode
CLOSE_CODE_PROTOCOL: CloseCode
CLOSE_CODE_FLOW: CloseCode
CLOSE_CODE_SLOW: CloseCode
CLOSE_CODE_LIMIT: CloseCode
CLOSE_CODE_AWAY: CloseCode
CLOSE_CODE_TIMEOUT: CloseCode
CLOSE_CODE_VERSION: CloseCode
CLOSE_CODE_FAILED: CloseCode

class Frame(_message.Message):
    __slots__ = ("hello", "welcome", "register", "registered", "passes", "open", "incoming", "accept", "data", "credit", "close", "ping", "pong", "watch", "presence")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    register: Register
    registered: Registered
    passes: Passes
    open: Open
    incoming: Incoming
    accept: Accept
    data: Data
    credit: Credit
    close: Close
    ping: Ping
    pong: Pong
    watch: Watch
    presence: Presence
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., register: _Optional[_Union[Register, _Mapping]] = ..., registered: _Optional[_Union[Registered, _Mapping]] = ..., passes: _Optional[_Union[Passes, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., incoming: _Optional[_Union[Incoming, _Mapping]] = ..., accept: _Optional[_Union[Accept, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., watch: _Optional[_Union[Watch, _Mapping]] = ..., presence: _Optional[_Union[Presence, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("lowest", "highest", "role", "software")
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    lowest: int
    highest: int
    role: Role
    software: str
    def __init__(self, lowest: _Optional[int] = ..., highest: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., software: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "nonce", "frame_bytes", "streams", "ping_s", "software")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    PING_S_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    frame_bytes: int
    streams: int
    ping_s: int
    software: str
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., frame_bytes: _Optional[int] = ..., streams: _Optional[int] = ..., ping_s: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("route_key", "generation", "signature", "passes")
    ROUTE_KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    route_key: bytes
    generation: int
    signature: bytes
    passes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, route_key: _Optional[bytes] = ..., generation: _Optional[int] = ..., signature: _Optional[bytes] = ..., passes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("route",)
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    route: bytes
    def __init__(self, route: _Optional[bytes] = ...) -> None: ...

class Passes(_message.Message):
    __slots__ = ("passes",)
    PASSES_FIELD_NUMBER: _ClassVar[int]
    passes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, passes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("stream", "route")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PASS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    route: bytes
    def __init__(self, stream: _Optional[int] = ..., route: _Optional[bytes] = ..., **kwargs) -> None: ...

class Incoming(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: int
    def __init__(self, stream: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("stream", "payload")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    stream: int
    payload: bytes
    def __init__(self, stream: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("stream", "amount")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    amount: int
    def __init__(self, stream: _Optional[int] = ..., amount: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("stream", "code", "reason")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    stream: int
    code: CloseCode
    reason: str
    def __init__(self, stream: _Optional[int] = ..., code: _Optional[_Union[CloseCode, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("mark",)
    MARK_FIELD_NUMBER: _ClassVar[int]
    mark: bytes
    def __init__(self, mark: _Optional[bytes] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("mark",)
    MARK_FIELD_NUMBER: _ClassVar[int]
    mark: bytes
    def __init__(self, mark: _Optional[bytes] = ...) -> None: ...

class Watch(_message.Message):
    __slots__ = ("route",)
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PASS_FIELD_NUMBER: _ClassVar[int]
    route: bytes
    def __init__(self, route: _Optional[bytes] = ..., **kwargs) -> None: ...

class Presence(_message.Message):
    __slots__ = ("route", "online", "since")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    ONLINE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    route: bytes
    online: bool
    since: int
    def __init__(self, route: _Optional[bytes] = ..., online: _Optional[bool] = ..., since: _Optional[int] = ...) -> None: ...

class Body(_message.Message):
    __slots__ = ("data", "rekey", "end", "ask", "yes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    REKEY_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    rekey: Rekey
    end: End
    ask: Ask
    yes: Yes
    def __init__(self, data: _Optional[bytes] = ..., rekey: _Optional[_Union[Rekey, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., yes: _Optional[_Union[Yes, _Mapping]] = ...) -> None: ...

class Rekey(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class End(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ask(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Yes(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
