"""Epochs are counted for each topic id: they start low, rise from where they are, and are never another topic's."""

from pathlib import Path

import msgspec

from sulina.core.cluster import keys
from sulina.core.cluster.entries import FIRST_EPOCH, EpochEntry
from sulina.core.topic import Ack, Policy, TopicSettings
from sulina.ports import Put
from sulina.types import PartitionName, TopicName
from tests.support.brokers import Brokers, brokers, until

TOPIC = TopicName("default", "orders")
PARTITION = PartitionName(TOPIC, 0)


async def epoch_of(world: Brokers) -> int:
    entry = await world.metadata.get(keys.epoch(PARTITION))
    assert entry is not None
    return msgspec.json.decode(entry.value, type=EpochEntry).epoch


async def test_u6_a_topic_made_again_counts_from_the_start_and_has_nothing_of_the_former(tmp_path: Path) -> None:
    """However busy the store is; directory and archive are another's, also at the broker that had the former."""
    async with brokers(tmp_path, "a", "b") as world:
        for _ in range(50):
            await world.metadata.txn(puts=[Put("/busy", b"")])
        for life in range(3):
            owner = world.running["a"]
            await owner.put_topic(TOPIC, TopicSettings(policy=Policy(ack=Ack.ARCHIVED)))
            assert await world.publish(TOPIC, b"%d-0" % life, b"%d-1" % life) == 0
            assert await epoch_of(world) == FIRST_EPOCH
            first = await world.owner(TOPIC)
            await first.unload(TOPIC, force=True, to="b" if first is world.running["a"] else "a", partition=None)
            ownership = first.registry.topics[TOPIC].ownerships[0]
            await until(lambda ownership=ownership: not ownership.is_here)  # type: ignore[misc]
            assert await world.publish(TOPIC, b"%d-2" % life) == 2
            assert await epoch_of(world) == FIRST_EPOCH + 1
            assert await world.values(TOPIC) == [b"%d-%d" % (life, number) for number in range(3)]
            await owner.delete_topic(TOPIC, force=True)
            await until(lambda: all(TOPIC not in broker.registry.topics for broker in world.running.values()))


async def test_u6_a_partition_whose_epoch_is_high_already_goes_on_from_there(tmp_path: Path) -> None:
    """As those of clusters from before, whose first epoch was the store's revision."""
    async with brokers(tmp_path, "a", "b") as world:
        await world.running["a"].put_topic(TOPIC, TopicSettings(policy=Policy(ack=Ack.ARCHIVED)))
        await world.publish(TOPIC, b"0")
        entry = await world.metadata.get(keys.epoch(PARTITION))
        assert entry is not None
        high = msgspec.structs.replace(msgspec.json.decode(entry.value, type=EpochEntry), epoch=1_000_000_000)
        await world.metadata.txn(puts=[Put(entry.key, msgspec.json.encode(high))])
        owner = await world.owner(TOPIC)
        name = next(name for name, broker in world.running.items() if broker is owner)
        await world.stop(name)
        assert await world.publish(TOPIC, b"1") == 1
        assert await epoch_of(world) == 1_000_000_001
        assert await world.values(TOPIC) == [b"0", b"1"]
