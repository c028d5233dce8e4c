"""Brokers among others, where something fails or comes late: nothing acknowledged is lost, nothing stays unserved."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sulina.broker.broker import Broker
from sulina.core.cluster import keys
from sulina.core.cluster.entries import EpochEntry
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Ack, Policy, TopicSettings
from sulina.errors import MetadataFailed, NotServing, TopicNotFound
from sulina.storage.tiered_log import TieredLog
from sulina.types import PartitionName, TopicName
from sulina.wire.frames import Subscribe
from sulina.wire.messages import SubscriptionSettings
from tests.broker.test_sessions import connected, received
from tests.support.brokers import Brokers, brokers, cluster_of, member_of, until

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)
LOCAL = TopicSettings(policy=Policy(ack=Ack.LOCAL))
ARCHIVED = TopicSettings(policy=Policy(ack=Ack.ARCHIVED))


async def epoch_of(world: Brokers) -> EpochEntry:
    entry = await world.metadata.get(keys.epoch(FIRST))
    assert entry is not None
    return msgspec.json.decode(entry.value, type=EpochEntry)


def log_of(broker: Broker) -> TieredLog:
    log = broker.registry.topics[ORDERS].partitions[0].log_if_open
    assert isinstance(log, TieredLog)
    return log


def no_answer(*_: object, **__: object) -> Any:
    raise MetadataFailed(path="etcd", cause=TimeoutError("no answer"))


async def quiet(broker: Broker) -> None:
    await until(lambda: not broker.logs.is_reconfiguring)


async def test_of_several_changes_of_the_ack_level_the_last_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14: what is acknowledged from the disk is never said to be in the archive."""
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        answers, put = threading.Event(), world.objects.put

        def slow(*arguments: Any) -> None:
            assert answers.wait(20)
            put(*arguments)

        monkeypatch.setattr(world.objects, "put", slow)
        await a.put_topic(ORDERS, ARCHIVED)
        await until(lambda: log_of(a).is_ack_archived)
        await a.put_topic(ORDERS, LOCAL)
        await asyncio.sleep(0)
        answers.set()
        await quiet(a)
        done = await a.publish_records(ORDERS, [StoredRecord(value=b"1")])
        assert done.ack == Ack.LOCAL
        assert not (await epoch_of(world)).is_archived

        await a.put_topic(ORDERS, ARCHIVED)
        await quiet(a)
        assert (await a.publish_records(ORDERS, [StoredRecord(value=b"2")])).ack == Ack.ARCHIVED
        assert (await epoch_of(world)).is_archived


async def test_a_change_of_the_ack_level_that_fails_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, ARCHIVED)
        await world.publish(ORDERS, b"0")
        monkeypatch.setattr("sulina.broker.partition_logs.RETRY_SECONDS", 0.01)
        with monkeypatch.context() as broken:
            broken.setattr(cluster_of(a), "set_archived", no_answer)
            await a.put_topic(ORDERS, LOCAL)
            for _ in range(5):
                await asyncio.sleep(0.01)
                assert (await a.publish_records(ORDERS, [StoredRecord(value=b"x")])).ack == Ack.ARCHIVED
        await until(lambda: not log_of(a).is_ack_archived)
        assert not (await epoch_of(world)).is_archived


async def test_a_log_that_could_not_be_made_ready_is_opened_by_the_next_who_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        await log_of(a).catch_up()
        partition = a.registry.topics[ORDERS].partitions[0]
        await until(lambda: partition.is_idle)
        await partition.rest()
        await a.put_topic(ORDERS, ARCHIVED)
        with monkeypatch.context() as broken:
            broken.setattr(cluster_of(a), "set_archived", no_answer)
            with pytest.raises(MetadataFailed):
                await a.publish_records(ORDERS, [StoredRecord(value=b"1")])
        assert await world.publish(ORDERS, b"1") == 1
        assert (await epoch_of(world)).is_archived


