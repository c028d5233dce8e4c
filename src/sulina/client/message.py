"""What an application publishes (`Record`), and what it reads (`Message`)."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from sulina.client.serialization import SerializationRegistry, envelope_of
from sulina.core.records.record import Headers
from sulina.errors import NotSerializable
from sulina.json_values import decode_json

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
T = TypeVar("T")

_PLAIN = SerializationRegistry()  # of messages that were made without a client


class Record(msgspec.Struct, frozen=True):
    """A record to publish. Its value is bytes, text, or anything that the client's registry can write.

    A value of None deletes the key in tables that are made from the topic.
    """

    value: Any
    key: bytes | str | None = None
    headers: HeadersLike | None = None
    timestamp_ms: int | None = None  # None: now


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):  # nothing refers back to it
    """A record as it was read: `value` is its bytes, `payload` is what was published."""

    topic: str
    partition: int
    offset: int  # counted within the partition
    value: bytes | None  # None: the key is deleted
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = -1  # the producer's; -1: it gave none
    attempt: int = 1  # how often a consumer's subscription has delivered it
    registry: SerializationRegistry = _PLAIN  # reads the payload
    delivery_id: int = 0  # which attachment of a consumer it came by; 0: it came by `read` or `subscribe`
    _payload: Any = UNSET

    @property
    def payload(self) -> Any:
        """Return what was published, decoded when it is first asked for; None where the key is deleted.

        Raises:
            InvalidEnvelope: no serializer can read the value, or it is not what its headers say.
        """
        if self._payload is UNSET:
            value = self.value
            found = None if value is None else self.registry.deserialize(envelope_of(value, self.headers))
            force_setattr(self, "_payload", found)
        return self._payload

    @property
    def text(self) -> str | None:
        """Return the value decoded as UTF-8, whatever its headers say.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        return None if self.value is None else self.value.decode()

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """Return the value decoded as JSON, checked against `kind` if that is given, whatever its headers say.

        Raises:
            msgspec.DecodeError: it is not JSON, or not of this kind.
        """
        return None if self.value is None else decode_json(self.value, kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and _content(self) == _content(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        names = ("topic", "partition", "offset", "key", "value", "headers", "timestamp_ms", "attempt")
        return f"Message({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _content(message: Message) -> tuple[object, ...]:
    return (
        message.topic, message.partition, message.offset, message.value, message.key, message.headers,
        message.timestamp_ms, message.attempt,
    )  # fmt: skip


def key_bytes(key: object) -> bytes | None:
    """Return a key as it is stored.

    Raises:
        NotSerializable: it is neither bytes nor text.
    """
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise NotSerializable(f"a key is not text: {error}") from None
    raise NotSerializable(f"a key is bytes or text, not {type(key).__qualname__}")


def header_pairs(headers: HeadersLike | None) -> Headers:
    """Return headers as they are stored.

    Raises:
        NotSerializable: a name is not text, or a value is neither bytes nor text nor None.
    """
    if not headers:
        return ()
    pairs: Any = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((_text(name), _header_value(value)) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise NotSerializable(f"headers are names with bytes or text, not {headers!r:.80}: {error}") from None


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__qualname__}")
    name.encode()  # a lone surrogate has no bytes
    return name


def _header_value(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def stamp_ms(timestamp_ms: object, now_ms: int) -> int:
    """Return a timestamp as it is stored; None means now.

    Raises:
        NotSerializable: it is not a number of milliseconds.
    """
    if timestamp_ms is None:
        return now_ms
    if not isinstance(timestamp_ms, int):
        raise NotSerializable(f"a timestamp is milliseconds since 1970, not {type(timestamp_ms).__qualname__}")
    return timestamp_ms
