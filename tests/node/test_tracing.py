"""Traces: off unless configured; few names, the caller's trace, and sent before the end."""

import socketserver
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from sulina.config import Settings
from sulina.node import Node
from sulina.node.tracing import COUNT, Tracing
from tests.support.otlp import Collector, attributes, collecting

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROUTE = "/v1/topics/{namespace}/{topic}/partitions/{partition}/records"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


async def publish(request: Request) -> PlainTextResponse:
    request.scope[COUNT] = 3
    return PlainTextResponse("no", status_code=int(request.query_params.get("status", 200)))


def application() -> Starlette:
    return Starlette(routes=[Route(ROUTE, publish, methods=["POST"]), Route("/health", publish)])


def test_no_endpoint_no_traces() -> None:
    assert Tracing.start(Settings()) is None


async def test_a_request_is_a_span_named_after_its_route_in_the_callers_trace(collector: Collector) -> None:
    tracing = Tracing.start(Settings(otlp_endpoint=collector.url))
    assert tracing is not None
    transport = httpx.ASGITransport(tracing.traced(application()))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        path = "/v1/topics/default/orders/partitions/1/records"
        await client.post(path, headers={"traceparent": PARENT})
        await client.post(path + "?status=503")
        await client.get("/health")
        await client.get("/no/such/path")
    assert collector.spans == []
    await tracing.stop()
    first, failed, lost = collector.spans
    assert first.name == f"POST {ROUTE}"
    assert first.trace_id.hex() == PARENT.split("-")[1]
    assert first.parent_span_id.hex() == PARENT.split("-")[2]
    assert attributes(first) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": ROUTE,
        "topic": "/default/orders",
        "partition": 1,
        "count": 3,
    }
    assert failed.trace_id != first.trace_id
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert lost.name == "GET"
    assert attributes(lost)["http.response.status_code"] == 404


async def test_a_collector_that_is_away_does_not_hold_up_the_end() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        gone = f"http://127.0.0.1:{server.server_address[1]}"
    tracing = Tracing.start(Settings(otlp_endpoint=gone))
    assert tracing is not None
    transport = httpx.ASGITransport(tracing.traced(application()))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        assert (await client.post("/v1/topics/default/orders/partitions/1/records")).status_code == 200
    started = time.monotonic()
    await tracing.stop()
    assert time.monotonic() - started < 10


async def test_u12_the_phases_of_a_move_go_to_the_collector_that_is_configured(collector: Collector) -> None:
    node = await Node.start(Settings(otlp_endpoint=collector.url, http="127.0.0.1:0"), volatile=True)
    with node.broker.options.span("unload seal", {"topic": "/default/orders", "partition": 1}):
        pass
    await node.stop()
    (span,) = collector.spans
    assert (span.name, attributes(span)) == ("unload seal", {"topic": "/default/orders", "partition": 1})