async def test_a_partition_that_stays_after_all_is_no_longer_said_to_be_sealed_u2_u4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        owner = await world.owner(ORDERS)
        target = "b" if owner is world.running["a"] else "a"
        async with connected(owner) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", start="latest"))
            await connection.receive()
            with monkeypatch.context() as broken:
                asked = asyncio.Event()

                def unassign(*_: object, **__: object) -> None:
                    asked.set()
                    no_answer()

                broken.setattr(cluster_of(owner), "unassign", unassign)
                await owner.unload(ORDERS, to=target, force=True)
                await asked.wait()
                await until(lambda: owner.registry.topics[ORDERS].ownerships[0].is_here)
                assert await world.publish(ORDERS, b"1") == 1
                assert not (await epoch_of(world)).is_archived
                assert await world.metadata.get(keys.sealed_state(FIRST)) is None
                assert [record.value for record in await received(connection, 1)] == [b"1"]
        await world.moved(ORDERS, target)
        assert await world.values(ORDERS) == [b"0", b"1"]


async def test_a_former_owner_that_has_not_heard_of_the_new_one_takes_nothing_more_u14(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        owner = await world.owner(ORDERS)
        target = "b" if owner is world.running["a"] else "a"
        unassign = cluster_of(owner).unassign

        async def lost_answer(*arguments: Any, **named: Any) -> bool:
            await unassign(*arguments, **named)
            return bool(no_answer())

        monkeypatch.setattr(cluster_of(owner), "unassign", lost_answer)
        changed = member_of(owner).owner.changed
        late = lambda partition, assigned: changed(partition, assigned) if assigned is not None else None  # noqa: E731
        monkeypatch.setattr(member_of(owner).owner, "changed", late)  # its watch is late
        await owner.unload(ORDERS, to=target)
        await world.moved(ORDERS, target)
        for _ in range(20):
            with pytest.raises(NotServing):
                await owner.publish_records(ORDERS, [StoredRecord(value=b"lost")])
            await asyncio.sleep(0.01)
        monkeypatch.undo()
        member_of(owner).owner.changed(FIRST, None)
        assert await world.values(ORDERS) == [b"0"]


async def test_a_move_of_a_topic_that_is_being_deleted_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        owner = await world.owner(ORDERS)
        monkeypatch.setattr("sulina.broker.partition_owner.UNLOAD_RETRY_SECONDS", 0.05)
        with monkeypatch.context() as broken:
            broken.setattr(cluster_of(owner), "advance_unload", no_answer)
            await owner.unload(ORDERS, force=True)
            async with owner.registry.lock:
                await owner.registry.catalogue.mark_deleting(ORDERS, owner.registry.topics[ORDERS].stored)
            await until(lambda: ORDERS not in owner.registry.topics)
            await asyncio.sleep(0.2)
        await owner.delete_topic(ORDERS)
        assert not await world.keys(keys.UNLOADS)


async def test_a_wish_that_is_gone_is_not_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        owner = await world.owner(ORDERS)
        monkeypatch.setattr("sulina.broker.partition_owner.UNLOAD_RETRY_SECONDS", 0.05)
        advance, attempts = cluster_of(owner).advance_unload, []

        async def withdrawn(*arguments: Any, **named: Any) -> int:
            attempts.append(named)
            await world.metadata.txn(deletes=[keys.unload(FIRST)])
            return await advance(*arguments, **named)

        monkeypatch.setattr(cluster_of(owner), "advance_unload", withdrawn)
        await cluster_of(owner).request_unload(FIRST, force=True, to=None, requested_by="test")
        await until(lambda: bool(attempts) and owner.registry.topics[ORDERS].ownerships[0].is_here)
        await asyncio.sleep(0.3)
        assert len(attempts) == 1
        assert await world.publish(ORDERS, b"1") == 1


async def test_a_delete_that_is_finished_late_does_not_delete_the_topic_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_topic(ORDERS, TopicSettings(partitions=2))
        await until(lambda: ORDERS in b.registry.topics)
        delete_archives = b.logs.opener.delete

        async def slow(*arguments: Any) -> None:
            await delete_archives(*arguments)
            await until(lambda: ORDERS in a.registry.deleting)
            await a.admin.finish_delete(ORDERS)
            await a.put_topic(ORDERS, TopicSettings(partitions=2))
            for number in range(2):
                await world.publish(ORDERS, b"new", partition=number)
            await until(lambda: ORDERS in b.registry.topics)

        monkeypatch.setattr(b.logs.opener, "delete", slow)
        await b.delete_topic(ORDERS)
        for broker in (a, b):
            assert (await broker.topic(ORDERS)).topic_id == (await a.topic(ORDERS)).topic_id
        for number in range(2):
            assert await world.values(ORDERS, number) == [b"new"]


async def test_a_broker_that_has_not_heard_that_a_topic_was_created_again_takes_nothing_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        await a.put_topic(ORDERS, TopicSettings(partitions=2))
        for number in range(2):
            await world.publish(ORDERS, b"old", partition=number)
        with monkeypatch.context() as late:
            late.setattr(b.registry, "sync", lambda *_: asyncio.sleep(0))  # its watch brings nothing any more
            await a.delete_topic(ORDERS)
            old = b.registry.topics[ORDERS]
            await a.put_topic(ORDERS, TopicSettings(partitions=2))
            await until(lambda: any(ownership.is_here for ownership in old.ownerships))
            number = next(ownership.name.partition for ownership in old.ownerships if ownership.is_here)
            with pytest.raises(TopicNotFound):
                await b.publish_records(ORDERS, [StoredRecord(value=b"to nobody")], partition=number)
        await b.registry.catch_up()
        assert await world.publish(ORDERS, b"new", partition=number) == 0
        assert await world.values(ORDERS, number) == [b"new"]


async def test_a_subscription_created_again_starts_again_also_if_its_delete_was_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0", b"1")
        owner = await world.owner(ORDERS)
        await owner.put_subscription(ORDERS, "s", SubscriptionSettings(start="latest"))
        with monkeypatch.context() as broken:
            broken.setattr(owner.registry.catalogue, "delete_cursors", no_answer)
            with pytest.raises(MetadataFailed):
                await owner.delete_subscription(ORDERS, "s")
        info, is_new = await owner.put_subscription(ORDERS, "s", SubscriptionSettings(start="earliest"))
        assert is_new
        assert info.lag == 2


async def test_what_is_read_again_is_there_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, LOCAL)
        with monkeypatch.context() as broken:
            broken.setattr(world.metadata, "list", no_answer)
            with pytest.raises(MetadataFailed):
                await a.registry.catalogue.refresh(ORDERS)
        assert a.registry.catalogue.namespace("default") is not None
        await a.put_topic(TopicName("default", "more"), LOCAL)


async def test_what_was_taken_before_a_drain_is_drained(tmp_path: Path) -> None:
    """U4, L2: also what is still on its way to the disk."""
    async with brokers(tmp_path, "a") as world:
        [a] = world.running.values()
        await a.put_topic(ORDERS, LOCAL)
        await world.publish(ORDERS, b"0")
        log = log_of(a)
        await log.drain()
        taken = a.publish_records(ORDERS, [StoredRecord(value=b"1")])
        publishing = asyncio.ensure_future(taken)
        while log.is_archived:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await log.drain()).next_offset == 2
        assert (await publishing).base_offset == 1


async def test_a_broker_that_stops_is_given_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        a, b = world.running["a"], world.running["b"]
        stop = member_of(a).owner.stop

        async def while_leaving(seconds: float) -> None:
            await b.put_topic(ORDERS, TopicSettings(partitions=4))
            assert {at.broker_id for at in (await b.lookup(ORDERS)).partitions} == {"b"}
            await stop(seconds)

        monkeypatch.setattr(member_of(a).owner, "stop", while_leaving)
        await world.stop("a")
