"""The operations of `wire.operations` by HTTP: arguments come from the path, the query and the body.

PUT creates (201), or changes or leaves what exists by the broker's rules (200). An empty body means the defaults.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from sulina.byte_budget import ByteBudget
from sulina.errors import InvalidInput
from sulina.listeners.calls import AnyOperation, answer
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_parameters import ParameterReader, flag, number, read_query, text_up_to
from sulina.listeners.http_problem import HttpError
from sulina.listeners.http_records import encoder, read_json
from sulina.listeners.http_request import JSON, HttpRequest
from sulina.types import TopicName
from sulina.wire.operations import NUMBER_MAX, OPERATIONS, body_type

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

Handler = Callable[[HttpRequest], Awaitable[None]]


class OperationRoutes:
    """The handlers of all operations that have a route."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker = broker
        self._bodies = ByteBudget(limits.in_flight_body_bytes_max)

    def routes(self) -> dict[str, dict[str, Handler]]:
        """Return the handlers, by path and method."""
        routes: dict[str, dict[str, Handler]] = {}
        for operation in OPERATIONS:
            if operation.route is not None:
                routes.setdefault(operation.route.path, {})[operation.route.method] = self._handler(operation)
        return routes

    def _handler(self, operation: AnyOperation) -> Handler:
        route = operation.route
        assert route is not None
        in_path, in_query, body = path_readers(operation), query_readers(operation), body_type(operation)

        async def handle(request: HttpRequest) -> None:
            arguments = read_query(request.scope["query_string"], in_query)
            if "{topic}" in route.path:
                arguments["topic"] = TopicName(request.path["namespace"], request.path["topic"])
            for name, reader in in_path.items():
                arguments[name] = reader(name, request.path[name])
            if body is not None:
                given = await self._read_body(request, body)
                arguments |= msgspec.structs.asdict(given) if route.body is None else {route.body: given}
            asked = operation.shape(**arguments)
            result, is_new = await answer(self._broker, operation, asked, for_all_owners=True)
            if result is None:
                await request.answer_nothing(route.status)
            else:
                await request.answer(encoder.encode(result), status=201 if is_new else route.status)

        return handle

    async def _read_body(self, request: HttpRequest, kind: type[Struct]) -> Struct:
        """Return the body; an empty one means the defaults, where there are."""
        body = await request.read_body(self._bodies)
        if not body:
            try:
                return kind()
            except TypeError:
                raise InvalidInput(f"the body must be JSON with {', '.join(_required(kind))}") from None
        content_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if content_type != JSON:
            raise HttpError("unsupported_media_type", "Content-Type must be application/json")
        read: Struct = read_json(body, _decoder(kind))
        return read


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _required(kind: type[Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind) if field.required]


def path_readers(operation: AnyOperation) -> dict[str, ParameterReader]:
    """Return how to read the arguments that are parts of the path; the topic is not among them."""
    assert operation.route is not None
    path = operation.route.path
    return {
        name: _reader(kind) for name, kind in _fields(operation).items() if f"{{{name}}}" in path and name != "topic"
    }


def query_readers(operation: AnyOperation) -> dict[str, ParameterReader]:
    """Return how to read the arguments that are parameters of the query."""
    assert operation.route is not None
    if operation.route.method not in ("GET", "DELETE"):
        return {}
    path = operation.route.path
    return {name: _reader(kind) for name, kind in _fields(operation).items() if f"{{{name}}}" not in path}


def _fields(operation: AnyOperation) -> dict[str, Any]:
    shape = msgspec.inspect.type_info(operation.shape)
    assert isinstance(shape, msgspec.inspect.StructType)
    return {field.name: field.type for field in shape.fields}


def _reader(kind: msgspec.inspect.Type) -> ParameterReader:
    """Return how to read a parameter of this type."""
    match kind:
        case msgspec.inspect.Metadata():
            return _reader(kind.type)
        case msgspec.inspect.UnionType():
            return _reader(next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)))
        case msgspec.inspect.BoolType():
            return flag
        case msgspec.inspect.IntType():
            return number(kind.ge or 0, NUMBER_MAX if kind.le is None else kind.le)
        case msgspec.inspect.StrType():
            assert kind.max_length is not None
            return text_up_to(kind.max_length)
    raise AssertionError(f"no parameter can be of {kind}")
