"""The logs of a broker's partitions: where they lie, how they are opened, what they forget, and when they rest.

Every open log has files open. There are never more than `open_logs_max`: when another is wanted, the one that nobody
uses and that was opened longest ago is closed.
"""

import asyncio
import os
from collections.abc import Callable, Iterable

import structlog

from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions
from sulina.broker.partition import Partition
from sulina.broker.topic import Topic
from sulina.core.retention import Retention
from sulina.core.segment import SegmentLimits
from sulina.errors import LimitReached, SulinaError
from sulina.ports import Clock, Files
from sulina.storage.directory_log import LogOptions
from sulina.storage.files import remove_tree
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.types import PartitionName, TopicName

_logger = structlog.get_logger("sulina.logs")


class Logs:
    """Opens logs for the topics that `topic_of` knows."""

    def __init__(
        self,
        options: BrokerOptions,
        topic_of: Callable[[TopicName], Topic | None],
        *,
        threads: LogThreads,
        files: Files,
        clock: Clock,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        self._options = options
        self._topic_of = topic_of
        self._threads = threads
        self._files = files
        self._clock = clock
        self._metrics = metrics
        self._events = events
        self._opened: dict[Partition, None] = {}  # in the order in which they were

    async def open(self, partition: Partition) -> PartitionLog:
        """Recover the log of a partition, or start one. LimitReached when all that may be open are in use."""
        await self._make_room()
        self._opened[partition] = None
        topic = partition.name.topic
        try:
            log = await PartitionLog.open(
                self._directory(partition.name),
                options=self._log_options(self._topic_of(topic)),
                files=self._files,
                clock=self._clock,
                threads=self._threads,
                metrics=self._metrics,
            )
        except BaseException:
            self._opened.pop(partition, None)
            raise
        log.reconfigure(self._log_options(self._topic_of(topic)))  # the policy may have changed meanwhile
        if log.damage is not None:
            self._events.emit("log_damaged", partition.name, reason=str(log.damage))
        return log

    async def _make_room(self) -> None:
        while len(self._opened) >= self._options.open_logs_max:
            idle = next((partition for partition in self._opened if partition.is_idle), None)
            if idle is None:
                raise LimitReached(kind="open logs", limit=self._options.open_logs_max)
            del self._opened[idle]
            await idle.rest()

    def forget(self, topic: Topic) -> None:
        """The topic has closed its logs."""
        for partition in topic.partitions:
            self._opened.pop(partition, None)

    async def remove(self, name: TopicName, partitions: int) -> None:
        """Delete the files of a topic."""
        for number in range(partitions):
            await asyncio.to_thread(remove_tree, self._directory(PartitionName(name, number)))

    def reconfigure(self, topic: Topic) -> None:
        """The policy of a topic has changed."""
        for partition in topic.partitions:
            if partition.log_if_open is not None:
                partition.log_if_open.reconfigure(self._log_options(topic))

    async def retain(self, topics: Iterable[Topic]) -> int:
        """Let topics forget what their policies say; how many segments went."""
        removed = 0
        for topic in topics:
            policy = topic.policy
            if policy.retention_bytes is None and policy.retention_seconds is None:
                continue
            limits = Retention(bytes_max=policy.retention_bytes, age_seconds_max=policy.retention_seconds)
            for partition in topic.partitions:
                try:
                    async with partition.using() as log:
                        removed += len(await log.retain(limits))
                except (SulinaError, OSError) as error:
                    # One log that cannot forget must not keep the others from it.
                    _logger.error("retention_failed", partition=str(partition.name), error=str(error))
        return removed

    def _directory(self, partition: PartitionName) -> str:
        return os.path.join(self._options.data, partition.directory)

    def _log_options(self, topic: Topic | None) -> LogOptions:
        broker_id, waiting_bytes_max = self._options.broker_id, self._options.partition_waiting_bytes_max
        if topic is None:  # it is being deleted
            return LogOptions(broker_id=broker_id, waiting_bytes_max=waiting_bytes_max)
        policy = topic.policy
        assert policy.segment_bytes is not None
        assert policy.segment_seconds is not None
        return LogOptions(
            broker_id=broker_id,
            waiting_bytes_max=waiting_bytes_max,
            batches=topic.batch_limits,
            segments=SegmentLimits(
                segment_bytes_max=policy.segment_bytes, segment_age_seconds_max=policy.segment_seconds
            ),
        )
