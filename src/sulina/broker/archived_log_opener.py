"""Opens the logs of partitions that have an archive, and releases their directories when another broker owns them.

- A log is opened under an assignment, and claims its epoch in the archive before anything is appended.
- Before a record is acknowledged that only this disk has, the cluster knows that there may be such records.
- What the metadata store has about an archive is written afterwards, as notes: an index of its objects, and how far it
  and the log have come. Nothing is decided by these notes: the archive decides.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from sulina.broker.archives import Archives
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions
from sulina.broker.partition import Log, Partition
from sulina.broker.partition_ownership import PartitionOwnership
from sulina.broker.stored_topic import StoredTopic
from sulina.broker.topic import Topic
from sulina.core.cluster import keys
from sulina.core.cluster.entries import ALONE_EPOCH, Current, ObjectEntry, Sealed
from sulina.core.formats import METADATA
from sulina.core.log.commit import SegmentRef
from sulina.core.log.resume import witnesses
from sulina.core.log.retention import Retention
from sulina.core.topic import Ack, Policy
from sulina.errors import StaleEpoch, SulinaError, TopicNotFound
from sulina.failpoints import Failpoint
from sulina.ports import Clock, Files, MetadataStore, Put
from sulina.storage.directory_log import LogOptions
from sulina.storage.partition_directory import Fate, Leftover, release_directory
from sulina.storage.partition_log import LogThreads
from sulina.storage.tiered_log import Archiving, TieredLog
from sulina.types import Epoch, PartitionName, TopicName

_logger = structlog.get_logger("sulina.tiers")

Report = TypeVar("Report", Sealed, Current)


class ArchivedLogOpener:
    """Opens logs that have an archive, and releases their directories when others own them."""

    def __init__(
        self,
        archives: Archives,
        *,
        metadata: MetadataStore,
        writer: CursorWriter,
        cluster: ClusterHandle,
        options: BrokerOptions,
        files: Files,
        clock: Clock,
        threads: LogThreads,
        metrics: Metrics,
        events: EventStream,
    ) -> None:
        self._archives = archives
        self._metadata = metadata
        self._writer = writer
        self._cluster = cluster
        self._options = options
        self._files = files
        self._clock = clock
        self._threads = threads
        self._metrics = metrics
        self._events = events
        self._notes: dict[PartitionName, _ArchiveNotes] = {}  # of the partitions that were opened here

    async def open(self, partition: Partition, directory: str, topic: Topic, options: LogOptions) -> TieredLog:
        """Claim a partition in its archive, and go on from where its log ended.

        Raises:
            StaleEpoch: a newer owner has claimed it.
            CorruptLog, LogIncomplete: records are damaged or missing.
            ArchiveFailed: the archive does not answer.
            TopicNotFound: the topic has gone, or was made again.
        """
        ownership, topic_id, policy = partition.ownership, topic.stored.topic_id, topic.policy
        revision = ownership.revision
        await self._check_topic(partition.name, topic_id)
        sealed = await self._reported_in(keys.sealed_state(partition.name), Sealed)
        current = await self._reported_in(keys.archive_current(partition.name), Current)
        if current is not None and current.topic_id not in (None, topic_id):
            current = None  # of a topic that had this name before
        epoch = Epoch(ownership.epoch.epoch if ownership.epoch is not None else ALONE_EPOCH)
        notes = self._notes[partition.name] = _ArchiveNotes(ownership, epoch, topic_id, self._writer, self._clock)
        try:
            log = await TieredLog.open(
                directory,
                self._archives.of(partition.name, topic_id),
                topic_id=topic_id,
                epoch=epoch,
                broker_id=self._options.broker_id,
                options=options,
                archiving=archiving(policy),
                may_ack=partial(ownership.may_ack, revision),
                partition=str(partition.name),
                heard=witnesses(sealed, current, is_only_here=ownership.is_archived is False),
                must_resume=ownership.is_archived is False,
                is_adopted=self._cluster.adopts_unstamped,
                files=self._files,
                clock=self._clock,
                threads=self._threads,
                metrics=self._metrics,
                hooks=notes,
                failpoints=self._options.failpoints,
            )
        except StaleEpoch as stale:
            await self._cluster.check_assigned(ownership.name, revision, stale)
            raise
        notes.log = log
        try:
            async with ownership.archived_flag_lock:
                if policy.ack == Ack.ARCHIVED:
                    await self._tell_archived(ownership, revision, log)
                else:
                    await self._tell_local(notes, revision, log)
            if sealed is not None:  # its word has been taken, and the claim is durable
                await self._remove_sealed(ownership)
        except BaseException:
            await log.close()
            raise
        _logger.info(
            "log_resumed",
            topic=str(partition.name.topic),
            partition=partition.name.partition,
            epoch=epoch,
            how=log.resumed.how.value,
            sealed_offset=sealed.last_committed_offset if sealed is not None else None,
            resuming_from=log.end_offset,
        )
        self.tell_leftover(partition.name, log.resumed.leftover)
        self._options.failpoints(Failpoint.OWNER_OPENED)
        return log

    async def reconfigure(self, partition: Partition, log: Log, policy: Policy, options: LogOptions) -> None:
        """Let a log go on by another policy. The caller has the archived_flag_lock.

        Raises:
            NotOwner: the partition is not ours any more.
            ArchiveFailed: what must be in the archive first could not be brought there.
        """
        ownership, revision = partition.ownership, partition.ownership.revision
        notes = self._notes.get(partition.name)
        if notes is None:
            raise ownership.refusal()  # its directory is released
        if policy.ack != Ack.ARCHIVED:
            await self._tell_local(notes, revision, log)
        log.reconfigure(options, archiving(policy))
        if policy.ack == Ack.ARCHIVED:
            await self._tell_archived(ownership, revision, log)

    def local_retention(self, policy: Policy) -> Retention:
        """Return what a policy keeps on disk of what is in the archive."""
        return Retention(bytes_max=policy.local_retention_bytes, age_seconds_max=policy.local_retention_seconds)

    async def _tell_local(self, notes: "_ArchiveNotes", revision: int, log: Log) -> None:
        """Tell the cluster before anything is acknowledged that only this disk has, and how far the log is now.

        An older report may be of records that were given up since, or that were never acknowledged.
        """
        ownership = notes.ownership
        if self._cluster.must_set_archived(ownership, False):
            report = Put(keys.archive_current(ownership.name), METADATA.encode(notes.current(log)))
            await self._cluster.set_archived(ownership, revision, False, puts=(report,))

    async def _tell_archived(self, ownership: PartitionOwnership, revision: int, log: Log) -> None:
        """Tell the cluster that the archive has all that is acknowledged, once that is so and remains so."""
        if self._cluster.must_set_archived(ownership, True):
            await log.catch_up()
            await self._cluster.set_archived(ownership, revision, True)

    async def _check_topic(self, partition: PartitionName, topic_id: str) -> None:
        """Check that the topic is the one that is stored: it may have been made again, and the assignment with it.

        Raises:
            TopicNotFound: it is not.
        """
        entry = await self._metadata.get(keys.delivery(partition.topic))
        stored = METADATA.decode(entry.value, StoredTopic, entry.key) if entry is not None else None
        if stored is None or stored.topic_id != topic_id or stored.is_deleting:
            raise TopicNotFound(topic=str(partition.topic))

    async def _reported_in(self, key: str, kind: type[Report]) -> Report | None:
        """Read what an owner has sealed or reported. It is a witness only: one that cannot be read changes nothing."""
        entry = await self._metadata.get(key)
        try:
            return None if entry is None else METADATA.decode(entry.value, kind, entry.key)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.warning("report_damaged", key=key, error=str(error))
            return None

    async def _remove_sealed(self, ownership: PartitionOwnership) -> None:
        """Remove the sealed state. One that stays is harmless: its epoch is older than our claim."""
        try:
            await self._metadata.txn(compares=ownership.fences, deletes=[keys.sealed_state(ownership.name)])
        except (SulinaError, OSError) as error:
            _logger.warning("sealed_state_not_removed", partition=str(ownership.name), error=str(error))

    async def release(self, partition: PartitionName, directory: str, topic_id: str) -> None:
        """Remove the directory of a partition that another broker owns, unless it has what is nowhere else."""
        self._notes.pop(partition, None)
        archive = self._archives.of(partition, topic_id)
        left = await asyncio.to_thread(
            release_directory,
            directory,
            archive,
            topic_id=topic_id,
            files=self._files,
            failpoints=self._options.failpoints,
        )
        self.tell_leftover(partition, left)

    def tell_leftover(self, partition: PartitionName, left: Leftover) -> None:
        """Emit an event for a directory that was set aside."""
        if left.fate is Fate.SET_ASIDE:
            only_here = [list(piece) for piece in left.only_here]
            self._events.emit(
                "directory_set_aside",
                partition.topic,
                partition=partition.partition,
                path=left.path,
                only_here=only_here,
            )

    async def only_there(self, partition: PartitionName, topic_id: str) -> tuple[int, int]:
        """Return the offsets that are not in the archive, up to where the last owner reported the end of its log."""
        view = await asyncio.to_thread(self._archives.of(partition, topic_id).load)
        current = await self._reported_in(keys.archive_current(partition), Current)
        said = current.end_offset if current is not None else 0
        return view.next_offset, max(view.next_offset, said)

    async def reported_ms(self, partition: PartitionName) -> int | None:
        """Return when the last owner reported how far its log had come; None: it never did."""
        current = await self._reported_in(keys.archive_current(partition), Current)
        return None if current is None else current.at_ms

    async def delete(self, topic: TopicName, stored: StoredTopic) -> None:
        """Delete all archives of a topic that is being deleted, and the notes about them that are not written yet."""
        await self._writer.discard_notes(keys.storage_prefix(topic))
        for number in range(stored.partitions):
            archive = self._archives.of(PartitionName(topic, number), stored.topic_id)
            await asyncio.to_thread(archive.delete_all)

    def report(self, ownership: PartitionOwnership, log: Log) -> None:
        """Note how far a log has come, so that it is known should this broker be lost."""
        if (notes := self._notes.get(ownership.name)) is not None:
            notes.report(log)


class _ArchiveNotes:
    """What the metadata store is told of the archive of one partition, for others to look at: `ArchiveHooks`."""

    def __init__(
        self, ownership: PartitionOwnership, epoch: Epoch, topic_id: str, writer: CursorWriter, clock: Clock
    ) -> None:
        self.ownership = ownership
        self._epoch = epoch  # under which the log was opened
        self.log: TieredLog | None = None  # once it is open
        self._topic_id = topic_id
        self._writer = writer
        self._clock = clock
        self._reported: tuple[int, int] | None = None  # where archive and log were said to end

    def archived(self, added: SegmentRef) -> None:
        """Note that a slice has become part of the archive."""
        if self.log is None:
            return
        if added.size and added.object is not None:
            entry = ObjectEntry(
                object=added.object, offset_end=added.next_offset, size_bytes=added.size, epoch=self._epoch
            )
            key = keys.archive_object(self.ownership.name, added.base)
            self._writer.note(key, partial(METADATA.encode, entry), self.ownership.fences)
        self.report(self.log, added.object)

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        """Note that slices have gone, or were merged into one that is noted next."""
        for base in sorted({slice_.base for slice_ in removed}):
            self._writer.note(keys.archive_object(self.ownership.name, base), lambda: None, self.ownership.fences)

    async def settle(self) -> None:
        """Return when what was noted is written: once the partition is another's, it cannot be."""
        await self._writer.write_notes(keys.archive_prefix(self.ownership.name))

    def failed(self, error: Exception) -> None:
        """Log that an attempt to archive has failed."""
        _logger.warning("archive_failed", partition=str(self.ownership.name), error=str(error))

    def report(self, log: Log, name: str | None = None) -> None:
        """Note how far a log has come, unless that was noted; `name` is that of the newest object."""
        ends = (log.archived_offset or 0, log.end_offset)
        if self._reported != ends:
            self._reported = ends
            current = METADATA.encode(self.current(log, name))
            self._writer.note(keys.archive_current(self.ownership.name), lambda: current, self.ownership.fences)

    def current(self, log: Log, name: str | None = None) -> Current:
        """Return how far a log has come."""
        return Current(
            archived_offset=log.archived_offset or 0,
            end_offset=log.end_offset,
            epoch=self._epoch,
            at_ms=int(self._clock.now() * 1000),
            object=name,
            topic_id=self._topic_id,
        )


def archiving(policy: Policy) -> Archiving:
    """Return when a log goes to its archive by the policy of its topic."""
    assert policy.archive_bytes is not None
    assert policy.archive_seconds is not None
    return Archiving(
        ack_archived=policy.ack == Ack.ARCHIVED,
        archive_bytes=policy.archive_bytes,
        archive_seconds=policy.archive_seconds,
    )
