"""Publishes keep their order and are written once, whatever happens to brokers, connections and owners."""

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from sulina.client import Client, ClientOptions, PublishAck, Record
from sulina.core.delivery.rejects import RejectReason
from sulina.core.records.routing import partition_of
from sulina.core.topic import Ack, Policy, TopicSettings
from sulina.errors import (
    ArchiveFailed,
    Disconnected,
    Draining,
    LeaseExpired,
    LogStopped,
    NotOwner,
    NotServing,
    QueueFull,
    Recovering,
    SchemaConflict,
    SequenceSkipped,
    SulinaError,
    TopicNotFound,
    TxnMemoryFull,
)
from sulina.wire.frames import Publish
from sulina.wire.messages import TopicState
from tests.client.fake_cluster import FakeBroker, FakeCluster, Part, url_of
from tests.client.fake_node import TOPIC, origin_of, values

FULL = QueueFull(waiting_bytes=2, limit_bytes=1)
OPTIONS = ClientOptions(requests_in_flight_max=100)


def now() -> float:
    return asyncio.get_running_loop().time()


class Producers:
    """Publishes numbers to partitions, many at a time, and remembers what it was told."""

    def __init__(self, client: Client, partitions: int) -> None:
        self.client = client
        self.tasks: list[list[asyncio.Task[PublishAck]]] = [[] for _ in range(partitions)]

    def publish(self, partition: int, timeout_seconds: float | None = None) -> None:
        number = len(self.tasks[partition])
        self.tasks[partition].append(asyncio.create_task(self._publish(str(number), partition, timeout_seconds)))

    async def _publish(self, value: str, partition: int, timeout_seconds: float | None) -> PublishAck:
        ack = await self.client.publish(TOPIC, value, partition=partition, timeout_seconds=timeout_seconds)
        return ack.raise_for_status()

    async def finish(self) -> list[SulinaError]:
        """Every error that anybody was given."""
        ended = await asyncio.gather(*(task for tasks in self.tasks for task in tasks), return_exceptions=True)
        assert all(isinstance(each, SulinaError | PublishAck) for each in ended), ended
        return [each for each in ended if isinstance(each, SulinaError)]

    def violations(self, parts: Sequence[Part]) -> list[str]:
        """What the logs say against it."""
        found = []
        for part, tasks in zip(parts, self.tasks, strict=True):
            log = [int(value) for value in values(part.log)]
            acked = {n: task.result() for n, task in enumerate(tasks) if task.exception() is None}
            found += [f"{part.number}: {n} is there {log.count(n)} times" for n in acked if log.count(n) != 1]
            found += [f"{part.number}: {n} is not at {a.offset}" for n, a in acked.items() if log[a.offset or 0] != n]
            order = [n for n in log if n in acked]
            found += [f"{part.number}: {b} comes after {a}" for a, b in pairwise(order) if a > b]
            if len(set(log)) != len(log):
                found.append(f"{part.number}: something is there twice")
        return found


async def trouble(cluster: FakeCluster, rng: random.Random, seconds: float) -> None:
    """One thing after another. In the end everybody is well."""
    end = now() + seconds
    while now() < end:
        await asyncio.sleep(rng.expovariate(2.0))
        name = rng.choice(list(cluster.brokers))
        broker, part = cluster.brokers[name], rng.choice(cluster.parts)
        match rng.randrange(9):
            case 0 | 1 if part.state is TopicState.ACTIVE:
                await cluster.move(part.number, name, rng.uniform(0, 0.3))
            case 2:
                broker.cut(loses_frames=rng.random() < 0.5)
            case 3:
                broker.full_until = now() + rng.uniform(0, 1)
            case 4:
                broker.die()
                await cluster.fail_over(name)
                broker.is_down = False
            case 5:
                broker.is_hung = True
                await cluster.fail_over(name)
                await asyncio.sleep(rng.uniform(0, 3))
                broker.resume()
            case 6:
                cluster.lease_faults = 0.1
                await asyncio.sleep(0.2)
                cluster.lease_faults = 0.0
            case 7:
                broker.is_cut_off = True
                await cluster.fail_over(name)
                await asyncio.sleep(rng.uniform(0, 3))
                broker.is_cut_off = False
                cluster.tell()
                broker.release(NotOwner(topic=TOPIC, partition=0))
            case 8:
                errors: list[SulinaError] = [FULL, Draining(topic=TOPIC), NotServing(reason="it starts")]
                errors.append(NotOwner(topic=TOPIC, partition=0, owner="b", url=rng.choice([None, url_of("b")])))
                broker.refuse_next.extend(rng.choices(errors, k=rng.randrange(4)))


