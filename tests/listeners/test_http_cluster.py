"""A cluster over HTTP: who is asked what, and where a request goes whose partition is served elsewhere.

The brokers here are alone; what a cluster would say is put into their mouths.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sulina.broker.broker import Broker
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.core.records.routing import partition_of
from sulina.core.topic import TopicSettings
from sulina.errors import (
    Draining,
    InvalidSettings,
    LeaseExpired,
    NotOwner,
    Recovering,
    SubscriptionBusy,
    SulinaError,
)
from sulina.listeners.http import make_app
from sulina.listeners.http_limits import DEFAULT_HTTP_LIMITS
from sulina.listeners.http_protocol import make_server
from sulina.types import TopicName
from sulina.wire.messages import (
    BrokerInfo,
    ClusterInfo,
    PartitionPlacement,
    Placement,
    Rebalanced,
    TopicState,
    UnloadInfo,
)
from tests.listeners.conftest import a_broker, no_websocket
from tests.listeners.test_http import refused

TOPIC = "/v1/topics/default/orders"
NAME = TopicName("default", "orders")
B2 = BrokerInfo(
    broker_id="b2", url="http://b2:1", state="active", is_leader=True, partitions=3, topics=2, connections=1,
    published_bytes_per_second=0.5, uptime_seconds=12.0,
)  # fmt: skip
MOVE = UnloadInfo(topic="/default/orders", partition=1, step="requested", from_broker="b1", to_broker="b2")


class Said:
    """What a broker was asked, and what it is to say: a value, or an error to raise."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
        self.asked: list[tuple[Any, ...]] = []
        for method, answer in answers.items():
            monkeypatch.setattr(broker, method, self._method(method, answer), raising=False)

    def _method(self, method: str, answer: Any) -> Any:
        async def said(*arguments: Any, **named: Any) -> Any:
            self.asked.append((method, *arguments, named) if named else (method, *arguments))
            if isinstance(answer, SulinaError):
                raise answer
            return answer

        return said


