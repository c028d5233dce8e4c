"""Requests between brokers: answered, refused or lost with the connection, and bounded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sulina.broker.broker import Broker
from sulina.core.delivery.members import SubscriptionKind
from sulina.core.log.position import LATEST, Position
from sulina.core.records.record import StoredRecord
from sulina.core.topic import TopicSettings
from sulina.errors import Disconnected, NotServing, PubSubError, SubscriptionNotFound, TopicNotFound
from sulina.listeners import peer_owners, peer_requests
from sulina.listeners.peer import PeerNetwork
from sulina.listeners.peer_owners import PeerOwners, answer_peer
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import SubscriptionSettings
from sulina.wire.peer import PeerCall, PeerRequest
from tests.listeners.peer_world import HOST, QUICK, Node, a_node, connect
from tests.support.brokers import Brokers, brokers

ORDERS = TopicName("default", "orders")
NO_SCHEMA = TopicSettings().value_schema.fingerprint
Answering = Callable[[PeerRequest], Awaitable[Any]]


def asking(text: str) -> Callable[[int], PeerRequest]:
    return lambda number: PeerCall(number, text)


@contextlib.asynccontextmanager
async def two(answer: Answering, **more: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A broker that asks, and one that answers."""
    async with a_node("a", **more) as a, a_node("b", answer=answer, **more) as b:
        await connect(a, b)
        yield a, b


async def test_each_request_gets_its_own_answer_in_whatever_order_they_come() -> None:
    turns: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("1", "2", "3")}

    async def answer(request: PeerRequest) -> Any:
        assert isinstance(request, PeerCall)
        await turns[request.operation].wait()
        return {"said": request.operation}

    async with two(answer) as (a, _):
        asked = {name: asyncio.create_task(a.network.ask("b", asking(name))) for name in turns}
        for name in ("2", "3", "1"):
            turns[name].set()
            assert await asked[name] == {"said": name}


async def test_a_refusal_comes_back_as_the_same_error() -> None:
    async def answer(request: PeerRequest) -> Any:
        assert isinstance(request, PeerCall)
        if request.operation == "bug":
            raise RuntimeError("by order of a test")
        raise TopicNotFound(topic="/default/none")

    async with two(answer) as (a, _):
        with pytest.raises(TopicNotFound, match="/default/none"):
            await a.network.ask("b", asking("topic"))
        with pytest.raises(PubSubError, match="its log says why"):
            await a.network.ask("b", asking("bug"))


async def test_without_a_connection_nothing_is_sent_and_a_lost_one_leaves_the_outcome_open() -> None:
    has_come = asyncio.Event()

    async def answer(_: PeerRequest) -> Any:
        has_come.set()
        await asyncio.Event().wait()

    async with a_node("a") as a:
        with pytest.raises(NotServing, match="b is not connected"):
            await a.network.ask("b", asking("x"))
        async with a_node("b", answer=answer) as b:
            await connect(a, b)
            asked = asyncio.create_task(a.network.ask("b", asking("x")))
            await has_come.wait()
        with pytest.raises(Disconnected):
            await asked


async def test_a_broker_that_does_not_answer_holds_up_no_requests_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "ASKED_BYTES_MAX", 2 * peer_requests.ASKED_BYTES_LEAST)
    come: list[PeerRequest] = []

    async def never(request: PeerRequest) -> Any:
        come.append(request)
        await asyncio.Event().wait()

    async def at_once(_: PeerRequest) -> Any:
        return "c"

    async with a_node("a") as a, a_node("b", answer=never) as b, a_node("c", answer=at_once) as c:
        await connect(a, b, c)
        asked = [asyncio.create_task(a.network.ask("b", asking(str(number)))) for number in range(5)]
        assert await a.network.ask("c", asking("x")) == "c"
        await asyncio.wait(asked, timeout=0.2)
        assert len(come) == 2, "more than may wait for their answers were sent"
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)


async def test_no_more_requests_of_one_broker_are_served_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "SERVED_MAX", 1)
    has_come, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: PeerRequest) -> Any:
        has_come.set()
        await may_end.wait()
        return "done"

    async with two(answer) as (a, _):
        first = asyncio.create_task(a.network.ask("b", asking("1")))
        await has_come.wait()
        with pytest.raises(NotServing, match="1 requests of broker a are under way"):
            await a.network.ask("b", asking("2"))
        may_end.set()
        assert await first == "done"
        assert await a.network.ask("b", asking("3")) == "done"


