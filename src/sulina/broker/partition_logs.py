"""The logs of a broker's partitions: where they lie, how they are opened, what retention removes, when they are closed.

Every open log has files open. There are never more than `open_logs_max`: when another is wanted, the one that nobody
uses and that was opened longest ago is closed.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions
from sulina.broker.partition import Log, Partition
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.topic import Topic
from sulina.broker.topic_table import TopicTable
from sulina.broker.troubles import is_disk_full, trouble_of
from sulina.byte_budget import ByteBudget
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import MemoryLimits
from sulina.core.log.retention import KnownTime, Retention
from sulina.core.log.segment import SegmentLimits
from sulina.core.log.txn_memory import TxnLimits
from sulina.core.topic import Policy
from sulina.errors import InvalidName, LimitReached, NotOwner, NotServing, StaleEpoch, SulinaError, TopicNotFound
from sulina.ports import Clock, Files
from sulina.storage import orphans
from sulina.storage.directory_log import LogOptions
from sulina.storage.partition_directory import Leftover, ensure_stamp, read_stamp, set_aside_in, set_directory_aside
from sulina.storage.partition_log import LogThreads, PartitionLog
from sulina.types import Offset, PartitionName, TopicName
from sulina.wire.messages import Trouble

FOR_EVER = Retention()
REOPEN_SECONDS, REOPEN_SECONDS_MAX = 1.0, 30.0  # until a log that stopped is opened again; twice as long each time
STEADY_SECONDS = 60.0  # that it must go well before the first of these counts again
REOPEN_AT_ONCE = 8  # logs that stopped; each may wait for the archive
RETRY_SECONDS = 1.0  # until a change of settings that failed is tried again

_logger = structlog.get_logger("sulina.logs")


@dataclass(slots=True)
class _Trouble:
    """A log that has stopped because of its disk, until it has gone well again for a while."""

    reason: str
    due: float  # when to try next; or since when it goes well
    pause_seconds: float = REOPEN_SECONDS
    is_mended: bool = False
    is_full: bool = False  # it has no room; else another fault


class LogOpener(Protocol):
    """Opens logs that have an archive (`ArchivedLogOpener`), or such that have none (`LocalLogOpener`)."""

    async def open(self, partition: Partition, directory: str, topic: Topic, options: LogOptions) -> Log:
        """Recover the log of a partition, or start one."""
        ...

    async def reconfigure(self, partition: Partition, log: Log, policy: Policy, options: LogOptions) -> None:
        """Let a log go on by another policy."""
        ...

    def local_retention(self, policy: Policy) -> Retention:
        """Return what a policy keeps on disk of what is in the archive."""
        ...

    async def release(self, partition: PartitionName, directory: str, topic_id: str) -> None:
        """Remove the directory of a partition that another broker owns, unless it has what is nowhere else."""
        ...

    def tell_leftover(self, partition: PartitionName, left: Leftover) -> None:
        """Emit an event for a directory that was set aside."""
        ...

    async def only_there(self, partition: PartitionName, topic_id: str) -> tuple[int, int] | None:
        """Return the offsets that only the disk of the last owner has; None: there is no archive."""
        ...

    async def reported_ms(self, partition: PartitionName) -> int | None:
        """Return when the last owner reported how far its log had come; None: it never did."""
        ...

    async def delete(self, topic: TopicName, stored: StoredTopic) -> None:
        """Delete the archives of a topic."""
        ...

    def report(self, ownership: PartitionOwnership, log: Log) -> None:
        """Let it be known how far a log has come."""
        ...


class LocalLogOpener:
    """Opens logs that are on this node's disk only."""

    def __init__(self, *, threads: LogThreads, files: Files, clock: Clock, metrics: Metrics) -> None:
        self._threads = threads
        self._files = files
        self._clock = clock
        self._metrics = metrics

    async def open(self, partition: Partition, directory: str, topic: Topic, options: LogOptions) -> Log:  # noqa: ARG002
        """Recover the log in a directory, or start one."""
        log = await PartitionLog.open(
            directory,
            options=options,
            files=self._files,
            clock=self._clock,
            threads=self._threads,
            metrics=self._metrics,
        )
        try:
            await asyncio.to_thread(ensure_stamp, self._files, directory, topic.stored.topic_id)
        except BaseException:
            await log.close()
            raise
        return log

    async def reconfigure(self, partition: Partition, log: Log, policy: Policy, options: LogOptions) -> None:  # noqa: ARG002
        """Let a log go on by another policy."""
        log.reconfigure(options)

    def local_retention(self, policy: Policy) -> Retention:  # noqa: ARG002
        """Return that the disk keeps all that the log keeps."""
        return FOR_EVER

    async def release(self, partition: PartitionName, directory: str, topic_id: str) -> None:
        """Keep the directory: nothing of it is anywhere else."""

    def tell_leftover(self, partition: PartitionName, left: Leftover) -> None:
        """Say nothing: the directory is where the operator has put it."""

    async def only_there(self, partition: PartitionName, topic_id: str) -> tuple[int, int] | None:  # noqa: ARG002
        """Return that there is no archive."""
        return None

    async def reported_ms(self, partition: PartitionName) -> int | None:  # noqa: ARG002
        """Return that nothing is reported."""
        return None

    async def delete(self, topic: TopicName, stored: StoredTopic) -> None:
        """Return at once: there is no archive."""

    def report(self, ownership: PartitionOwnership, log: Log) -> None:
        """Report nothing."""


