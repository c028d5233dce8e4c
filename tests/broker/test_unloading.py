"""A partition leaves its owner: what is durable before what, what is told, and what may fail. In one process."""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sulina.broker import partition_owner as owner_module
from sulina.broker.broker import Broker
from sulina.broker.unloading import Unloading
from sulina.core.cluster import keys
from sulina.core.delivery.cursor import Cursor
from sulina.core.records.record import StoredRecord
from sulina.core.topic import Ack, DeliveryGuarantee, Policy, TopicSettings
from sulina.errors import Draining, MetadataFailed, NotOwner, NotServing
from sulina.ports import Compare, Put, TxnResult
from sulina.types import PartitionName, TopicName
from sulina.wire.frames import AckRecords, Subscribe
from sulina.wire.messages import TopicState
from tests.broker.test_sessions import connected, received
from tests.support.brokers import WAIT_SECONDS, Brokers, brokers, cluster_of, member_of, remembered_by, until

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)
ARCHIVED = TopicSettings(policy=Policy(ack=Ack.ARCHIVED))
NEVER_SECONDS = 3600.0
AT_ONCE_SECONDS = 5.0  # on a machine that has more to do
LASTING = (keys.TOPICS, keys.NAMESPACES)
TXN_FAILED = MetadataFailed(path="etcd", cause=TimeoutError("no answer"))


async def served(world: Brokers, settings: TopicSettings = ARCHIVED) -> tuple[Broker, str]:
    """A topic with its owner, and who else could have it."""
    await world.running["a"].put_topic(ORDERS, settings)
    owner = await world.owner(ORDERS)
    return owner, "b" if owner is world.running["a"] else "a"


Before = Callable[[Sequence[Put], Sequence[str]], Awaitable[None]]


def before_txn(world: Brokers, monkeypatch: pytest.MonkeyPatch, before: Before) -> None:
    """Have `before` look at each transaction of the metadata store, which it may fail."""
    txn = world.metadata.txn

    async def looked_at(
        *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = (), **more: Any
    ) -> TxnResult:
        await before(puts, deletes)
        return await txn(compares=compares, puts=puts, deletes=deletes, **more)

    monkeypatch.setattr(world.metadata, "txn", looked_at)


async def stored_cursor(world: Brokers, subscription: str) -> int | None:
    entry = await world.metadata.get(keys.cursor(ORDERS, subscription, 0))
    return None if entry is None else Cursor.load(entry.key, entry.value).offset


async def acked(owner: Broker, subscription: str, count: int, connection: Any) -> None:
    """Take ten records and ack some, without waiting until that is durable."""
    await connection.send(Subscribe(99, 1, str(ORDERS), subscription, start="earliest", name="me"))
    await connection.receive()
    await received(connection, 10)
    await connection.send(AckRecords(0, 1, 0, [(0, count)]))
    subscriptions = owner.registry.topics[ORDERS].subscriptions
    await until(lambda: subscriptions[subscription].cursors[0].offset == count)


async def test_r10_a_broker_remembers_the_last_cursor_of_a_partition_that_it_gave_away(tmp_path: Path) -> None:
    """R10: the metadata store may be lost before the next owner has read it."""
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        async with connected(owner) as connection:
            await acked(owner, "s", 3, connection)
        await owner.unload(ORDERS, to=target, force=True)
        await world.moved(ORDERS, target)
        await until(lambda: owner.registry.topics[ORDERS].subscriptions["s"].lacks(0))
        key, remembered = keys.cursor(ORDERS, "s", 0), remembered_by(owner)
        assert remembered is not None
        assert Cursor.load(key, remembered[key]).offset == 3