async def run(seed: int, *, has_runs: bool = True, timeout_seconds: float | None = None) -> tuple[list[str], int, int]:
    """What is wrong after a minute of trouble; how many were published, and how many were given up."""
    rng = random.Random(seed)
    cluster = FakeCluster(brokers=3, partitions=3, seed=seed, latency=rng.choice([0.0005, 0.005, 0.05]))
    cluster.has_runs = has_runs
    async with cluster.client(OPTIONS, brokers="ab", seed=seed) as client:
        producers = Producers(client, 3)
        troubling = asyncio.create_task(trouble(cluster, rng, 15))
        while not troubling.done():
            for _ in range(rng.randrange(12)):
                producers.publish(rng.randrange(3), timeout_seconds)
            await asyncio.sleep(rng.expovariate(10))
        await troubling
        errors = await producers.finish()
        if timeout_seconds is None:
            assert not errors, errors
        assert all(isinstance(error, Disconnected | NotServing | QueueFull) for error in errors)
        await asyncio.sleep(60)
        violations = producers.violations(cluster.parts)
        assert await unanswered_at_once(client, cluster) == OPTIONS.requests_in_flight_max, "room is missing"
        return violations, sum(map(len, producers.tasks)), len(errors)


async def unanswered_at_once(client: Client, cluster: FakeCluster) -> int:
    """How many publishes a client sends while none is answered: all of its room, if nothing else takes any."""
    for partition in range(3):
        await client.publish(TOPIC, b"", partition=partition)
    for broker in cluster.brokers.values():
        broker.is_mute = True
        broker.frames.clear()
    more = range(OPTIONS.requests_in_flight_max + 10)
    publishing = [client.publish(TOPIC, b"", partition=number % 3, timeout_seconds=1) for number in more]
    ended = await asyncio.gather(*publishing, return_exceptions=True)
    assert all(
        isinstance(each, Disconnected) or (isinstance(each, PublishAck) and not each.is_accepted) for each in ended
    )
    return sum(isinstance(frame, Publish) for broker in cluster.brokers.values() for frame in broker.frames)


@pytest.mark.parametrize("seed", range(10))
async def test_nothing_is_lost_doubled_or_out_of_order_through_anything_u13_f4_l13(seed: int) -> None:
    """U13, F4: moves, deaths, hangs, full queues, leases that run out: no error, no loss, no double, no reorder."""
    violations, published, _ = await run(seed)
    assert not violations
    assert published > 500


@pytest.mark.parametrize("seed", range(100, 104))
async def test_those_who_give_up_do_not_disturb_the_others(seed: int) -> None:
    violations, _, given_up = await run(seed, timeout_seconds=1.0)
    assert not violations
    assert given_up, "nobody gave up, so nothing was shown"


async def test_without_runs_a_full_queue_would_let_the_later_pass() -> None:
    """The protection matters: brokers that take what comes behind a refusal turn the order round."""
    for seed in range(16):
        violations, _, _ = await run(seed, has_runs=False)
        if any("comes after" in violation for violation in violations):
            return
    pytest.fail("no run has shown it")


# One thing at a time


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(brokers=3, partitions=3)


