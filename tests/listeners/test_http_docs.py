"""The API page: Swagger UI from the wheel, in a real browser, with nothing from another host."""

import gzip
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from importlib import resources
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.async_api import Page, Request, Route, async_playwright, expect

from sulina.broker.broker import Broker
from sulina.listeners.http import make_app
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS
from sulina.listeners.http_openapi import document
from sulina.listeners.http_problem import all_codes
from sulina.listeners.http_protocol import make_server
from tests.listeners.conftest import no_websocket

STATIC = resources.files("sulina.listeners") / "static"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
API = document(DEFAULT_HTTP_LIMITS, "1.2.3")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH: apt-get install chromium")


@pytest.fixture
async def url(broker: Broker) -> AsyncIterator[str]:
    server = make_server(make_app(broker, websocket=no_websocket), "127.0.0.1", 0, DEFAULT_HTTP_LIMITS)
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


class Watched:
    """A page that notes requests to other hosts, and complaints of the browser."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        self._host = urlsplit(url).netloc
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))
        page.on("request", self._look)

    def _look(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme != "data" and address.netloc != self._host:
            self.elsewhere.append(request.url)


@pytest.fixture
async def watched(url: str) -> AsyncIterator[Watched]:
    async def refuse(route: Route) -> None:
        await route.abort()

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = await browser.new_context(viewport={"width": 1280, "height": 1600})
            await context.route(lambda asked: not asked.startswith((url, "data:")), refuse)
            yield Watched(await context.new_page(), url)
        finally:
            await browser.close()


@needs_chromium
async def test_the_page_shows_every_operation_and_code_and_asks_no_other_host(watched: Watched, url: str) -> None:
    await watched.page.goto(f"{url}/docs")
    for path, methods in API["paths"].items():
        for method in methods:
            block = watched.page.locator(f'.opblock-{method}:has([data-path="{path}"])')
            await block.first.wait_for(timeout=30_000)
    if (picture := os.environ.get("SULINA_SCREENSHOT")) is not None:
        await watched.page.screenshot(path=picture)
    # Everything that it can unfold is drawn without a complaint too.
    await watched.page.locator('.opblock-put:has([data-path="/v1/namespaces/{namespace}"]) button').first.click()
    await watched.page.get_by_text("Try it out").first.wait_for()
    # The `type` of a problem leads to its code.
    await watched.page.goto("about:blank")
    await watched.page.goto(f"{url}/docs#version_conflict")
    await watched.page.locator(".opblock").last.wait_for(timeout=30_000)
    await expect(watched.page.locator("#version_conflict")).to_be_in_viewport()
    assert "409" in await watched.page.locator("#version_conflict").inner_text()
    assert watched.elsewhere == []
    assert watched.complaints == []


@needs_chromium
async def test_an_operation_can_be_tried_on_the_page(watched: Watched, url: str) -> None:
    await watched.page.goto(f"{url}/docs")
    block = watched.page.locator("#operations-namespaces-create_namespace")
    await block.locator("button").first.click(timeout=30_000)
    await block.get_by_role("button", name="Try it out").click()
    await block.get_by_role("button", name="Execute").click()
    await block.locator(".live-responses-table .response-col_status", has_text="201").wait_for(timeout=30_000)
    assert watched.elsewhere == []
    assert watched.complaints == []
    async with httpx.AsyncClient(base_url=url) as http:
        names = [each["namespace"] for each in (await http.get("/v1/namespaces")).json()["namespaces"]]
        untouched = (await http.get("/v1/namespaces/default")).json()["policy"]
    assert sorted(names) == ["default", "examples"]
    assert untouched.get("retention_seconds") is None


async def test_every_code_is_on_the_page(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    for code in all_codes():
        assert f'id="{code["code"]}"' in page


async def test_a_client_that_takes_no_gzip_gets_the_files_all_the_same(http: httpx.AsyncClient) -> None:
    for path in ("/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css"):
        packed = await http.get(path, headers={"accept-encoding": "gzip"})
        plain = await http.get(path, headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert packed.content == plain.content


def test_the_files_are_those_that_the_readme_names() -> None:
    readme = (STATIC / "README.md").read_text()
    (version,) = set(re.findall(r"swagger-ui-dist[@ -](\d+\.\d+\.\d+)", readme))
    assert set(re.findall(r"\?(\d+\.\d+\.\d+)", (STATIC / "docs.html").read_text())) == {version}
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        content = gzip.decompress((STATIC / f"{name}.gz").read_bytes())
        assert f"`{name}.gz` | swagger-ui-dist {version}" in readme
        assert hashlib.sha256(content).hexdigest() in readme


def test_examples_of_requests_touch_nothing_that_exists() -> None:
    examples = {name: each["example"] for name, each in API["components"]["parameters"].items()}
    assert examples["namespace"] == "examples"
    assert examples["broker_id"] == "example-broker"
    for path, methods in API["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            if isinstance(body, dict):
                assert not {"force", "give_up"} & body.keys(), operation["operationId"]
            if method != "get" and "{" in path:
                assert "{namespace}" in path or "{broker_id}" in path, f"{path}: its example may exist"