class Told:
    """The spans of all brokers, and the events of one, in their order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fields: dict[str, dict[str, Any]] = {}

    @contextmanager
    def span(self, name: str, attributes: dict[str, Any]) -> Iterator[None]:
        assert attributes == {"topic": str(ORDERS), "partition": 0}
        yield
        self.names.append(name)

    def hear(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        emit = broker.events.emit

        def noting(type_: str, topic: object = None, **fields: Any) -> None:
            self.names.append(type_)
            self.fields[type_] = {"topic": str(topic), **fields}
            emit(type_, topic, **fields)

        monkeypatch.setattr(broker.events, "emit", noting)


# Commit


async def no_notes(_prefix: str) -> None:
    """Write no notes, which would take cursors along."""


async def test_a_move_stores_the_cursors_that_nobody_else_would_write_u3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3: with force it goes on though a consumer holds records; with or without consumers, acks are not lost."""
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        owner.cursor_writer.delay_seconds = NEVER_SECONDS  # only who asks for it has a cursor written
        monkeypatch.setattr(owner.cursor_writer, "write_notes", no_notes)
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        async with connected(owner) as connection:
            await acked(owner, "left", 3, connection)
        async with connected(owner) as connection:
            await acked(owner, "stays", 5, connection)
            assert (await stored_cursor(world, "left"), await stored_cursor(world, "stays")) == (0, 0)
            await owner.unload(ORDERS, to=target, force=True)
            await world.moved(ORDERS, target)
        assert (await stored_cursor(world, "left"), await stored_cursor(world, "stays")) == (3, 5)
        async with connected(world.running[target]) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "stays", name="me"))
            await connection.receive()
            assert [record.offset for record in await received(connection, 5)] == [5, 6, 7, 8, 9]


async def test_a_partition_whose_cursors_cannot_be_committed_stays_and_leaves_later_u3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sulina.broker.partition_owner.UNLOAD_RETRY_SECONDS", 0.01)
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        owner.cursor_writer.delay_seconds = 0.01
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        async with connected(owner) as connection:
            await acked(owner, "s", 5, connection)
        told = Told()
        told.hear(owner, monkeypatch)

        async def refuse_cursors(puts: Sequence[Put], _: Sequence[str]) -> None:
            if told.names.count("unload_failed") < 2 and any(put.key == keys.cursor(ORDERS, "s", 0) for put in puts):
                raise TXN_FAILED

        before_txn(world, monkeypatch, refuse_cursors)
        await owner.unload(ORDERS, to=target)
        await world.moved(ORDERS, target)
        assert told.names[:2] == ["unload_failed"] * 2
        assert await stored_cursor(world, "s") == 5


async def test_a_consumer_that_comes_back_goes_on_where_another_owner_has_detached_it_u10(tmp_path: Path) -> None:
    """U10: what a broker knew of a cursor when it had the partition before counts for nothing."""
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, *(b"%d" % number for number in range(10)))
        async with connected(owner) as connection:
            await acked(owner, "s", 2, connection)
        await owner.unload(ORDERS, to=target)
        taken = await world.moved(ORDERS, target)
        async with connected(taken) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", name="me"))
            await connection.receive()
            await received(connection, 8)
            await connection.send(AckRecords(0, 1, 0, [(2, 7)]))
        await taken.unload(ORDERS, to=owner.options.broker_id)
        await world.moved(ORDERS, owner.options.broker_id)
        async with connected(owner) as connection:
            await connection.send(Subscribe(99, 1, str(ORDERS), "s", name="me"))
            await connection.receive()
            assert [record.offset for record in await received(connection, 3)] == [7, 8, 9]


# Quiesce, seal, unassign


async def test_a_draining_topic_refuses_for_a_moment_and_then_names_the_new_owner_u1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, b"0")
        quiesced, may_go_on, advance = asyncio.Event(), asyncio.Event(), cluster_of(owner).advance_unload

        async def advance_slowly(*arguments: Any, **named: Any) -> int:
            quiesced.set()
            await may_go_on.wait()
            return await advance(*arguments, **named)

        monkeypatch.setattr(cluster_of(owner), "advance_unload", advance_slowly)
        asked = asyncio.create_task(owner.unload(ORDERS, to=target))
        await asyncio.wait_for(quiesced.wait(), WAIT_SECONDS)
        assert owner.registry.topics[ORDERS].ownerships[0].state == TopicState.DRAINING
        with pytest.raises(Draining) as refused:
            await owner.publish_records(ORDERS, [StoredRecord(value=b"too late")])
        assert refused.value.retryable
        may_go_on.set()
        await asked
        await world.moved(ORDERS, target)
        with pytest.raises(NotOwner) as moved:
            await owner.publish_records(ORDERS, [StoredRecord(value=b"elsewhere")])
        assert (moved.value.retryable, moved.value.owner, moved.value.url) == (True, target, f"http://{target}")
        assert owner.registry.topics[ORDERS].ownerships[0].state == TopicState.CLOSED
        assert await world.values(ORDERS) == [b"0"]