def publishes(broker: FakeBroker) -> list[Publish]:
    return [frame for frame in broker.frames if isinstance(frame, Publish)]


async def test_publishes_go_straight_to_the_owner(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        for partition in (0, 1, 2, 0, 1, 2):
            ack = await client.publish(TOPIC, b"", partition=partition)
            assert (ack.partition, ack.is_accepted) == (partition, True)
        assert [len(publishes(broker)) for broker in cluster.brokers.values()] == [2, 2, 2]
        assert cluster.calls() == {"topic": 1, "placement": 1}
        assert [broker.connects for broker in cluster.brokers.values()] == [1, 1, 1], "the home is the session with a"


async def test_a_refusal_that_names_the_owner_is_followed_at_once_u1(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"", partition=0)
        cluster.assign(0, "c")
        cluster.tell(at_once=True)
        await asyncio.sleep(1)
        began = now()
        await client.publish(TOPIC, b"", partition=0)
        assert now() - began < 0.05, "it waited for something"
        await client.publish(TOPIC, b"", partition=0)
        assert len(publishes(cluster.brokers["a"])) == 2
        assert len(publishes(cluster.brokers["c"])) == 2


async def test_a_refusal_that_names_the_wrong_owner_makes_the_client_ask_for_the_placement(
    cluster: FakeCluster,
) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"", partition=0)
        cluster.assign(0, "c")
        cluster.tell(at_once=True)
        wrong = NotOwner(topic=TOPIC, partition=0, owner="b", url=url_of("b"))
        cluster.brokers["b"].view = [*cluster.brokers["b"].view]
        cluster.brokers["a"].refuse_next.append(wrong)
        cluster.brokers["b"].view[0] = Part(0).placement()
        assert (await client.publish(TOPIC, b"", partition=0)).is_accepted
        assert len(publishes(cluster.brokers["c"])) == 1
        assert now() < 1


async def test_brokers_that_point_at_each_other_are_not_followed_for_ever(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"", partition=0)
        cluster.parts[0].owner = None
        for name, other in (("a", "b"), ("b", "a"), ("c", "a")):
            view = [part.placement() for part in cluster.parts]
            view[0] = Part(0).placement()
            at = Part(0)
            at.owner, at.state = other, TopicState.ACTIVE
            view[0] = at.placement()
            cluster.brokers[name].view = view
        publishing = asyncio.create_task(client.publish(TOPIC, b"", partition=0))
        await asyncio.sleep(10)
        assert sum(len(publishes(broker)) for broker in cluster.brokers.values()) < 100
        cluster.assign(0, "c")
        assert (await publishing).is_accepted


