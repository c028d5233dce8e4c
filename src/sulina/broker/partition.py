"""One partition that this node owns: its log, opened when it is first used, and its state.

ACTIVE takes records. DRAINING finishes what it has taken and refuses more, with an error that says to try again.
CLOSED has let go of its directory.
"""

import asyncio
from collections.abc import Awaitable, Callable

from sulina.core.log_state import Appended
from sulina.core.position import At, Position
from sulina.errors import Draining, VersionNotRetained
from sulina.ports import Bytes
from sulina.storage.partition_log import PartitionLog
from sulina.types import Offset, PartitionName, Version
from sulina.wire.messages import PartitionInfo, SegmentInfo, TopicState

Opener = Callable[[PartitionName], Awaitable[PartitionLog]]


class Partition:
    """Whoever wants to know of new records adds a callback to `watchers`."""

    def __init__(self, name: PartitionName, opener: Opener) -> None:
        self.name = name
        self.state = TopicState.ACTIVE
        self.watchers: set[Callable[[], None]] = set()
        self._opener = opener
        self._log: PartitionLog | None = None
        self._opening: asyncio.Task[PartitionLog] | None = None

    @property
    def log_if_open(self) -> PartitionLog | None:
        """The log, if anybody has used it."""
        return self._log

    async def log(self) -> PartitionLog:
        """The log; opened if need be, by one for all. LogLocked, Corrupt, Draining."""
        if self._log is not None:
            return self._log
        if self.state == TopicState.CLOSED:
            raise Draining(topic=str(self.name.topic))
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"open {self.name}")
        return await asyncio.shield(self._opening)

    async def _open(self) -> PartitionLog:
        try:
            self._log = await self._opener(self.name)
            return self._log
        finally:
            self._opening = None

    def append_nowait(
        self, log: PartitionLog, data: Bytes, *, txn_id: str | None, expected_version: int | None
    ) -> asyncio.Future[Appended]:
        """Append to the log that `log` gave. What is refused at once raises, the rest is the future's."""
        if self.state != TopicState.ACTIVE:
            raise Draining(topic=str(self.name.topic))
        version = None if expected_version is None else Version(expected_version)
        future = log.append_nowait(data, txn_id=txn_id, expected_version=version)
        if self.watchers:
            future.add_done_callback(self._tell)
        return future

    def _tell(self, _done: object) -> None:
        for watcher in self.watchers:
            watcher()

    async def close(self) -> None:
        """Finish what was taken, then let go of the directory."""
        self.state = TopicState.DRAINING
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._log is not None:
            await self._log.close()
            self._log = None
        self.state = TopicState.CLOSED

    async def locate(self, position: Position) -> Offset:
        """The offset that a position means now, never outside the log."""
        log = await self.log()
        view = log.view
        match position.at:
            case At.EARLIEST:
                return view.start_offset
            case At.LATEST:
                return view.next_offset
            case At.OFFSET:
                return Offset(min(max(position.value, view.start_offset), view.next_offset))
            case At.TIMESTAMP:
                found = await log.offset_for_timestamp(position.value)
                return view.next_offset if found is None else found
            case At.VERSION:
                return await self._offset_of_version(log, position.value)

    async def _offset_of_version(self, log: PartitionLog, version: int) -> Offset:
        """Where the first record lies that this version or a later one added."""
        view = log.view
        if version > view.version:
            raise VersionNotRetained(version=version, oldest=0, current=view.version)
        if version <= 0:
            return view.start_offset
        before = await log.commits(Version(version - 1), Version(version))
        return Offset(min(max(before[0].next_offset, view.start_offset), view.next_offset))

    async def info(self) -> PartitionInfo:
        """What the log has now."""
        log = await self.log()
        view = log.view
        return PartitionInfo(
            topic=str(self.name.topic),
            partition=self.name.partition,
            state=self.state,
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
        )