@pytest.fixture
def says(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda **answers: Said(broker, monkeypatch, answers)


def elsewhere(partition: int = 0, url: str | None = "http://b2:1") -> NotOwner:
    return NotOwner(topic=str(NAME), partition=partition, owner="b2" if url else None, url=url)


# Who serves what


async def test_a_topic_is_looked_up_f5(http: httpx.AsyncClient, says: Any) -> None:
    """F5: the owner of each partition is known to whoever asks."""
    there = PartitionPlacement(partition=0, state=TopicState.ACTIVE, epoch=7, broker_id="b2", url="http://b2:1")
    away = PartitionPlacement(partition=1, state=TopicState.RECOVERING, waits_for="b3")
    told = says(
        lookup=Placement(
            topic=str(NAME), topic_id="t", partitions=[there, away], brokers=["http://b1:1", "http://b2:1"]
        )
    )
    answer = await http.get(f"{TOPIC}/placement")
    assert answer.status_code == 200
    assert [part["url"] for part in answer.json()["partitions"]] == ["http://b2:1", None]
    assert answer.json()["partitions"][1]["waits_for"] == "b3"
    assert told.asked == [("lookup", NAME)]


async def test_brokers_are_listed_drained_and_activated_f5(http: httpx.AsyncClient, says: Any) -> None:
    """F5, F7: brokers are shown, given nothing more, and given something again."""
    cluster = ClusterInfo(brokers=[B2], leader="b2", topics=2, partitions=3, unassigned=1, recovering=0, unloads=[MOVE])
    told = says(cluster=cluster, drain_broker=B2, activate_broker=B2, rebalance=Rebalanced(moves=[MOVE]))
    shown = (await http.get("/v1/cluster")).json()
    assert (shown["leader"], shown["unassigned"], shown["unloads"][0]["step"]) == ("b2", 1, "requested")
    assert [info["broker_id"] for info in (await http.get("/v1/cluster/brokers")).json()["brokers"]] == ["b2"]
    assert (await http.post("/v1/cluster/brokers/b2/drain")).status_code == 202
    assert (await http.post("/v1/cluster/brokers/b2/activate")).status_code == 200
    moved = await http.post("/v1/cluster/rebalance")
    assert (moved.status_code, moved.json()["moves"][0]["to_broker"]) == (202, "b2")
    assert told.asked[2:] == [("drain_broker", "b2"), ("activate_broker", "b2"), ("rebalance",)]
    assert "/v1/cluster" in (await http.get("/")).text


@pytest.mark.parametrize("name", ["%2e%2e", "a%2fb", "%00", ".a", "a b", "%ff"])
async def test_the_name_of_a_broker_is_no_path(http: httpx.AsyncClient, says: Any, name: str) -> None:
    told = says(drain_broker=B2, activate_broker=B2)
    for verb in ("drain", "activate"):
        refused(await http.post(f"/v1/cluster/brokers/{name}/{verb}"), 422, "invalid_name")
    assert told.asked == []


# Unload and move


async def test_a_move_is_asked_for_and_watched_u2(http: httpx.AsyncClient, says: Any) -> None:
    """U2: it is asked for, and goes on by itself; whoever wants to know asks how far it has come."""
    told = says(unload=[MOVE], unloads=[])
    begun = await http.post(f"{TOPIC}/moves", json={"to": "b2", "partition": 1, "force": True})
    assert (begun.status_code, begun.json()["moves"][0]["from_broker"]) == (202, "b1")
    assert (await http.post(f"{TOPIC}/moves")).status_code == 202
    assert (await http.get(f"{TOPIC}/moves")).json() == {"moves": []}
    assert told.asked == [
        ("unload", NAME, {"force": True, "to": "b2", "partition": 1, "give_up": False}),
        ("unload", NAME, {"force": False, "to": None, "partition": None, "give_up": False}),
        ("unloads", NAME),
    ]


async def test_what_is_given_up_is_told(http: httpx.AsyncClient, says: Any) -> None:
    given_up = UnloadInfo(
        topic=str(NAME), partition=0, step="unassigned", from_broker="b1", to_broker="b2", given_up=(17, 40)
    )
    says(unload=[given_up])
    answer = await http.post(f"{TOPIC}/moves", json={"to": "b2", "force": True})
    assert answer.json()["moves"][0]["given_up"] == [17, 40]


async def test_a_move_that_cannot_be_is_refused_u3(http: httpx.AsyncClient, says: Any) -> None:
    """U3: with consumers attached and without force nothing is done, and that is said."""
    says(unload=SubscriptionBusy(topic=str(NAME), subscription="s", reason="1 consumer is attached; force lets it go"))
    assert "force" in refused(await http.post(f"{TOPIC}/moves"), 409, "subscription_busy")["detail"]
    told = says(unload=InvalidSettings("there is no broker b9; there are b1, b2"))
    assert "b1, b2" in refused(await http.post(f"{TOPIC}/moves", json={"to": "b9"}), 422, "invalid_settings")["detail"]
    for name in ("../x", ""):
        refused(await http.post(f"{TOPIC}/moves", json={"to": name}), 422, "invalid_name")
    for body in ({"partition": -1}, {"partition": "1"}, {"force": 1}, {"too": "b2"}):
        refused(await http.post(f"{TOPIC}/moves", json=body), 422, "invalid_input")
    as_json = {"content-type": "application/json"}
    refused(await http.post(f"{TOPIC}/moves", content=b"{", headers=as_json), 400, "malformed_body")
    refused(await http.post(f"{TOPIC}/moves?force=true"), 400, "invalid_parameter")
    assert len(told.asked) == 1


# Served elsewhere


@pytest.mark.parametrize(
    ("method", "path", "asks"),
    [
        ("GET", f"{TOPIC}/partitions/1/records?offset=3&wait_ms=0", "fetch"),
        ("GET", f"{TOPIC}/partitions/1", "partition"),
        ("GET", f"{TOPIC}/partitions/1/commits?start=1&end=2", "commits"),
        ("GET", f"{TOPIC}/subscriptions/s", "subscription"),
        ("PUT", f"{TOPIC}/subscriptions/s", "put_subscription"),
        ("DELETE", f"{TOPIC}/subscriptions/s?force=true", "delete_subscription"),
        ("POST", f"{TOPIC}/partitions/1/records", "accept"),
    ],
)
async def test_what_another_broker_serves_is_asked_there(
    http: httpx.AsyncClient, says: Any, method: str, path: str, asks: str
) -> None:
    """U1: the same path and query at the owner, and the facts for programs."""
    says(**{asks: elsewhere(1)})
    body = {"records": [{"value": "v"}]} if method == "POST" else None
    answer = await http.request(method, path, json=body)
    assert answer.headers["location"] == f"http://b2:1{path}"
    problem = refused(answer, 307, "not_owner")
    assert (problem["owner"], problem["url"], problem["partition"], problem["retryable"]) == (
        "b2", "http://b2:1", 1, True,
    )  # fmt: skip


async def test_a_publish_goes_on_to_the_partition_that_its_key_chose(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(ownership: PartitionOwnership) -> None:
        raise elsewhere(ownership.name.partition)

    monkeypatch.setattr(PartitionOwnership, "check", check)
    assert (await http.put(TOPIC, json={"partitions": 8})).status_code == 201
    expected = partition_of(b"same", 8)
    answer = await http.post(f"{TOPIC}/records", json={"records": [{"key": "same", "value": "v"}]})
    refused(answer, 307, "not_owner")
    assert answer.headers["location"] == f"http://b2:1{TOPIC}/partitions/{expected}/records"
    array = await http.post(f"{TOPIC}/batch", json=[{"key": "same", "value": "v"}])
    assert array.headers["location"] == f"http://b2:1{TOPIC}/partitions/{expected}/batch", "where an array is taken too"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (elsewhere(url=None), "not_owner"),
        (Draining(topic=str(NAME), owner="b2"), "draining"),
        (Recovering(topic=str(NAME), partition=0, broker="b1"), "recovering"),
        (LeaseExpired(broker="b1"), "lease_expired"),
    ],
)
async def test_what_nobody_serves_is_to_be_asked_again(
    http: httpx.AsyncClient, says: Any, error: SulinaError, code: str
) -> None:
    says(accept=error, fetch=error)
    answer = await http.post(f"{TOPIC}/records", json={"records": [{"value": "v"}]})
    assert refused(answer, 503, code)["retryable"]
    assert "location" not in answer.headers
    refused(await http.get(f"{TOPIC}/partitions/0/records?offset=0"), 503, code)


