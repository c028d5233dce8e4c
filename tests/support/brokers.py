"""Several brokers in one process, over one metadata store in memory and one object store: quick, easy to look into."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from sulina.broker.archives import Archives
from sulina.broker.broker import Broker
from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster_member import ClusterMember, entries_to_remember
from sulina.broker.options import BrokerOptions, ClusterOptions, Span, no_span
from sulina.core.cluster.entries import Registration
from sulina.core.log.position import Position
from sulina.core.log.publish_request import PublishRequest
from sulina.core.records.record import StoredRecord, encode
from sulina.core.records.rows import decode_rows
from sulina.metadata.memory import MemoryMetadata
from sulina.ports import MetadataStore
from sulina.storage.objects import Objects, open_objects
from sulina.storage.partition_log import LogThreads
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import SubscriptionInfo

WAIT_SECONDS = 20.0


async def until(check: Callable[[], bool | Awaitable[bool]], seconds: float = WAIT_SECONDS) -> None:
    """Return when it holds. TimeoutError."""
    async with asyncio.timeout(seconds):
        while not ((await found) if isinstance(found := check(), Awaitable) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class NearbyOwners:
    """The other brokers of one process, as each of them asks them: see `sulina.broker.other_owners`."""

    def __init__(self, world: "Brokers") -> None:
        self._world = world

    async def publish(self, partition: PartitionName, record: StoredRecord, txn_id: str, schema_id: str) -> None:
        number, owner = partition.partition, await self._owner(partition)
        letter = PublishRequest(
            encode([record]), partition=number, txn_id=txn_id, schema_id=schema_id, is_dead_letter=True
        )
        await owner.publish(partition.topic, letter)

    async def consumers(self, partition: PartitionName) -> Mapping[str, list[str]]:
        return await (await self._owner(partition)).consumers(partition.topic, partition.partition)

    async def locate(self, partition: PartitionName, position: Position) -> int:
        return await (await self._owner(partition)).locate(partition.topic, partition.partition, position)

    async def seek(self, partition: PartitionName, subscription: str, position: Position) -> SubscriptionInfo:
        owner = await self._owner(partition)
        return await owner.seek(partition.topic, subscription, position, partition=partition.partition)

    async def _owner(self, partition: PartitionName) -> Broker:
        return await self._world.owner(partition.topic, partition.partition)


class Brokers:
    """`start` some, then ask them. Those that are left are stopped at the end."""

    def __init__(
        self, directory: Path, *, lease_seconds: float = 30.0, load_seconds: float = 5.0, span: Span = no_span
    ) -> None:
        self.directory = directory
        self.load_seconds = load_seconds
        self.span = span
        self.metadata: MetadataStore = MemoryMetadata()
        self.objects: Objects = open_objects(f"file://{directory}/objects")
        self.lease_seconds = lease_seconds
        self.running: dict[str, Broker] = {}
        self._threads = LogThreads.of(writers=2, readers=2, archivers=4)

    async def alone(self, name: str) -> Broker:
        """A broker that is part of no cluster, and archives all the same."""
        data = self.directory / name
        data.mkdir(exist_ok=True)
        options = BrokerOptions(data=str(data), broker_id=name)
        archives = Archives(self.objects, options)
        broker = self.running[name] = Broker(self.metadata, options, threads=self._threads, archives=archives)
        await broker.start()
        return broker

    async def start(self, *names: str) -> list[Broker]:
        """Brokers that have joined."""
        for name in names:
            data = self.directory / name
            data.mkdir(exist_ok=True)
            options = BrokerOptions(data=str(data), broker_id=name, ack_grace_seconds=0.2, span=self.span)
            registration = Registration(
                broker_id=name, url=f"http://{name}", store_id=f"store-{name}", started_ms=int(time.time() * 1000)
            )
            cluster = ClusterOptions(
                lease_seconds=self.lease_seconds, rescan_seconds=0.5, load_seconds=self.load_seconds
            )
            broker = Broker(
                self.metadata,
                options,
                threads=self._threads,
                archives=Archives(self.objects, options),
                registration=registration,
                cluster_options=cluster,
                others=NearbyOwners(self),
            )
            await broker.start()
            self.running[name] = broker
        return [self.running[name] for name in names]

    async def stop(self, name: str) -> None:
        """In good order."""
        await self.running.pop(name).stop()

    async def owner(self, topic: TopicName, partition: int = 0) -> Broker:
        """Who serves it, once somebody does."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for broker in self.running.values():
                    known = broker.registry.topics.get(topic)
                    if known is not None and known.ownerships[partition].is_here:
                        return broker
                await asyncio.sleep(0.005)

    async def moved(self, topic: TopicName, to: str, partition: int = 0) -> Broker:
        """The broker of this name, once it serves the partition."""
        broker = self.running[to]
        await until(
            lambda: topic in broker.registry.topics and broker.registry.topics[topic].ownerships[partition].is_here
        )
        return broker

    async def publish(self, topic: TopicName, *values: bytes, partition: int = 0) -> int:
        """To whoever owns it; the first offset."""
        owner = await self.owner(topic, partition)
        done = await owner.publish_records(topic, [StoredRecord(value=value) for value in values], partition=partition)
        assert done.base_offset is not None
        return done.base_offset

    async def values(self, topic: TopicName, partition: int = 0) -> list[bytes | None]:
        """All there is, read from whoever owns it."""
        owner = await self.owner(topic, partition)
        found: list[bytes | None] = []
        offset = (await owner.partition(topic, partition)).start_offset
        while True:
            fetched = await owner.fetch(topic, partition, offset)
            if fetched.next_offset == offset:
                return found
            found += [record.value for record in decode_rows(fetched.data, offset)]
            offset = fetched.next_offset

    async def keys(self, prefix: str) -> list[str]:
        """What the metadata store has."""
        return [entry.key for entry in (await self.metadata.list(prefix)).entries]

    async def close(self) -> None:
        """Everybody stops."""
        for name in list(self.running):
            await self.stop(name)
        await self.metadata.close()
        self._threads.shutdown()


@asynccontextmanager
async def brokers(
    directory: Path,
    *names: str,
    lease_seconds: float = 30.0,
    load_seconds: float = 5.0,
    span: Span = no_span,
) -> AsyncIterator[Brokers]:
    """Some that have joined."""
    world = Brokers(directory, lease_seconds=lease_seconds, load_seconds=load_seconds, span=span)
    try:
        await world.start(*names)
        yield world
    finally:
        await world.close()


def member_of(broker: Broker) -> ClusterMember:
    """Return what a broker is in its cluster."""
    assert isinstance(broker.member, ClusterMember)
    return broker.member


def cluster_of(broker: Broker) -> Cluster:
    """Return the cluster that a broker has joined."""
    return member_of(broker).cluster


def remembered_by(broker: Broker) -> dict[str, bytes] | None:
    """Return what a broker would remember now, should the metadata store be lost."""
    registry = broker.registry
    return entries_to_remember(cluster_of(broker).view, registry.catalogue, registry.topics, broker.timekeeper)
