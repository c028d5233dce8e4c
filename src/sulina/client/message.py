"""Messages: what an application publishes, what it reads, and what is delivered to it."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from sulina.client.serialization import SerializationRegistry, envelope_of
from sulina.core.records.record import Headers
from sulina.errors import NotSerializable

if TYPE_CHECKING:
    from sulina.client.attachment import Attachment

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
T = TypeVar("T")

_to_json = msgspec.json.Encoder()


class Message(msgspec.Struct, frozen=True):
    """One record to publish. A value is bytes, text, or anything that msgspec writes as JSON; None is a tombstone."""

    value: Any
    key: bytes | str | None = None
    headers: HeadersLike | None = None
    timestamp_ms: int | None = None  # None: now


class Received(msgspec.Struct, frozen=True, gc=False):  # nothing in it can refer back to it
    """One record as it was read. `timestamp_ms` is the producer's; offsets count within a partition."""

    value: bytes | None  # None: a tombstone
    key: bytes | None
    timestamp_ms: int
    headers: Headers
    offset: int
    partition: int
    topic: str

    @property
    def text(self) -> str | None:
        """The value as UTF-8. UnicodeDecodeError."""
        return None if self.value is None else self.value.decode()

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = Any) -> Any:
        """The value as JSON, checked against `kind` if one is given; None for a tombstone. msgspec.DecodeError."""
        return None if self.value is None else msgspec.json.decode(self.value, type=kind)


class Delivered(Received, frozen=True, eq=False, gc=False):  # only a buffer does, which is emptied when it is closed
    """One record that a subscription delivered, to be acked or nacked."""

    attempt: int  # 1 the first time
    attachment: "Attachment"

    async def ack(self) -> bool:
        """Return when the cursor is durable: the record is done.

        False: it was not this delivery's to say. It had been acked before, or taken back (the connection was lost, the
        subscription sought, the time to ack over) and is delivered again.
        """
        return await self.attachment.ack((self,))

    def ack_soon(self) -> None:
        """As `ack`, without waiting: many become one frame. An ack that is lost means another delivery."""
        self.attachment.ack_soon(self)

    async def nack(self, delay_seconds: float | None = None) -> bool:
        """Have the record delivered again, after the topic's delay unless another is given. False as with `ack`."""
        return await self.attachment.nack((self,), delay_seconds)


class PubSubMessage(Received, frozen=True, eq=False, gc=True, dict=True):
    """One record that a subscriber is called with. `value` is its bytes, `payload` what they mean."""

    registry: SerializationRegistry

    @cached_property
    def payload(self) -> Any:
        """As it was published, read when it is first asked for; None for a tombstone. InvalidEnvelope."""
        return None if self.value is None else self.registry.deserialize(envelope_of(self.value, self.headers))


def value_bytes(value: object) -> bytes | None:
    """A value as it is stored. NotSerializable."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return value.encode() if isinstance(value, str) else _to_json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise NotSerializable(
            f"a value of type {type(value).__qualname__} cannot be written as JSON: {error}"
        ) from None


def key_bytes(key: object) -> bytes | None:
    """A key as it is stored. NotSerializable."""
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
    """Headers as they are stored. NotSerializable."""
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
    """A timestamp as it is stored; None: now. NotSerializable."""
    if timestamp_ms is None:
        return now_ms
    if not isinstance(timestamp_ms, int):
        raise NotSerializable(f"a timestamp is milliseconds since 1970, not {type(timestamp_ms).__qualname__}")
    return timestamp_ms
