"""The owner of a topic is killed under load: who goes on, how soon after its lease has ended, and what is lost.

`SULINA_FAILOVERS=20 pytest tests/cluster/test_failover.py` is the long form.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import quantiles

import pytest

import sulina
from sulina.client import Client, Message
from sulina.core.cluster import keys
from sulina.core.delivery.members import SubscriptionKind
from sulina.errors import Disconnected, Recovering
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import TopicState
from tests.support.cluster_clients import Application, Load
from tests.support.cluster_world import BrokerProcess, World, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

FAILOVERS = int(os.environ.get("SULINA_FAILOVERS", "2"))
BOUND_SECONDS = 2.0  # beyond the lease
LOAD = Load(
    records_per_second=500,
    subscriptions=(("billing", SubscriptionKind.EXCLUSIVE, 1), ("mail", SubscriptionKind.FAILOVER, 2)),
)


@pytest.mark.timeout(120 + 30 * FAILOVERS)
async def test_f6_a_topic_with_ack_archived_fails_over_by_itself_and_loses_nothing(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    """F1, F2, F4, F6, U10: producers and consumers go on without an error; the time to the first ack is printed."""
    topic, waits = "/default/failover-archived", []
    await world.create_topic(topic, ack="archived")
    application = Application(world, topic, LOAD)
    async with application.running():
        for _ in range(FAILOVERS):
            await application.wait_acked(200)
            owner = await world.owner_of(topic)
            killed_at = time.monotonic()
            await world.brokers[owner].kill()
            await application.wait_acked(200)
            waits += application.pauses(killed_at, time.monotonic())
            await world.brokers[owner].start()
            await world.wait_brokers("a", "b", "c")
        wrong = await application.finish()
    p50, p99 = (quantiles(waits, n=100, method="inclusive")[percent] for percent in (49, 98))
    for name, figure in {"failovers": FAILOVERS, "first ack p50, s": round(p50, 2), "p99, s": round(p99, 2)}.items():
        print(f"{name}: {figure}")
        record_property(name, figure)
    assert not wrong, "\n".join(wrong[:40])
    assert application.errors == []
    assert p50 <= world.lease_seconds + BOUND_SECONDS, waits


async def test_u8_a_topic_with_ack_local_waits_for_its_broker_and_loses_nothing(world: World) -> None:
    """F1, F4: it is RECOVERING, says for whom it waits, and goes on with that broker's log."""
    topic = "/default/failover-local"
    await world.create_topic(topic, ack="local")
    application = Application(world, topic, LOAD)
    async with application.running():
        await application.wait_acked(200)
        owner = await world.owner_of(topic)
        await world.brokers[owner].kill()
        await wait_recovering(world, topic, owner)
        async with world.client(timeout_seconds=1.0) as client:
            with pytest.raises(Recovering) as raised:
                await client.publish(topic, b"refused")
        assert raised.value.retryable
        await world.brokers[owner].start()
        await world.wait_served(topic, by=owner)
        await application.wait_acked(200)
        wrong = await application.finish()
    assert not wrong, "\n".join(wrong[:40])
    assert application.errors == []


@dataclass(slots=True)
class Passing:
    """A producer, a consumer and a subscriber of a topic that keeps nothing, which reconnect by themselves."""

    topic: str
    accepted: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)  # whose answer was lost: nothing remembers them, so nobody knows
    seen: dict[str, list[int]] = field(default_factory=lambda: {"consumer": [], "subscriber": []})

    async def produce(self, client: Client) -> None:
        for number in count():
            try:
                if (await client.publish(self.topic, str(number))).is_accepted:
                    self.accepted.append(number)
            except Disconnected:
                self.unknown.append(number)
            await asyncio.sleep(0.01)

    async def consume(self, client: Client) -> None:
        messages = client.consumer(self.topic, "s")
        async for message in messages:
            self.seen["consumer"].append(int(message.value or b""))
            await messages.ack(message)

    async def handle(self, message: Message) -> None:
        self.seen["subscriber"].append(int(message.value or b""))

    async def wait_seen(self, count: int, working: Sequence[asyncio.Task[None]]) -> None:
        """Return when everybody has seen so many of those that are accepted from now on."""
        newest = self.accepted[-1] if self.accepted else -1

        async def seen() -> bool:
            for task in working:
                assert not task.done(), f"it gave up: {task.exception()!r}"
            return all(sum(each > newest for each in numbers) >= count for numbers in self.seen.values())

        await until(f"everybody has seen {count} more", seen)


