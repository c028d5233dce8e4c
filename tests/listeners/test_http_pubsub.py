"""Publish/subscribe over HTTP: options of a publish, who is subscribed, what became of messages, chosen events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sulina.broker.broker import Broker
from sulina.broker.options import BrokerOptions
from sulina.broker.pubsub.node_subscribers import LocalSubscriber, SubscriberDelivery
from sulina.broker.pubsub.peers import Loopback
from sulina.core.records.record import StoredRecord, encode
from sulina.errors import NotOwner
from sulina.listeners.http import HttpApp, make_app
from sulina.listeners.http_limits import HttpLimits
from sulina.types import TopicName
from sulina.wire.peer import AnyPeerFrame, Joined, JoinPartition
from tests.listeners.conftest import a_broker, no_websocket
from tests.listeners.test_http import BATCH, RECORDS, TOPIC, publish, put, refused

NAME = TopicName("default", "orders")
METRICS = "/v1/pubsub/metrics"
EVENTS = "/v1/events"
RAW = {"content-type": "application/octet-stream"}


async def subscribe(broker: Broker, name: str) -> asyncio.Queue[SubscriberDelivery]:
    """A subscriber of this node that acks what it gets, then puts it here."""
    taken: asyncio.Queue[SubscriberDelivery] = asyncio.Queue()
    joined: list[LocalSubscriber] = []

    def deliver(delivery: SubscriberDelivery) -> None:
        broker.pubsub.local_subscribers.acked(joined[0], delivery.number)
        taken.put_nowait(delivery)

    subscriber = await broker.pubsub.attach(NAME, name, start="latest", deliver=deliver, removed=lambda _: None)
    joined.append(subscriber)
    await broker.pubsub.join(subscriber, {})
    return taken


class FarNode(Loopback):
    """The connection with another broker, b2, which a test makes and breaks."""

    def __init__(self) -> None:
        super().__init__(BrokerOptions(data="").broker_id)
        self.is_there = False
        self.got: asyncio.Queue[AnyPeerFrame] = asyncio.Queue()

    def is_up(self, broker_id: str) -> bool:
        return self.is_there if broker_id == "b2" else super().is_up(broker_id)

    def has_room(self, broker_id: str) -> bool:
        return self.is_up(broker_id)

    def send(self, broker_id: str, frame: AnyPeerFrame) -> bool:
        if broker_id != "b2":
            return super().send(broker_id, frame)
        if self.is_there:
            self.got.put_nowait(frame)
        return self.is_there


@pytest.fixture
def far() -> FarNode:
    return FarNode()


@pytest.fixture
async def broker(tmp_path: Path, far: FarNode) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data", peers=far) as broker:
        yield broker


async def subscribe_far_away(broker: Broker, far: FarNode) -> None:
    """A subscriber at a node that cannot be reached any more."""
    far.is_there = True
    broker.pubsub.peer_up("b2", 1)
    topic_id = broker.topic_named(str(NAME)).stored.topic_id
    broker.pubsub.peer_frame("b2", JoinPartition(1, str(NAME), 0, 7, "far", topic_id=topic_id))
    while not isinstance(await far.got.get(), Joined):  # it is told to begin anew before
        pass
    far.is_there = False
    broker.pubsub.peer_down("b2", "a test has broken it")


# Options of a publish


async def test_producers_are_listed_f5(http: httpx.AsyncClient, broker: Broker) -> None:
    await put(http)
    assert (await http.get(f"{TOPIC}/producers")).json() == {"producers": []}
    broker.producers.attach(NAME, "shop-1")
    async with asyncio.timeout(20):
        while not (found := (await http.get(f"{TOPIC}/producers")).json()["producers"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    told = [(info["producer"], info["broker_id"], info["is_connected"]) for info in found]
    assert told == [("shop-1", broker.options.broker_id, True)]
    refused(await http.get("/v1/topics/default/nothing/producers"), 404, "topic_not_found")


async def test_p4_a_publish_has_options_in_its_body(http: httpx.AsyncClient, broker: Broker, far: FarNode) -> None:
    await put(http, delivery="non_reliable")
    await subscribe_far_away(broker, far)
    await publish(http, "waits")
    refused(
        await http.post(RECORDS, json={"records": [{"value": "v"}], "partition_behavior": "drop"}),
        409,
        "partition_dropped",
    )
    lossy = {"records": [{"value": None, "key": "k"}], "delivery_policy": "at_most_once"}
    refused(await http.post(RECORDS, json=lossy), 409, "partition_dropped")
    await publish(http, "waits too", partition_behavior="delay_queue", delivery_policy="at_least_once")
    metrics = (await http.get(METRICS, params={"topic": str(NAME)})).json()
    assert (metrics["accepted"], metrics["rejected"], metrics["queued"]) == (2, {"PartitionDrop": 2}, 2)


async def test_p4_a_publish_of_any_body_has_options_in_its_head(
    http: httpx.AsyncClient, broker: Broker, far: FarNode
) -> None:
    await put(http, delivery="non_reliable", policy={"partition_behavior": "drop"})
    await subscribe_far_away(broker, far)
    refused(await http.post(RECORDS, content=b"v", headers=RAW), 409, "partition_dropped")
    waits = {"sulina-partition-behavior": "delay_queue"}
    assert (await http.post(RECORDS, content=b"v", headers=RAW | waits)).json()["count"] == 1
    batch = encode([StoredRecord(b"v", timestamp_ms=1)])
    assert (await http.post(RECORDS, content=bytes(batch), headers={"content-type": BATCH} | waits)).status_code == 200
    at_most_once = {"sulina-delivery-policy": "at_most_once"}
    refused(await http.post(RECORDS, content=b"v", headers=RAW | waits | at_most_once), 409, "partition_dropped")
    body = {"records": [{"value": "v"}]}
    assert (await http.post(RECORDS, json=body, headers=waits)).status_code == 200
    both = {**body, "partition_behavior": "drop"}
    refused(await http.post(RECORDS, json=both, headers=waits), 422, "invalid_input")


async def test_options_that_there_are_not_are_refused(http: httpx.AsyncClient) -> None:
    await put(http)
    body: Any = {"records": [{"value": "v"}]}
    for wrong in ({"delivery_policy": "exactly_once"}, {"partition_behavior": 1}, {"partition_behaviour": "drop"}):
        refused(await http.post(RECORDS, json={**body, **wrong}), 422, "invalid_input")
    answer = await http.post(RECORDS, json=body, headers={"sulina-delivery-policy": "exactly_once"})
    problem = refused(answer, 400, "invalid_parameter")
    assert "at_least_once, at_most_once" in problem["detail"]


async def test_on_a_reliable_topic_options_change_nothing(http: httpx.AsyncClient) -> None:
    await put(http)
    made = await publish(http, "v", delivery_policy="at_most_once", partition_behavior="drop")
    assert (made["base_offset"], made["ack"]) == (0, "local")


# Who is there


@pytest.mark.parametrize(("delivery", "offset"), [("reliable", 1), ("non_reliable", None)])
async def test_subscribers_are_listed(
    http: httpx.AsyncClient, broker: Broker, delivery: str, offset: int | None
) -> None:
    await put(http, delivery=delivery)
    assert (await http.get(f"{TOPIC}/subscribers")).json() == {"subscribers": []}
    taken = await subscribe(broker, "screen")
    await publish(http, "v")
    await taken.get()
    [info] = (await http.get(f"{TOPIC}/subscribers")).json()["subscribers"]
    assert info.pop("handle") >= 0
    assert info == {
        "node": "local",
        "name": "screen",
        "status": "active",
        "reason": "",
        "partition": 0,
        "offset": offset,
    }


async def test_subscribers_of_nothing_are_not_found(http: httpx.AsyncClient) -> None:
    refused(await http.get(f"{TOPIC}/subscribers"), 404, "topic_not_found")
    refused(await http.get(f"{TOPIC}/subscribers?all=true"), 400, "invalid_parameter")
    refused(await http.put(f"{TOPIC}/subscribers"), 405, "method_not_allowed")


@pytest.mark.parametrize(("url", "status"), [("http://b2:1", 307), (None, 503)])
async def test_subscribers_are_asked_of_an_owner(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch, url: str | None, status: int
) -> None:
    def elsewhere(_name: TopicName) -> Any:
        raise NotOwner(topic=str(NAME), partition=0, owner="b2" if url else None, url=url)

    monkeypatch.setattr(broker, "subscribers", elsewhere)
    answer = await http.get(f"{TOPIC}/subscribers")
    refused(answer, status, "not_owner")
    assert answer.headers.get("location") == (f"{url}{TOPIC}/subscribers" if url else None)


# What became of messages


async def test_p10_metrics_are_of_all_topics_or_of_one(http: httpx.AsyncClient, broker: Broker) -> None:
    await put(http)
    await put(http, "/v1/topics/default/other")
    first, second = await subscribe(broker, "first"), await subscribe(broker, "second")
    await publish(http, "a", "b")
    await asyncio.gather(first.get(), second.get())
    assert (await http.post("/v1/topics/default/other/records", json={"records": [{"value": "v"}]})).status_code == 200
    of_one = (await http.get(METRICS, params={"topic": "/default/orders"})).json()
    assert of_one == {
        "topic": "/default/orders", "accepted": 2, "rejected": {}, "delivered": 4, "failed": {},
        "batches": {"Delivered": 1}, "redelivered": 0,
        "queued": 0, "dropped": 0, "missed": 0, "active": 2, "suspended": 0,
    }  # fmt: skip
    of_all = (await http.get(METRICS)).json()
    assert of_all == {**of_one, "topic": None, "accepted": 3}


async def test_what_is_wrong_with_a_question_for_metrics_is_said(http: httpx.AsyncClient) -> None:
    refused(await http.get(METRICS, params={"topic": "/default/nothing"}), 404, "topic_not_found")
    refused(await http.get(METRICS, params={"topic": "orders"}), 422, "invalid_name")
    refused(await http.get(METRICS, params={"since": "0"}), 400, "invalid_parameter")


# Events


@contextlib.asynccontextmanager
async def listening(app: HttpApp, query: str) -> AsyncIterator[asyncio.Queue[bytes]]:
    """The parts of a stream of events, from its first comment on."""
    parts: asyncio.Queue[bytes] = asyncio.Queue()
    begun, gone = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            begun.set()
        else:
            parts.put_nowait(message["body"])

    scope = {
        "type": "http", "method": "GET", "path": EVENTS, "raw_path": EVENTS.encode(), "query_string": query.encode(),
        "headers": [],
    }  # fmt: skip
    serving = asyncio.create_task(app(scope, receive, send))
    await begun.wait()
    assert (await parts.get()).startswith(b":")
    try:
        yield parts
    finally:
        gone.set()
        await serving


async def event(parts: asyncio.Queue[bytes]) -> tuple[str, str | None, dict[str, Any]]:
    told = json.loads((await parts.get()).removeprefix(b"data: "))
    return told["type"], told["topic"], told["fields"]


async def test_p10_events_are_chosen_by_type_and_topic(app: HttpApp, broker: Broker, http: httpx.AsyncClient) -> None:
    await put(http)
    await put(http, "/v1/topics/default/other")
    async with listening(app, "types=publish_accepted,subscriber_added&topic=/default/orders") as parts:
        await http.post("/v1/topics/default/other/records", json={"records": [{"value": "v"}]})
        taken = await subscribe(broker, "screen")
        await publish(http, "a", "b")
        await taken.get()
        await publish(http, "c")
        assert [kind async for kind in _kinds(parts, 3)] == ["subscriber_added", "publish_accepted", "publish_accepted"]
    async with listening(app, "topic=/default/other") as parts:
        await publish(http, "d")
        broker.events.emit("broker_joined", broker="b2")
        await http.post("/v1/topics/default/other/records", json={"records": [{"value": "v"}]})
        assert await event(parts) == ("publish_accepted", "/default/other", {"partition": 0, "count": 1})


async def test_p10_snapshots_of_metrics_are_sent_of_all_topics_and_of_one(
    app: HttpApp, http: httpx.AsyncClient
) -> None:
    await put(http)
    await publish(http, "a", "b")
    for query, topics in (("types=metrics_snapshot", [None, "/default/orders"]), (
        "types=metrics_snapshot&topic=/default/orders", ["/default/orders"],
    )):  # fmt: skip
        async with listening(app, query) as parts:
            for expected in topics:
                kind, topic, fields = await event(parts)
                assert (kind, topic, fields["accepted"], fields["rejected"]) == ("metrics_snapshot", expected, 2, {})


async def _kinds(parts: asyncio.Queue[bytes], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield (await event(parts))[0]


async def test_that_events_were_missed_is_told_whatever_was_asked_for(app: HttpApp, broker: Broker) -> None:
    async with listening(app, "types=topic_created&topic=/default/orders") as parts:
        for _ in range(1200):  # without a moment to send one of them
            broker.events.emit_unlogged("topic_created", "/default/other")
        kind, topic, fields = await event(parts)
        assert (kind, topic) == ("events_missed", None)
        assert fields["count"] >= 1200 - 1000 - 1


async def test_a_listener_to_little_is_kept_alive_while_much_happens(broker: Broker) -> None:
    app = make_app(broker, HttpLimits(heartbeat_seconds=0.01), websocket=no_websocket)
    async with listening(app, "types=topic_created") as parts:
        while parts.empty():
            broker.events.emit_unlogged("publish_accepted", str(NAME))
            await asyncio.sleep(0)
        assert (await parts.get()).startswith(b":")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("kinds=a", 400, "invalid_parameter"),
        ("types=", 400, "invalid_parameter"),
        ("types=a,,b", 400, "invalid_parameter"),
        ("types=" + "x" * 201, 400, "invalid_parameter"),
        ("types=" + ",".join(["x"] * 101), 400, "invalid_parameter"),
        ("types=a&types=b", 400, "invalid_parameter"),
        ("topic=orders", 422, "invalid_name"),
    ],
)
async def test_what_is_wrong_with_a_choice_of_events_is_said(
    http: httpx.AsyncClient, broker: Broker, query: str, status: int, code: str
) -> None:
    refused(await http.get(f"{EVENTS}?{query}"), status, code)
    assert not broker.events.listeners