async def test_a_move_is_a_short_pause_and_no_error_u13(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        acked_at: list[float] = []
        await client.publish(TOPIC, b"", partition=0)
        await asyncio.sleep(1)
        moving = asyncio.create_task(cluster.move(0, "b", 0.2))
        while len(acked_at) < 50 or not moving.done():
            acked_at.append(now())
            await client.publish(TOPIC, b"", partition=0)
        await moving
        pauses = [b - a for a, b in pairwise(acked_at)]
        assert 0.4 <= max(pauses) < 0.6
        assert cluster.calls()["placement"] < 20


async def test_a_dead_owner_is_waited_for_until_others_have_its_partition_f4(cluster: FakeCluster) -> None:
    """F4, F6: it is taken soon after the failover; nobody else is disturbed; what was under way is written once."""
    cluster.lease_seconds = 10.0
    async with cluster.client(brokers="b") as client:
        producers = Producers(client, 3)
        for _ in range(20):
            producers.publish(0)
        await asyncio.sleep(0.003)
        cluster.brokers["a"].die()
        died = now()
        for _ in range(20):
            producers.publish(0)
            producers.publish(1)
        await asyncio.gather(*producers.tasks[1])
        assert now() - died < 0.1
        await cluster.fail_over("a")
        assert not await producers.finish()
        assert now() - died < 10 + 1.5
        assert not producers.violations(cluster.parts)
        assert cluster.calls()["placement"] < 60


async def test_a_home_that_dies_is_replaced_by_one_that_was_heard_of_f4(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="a") as client:
        await client.publish(TOPIC, b"", partition=1)
        assert client.url == url_of("a")
        cluster.brokers["a"].die()
        assert (await client.admin.info()).broker_id in "bc"
        assert (await client.publish(TOPIC, b"", partition=2)).is_accepted
        await cluster.fail_over("a")
        assert (await client.publish(TOPIC, b"", partition=0)).is_accepted


async def test_an_owner_that_hangs_is_left_when_others_have_its_partition_f4(cluster: FakeCluster) -> None:
    """F4: its connection stands, and nothing ever comes: only the others can say that it is owner no more."""
    async with cluster.client(brokers="ab") as client:
        producers = Producers(client, 3)
        await client.admin.topic(TOPIC)
        for _ in range(10):
            producers.publish(0)
        hung = cluster.brokers["a"]
        hung.is_hung = True
        await cluster.fail_over("a")
        moved = now()
        assert not await producers.finish()
        assert now() - moved < 8
        hung.resume()
        producers.publish(0)
        assert not await producers.finish()
        assert not producers.violations(cluster.parts)


async def test_a_home_that_has_lost_touch_is_not_believed_for_ever_f4(cluster: FakeCluster) -> None:
    """F4: it says that it owns what others have by now, and takes nothing."""
    async with cluster.client(brokers="a") as client:
        await client.publish(TOPIC, b"", partition=0)
        cluster.brokers["a"].is_cut_off = True
        publishing = asyncio.create_task(client.publish(TOPIC, b"x", partition=0))
        await cluster.fail_over("a")
        moved = now()
        assert (await publishing).is_accepted
        assert now() - moved < 3
        assert client.url != url_of("a")


async def test_a_stuck_partition_leaves_the_room_to_the_others(cluster: FakeCluster) -> None:
    async with cluster.client(ClientOptions(requests_in_flight_max=8)) as client:
        cluster.assign(0, None)
        cluster.tell(at_once=True)
        producers = Producers(client, 3)
        for _ in range(100):
            producers.publish(0)
        await asyncio.sleep(1)
        began = now()
        for _ in range(100):
            await client.publish(TOPIC, b"", partition=1)
        assert now() - began < 2
        cluster.assign(0, "b")
        assert not await producers.finish()
        assert [int(value) for value in values(cluster.parts[0].log)] == list(range(100))


async def test_what_nobody_serves_says_why_in_the_end_u1(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        await client.admin.topic(TOPIC)
        part = cluster.parts[0]
        cluster.assign(0, None)
        part.state, part.waits_for = TopicState.RECOVERING, "a"
        cluster.tell()
        await asyncio.sleep(1)
        with pytest.raises(Recovering, match="waits for broker a"):
            await client.publish(TOPIC, b"", partition=0, timeout_seconds=60)
        assert cluster.calls()["placement"] < 100
        part.state = TopicState.CLOSED
        cluster.tell(at_once=True)
        with pytest.raises(NotOwner, match="has no owner"):
            await client.publish(TOPIC, b"", partition=0, timeout_seconds=5)


@pytest.mark.parametrize(
    "error",
    [LeaseExpired(broker="a"), ArchiveFailed(path="x", cause=OSError("down")), Disconnected(url="x", reason="cut")],
    ids=lambda error: error.code,
)
@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_an_unknown_outcome_is_repeated_only_under_a_number(
    cluster: FakeCluster, error: SulinaError, is_idempotent: bool
) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"", partition=0)
        broker = cluster.brokers["a"]
        broker.refuse_next.append(error)
        publishing = asyncio.create_task(client.publish(TOPIC, b"", partition=0, idempotent=is_idempotent))
        behind = asyncio.create_task(client.publish(TOPIC, b"", partition=0))
        if is_idempotent:
            assert (await publishing).is_accepted
            assert len(publishes(broker)) == 4 or len(publishes(broker)) == 5
        else:
            with pytest.raises(type(error)):
                await publishing
        assert (await behind).is_accepted


async def test_what_was_refused_for_good_leaves_its_number_unused_and_the_others_go_on_l13(
    cluster: FakeCluster,
) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"0", partition=0)
        broker = cluster.brokers["a"]
        broker.refuse_next.append(SchemaConflict(topic=TOPIC, ours="a", current="b"))
        acks = await asyncio.gather(*(client.publish(TOPIC, b"%d" % n, partition=0) for n in range(1, 5)))
        assert [ack.is_accepted for ack in acks] == [False, True, True, True]
        assert values(cluster.parts[0].log) == ["0", "2", "3", "4"]
        assert [origin_of(frame)[1] for frame in publishes(broker)] == [0, 1, 2, 3, 4]


