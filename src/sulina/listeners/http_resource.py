"""What the functions behind paths have in common: the names in a path, the query, a body of JSON, an answer in JSON."""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from sulina.listeners.http_exchange import JSON, Exchange, Held, Room
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import Reader, read_query
from sulina.listeners.http_problem import HttpError
from sulina.listeners.http_records import encoder, read_json
from sulina.types import TopicName

Handler = Callable[[Exchange], Awaitable[None]]
Shape = TypeVar("Shape", bound=Struct)


class Bodies:
    """The bodies of requests that are not records."""

    def __init__(self, limits: HttpLimits) -> None:
        self._room = Room(limits.in_flight_body_bytes_max)

    async def read(self, exchange: Exchange, kind: type[Shape]) -> Shape:
        """The body as `kind`; an empty one means the defaults."""
        with Held(self._room) as held:
            body = await exchange.read_body(held)
            if not body:
                return kind()
            content_type = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if content_type != JSON:
                raise HttpError("unsupported_media_type", "Content-Type must be application/json")
            read: Shape = read_json(body, _decoder(kind))
            return read


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


async def show(exchange: Exchange, answer: Struct, *, status: int = 200) -> None:
    """Answer with JSON."""
    await exchange.answer(encoder.encode(answer), status=status)


def query_of(exchange: Exchange, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The parameters of the query; others than those of `readers` are errors."""
    return read_query(exchange.scope["query_string"], readers)


def topic_of(exchange: Exchange) -> TopicName:
    """The topic in the path. InvalidName."""
    return TopicName(exchange.path["ns"], exchange.path["topic"])