async def test_f4_running_clients_of_a_best_effort_topic_go_on_from_now(world: World) -> None:
    """F4: the owner is killed, which is the home of the subscriber too; nothing that was seen comes again."""
    passing = Passing("/default/failover-passing")
    await world.tell(f"/v1/topics{passing.topic}", {"delivery": "non_reliable"}, method="PUT")
    await world.wait_served(passing.topic)
    owner = world.brokers[await world.owner_of(passing.topic)]
    homes = sorted(world.running, key=lambda broker: broker is not owner)
    pubsub = sulina.connect(",".join(broker.url for broker in homes))
    async with world.client() as producing, world.client() as consuming, pubsub:
        await pubsub.subscribe(passing.topic, passing.handle)
        working = [asyncio.create_task(passing.consume(consuming)), asyncio.create_task(passing.produce(producing))]
        try:
            await passing.wait_seen(20, working)
            await owner.kill()
            await world.wait_served(passing.topic, not_by=owner.broker_id)
            newest = passing.accepted[-1]
            await passing.wait_seen(20, working)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    assert len(passing.unknown) <= 1, "only the publish that was under way may end without an answer"
    for name, numbers in passing.seen.items():
        assert numbers == sorted(set(numbers)), f"{name} saw something again, or out of order"
        now = next(number for number in numbers if number > newest)
        missed = [number for number in passing.accepted if now <= number <= numbers[-1] and number not in numbers]
        assert missed == [], f"{name} was attached again, and missed some"


async def wait_recovering(world: World, topic: str, owner: str) -> None:
    async def is_recovering() -> bool:
        placed = await world.partition(topic)
        return placed is not None and (placed.state, placed.waits_for) == (TopicState.RECOVERING, owner)

    await until(f"{topic} waits for {owner}", is_recovering)


async def test_u14_a_forced_move_gives_up_exactly_the_range_that_it_reports(world: World) -> None:
    """U14: what the archive has stays, what only the lost broker had is named; that broker sets it aside, unmerged."""
    topic = "/default/failover-forced"
    current = keys.archive_current(PartitionName(TopicName.parse(topic), 0))
    await world.create_topic(topic, ack="local", archive_bytes=1 << 30, archive_seconds=3600)
    async with world.client() as client:
        await client.publish_batch(topic, [f"kept-{number}" for number in range(100)])
        await world.move(topic, world.other(await world.owner_of(topic)))  # which archives everything
        owner = await world.owner_of(topic)
        other = world.other(owner)
        await client.publish_batch(topic, [f"lost-{number}" for number in range(50)])

        async def is_reported() -> bool:
            reported = world.keys(current).get(current)
            return reported is not None and reported["end_offset"] == 150

        await until("the owner has reported its end", is_reported)
        await world.brokers[owner].kill()
        await wait_recovering(world, topic, owner)
        (forced,) = await world.unload(topic, to=other, force=True)
        assert forced.given_up == (100, 150)
        await world.wait_served(topic, by=other)
        assert (await client.admin.partition(topic)).end_offset == 100
        assert (await client.publish(topic, b"after")).offset == 100
        await world.brokers[owner].start()
        await world.wait_brokers("a", "b", "c")
        await until("what only that broker has is set aside", partial(is_set_aside, world.brokers[owner], topic))
        assert await world.owner_of(topic) == other
        await world.move(topic, owner)
        expected = [*(f"kept-{number}" for number in range(100)), "after"]
        assert [record.text async for record in client.read(topic, follow=False)] == expected
    assert await is_set_aside(world.brokers[owner], topic)


async def is_set_aside(broker: BrokerProcess, topic: str) -> bool:
    """It said so, and what it named is there."""
    told = [event for event in broker.events("directory_set_aside") if event["topic"] == topic]
    return any(Path(event["path"]).is_dir() and event["only_here"] for event in told)
