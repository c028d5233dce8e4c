"""The producers of all topics that are connected to this broker, as the metadata store has them.

A publish never waits for this. What has changed is written by one task, for each topic in one go, so that a thousand
producers that come together cost a few transactions; and a producer that stays costs nothing more.
"""

import asyncio
from collections import Counter

import msgspec
import structlog

from sulina.broker.catalogue import Catalogue, Outdated
from sulina.broker.cluster_handle import ClusterHandle
from sulina.core.cluster import keys
from sulina.core.cluster.producers import ProducerKey, StoredProducer, reconcile
from sulina.core.formats import METADATA
from sulina.errors import CorruptCommit, SulinaError
from sulina.ports import TXN_OPERATIONS_MAX, Clock, MetadataStore, Put
from sulina.types import TopicName
from sulina.wire.messages import ProducerInfo

RETRY_SECONDS = 1.0
STOP_SECONDS = 2.0  # for the entries to go when the broker stops

_logger = structlog.get_logger("sulina.producers")


class Producers:
    """`start` it, `attach` and `detach` producers, then `stop` it."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalogue: Catalogue,
        *,
        cluster: ClusterHandle,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._catalogue = catalogue
        self._broker_id = cluster.broker_id
        self._present = cluster.present  # names the brokers that are there
        self._clock = clock
        self._attached: dict[TopicName, Counter[str]] = {}  # connections, by producer
        self._changed: set[TopicName] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_attached(self) -> bool:
        """Return whether a producer is attached here."""
        return bool(self._attached)

    def start(self) -> None:
        """Write what changes; first delete what an earlier life of this broker has left."""
        self._changed |= {topic for topic, broker in self._catalogue.producers_at_load if broker == self._broker_id}
        self._wake.set()
        self._task = asyncio.create_task(self._write_all(), name="producers")

    async def stop(self) -> None:
        """Delete the entries of this broker. What cannot be deleted in time goes when it starts again."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._changed |= set(self._attached)
        self._attached.clear()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self._changed:
                    await self._write(self._changed.pop())
        except (SulinaError, Outdated, TimeoutError) as error:
            _logger.warning("producers_left_behind", error=str(error) or type(error).__name__)

    def attach(self, topic: TopicName, producer: str) -> None:
        """Note that a connection of the producer has published to the topic."""
        self._attached.setdefault(topic, Counter())[producer] += 1
        self._change(topic)  # also where it is known: the topic may have been deleted and created since

    def detach(self, topic: TopicName, producer: str) -> None:
        """Note that the connection has ended."""
        connections = self._attached.get(topic)
        if connections is None:  # the broker is stopping
            return
        connections[producer] -= 1
        if connections[producer] <= 0:
            del connections[producer]
            if not connections:
                del self._attached[topic]
            self._change(topic)

    async def list(self, topic: TopicName) -> list[ProducerInfo]:
        """Return all producers of a topic, at all brokers, by name."""
        present = self._present()
        return [
            ProducerInfo(producer=producer, broker_id=broker, since_ms=entry.since_ms, is_connected=broker in present)
            for (producer, broker), entry in sorted((await self._stored(topic)).items())
        ]

    def _change(self, topic: TopicName) -> None:
        self._changed.add(topic)
        self._wake.set()

    async def _write_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            for topic in sorted(changed):
                try:
                    await self._write(topic)
                except (SulinaError, Outdated) as error:
                    _logger.warning("producers_not_written", topic=str(topic), error=str(error))
                    self._change(topic)
            if self._changed:
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self, topic: TopicName) -> None:
        """Make the entries of a topic what they should be. Outdated, MetadataFailed."""
        known = self._catalogue.topic(topic)
        if known is None or known.stored.is_deleting:
            return  # they go with it
        mark = self._catalogue.mark(topic)
        stored = await self._stored(topic)
        attached = self._attached.get(topic, Counter())
        gone, new = reconcile(stored, attached, broker_id=self._broker_id, present=self._present())
        value = METADATA.encode(StoredProducer(since_ms=int(self._clock.now() * 1000)))
        operations: list[Put | str] = [keys.producer(topic, *key) for key in gone]
        operations += [Put(keys.producer(topic, *key), value) for key in new]
        for first in range(0, len(operations), TXN_OPERATIONS_MAX):
            some = operations[first : first + TXN_OPERATIONS_MAX]
            done = await self._metadata.txn(
                compares=[mark],
                puts=[each for each in some if isinstance(each, Put)],
                deletes=[each for each in some if isinstance(each, str)],
            )
            if not done.is_done:
                raise Outdated(f"{mark.key} was changed by somebody else")

    async def _stored(self, topic: TopicName) -> dict[ProducerKey, StoredProducer]:
        """Return the entries of a topic. One that cannot be read is named in the log, and counts as an old one."""
        found: dict[ProducerKey, StoredProducer] = {}
        for entry in (await self._metadata.list(keys.producers(topic))).entries:
            producer, broker = entry.key.split("/")[-2:]
            try:
                found[producer, broker] = METADATA.decode(entry.value, StoredProducer, entry.key)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _logger.error("producer_unreadable", error=str(CorruptCommit(name=entry.key, reason=str(error))))
                found[producer, broker] = StoredProducer(since_ms=0)
        return found
