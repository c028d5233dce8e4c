"""A topic of several owners: subscriptions, readers and questions find them, and follow when they change."""

import asyncio
import random
from collections import Counter

import pytest

import sulina
from sulina.client import Client, ClientOptions, Consumer, Message, brokers
from sulina.core.records.record import StoredRecord
from sulina.errors import (
    Disconnected,
    InvalidSettings,
    NotOwner,
    NotServing,
    SubscriptionBusy,
    TopicNotFound,
)
from sulina.wire.frames import AddCredit, Detached, Fetch, Publish, Subscribe
from sulina.wire.messages import UnloadInfo
from tests.client.fake_cluster import FakeBroker, FakeCluster, url_of
from tests.client.fake_node import TOPIC
from tests.client.test_lanes import trouble


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(brokers=3, partitions=3)


def fill(cluster: FakeCluster, count: int) -> None:
    """So many records more in each partition."""
    for part in cluster.parts:
        start = len(part.log)
        part.log += [StoredRecord(b"%d" % n, offset=n) for n in range(start, start + count)]
        waiting, part.waiting = part.waiting, []
        for go_on in waiting:
            go_on()
    cluster.dispatch()


async def places(messages: Consumer, count: int) -> Counter[tuple[int, int]]:
    """Where the next so many come from, acked."""
    found: Counter[tuple[int, int]] = Counter()
    async with asyncio.timeout(60):
        while found.total() < count:
            message = await anext(messages)
            if await messages.ack(message):
                found[message.partition, message.offset] += 1
    return found


def publishes(cluster: FakeCluster) -> Counter[str]:
    """How many each broker was sent."""
    return Counter(
        name for name, broker in cluster.brokers.items() for frame in broker.frames if isinstance(frame, Publish)
    )


def subscribes(broker: FakeBroker) -> list[Subscribe]:
    return [frame for frame in broker.frames if isinstance(frame, Subscribe)]


def attached(cluster: FakeCluster) -> list[str]:
    return [name for name, broker in cluster.brokers.items() for wire in broker.wires for _ in wire.consumers]


def all_of(cluster: FakeCluster, start: int, end: int) -> Counter[tuple[int, int]]:
    return Counter((part.number, offset) for part in cluster.parts for offset in range(start, end))


# Subscriptions


async def test_a_subscription_is_attached_to_every_owner_u10(cluster: FakeCluster) -> None:
    fill(cluster, 20)
    async with cluster.client() as client, client.consumer(TOPIC, "s", start="earliest", credit=30) as messages:
        assert attached(cluster) == ["a", "b", "c"], "when it is open, it is so everywhere"
        assert await places(messages, 60) == all_of(cluster, 0, 20)
        assert cluster.calls()["placement"] == 1
    assert attached(cluster) == []


async def test_the_credit_is_shared_out(cluster: FakeCluster) -> None:
    async with cluster.client() as client, client.consumer(TOPIC, "s", credit=30):
        given = [frame.credit for broker in cluster.brokers.values() for frame in subscribes(broker)]
        assert given == [10, 10, 10]
        cluster.assign(2, "b")
        await asyncio.sleep(1)
        assert attached(cluster) == ["a", "b"]
        more = [frame.records for frame in cluster.brokers["a"].frames if isinstance(frame, AddCredit)]
        assert sum(more) == 5, "two have what three had"
    async with cluster.client() as client, client.consumer(TOPIC, "t", credit=1):
        assert {subscribes(cluster.brokers[name])[-1].credit for name in "ab"} == {1}


async def test_what_is_too_much_is_given_back_no_more(cluster: FakeCluster) -> None:
    for number in (1, 2):
        cluster.assign(number, "a")
    cluster.tell(at_once=True)
    async with cluster.client() as client, client.consumer(TOPIC, "s", credit=30) as messages:
        cluster.assign(1, "b")
        await asyncio.sleep(1)
        assert subscribes(cluster.brokers["b"])[-1].credit == 15
        cluster.assign(2, "c")
        await asyncio.sleep(1)
        frames = len(cluster.brokers["b"].frames)
        assert subscribes(cluster.brokers["c"])[-1].credit == 10
        fill(cluster, 10)
        await places(messages, 30)
        await asyncio.sleep(1)
        back = [frame.records for frame in cluster.brokers["b"].frames[frames:] if isinstance(frame, AddCredit)]
        assert sum(back) == 5, "of fifteen it may have ten"