async def test_the_seal_is_durable_before_one_transaction_changes_the_assignment_u4_u5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4, U5: also of what was not archived before; only assignment keys are touched."""
    monkeypatch.setattr(Unloading, "archive_ahead", lambda _: asyncio.sleep(0))  # all is left to the seal
    policy = Policy(ack=Ack.LOCAL, archive_bytes=1 << 30, archive_seconds=NEVER_SECONDS)
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world, TopicSettings(policy=policy))
        await world.publish(ORDERS, b"0", b"1", b"2")
        source = owner.options.broker_id
        archives = owner.archives
        assert archives is not None
        archive = archives.of(FIRST, owner.registry.topics[ORDERS].stored.topic_id)
        seen: list[tuple[bytes, int, list[str], list[str]]] = []

        async def look(puts: Sequence[Put], deletes: Sequence[str]) -> None:
            if keys.assignment(source, FIRST) in deletes:
                state = await world.metadata.peek(keys.sealed_state(FIRST))
                sealed = b"null" if state is None else state.value
                seen.append((sealed, archive.load().next_offset, [put.key for put in puts], sorted(deletes)))

        before_txn(world, monkeypatch, look)
        lasting = [entry for prefix in LASTING for entry in (await world.metadata.list(prefix)).entries]
        epoch = (await owner.partition(ORDERS, 0)).epoch
        await owner.unload(ORDERS, to=target)
        await until(lambda: bool(seen))
        [(state, archived, puts, deletes)] = seen
        assert archived == 3
        sealed = json.loads(state)
        assert sealed.pop("ts").endswith("Z")
        assert sealed == {
            "format": 1,
            "state": "sealed",
            "last_committed_offset": 2,
            "next_offset": 3,
            "version": sealed["version"],
            "epoch": epoch,
            "broker_id": source,
        }
        assert puts == [keys.unassigned(FIRST)]
        assert deletes == sorted([keys.assignment(source, FIRST), keys.unload(FIRST)])
        await world.moved(ORDERS, target)
        assert [entry for prefix in LASTING for entry in (await world.metadata.list(prefix)).entries] == lasting


# The sealed state


async def test_the_sealed_state_goes_only_after_the_new_owners_claim_is_durable_u8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, b"0", b"1")
        claimed: list[tuple[str | None, int]] = []

        async def look(_: Sequence[Put], deletes: Sequence[str]) -> None:
            if keys.sealed_state(FIRST) in deletes:
                archives = world.running[target].archives
                assert archives is not None
                view = archives.of(FIRST, owner.registry.topics[ORDERS].stored.topic_id).load()  # anybody may look
                claimed.append((view.holder, view.epoch))

        before_txn(world, monkeypatch, look)
        before = (await owner.partition(ORDERS, 0)).epoch
        await owner.unload(ORDERS, to=target)
        taken = await world.moved(ORDERS, target)
        assert await world.metadata.get(keys.sealed_state(FIRST)) is not None, "nobody has claimed it yet"
        assert claimed == []
        assert await world.publish(ORDERS, b"2") == 2
        assert await world.metadata.get(keys.sealed_state(FIRST)) is None
        epoch = (await taken.partition(ORDERS, 0)).epoch
        assert epoch > before
        assert [each for _, each in claimed] == [epoch]


async def test_a_sealed_state_that_cannot_be_removed_is_no_failure_u8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U8, U6: the topic is served, goes on where it was, and moves on; what was left is overruled by the next claim."""
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, b"0", b"1")
        with monkeypatch.context() as broken:

            async def refuse(_: Sequence[Put], deletes: Sequence[str]) -> None:
                if keys.sealed_state(FIRST) in deletes:
                    raise TXN_FAILED

            before_txn(world, broken, refuse)
            await owner.unload(ORDERS, to=target)
            taken = await world.moved(ORDERS, target)
            with capture_logs() as lines:
                assert await world.publish(ORDERS, b"2") == 2
            assert [line["partition"] for line in lines if line["event"] == "sealed_state_not_removed"] == [str(FIRST)]
            entry = await world.metadata.get(keys.sealed_state(FIRST))
            assert entry is not None
            assert json.loads(entry.value)["next_offset"] == 2
        await taken.unload(ORDERS, to=owner.options.broker_id)
        await world.moved(ORDERS, owner.options.broker_id)
        assert await world.publish(ORDERS, b"3") == 3
        assert await world.values(ORDERS) == [b"0", b"1", b"2", b"3"]
        assert await world.metadata.get(keys.sealed_state(FIRST)) is None


