"""JSON read into types, also by several threads at once.

msgspec learns a type when the type is first used, and a thread that uses it meanwhile reads what is only half there:
the process crashes (msgspec 0.22). So whatever may be the first to use a type does it here, one at a time.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Hook = Callable[[type, Any], Any]

_decoders: dict[tuple[Any, Hook | None], msgspec.json.Decoder[Any]] = {}
_learning = threading.Lock()


def json_decoder(kind: type[T], dec_hook: Hook | None = None) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type; it is made once.

    Raises:
        TypeError: msgspec cannot read values of this type.
    """
    found = _decoders.get((kind, dec_hook))
    if found is None:
        with _learning:
            found = _decoders[kind, dec_hook] = msgspec.json.Decoder(kind, dec_hook=dec_hook)
    return found


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Read a JSON document as a value of a type.

    Raises:
        msgspec.DecodeError: the document is not JSON.
        msgspec.ValidationError: it is not of this type.
    """
    return json_decoder(kind).decode(data)


def convert_to(
    value: object, kind: type[T], *, from_attributes: bool = False, builtin_types: Iterable[type] | None = None
) -> T:
    """Turn plain values, as JSON has them, into a value of a type; the options are those of `msgspec.convert`.

    Raises:
        msgspec.ValidationError: they are not of this type.
    """
    json_decoder(kind)
    return msgspec.convert(value, kind, from_attributes=from_attributes, builtin_types=builtin_types)
