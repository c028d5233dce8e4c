"""POST …/batch, and transactions over HTTP: a loser is told so and succeeds with new offsets; nobody sees a part."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sulina.broker.broker import Broker
from sulina.listeners.http import make_app
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS as LIMITS
from sulina.listeners.http_protocol import make_server
from sulina.storage.files import VolatileFiles
from tests.listeners.conftest import a_broker, no_websocket

TOPIC = "/v1/topics/default/orders"
BATCH, READ = f"{TOPIC}/batch", f"{TOPIC}/partitions/0/records"


@pytest.fixture
async def served(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server, over TCP, with a topic."""
    server = make_server(make_app(broker, websocket=no_websocket), "127.0.0.1", 0, LIMITS)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            (await client.put(TOPIC)).raise_for_status()
            yield client
    finally:
        await server.stop()


def records(*texts: str) -> list[dict[str, str]]:
    return [{"value": text} for text in texts]


async def values(http: httpx.AsyncClient) -> list[str]:
    page = (await http.get(READ)).json()
    assert [record["offset"] for record in page["records"]] == list(range(page["end_offset"]))
    return [record["value"] for record in page["records"]]


async def test_a_batch_is_an_array_of_records_all_or_nothing_l16(http: httpx.AsyncClient) -> None:
    await http.put(TOPIC)
    for _ in range(2):  # L13: the second adds nothing
        answer = await http.post(BATCH, json=records("a", "b", "c"), headers={"sulina-txn-id": "t"})
        assert answer.json() == {"partition": 0, "base_offset": 0, "count": 3, "version": 1, "ack": "local"}
    answer = await http.post(BATCH, json={"records": records("d"), "expected_version": 1})
    assert (answer.json()["base_offset"], answer.json()["version"]) == (3, 2)
    for wrong in ([{"value": "x"}, {"value": "y", "key": 7}], [], [{"value": "x"}, {}]):
        refused = await http.post(BATCH, json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert await values(http) == ["a", "b", "c", "d"]
    assert (await http.get(BATCH)).headers["allow"] == "POST"
    assert (await http.post(f"{TOPIC}/partitions/0/batch", json=records("e"))).json()["base_offset"] == 4


async def test_a_batch_whose_keys_span_partitions_is_refused_l16(http: httpx.AsyncClient) -> None:
    await http.put(TOPIC, json={"partitions": 8})
    refused = await http.post(BATCH, json=[{"key": str(n), "value": "v"} for n in range(50)])
    assert (refused.status_code, refused.json()["code"]) == (422, "keys_span_partitions")
    ends = [(await http.get(f"{TOPIC}/partitions/{p}")).json()["end_offset"] for p in range(8)]
    assert ends == [0] * 8


async def test_a_loser_gets_409_and_succeeds_with_new_offsets_when_it_tries_again_l3(
    served: httpx.AsyncClient,
) -> None:
    writers, conflicts = 5, []

    async def write(name: str) -> dict[str, Any]:
        version = 0
        while True:
            body = {"records": records(f"{name}1", f"{name}2"), "expected_version": version}
            answer = await served.post(BATCH, json=body)
            if answer.status_code == 200:
                return {"name": name, **answer.json()}
            assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
            problem = answer.json()
            assert (problem["code"], problem["retryable"]) == ("version_conflict", True)
            assert problem["current"] > version
            conflicts.append(name)
            version = problem["current"]

    done = await asyncio.gather(*(write(name) for name in "abcde"))
    assert len(conflicts) >= writers - 1, "of those who began at one version, one won"
    by_offset = sorted(done, key=lambda answer: answer["base_offset"])
    assert [answer["base_offset"] for answer in by_offset] == [0, 2, 4, 6, 8], "no gap and no reuse"
    assert [answer["version"] for answer in by_offset] == [1, 2, 3, 4, 5]
    assert await values(served) == [f"{answer['name']}{n}" for answer in by_offset for n in (1, 2)]


class _HeldFiles(VolatileFiles):
    """Commits get their names only when they may."""

    def __init__(self) -> None:
        self.may_link, self.is_at_link = threading.Event(), threading.Event()
        self.may_link.set()

    def link(self, source: str, target: str) -> None:
        self.is_at_link.set()
        assert self.may_link.wait(20)
        super().link(source, target)


async def test_a_read_never_sees_offsets_that_are_not_committed_l1(tmp_path: Path) -> None:
    files = _HeldFiles()
    async with a_broker(tmp_path, files) as broker:
        transport = httpx.ASGITransport(app=make_app(broker, websocket=no_websocket))
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as http:
            await http.put(TOPIC)
            await http.post(BATCH, json=records("a"))
            files.may_link.clear()
            files.is_at_link.clear()
            publishing = asyncio.create_task(http.post(BATCH, json=records("b", "c")))
            await asyncio.to_thread(files.is_at_link.wait, 20)  # the data is written, its commit has no name yet
            try:
                assert await values(http) == ["a"]
                page = (await http.get(READ, params={"offset": 1})).json()
                assert (page["records"], page["end_offset"]) == ([], 1)
                assert (await http.get(READ, params={"offset": 2})).status_code == 416
                assert (await http.get(READ, params={"min_offset": 1, "wait_ms": 1})).status_code == 503
            finally:
                files.may_link.set()
            assert (await publishing).json()["base_offset"] == 1
            assert await values(http) == ["a", "b", "c"]
