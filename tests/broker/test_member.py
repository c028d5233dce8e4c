"""Brokers among others: who serves what, how it moves, and what they agree on. In one process, over real logs."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sulina.broker.cluster.load_manager import LoadManager
from sulina.core.cluster import keys
from sulina.core.cluster.entries import FIRST_EPOCH, EpochEntry, Sealed
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, Schema, SchemaKind, TopicSettings
from sulina.errors import (
    BrokerNotFound,
    InvalidRecord,
    InvalidSettings,
    LeaseExpired,
    LogIncomplete,
    NamespaceNotEmpty,
    NotOwner,
    NotServing,
    SchemaConflict,
    SubscriptionBusy,
    TopicNotFound,
)
from sulina.ports import Put
from sulina.storage.objects import open_objects
from sulina.storage.tiered_log import TieredLog
from sulina.types import PartitionName, TopicName
from sulina.wire.frames import AckRecords, Detached, Subscribe
from sulina.wire.messages import SubscriptionSettings, TopicState
from tests.broker.test_sessions import connected, received
from tests.support.brokers import WAIT_SECONDS, Brokers, brokers, until

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)
ARCHIVED = TopicSettings(policy=Policy(ack=Ack.ARCHIVED))
JSON = Schema(kind=SchemaKind.JSON, definition={"type": "object"})


def other(world: Brokers, than: str) -> str:
    return next(name for name in sorted(world.running) if name != than)


async def test_a_topic_made_at_one_broker_is_known_at_all_and_served_by_one(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b", "c") as world:
        await world.running["b"].put_topic(ORDERS, TopicSettings(partitions=6))
        for broker in world.running.values():
            placement = await broker.lookup(ORDERS)
            assert {at.state for at in placement.partitions} == {TopicState.ACTIVE}
            counts = [sum(at.broker_id == name for at in placement.partitions) for name in "abc"]
            assert counts == [2, 2, 2]
            assert placement.brokers == ["http://a", "http://b", "http://c"]


async def test_a_broker_that_does_not_own_a_partition_says_who_does_u1(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, ARCHIVED)
        owner = (await world.owner(ORDERS)).options.broker_id
        asked = world.running[other(world, owner)]
        with pytest.raises(NotOwner) as refused:
            await asked.publish_records(ORDERS, [StoredRecord(value=b"x")])
        assert (refused.value.owner, refused.value.url) == (owner, f"http://{owner}")
        with pytest.raises(NotOwner):
            await asked.fetch(ORDERS, 0, 0)
        with pytest.raises(NotOwner):
            await asked.put_subscription(ORDERS, "s", SubscriptionSettings())


@pytest.mark.parametrize("ack", [Ack.LOCAL, Ack.ARCHIVED])
async def test_a_log_goes_on_at_its_next_offset_wherever_it_moves_u4_u5_u6_u8(tmp_path: Path, ack: Ack) -> None:
    async with brokers(tmp_path, "a", "b", "c") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings(policy=Policy(ack=ack)))
        owner = (await world.owner(ORDERS)).options.broker_id
        untouched = await world.keys("/topics/") + await world.keys("/namespaces/")
        expected: list[bytes | None] = []
        epochs = []
        route = [other(world, owner), owner, *"abcabc"]
        for number, target in enumerate(route):
            assert await world.publish(ORDERS, b"%d" % number) == len(expected)
            expected.append(b"%d" % number)
            current = (await world.owner(ORDERS)).options.broker_id
            await world.running["a"].unload(ORDERS, to=target)
            served = await world.moved(ORDERS, target)
            assert await world.values(ORDERS) == expected
            epochs.append((await served.partition(ORDERS, 0)).epoch)
            if current != target:
                await until(partial(is_gone, tmp_path / current))  # what was moved goes from the old disk
        assert epochs == sorted(epochs)
        assert await world.metadata.get(keys.sealed_state(FIRST)) is None, "the seal outlived the claim"
        fixed = keys.schema_fixed(ORDERS)
        assert await world.keys("/topics/") + await world.keys("/namespaces/") == sorted(
            {*untouched, fixed}, key=_order
        )
        end = (await served.partition(ORDERS, 0)).version + 1
        assert [commit.version for commit in await served.commits(ORDERS, 0, 0, end)] == list(range(end))


def is_gone(data: Path) -> bool:
    return not list(data.glob("topic=*"))


def _order(key: str) -> tuple[bool, str]:
    return key.startswith("/namespaces/"), key


async def test_an_empty_topic_that_moves_starts_at_0_u9(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, ARCHIVED)
        for target in "abab":
            await world.running["a"].unload(ORDERS, to=target)
            await world.moved(ORDERS, target)
        assert await world.publish(ORDERS, b"first") == 0


async def test_a_move_asked_for_before_there_is_an_owner_is_made_u2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a broker that has not heard yet who the owner is: a wish is never dropped without a word."""
    may_assign, assign = asyncio.Event(), LoadManager.assign

    async def assign_later(manager: LoadManager) -> None:
        await may_assign.wait()
        await assign(manager)

    async with brokers(tmp_path, "a", "b") as world:
        monkeypatch.setattr(LoadManager, "assign", assign_later)
        with monkeypatch.context() as patience:
            patience.setattr("sulina.broker.cluster_handle.PLACED_SECONDS", 0.01)
            await world.running["a"].put_topic(ORDERS, ARCHIVED)
        wishes = [asyncio.create_task(world.running["a"].unload(ORDERS, to=target)) for target in "ab"]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(wish.done() for wish in wishes)
        may_assign.set()
        asked = [found for wish in wishes for found in await wish]
        assert len(asked) == 1  # it is at one of them already
        await world.moved(ORDERS, str(asked[0].to_broker))