async def test_a_partition_that_moves_is_followed_and_the_others_go_on_u10_u13(cluster: FakeCluster) -> None:
    """U10, U13: acked is acked; the consumers of other brokers do not notice."""
    async with cluster.client() as client, client.consumer(TOPIC, "s", credit=300) as messages:
        fill(cluster, 10)
        first = await places(messages, 30)
        await cluster.move(0, "b")
        fill(cluster, 10)
        assert first + await places(messages, 30) == all_of(cluster, 0, 20)
        assert len(subscribes(cluster.brokers["c"])) == 1, "it was left alone"
        assert attached(cluster) == ["b", "c"]
        await cluster.move(0, "c")
        fill(cluster, 10)
        assert await places(messages, 30) == all_of(cluster, 20, 30)
        assert await messages.get(1) is None, "nothing comes twice, and no error"


async def test_what_was_read_ahead_of_a_partition_that_moves_comes_once_u10(cluster: FakeCluster) -> None:
    async with cluster.client() as client, client.consumer(TOPIC, "s", credit=300) as messages:
        fill(cluster, 10)
        await anext(messages)  # the rest is in the buffer
        await asyncio.sleep(1)
        cluster.assign(0, "c")
        await asyncio.sleep(1)
        seen = Counter((m.partition, m.offset) for m in await messages.take())
        while rest := await messages.get(1):
            seen[rest.partition, rest.offset] += 1
        moved = {place: count for place, count in seen.items() if place[0] == 0}
        assert all(count == 1 for count in seen.values())
        assert set(moved) >= {(0, n) for n in range(1, 10)}


async def test_an_owner_that_dies_is_replaced_f4(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="abc") as client, client.consumer(TOPIC, "s") as messages:
        cluster.brokers["b"].die()
        fill(cluster, 5)
        assert (await places(messages, 10)).keys().isdisjoint({(1, n) for n in range(5)})
        await cluster.fail_over("b")
        failed_over = now()
        assert await places(messages, 5) == Counter((1, n) for n in range(5))
        assert now() - failed_over < 1
        assert cluster.calls()["placement"] < 60


async def test_an_owner_that_hangs_is_found_out_in_half_a_minute(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="ab") as client, client.consumer(TOPIC, "s") as messages:
        hung = cluster.brokers["c"]
        hung.is_hung = True
        cluster.parts[2].owner, cluster.parts[2].epoch = "a", 9  # and nobody says so
        cluster.tell(at_once=True)
        cluster.parts[1].owner, cluster.parts[1].epoch = "c", 9
        hung.resume()
        cluster.parts[1].owner, cluster.parts[1].epoch = "b", 10
        cluster.tell(at_once=True)
        hung.is_hung = True
        fill(cluster, 5)
        began = now()
        assert (await places(messages, 15)) == all_of(cluster, 0, 5)
        assert now() - began < 31


async def test_an_owner_that_takes_no_acks_may_be_none_any_more_f4(cluster: FakeCluster) -> None:
    """F4: it has lost touch, and does not know that others have its partition."""
    async with cluster.client(brokers="a") as client, client.consumer(TOPIC, "s", credit=100) as messages:
        fill(cluster, 1)
        await places(messages, 3)
        fill(cluster, 1)
        held = [await anext(messages) for _ in range(3)]
        cluster.brokers["a"].is_cut_off = True
        await cluster.fail_over("a")
        moved = now()
        assert [await messages.ack(message) for message in held if message.partition == 0] == [False]
        hasty = asyncio.create_task(ack_for_ever(messages, next(message for message in held if message.partition == 0)))
        fill(cluster, 1)
        while cluster.parts[0].acked["s"] != {0, 1, 2}:
            await messages.ack(await anext(messages))
        assert now() - moved < 4
        hasty.cancel()


async def ack_for_ever(messages: Consumer, message: Message) -> None:
    """Whoever does not give up must not keep the subscription from looking for the new owner."""
    while True:
        await messages.ack(message)
        await asyncio.sleep(0.001)