# What is told


PHASES = ["unload quiesce", "unload commit", "unload seal", "unload unassign", "unload cleanup"]


@pytest.mark.parametrize("delivery", list(DeliveryGuarantee))
async def test_each_phase_is_a_span_and_the_final_event_comes_last_u12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: DeliveryGuarantee
) -> None:
    told = Told()
    async with brokers(tmp_path, "a", "b", span=told.span) as world:
        owner, target = await served(world, TopicSettings(delivery=delivery))
        name = owner.options.broker_id
        is_reliable = delivery == DeliveryGuarantee.RELIABLE
        if is_reliable:
            await world.publish(ORDERS, b"0", b"1")
        told.hear(owner, monkeypatch)
        await owner.unload(ORDERS, to=target)
        await world.moved(ORDERS, target)
        await until(lambda: "topic_unloaded" in told.names)
        assert not list((tmp_path / name).glob("topic=*")), "it was told before the end"
        assert told.names == [*PHASES, "partition_released", "topic_unloaded"]
        assert told.fields["topic_unloaded"] == {
            "topic": str(ORDERS),
            "partition": 0,
            "from_broker": name,
            "last_committed_offset": 1 if is_reliable else None,
        }
        told.names.clear()
        await world.stop(target)
        assert told.names[:4] == PHASES[:4], "a broker that stops gives its partitions back the same way"


async def test_the_final_event_comes_though_the_answer_to_the_unassignment_was_lost_u12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        await world.publish(ORDERS, b"0")
        told.hear(owner, monkeypatch)
        unassign = cluster_of(owner).unassign

        async def unassign_unheard(*arguments: Any, **named: Any) -> bool:
            assert await unassign(*arguments, **named)
            raise TXN_FAILED

        monkeypatch.setattr(cluster_of(owner), "unassign", unassign_unheard)
        await owner.unload(ORDERS, to=target)
        await world.moved(ORDERS, target)
        await until(lambda: "topic_unloaded" in told.names)
        monkeypatch.setattr(cluster_of(owner), "unassign", unassign)
        assert told.fields["topic_unloaded"]["last_committed_offset"] == 0
        assert "unload_failed" not in told.names
        assert await world.publish(ORDERS, b"1") == 1


