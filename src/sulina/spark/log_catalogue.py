"""Catalogue of the logs of some topics: what a driver asks before anything is read.

It says which partitions exist, which offsets they hold, where those are stored, and which offset a position means. The
bytes themselves come from a `ByteSource` (byte_source.py), in executors.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from sulina.core.log.archive import ArchiveView
from sulina.core.log.commit import Commit, SegmentRef, commit_version, offset_before
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.position import At, Position
from sulina.core.topic import DeliveryGuarantee, Schema
from sulina.errors import InvalidName, InvalidSettings, NotReliable, OffsetOutOfRange, TopicNotFound, VersionNotRetained
from sulina.spark.byte_source import ByteSource, open_directory, open_shared
from sulina.spark.clients import client_of
from sulina.spark.commit_feed import COMMITS_AT_ONCE
from sulina.spark.options import LogLocation
from sulina.spark.scan import Piece, Range, Span, TopicChoice, cut
from sulina.storage.archive import COMMITS_FOLDER, Archive
from sulina.storage.commit_log import CommitLog
from sulina.types import Epoch, Offset, PartitionName, TopicName, Version
from sulina.wire.messages import PartitionInfo, TopicInfo

SMALL_BYTES = 8 << 20  # up to this size an owner is asked for what is archived too, which is quicker
FROM_BROKERS = "none"


class LogCatalogue(Protocol):
    """The catalogue of the logs of some topics, as they are now."""

    def partitions(self) -> list[PartitionName]:
        """Return the partitions that exist, in order.

        Raises:
            TopicNotFound: a topic that is named does not exist.
        """
        ...

    def span(self, partition: PartitionName) -> Span:
        """Return what a partition holds, by pieces."""
        ...

    def bounds(self, partition: PartitionName) -> tuple[Offset, Offset]:
        """Return the first offset of a partition and the one after its last."""
        ...

    def end(self, partition: PartitionName) -> tuple[Offset, Epoch]:
        """Return the offset after its last, and the epoch of the log that ends there."""
        ...

    def follow(self, partition: PartitionName, offset: Offset, epoch: Epoch) -> Offset:
        """Return where a reader goes on that has read everything before `offset` in `epoch`: earlier, if some was given
        up.
        """
        ...

    def offset(self, partition: PartitionName, position: Position) -> Offset:
        """Return the first offset at or after a position.

        Raises:
            VersionNotRetained: the version is gone, or not there yet.
            OffsetOutOfRange: the log does not have that offset.
        """
        ...

    def end_of(self, partition: PartitionName, version: Version) -> Offset:
        """Return where the log ended at a version.

        Raises:
            VersionNotRetained: the version is gone, or not there yet.
        """
        ...

    def commits(self, partition: PartitionName) -> Iterator[Commit]:
        """Yield every commit that is kept, oldest first, without a cache. Missing ones are skipped.

        Raises:
            CorruptCommit: one is damaged.
        """
        ...

    def schema(self, topic: TopicName) -> Schema | None:
        """Return the schema of a topic's values; None: it is not known here."""
        ...

    def source(self) -> ByteSource:
        """Return the source from which executors read bytes."""
        ...


def open_catalogue(location: LogLocation, topics: TopicChoice) -> LogCatalogue:
    """Open the catalogue of some topics.

    Raises:
        InvalidSettings: the location cannot be one.
        Disconnected: no broker answers.
    """
    if location.url is not None:
        return BrokerCatalogue(location, topics)
    assert location.path is not None
    return FileCatalogue(location.path, location.objects_endpoint, topics)


def common_schema(logs: LogCatalogue) -> Schema:
    """Return the one schema that the values of all topics have.

    Raises:
        InvalidSettings: no topic has a schema that is known here, or the topics have several.
    """
    topics = {name.topic for name in logs.partitions()}
    found = {schema.fingerprint: schema for topic in topics if (schema := logs.schema(topic)) is not None}
    if len(found) != 1:
        reason = (
            "no topic has one that is known here: set url, brokers know schemas" if not found else "there are several"
        )
        raise InvalidSettings(f"values can be decoded only by one schema of their topics, and {reason}")
    return next(iter(found.values()))


