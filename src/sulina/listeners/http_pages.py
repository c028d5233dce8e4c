"""Pages for people and monitors: the front page, the API page, health and metrics."""

import asyncio
import functools
import gzip
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from sulina.errors import NotServing
from sulina.listeners.http_limits import HttpLimits
from sulina.listeners.http_openapi import document
from sulina.listeners.http_operations import Handler
from sulina.listeners.http_parameters import read_query
from sulina.listeners.http_problem import all_codes
from sulina.listeners.http_request import HttpRequest

if TYPE_CHECKING:
    from sulina.broker.broker import Broker

HTML = b"text/html; charset=utf-8"
CSS = b"text/css; charset=utf-8"
JAVASCRIPT = b"text/javascript; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
# Pages load nothing from another host, and no other site may frame them.
_BOUNDS = b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
_FRONT_POLICY = _BOUNDS + b"style-src 'unsafe-inline'"
# Swagger UI sets styles of its elements, and draws its icons from data.
_DOCS_POLICY = (
    _BOUNDS + b"script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
)
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_KEEP = (b"cache-control", b"max-age=31536000, immutable")  # the page names the version in its links

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
    """Answers GET of the pages."""

    def __init__(self, broker: "Broker", limits: HttpLimits) -> None:
        self._broker = broker
        self._version = broker.info().version
        self._limits = limits
        self._docs = _static("docs.html").replace(b"<!-- codes -->", _code_rows().encode())
        self._rendering = asyncio.Lock()  # metrics of many topics take a while: one thread is enough for them

    def routes(self) -> dict[str, dict[str, Handler]]:
        """Return the handlers, by path and method."""
        return {
            "/": {"GET": self.get_front},
            "/docs": {"GET": self.get_docs},
            "/docs/docs.css": {"GET": _file("docs.css", CSS)},
            "/docs/docs.js": {"GET": _file("docs.js", JAVASCRIPT)},
            "/docs/swagger-ui.css": {"GET": _packed_file("swagger-ui.css.gz", CSS)},
            "/docs/swagger-ui-bundle.js": {"GET": _packed_file("swagger-ui-bundle.js.gz", JAVASCRIPT)},
            "/openapi.json": {"GET": self.get_openapi},
            "/health": {"GET": self.get_health},
            "/ready": {"GET": self.get_ready},
            "/metrics": {"GET": self.get_metrics},
        }

    async def get_front(self, request: HttpRequest) -> None:
        """Answer with the front page, as text or for a browser."""
        host, port = request.scope.get("server") or ("localhost", 8080)
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        text = _FRONT.format(version=self._version, url=url)
        if b"text/html" not in request.headers.get(b"accept", b""):
            await request.answer(text.encode(), content_type=TEXT)
            return
        headers = [(b"content-security-policy", _FRONT_POLICY), _NO_SNIFF]
        await request.answer(_linked(text, url).encode(), content_type=HTML, headers=headers)

    async def get_docs(self, request: HttpRequest) -> None:
        """Answer with the API page."""
        headers = [(b"content-security-policy", _DOCS_POLICY), _NO_SNIFF]
        await request.answer(self._docs, content_type=HTML, headers=headers)

    async def get_openapi(self, request: HttpRequest) -> None:
        """Answer with the OpenAPI document."""
        await request.answer(self._openapi)

    @functools.cached_property
    def _openapi(self) -> bytes:
        """The OpenAPI document, made when it is asked for: it takes 40 ms, and most nodes never are."""
        return msgspec.json.encode(document(self._limits, self._version))

    async def get_health(self, request: HttpRequest) -> None:
        """Answer that the process is alive."""
        read_query(request.scope["query_string"], {})
        await request.answer(b'{"status":"ok"}')

    async def get_ready(self, request: HttpRequest) -> None:
        """Answer that the node serves.

        Raises:
            NotServing: it does not, with the reason.
        """
        read_query(request.scope["query_string"], {})
        if (reason := self._broker.unready) is not None:
            raise NotServing(reason=reason)
        await request.answer(b'{"status":"ok"}')

    async def get_metrics(self, request: HttpRequest) -> None:
        """Answer with the metrics in the text format of Prometheus."""
        read_query(request.scope["query_string"], {})
        async with self._rendering:
            metrics = await asyncio.to_thread(self._broker.metrics.render)
        await request.answer(metrics, content_type=PROMETHEUS)


def _linked(text: str, url: str) -> str:
    """Return the text of the front page as HTML, with links."""
    lines = []
    for line in escape(text).splitlines():
        address, _, rest = line.strip().partition(" ")
        if address.startswith(url):
            line = f'  <a href="{address.removeprefix(url)}">{address}</a> {rest}'
        lines.append(line)
    body = "\n".join(lines)
    head = f'<meta charset="utf-8"><title>Sulina</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><pre>{body}</pre></body></html>'


def _code_rows() -> str:
    """Return a row of the table of errors for each code, which a problem's `type` links to."""
    return "\n".join(
        f'<tr id="{one["code"]}"><td><code>{one["code"]}</code></td><td>{one["status"]}</td>'
        f"<td>{escape(one['title'])}</td><td>{'yes' if one['retryable'] else ''}</td></tr>"
        for one in all_codes()
    )


def _static(name: str) -> bytes:
    return (resources.files("sulina.listeners") / "static" / name).read_bytes()


def _file(name: str, content_type: bytes) -> Handler:
    """Return a handler that answers with a file of `static/`."""
    content = _static(name)

    async def handle(request: HttpRequest) -> None:
        await request.answer(content, content_type=content_type, headers=[_NO_SNIFF])

    return handle


def _packed_file(name: str, content_type: bytes) -> Handler:
    """Return a handler that answers with a file of `static/` that is stored compressed."""
    packed = _static(name)

    async def handle(request: HttpRequest) -> None:
        headers = [_NO_SNIFF, _KEEP, (b"vary", b"accept-encoding")]
        if b"gzip" in request.headers.get(b"accept-encoding", b""):
            await request.answer(packed, content_type=content_type, headers=[*headers, (b"content-encoding", b"gzip")])
        else:
            plain = await asyncio.to_thread(gzip.decompress, packed)
            await request.answer(plain, content_type=content_type, headers=headers)

    return handle