async def test_a_move_of_what_nobody_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def assign_never(_: LoadManager) -> None:
        return

    monkeypatch.setattr("sulina.broker.cluster_handle.PLACED_SECONDS", 0.05)
    async with brokers(tmp_path, "a", "b") as world:
        monkeypatch.setattr(LoadManager, "assign", assign_never)
        await world.running["a"].put_topic(ORDERS, ARCHIVED)
        with pytest.raises(NotServing, match="has no owner yet"):
            await world.running["a"].unload(ORDERS, to="b")


async def test_a_txn_id_is_known_after_a_move_l13(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        first = await owner.publish_records(ORDERS, [StoredRecord(value=b"x")], txn_id="once")
        target = other(world, owner.options.broker_id)
        await owner.unload(ORDERS, to=target)
        again = await (await world.moved(ORDERS, target)).publish_records(
            ORDERS, [StoredRecord(value=b"x")], txn_id="once"
        )
        assert (again.base_offset, again.version) == (first.base_offset, first.version)
        assert await world.values(ORDERS) == [b"x"]


async def test_a_damaged_seal_changes_nothing_and_one_that_promises_more_keeps_the_topic_closed_u7(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, ARCHIVED)
        await world.publish(ORDERS, b"0", b"1")
        owner = await world.owner(ORDERS)
        epoch = (await owner.partition(ORDERS, 0)).epoch
        target = other(world, owner.options.broker_id)
        await owner.unload(ORDERS, to=target)
        await world.moved(ORDERS, target)
        await world.metadata.txn(puts=[Put(keys.sealed_state(FIRST), b"{torn")])
        assert await world.publish(ORDERS, b"2") == 2

        target = owner.options.broker_id
        await owner.unload(ORDERS, to=target)
        back = await world.moved(ORDERS, target)
        lie = Sealed(last_committed_offset=99, next_offset=100, version=50, epoch=epoch, broker_id="x", ts="now")
        await world.metadata.txn(puts=[Put(keys.sealed_state(FIRST), msgspec.json.encode(lie))])
        with pytest.raises(LogIncomplete, match="100"):
            await back.publish_records(ORDERS, [StoredRecord(value=b"3")])


async def test_a_move_with_consumers_is_refused_unless_forced_u3(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        target = other(world, owner.options.broker_id)
        async with connected(owner) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", start="earliest"))
            await connection.receive()
            for asked in world.running.values():
                with pytest.raises(SubscriptionBusy):
                    await asked.unload(ORDERS, to=target)
            assert await world.publish(ORDERS, b"0") == 0
            assert not await world.keys(keys.UNLOADS)
            await received(connection, 1)
            await owner.unload(ORDERS, to=target, force=True)
            gone = await asyncio.wait_for(connection.receive(), 20)
            assert isinstance(gone, Detached)
            assert gone.error().retryable
        await world.moved(ORDERS, target)


async def test_consumers_resume_at_their_cursor_u10(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        owner = await world.owner(ORDERS)
        target = other(world, owner.options.broker_id)
        async with connected(owner) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", start="earliest", name="me"))
            await connection.receive()
            await received(connection, 10)
            await connection.send(AckRecords(0, 1, 0, [(0, 5)]))
            await owner.unload(ORDERS, to=target, force=True)
            await world.moved(ORDERS, target)
        assert await world.publish(ORDERS, b"10", b"11") == 10
        async with connected(world.running[target]) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", name="me"))
            await connection.receive()
            resumed = await received(connection, 7)
        assert [record.value for record in resumed] == [b"%d" % number for number in range(5, 12)]


async def test_a_cursor_of_an_old_owner_does_not_overrule_the_new_ones(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        owner = await world.owner(ORDERS)
        await owner.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        stale = owner.registry.topics[ORDERS].subscriptions["s"]
        fences, old = stale.fences(0), stale.cursors[0]
        target = other(world, owner.options.broker_id)
        await owner.unload(ORDERS, to=target)
        served = await world.moved(ORDERS, target)
        await served.seek(ORDERS, "s", Position.parse("offset:7"))
        with pytest.raises(NotServing):
            await owner.cursor_writer.durable(keys.cursor(ORDERS, "s", 0), old.stored, fences)
        assert (await served.subscription(ORDERS, "s")).cursors[0].offset == 7


async def test_a_subscription_created_again_starts_again_also_where_an_old_cursor_was_left(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings(partitions=4))
        for partition in range(4):
            await world.publish(ORDERS, b"x", b"y", partition=partition)
        a, b = world.running["a"], world.running["b"]

        async def cursors_made() -> bool:
            return len(await world.keys("/topics/default/orders/subscriptions/")) == 5

        await a.put_subscription(ORDERS, "s", SubscriptionSettings(start="latest"))
        await until(cursors_made)
        infos = [await broker.subscription(ORDERS, "s") for broker in (a, b)]
        assert sorted(cursor.partition for info in infos for cursor in info.cursors) == [0, 1, 2, 3]
        assert sum(info.lag for info in infos) == 0
        await b.delete_subscription(ORDERS, "s")
        await a.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        await until(cursors_made)
        assert sum([(await broker.subscription(ORDERS, "s")).lag for broker in (a, b)]) == 8


async def test_a_schema_is_fixed_by_the_first_record_at_any_broker_u11(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_topic(ORDERS, TopicSettings())
        await b.put_topic(ORDERS, TopicSettings(value_schema=JSON))
        await (await world.owner(ORDERS)).publish_records(
            ORDERS, [StoredRecord(value=b"{}")], schema_id=JSON.fingerprint
        )
        for broker in (a, b):
            with pytest.raises(SchemaConflict):
                await broker.put_topic(ORDERS, TopicSettings())
        owner = await world.owner(ORDERS)
        target = other(world, owner.options.broker_id)
        await owner.unload(ORDERS, to=target)
        moved = await world.moved(ORDERS, target)
        with pytest.raises(SchemaConflict):
            await moved.publish_records(ORDERS, [StoredRecord(value=b"x")], schema_id=Schema().fingerprint)
        with pytest.raises(InvalidRecord):
            await moved.publish_records(ORDERS, [StoredRecord(value=b"x")])


async def test_racing_brokers_agree_on_what_exists(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b", "c") as world:
        everybody = list(world.running.values())
        made = await asyncio.gather(*(broker.put_topic(ORDERS, TopicSettings(partitions=2)) for broker in everybody))
        assert sorted(is_new for _, is_new in made) == [False, False, True]
        assert len({info.topic_id for info, _ in made}) == 1
        await asyncio.gather(
            *(broker.put_namespace("shop", Policy(retention_seconds=60.0 + n)) for n, broker in enumerate(everybody))
        )
        newest = Policy(ack_timeout_seconds=7)
        await everybody[0].put_topic(ORDERS, TopicSettings(partitions=2, policy=newest))
        await until(lambda: all(broker.registry.topics[ORDERS].own_policy == newest for broker in everybody))
        await asyncio.gather(*(broker.delete_topic(ORDERS) for broker in everybody), return_exceptions=True)
        await until(lambda: not any(ORDERS in broker.registry.topics for broker in everybody))


async def test_a_deleted_topic_leaves_nothing_and_its_name_starts_again(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_namespace("shop", Policy())
        carts = TopicName("shop", "carts")
        epochs = []
        for value in (b"old", b"new"):
            await a.put_topic(carts, TopicSettings(partitions=2, policy=Policy(ack=Ack.ARCHIVED)))
            with pytest.raises(NamespaceNotEmpty):
                await b.delete_namespace("shop")
            assert await world.publish(carts, value, partition=1) == 0
            assert await world.values(carts, 1) == [value]
            entry = await world.metadata.get(keys.epoch(PartitionName(carts, 1)))
            assert entry is not None
            epochs.append(msgspec.json.decode(entry.value, type=EpochEntry).epoch)
            await b.delete_topic(carts)
            with pytest.raises(TopicNotFound):
                await b.topic(carts)
            await until(lambda: carts not in a.registry.topics and not list(tmp_path.glob("?/topic=shop*")))
            for prefix in ("/topics/shop", "/cluster/epochs/shop", "/cluster/unassigned/shop", "/storage/topics/shop"):
                assert await world.keys(prefix) == []
            assert not [path for path in (tmp_path / "objects").glob("topic=*/**/*") if path.is_file()]
        assert epochs == [FIRST_EPOCH, FIRST_EPOCH], "counted for each of the two topics"
        await b.delete_namespace("shop")


async def test_a_broker_that_stops_gives_everything_away_in_good_order(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings(partitions=4))
        for partition in range(4):
            await world.publish(ORDERS, b"%d" % partition, partition=partition)
        await world.stop("a")
        for partition in range(4):
            await world.moved(ORDERS, "b", partition)
            assert await world.values(ORDERS, partition) == [b"%d" % partition]
        assert (await world.running["b"].cluster()).recovering == 0


async def test_without_a_lease_nothing_is_acknowledged_u14(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, ARCHIVED)
        await world.publish(ORDERS, b"0")
        publishing = await a.accept(str(ORDERS), PublishRequest(_batch(b"1")))
        monkeypatch.setattr(a.cluster_handle, "may_ack", lambda: False)
        with pytest.raises(LeaseExpired):
            await publishing.wait()
        with pytest.raises(LeaseExpired):
            await a.publish_records(ORDERS, [StoredRecord(value=b"2")])
        monkeypatch.undo()
        assert await world.publish(ORDERS, b"3") == 2  # what was written without an ack stays
        assert await world.values(ORDERS) == [b"0", b"1", b"3"]


def _batch(value: bytes) -> bytes:
    return bytes(encode([StoredRecord(value=value, timestamp_ms=1)]))


async def test_readers_of_an_archived_topic_see_only_what_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, ARCHIVED)
        await world.publish(ORDERS, b"0")

        def fails(*_: object) -> None:
            raise OSError("the store is away")

        monkeypatch.setattr(world.objects, "put", fails)
        publishing = await a.accept(str(ORDERS), PublishRequest(_batch(b"1")))
        log = a.registry.topics[ORDERS].partitions[0].log_if_open
        assert isinstance(log, TieredLog)
        await until(lambda: log.end_offset == 2)
        assert await world.values(ORDERS) == [b"0"]
        assert (await a.partition(ORDERS, 0)).end_offset == 1
        monkeypatch.undo()
        await publishing.wait()
        assert await world.values(ORDERS) == [b"0", b"1"]


async def test_topics_that_keep_nothing_move_too_f4(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings(delivery=DeliveryGuarantee.BEST_EFFORT))
        owner = await world.owner(ORDERS)
        target = other(world, owner.options.broker_id)
        async with connected(owner) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s"))
            await connection.receive()
            await owner.unload(ORDERS, to=target, force=True)
            assert isinstance(await asyncio.wait_for(connection.receive(), 20), Detached)
        moved = await world.moved(ORDERS, target)
        async with connected(moved) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s"))
            await connection.receive()
            await moved.publish_records(ORDERS, [StoredRecord(value=b"now")])
            assert [record.value for record in await received(connection, 1)] == [b"now"]


async def test_a_new_owner_fetches_what_its_cache_lacks_f3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: policy, schema and delivery, straight from the metadata store, once it has waited in vain."""
    monkeypatch.setattr("sulina.broker.partition_owner.TOPIC_SECONDS", 0.05)
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        monkeypatch.setattr(
            b.registry.catalogue, "apply", lambda _: (set(), set())
        )  # its watch brings nothing any more
        settings = TopicSettings(partitions=2, policy=Policy(ack=Ack.ARCHIVED), value_schema=JSON)
        await a.put_topic(ORDERS, settings)
        troubles = b.cluster_handle.troubles
        await until(lambda: ORDERS in b.registry.topics or bool(troubles))
        assert troubles == {}
        assert {await world.owner(ORDERS, number) for number in range(2)} == {a, b}
        assert (await b.topic(ORDERS)).settings == settings
        assert (await b.topic(ORDERS)).settings.delivery == DeliveryGuarantee.RELIABLE


async def test_a_new_owner_waits_briefly_for_what_its_watch_brings_f3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: what comes within the wait is not fetched."""
    monkeypatch.setattr("sulina.broker.partition_owner.TOPIC_SECONDS", 60.0)  # however slow the machine
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        sync, wait = b.registry.sync, b.registry.topics.when_known
        may_hear, asked, fetched = asyncio.Event(), asyncio.Event(), []

        async def sync_late(*arguments: Any) -> None:
            await may_hear.wait()
            await sync(*arguments)

        async def asked_for(*arguments: Any) -> Any:
            asked.set()
            return await wait(*arguments)

        async def fetch(name: TopicName) -> None:
            fetched.append(name)

        monkeypatch.setattr(b.registry, "sync", sync_late)
        monkeypatch.setattr(b.registry.topics, "when_known", asked_for)
        monkeypatch.setattr(b.registry, "fetch", fetch)
        await a.put_topic(ORDERS, TopicSettings(partitions=2))
        await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
        assert ORDERS not in b.registry.topics
        may_hear.set()
        assert {await world.owner(ORDERS, number) for number in range(2)} == {a, b}
        assert fetched == []


async def test_operators_are_told_what_is_wrong_f5(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a = world.running["a"]
        await a.put_topic(ORDERS, TopicSettings())
        with pytest.raises(BrokerNotFound, match="a, b"):
            await a.unload(ORDERS, to="nobody")
        with pytest.raises(BrokerNotFound):
            await a.drain_broker("nobody")
        with pytest.raises(TopicNotFound):
            await a.unload(TopicName("default", "nothing"))


async def test_a_drained_broker_has_nothing_and_gets_nothing_until_it_is_active_again_f7(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a = world.running["a"]
        await a.put_topic(ORDERS, TopicSettings(partitions=8))
        for partition in range(8):
            await world.publish(ORDERS, b"%d" % partition, partition=partition)
        await a.drain_broker("b")
        for partition in range(8):
            await world.moved(ORDERS, "a", partition)
        more = TopicName("default", "more")
        await a.put_topic(more, TopicSettings(partitions=4))
        assert {at.broker_id for at in (await a.lookup(more)).partitions} == {"a"}
        await a.activate_broker("b")
        await a.rebalance()

        async def is_even() -> bool:
            return {info.partitions for info in (await a.cluster()).brokers} == {6}

        await until(is_even)
        for partition in range(8):
            assert await world.values(ORDERS, partition) == [b"%d" % partition]


async def test_a_node_that_is_alone_may_archive_too(tmp_path: Path) -> None:
    async with brokers(tmp_path) as world:
        alone = await world.alone("a")
        await alone.put_topic(ORDERS, ARCHIVED)
        assert (await alone.publish_records(ORDERS, [StoredRecord(value=b"0")])).ack == Ack.ARCHIVED
        assert (await alone.lookup(ORDERS)).partitions[0].broker_id == "a"
        with pytest.raises(InvalidSettings, match="not part of a cluster"):
            await alone.unload(ORDERS)
        await world.stop("a")
        again = await world.alone("a")
        await again.publish_records(ORDERS, [StoredRecord(value=b"1")])
        assert await world.values(ORDERS) == [b"0", b"1"]
        await again.delete_topic(ORDERS)
        assert not [path for path in (tmp_path / "objects").glob("topic=*/**/*") if path.is_file()]


async def test_what_is_archived_may_go_from_disk_and_is_read_all_the_same(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        policy = Policy(ack=Ack.ARCHIVED, segment_bytes=1 << 16, batch_bytes_max=1 << 15, local_retention_bytes=0)
        await a.put_topic(ORDERS, TopicSettings(policy=policy))
        expected = [b"%04d" % number + b"x" * 20_000 for number in range(12)]
        for value in expected:
            await world.publish(ORDERS, value)
        await a.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        assert await a.retain() > 0
        info = await a.partition(ORDERS, 0)
        assert (info.start_offset, info.end_offset) == (0, 12)
        assert all(segment.start_offset > 0 for segment in info.segments), "nothing went from disk"
        assert await world.values(ORDERS) == expected
        async with connected(a) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s"))
            await connection.receive()
            assert [record.value for record in await received(connection, 12)] == expected
        shorter = msgspec.structs.replace(policy, retention_bytes=100_000)
        await a.put_topic(ORDERS, TopicSettings(policy=shorter))
        await a.retain()
        assert (await a.partition(ORDERS, 0)).start_offset > 0, "retention of the topic counts for the archive"


async def test_a_policy_that_asks_for_more_holds_from_then_on(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, TopicSettings())
        await world.publish(ORDERS, b"0")
        owner = await world.owner(ORDERS)

        async def is_archived() -> bool:
            entry = await world.metadata.get(keys.epoch(FIRST))
            return entry is not None and msgspec.json.decode(entry.value, type=EpochEntry).is_archived

        assert not await is_archived(), "what only one disk has was said to be safe"
        await owner.put_topic(ORDERS, ARCHIVED)
        await until(is_archived)
        assert (await owner.publish_records(ORDERS, [StoredRecord(value=b"1")])).ack == Ack.ARCHIVED
        await owner.put_topic(ORDERS, TopicSettings())

        async def is_local() -> bool:
            return (await owner.publish_records(ORDERS, [StoredRecord(value=b"x")])).ack == Ack.LOCAL

        await until(is_local)
        assert not await is_archived(), "a local ack was given before the cluster knew"


async def test_a_broker_with_another_object_store_does_not_join(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        world.objects = open_objects(f"file://{tmp_path}/elsewhere")
        with pytest.raises(InvalidSettings, match="elsewhere is not the object store of this cluster"):
            await world.start("b")
        world.objects = open_objects(f"file://{tmp_path}/objects")
        await world.start("c")