def checked_offset(offset: int, start: Offset, end: Offset) -> Offset:
    """Return the offset itself, if a log has it or ends with it.

    Raises:
        OffsetOutOfRange: it does not.
    """
    if not start <= offset <= end:
        raise OffsetOutOfRange(offset=offset, start=start, end=end)
    return Offset(offset)


class BrokerCatalogue:
    """A catalogue that asks a broker, and the archive for what is in it."""

    def __init__(self, location: LogLocation, topics: TopicChoice) -> None:
        assert location.url is not None
        self._url, self._topics = location.url, topics
        self._client = client_of(location.url)
        self._known: dict[TopicName, TopicInfo] = {}
        self._archives: dict[PartitionName, Archive] = {}
        self._objects, self._endpoint = location.objects, location.objects_endpoint
        if self._objects is None:
            node = self._client.admin.info()
            self._objects, self._endpoint = node.objects, location.objects_endpoint or node.objects_endpoint
        elif self._objects == FROM_BROKERS:
            self._objects = None

    def partitions(self) -> list[PartitionName]:
        """Ask the broker which partitions exist.

        Raises:
            TopicNotFound: a topic that is named does not exist.
            NotReliable: a topic that is named has no log.
        """
        names = self._topics.names
        if names is None:
            found = [info for info in self._client.admin.topics() if self._topics.has(TopicName.parse(info.topic))]
            found = [info for info in found if info.settings.delivery == DeliveryGuarantee.RELIABLE]
        else:
            found = [self._client.admin.topic(name) for name in names]
        self._known = {TopicName.parse(info.topic): info for info in found}
        for name, info in self._known.items():
            if info.settings.delivery != DeliveryGuarantee.RELIABLE:
                raise NotReliable(topic=str(name))
        return [
            PartitionName(name, n) for name in sorted(self._known) for n in range(self._known[name].settings.partitions)
        ]

    def bounds(self, partition: PartitionName) -> tuple[Offset, Offset]:
        info = self._partition(partition)
        return Offset(info.start_offset), Offset(info.end_offset)

    def span(self, partition: PartitionName) -> Span:
        info = self._partition(partition)
        start, end, epoch = Offset(info.start_offset), Offset(info.end_offset), _known(info.epoch)
        local = [
            Piece(Offset(max(start, one.start_offset)), Offset(min(end, one.end_offset)), one.size_bytes)
            for one in info.segments
            if max(start, one.start_offset) < min(end, one.end_offset)
        ]
        first = local[0].start if local else end
        archived = min(info.archived_offset or 0, end)
        if self._objects is None or archived <= start or (first <= start and _size(local, archived) <= SMALL_BYTES):
            # An archive that we cannot reach is no reason to read less: its owner reads it for us.
            older = [Piece(start, first, SMALL_BYTES)] if start < first else []
            return Span(partition, start, end, (*older, *local), epoch)
        view = self._archive(partition)
        start = max(start, view.start_offset)  # retention may have gone on since the owner told us
        older = [
            _piece(slice_, start, archived)
            for slice_ in view.slices
            if slice_.size and slice_.base < archived and slice_.next_offset > start
        ]
        return Span(partition, start, end, (*older, *cut(local, archived, end)), epoch)

    def end(self, partition: PartitionName) -> tuple[Offset, Epoch]:
        info = self._partition(partition)
        return Offset(info.end_offset), Epoch(info.epoch)

    def follow(self, partition: PartitionName, offset: Offset, epoch: Epoch) -> Offset:
        found = self._client.admin.locate(partition.topic, Position.at_offset(offset, epoch), partition.partition)
        return Offset(min(offset, found))

    def offset(self, partition: PartitionName, position: Position) -> Offset:
        if position.at == At.OFFSET:
            return checked_offset(position.value, *self.bounds(partition))
        return Offset(self._client.admin.locate(partition.topic, position, partition.partition))

    def end_of(self, partition: PartitionName, version: Version) -> Offset:
        """Ask the owner where the log ended at a version.

        Raises:
            VersionNotRetained: the version is gone, or not there yet.
        """
        found = self._client.admin.commits(partition.topic, partition.partition, start=version, end=version + 1)
        if not found:
            current = min(self._partition(partition).version, version - 1)  # it may have come since
            raise VersionNotRetained(version=version, oldest=0, current=current)
        return found[0].next_offset

    def commits(self, partition: PartitionName) -> Iterator[Commit]:
        start, newest = 0, self._partition(partition).version
        last = COMMITS_AT_ONCE
        while start <= newest:
            end = min(newest + 1, last)
            try:
                yield from self._client.admin.commits(partition.topic, partition.partition, start=start, end=end)
                start = end
            except VersionNotRetained as gone:
                if gone.oldest <= start < gone.version < end:
                    last = gone.version  # it is missing among others: those before it first
                    continue
                start = max(start + 1, gone.oldest)
            last = start + COMMITS_AT_ONCE

    def schema(self, topic: TopicName) -> Schema | None:
        info = self._known.get(topic) or self._client.admin.topic(topic)
        return info.settings.value_schema

    def source(self) -> ByteSource:
        return ByteSource(
            url=self._url,
            objects=self._objects,
            objects_endpoint=self._endpoint,
            topic_ids={name: info.topic_id for name, info in self._known.items()},
        )

    def _partition(self, partition: PartitionName) -> PartitionInfo:
        return self._client.admin.partition(partition.topic, partition.partition)

    def _archive(self, partition: PartitionName) -> ArchiveView:
        archive = self._archives.get(partition)
        if archive is None:
            archive = self._archives[partition] = self.source().archive(partition)
            archive.load()
        else:
            archive.refresh()
        return archive.view


