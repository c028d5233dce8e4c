"""OpenTelemetry traces of the HTTP surface, off unless an endpoint is configured.

- A span for each request, named after its route (`POST /v1/topics/{namespace}/{topic}/records`), never after its path:
  the names stay few. A span for each WebSocket, as long as it lasts.
- A `traceparent` that comes with a request is taken over.
- Spans leave in the background, in bounded queues: a collector that is away costs spans, not requests.

The packages of `pip install sulina[otel]` are imported only here, and only when tracing is on.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sulina.config import Settings
from sulina.errors import InvalidSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# What a handler may put into the scope for its span: how many records a request published or read.
COUNT = "sulina.count"
FLUSH_MS = 3000
_UNTRACED = ("/health", "/ready", "/metrics")  # asked every few seconds, by machines


class Tracing:
    """The spans of one node. `traced` wraps its application; `stop` sends what is left."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider

    @classmethod
    def start(cls, settings: Settings, *, exporter: "SpanExporter | None" = None) -> "Tracing | None":
        """Return tracing to the endpoint of the settings, or None without one. `exporter` replaces the usual one.

        Raises:
            InvalidSettings: OpenTelemetry is not installed.
        """
        if settings.otlp_endpoint is None:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise InvalidSettings(
                f"otlp_endpoint: traces need packages that are not installed ({error.name}): "
                "pip install 'sulina[otel]', or remove the setting"
            ) from None
        names = {SERVICE_NAME: "sulina", SERVICE_INSTANCE_ID: settings.broker_id}
        provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
        url = settings.otlp_endpoint.rstrip("/") + "/v1/traces"
        provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=url, timeout=2)))
        return cls(provider)

    def traced(self, app: AsgiApp) -> AsgiApp:
        """Return the application with a span around each request."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        tracer = self._provider.get_tracer("sulina")

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] not in ("http", "websocket") or scope["path"] in _UNTRACED:
                return await app(scope, receive, send)
            carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            method = scope.get("method", "WEBSOCKET")
            with tracer.start_as_current_span(method, context=extract(carrier), kind=SpanKind.SERVER) as span:
                span.set_attribute("http.request.method", method)

                async def observed(message: Message) -> None:
                    if message["type"] == "http.response.start":
                        _describe_status(span, message["status"])
                    await send(message)

                try:
                    await app(scope, receive, observed)
                finally:
                    _describe_route(span, method, scope)

        return wrapped

    def span(self, name: str, attributes: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a span around something that the node does by itself."""
        return self._provider.get_tracer("sulina").start_as_current_span(name, attributes=attributes)

    async def stop(self) -> None:
        """Send what is left, for a few seconds at most."""

        def flush() -> None:
            self._provider.force_flush(FLUSH_MS)
            self._provider.shutdown()

        await asyncio.to_thread(flush)


def _describe_status(span: "Span", status: int) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def _describe_route(span: "Span", method: str, scope: Scope) -> None:
    """Name the span by its route, after the request: only then is the route known."""
    template = getattr(scope.get("route"), "path", None)
    span.update_name(f"{method} {template}" if template else method)
    if template:
        span.set_attribute("http.route", template)
    parameters = scope.get("path_params", {})
    if "topic" in parameters:
        namespace = parameters.get("namespace")
        span.set_attribute("topic", f"/{namespace}/{parameters['topic']}" if namespace else str(parameters["topic"]))
    if (partition := parameters.get("partition")) is not None:
        span.set_attribute("partition", int(partition) if str(partition).isdecimal() else str(partition))
    if isinstance(count := scope.get(COUNT), int):
        span.set_attribute("count", count)
