"""The registered readers of all topics, as the metadata store has them. Any broker may be asked about any of them.

A position is written only while its topic is there, in a transaction that compares what it builds on. Before each round
of retention every broker looks what readers need, also those that have registered elsewhere; what registers here counts
at once. While that cannot be known, nothing is forgotten.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from sulina.broker.catalogue import Catalogue
from sulina.broker.events import EventStream
from sulina.broker.options import BrokerOptions
from sulina.broker.partition import Partition
from sulina.broker.topic import Topic
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current
from sulina.core.delivery.readers import (
    NeededOffsets,
    ReaderKey,
    ReaderPosition,
    RegisteredReader,
    gone_back,
    grouped,
    needed,
)
from sulina.core.formats import METADATA
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.topic import DeliveryGuarantee
from sulina.errors import (
    CorruptCommit,
    InvalidInput,
    InvalidName,
    LimitReached,
    NewerFormat,
    NotReliable,
    NotServing,
    PartitionNotFound,
    ReaderAhead,
    ReaderNotFound,
    SulinaError,
    TopicNotFound,
)
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Clock, Compare, Entry, MetadataStore, Put
from sulina.types import Offset, PartitionName, TopicName, checked_reader
from sulina.wire.messages import ReaderInfo, ReaderPage, ReaderPositionInfo, ReaderSettings

READERS_OF_A_PAGE_MAX = 1000
ENDS_OF_A_PAGE_MAX = 100  # partitions that a listing looks into, if their logs are not open
PUT_TRIES = 10
TOGETHER_MAX = TXN_OPERATIONS_MAX - 1  # each position is compared, and the topic

_logger = structlog.get_logger("sulina.readers")

End = tuple[int | None, int]  # where a log begins, if that is known, and ends


@dataclass(slots=True)
class _Found:
    """What a listing had."""

    readers: dict[ReaderKey, RegisteredReader]
    entries: dict[str, Entry]
    damage: dict[PartitionName, CorruptCommit | NewerFormat]  # positions that cannot be read

    def check(self, topic: TopicName | None = None) -> None:
        """Check that the positions of one topic, or of all, could be read.

        Raises:
            CorruptCommit: one could not.
        """
        for partition, error in self.damage.items():
            if topic in (None, partition.topic):
                raise error


class Readers:
    """Registers the readers of all topics; `topic_of` returns the topics that are known here."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalogue: Catalogue,
        options: BrokerOptions,
        topic_of: Callable[[TopicName], Topic | None],
        *,
        clock: Clock,
        shown_time: Callable[[], float],
        events: EventStream,
    ) -> None:
        self._metadata = metadata
        self._catalogue = catalogue
        self._options = options
        self._topic_of = topic_of
        self._clock = clock
        self._shown_time = shown_time  # by which they expire: no single clock may end what they hold back
        self._events = events
        self._needed: dict[PartitionName, NeededOffsets] | None = None  # None: it is not known
        self._put_here: dict[PartitionName, tuple[int, NeededOffsets]] = {}  # by revision, since the last look

    # What clients ask

    async def put(self, name: str, topic: TopicName, settings: ReaderSettings) -> tuple[ReaderInfo, bool]:
        """Register a reader, or store where it is now; return it, and whether it is new.

        Raises:
            InvalidInput: no position is given.
            TopicNotFound, PartitionNotFound, NotReliable: there is no such log.
            ReaderAhead: the reader would go back, and it was not forced.
            LimitReached: there is no room for more readers.
            NotServing: others keep changing it.
        """
        checked_reader(name)
        if not settings.positions:
            raise InvalidInput("positions must name a partition, and the next offset that the reader needs there")
        is_new: bool | None = None
        for _ in range(PUT_TRIES):
            mark = await self._mark(topic, settings.positions)
            found = await self._list(keys.reader_prefix(name, topic))
            if not settings.force:
                found.check()
            reader = found.readers.get((name, topic)) or RegisteredReader(name, topic)
            back = gone_back(reader.positions, settings.positions, settings.epochs)
            if back is not None and not settings.force:
                raise ReaderAhead(
                    topic=str(topic),
                    reader=name,
                    partition=back,
                    offset=settings.positions[back],
                    current=reader.positions[back].offset,
                )
            is_new = not reader.positions if is_new is None else is_new
            await self._check_room(name, topic, settings.positions, found.entries)
            written = self._written(reader, settings)
            if await self._store(name, topic, written, found.entries, mark):
                break
        else:
            raise NotServing(reason=f"others keep changing reader {name} of {topic}")
        if is_new:
            self._events.emit("reader_registered", topic, reader=name, partitions=len(written))
        elif back is not None:
            self._events.emit("reader_moved_back", topic, reader=name, partition=back)
        reader.positions |= written
        return (await self._infos([reader]))[0], is_new

    async def get(self, name: str, topic: TopicName) -> ReaderInfo:
        """Return a reader.

        Raises:
            TopicNotFound, ReaderNotFound: there is no such reader.
        """
        checked_reader(name)
        await self._mark(topic)
        found = await self._list(keys.reader_prefix(name, topic))
        found.check()
        if not found.readers:
            raise ReaderNotFound(topic=str(topic), reader=name)
        return (await self._infos(found.readers.values()))[0]

    async def page(self, *, topic: TopicName | None = None, after: str | None = None, limit: int = 100) -> ReaderPage:
        """Return a page of readers by name, of one topic or of all.

        Raises:
            InvalidInput: the limit is out of bounds.
        """
        if not 1 <= limit <= READERS_OF_A_PAGE_MAX:
            raise InvalidInput(f"limit must be 1 to {READERS_OF_A_PAGE_MAX}, not {limit}")
        if topic is not None:
            await self._mark(topic)
        found = await self._list(keys.READERS)
        found.check(topic)
        readers = {_text(key): reader for key, reader in found.readers.items() if topic in (None, reader.topic)}
        rest = [text for text in sorted(readers) if after is None or text > after]
        shown = rest[:limit]
        infos = await self._infos([readers[text] for text in shown], looks_max=ENDS_OF_A_PAGE_MAX)
        return ReaderPage(readers=infos, next=shown[-1] if len(shown) < len(rest) else None)

    async def delete(self, name: str, topic: TopicName) -> None:
        """Delete a reader: it holds back nothing any more.

        Raises:
            TopicNotFound, ReaderNotFound: there is no such reader.
        """
        checked_reader(name)
        await self._mark(topic)
        gone = [entry.key for entry in (await self._metadata.list(keys.reader_prefix(name, topic))).entries]
        if not gone:
            raise ReaderNotFound(topic=str(topic), reader=name)
        for first in range(0, len(gone), TXN_OPERATIONS_MAX):
            await self._metadata.txn(deletes=gone[first : first + TXN_OPERATIONS_MAX])
        self._events.emit("reader_deleted", topic, reader=name)

    # What retention asks

    async def look(self) -> None:
        """Learn what readers need now, and delete those that have been silent for very long."""
        try:
            listing = await self._metadata.list(keys.READERS)
        except (SulinaError, OSError) as error:
            self._needed = None
            _logger.warning("readers_not_read", error=str(error))
            return
        found, now_ms = _found(listing.entries), self._shown_ms()
        for damage in found.damage.values():
            _logger.error("reader_damaged", error=str(damage))
        lowest = needed(found.readers.values(), now_ms, found.damage)
        self._put_here = {name: put for name, put in self._put_here.items() if put[0] > listing.revision}
        for partition, (_, put) in self._put_here.items():  # later than the listing
            for epoch, offset in put.lowest.items():
                lowest.setdefault(partition, NeededOffsets()).add(offset, epoch)
        self._needed = lowest
        try:
            await self._sweep(found, [reader for reader in found.readers.values() if reader.is_deletable(now_ms)])
        except (SulinaError, OSError) as error:
            _logger.warning("readers_not_swept", error=str(error))

    def keep_from(self, partition: PartitionName, log: EpochHistory) -> Offset | None:
        """Return from where on retention must keep a log, as of the last look; None: no reader needs any of it."""
        return Offset(0) if self._needed is None else self._needed.get(partition, NeededOffsets()).first_in(log)

    # What is stored

    async def _mark(self, topic: TopicName, partitions: Iterable[int] = ()) -> Compare:
        """Return what holds while the topic exists with these partitions."""
        known = await self._catalogue.read_topic(topic)
        if known is None or known[0].is_deleting:
            raise TopicNotFound(topic=str(topic))
        stored, mark = known
        for number in sorted(partitions):
            if stored.delivery != DeliveryGuarantee.RELIABLE:
                raise NotReliable(topic=str(topic))
            if not 0 <= number < stored.partitions:
                raise PartitionNotFound(topic=str(topic), partition=number, partitions=stored.partitions)
        return mark

    async def _list(self, prefix: str) -> _Found:
        return _found((await self._metadata.list(prefix)).entries)

    def _shown_ms(self) -> int:
        return int(self._shown_time() * 1000)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    def _written(self, reader: RegisteredReader, settings: ReaderSettings) -> dict[int, ReaderPosition]:
        """Return the positions as they will be: those that are not given stay as they were."""
        known = reader.newest if reader.positions else ReaderPosition(offset=0, updated_ms=0)
        expires = known.expires_seconds if settings.expires_seconds is None else settings.expires_seconds
        return {
            number: ReaderPosition(
                offset=offset,
                updated_ms=self._now_ms(),
                expires_seconds=expires,
                kind=known.kind if settings.kind is None else settings.kind,
                description=known.description if settings.description is None else settings.description,
                epoch=settings.epochs.get(number, NO_EPOCH),
            )
            for number, offset in settings.positions.items()
        }

    async def _check_room(
        self, name: str, topic: TopicName, positions: Mapping[int, int], entries: Mapping[str, Entry]
    ) -> None:
        """Check that there is room for more positions, if need be without those that are expired."""
        limit = self._options.limits.reader_positions_max
        new = sum(keys.reader_position(name, PartitionName(topic, number)) not in entries for number in positions)
        if not new:
            return
        found = await self._list(keys.READERS)
        if len(found.entries) + new <= limit:
            return
        expired = [reader for reader in found.readers.values() if reader.is_expired(self._shown_ms())]
        await self._sweep(found, [reader for reader in expired if (reader.name, reader.topic) != (name, topic)])
        if len((await self._metadata.list(keys.READERS)).entries) + new > limit:
            raise LimitReached(kind="positions of registered readers", limit=limit)

    async def _store(
        self,
        name: str,
        topic: TopicName,
        positions: Mapping[int, ReaderPosition],
        entries: Mapping[str, Entry],
        mark: Compare,
    ) -> bool:
        """Return whether all of it was stored: not if another writer was quicker."""
        numbers = sorted(positions)
        for first in range(0, len(numbers), TOGETHER_MAX):
            some = {PartitionName(topic, number): positions[number] for number in numbers[first : first + TOGETHER_MAX]}
            puts = [Put(keys.reader_position(name, partition), some[partition].stored()) for partition in some]
            compares = [Compare(put.key, _revision(entries.get(put.key))) for put in puts]
            done = await self._metadata.txn(compares=[mark, *compares], puts=puts)
            if not done.is_done:
                return False
            self._count(done.revision, some)
        return True

    def _count(self, revision: int, positions: Mapping[PartitionName, ReaderPosition]) -> None:
        """Count what has registered here in a round of retention that is under way."""
        for partition, position in positions.items():
            _, put = self._put_here.get(partition, (revision, NeededOffsets()))
            put.add(position.offset, position.epoch)
            self._put_here[partition] = (revision, put)
            if self._needed is not None:
                self._needed.setdefault(partition, NeededOffsets()).add(position.offset, position.epoch)

    async def _sweep(self, found: _Found, readers: Sequence[RegisteredReader]) -> None:
        """Delete readers, unless they have come back meanwhile."""
        for reader in readers:
            names = [PartitionName(reader.topic, number) for number in sorted(reader.positions)]
            gone = [keys.reader_position(reader.name, partition) for partition in names]
            for first in range(0, len(gone), TXN_OPERATIONS_MAX):
                some = gone[first : first + TXN_OPERATIONS_MAX]
                unchanged = [Compare(key, _revision(found.entries.get(key))) for key in some]
                if (await self._metadata.txn(compares=unchanged, deletes=some)).is_done and not first:
                    self._events.emit("reader_forgotten", reader.topic, reader=reader.name)

    # What is shown

    async def _infos(self, readers: Iterable[RegisteredReader], looks_max: int | None = None) -> list[ReaderInfo]:
        shown = list(readers)
        names = {PartitionName(reader.topic, number) for reader in shown for number in reader.positions}
        ends = await self._ends(sorted(names), looks_max)
        return [_info(reader, ends, self._shown_ms()) for reader in shown]

    async def _ends(self, names: Sequence[PartitionName], looks_max: int | None) -> dict[PartitionName, End]:
        """Return where partitions begin and end, as far as that is known here."""
        found: dict[PartitionName, End] = {}
        unknown: list[PartitionName] = []
        for name in names:
            partition = self._partition(name)
            log = None if partition is None else partition.log_if_open
            if log is None:
                unknown.append(name)
            else:
                found[name] = (log.view.start_offset, log.view.next_offset)
        looked = unknown[:looks_max]
        ends = await asyncio.gather(*(self._end(name) for name in looked))
        return found | {name: end for name, end in zip(looked, ends, strict=True) if end is not None}

    def _partition(self, name: PartitionName) -> Partition | None:
        """Return a partition, if it is served here."""
        topic = self._topic_of(name.topic)
        if topic is None or not topic.is_reliable or name.partition >= len(topic.partitions):
            return None
        partition = topic.partitions[name.partition]
        return partition if partition.ownership.is_here else None

    async def _end(self, name: PartitionName) -> End | None:
        """Return the end of a log that is not open: open it, or take what its owner last reported."""
        try:
            partition = self._partition(name)
            if partition is not None:
                async with partition.using() as log:
                    return log.view.start_offset, log.view.next_offset
            said = await self._metadata.get(keys.archive_current(name))
            return None if said is None else (None, METADATA.decode(said.value, Current, said.key).end_offset)
        except (SulinaError, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _logger.warning("end_not_known", partition=str(name), error=str(error))
            return None


def _found(entries: Sequence[Entry]) -> _Found:
    positions: list[tuple[str, PartitionName, ReaderPosition]] = []
    damage: dict[PartitionName, CorruptCommit | NewerFormat] = {}
    for entry in entries:
        try:
            name, partition = keys.reader_of(entry.key)
        except (ValueError, InvalidName):
            _logger.warning("reader_key_unknown", key=entry.key)  # it is nobody's position
            continue
        try:
            positions.append((name, partition, ReaderPosition.load(entry.key, entry.value)))
        except (CorruptCommit, NewerFormat) as error:
            damage[partition] = error
    return _Found(grouped(positions), {entry.key: entry for entry in entries}, damage)


def _revision(entry: Entry | None) -> int:
    return NO_REVISION if entry is None else entry.revision


def _text(key: ReaderKey) -> str:
    """Return what a page goes on after: `name/ns/topic`."""
    return f"{key[0]}{key[1]}"


def _info(reader: RegisteredReader, ends: Mapping[PartitionName, End], now_ms: int) -> ReaderInfo:
    newest = reader.newest
    positions = []
    for number, position in sorted(reader.positions.items()):
        start, end = ends.get(PartitionName(reader.topic, number), (None, None))
        positions.append(
            ReaderPositionInfo(
                partition=number,
                offset=position.offset,
                updated_ms=position.updated_ms,
                start_offset=start,
                end_offset=end,
                lag=None if end is None else max(0, end - position.offset),
            )
        )
    lags = [shown.lag for shown in positions if shown.lag is not None]
    return ReaderInfo(
        reader=reader.name,
        topic=str(reader.topic),
        kind=newest.kind,
        description=newest.description,
        expires_seconds=newest.expires_seconds,
        updated_ms=newest.updated_ms,
        is_expired=reader.is_expired(now_ms),
        positions=positions,
        lag=sum(lags) if len(lags) == len(positions) else None,
    )
