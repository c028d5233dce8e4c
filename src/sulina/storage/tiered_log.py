"""The log of one partition that spans a directory and an archive. It is used like a `PartitionLog`.

- Records are appended to the directory first, and from there archived. Old offsets and old versions are read from the
  archive when the directory no longer has them.
- Opening the log claims the archive: an earlier owner can add nothing more to it. The log continues from its directory
  if that is the newest, else from the archive; never from 0 where there are records (`core.log.resume`).
- Where acks wait for the archive, readers do too: records that they have seen stay, whichever broker is the next owner.
- An append is acknowledged only if this broker is the owner at that moment.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar

from sulina.clock import SystemClock
from sulina.core.log.archive import ArchiveView
from sulina.core.log.commit import Commit, Remove
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import Appended, View
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.resume import End as Drained
from sulina.core.log.resume import Witness
from sulina.core.log.retention import Retention, expired
from sulina.errors import (
    CorruptLog,
    CorruptSegment,
    LogClosed,
    LogStopped,
    NotYet,
    OffsetOutOfRange,
    QueueFull,
    StaleEpoch,
    VersionNotRetained,
)
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.ports import Bytes, Clock, Files
from sulina.storage.acks import Acks, always
from sulina.storage.archive import Archive
from sulina.storage.directory_log import READ_BYTES, LogMetrics, LogOptions, Slice
from sulina.storage.files import OsFiles
from sulina.storage.partition_directory import DirectoryResume, Resumed
from sulina.storage.partition_log import LogThreads, PartitionLog, Transaction
from sulina.storage.uploader import ArchiveHooks, Archiving, NoHooks, Uploader
from sulina.storage.waiters import ViewWaiters
from sulina.types import Epoch, Offset, Version

__all__ = ["ArchiveHooks", "Archiving", "Drained", "NoHooks", "TieredLog"]

Result = TypeVar("Result")


class TieredLog:
    """Open with `TieredLog.open`; use on the loop that opened it; then `close`."""

    def __init__(
        self,
        log: PartitionLog,
        archive: Archive,
        acks: Acks,
        resumed: Resumed,
        options: LogOptions,
        threads: LogThreads,
        clock: Clock,
        hooks: ArchiveHooks,
        archiving: Archiving,
    ) -> None:
        self.resumed = resumed
        self.local = log  # the part on disk
        self.archive = archive
        self._acks = acks
        self._options = options
        self._threads = threads
        self._owns_threads = False
        self._clock = clock
        self._hooks = hooks
        self._fenced: StaleEpoch | None = None
        self._waiters = ViewWaiters()
        self._closed: asyncio.Task[None] | None = None
        self.watchers: set[Callable[[], None]] = set()  # called on the loop when readers may see more
        self.uploader = Uploader(
            log,
            archive,
            settings=archiving,
            clock=clock,
            threads=threads.archive_writers,
            gate=threads.archive_gate,
            hooks=hooks,
            on_progress=self._on_archived,
            on_failure=self._on_failure,
        )
        self._view = self._newest_view(None)
        archive.readers = archive.readers or threads.archive_readers
        log.watchers.add(self._on_appended)

    @classmethod
    async def open(
        cls,
        directory: str,
        archive: Archive,
        *,
        topic_id: str,
        epoch: Epoch,
        broker_id: str,
        options: LogOptions | None = None,
        archiving: Archiving | None = None,
        may_ack: Callable[[], bool] = always,
        partition: str = "",
        heard: Sequence[Witness] = (),
        must_resume: bool = False,
        is_adopted: bool = False,
        files: Files | None = None,
        clock: Clock | None = None,
        threads: LogThreads | None = None,
        metrics: LogMetrics | None = None,
        hooks: ArchiveHooks | None = None,
        failpoints: FailpointHook = no_failpoints,
    ) -> Self:
        """Claim the archive with `epoch`, then continue from the directory or from the archive. May be retried.

        `may_ack` is called before each answer to an append. `heard` has the ends that were reported of `partition`: the
        log must reach them. `must_resume`: only this disk has all acknowledged records, so the directory must be there
        and be the newest. `is_adopted`: a directory without a stamp is this topic's, if the archive has no claim yet.

        Raises:
            SulinaError: as `DirectoryResume.run`.
        """
        clock, files = clock or SystemClock(), files or OsFiles()
        owned = threads is None
        threads = threads or LogThreads.of(writers=2, readers=2, archivers=4)
        options = replace(options or LogOptions(), epoch=epoch, broker_id=broker_id)
        archiving = archiving or Archiving()
        resume = DirectoryResume(
            directory=directory,
            archive=archive,
            topic_id=topic_id,
            epoch=epoch,
            broker_id=broker_id,
            partition=partition,
            heard=heard,
            must_resume=must_resume,
            is_adopted=is_adopted,
            limits=options.memory,
            files=files,
            failpoints=failpoints,
        )
        acks = Acks(broker_id, may_ack, clock, waits=archiving.ack_archived)
        try:
            resumed = await _finished(asyncio.get_running_loop().run_in_executor(threads.archive_writers, resume.run))
            log = await PartitionLog.open(
                directory,
                options=options,
                files=files,
                clock=clock,
                threads=threads,
                metrics=metrics,
                failpoints=failpoints,
                answer=acks.answer,
            )
            tiered = cls(log, archive, acks, resumed, options, threads, clock, hooks or NoHooks(), archiving)
            await tiered._begin(owns_threads=owned)
        except BaseException:
            if owned:
                threads.shutdown()
            raise
        return tiered

    async def _begin(self, *, owns_threads: bool) -> None:
        self._owns_threads = owns_threads
        local, archive = self.local.view, self.archive.view
        try:
            if local.version < archive.log_version or local.next_offset < archive.next_offset:
                # The directory that was just prepared has vanished: do not start at 0 instead.
                reason = f"it begins at offset {local.next_offset}, the archive ends at {archive.next_offset}"
                raise CorruptLog(path=self.local.directory_log.directory, reason=reason)
            if self.is_ack_archived and local.next_offset > archive.next_offset:
                # An earlier owner of the directory may have shown or acknowledged records before they were archived.
                await self.uploader.flush(with_state=False)
        except BaseException:
            await asyncio.shield(self.local.close())
            raise
        self._acks.archived(self.archive.view.log_version)
        self._update()
        self.uploader.start()

    async def close(self) -> None:
        """Finish all accepted appends, archive as much as possible, then close the directory. May be called again."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_task(self._close(), name="tiered-log-close")
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        path = self.local.directory_log.directory
        await self.local.settled()
        if len(self._acks) and self._fenced is None:
            try:
                await self.uploader.flush(with_state=False)
            except Exception as error:  # noqa: BLE001 - waiting appends get it below
                self.uploader.fail(error)
        await self.uploader.close()
        await self.local.close()
        self._acks.fail(lambda: LogClosed(path=path))
        self._waiters.close(path)
        if self._owns_threads:
            self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What it holds

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written or archived, and there are no watchers."""
        return self.local.is_quiet and not self.watchers and not len(self._acks) and self.uploader.is_done

    @property
    def is_archived(self) -> bool:
        """Whether everything in the directory is in the archive."""
        return self.local.is_quiet and self.uploader.is_done

    @property
    def view(self) -> View:
        """The newest version that readers may see. Its segments are those on disk."""
        return self._view

    @property
    def epochs(self) -> EpochHistory:
        """The epochs of the records that readers may see, on disk and in the archive."""
        view = self._view
        return EpochHistory(view.epoch, view.next_offset, view.segments, self.archive.view.slices)

    @property
    def end_offset(self) -> Offset:
        """Offset at which the log ends on disk, whether readers may see it yet or not."""
        return self.local.view.next_offset

    @property
    def is_ack_archived(self) -> bool:
        """Whether appends are acknowledged when the archive has them."""
        return self.uploader.settings.ack_archived

    @property
    def archived_offset(self) -> Offset | None:
        """Offset at which the archive ends."""
        return self.archive.view.next_offset

    @property
    def archived(self) -> ArchiveView:
        """The view of the archive."""
        return self.archive.view

    @property
    def stopped(self) -> LogStopped | None:
        """Why nothing can be appended any more; None if it can. StaleEpoch as its cause: there is a newer owner."""
        return self.local.stopped

    async def probe(self) -> None:
        """Check the disk as `PartitionLog.probe` does."""
        await self.local.probe()

    @property
    def damage(self) -> CorruptSegment | None:
        """Damage that was found at the end of the log when it was opened: reads of it fail, the rest is served."""
        return self.local.damage

    def reconfigure(self, options: LogOptions, archiving: Archiving | None = None) -> None:
        """Use other limits. Records that readers have seen stay visible; waiting appends still wait for the archive."""
        self._options = replace(options, epoch=self._options.epoch, broker_id=self._options.broker_id)
        self.local.reconfigure(self._options)
        if archiving is not None:
            self._acks.waits = archiving.ack_archived
            self.uploader.reconfigure(archiving)
            self._update()

    def pin(self, holder: str, version: Version) -> None:
        """Keep commits as `PartitionLog.pin` does."""
        self.local.pin(holder, version)

    def unpin(self, holder: str) -> None:
        """Remove a pin as `PartitionLog.unpin` does."""
        self.local.unpin(holder)

    # Changes, on the loop

    def _newest_view(self, before: View | None) -> View:
        local, archive = self.local.view, self.archive.view
        if before is not None and archive.epoch > self.local.epoch:
            return before  # the archive has records of another owner, and ours no longer count
        version, next_offset = local.version, local.next_offset
        if self.uploader.settings.ack_archived:
            version, next_offset = archive.log_version, archive.next_offset
        start = local.start_offset if archive.is_empty else archive.start_offset
        if before is not None:
            # After a change of settings the archive may have to catch up with records that readers have seen.
            version, next_offset = max(version, before.version), max(next_offset, before.next_offset)
            start = max(start, before.start_offset)
        return View(version, local.epoch, min(start, next_offset), next_offset, local.segments)

    def _update(self) -> None:
        before, self._view = self._view, self._newest_view(self._view)
        if (before.version, before.next_offset) != (self._view.version, self._view.next_offset):
            self._waiters.wake(self._view)
            for watcher in self.watchers:
                watcher()

    def _on_appended(self) -> None:
        self._update()
        self.uploader.notice()

    def _on_archived(self) -> None:
        self._update()
        self._acks.archived(self.archive.view.log_version)

    def _on_failure(self, error: Exception) -> None:
        if isinstance(error, StaleEpoch):
            self._fenced = error
            self.local.stop(error)
            path = self.local.directory_log.directory
            self._acks.fail(lambda: LogStopped(path=path, cause=error))
        else:
            self._acks.fail_late(self.archive.location, error)

    # Appending

    async def append(
        self, data: Bytes, *, txn_id: str | None = None, expected_version: Version | None = None
    ) -> Appended:
        """Append as `PartitionLog.append` does.

        Raises:
            ArchiveFailed, LeaseExpired: the outcome is unknown.
            InvalidInput, Conflict, QueueFull, LogStopped, LogClosed: nothing was appended.
        """
        self._check_backlog(len(data))
        return await self.local.append(data, txn_id=txn_id, expected_version=expected_version)

    def append_nowait(self, request: PublishRequest) -> asyncio.Future[Appended]:
        """Add a request as `PartitionLog.append_nowait` does; the future may wait for the archive too.

        Raises:
            InvalidInput, QueueFull, LogClosed: it was refused at once.
        """
        self._check_backlog(len(request.data))
        return self.local.append_nowait(request)

    def _check_backlog(self, size: int) -> None:
        """Refuse an append with QueueFull if acks wait for the archive, and it is too far behind."""
        if self._closed is not None:
            raise LogClosed(path=self.local.directory_log.directory)
        if self.uploader.settings.ack_archived:
            waiting, limit = self.uploader.waiting_bytes, self._options.waiting_bytes_max
            if waiting + size > limit:
                raise QueueFull(waiting_bytes=waiting, limit_bytes=limit)

    def append_transactional(self, *data: Bytes, txn_id: str | None = None) -> Transaction:
        """Start a transaction as `PartitionLog.append_transactional` does."""
        transaction = Transaction(self, self._options, self.view.version, txn_id)
        for part in data:
            transaction.add(part)
        return transaction

    async def fsync_and_rotate(self) -> View:
        """Seal the newest segment after everything appended so far."""
        await self.local.fsync_and_rotate()
        return self._view

    async def catch_up(self) -> None:
        """Archive all records that the log has now, while appends go on.

        Raises:
            ArchiveFailed: the object store does not answer.
            LogStopped: there is a newer owner.
        """
        await self._flush(with_state=False, until=self.local.view.version)

    async def drain(self) -> Drained:
        """Archive everything, and the log's state with it, so that the next owner has little to read.

        The caller must have stopped all appends. May be called again. A log that stopped because of its disk can still
        be read, so it can be drained too.

        Raises:
            ArchiveFailed: the object store does not answer.
            LogStopped: there is a newer owner.
        """
        await self.local.settled()  # the last accepted appends may not be written yet
        await self._flush(with_state=True)
        await self._hooks.settle()
        view = self.archive.view
        return Drained(view.next_offset, view.log_version)

    async def _flush(self, *, with_state: bool, until: Version | None = None) -> None:
        if self._fenced is not None:
            self._check_running()
        try:
            await self.uploader.flush(with_state=with_state, until=until)
        except StaleEpoch:
            self._check_running()
            raise

    def _check_running(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    async def retain(self, retention: Retention, local: Retention | None = None) -> list[Remove]:
        """Remove the records that are past `retention`; and from the disk, those that are past `local`.

        Records that are not archived stay on disk. Slices that are removed from the archive are reported to the hooks.

        Raises:
            LogStopped: nothing can be written.
            ArchiveFailed: the object store does not answer.
        """
        self._check_running()
        await self._retain_archive(retention)
        view = self.archive.view
        if view.epoch > self.local.epoch:
            return []  # there is a newer owner: its archive must not be compared with our log
        limits = Retention(
            bytes_max=local.bytes_max if local is not None else None,
            age_seconds_max=local.age_seconds_max if local is not None else None,
            before_offset=view.start_offset,
            keep_from=view.next_offset,
            time=retention.time,
        )
        removed = await self.local.retain(limits)
        self._update()
        return removed

    async def _retain_archive(self, retention: Retention) -> None:
        slices = self.archive.view.slices
        ripe = len(expired(slices, self._of_archive(retention), self._clock.now()))
        if not ripe:
            return
        if not any(slice_.state for slice_ in slices[ripe:]):
            # A takeover starts from the newest state, so there must be one that stays.
            await self._flush(with_state=True)
        removed = await self._in_thread(lambda: self.archive.retain(self._of_archive(retention)))
        if removed:
            self._update()
            self.uploader.tell(lambda: self._hooks.removed(removed))

    def _of_archive(self, retention: Retention) -> Retention:
        """Return the retention of the archive: that of the whole log, less what is on disk only."""
        if retention.bytes_max is None:
            return retention
        return replace(retention, bytes_max=max(0, retention.bytes_max - self.uploader.waiting_bytes))

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads.archive_writers, work)

    # Reading

    async def wait_for(
        self, *, offset: Offset | None = None, version: Version | None = None, timeout_seconds: float
    ) -> View:
        """Return when a record with `offset`, and `version`, can be read.

        Raises:
            NotYet: the timeout has passed.
            LogClosed: the log was closed.
        """
        return await self._waiters.wait(lambda: self._view, offset, version, timeout_seconds)

    async def read(self, offset: Offset, *, max_bytes: int = READ_BYTES, version: Version | None = None) -> Slice:
        """Read batches as `PartitionLog.read` does, from disk or archive.

        Raises:
            NotYet: the log has not reached `version`.
            OffsetOutOfRange: the log does not have the offset.
            VersionNotRetained: the commit of `version` was removed.
            CorruptSegment: stored bytes are damaged.
            ArchiveFailed: the object store does not answer.
        """
        view = self._view
        at, end = view.version, view.next_offset
        if version is not None and version > view.version:
            raise NotYet(f"version {version} does not exist yet: the log is at version {view.version}")
        if version is not None and version < view.version:
            at, end = version, (await self.commits(version, Version(version + 1)))[0].next_offset
        if not view.start_offset <= offset <= end:
            raise OffsetOutOfRange(offset=offset, start=view.start_offset, end=end)
        if offset == end:
            return Slice(memoryview(b""), offset, offset, at, end)
        found = await self._read(offset, end, max_bytes)
        return Slice(found.data, found.start_offset, found.next_offset, at, end)

    async def _read(self, offset: Offset, end: Offset, max_bytes: int) -> Slice:
        if offset >= self.local.view.start_offset:
            try:
                return await self.local.read(offset, max_bytes=max_bytes, end=end)
            except OffsetOutOfRange:
                if offset >= self.local.view.start_offset:
                    raise
                # It was removed from the disk meanwhile, so the archive has it.
            except CorruptSegment:
                view = self.archive.view
                if offset >= view.next_offset or view.epoch > self.local.epoch:
                    raise
                # The disk has lost it, but the archive may have it.
        return await self._recall(lambda: self.archive.read(offset, max_bytes, until=end))

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset | None:
        """Return the first offset whose record has this timestamp or a later one; None if no record has."""
        found: Offset | None = None
        local_start = self.local.view.start_offset
        if self._view.start_offset < local_start:
            limits = self._options.batches
            found = await self._recall(
                lambda: self.archive.offset_for_timestamp(timestamp_ms, before=local_start, limits=limits)
            )
        if found is None:
            found = await self.local.offset_for_timestamp(timestamp_ms)
        return found if found is not None and found < self._view.next_offset else None

    async def commits(self, start: Version, end: Version) -> list[Commit]:
        """Return the commits of versions [start, end), from disk or archive.

        Raises:
            VersionNotRetained: some of them were removed.
        """
        end = min(end, Version(self._view.version + 1))
        older: list[Commit] = []
        while True:
            try:
                return older + await self.local.commits(start, end)
            except VersionNotRetained as gone:
                middle = Version(min(end, gone.oldest, self.archive.view.log_version + 1))
                if start >= middle:
                    raise
            # The disk may lose more meanwhile: it is read again, and the archive supplies the others.
            older += await self._recall(partial(self._archived_commits, start, middle))
            start = middle

    def _archived_commits(self, start: Version, end: Version) -> list[Commit]:
        try:
            return self.archive.commits(start, end)
        except VersionNotRetained as gone:  # `current` is the log's newest version, not the archive's
            raise VersionNotRetained(version=gone.version, oldest=gone.oldest, current=self._view.version) from None

    async def _recall(self, work: Callable[[], Result]) -> Result:
        if self._closed is not None:
            raise LogClosed(path=self.local.directory_log.directory)
        return await asyncio.get_running_loop().run_in_executor(self._threads.archive_readers, work)


async def _finished(future: asyncio.Future[Result]) -> Result:
    """Wait for a thread, even when cancelled: it must not change a directory after its lock was released."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