class PartitionLogs:
    """Opens the logs of the topics in the table, and closes those that nobody uses."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        opener: LogOpener,
        *,
        files: Files,
        clock: Clock,
        events: EventStream,
    ) -> None:
        self.opener = opener
        self._options = options
        self._topics = topics
        self._files = files
        self._clock = clock
        self._events = events
        self._waiting = ByteBudget(options.limits.waiting_bytes_max)  # to be committed, in all logs together
        self._background: set[asyncio.Task[None]] = set()
        self._opened: dict[Partition, None] = {}  # in the order in which they were
        self._troubles: dict[Partition, _Trouble] = {}
        self._refused: dict[Partition, Trouble] = {}  # logs that could not be opened when they were last wanted

    async def open(self, partition: Partition) -> Log:
        """Recover the log of a partition, or start one.

        Raises:
            TopicNotFound: the topic has gone, or was made again.
            LimitReached: all logs that may be open are in use.
            NotServing: the disk fails. `reopen_stopped` opens the log when the disk takes writes.
        """
        while len(self._opened) >= self._options.open_logs_max:
            idle = next((opened for opened in self._opened if opened.is_idle), None)
            if idle is None:
                raise LimitReached(kind="open logs", limit=self._options.open_logs_max)
            del self._opened[idle]
            await idle.rest()
        self._opened[partition] = None
        topic, directory = self._topics.get(partition.name.topic), self.directory(partition.name)
        log: Log | None = None
        try:
            if topic is None or partition not in topic.partitions:
                raise TopicNotFound(topic=str(partition.name.topic))
            # That of a topic that has returned is taken back, that of another topic of the same name is kept.
            if await asyncio.to_thread(orphans.restore, self._files, directory, topic.stored.topic_id):
                number = partition.name.partition
                self._events.emit("directory_taken_back", topic.name, partition=number, path=directory)
            policy = topic.policy
            log = await self.opener.open(partition, directory, topic, self._options_of(topic))
            while topic.policy is not policy:  # it has changed meanwhile
                policy = topic.policy
                await self._reconfigure(topic, partition, log)
        except OSError as error:
            self._opened.pop(partition, None)
            self._refused.pop(partition, None)
            if log is not None:
                await log.close()
            self._note_stopped(partition, error)
            why = f"the log of {partition.name} cannot be opened: {error}; it is opened when the disk takes writes"
            raise NotServing(reason=why) from error
        except BaseException as error:
            self._opened.pop(partition, None)
            if isinstance(error, Exception) and not isinstance(error, NotOwner | TopicNotFound):
                self._refused[partition] = trouble_of(partition.name, error)
            if log is not None:
                await log.close()
            raise
        self._refused.pop(partition, None)
        for subscription in topic.subscriptions.values():
            subscription.follow(partition.name.partition, log)
        if log.damage is not None:
            self._events.emit("log_damaged", partition.name, reason=str(log.damage))
        return log

    async def found(self) -> list[PartitionName]:
        """Return the partitions that have a directory here."""
        names = await asyncio.to_thread(self._files.list, self._options.data)
        partitions = []
        for name in names:
            with contextlib.suppress(InvalidName):
                partitions.append(PartitionName.from_directory(name))
        return partitions

    def closed(self, partition: Partition) -> None:
        """Count a log as closed: its partition has closed it."""
        self._opened.pop(partition, None)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("log_not_reconfigured", error=str(error))

    def forget(self, topic: Topic) -> None:
        """Count the logs of a topic as closed: the topic has closed them."""
        for partition in topic.partitions:
            self._opened.pop(partition, None)
            self._refused.pop(partition, None)

    async def remove(self, name: TopicName, stored: StoredTopic) -> None:
        """Delete the files of a topic. The caller has read the delete mark of this very topic."""
        for number in range(stored.partitions):
            partition = PartitionName(name, number)
            directory = self.directory(partition)
            await asyncio.to_thread(orphans.remove, self._files, directory, stored.topic_id)
            if await asyncio.to_thread(read_stamp, self._files, directory) is None:
                # Nobody knows whose it is, if it is there: it is kept, and a topic made again must not open it.
                await self.set_directory_aside(partition)

    async def set_aside(self, name: TopicName, stored: StoredTopic) -> list[str]:
        """Keep the files of a topic that vanished without a delete mark, until it returns; return where they are."""
        kept = []
        for number in range(stored.partitions):
            directory = self.directory(PartitionName(name, number))
            try:
                path = await asyncio.to_thread(orphans.set_aside, self._files, directory, stored.topic_id)
            except (SulinaError, OSError) as error:
                # It stays where it is, which is as safe: its stamp keeps it from any other topic.
                _logger.warning("directory_not_set_aside", path=directory, error=str(error))
                path = directory
            if path is not None:
                kept.append(path)
        return kept

    async def kept(self) -> list[tuple[PartitionName, str, str]]:
        """Find what is here, in its place or set aside, as (partition, id of its topic, path)."""
        return await asyncio.to_thread(self._kept)

    def _kept(self) -> list[tuple[PartitionName, str, str]]:
        found = [
            (each.partition, each.topic_id, each.path) for each in orphans.orphans(self._files, self._options.data)
        ]
        for name in self._files.list(self._options.data):
            with contextlib.suppress(InvalidName):
                partition = PartitionName.from_directory(name)
                path = self.directory(partition)
                if (stamp := read_stamp(self._files, path)) is not None:
                    found.append((partition, stamp.topic_id, path))
        return found

    async def put_aside(self) -> tuple[list[str], list[str]]:
        """Find the names of directories here whose topics vanished, and of those that were set aside."""
        return await asyncio.to_thread(self._put_aside)

    def _put_aside(self) -> tuple[list[str], list[str]]:
        data = self._options.data
        orphaned = [os.path.basename(each.path) for each in orphans.orphans(self._files, data)]
        return orphaned, set_aside_in(self._files, data)

    async def remove_deleted(self, partition: PartitionName, topic_id: str) -> None:
        """Delete what is here of a partition of a topic whose delete mark was read."""
        await asyncio.to_thread(orphans.remove, self._files, self.directory(partition), topic_id)

    def reconfigure(self, topic: Topic) -> None:
        """Let the open logs of a topic go on by its new policy."""
        for partition in topic.partitions:
            if partition.log_if_open is not None:
                self._in_background(self._reconfigure_in_the_end(topic, partition, partition.log_if_open))

    async def _reconfigure_in_the_end(self, topic: Topic, partition: Partition, log: Log) -> None:
        while partition.log_if_open is log:
            try:
                await self._reconfigure(topic, partition, log)
                return
            except NotOwner:
                return  # its owner knows the policy
            except (SulinaError, OSError) as error:
                _logger.warning("log_not_reconfigured", partition=str(partition.name), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _reconfigure(self, topic: Topic, partition: Partition, log: Log) -> None:
        """Let a log go on by the policy of the moment: of several changes the last one counts."""
        async with partition.ownership.archived_flag_lock:
            await self.opener.reconfigure(partition, log, topic.policy, self._options_of(topic))

    async def retain(
        self,
        topics: Iterable[Topic],
        keep_from: Callable[[PartitionName, EpochHistory], Offset | None],
        shown: float | None,
    ) -> int:
        """Remove what policies no longer keep, but nothing that somebody needs; return how many segments went.

        What is in the archive may go from the disk all the same: it can still be read. `shown` is the time that ages
        are told by (`core.cluster.shown_time`); None: it is not known, so nothing goes because of its age.
        """
        removed = 0
        for topic in topics:
            policy = topic.policy
            limits = Retention(bytes_max=policy.retention_bytes, age_seconds_max=policy.retention_seconds)
            local = self.opener.local_retention(policy)
            if shown is None:
                limits, local = replace(limits, age_seconds_max=None), replace(local, age_seconds_max=None)
            if limits == FOR_EVER and local == FOR_EVER:
                continue
            for partition in topic.partitions:
                if not partition.ownership.is_here:
                    continue
                try:
                    async with partition.using() as log:
                        kept = replace(
                            limits,
                            keep_from=keep_from(partition.name, log.epochs),
                            time=self._time(partition, log, shown),
                        )
                        removed += len(await log.retain(kept, local))
                except (SulinaError, OSError) as error:
                    # One log that cannot forget must not keep the others from it.
                    _logger.error("retention_failed", partition=str(partition.name), error=str(error))
        return removed

    def _time(self, partition: Partition, log: Log, shown: float | None) -> KnownTime:
        now = self._clock.monotonic()
        return KnownTime(shown=shown or 0.0, monotonic=now, sightings=partition.sighted(log, now))

    # Logs that stopped because of the disk

    def stopped(self) -> dict[PartitionName, str]:
        """Return which logs take no records because of the disk, and why."""
        return {partition.name: it.reason for partition, it in self._troubles.items() if not it.is_mended}

    def without_room(self) -> set[PartitionName]:
        """Return which of those that are stopped wait for room on the disk."""
        return {partition.name for partition, it in self._troubles.items() if it.is_full and not it.is_mended}

    def refused(self) -> dict[PartitionName, Trouble]:
        """Return which logs that are ours could not be opened when they were last wanted, and why."""
        self._refused = {partition: why for partition, why in self._refused.items() if partition.ownership.is_ours}
        return {partition.name: why for partition, why in self._refused.items()}

    @property
    def is_reconfiguring(self) -> bool:
        """Return whether a change of a policy has not reached every open log yet."""
        return bool(self._background)

    def reopen_pause_seconds(self, partition: PartitionName) -> float | None:
        """Return how long a log that has stopped waits between two attempts; None: it goes well."""
        return next((it.pause_seconds for each, it in self._troubles.items() if each.name == partition), None)

    async def reopen_stopped(self, *, at_once: bool = False) -> None:
        """Open logs again that stopped because of the disk, if it takes writes. To be called every second or so.

        Nothing is tried again as if it could succeed: what is on disk decides, by its checksums. `at_once`: also those
        that were tried a moment ago.
        """
        for partition in list(self._opened):
            log = partition.log_if_open
            if log is not None and log.stopped is not None and not isinstance(log.stopped.cause, StaleEpoch):
                self._note_stopped(partition, log.stopped.cause)
        due, now, room = [], self._clock.monotonic(), asyncio.Semaphore(REOPEN_AT_ONCE)
        for partition, trouble in list(self._troubles.items()):
            if not partition.ownership.is_ours or (trouble.is_mended and now - trouble.due >= STEADY_SECONDS):
                del self._troubles[partition]
            elif not trouble.is_mended and (at_once or now >= trouble.due):
                due.append(self._mend_in_turn(partition, trouble, room))
        for ended in await asyncio.gather(*due, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended  # our own bug; the others were looked at all the same

    def _note_stopped(self, partition: Partition, cause: BaseException) -> None:
        known, reason = self._troubles.get(partition), str(cause)
        if known is not None and not known.is_mended:
            return
        trouble = _Trouble(reason, self._clock.monotonic() + REOPEN_SECONDS)
        if known is not None:  # it was opened again a moment ago
            trouble = _Trouble(reason, self._clock.monotonic() + known.pause_seconds, known.pause_seconds)
        trouble.is_full = is_disk_full(cause)
        self._troubles[partition] = trouble
        self._events.emit("log_stopped", partition.name.topic, partition=partition.name.partition, reason=reason)

    async def _mend_in_turn(self, partition: Partition, trouble: _Trouble, room: asyncio.Semaphore) -> None:
        async with room:
            await self._mend(partition, trouble)

    async def _mend(self, partition: Partition, trouble: _Trouble) -> None:
        trouble.pause_seconds = min(2 * trouble.pause_seconds, REOPEN_SECONDS_MAX)
        try:
            if (log := partition.log_if_open) is not None:
                await log.probe()  # as long as it fails, the log is still read
                topic = self._topics.get(partition.name.topic)
                if topic is not None:
                    await topic.dismiss(NotServing(reason=f"the log of {partition.name} is being opened again"))
                await partition.reopen()
            async with partition.using():
                pass
        except (SulinaError, OSError) as error:
            trouble.reason, trouble.due = str(error), self._clock.monotonic() + trouble.pause_seconds
            trouble.is_full = is_disk_full(error)
            _logger.warning("log_not_reopened", partition=str(partition.name), error=str(error))
            return
        trouble.is_mended, trouble.due = True, self._clock.monotonic()
        self._events.emit("log_reopened", partition.name.topic, partition=partition.name.partition)

    # Directories

    async def set_directory_aside(self, partition: PartitionName) -> None:
        """Keep the directory of a partition whose log goes on without it.

        Raises:
            LogLocked, OSError: it stays where it is.
        """
        left = await asyncio.to_thread(set_directory_aside, self._files, self.directory(partition))
        self.opener.tell_leftover(partition, left)

    def report(self) -> None:
        """Let it be known how far the open logs have come."""
        for partition in self._opened:
            log = partition.log_if_open
            if log is not None and partition.ownership.is_here:
                self.opener.report(partition.ownership, log)

    def directory(self, partition: PartitionName) -> str:
        """Return where the log of a partition lies on this node."""
        return os.path.join(self._options.data, partition.directory)

    def _options_of(self, topic: Topic) -> LogOptions:
        policy = topic.policy
        assert policy.segment_bytes is not None
        assert policy.segment_seconds is not None
        assert policy.txn_id_seconds is not None
        assert policy.txn_ids_max is not None
        return LogOptions(
            broker_id=self._options.broker_id,
            waiting_bytes_max=self._options.limits.partition_waiting_bytes_max,
            node_budget=self._waiting,
            compress_checkpoints=self._options.storage.compress_checkpoints,
            batches=topic.batch_limits,
            memory=MemoryLimits(txns=TxnLimits(seconds=policy.txn_id_seconds, txn_ids_max=policy.txn_ids_max)),
            segments=SegmentLimits(
                segment_bytes_max=policy.segment_bytes, segment_age_seconds_max=policy.segment_seconds
            ),
        )
