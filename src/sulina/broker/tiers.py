"""The logs of partitions that are archived: opened by the right of an assignment, and let go when that has ended.

What the metadata store has about an archive is written here, after the fact: an index of its objects, and how far it
and the log have come. The archive decides, these are for whoever looks, so they are notes: once a second at most.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from sulina.broker.archives import Archives
from sulina.broker.cursors import CursorWriter
from sulina.broker.events import EventStream
from sulina.broker.metrics import Metrics
from sulina.broker.options import BrokerOptions
from sulina.broker.partition import Partition
from sulina.broker.place import Place
from sulina.broker.standing import Standing
from sulina.broker.stored_topic import StoredTopic
from sulina.core.cluster import keys
from sulina.core.cluster.entries import ALONE_EPOCH, Current, ObjectEntry, Sealed
from sulina.core.log.commit import SegmentRef
from sulina.core.log.resume import Witness, witnesses
from sulina.core.topic import Ack, Policy
from sulina.errors import MetadataWentBack, StaleEpoch, SulinaError, TopicNotFound
from sulina.failpoints import Failpoint
from sulina.ports import Clock, Compare, Files, MetadataStore, Put
from sulina.storage.directory_log import LogOptions
from sulina.storage.partition_directory import Fate, Leftover, release_directory
from sulina.storage.partition_log import LogThreads
from sulina.storage.tiered_log import ArchiveHooks, Archiving, TieredLog
from sulina.types import Epoch, PartitionName, TopicName

_logger = structlog.get_logger("sulina.tiers")


class Tiers:
    """Opens and lets go; one for a broker that has an object store."""

    def __init__(
        self,
        archives: Archives,
        *,
        metadata: MetadataStore,
        writer: CursorWriter,
        standing: Standing | None,
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
        self._standing = standing
        self._options = options
        self._files = files
        self._clock = clock
        self._threads = threads
        self._metrics = metrics
        self._events = events
        self._topic_ids: dict[PartitionName, str] = {}  # of the partitions that were opened here
        self._reported: dict[PartitionName, tuple[int, int]] = {}  # where archive and log were said to end

    async def open(
        self, partition: Partition, directory: str, topic_id: str, policy: Policy, options: LogOptions
    ) -> TieredLog:
        """Claim the partition in its archive, and go on from there. StaleEpoch, CorruptLog, ArchiveFailed."""
        place = partition.place
        revision = place.revision
        self._reported.pop(partition.name, None)
        await self._check_topic(partition.name, topic_id)
        sealed = await self._sealed(partition.name)
        self._topic_ids[partition.name] = topic_id
        current = await self._current(partition.name)
        if current is not None and current.topic_id not in (None, topic_id):
            current = None  # of a topic that had this name before
        heard = witnesses(sealed, current, is_only_here=place.is_archived is False)
        hooks = _Hooks(self, place)
        try:
            log = await self._open(partition, directory, topic_id, policy, options, heard, revision, hooks)
        except StaleEpoch as stale:
            await self._check_assigned(place, revision, stale)
            raise
        hooks.log = log
        try:
            async with place.saying:
                await self._settle(place, revision, policy, log)
            if sealed is not None:  # its word has been taken, and the claim is durable
                await self._remove_sealed(place)
        except BaseException:
            await log.close()
            raise
        _logger.info(
            "log_resumed",
            topic=str(partition.name.topic),
            partition=partition.name.partition,
            epoch=_epoch(place),
            how=log.resumed.how.value,
            sealed_offset=sealed.last_committed_offset if sealed is not None else None,
            resuming_from=log.end_offset,
        )
        self.tell_leftover(partition.name, log.resumed.leftover)
        self._options.failpoints(Failpoint.OWNER_OPENED)
        return log

    async def _open(
        self,
        partition: Partition,
        directory: str,
        topic_id: str,
        policy: Policy,
        options: LogOptions,
        heard: Sequence[Witness],
        revision: int,
        hooks: ArchiveHooks,
    ) -> TieredLog:
        place = partition.place
        return await TieredLog.open(
            directory,
            self._archives.of(partition.name, topic_id),
            topic_id=topic_id,
            epoch=Epoch(_epoch(place)),
            broker_id=self._options.broker_id,
            options=options,
            archiving=archiving(policy),
            may_ack=partial(place.may_ack, revision),
            partition=str(partition.name),
            heard=heard,
            must_resume=place.is_archived is False,
            is_adopted=self._standing is None,
            files=self._files,
            clock=self._clock,
            threads=self._threads,
            metrics=self._metrics,
            hooks=hooks,
            failpoints=self._options.failpoints,
        )

    async def _check_assigned(self, place: Place, revision: int, stale: StaleEpoch) -> None:
        """Check whether a newer owner is known to the metadata store.

        Raises:
            MetadataWentBack: it says that the partition is ours, with an epoch that was used before.
        """
        if self._standing is None:
            return
        entry = await self._metadata.get(keys.assignment(self._options.broker_id, place.name))
        if entry is not None and entry.revision == revision:
            raise MetadataWentBack(
                evidence=f"it gave epoch {stale.ours} of {place.name} to this broker, but {stale.current} was in use"
            ) from stale

    async def reconfigure(self, partition: Partition, log: TieredLog, policy: Policy, options: LogOptions) -> None:
        """The policy has changed. Called with `place.saying`. NotOwner, ArchiveFailed."""
        place, revision = partition.place, partition.place.revision
        await self._settle(place, revision, policy, log)
        log.reconfigure(options, archiving(policy))
        if self._standing is not None and policy.ack == Ack.ARCHIVED and place.is_archived is not True:
            await log.catch_up()
            await self._standing.say_archived(place, revision, True)

    async def _settle(self, place: Place, revision: int, policy: Policy, log: TieredLog) -> None:
        """Tell the cluster before anything is acknowledged that only this disk has, and how far the log is now.

        An older report may be of records that were given up since, or that were never acknowledged.
        """
        if self._standing is not None and policy.ack != Ack.ARCHIVED and place.is_archived is not False:
            report = Put(keys.archive_current(place.name), msgspec.json.encode(self._current_of(place, log, None)))
            await self._standing.say_archived(place, revision, False, puts=(report,))

    def _current_of(self, place: Place, log: TieredLog, name: str | None) -> Current:
        return Current(
            archived_offset=log.archived.next_offset,
            end_offset=log.end_offset,
            epoch=_epoch(place),
            at_ms=int(self._clock.now() * 1000),
            object=name,
            topic_id=self._topic_ids.get(place.name),
        )

    async def _check_topic(self, partition: PartitionName, topic_id: str) -> None:
        """TopicNotFound when what we know of the topic is old: it was made anew, and so was what is assigned to us."""
        if self._standing is not None:
            entry = await self._metadata.get(keys.delivery(partition.topic))
            stored = msgspec.json.decode(entry.value, type=StoredTopic) if entry is not None else None
            if stored is None or stored.topic_id != topic_id or stored.is_deleting:
                raise TopicNotFound(topic=str(partition.topic))

    async def _sealed(self, partition: PartitionName) -> Sealed | None:
        """Read what the last owner has sealed. It is a witness only: one that cannot be read changes nothing."""
        entry = await self._metadata.get(keys.sealed_state(partition))
        if entry is None:
            return None
        try:
            return msgspec.json.decode(entry.value, type=Sealed)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.warning("sealed_state_damaged", partition=str(partition), error=str(error))
            return None

    async def _current(self, partition: PartitionName) -> Current | None:
        """Read what an owner last reported. As with the sealed state, one that cannot be read changes nothing."""
        entry = await self._metadata.get(keys.archive_current(partition))
        try:
            return None if entry is None else msgspec.json.decode(entry.value, type=Current)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.warning("archive_report_damaged", partition=str(partition), error=str(error))
            return None

    async def _remove_sealed(self, place: Place) -> None:
        """Remove the sealed state. One that stays is harmless: its epoch is older than our claim."""
        try:
            await self._metadata.txn(compares=_fences(place), deletes=[keys.sealed_state(place.name)])
        except (SulinaError, OSError) as error:
            _logger.warning("sealed_state_not_removed", partition=str(place.name), error=str(error))

    async def let_go(self, partition: PartitionName, directory: str, topic_id: str) -> None:
        """Of a directory whose partition is another's: it goes, unless it has what is nowhere else."""
        self._reported.pop(partition, None)
        self._topic_ids.pop(partition, None)
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
        """The offsets that are not in the archive, up to where its last owner said that the log ends."""
        view = await asyncio.to_thread(self._archives.of(partition, topic_id).load)
        current = await self._current(partition)
        said = current.end_offset if current is not None else 0
        return view.next_offset, max(view.next_offset, said)

    async def reported_ms(self, partition: PartitionName) -> int | None:
        """Return when the last owner reported how far its log had come; None: it never did."""
        current = await self._current(partition)
        return None if current is None else current.at_ms

    async def delete(self, topic: TopicName, stored: StoredTopic) -> None:
        """All archives of a topic that is being deleted, and what is still to be noted about them."""
        await self._writer.discard_notes(keys.storage_prefix(topic))
        for number in range(stored.partitions):
            archive = self._archives.of(PartitionName(topic, number), stored.topic_id)
            await asyncio.to_thread(archive.delete_all)

    # What others may look at

    def index(self, place: Place, log: TieredLog, added: SegmentRef) -> None:
        """A slice has become part of the archive."""
        if added.size and added.object is not None:
            entry = ObjectEntry(
                object=added.object, offset_end=added.next_offset, size_bytes=added.size, epoch=_epoch(place)
            )
            self._note(place, keys.archive_object(place.name, added.base), msgspec.json.encode(entry))
        self.report(place, log, added.object)

    def unindex(self, place: Place, removed: Sequence[SegmentRef]) -> None:
        """Slices have gone, or were merged into one that is told of next."""
        for base in sorted({slice_.base for slice_ in removed}):
            self._note(place, keys.archive_object(place.name, base), None)

    def report(self, place: Place, log: TieredLog, name: str | None = None) -> None:
        """How far it has come, so that it is known should this broker be lost."""
        ends = (log.archived.next_offset, log.end_offset)
        if self._reported.get(place.name) == ends:
            return
        self._reported[place.name] = ends
        current = self._current_of(place, log, name)
        self._note(place, keys.archive_current(place.name), msgspec.json.encode(current))

    async def settle(self, place: Place) -> None:
        """Return when what was noted of a partition is written: once it is another's, it cannot be."""
        await self._writer.write_notes(keys.archive_prefix(place.name))

    def _note(self, place: Place, key: str, value: bytes | None) -> None:
        self._writer.note(key, lambda: value, _fences(place))


class _Hooks:
    """What the archive of one partition tells."""

    def __init__(self, tiers: Tiers, place: Place) -> None:
        self._tiers = tiers
        self._place = place
        self.log: TieredLog | None = None

    def archived(self, added: SegmentRef) -> None:
        if self.log is not None:
            self._tiers.index(self._place, self.log, added)

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        self._tiers.unindex(self._place, removed)

    async def settle(self) -> None:
        await self._tiers.settle(self._place)

    def failed(self, error: Exception) -> None:
        _logger.warning("archive_failed", partition=str(self._place.name), error=str(error))


def archiving(policy: Policy) -> Archiving:
    """When a log goes to its archive by the policy of its topic."""
    assert policy.archive_bytes is not None
    assert policy.archive_seconds is not None
    return Archiving(
        ack_archived=policy.ack == Ack.ARCHIVED,
        archive_bytes=policy.archive_bytes,
        archive_seconds=policy.archive_seconds,
    )


def _epoch(place: Place) -> int:
    return place.epoch.epoch if place.epoch is not None else ALONE_EPOCH


def _fences(place: Place) -> list[Compare]:
    return [fence for fence in [place.fence] if fence is not None]