async def test_what_the_log_has_passed_is_sent_under_another_number_l13(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        broker = cluster.brokers["a"]
        broker.refuse_next.append(SequenceSkipped(origin_id=1, sequence=0, last=5))
        ack = await client.publish(TOPIC, b"late", partition=0)
        assert (ack.offset, values(cluster.parts[0].log)) == (0, ["late"])
        first, second = publishes(broker)
        assert origin_of(first)[0] == origin_of(second)[0]
        assert origin_of(first)[1] < origin_of(second)[1]


async def test_a_batch_that_is_tried_until_it_is_through_is_written_once_wherever_its_records_go_l13(
    cluster: FakeCluster,
) -> None:
    """Some parts were taken before their answers were lost, some were not; records without a key are in one of them."""
    async with cluster.client() as client:
        for broker in cluster.brokers.values():
            broker.is_mute = True
        producer = client.producer(TOPIC, on_failure="retry", retry_seconds=0.1, publish_timeout_seconds=1.0)
        keys = [None, *(str(n) for n in range(6))] * 3
        receipts = [producer.produce(str(n), key=key) for n, key in enumerate(keys)]
        await asyncio.sleep(2.5)
        for broker in cluster.brokers.values():
            broker.is_mute = False
        await client.publish(TOPIC, b"other", partition=0)
        await producer.stop()
        assert all(receipt.result().is_accepted for receipt in receipts)
        written = [value for part in cluster.parts for value in values(part.log)]
        assert sorted(written) == sorted([*map(str, range(len(keys))), "other"])


async def test_a_batch_that_was_only_refused_is_tried_again_under_a_new_number_l13(cluster: FakeCluster) -> None:
    """L13: the log may have passed the first one by so much that it could not say whether it was written."""
    async with cluster.client() as client:
        a = cluster.brokers["a"]
        a.refuse_next.extend([FULL] * 1000)
        producer = client.producer(TOPIC, on_failure="retry", retry_seconds=5.0, publish_timeout_seconds=1.0)
        key = next(key for key in map(str, range(100)) if partition_of(key.encode(), 3) == 0)
        receipt = producer.produce(b"batch", key=key)
        await asyncio.sleep(3.0)  # of which two in its pause
        a.refuse_next.clear()
        refused = {origin_of(frame) for frame in publishes(a)}
        for number in range(10):
            await client.publish(TOPIC, str(number), partition=0)
        await producer.stop()
        assert receipt.result().is_accepted
        assert values(cluster.parts[0].log) == [*map(str, range(10)), "batch"]
        assert origin_of(publishes(a)[-1]) not in refused


async def test_a_batch_that_waited_when_the_log_stopped_keeps_its_number_l13(
    cluster: FakeCluster,
) -> None:
    """L13: it may be on the disk, and then the log knows it by its number when it is opened again."""
    async with cluster.client() as client:
        a = cluster.brokers["a"]
        a.refuse_next.append(LogStopped(path="orders", cause=OSError(28, "No space left on device")))
        producer = client.producer(TOPIC, on_failure="retry", retry_seconds=0.01)
        key = next(key for key in map(str, range(100)) if partition_of(key.encode(), 3) == 0)
        receipt = producer.produce(b"batch", key=key)
        await producer.stop()
        assert receipt.result().is_accepted
        first, again = map(origin_of, publishes(a))
        assert first == again


async def test_a_txn_id_for_which_there_is_no_room_holds_up_no_others_l13(cluster: FakeCluster) -> None:
    """L13: alone it is tried again; before publishes that need no such room it is refused, and they go on."""
    full = TxnMemoryFull(remembered=1, limit=1, seconds=900)
    async with cluster.client() as client:
        a = cluster.brokers["a"]
        a.refuse_next.extend([full, full])
        assert (await client.publish(TOPIC, b"alone", partition=0, txn_id="t1")).is_accepted
        a.refuse_next.extend([full, full])  # the second is of the same run
        began = now()
        blocked = asyncio.create_task(client.publish(TOPIC, b"blocked", partition=0, txn_id="t2"))
        behind = asyncio.create_task(client.publish(TOPIC, b"behind", partition=0))
        assert (await behind).is_accepted
        ack = await blocked
        assert now() - began < 1.0
        assert ack.reason == RejectReason.QUEUE_FULL
        assert values(cluster.parts[0].log) == ["alone", "behind"]


async def test_a_clear_refusal_is_repeated_without_a_number_too(cluster: FakeCluster) -> None:
    cluster.settings = TopicSettings(partitions=3, policy=Policy(ack=Ack.MEMORY))
    async with cluster.client() as client:
        cluster.brokers["a"].refuse_next.extend([FULL, Draining(topic=TOPIC)])
        assert (await client.publish(TOPIC, b"once", partition=0)).is_accepted
        assert values(cluster.parts[0].log) == ["once"]
        assert {origin_of(frame) for frame in publishes(cluster.brokers["a"])} == {(-1, -1)}


async def test_a_batch_for_several_partitions_is_not_passed_by_what_comes_later(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"first", partition=0)
        messages = [Record(str(n), key=str(n)) for n in range(50)]
        many = asyncio.create_task(client.publish_batch(TOPIC, messages, split=True))
        last = [asyncio.create_task(client.publish(TOPIC, b"last", partition=n)) for n in range(3)]
        acks = await asyncio.gather(many, *last)
        assert all(ack.is_accepted for ack in acks)
        assert [values(part.log)[-1] for part in cluster.parts] == ["last"] * 3


async def test_a_broker_that_is_behind_may_not_know_the_topic_yet(cluster: FakeCluster) -> None:
    async with cluster.client(brokers="b") as client:
        cluster.brokers["a"].refuse_next.append(TopicNotFound(topic=TOPIC))
        assert (await client.publish(TOPIC, b"", partition=0)).is_accepted


async def test_a_topic_created_again_elsewhere_is_another_topic(cluster: FakeCluster) -> None:
    async with cluster.client() as client:
        await client.publish(TOPIC, b"", partition=2)
        cluster.settings = TopicSettings(partitions=3)
        ack = await client.publish(TOPIC, b"", partition=2)
        assert ack.is_accepted
        topic_ids = {frame.topic_id for frame in publishes(cluster.brokers["c"])}
        assert len(topic_ids) == 2


async def test_a_closed_client_tells_those_who_wait_in_a_lane(cluster: FakeCluster) -> None:
    client = await cluster.client()
    await client.admin.topic(TOPIC)
    cluster.assign(0, None)
    cluster.tell(at_once=True)
    producers = Producers(client, 3)
    for partition in (0, 1):
        producers.publish(partition)
    await asyncio.sleep(0.0001)
    await client.close()
    errors = await producers.finish()
    assert len(errors) == 2
    assert all("the client is closed" in str(error) for error in errors), errors
