"""The HTTP surface of a node as one ASGI application.

Records come first: their paths are matched before anything else. All other paths are Starlette's to route. Whatever
goes wrong in a request is answered here, in one place, as problem+json.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sulina.listeners.http_events import EventFeed
from sulina.listeners.http_fetch import Fetcher
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS, HttpLimits
from sulina.listeners.http_openapi_paths import BATCH, EVENTS, PARTITION_BATCH, PARTITION_RECORDS, RECORDS
from sulina.listeners.http_operations import Handler, OperationRoutes
from sulina.listeners.http_pages import Pages
from sulina.listeners.http_parameters import Target, Targets, check_path
from sulina.listeners.http_problem import ClientGone, method_not_allowed, no_such_path
from sulina.listeners.http_publish import HttpPublisher
from sulina.listeners.http_request import HttpRequest

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

__all__ = ["DEFAULT_HTTP_LIMITS", "HttpApp", "HttpLimits", "make_app"]

WEBSOCKET_PATH = "/v1/ws"
_EXCHANGE = "sulina.exchange"
# What traces call the routes that are not Starlette's, by whether a partition is named and whether it is a batch.
_ROUTES = {
    (False, False): SimpleNamespace(path=RECORDS),
    (True, False): SimpleNamespace(path=PARTITION_RECORDS),
    (False, True): SimpleNamespace(path=BATCH),
    (True, True): SimpleNamespace(path=PARTITION_BATCH),
}


def make_app(broker: "Broker", limits: HttpLimits = DEFAULT_HTTP_LIMITS, *, websocket: ASGIApp) -> "HttpApp":
    """Return the application; `websocket` answers the WebSockets at /v1/ws."""
    return HttpApp(broker, limits, websocket)


class HttpApp:
    """An ASGI application."""

    def __init__(self, broker: "Broker", limits: HttpLimits, websocket: ASGIApp) -> None:
        self._limits = limits
        self._broker = broker
        self._websocket = websocket
        self._errors = broker.metrics.errors
        self._targets = Targets()
        self._publisher = HttpPublisher(broker, limits)
        self._fetcher = Fetcher(broker, limits)
        self._events = EventFeed(broker, limits)
        routes = Pages(broker, limits).routes() | OperationRoutes(broker, limits).routes()
        routes[EVENTS] = {"GET": self._events.get_events}
        self.methods = {path: frozenset(handlers) for path, handlers in routes.items()}  # but those of records
        self._router = Router(
            [Route(path, _Resource(handlers)) for path, handlers in routes.items()],
            redirect_slashes=False,
            default=_nothing_here,
        )

    def stop_waiting(self) -> None:
        """End event streams, and refuse requests that wait for records: the node is stopping."""
        self._events.stop()
        self._fetcher.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one WebSocket."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        exchange = HttpRequest(scope, receive, send, self._limits)
        try:
            target = self._targets[scope["raw_path"]]
            if target is not None:
                scope["route"] = _ROUTES[target.partition is not None, target.is_batch]
                scope["path_params"] = target.parameters
                if scope["method"] == "POST":
                    await self._publisher.publish(target, exchange)
                else:
                    await self._fetch(target, exchange)
            else:
                check_path(scope["raw_path"])
                scope[_EXCHANGE] = exchange
                await self._router(scope, receive, send)
        except ClientGone:
            return
        except Exception as error:
            if exchange.is_answered:
                raise  # it is too late for an answer: the server cuts the connection and logs why
            self._errors.labels(await exchange.refuse(error)).inc()
        finally:
            exchange.release_body()

    async def _fetch(self, target: Target, exchange: HttpRequest) -> None:
        method, partition = exchange.scope["method"], target.partition
        if partition is None or target.is_batch:
            raise method_not_allowed(method, ["POST"])
        if method in ("GET", "HEAD"):
            await self._broker.hear_of(target.topic)
            await self._fetcher.fetch(target, partition, exchange)
        else:
            raise method_not_allowed(method, ["GET", "POST"])

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            if scope["path"] == WEBSOCKET_PATH:
                await self._websocket(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": f"sessions are at {WEBSOCKET_PATH}"})


class _Resource:
    """A path with its methods."""

    def __init__(self, handlers: dict[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        method = scope["method"]
        handler = self._handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise method_not_allowed(method, self._handlers)
        await handler(scope[_EXCHANGE])


async def _nothing_here(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise no_such_path(scope["path"])
