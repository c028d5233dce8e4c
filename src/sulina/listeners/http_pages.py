"""What a person or a monitor looks at: the front page, the documentation, health and metrics."""

import asyncio
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from sulina.errors import NotServing
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi import document
from sulina.listeners.http_operations import Handler
from sulina.listeners.http_parameters import read_query
from sulina.listeners.http_request import HttpRequest

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

HTML = b"text/html; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
# Pages load nothing from elsewhere, and nobody may frame them.
_POLICY = (
    b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    b"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = [(b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff")]

_FRONT = """Sulina {version}: publish/subscribe where every topic is an ACID log.

  curl -X PUT {url}/v1/topics/default/orders
  curl --json '{{"records": [{{"key": "42", "value": "hello"}}]}}' {url}/v1/topics/default/orders/records
  curl {url}/v1/topics/default/orders/partitions/0/records

  {url}/docs            the API, to read
  {url}/openapi.json    the API, for tools
  {url}/v1/topics       what is here
  {url}/v1/cluster      who serves it
  {url}/v1/events       what happens, live
  {url}/metrics         how much of it
  {url}/ready           whether this node serves
"""
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 ui-monospace,monospace;margin:3rem auto;max-width:72rem;padding:0 1rem}"
    "pre{overflow:auto}"
)


class Pages:
    """The functions, by path and method."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker = broker
        self._version = broker.info().version
        self._openapi = msgspec.json.encode(document(limits, self._version))
        self._rendering = asyncio.Lock()  # metrics of many topics take a while: one thread is enough for them
        self._docs = (resources.files("sulina.listeners") / "http_docs.html").read_bytes()

    def routes(self) -> dict[str, dict[str, Handler]]:
        """What answers which method of which path."""
        return {
            "/": {"GET": self.get_front},
            "/docs": {"GET": self.get_docs},
            "/openapi.json": {"GET": self.get_openapi},
            "/health": {"GET": self.get_health},
            "/ready": {"GET": self.get_ready},
            "/metrics": {"GET": self.get_metrics},
        }

    async def get_front(self, exchange: HttpRequest) -> None:
        """GET /"""
        host, port = exchange.scope.get("server") or ("localhost", 8080)
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        text = _FRONT.format(version=self._version, url=url)
        if b"text/html" not in exchange.headers.get(b"accept", b""):
            await exchange.answer(text.encode(), content_type=TEXT)
            return
        await exchange.answer(_linked(text, url).encode(), content_type=HTML, headers=_PAGE_HEADERS)

    async def get_docs(self, exchange: HttpRequest) -> None:
        """GET /docs"""
        await exchange.answer(self._docs, content_type=HTML, headers=_PAGE_HEADERS)

    async def get_openapi(self, exchange: HttpRequest) -> None:
        """GET /openapi.json"""
        await exchange.answer(self._openapi)

    async def get_health(self, exchange: HttpRequest) -> None:
        """GET /health"""
        read_query(exchange.scope["query_string"], {})
        await exchange.answer(b'{"status":"ok"}')

    async def get_ready(self, exchange: HttpRequest) -> None:
        """GET /ready"""
        read_query(exchange.scope["query_string"], {})
        if (reason := self._broker.unready) is not None:
            raise NotServing(reason=reason)
        await exchange.answer(b'{"status":"ok"}')

    async def get_metrics(self, exchange: HttpRequest) -> None:
        """GET /metrics"""
        read_query(exchange.scope["query_string"], {})
        async with self._rendering:
            metrics = await asyncio.to_thread(self._broker.metrics.render)
        await exchange.answer(metrics, content_type=PROMETHEUS)


def _linked(text: str, url: str) -> str:
    """The front page for a browser: the same text, with links."""
    lines = []
    for line in escape(text).splitlines():
        address, _, rest = line.strip().partition(" ")
        if address.startswith(url):
            line = f'  <a href="{address.removeprefix(url)}">{address}</a> {rest}'
        lines.append(line)
    body = "\n".join(lines)
    head = f'<meta charset="utf-8"><title>Sulina</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><pre>{body}</pre></body></html>'