async def given_to_a_full_disk(world: Brokers, monkeypatch: pytest.MonkeyPatch) -> tuple[Broker, str]:
    """A topic at a broker that cannot serve it, because its disk takes nothing; and who else could have it."""
    monkeypatch.setattr(owner_module, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(owner_module, "UNLOAD_RETRY_SECONDS", 0.05)
    owner, target = await served(world)
    await world.publish(ORDERS, b"0")
    full = world.running[target]

    async def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(member_of(full).memory, "ensure", fail)
    monkeypatch.setattr(full.logs.opener, "open", fail)
    troubles = full.cluster_handle.troubles
    await owner.unload(ORDERS, to=target)
    await until(lambda: "No space left" in troubles.get(FIRST, ""))
    return full, owner.options.broker_id


async def test_f7_a_partition_that_a_full_disk_keeps_from_being_served_can_be_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the topic is not remembered there, so nothing was acknowledged, and nothing has to be given up."""
    async with brokers(tmp_path, "a", "b") as world:
        full, other = await given_to_a_full_disk(world, monkeypatch)
        await full.unload(ORDERS, to=other)
        await world.moved(ORDERS, other)
        assert await world.publish(ORDERS, b"1") == 1


@pytest.mark.parametrize("ack", [Ack.ARCHIVED, Ack.LOCAL])
async def test_f7_an_archived_partition_whose_log_a_full_disk_keeps_closed_can_be_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: Ack
) -> None:
    """F7: the archive has all of it. A partition of which only this disk has the newest records stays here."""
    monkeypatch.setattr(owner_module, "UNLOAD_RETRY_SECONDS", 0.05)
    told = Told()
    async with brokers(tmp_path, "a", "b") as world:
        owner, other = await served(world, TopicSettings(policy=Policy(ack=ack)))
        told.hear(owner, monkeypatch)
        await world.publish(ORDERS, b"0")
        partition, open_log = owner.registry.topics[ORDERS].partitions[0], owner.logs.opener.open

        async def fail(*_arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(owner.logs.opener, "open", fail)
        with pytest.raises(NotServing, match="No space left"):
            await partition.reopen()
        await owner.unload(ORDERS, to=other)
        if ack is Ack.LOCAL:
            await until(lambda: "unload_failed" in told.names)
            assert owner.registry.topics[ORDERS].ownerships[0].is_here
            monkeypatch.setattr(owner.logs.opener, "open", open_log)
        await world.moved(ORDERS, other)
        assert await world.publish(ORDERS, b"1") == 1


async def test_r10_a_move_that_fails_serves_nothing_that_could_not_be_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: the topic is not remembered on that disk, so nothing may be acknowledged there."""
    told = Told()
    async with brokers(tmp_path, "a", "b") as world:
        full, other = await given_to_a_full_disk(world, monkeypatch)
        told.hear(full, monkeypatch)
        unassign = cluster_of(full).unassign

        async def fail(*_arguments: Any, **_named: Any) -> bool:
            raise TXN_FAILED

        monkeypatch.setattr(cluster_of(full), "unassign", fail)
        await full.unload(ORDERS, to=other)
        await until(lambda: "unload_failed" in told.names)
        assert full.registry.topics[ORDERS].ownerships[0].state is TopicState.CLOSED
        monkeypatch.setattr(cluster_of(full), "unassign", unassign)
        await world.moved(ORDERS, other)


async def test_load_reports_do_not_wait_for_their_time_when_a_partition_moves_u12(tmp_path: Path) -> None:
    """U12, F7: the next regular report is an hour away, so only the immediate one can say it."""
    async with brokers(tmp_path, "a", "b", load_seconds=NEVER_SECONDS) as world:
        owner, target = await served(world)
        source = owner.options.broker_id

        async def partitions() -> dict[str, int]:
            reports = [await world.metadata.get(keys.load(name)) for name in (source, target)]
            found = [json.loads(entry.value) for entry in reports if entry is not None]
            return {report["broker_id"]: report["partitions"] for report in found}

        async def reported(expected: dict[str, int]) -> bool:
            return await partitions() == expected

        await until(lambda: reported({source: 1, target: 0}), AT_ONCE_SECONDS)
        await owner.unload(ORDERS, to=target)
        await until(lambda: reported({source: 0, target: 1}), AT_ONCE_SECONDS)


async def test_a_new_owner_says_at_which_offset_it_resumes_u12(tmp_path: Path) -> None:
    """U12, U6: one line for each log that is opened, with the word of the last owner where there is one."""
    async with brokers(tmp_path, "a", "b") as world:
        owner, target = await served(world)
        with capture_logs() as lines:
            await world.publish(ORDERS, b"0", b"1", b"2")
            await owner.unload(ORDERS, to=target)
            await world.moved(ORDERS, target)
            await world.publish(ORDERS, b"3")
        found = [line for line in lines if line["event"] == "log_resumed"]
        assert [(line["topic"], line["partition"]) for line in found] == [(str(ORDERS), 0)] * 2
        assert [(line["how"], line["sealed_offset"], line["resuming_from"]) for line in found] == [
            ("new", None, 0),
            ("from_archive", 2, 3),
        ]
