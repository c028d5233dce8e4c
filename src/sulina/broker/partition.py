"""The log of one partition, while this node owns it; opened when it is first used.

ACTIVE takes records. DRAINING finishes what it has taken and refuses more, with an error that says to try again.
CLOSED has closed its log. A log that nobody has used for a while may be closed and opened again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sulina.broker.partition_ownership import PartitionOwnership
from sulina.core.log.commit import offset_before
from sulina.core.log.position import At, Position
from sulina.core.log.retention import Sightings
from sulina.errors import LogClosed, NotServing, StaleEpoch, VersionNotRetained
from sulina.storage.partition_log import PartitionLog
from sulina.storage.tiered_log import TieredLog
from sulina.types import Epoch, Offset, Version
from sulina.wire.messages import PartitionInfo, SegmentInfo, TopicState

Log = PartitionLog | TieredLog
Opener = Callable[["Partition"], Awaitable[Log]]


class Partition:
    """The log of a partition. A caller that keeps it across an await does so within `using`, which keeps it open."""

    def __init__(self, ownership: PartitionOwnership, opener: Opener) -> None:
        self.name = ownership.name
        self.ownership = ownership
        self._opener = opener
        self._log: Log | None = None
        self._turn: asyncio.Task[None] | None = None  # being opened, or being closed because idle
        self._users = 0
        self._sightings = Sightings()
        self._sighted_epoch = -1

    def sighted(self, log: Log, now: float) -> Sightings:
        """Note where the log ends now, by the monotonic clock; return all that was noted under this epoch."""
        if log.view.epoch != self._sighted_epoch:
            self._sightings, self._sighted_epoch = Sightings(), log.view.epoch
        self._sightings.note(log.end_offset, now)
        return self._sightings

    @property
    def log_if_open(self) -> Log | None:
        """Return the log, if it is open; valid until the next await."""
        return self._log

    async def open(self) -> None:
        """Open the log, unless it is open. It may be closed again at the next await; `using` keeps it open.

        Raises:
            LogLocked, Corrupt, NotServing, LimitReached: it cannot be opened here, or not now.
        """
        async with self.using():
            pass

    @asynccontextmanager
    async def using(self) -> AsyncIterator[Log]:
        """Open the log if it is closed, by one caller for all, and keep it open.

        Raises:
            LogLocked, Corrupt, NotServing, LimitReached: it cannot be opened here, or not now.
        """
        self._users += 1
        log: Log | None = None
        try:
            while self._log is None:
                if not self.ownership.is_ours:
                    raise self.ownership.refusal()
                self._turn = self._turn or asyncio.create_task(
                    self._take_turn(self._opener(self)), name=f"open {self.name}"
                )
                await asyncio.shield(self._turn)
            log = self._log
            yield log
        except LogClosed:
            if not self.ownership.is_here:
                raise self.ownership.refusal() from None
            if log is self._log:
                raise
            raise NotServing(reason=f"the log of {self.name} is being opened again") from None
        except StaleEpoch as stale:
            raise self.ownership.overtaken(stale) from None
        finally:
            self._users -= 1

    @asynccontextmanager
    async def reading(self, *, stale: bool = False) -> AsyncIterator[Log]:
        """Keep the log open for an answer to a reader, which may be sent only if the partition was ours all the while.

        `stale`: the reader takes what is here, also if another broker has more by now.

        Raises:
            LeaseExpired, NotOwner: it was not ours, or that is not known.
        """
        async with self.using() as log:
            revision = self.ownership.revision
            yield log
            if not stale:
                self.ownership.check_held(revision)

    @property
    def is_stale(self) -> bool:
        """Return whether another broker may have more than is here."""
        return not self.ownership.may_ack(self.ownership.revision)

    async def _take_turn(self, work: Awaitable[Log | None]) -> None:
        """Open the log, or close it, while `using` waits."""
        try:
            self._log = await work
        finally:
            self._turn = None

    @property
    def is_idle(self) -> bool:
        """Return whether the log is open, and nobody would miss it."""
        return self._log is not None and not self._users and self._turn is None and self._log.is_idle

    async def rest(self) -> None:
        """Close the log until somebody uses it again."""
        if not self.is_idle:
            return
        log, self._log = self._log, None
        assert log is not None

        async def close() -> None:
            await log.close()

        self._turn = asyncio.create_task(self._take_turn(close()), name=f"close {self.name}")
        await asyncio.shield(self._turn)

    async def reopen(self) -> None:
        """Close a log that has stopped, and recover it from what is on disk; what follows goes into a new file."""
        log, self._log = self._log, None
        if log is None:
            return

        async def again() -> Log:
            await log.close()
            opened = await self._opener(self)
            # Of the file in which a sync has failed nobody knows what a later sync would say.
            try:
                await opened.fsync_and_rotate()
            except BaseException:
                await asyncio.shield(opened.close())  # else its lock would keep us out for ever
                raise
            return opened

        self._turn = asyncio.create_task(self._take_turn(again()), name=f"open {self.name}")
        await asyncio.shield(self._turn)

    async def close(self) -> None:
        """Finish what was taken, then close the log. It is not opened again under this assignment."""
        if self.ownership.is_here:
            self.ownership.state = TopicState.DRAINING
        self.ownership.is_closing = True
        while self._turn is not None:
            await asyncio.wait([self._turn])
        if self._log is not None:
            log, self._log = self._log, None
            await log.close()
        self.ownership.state = TopicState.CLOSED

    async def locate(self, position: Position, *, stale: bool = False) -> Offset:
        """Return the offset that a position means now, never outside the log; in what is here, if `stale`."""
        async with self.reading(stale=stale) as log:
            return await _located(log, position)

    async def locate_with_epoch(self, position: Position) -> tuple[Offset, Epoch]:
        """Return the offset that a position means now, and the epoch of the log in which it does."""
        async with self.using() as log:
            return await _located(log, position), log.view.epoch

    async def info(self, *, stale: bool = False) -> PartitionInfo:
        """Return what the log has now; what is here, if `stale`."""
        async with self.reading(stale=stale) as log:
            view = log.view
            return PartitionInfo(
                topic=str(self.name.topic),
                partition=self.name.partition,
                state=self.ownership.state,
                epoch=view.epoch,
                version=view.version,
                start_offset=view.start_offset,
                end_offset=view.next_offset,
                size_bytes=sum(segment.size for segment in view.segments),
                segments=[
                    SegmentInfo(
                        name=segment.name,
                        start_offset=segment.base,
                        end_offset=segment.next_offset,
                        size_bytes=segment.size,
                        is_sealed=segment.sealed,
                    )
                    for segment in view.segments
                ],
                error=str(log.stopped or log.damage or "") or None,
                archived_offset=log.archived_offset,
                is_stale=self.is_stale,
            )


async def _located(log: Log, position: Position) -> Offset:
    view = log.view
    match position.at:
        case At.EARLIEST:
            return view.start_offset
        case At.LATEST:
            return view.next_offset
        case At.OFFSET:
            again = None if position.epoch is None else log.epochs.continuation(position.value, position.epoch)
            offset = position.value if again is None else again
            return Offset(min(max(offset, view.start_offset), view.next_offset))
        case At.TIMESTAMP:
            found = await log.offset_for_timestamp(position.value)
            return view.next_offset if found is None else found
        case At.VERSION:
            return await _offset_of_version(log, position.value)


async def _offset_of_version(log: Log, version: int) -> Offset:
    """Return the offset of the first record that a version, or a later one, added."""
    view = log.view
    if version > view.version:
        raise VersionNotRetained(version=version, oldest=0, current=view.version)
    if version <= 0:
        return view.start_offset
    found = await log.commits(Version(version), Version(version + 1))
    if not found:  # its records came into the archive without their commits
        raise VersionNotRetained(version=version, oldest=version + 1, current=view.version)
    return Offset(min(max(offset_before(found[0]), view.start_offset), view.next_offset))
