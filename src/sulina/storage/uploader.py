"""Archives a log, slice by slice, while the log is open.

Records are uploaded when there are enough of them, when they have waited long enough, at once where acks wait for the
archive, or when the log is drained. A failed upload is retried for ever, with growing pauses: no other broker may do
it. Only a newer owner ends it. Commits that are not archived are pinned, so that the log keeps them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from sulina.byte_budget import ByteBudget
from sulina.core.backoff import doubled
from sulina.core.log.archive import SLICE_BYTES_MAX, is_state_due
from sulina.core.log.commit import Checkpoint, SegmentRef
from sulina.errors import LogClosed, StaleEpoch, VersionConflict
from sulina.ports import Clock
from sulina.storage.archive import Archive
from sulina.storage.partition_log import PartitionLog
from sulina.storage.slicing import needs_state, next_slice
from sulina.types import Version
from sulina.waiting import wait_or_timeout

Result = TypeVar("Result")

_logger = logging.getLogger("sulina.archive")

BACKOFF_SECONDS = 0.1  # after the first failure; then doubled each time
BACKOFF_SECONDS_MAX = 5.0
TIDY_REST = 20  # after tidying up, rest for this many times its duration
SWEEP_SECONDS = 3600.0
PIN = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archiving:
    """When a log is archived. May change while it is open."""

    ack_archived: bool = False  # appends are acknowledged, and visible to readers, when the archive has them
    archive_bytes: int = 8 << 20
    archive_seconds: float = 10.0


class ArchiveHooks(Protocol):
    """Called when an archive changes; on the loop, so all but `settle` must be fast."""

    def archived(self, added: SegmentRef) -> None:
        """Called when a slice has become part of the archive. Its size is 0 if it has no records."""
        ...

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        """Called when slices were removed by retention, or merged into one for which `archived` is called next."""
        ...

    def failed(self, error: Exception) -> None:
        """Called when an attempt has failed. It is retried, unless the error is StaleEpoch."""
        ...

    async def settle(self) -> None:
        """Return when all calls so far have taken effect: the log is about to change its owner. Must not raise."""
        ...


class NoHooks:
    """Does nothing."""

    def archived(self, added: SegmentRef) -> None:
        pass

    def removed(self, removed: Sequence[SegmentRef]) -> None:
        pass

    def failed(self, error: Exception) -> None:
        pass

    async def settle(self) -> None:
        pass


class Uploader:
    """Uploads one log. `start`, then `notice` after every change of the log, then `close`."""

    def __init__(
        self,
        log: PartitionLog,
        archive: Archive,
        *,
        settings: Archiving,
        clock: Clock,
        threads: Executor | None,
        gate: ByteBudget | None,
        hooks: ArchiveHooks,
        on_progress: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.settings = settings
        self._log = log
        self._archive = archive
        self._clock = clock
        self._threads = threads
        self._gate = gate or ByteBudget(2 * SLICE_BYTES_MAX)
        self._hooks = hooks
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()  # one slice at a time
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._waiting_since: float | None = None
        self._state: Checkpoint | None = None  # to be archived
        self._state_bytes = 0
        self._swept_at = clock.monotonic()
        self._told = archive.view  # the view that the hooks have been called for
        self._pin()

    def start(self) -> None:
        """Start the task."""
        self._task = self._loop.create_task(self._run(), name="archive-upload")
        self.notice()

    async def close(self) -> None:
        """Stop the tasks. A thread that is working is not waited for: the archive's rules hold for it too."""
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The background tasks: uploading, then tidying up if there was any."""
        return [task for task in (self._task, self._tidying) if task is not None]

    def notice(self) -> None:
        """Note that the log has changed."""
        if self.is_done:
            return
        is_first = self._waiting_since is None
        if is_first:
            self._waiting_since = self._clock.monotonic()
        # Else the task sleeps until the oldest waiting record is due.
        if is_first or self.settings.ack_archived or self.waiting_bytes >= self.settings.archive_bytes:
            self._wake.set()

    def reconfigure(self, settings: Archiving) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self._wake.set()

    # Progress

    @property
    def is_done(self) -> bool:
        """Whether the archive has everything."""
        view = self._archive.view
        return view.log_version >= self._log.view.version and view.epoch <= self._log.epoch

    @property
    def waiting_bytes(self) -> int:
        """About how many bytes wait to be archived."""
        archived, waiting = self._archive.view.next_offset, 0
        for segment in reversed(self._log.view.segments):
            if segment.next_offset <= archived:
                break
            share = (segment.next_offset - max(archived, segment.base)) / (segment.next_offset - segment.base)
            waiting += int(segment.size * share)
        return waiting

    def _due_in(self) -> float | None:
        """Return the seconds until an upload is due; None if nothing waits."""
        if self.is_done:
            self._waiting_since = None
            return None
        if self.settings.ack_archived or self.waiting_bytes >= self.settings.archive_bytes:
            return 0.0
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return max(0.0, self._waiting_since + self.settings.archive_seconds - now)

    # Uploading

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            self._progress()
            due = self._due_in()
            if failures:
                await asyncio.sleep(doubled(BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, failures - 1))
            elif due is None or due > 0:
                await wait_or_timeout(self._wake, due)
                continue
            try:
                async with self._turn:
                    await self._upload_what_waits()
                failures = 0
                self._tidy()
            except StaleEpoch as error:
                self.fail(error)
                return
            except LogClosed:
                return
            except Exception as error:  # noqa: BLE001 - after any error the log must still be archived
                self.fail(error)
                failures += 1

    def fail(self, error: Exception) -> None:
        """Report an attempt that failed to the hooks."""
        self._on_failure(error)
        self.tell(lambda: self._hooks.failed(error))

    def tell(self, hook: Callable[[], None]) -> None:
        """Call a hook; log an error that it raises."""
        try:
            hook()
        except Exception:  # a hook must not be able to stop the log
            _logger.exception("a hook of the archive failed")

    async def _upload_what_waits(self) -> None:
        self._archive.check_ours()
        target = self._log.view.version
        while self._archive.view.log_version < target:
            if self._state is None and await self._is_state_due():
                self._state = await self._log.checkpoint()
            if not await self._upload_one():
                break
        self._waiting_since = None if self.is_done else self._clock.monotonic()

    async def _is_state_due(self) -> bool:
        view = self._archive.view
        if view.log_version >= 0:
            return is_state_due(view.slices, self._state_bytes)
        return await self._in_thread(lambda: needs_state(self._log.directory_log, view))

    async def _upload_one(self) -> bool:
        """Archive the next slice, if there is any."""
        async with self._gate.holding(min(self.waiting_bytes, SLICE_BYTES_MAX)):
            return await self._upload_next()

    async def _upload_next(self) -> bool:
        view = self._archive.view
        if self._state is not None and self._state.version < view.log_version:
            self._state = None  # the archive is past it
        state = self._state
        new = await self._in_thread(lambda: next_slice(self._log.directory_log, view, state=state))
        if new is None:
            return False
        puts = [self._archive.put_data, self._archive.put_commits]
        if new.state is not None:
            puts.append(self._archive.put_state)
        try:
            # Wait for all of them, even if one fails: so that objects that were put can be deleted.
            done = await asyncio.gather(
                *(self._in_thread(lambda put=put: put(new)) for put in puts),  # type: ignore[misc]
                return_exceptions=True,
            )
            if (failed := next((each for each in done if isinstance(each, BaseException)), None)) is not None:
                await self._in_thread(lambda: self._archive.discard(new))
                raise failed
            await self._in_thread(lambda: self._archive.add(new))
        except VersionConflict:
            return True  # a commit of our own, whose reply was lost, was stored after all: look again
        finally:
            self._archive.end_upload(new)
            self._progress()
        if new.state is not None:
            self._state_bytes = len(new.state)
            self._state = None
        return True

    def _progress(self) -> None:
        """Report the progress of the archive, even by a commit whose reply was lost: the next look finds it."""
        view, told = self._archive.view, self._told
        if view.version == told.version or view.epoch > self._log.epoch:
            return
        self._told = view
        if view.log_version > told.log_version:
            self._pin()
            self._on_progress()
        known = {slice_.object for slice_ in told.slices[-1:]}
        since = takewhile(
            lambda slice_: slice_.object not in known and slice_.version_end > told.log_version, reversed(view.slices)
        )
        for added in reversed(list(since)):
            self.tell(lambda added=added: self._hooks.archived(added))  # type: ignore[misc]

    def _pin(self) -> None:
        # Pins the archive's last commit too: the next open compares it.
        self._log.pin(PIN, self._archive.view.log_version)

    async def flush(self, *, with_state: bool, until: Version | None = None) -> None:
        """Archive everything that the log has now, and its state too if `with_state`.

        While appends go on, `until` is the version of the log to end with.

        Raises:
            ArchiveFailed: the object store does not answer.
        """
        async with self._turn:
            try:
                self._archive.check_ours()
                while until is None or self._archive.view.log_version < until:
                    slices = self._archive.view.slices
                    has_state = self.is_done and bool(slices) and slices[-1].state is not None
                    is_wanted = with_state and not has_state
                    if self.is_done and not is_wanted:
                        break
                    if self._state is None and (is_wanted or await self._is_state_due()):
                        self._state = await self._log.checkpoint()
                    is_moving = await self._upload_one()
                    assert is_moving or self._state is None, "there is something to archive, and no slice of it"
                self._archive.check_ours()
            except StaleEpoch as error:
                self.fail(error)
                raise
            self._waiting_since = None

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._threads, work)

    # Tidying up

    def _tidy(self) -> None:
        if self._tidying is None or self._tidying.done():
            self._tidying = self._loop.create_task(self._tidy_up(), name="archive-tidy")

    async def _tidy_up(self) -> None:
        started = self._clock.monotonic()
        try:
            await self._in_thread(self._archive.tidy)
            while (merged := await self._in_thread(self._archive.merge)) is not None:
                into, parts = merged
                self.tell(lambda parts=parts: self._hooks.removed(parts))  # type: ignore[misc]
                self.tell(lambda into=into: self._hooks.archived(into))  # type: ignore[misc]
            if self._clock.monotonic() - self._swept_at >= SWEEP_SECONDS:
                self._swept_at = self._clock.monotonic()
                await self._in_thread(self._archive.sweep)
        except Exception as error:  # noqa: BLE001 - it is done the next time
            self.fail(error)
        finally:
            self._wake.set()  # it may have refreshed the view of the archive
        await asyncio.sleep(TIDY_REST * (self._clock.monotonic() - started))
