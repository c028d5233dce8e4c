"""What a broker says of itself: what is not as it should be there, for as long as it is not."""

from pathlib import Path

import msgspec
import pytest

from sulina.broker.troubles import SHOWN_MAX, first_of_each_kind, late_consumers, partition_troubles, trouble_of
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current
from sulina.core.delivery.members import Member
from sulina.core.topic import Ack, Policy, TopicSettings
from sulina.errors import CorruptLog, EpochTaken, LogIncomplete
from sulina.ports import Put
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import Trouble
from tests.support.brokers import brokers

ORDERS = TopicName.parse("/default/orders")
FIRST = PartitionName(ORDERS, 0)


async def test_r11_a_log_that_cannot_be_opened_is_told_until_it_is(tmp_path: Path) -> None:
    async with brokers(tmp_path, "a") as world:
        broker = world.running["a"]
        assert (await broker.inspect()).troubles == []
        info = (await broker.put_topic(ORDERS, TopicSettings(policy=Policy(ack=Ack.ARCHIVED))))[0]
        report = Current(archived_offset=30, end_offset=30, epoch=2, at_ms=1, topic_id=info.topic_id)
        await world.metadata.txn(puts=[Put(keys.archive_current(FIRST), msgspec.json.encode(report))])
        with pytest.raises(LogIncomplete):
            await world.publish(ORDERS, b"never")
        told = await broker.inspect()
        (trouble,) = told.troubles
        assert (trouble.kind, trouble.topic, trouble.partition) == ("log_incomplete", "/default/orders", 0)
        assert "records [0, 30) are missing" in trouble.what
        assert told.trouble_counts == {"log_incomplete": 1}
        await world.metadata.txn(deletes=[keys.archive_current(FIRST)])
        await world.publish(ORDERS, b"at last")
        assert (await broker.inspect()).troubles == []


def test_r11_a_consumer_that_lets_its_time_pass_is_told() -> None:
    good, bad = Member("good"), Member("bad", late_count=3)
    (trouble,) = late_consumers("/default/orders", "s", [good, bad])
    assert trouble.what == "consumer bad of subscription s has let its time to ack pass 3 times"


def test_a_partition_is_told_once_and_no_file_of_the_node_is_named() -> None:
    damaged = trouble_of(FIRST, CorruptLog(path="/secret/place", reason="gone"))
    assert damaged.kind == "corrupt_log"
    assert "/secret" not in damaged.what
    taken = trouble_of(FIRST, EpochTaken(epoch=5, by="b"))
    assert (taken.kind, taken.what.startswith("epoch 5 was claimed by broker b")) == ("epoch_taken", True)
    assert trouble_of(FIRST, OSError("/secret")).kind == "not_served"
    assert list(partition_troubles({FIRST: taken}, {}, {FIRST: "it is tried again"})) == [taken]
    assert list(partition_troubles({FIRST: damaged}, {FIRST: "no room"}, {})) == [damaged], "why it did not open last"
    (stopped,) = partition_troubles({}, {FIRST: "no room"}, {})
    assert (stopped.kind, stopped.what) == ("log_stopped", "no room")
    (full,) = partition_troubles({}, {FIRST: "no room"}, {}, full={FIRST})
    assert full.kind == "disk_full"
    (waits,) = partition_troubles({}, {}, {FIRST: "no topic"})
    assert (waits.kind, waits.what) == ("not_served", "no topic")


def test_an_answer_has_room_for_the_first_of_each_kind() -> None:
    many = [Trouble(kind="a", what=str(number)) for number in range(SHOWN_MAX + 5)]
    assert first_of_each_kind([*many, Trouble(kind="b", what="one")]) == [
        *many[:SHOWN_MAX],
        Trouble(kind="b", what="one"),
    ]
