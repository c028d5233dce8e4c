"""Finding 10, Spark: a broker is lost with its disk, what only it had is given up, and its offsets are used again.

A stream that has read those offsets is told, and reads nothing else under their numbers; or, where its options say so,
goes on where the log does. Brokers and etcd are processes; the source is called as Spark calls it.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from sulina.spark.arrow_batches import read_range
from sulina.spark.data_source import SulinaStreamReader, Task
from sulina.spark.errors import StreamDiverged
from sulina.spark.options import ReadOptions
from sulina.wire.messages import TopicState
from tests.support.cluster_world import cluster, until
from tests.support.etcd import EtcdServer, etcd

__all__ = ["etcd"]  # a fixture

TOPIC = "/default/given-up"
KEPT = [f"kept-{number}" for number in range(100)]
LOST = [f"lost-{number}" for number in range(50)]
NEW = [f"new-{number}" for number in range(150)]
At = dict[str, dict[str, int | str]]


class Stream:
    """A stream that is begun again for every batch, as after a restart of the driver."""

    def __init__(self, url: str, **more: str) -> None:
        self._given = {"url": url, "topic": TOPIC, "start": "earliest", **more}

    def _reader(self) -> SulinaStreamReader:
        return SulinaStreamReader(ReadOptions.of(self._given, is_stream=True))

    def start(self) -> At:
        return self._reader().initialOffset()

    def end(self, start: At) -> At:
        reader = self._reader()
        return reader.latestOffset(start, reader.getDefaultReadLimit())

    def values(self, start: At, end: At) -> list[str]:
        found: list[str] = []
        for task in self._reader().partitions(start, end):
            assert isinstance(task, Task)
            for one in task.ranges:
                for rows in read_range(task.source.open(one), one, ["value"], fail_on_data_loss=True):
                    found += [value.decode() for value in rows.column("value").to_pylist()]
        return found


@pytest.mark.timeout(120)
@pytest.mark.asyncio(loop_scope="session")
async def test_s1_a_stream_neither_skips_nor_mixes_records_after_some_were_given_up(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    in_thread = asyncio.to_thread
    async with cluster(tmp_path, etcd, "a", "b") as world, world.client() as client:
        await world.create_topic(TOPIC, ack="local", archive_bytes=1 << 30, archive_seconds=3600)
        await client.publish_batch(TOPIC, KEPT)
        await world.move(TOPIC, world.other(await world.owner_of(TOPIC)))  # which archives them
        urls = ",".join(broker.url for broker in world.brokers.values())
        stream, lenient = Stream(urls), Stream(urls, failOnDataLoss="false")
        start = await in_thread(stream.start)
        moved = await in_thread(stream.end, start)
        assert await in_thread(stream.values, start, moved) == KEPT
        await client.publish_batch(TOPIC, LOST)
        before = await in_thread(stream.end, moved)
        assert await in_thread(stream.values, moved, before) == LOST

        owner = await world.owner_of(TOPIC)
        survivor = world.other(owner)
        await world.brokers[owner].kill()
        shutil.rmtree(world.brokers[owner].data)

        async def is_recovering() -> bool:
            placed = await world.partition(TOPIC, via=survivor)
            return placed is not None and placed.state == TopicState.RECOVERING

        await until("the partition waits for its broker", is_recovering)
        await world.unload(TOPIC, to=survivor, force=True, via=survivor)
        await world.wait_served(TOPIC, by=survivor)
        assert (await client.publish_batch(TOPIC, NEW)).offset == len(KEPT)

        with pytest.raises(StreamDiverged, match=r"\[100, 150\) .* the log goes on at 100 .* failOnDataLoss=false"):
            await in_thread(stream.end, before)
        with pytest.raises(StreamDiverged):
            await in_thread(stream.values, moved, before)  # a batch that was planned, and is replayed
        end = await in_thread(lenient.end, before)
        assert await in_thread(lenient.values, before, end) == NEW
        assert await in_thread(stream.end, end) == end
        scanned = await in_thread(stream.values, start, end)
        assert scanned == KEPT + NEW
