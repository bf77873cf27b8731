"""JSON with the C functions of the standard library, without importing `json`.

`import json` compiles regular expressions and loads `re` and `enum`: 7 ms, as long as the
interpreter takes to start. A command like `ls` reads four small objects. So this module calls the C
scanner and the C encoder that `json` itself uses. Text that the scanner does not take as a single
value goes to `json.loads`, which returns the value or raises the error. An interpreter without
these C parts gets `json`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Hook = Callable[[str], object]  # makes a value of a literal
    Decode = Callable[[str], Any]
    Json = dict[str, Any]  # an object as it comes from JSON

try:
    import _json
except ImportError:
    _json = None  # type: ignore[assignment]


def encoder(
    separators: tuple[str, str] = (", ", ": "),
    ensure_ascii: bool = True,
    sort_keys: bool = False,
    allow_nan: bool = True,
) -> Callable[[object], str]:
    """A function that writes one value, as `json.dumps` with these options does."""
    if _json is None:
        import json

        return json.JSONEncoder(
            separators=separators,
            ensure_ascii=ensure_ascii,
            sort_keys=sort_keys,
            allow_nan=allow_nan,
        ).encode
    item, key = separators
    quote = _json.encode_basestring_ascii if ensure_ascii else _json.encode_basestring
    make_encoder = _json.make_encoder

    def encode(value: object) -> str:
        # The first argument finds circular references; it is a fresh dictionary for each value.
        return "".join(
            make_encoder({}, _unknown, quote, None, key, item, sort_keys, False, allow_nan)(
                value, 0
            )
        )

    return encode


def decoder(
    parse_int: Hook = int, parse_float: Hook = float, parse_constant: Hook | None = None
) -> Decode:
    """A function that reads one value, as `json.loads` with these hooks does."""

    def slowly(text: str) -> object:
        import json

        return json.loads(
            text, parse_int=parse_int, parse_float=parse_float, parse_constant=parse_constant
        )

    if _json is None:
        return slowly
    options = _Options()
    options.parse_int, options.parse_float = parse_int, parse_float
    options.parse_constant = parse_constant or _CONSTANTS.__getitem__
    scan = _json.make_scanner(options)  # type: ignore[arg-type]

    def decode(text: str) -> object:
        try:
            value, end = scan(text, 0)
        except StopIteration:
            return slowly(text)
        return value if end == len(text) else slowly(text)

    return decode


class _Options:
    """What the scanner asks of the decoder that made it."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_int: Hook
    parse_float: Hook
    parse_constant: Hook


_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _unknown(value: object) -> None:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


dumps = encoder()
loads = decoder()


def load(data: bytes) -> Any:
    """The value that these bytes hold, as `json.loads` reads them: UTF-16 and UTF-32 included."""
    if data[:1] == b"{" and data[1:2] != b"\0":
        return loads(data.decode("utf-8", "surrogatepass"))
    import json

    return json.loads(data)