# Owners


class Owners:
    """Brokers of one process that ask each other over real connections."""

    def __init__(self, world: Brokers) -> None:
        self.world = world
        self.networks: dict[str, PeerNetwork] = {}
        self.owners: dict[str, PeerOwners] = {}

    async def start(self, *names: str) -> None:
        for name, broker in zip(names, await self.world.start(*names), strict=True):
            answer = partial(answer_peer, broker)
            network = self.networks[name] = PeerNetwork(name, 1, limits=QUICK, answer=answer)
            network.listen(broker.pubsub)
            self.owners[name] = PeerOwners(network, owner_of=broker.cluster_handle.owner_of, answer=answer)
            await network.start(HOST, 0)
        self.connect()

    def of(self, broker: Broker) -> PeerOwners:
        """Return the owners as a broker asks them."""
        return self.owners[broker.options.broker_id]

    def connect(self) -> None:
        members = {name: (HOST, network.port) for name, network in self.networks.items()}
        for network in self.networks.values():
            network.set_members(members)

    async def at_another(self, topic: TopicName) -> tuple[Broker, Broker]:
        """Return the owner of partition 0, and a broker that is not."""
        owner = await self.world.owner(topic)
        return owner, next(broker for broker in self.world.running.values() if broker is not owner)


@pytest.fixture
async def owners(tmp_path: Path) -> AsyncIterator[Owners]:
    async with brokers(tmp_path) as world:
        owners = Owners(world)
        await owners.start("a", "b")
        yield owners
        for network in owners.networks.values():
            await network.close()


async def test_an_owner_is_asked_wherever_it_is(owners: Owners) -> None:
    await owners.world.running["a"].put_topic(ORDERS, TopicSettings())
    owner, other = await owners.at_another(ORDERS)
    await owner.publish_records(ORDERS, [StoredRecord(b"1"), StoredRecord(b"2")], partition=0)
    await owner.put_subscription(ORDERS, "s", SubscriptionSettings(mode=SubscriptionKind.SHARED, start="earliest"))
    partition = PartitionName(ORDERS, 0)
    for others in (owners.of(other), owners.of(owner)):  # also after it has moved to the broker that asks
        assert await others.locate(partition, LATEST) == 2
        assert await others.consumers(partition) == {}
        info = await others.seek(partition, "s", Position.parse("offset:1"))
        assert [cursor.offset for cursor in info.cursors] == [1]
        with pytest.raises(SubscriptionNotFound):
            await others.seek(partition, "none", LATEST)


async def test_a_record_that_is_sent_again_is_stored_once_p12(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    """P12: a dead letter is not doubled by a connection that breaks before its answer comes."""
    await owners.world.running["a"].put_topic(ORDERS, TopicSettings())
    owner, other = await owners.at_another(ORDERS)
    partition, there = PartitionName(ORDERS, 0), owners.networks[owner.options.broker_id]
    stored = asyncio.Event()
    publish = owner.publish

    async def publish_then_break(*arguments: Any) -> Any:
        published = await publish(*arguments)
        if not stored.is_set():
            stored.set()
            there.set_members({})  # the connection ends before the answer leaves
        return published

    monkeypatch.setattr(owner, "publish", publish_then_break)
    sent = asyncio.create_task(owners.of(other).publish(partition, StoredRecord(b"dead"), "txn-1", NO_SCHEMA))
    await asyncio.wait([sent, asyncio.create_task(stored.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not sent.done(), "it was answered"
    owners.connect()
    await sent
    await owners.of(other).publish(partition, StoredRecord(b"dead"), "txn-1", NO_SCHEMA)
    await owners.of(other).publish(partition, StoredRecord(b"other"), "txn-2", NO_SCHEMA)
    assert await owners.world.values(ORDERS) == [b"dead", b"other"]


async def test_an_owner_that_is_away_is_named_after_a_while(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_owners, "ANSWER_SECONDS", 0.3)
    await owners.world.running["a"].put_topic(ORDERS, TopicSettings())
    owner, other = await owners.at_another(ORDERS)
    for network in owners.networks.values():
        network.set_members({})
    with pytest.raises(NotServing, match=f"broker {owner.options.broker_id} is not connected"):
        await owners.of(other).locate(PartitionName(ORDERS, 0), LATEST)