async def test_what_nobody_owns_is_waited_for_and_the_rest_is_served(cluster: FakeCluster) -> None:
    cluster.assign(1, None)
    cluster.tell(at_once=True)
    fill(cluster, 5)
    async with cluster.client() as client, client.consumer(TOPIC, "s", start="earliest") as messages:
        assert now() < 1
        assert len(await places(messages, 10)) == 10
        await asyncio.sleep(60)
        assert cluster.calls()["placement"] < 100
        cluster.assign(1, "c")
        assert await places(messages, 5) == Counter((1, n) for n in range(5))


async def test_subscribing_waits_until_there_is_one_owner_at_least(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.assign(number, None)
    cluster.tell(at_once=True)
    async with cluster.client() as client:
        opening = asyncio.create_task(client.consumer(TOPIC, "s").open())
        await asyncio.sleep(5)
        assert not opening.done()
        cluster.assign(1, "b")
        await opening
        assert attached(cluster) == ["b"]


async def test_subscribing_to_what_nobody_owns_ends_with_the_reason(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.assign(number, None)
    cluster.tell(at_once=True)
    async with cluster.client(ClientOptions(timeout_seconds=5)) as client:
        with pytest.raises(NotOwner, match="has no owner"):
            await (consumer := client.consumer(TOPIC, "s")).open()
        assert now() == pytest.approx(5, abs=0.1)
        assert not consumer.is_attached


async def test_an_owner_that_is_dead_when_subscribing_is_waited_for_until_the_timeout(cluster: FakeCluster) -> None:
    async with cluster.client(ClientOptions(timeout_seconds=5)) as client:
        cluster.brokers["c"].die()
        subscription = client.consumer(TOPIC, "s")
        await subscription.open()
        assert now() == pytest.approx(5, abs=0.2), "then what there is is enough"
        assert attached(cluster) == ["a", "b"]
        cluster.brokers["c"].is_down = False
        await asyncio.sleep(5)
        assert attached(cluster) == ["a", "b", "c"]
        await subscription.close()
        assert attached(cluster) == []


async def test_an_exclusive_subscription_is_taken_at_the_lowest_partition_first_p12(cluster: FakeCluster) -> None:
    async with cluster.client(seed=1) as one, cluster.client(seed=2) as two:
        opened = await asyncio.gather(
            *(client.consumer(TOPIC, "s").open() for client in (one, two)), return_exceptions=True
        )
        assert Counter(map(type, opened)) == {type(None): 1, SubscriptionBusy: 1}
        await asyncio.sleep(1)
        assert attached(cluster) == ["a", "b", "c"]
        assert [len(subscribes(cluster.brokers[name])) for name in "abc"] == [2, 1, 1]


async def test_who_lost_an_exclusive_subscription_everywhere_takes_the_lowest_partition_first(
    cluster: FakeCluster,
) -> None:
    async with cluster.client(seed=1) as one, cluster.client(seed=2) as two, one.consumer(TOPIC, "s") as messages:
        for broker in cluster.brokers.values():
            for wire in broker.wires:
                wire.consumers.clear()
        opening = asyncio.create_task(two.consumer(TOPIC, "s").open())
        await asyncio.sleep(0.1)
        for broker in cluster.brokers.values():
            for wire in [wire for wire in broker.wires if not wire.consumers]:
                wire.cut()
        await opening
        with pytest.raises(SubscriptionBusy):
            await anext(messages)
        assert [len(subscribes(cluster.brokers[name])) for name in "bc"] == [2, 2], "it did not even try elsewhere"


async def test_a_former_self_at_one_owner_is_waited_for(cluster: FakeCluster) -> None:
    async with cluster.client(seed=1) as old, cluster.client(seed=2) as new:
        await old.consumer(TOPIC, "s").open()
        cluster.assign(0, "b")
        await asyncio.sleep(1)
        cluster.brokers["b"].release(NotServing(reason="for a moment"))
        for wire in list(cluster.brokers["b"].wires):
            wire.is_cut = True  # it will not come back soon
        opening = asyncio.create_task(new.consumer(TOPIC, "s").open())
        await asyncio.sleep(2)
        assert not opening.done(), "the old one is still at c"
        for wire in list(cluster.brokers["c"].wires):
            wire.consumers.clear()
        await opening


async def test_a_subscription_that_another_takes_over_ends(cluster: FakeCluster) -> None:
    async with cluster.client() as client, client.consumer(TOPIC, "s") as messages:
        busy = SubscriptionBusy(topic=TOPIC, subscription="s", reason="another came")
        for wire in cluster.brokers["b"].wires:
            for handle in wire.consumers:
                wire.push(Detached(handle, busy.code, str(busy), busy.details()))
        with pytest.raises(SubscriptionBusy):
            await anext(messages)
        await asyncio.sleep(60)
        assert attached(cluster) == [], "it has left the others too"


async def test_a_topic_that_is_gone_ends_the_subscription(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(TopicNotFound):
            await client.consumer("/default/none", "s").open()


async def test_a_seek_is_followed_everywhere(cluster: FakeCluster) -> None:
    async with cluster.client() as client, client.consumer(TOPIC, "s", credit=300) as messages:
        fill(cluster, 5)
        await places(messages, 15)
        info = await client.admin.seek(TOPIC, "s", "earliest")
        assert [cursor.partition for cursor in info.cursors] == [0, 1, 2]
        for broker in cluster.brokers.values():
            broker.release(NotServing(reason="it was sought"))
        assert await places(messages, 15) == all_of(cluster, 0, 5)


@pytest.mark.parametrize("seed", range(8))
async def test_every_record_comes_in_order_and_none_that_was_acked_comes_again_u10_f4(seed: int) -> None:
    """U10, F4: through moves, deaths, hangs and lost connections."""
    rng = random.Random(seed)
    cluster = FakeCluster(brokers=3, partitions=3, seed=seed)
    async with cluster.client(brokers="ab", seed=seed) as client:
        subscription = client.consumer(TOPIC, "s", start="earliest", credit=rng.choice([3, 30, 300]))
        acked: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
        last: dict[tuple[object, int], int] = {}
        wrong: list[str] = []

        async def consume() -> None:
            async for batch in subscription.batches(rng.choice([1, 7, 100])):
                for message in batch:
                    note(message)
                if rng.random() < 0.9 and await subscription.ack(*batch):
                    for message in batch:
                        acked[message.partition].add(message.offset)
                elif rng.random() < 0.3:
                    await asyncio.sleep(rng.random())

        def note(message: Message) -> None:
            if message.offset in acked[message.partition]:
                wrong.append(f"{message.partition}:{message.offset} was acked")
            place = (message.delivery_id, message.partition)
            if message.offset <= last.get(place, -1):
                wrong.append(f"{message.partition}:{message.offset} came after {last[place]}")
            last[place] = message.offset

        consuming = asyncio.create_task(consume())
        troubling = asyncio.create_task(trouble(cluster, rng, 20))
        while not troubling.done():
            fill(cluster, rng.randrange(5))
            await asyncio.sleep(rng.expovariate(5))
        await troubling
        async with asyncio.timeout(120):
            while any(len(acked[part.number]) < len(part.log) for part in cluster.parts):
                assert not consuming.done(), consuming.exception()
                await asyncio.sleep(1)
                for broker in cluster.brokers.values():  # what was not acked is not delivered again by itself here
                    broker.release(NotServing(reason="a while has passed"))
        assert not wrong
        await subscription.close()
        await consuming


# Readers


async def test_a_reader_goes_on_at_the_same_offset_with_the_new_owner_f4(cluster: FakeCluster) -> None:
    fill(cluster, 7)
    async with cluster.client() as client:
        reader = client.read(TOPIC, start="earliest")
        found = [(r.partition, r.offset) for r in [await anext(reader) for _ in range(21)]]
        await cluster.move(0, "b")
        fill(cluster, 7)
        found += [(r.partition, r.offset) for r in [await anext(reader) for _ in range(21)]]
        assert Counter(found) == all_of(cluster, 0, 14)
        for number in range(3):
            offsets = [offset for partition, offset in found if partition == number]
            assert offsets == sorted(offsets)
        cluster.brokers["b"].die()
        await cluster.fail_over("b")
        fill(cluster, 7)
        found = [(r.partition, r.offset) for r in [await anext(reader) for _ in range(21)]]
        assert Counter(found) == all_of(cluster, 14, 21)
        fetches = sum(isinstance(f, Fetch) for broker in cluster.brokers.values() for f in broker.frames)
        assert fetches < 60
        assert cluster.calls()["placement"] < 80


async def test_a_reader_leaves_an_owner_that_hangs(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="b") as client:
        fill(cluster, 5)
        reader = client.read(TOPIC, partitions=[0])
        assert [(await anext(reader)).offset for _ in range(5)] == list(range(5))
        cluster.brokers["a"].is_hung = True
        await cluster.fail_over("a")
        fill(cluster, 5)
        moved = now()
        assert [(await anext(reader)).offset for _ in range(5)] == list(range(5, 10))
        assert now() - moved < 10 + 5 + 1, "it was told to wait for ten seconds, and is given five more"


# Questions


async def test_what_the_owners_know_is_put_together(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    cluster.parts[1].acked["s"] = {0, 1, 2}
    async with cluster.client() as client, client.consumer(TOPIC, "s", mode="shared", name="me"):
        info = await client.admin.subscription(TOPIC, "s")
        assert [(c.partition, c.offset, c.lag) for c in info.cursors] == [(0, 0, 10), (1, 3, 7), (2, 0, 10)]
        assert (info.lag, info.consumers) == (27, ["me"])
        both = await client.admin.subscriptions(TOPIC)
        assert [(each.subscription, len(each.cursors)) for each in both] == [("s", 3), ("t", 3)]
        made = await client.admin.create_subscription(TOPIC, "u", mode="shared")
        assert [cursor.partition for cursor in made.cursors] == [0, 1, 2]


async def test_questions_about_a_partition_go_to_its_owner_and_follow_it(cluster: FakeCluster) -> None:
    fill(cluster, 4)
    async with cluster.client() as client:
        assert await client.admin.locate(TOPIC, "latest", 2) == 4
        cluster.assign(2, "b")
        assert await client.admin.locate(TOPIC, "latest", 2) == 4
        assert (await client.admin.fetch(TOPIC, 2, 0)).next_offset == 4
        cluster.assign(2, None)
        locating = asyncio.create_task(client.admin.locate(TOPIC, "latest", 2))
        await asyncio.sleep(2)
        assert not locating.done()
        cluster.assign(2, "a")
        assert await locating == 4


async def test_a_seek_reaches_partitions_that_are_moving(cluster: FakeCluster) -> None:
    fill(cluster, 4)
    for part in cluster.parts:
        part.acked["s"] = {0, 1}
    async with cluster.client() as client:
        cluster.assign(1, None)
        cluster.tell(at_once=True)
        seeking = asyncio.create_task(client.admin.seek(TOPIC, "s", "earliest"))
        await asyncio.sleep(1)
        assert not seeking.done()
        cluster.assign(1, "c")
        assert [cursor.offset for cursor in (await seeking).cursors] == [0, 0, 0]


async def test_a_move_is_waited_for_and_told_of_u2(cluster: FakeCluster) -> None:
    told: list[list[UnloadInfo]] = []
    async with cluster.client() as client:
        assert [at.broker_id for at in (await client.admin.placement(TOPIC)).partitions] == ["a", "b", "c"]
        moved = await client.admin.move_topic(TOPIC, to="b", on_progress=told.append)
        assert [(info.partition, info.from_broker, info.to_broker, info.step) for info in moved] == [
            (0, "a", "b", "moved"), (2, "c", "b", "moved"),
        ]  # fmt: skip
        assert [info.step for info in told[0]] == ["requested", "requested"]
        assert told[-1] == moved
        assert [part.owner for part in cluster.parts] == ["b", "b", "b"]
        assert await client.admin.move_topic(TOPIC, to="b") == [], "it is there"
        asked = await client.admin.move_topic(TOPIC, partition=1, wait=False)
        assert [info.step for info in asked] == ["requested"]
        with pytest.raises(NotServing, match="partition 0 is requested"):
            await client.admin.move_topic(TOPIC, partition=0, timeout_seconds=0.1)


# Finding brokers


async def test_the_first_of_several_that_answers_is_the_home(cluster: FakeCluster) -> None:
    cluster.brokers["a"].die()
    async with cluster.client(brokers="abc") as client:
        assert client.url == url_of("b")
        assert (await client.admin.info()).broker_id == "b"
    for broker in cluster.brokers.values():
        broker.die()
    with pytest.raises(Disconnected, match="nobody listens"):
        await cluster.client(brokers="abc")


async def test_a_home_that_hangs_is_left_for_another(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="ab") as client:
        cluster.brokers["a"].is_hung = True
        assert (await client.admin.info()).broker_id == "b"
        assert now() < 10


async def test_a_home_that_was_left_serves_those_who_have_something_with_it(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="ab") as client, client.consumer(TOPIC, "s") as messages:
        await client.publish(TOPIC, b"", partition=0)
        cluster.brokers["a"].is_hung = True
        home = (await client.admin.info()).broker_id
        assert home != "a"
        cluster.brokers["a"].resume()
        fill(cluster, 1)
        await places(messages, 4)
        assert len(subscribes(cluster.brokers["a"])) == 1, "nobody noticed"
        cluster.brokers["a"].cut()
        fill(cluster, 1)
        await places(messages, 3)
        assert client.url == url_of(home), "a home that was left never becomes another"
        await client.publish(TOPIC, b"", partition=0)
        await asyncio.sleep(100)
        assert len(cluster.brokers["a"].wires) == 1, "only the one that the consumer needs"


async def test_many_who_lose_one_broker_ask_little(cluster: FakeCluster) -> None:
    """Sixty partitions in trouble are one topic to look up."""
    cluster = FakeCluster(brokers=3, partitions=60)
    async with cluster.client(brokers="b") as client:
        await asyncio.gather(*(client.publish(TOPIC, b"", partition=n) for n in range(60)))
        cluster.brokers["a"].die()
        publishing = asyncio.gather(*(client.publish(TOPIC, b"", partition=n) for n in range(60)))
        await cluster.fail_over("a")
        await publishing
        assert cluster.calls()["placement"] < 150


async def test_sessions_are_closed_when_nobody_uses_them_and_made_again(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="a") as client:
        for partition in range(3):
            await client.publish(TOPIC, b"", partition=partition)
        assert [len(broker.wires) for broker in cluster.brokers.values()] == [1, 1, 1]
        for _ in range(20):
            await asyncio.sleep(10)
            await client.publish(TOPIC, b"", partition=1)
        assert [len(broker.wires) for broker in cluster.brokers.values()] == [1, 1, 0]
        assert (await client.publish(TOPIC, b"", partition=2)).is_accepted
        assert [broker.connects for broker in cluster.brokers.values()] == [1, 1, 2]


async def test_a_session_with_a_consumer_stays(cluster: FakeCluster) -> None:
    async with cluster.client() as client, client.consumer(TOPIC, "s"):
        await asyncio.sleep(1000)
        assert [broker.connects for broker in cluster.brokers.values()] == [1, 1, 1]


async def test_sessions_are_bounded(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "SESSIONS_MAX", 1)
    async with cluster.client(brokers="a") as client:
        for partition in (1, 2, 1, 2):
            assert (await client.publish(TOPIC, b"", partition=partition)).is_accepted
            await asyncio.sleep(0.1)
            assert sum(len(cluster.brokers[name].wires) for name in "bc") == 1


@pytest.mark.parametrize("urls", ["http://a,,http://a", "http://a , http://b"])
async def test_urls_are_given_with_commas_between_them(cluster: FakeCluster, urls: str) -> None:
    async with Client(url=urls, reach=cluster.reach) as client:
        assert client.url == url_of("a")


def test_what_is_no_url_is_said_at_once() -> None:
    for wrong in ("http://a:1,b:2", "http://a:1,memory:", "http://"):
        with pytest.raises(InvalidSettings):
            sulina.connect(wrong)


async def test_a_broker_whose_url_is_of_no_use_is_passed_over(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        cluster.odd_urls = ["ftp://x", "nonsense"]
        await client.admin.placement(TOPIC)
        cluster.brokers["a"].die()
        assert (await client.admin.info()).broker_id in ("b", "c")


async def test_news_of_the_past_is_no_news(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="ab") as client:
        await client.publish(TOPIC, b"", partition=0)
        old = cluster.brokers["b"].view
        for to in ("b", "c"):
            cluster.assign(0, to)
            await asyncio.sleep(0.1)
        await client.publish(TOPIC, b"", partition=0)
        published = publishes(cluster)
        assert published["c"] == 1
        lookups = cluster.calls()["placement"]
        for broker in cluster.brokers.values():
            broker.view = old
        await asyncio.sleep(ClientOptions().topic_seconds + 1)  # then it asks about the topic again
        await client.publish(TOPIC, b"", partition=0)
        assert cluster.calls()["placement"] > lookups
        assert publishes(cluster) == published + Counter("c")