async def test_who_waits_for_records_is_sent_on_when_the_partition_goes(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U13: a reader that waits is told at once, not when its time is over."""
    begun, gone = asyncio.Event(), asyncio.Event()

    async def fetch(*_: Any, **__: Any) -> Any:
        begun.set()
        await gone.wait()
        raise elsewhere()

    monkeypatch.setattr(broker, "fetch", fetch)
    path = f"{TOPIC}/partitions/0/records?offset=5&wait_ms=30000"
    waiting = asyncio.create_task(http.get(path))
    await begun.wait()
    gone.set()
    answer = await waiting
    refused(answer, 307, "not_owner")
    assert answer.headers["location"] == f"http://b2:1{path}"


# Over real connections


@contextlib.asynccontextmanager
async def served(broker: Broker) -> AsyncIterator[str]:
    server = make_server(make_app(broker, websocket=no_websocket), "127.0.0.1", 0, DEFAULT_HTTP_LIMITS)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def test_a_client_that_follows_redirects_publishes_at_the_owner(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U13: a plain HTTP client needs to know nothing of owners; the body goes with it, small or large."""
    async with a_broker(tmp_path / "owner") as owner, served(owner) as owner_url, served(broker) as url:
        await owner.put_topic(NAME, TopicSettings(partitions=3))
        Said(broker, monkeypatch, {"accept": elsewhere(2, owner_url)})
        async with httpx.AsyncClient(base_url=url, follow_redirects=True) as http:
            for size in (1, 1 << 20):
                answer = await http.post(f"{TOPIC}/records", json={"records": [{"value": "v" * size}]})
                assert (answer.status_code, answer.json()["partition"]) == (200, 2)
                assert [each.status_code for each in answer.history] == [307]
        assert (await owner.partition(NAME, 2)).end_offset == 2


async def test_a_connection_goes_on_after_a_redirect(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of a request that is sent on is read: what follows on the connection is the next request."""
    Said(broker, monkeypatch, {"accept": elsewhere()})
    async with served(broker) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        body = b"x" * 300_000
        head = f"POST {TOPIC}/records HTTP/1.1\r\nhost: a\r\ncontent-type: application/octet-stream\r\n"
        for _ in range(2):
            writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
            status = await reader.readline()
            assert b" 307 " in status
            headers = {}
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.decode().strip().partition(": ")
                headers[name] = value
            assert "connection" not in headers
            problem = json.loads(await reader.readexactly(int(headers["content-length"])))
            assert problem["url"] == "http://b2:1"
        writer.close()
        await writer.wait_closed()
