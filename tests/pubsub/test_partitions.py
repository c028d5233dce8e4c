"""Nodes that are cut off, killed, or given other topics, while messages are published and handled.

`SULINA_PUBSUB_SECONDS=300 pytest tests/pubsub/test_partitions.py` is the long form.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles

import pytest

import sulina
from sulina.client import Client, ClientOptions, Message
from tests.pubsub.forms import Form, Inbox
from tests.support.cluster_world import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = float(os.environ.get("SULINA_PUBSUB_SECONDS", "4"))
PHASE_SECONDS = 1.5  # before a cut, and of it; a subscriber is removed after more than three times as long
ROUNDS = max(1, round(SECONDS / (3 * PHASE_SECONDS)))
PUBLISH_SECONDS_MAX = 60.0  # through a failover


@dataclass(eq=False)
class Load:
    """Numbers that are published to a topic one after the other, a few at a time, and when."""

    client: Client
    topic: str
    per_second: int
    accepted: list[int] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    _is_over: bool = False

    async def run(self) -> None:
        number, pause = 0, 0.05
        while not self._is_over:
            due = time.monotonic() + pause
            numbers = range(number, number + max(1, int(self.per_second * pause)))
            number = numbers.stop
            self.times.update(dict.fromkeys(numbers, time.monotonic()))
            acks = await asyncio.gather(*(self._publish(each) for each in numbers))
            self.accepted += [each for each, is_accepted in zip(numbers, acks, strict=True) if is_accepted]
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _publish(self, number: int) -> bool:
        ack = await self.client.publish(self.topic, number, timeout_seconds=PUBLISH_SECONDS_MAX)
        return ack.is_accepted

    def stop(self) -> None:
        self._is_over = True

    async def subscribe(self, form: Form, *nodes: str) -> None:
        for node in nodes:
            self.inboxes[node] = Inbox()
            await (await form.at(node)).subscribe(self.topic, self.inboxes[node], name=node)

    async def wait_all(self, *nodes: str) -> None:
        """They have got everything that was accepted, in its order, once."""
        for node in nodes:
            found = await self.inboxes[node].wait(len(self.accepted))
            assert found == self.accepted, f"{node}: {_difference(found, self.accepted)}"

    async def wait_caught_up(self, *nodes: str, and_more: int = 0) -> None:
        """They have got what is accepted by now, and so many more, while more is published."""
        count = len(self.accepted) + and_more
        for node in nodes:
            await self.inboxes[node].wait_messages(count)

    def latencies(self, node: str, begin: float, end: float) -> list[float]:
        """Of what was published between these times, to the end of its handler."""
        inbox = self.inboxes[node]
        took = ((self.times[number], at) for number, at in zip(inbox.payloads, inbox.times, strict=True))
        return [at - published for published, at in took if begin <= published < end]


def _difference(found: list[int], expected: list[int]) -> str:
    twice = sorted({number for number in found if found.count(number) > 1})
    missing = sorted(set(expected) - set(found))
    return (
        f"{len(found)} of {len(expected)}, missing {missing[:20]}, twice {twice[:20]}, "
        f"in order: {found == sorted(found)}"
    )


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98] if len(values) > 1 else 0.0


async def _topic_of(form: Form, owner: str, **settings: object) -> str:
    """One that this broker owns."""
    assert form.world is not None
    topic = await form.topic(**settings)  # type: ignore[arg-type]
    if await form.owner(topic) != owner:
        await form.world.move(topic, owner)
    return topic


@pytest.mark.timeout(120 + 2 * SECONDS)
async def test_a_node_is_cut_off_and_healed_under_load(
    there: Form, record_property: Callable[[str, object], None]
) -> None:
    """4.2, 4.3, 4.4, P3, P8, P9: others never stop; DelayQueue, Drop and a log each keep their promise."""
    assert there.world is not None
    owner, near, far = there.nodes
    publisher = await there.at(owner)
    loads = {
        "delay": Load(publisher, await _topic_of(there, owner, delivery="non_reliable"), 480),
        "drop": Load(
            publisher,
            await _topic_of(there, owner, delivery="non_reliable", policy={"partition_behavior": "drop"}),
            100,
        ),
        "log": Load(publisher, await _topic_of(there, owner), 100),
    }
    for load in loads.values():
        await load.subscribe(there, owner, near, far)
    quiet: list[float] = []
    cut: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        for name, load in loads.items():
            tasks.create_task(load.run(), name=name)
        for _ in range(ROUNDS):
            began = time.monotonic()
            await asyncio.sleep(PHASE_SECONDS)
            there.world.cut_peers(far)
            cut_at = time.monotonic()
            await asyncio.sleep(PHASE_SECONDS)
            for load in loads.values():
                await load.wait_caught_up(owner, near)  # while the other is still away
            healed_at = time.monotonic()
            there.world.heal_peers(far)
            for name in ("delay", "log"):
                await loads[name].wait_caught_up(far)
            for node in (owner, near):
                quiet += loads["delay"].latencies(node, began, cut_at)
                cut += loads["delay"].latencies(node, cut_at, healed_at)
        for load in loads.values():
            load.stop()
    for load in loads.values():
        await load.wait_all(owner, near)
    await loads["delay"].wait_all(far)
    await loads["log"].wait_all(far)
    missing = await _wait_dropped(there, loads["drop"], far)
    figures = {
        "rounds": ROUNDS,
        "latency of others p99, ms": round(1000 * p99(quiet), 1),
        "the same while a node is cut off, ms": round(1000 * p99(cut), 1),
        "accepted": {name: len(load.accepted) for name, load in loads.items()},
        "dropped": missing,
    }
    for name, figure in figures.items():
        print(f"{name}: {figure}")
        record_property(name, figure)


async def _wait_dropped(form: Form, load: Load, far: str) -> int:
    """What is missing there is what was counted, and the rest came in order, once."""
    metrics = await form.wait_metrics(load.topic, "nothing waits", lambda found: found.queued == 0)
    assert metrics.dropped > 0
    found = await load.inboxes[far].wait(len(load.accepted) - metrics.dropped)
    assert found == sorted(set(found)), _difference(found, load.accepted)
    assert len(load.accepted) - len(found) == metrics.dropped
    assert metrics.missed == 0
    return metrics.dropped


async def test_what_was_on_its_way_when_the_link_broke_is_acked_after_it_is_healed(there: Form) -> None:
    """P7, P9: it does not come twice, nobody is blamed, and later messages wait their turn."""
    assert there.world is not None
    topic = await there.topic(delivery="non_reliable")
    owner, (_, far) = await there.owner(topic), await there.others(topic)
    inbox, publisher = Inbox(), await there.at(owner)
    await (await there.at(far)).subscribe(topic, inbox)
    inbox.gate.clear()
    await publisher.publish(topic, 0)
    await inbox.wait_called()
    there.world.cut_peers(far)
    await there.wait_suspended(topic, 1)
    await publisher.publish(topic, 1)
    there.world.heal_peers(far)
    await there.wait_suspended(topic, 0)
    inbox.gate.set()
    assert await inbox.wait(2) == [0, 1]
    await publisher.publish(topic, 2)
    assert await inbox.wait(3) == [0, 1, 2]
    found = await there.wait_metrics(topic, "three are delivered", lambda metrics: metrics.delivered == 3)
    assert (found.failed, found.missed, found.dropped, found.suspended) == ({}, 0, 0, 0)


async def test_who_leaves_while_its_node_is_cut_off_has_left_when_it_is_healed(there: Form) -> None:
    """P3: word of it was lost, and is not needed."""
    assert there.world is not None
    topic = await there.topic(delivery="non_reliable")
    owner, (_, far) = await there.owner(topic), await there.others(topic)
    leaving, staying = Inbox(), Inbox()
    home = await there.at(far)
    gone = await home.subscribe(topic, leaving)
    await home.subscribe(topic, staying)
    there.world.cut_peers(far)
    await there.wait_suspended(topic, 2)
    await gone.unsubscribe()
    there.world.heal_peers(far)
    publisher = await there.at(owner)

    async def is_alone() -> bool:
        return len(await publisher.admin.subscribers(topic)) == 1

    await until("it has left", is_alone)
    assert (await publisher.publish(topic, "on")).is_accepted
    assert await staying.wait(1) == ["on"]
    assert leaving.payloads == []


async def test_a_silent_network_is_found_out_and_nothing_is_lost(there: Form) -> None:
    """4.2, P9: nothing is reset, nothing comes through; the node is given up, and comes back."""
    assert there.world is not None
    owner, near, far = there.nodes
    topic = await _topic_of(there, owner)
    load = Load(await there.at(owner), topic, 100)
    await load.subscribe(there, owner, near, far)
    proxy = there.world.brokers[far].peer_proxy  # both others dial it
    assert proxy is not None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await load.inboxes[far].wait_messages(10)
        proxy.blackhole()
        await there.wait_suspended(topic, 1)
        await load.wait_caught_up(owner, near)
        proxy.heal()
        await load.wait_caught_up(far)
        load.stop()
    await load.wait_all(owner, near, far)


async def test_a_topic_moves_while_it_is_published_to(there: Form) -> None:
    """4.1, P6, U13: subscribers everywhere see every message in order, once."""
    assert there.world is not None
    a, b, c = there.nodes
    topic = await _topic_of(there, a)
    load = Load(await there.at(b), topic, 200)
    await load.subscribe(there, a, b, c)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        for to in (b, c, a):
            await load.wait_caught_up(a, b, c, and_more=50)
            await there.world.move(topic, to)
        await load.wait_caught_up(a, b, c, and_more=50)
        load.stop()
    await load.wait_all(a, b, c)


async def test_the_home_of_a_subscriber_is_killed(there: Form) -> None:
    """P7: its client goes to another node, says where it was, and misses nothing."""
    assert there.world is not None
    owner, near, far = there.nodes
    topic = await _topic_of(there, owner)
    load = Load(await there.at(owner), topic, 100)
    await load.subscribe(there, near)
    urls = ",".join(there.world.brokers[node].url for node in (far, near, owner))
    moving = await there.exits.enter_async_context(sulina.connect(urls, options=ClientOptions()))
    load.inboxes[far] = Inbox()
    subscriber = await moving.subscribe(topic, load.inboxes[far], name=far)
    assert moving.url.rstrip("/") == there.world.brokers[far].url
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await load.wait_caught_up(near, far, and_more=50)
        await there.world.brokers[far].kill()
        await load.wait_caught_up(near, far, and_more=50)
        load.stop()
    await load.wait_all(near, far)
    assert subscriber.is_attached
    assert moving.url.rstrip("/") != there.world.brokers[far].url


async def test_the_owner_of_a_topic_is_killed(there: Form) -> None:
    """F4, P6, P8: subscribers of other nodes go on at the new owner; what they finished does not come again.

    An identity is found there too, and nothing of it is lost or out of order.
    """
    assert there.world is not None
    owner, near, far = there.nodes
    topic = await _topic_of(there, owner, policy={"ack": "archived", "archive_seconds": 0.05})
    load = Load(await there.at(near), topic, 100)
    await load.subscribe(there, near, far)
    served: list[int] = []  # by both of those who offer

    async def serve(message: Message) -> None:
        served.append(message.payload)

    async def serve_too(message: Message) -> None:
        served.append(message.payload)

    await (await there.at(near)).subscribe(topic, serve, identity="billing")
    await (await there.at(far)).subscribe(topic, serve_too, identity="billing")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        await load.wait_caught_up(near, far, and_more=50)
        await there.world.brokers[owner].kill()
        await there.world.wait_served(topic, not_by=owner)
        await load.wait_caught_up(near, far, and_more=50)
        load.stop()
    await load.wait_all(near, far)

    async def is_served() -> bool:
        return set(load.accepted) <= set(served)

    await until("the identity has everything", is_served)
    assert list(dict.fromkeys(served)) == load.accepted