def _known(epoch: int) -> Epoch | None:
    """Return the epoch of a log; None: no owner has claimed it yet."""
    return Epoch(epoch) if epoch >= 0 else None


def _size(pieces: Sequence[Piece], until: int) -> int:
    return sum(piece.size_bytes for piece in pieces if piece.start < until)


def _piece(stored: SegmentRef, start: int, end: int) -> Piece:
    return Piece(Offset(max(start, stored.base)), Offset(min(end, stored.next_offset)), stored.size, stored)


class FileCatalogue:
    """A catalogue without a broker: from an archive (a bucket or a directory), or from a data directory."""

    def __init__(self, path: str, endpoint: str | None, topics: TopicChoice) -> None:
        self._topics = topics
        self._logs: dict[PartitionName, CommitLog | Archive] = {}
        self._url = path if "://" in path else f"file://{os.path.abspath(path)}"
        self._endpoint = endpoint
        self._objects = open_shared(self._url, endpoint)
        self._directory: str | None = None
        self._topic_ids: dict[TopicName, str] = {}

    def partitions(self) -> list[PartitionName]:
        """List the partitions that have files.

        Raises:
            TopicNotFound: a topic that is named has none.
        """
        found = {name: topic_id for name, topic_id in self._found() if self._topics.has(name.topic)}
        for topic in self._topics.names or ():
            if not any(name.topic == topic for name in found):
                raise TopicNotFound(topic=str(topic))
        ids = {name.topic: topic_id for name, topic_id in found.items() if topic_id is not None}
        if not ids and found:
            self._directory = self._url.removeprefix("file://")
        self._topic_ids = ids
        return sorted(found)

    def _found(self) -> Iterator[tuple[PartitionName, str | None]]:
        """Yield every partition with the id of its topic; None in a data directory, which has one topic of a name."""
        for folder in self._objects.folders():
            try:
                name = PartitionName.from_directory(folder)
            except InvalidName:
                continue
            below = self._objects.folders(folder)
            if COMMITS_FOLDER in below:
                yield name, None
            elif below:
                yield name, self._newest(folder, below)

    def _newest(self, folder: str, topic_ids: Sequence[str]) -> str:
        """Return the id of the topic that was written last: a deleted topic's files stay for a while."""
        if len(topic_ids) == 1:
            return topic_ids[0]

        def written(topic_id: str) -> float:
            commits = self._objects.list(f"{folder}/{topic_id}/{COMMITS_FOLDER}")
            return max((commit.modified for commit in commits), default=0.0)

        return max(topic_ids, key=written)

    def _state(self, partition: PartitionName) -> tuple[Offset, Offset, Sequence[SegmentRef]]:
        log = self._log(partition)
        if isinstance(log, Archive):
            view = log.load()
            return view.start_offset, view.next_offset, view.slices
        state = log.load()
        return state.start_offset, state.next_offset, state.segments

    def _epochs(self, partition: PartitionName) -> EpochHistory:
        _, end, stored = self._state(partition)
        log = self._log(partition)
        return EpochHistory(log.view.epoch if isinstance(log, Archive) else log.state.epoch, end, stored)

    def end(self, partition: PartitionName) -> tuple[Offset, Epoch]:
        epochs = self._epochs(partition)
        return epochs.next_offset, epochs.epoch

    def follow(self, partition: PartitionName, offset: Offset, epoch: Epoch) -> Offset:
        again = self._epochs(partition).continuation(offset, epoch)
        return offset if again is None else again

    def _log(self, partition: PartitionName) -> CommitLog | Archive:
        log = self._logs.get(partition)
        if log is None:
            is_archive = self._directory is None
            log = self.source().archive(partition) if is_archive else open_directory(self._directory or "", partition)
            self._logs[partition] = log
        return log

    def bounds(self, partition: PartitionName) -> tuple[Offset, Offset]:
        start, end, _ = self._state(partition)
        return start, end

    def span(self, partition: PartitionName) -> Span:
        start, end, stored = self._state(partition)
        pieces = [_piece(one, start, end) for one in stored if one.size and one.next_offset > start]
        return Span(partition, start, end, tuple(pieces), _known(self._epochs(partition).epoch))

    def offset(self, partition: PartitionName, position: Position) -> Offset:
        start, end, stored = self._state(partition)
        match position.at:
            case At.EARLIEST:
                return start
            case At.LATEST:
                return end
            case At.OFFSET:
                return checked_offset(position.value, start, end)
            case At.VERSION:
                if not position.value:
                    return start
                return max(start, offset_before(self._commit(partition, Version(position.value))))
        found = self._first_since(partition, position.value, [one for one in stored if one.size])
        return end if found is None else found

    def _first_since(self, partition: PartitionName, timestamp_ms: int, stored: Sequence[SegmentRef]) -> Offset | None:
        from sulina.core.records.columns import decode_columns  # whose kernels take a second to import

        for segment in stored:
            if segment.timestamp_max < timestamp_ms:
                continue
            reader = self.source().open(Range(partition, segment.base, segment.next_offset, segment.size, (segment,)))
            offset = segment.base
            while offset < segment.next_offset:
                data, following = reader.read(offset)
                columns = decode_columns(data, columns=["offset", "timestamp"])
                times = columns.column("timestamp").cast("int64").to_numpy()
                late = np.flatnonzero(times >= timestamp_ms)
                if len(late):
                    return Offset(columns.column("offset")[int(late[0])].as_py())
                offset = following
        return None

    def _commit(self, partition: PartitionName, version: Version) -> Commit:
        log = self._log(partition)
        self._state(partition)
        if not isinstance(log, Archive):
            return log.entry(version)
        found = log.commits(version, Version(version + 1))
        if not found:  # its records came into the archive without their commits
            raise VersionNotRetained(version=version, oldest=version + 1, current=log.view.log_version)
        return found[0]

    def end_of(self, partition: PartitionName, version: Version) -> Offset:
        return self._commit(partition, version).next_offset

    def commits(self, partition: PartitionName) -> Iterator[Commit]:
        if self._directory is None:
            archive = self.source().archive(partition, is_fresh=True)
            for slice_ in archive.load().slices:
                yield from archive.commits(slice_.version_start, slice_.version_end)
            return
        log = open_directory(self._directory, partition)
        for version in map(commit_version, log.store.list()):
            if version is not None:
                with suppress(VersionNotRetained):  # cleaned up since
                    yield log.entry(version)

    def schema(self, topic: TopicName) -> Schema | None:
        return None

    def source(self) -> ByteSource:
        return ByteSource(
            objects=self._url if self._directory is None else None,
            objects_endpoint=self._endpoint,
            directory=self._directory,
            topic_ids=self._topic_ids,
        )
