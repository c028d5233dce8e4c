"""The log of one partition, for an event loop.

- `append` returns when the batches are durable and visible. Appends that come while one is being committed wait, and
  then share one commit and one sync (group commit).
- All disk access runs in threads of the executor, one writing at a time; the loop never waits for it.
- Readers see a version whole or not at all; versions never go back.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from sulina.byte_budget import ByteBudget
from sulina.clock import SystemClock
from sulina.core.log.commit import Checkpoint, Commit, Remove
from sulina.core.log.epochs import EpochHistory
from sulina.core.log.log_state import Appended, View
from sulina.core.log.plan import Append
from sulina.core.log.publish_request import PublishRequest
from sulina.core.log.resume import End
from sulina.core.log.retention import Retention
from sulina.core.records.batch import check_records, is_quickly_checked, split
from sulina.errors import (
    BatchTooLarge,
    CorruptSegment,
    InvalidBatch,
    InvalidInput,
    LogClosed,
    LogStopped,
)
from sulina.failpoints import FailpointHook, no_failpoints
from sulina.ports import Bytes, Clock, Files
from sulina.storage.directory_log import READ_BYTES, DirectoryLog, LogMetrics, LogOptions, Slice
from sulina.storage.files import OsFiles
from sulina.storage.waiters import ViewWaiters
from sulina.types import Epoch, Offset, Version
from sulina.waiting import wait_or_timeout

Result = TypeVar("Result")

TXN_ID_LENGTH_MAX = 200
ARCHIVING_BYTES_MAX = 128 << 20
CHECKPOINT_REST = 20  # a busy log rests for this many times the duration of its last checkpoint
LINGER_SECONDS_MAX = 0.005  # a group waits this long at most for more appends
QUIET_TURNS = 2  # this many turns of the loop without a new append end the wait


Answer = Callable[[asyncio.Future[Appended], Appended], None]


@dataclass(slots=True, eq=False)
class _QueuedWrite:
    """Work for the writer's thread: one append, or one call."""

    future: asyncio.Future[Any]
    append: Append | None = None
    call: Callable[[], Any] | None = None
    is_unchecked: bool = False  # its records are not checked yet
    is_finished: bool = False  # it was written, or failed
    finished: asyncio.Future[None] | None = None  # for an append that was cancelled, and must wait all the same


class PartitionLog:
    """Open with `PartitionLog.open`; use on the loop that opened it; then `close`."""

    def __init__(
        self, log: DirectoryLog, clock: Clock, threads: "LogThreads", owns_threads: bool, answer: Answer | None
    ) -> None:
        self._log = log
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._owns_threads = owns_threads
        self._closing = asyncio.Event()
        self._closed: asyncio.Task[None] | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        self._lock = threading.Lock()  # for the queue and the group
        self._queue: deque[_QueuedWrite] = deque()
        self._group: list[_QueuedWrite] = []  # being written
        self._is_writing = False
        self._idle: list[asyncio.Future[None]] = []
        self._budget = ByteBudget(log.options.waiting_bytes_max, parent=log.options.node_budget)  # of waiting appends
        self._waiting_txns = 0
        self._round_seconds = 0.0  # duration of the last group
        self._gathering_since: float | None = None  # start of the next group
        self._gathered = self._quiet_turns = 0  # appends that wait; turns of the loop without a new one
        self._waiters = ViewWaiters()
        self._answer = answer
        self.watchers: set[Callable[[], None]] = set()  # called on the loop after each group

    @classmethod
    async def open(
        cls,
        directory: str,
        *,
        options: LogOptions | None = None,
        files: Files | None = None,
        clock: Clock | None = None,
        threads: "LogThreads | None" = None,
        metrics: LogMetrics | None = None,
        failpoints: FailpointHook = no_failpoints,
        answer: Answer | None = None,
    ) -> Self:
        """Recover the log in `directory`, or create one.

        `answer` is called on the loop for every append that is durable here, and answers it now or later; without it
        they are answered now.

        Raises:
            LogLocked: another process has the directory.
            StaleEpoch: a newer owner has claimed the log.
            CorruptCommit: a commit is damaged.
            CorruptLog: commits are missing.
        """
        clock = clock or SystemClock()
        owned = threads is None
        threads = threads or LogThreads.of(writers=2, readers=2)
        log = DirectoryLog(
            directory,
            files=files or OsFiles(),
            clock=clock,
            options=options,
            metrics=metrics,
            stager=threads.stagers,
            failpoints=failpoints,
        )
        opening = asyncio.get_running_loop().run_in_executor(threads.writers, log.open)
        try:
            await asyncio.shield(opening)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                # The thread goes on: when it has opened the log, close it again.
                opening.add_done_callback(lambda done: None if done.cancelled() or done.exception() else log.close())
            if owned:
                threads.shutdown()
            raise
        return cls(log, clock, threads, owned, answer)

    async def close(self) -> None:
        """Finish all accepted appends, then close the directory. May be called again."""
        if self._closed is None:
            self._closing.set()
            self._closed = self._loop.create_task(self._close(), name="log-close")
        # A caller that is cancelled does not leave the directory locked.
        await asyncio.shield(self._closed)

    async def settled(self) -> None:
        """Return when nothing waits to be written."""
        while True:
            with self._lock:
                if not self._is_writing:
                    return
                idle = self._loop.create_future()
                self._idle.append(idle)
            await idle

    async def _close(self) -> None:
        await self.settled()
        self._start_checkpoint()
        if self._checkpointing is not None:
            await self._checkpointing
        await self._loop.run_in_executor(self._threads.writers, self._log.close)
        self._waiters.close(self._log.directory)
        if self._owns_threads:
            self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # What it holds

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written, and there are no watchers."""
        return self.is_quiet and not self.watchers

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits to be written."""
        return not (self._budget.used_bytes or self._is_writing)

    @property
    def view(self) -> View:
        """The newest version that readers may see."""
        return self._log.view

    @property
    def epoch(self) -> Epoch:
        """Owner epoch that is stamped on appended batches."""
        return self._log.epoch

    @property
    def end_offset(self) -> Offset:
        """Offset at which the log ends on disk."""
        return self._log.view.next_offset

    @property
    def is_ack_archived(self) -> bool:
        """Whether appends are acknowledged when the archive has them: never, this log has no archive."""
        return False

    @property
    def archived_offset(self) -> Offset | None:
        """Offset at which the archive ends: None, this log has no archive."""
        return None

    @property
    def epochs(self) -> EpochHistory:
        """The epochs of the records that readers may see."""
        view = self.view
        return EpochHistory(view.epoch, view.next_offset, view.segments)

    @property
    def directory_log(self) -> DirectoryLog:
        """The log below, for callers that read it in threads of their own."""
        return self._log

    @property
    def checkpointing(self) -> asyncio.Task[None] | None:
        """The newest background task that writes checkpoints, if there was any."""
        return self._checkpointing

    @property
    def stopped(self) -> LogStopped | None:
        """Why nothing can be appended any more; None if it can."""
        return self._log.stopped

    @property
    def damage(self) -> CorruptSegment | None:
        """Damage that was found at the end of the log when it was opened: reads of it fail, the rest is served."""
        return self._log.damage

    async def probe(self) -> None:
        """Check that the disk accepts writes: then a log that stopped may be opened again.

        Raises:
            OSError: it does not.
        """
        await self._loop.run_in_executor(self._threads.writers, self._log.probe)

    def stop(self, cause: Exception) -> None:
        """Refuse all appends from now on: there is another owner. Reads go on."""
        self._log.stop(cause)

    def reconfigure(self, options: LogOptions, archiving: object = None) -> None:  # noqa: ARG002
        """Use other limits from now on. Writer and epoch stay as they were when the log was opened.

        `archiving` is for logs that have an archive too.
        """
        self._log.reconfigure(options)
        self._budget.bytes_max = options.waiting_bytes_max

    # Appending

    async def append(
        self, data: Bytes, *, txn_id: str | None = None, expected_version: Version | None = None
    ) -> Appended:
        """Append one or more batches that lie end to end, all or none; return when they are durable.

        A known `txn_id`, or batches that their producer has sent before, get the first answer. If this call is
        cancelled, `data` may be changed again once it has returned.

        Raises:
            InvalidInput, Conflict, QueueFull, LogStopped, LogClosed: nothing was appended.
        """
        future = self.append_nowait(PublishRequest(data, txn_id=txn_id, expected_version=expected_version))
        try:
            return await future
        except asyncio.CancelledError:
            await self._withdraw(future)
            raise

    def append_nowait(self, request: PublishRequest) -> asyncio.Future[Appended]:
        """Add a request to the next group; the future is done when it is durable, or has failed.

        Its data must not change until the future is done, even if that is cancelled.

        Raises:
            InvalidInput, QueueFull, LogClosed: it was refused at once.
        """
        if self._closing.is_set():
            raise LogClosed(path=self._log.directory)
        data, txn_id, options = request.data, request.txn_id, self._log.options
        if txn_id is not None:
            _check_txn_id(txn_id)
        size = len(data)
        if size > options.waiting_bytes_max:
            raise BatchTooLarge(size_bytes=size, limit_bytes=options.waiting_bytes_max)
        if not self._budget.try_acquire(size):
            raise self._budget.refusal(size)
        try:
            batches = split(data, options.batches, check_crc=not request.is_trusted)
            if not batches:
                raise InvalidBatch("there is no record batch to append")
            is_unchecked = not request.is_trusted and not is_quickly_checked(batches)
            if not request.is_trusted and not is_unchecked:
                check_records(data, batches, options.batches)
            if txn_id is not None:
                # Here, where the order is decided: if it were refused later, appends after it would overtake it.
                self._log.check_txn_room(txn_id, self._waiting_txns)
        except BaseException:
            self._budget.release(size)
            raise
        self._waiting_txns += txn_id is not None
        waiting = _QueuedWrite(self._loop.create_future(), append=Append(request, batches), is_unchecked=is_unchecked)
        return self._enqueue(waiting)

    async def _withdraw(self, future: asyncio.Future[Appended]) -> None:
        """Remove a cancelled append from the queue; return when the writer does not use its bytes any more."""
        with self._lock:
            waiting = next((each for each in self._queue if each.future is future), None)
            if waiting is not None:
                self._queue.remove(waiting)
                self._count_out(waiting)
                return
            waiting = next((each for each in self._group if each.future is future), None)
        while waiting is not None and not waiting.is_finished:
            waiting.finished = self._loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting.finished

    def _count_out(self, waiting: _QueuedWrite) -> None:
        """Release the bytes of an append that no longer waits."""
        if waiting.append is not None:
            request = waiting.append.request
            self._budget.release(len(request.data))
            self._waiting_txns -= request.txn_id is not None

    def append_transactional(self, *data: Bytes, txn_id: str | None = None) -> "Transaction":
        """Start a transaction at the version that readers see now. Nothing is written before its commit."""
        transaction = Transaction(self, self._log.options, self.view.version, txn_id)
        for part in data:
            transaction.add(part)
        return transaction

    async def fsync_and_rotate(self) -> View:
        """Seal the newest segment after everything appended so far."""
        return await self._call(self._log.rotate)

    async def retain(self, retention: Retention, local: Retention | None = None) -> list[Remove]:  # noqa: ARG002
        """Remove the segments past `retention`, in one commit. `local` is for logs that have an archive too."""
        return await self._call(lambda: self._log.retain(retention))

    async def catch_up(self) -> None:
        """Return at once: this log has no archive to bring anything into."""

    async def drain(self) -> End:
        """Return where the log ends when all that was taken is on disk. The caller appends nothing more."""
        await self.settled()
        return End(self._log.view.next_offset, self._log.view.version)

    async def checkpoint(self) -> Checkpoint:
        """Return the whole state after everything appended so far."""
        return await self._call(self._log.commits.take_checkpoint)

    async def claim(self, epoch: Epoch) -> View:
        """Write with a higher epoch from now on.

        Raises:
            StaleEpoch: the log has this epoch or a higher one.
        """
        return await self._call(lambda: self._log.claim(epoch))

    def pin(self, holder: str, version: Version) -> None:
        """Keep the commits from `version` on until the holder pins another version, or unpins."""
        self._log.pins[holder] = version

    def unpin(self, holder: str) -> None:
        """Remove the pin of `holder`."""
        self._log.pins.pop(holder, None)

    async def _call(self, call: Callable[[], Result]) -> Result:
        if self._closing.is_set():
            raise LogClosed(path=self._log.directory)
        answer: Result = await self._enqueue(_QueuedWrite(self._loop.create_future(), call=call))
        return answer

    def _enqueue(self, waiting: _QueuedWrite) -> asyncio.Future[Any]:
        with self._lock:
            self._queue.append(waiting)
            is_writing, self._is_writing = self._is_writing, True
        if not is_writing:
            self._loop.call_soon(self._gather)
        return waiting.future

    # Between two groups, on the loop

    def _gather(self) -> None:
        """Start the next group, after the appends of the next turns of the loop have joined it."""
        with self._lock:
            waiting = len(self._queue)
            if not waiting:
                self._is_writing = False
        if not waiting:
            self._gathering_since = None
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)
            return
        now = self._loop.time()
        if self._gathering_since is None:
            self._gathering_since, self._gathered, self._quiet_turns = now, 0, 0
        # While appends keep coming, a larger group serves all of them sooner: it shares one commit, and the writer does
        # not compete with the loop meanwhile. It waits no longer than the last group took.
        is_growing = waiting > self._gathered
        self._quiet_turns = 0 if is_growing else self._quiet_turns + 1
        self._gathered = waiting
        lingered = now - self._gathering_since
        if self._quiet_turns < QUIET_TURNS and lingered < min(self._round_seconds, LINGER_SECONDS_MAX):
            self._loop.call_soon(self._gather)
        else:
            self._gathering_since = None
            self._threads.writers.submit(self._write_group)

    def _finish_group(self, group: list[_QueuedWrite], answers: list[Any], seconds: float) -> None:
        """Answer the appends of a group that was written, and start the next group."""
        self._round_seconds, self._group = seconds, []
        for waiting, answer in zip(group, answers, strict=True):
            self._count_out(waiting)
            waiting.is_finished = True
            if waiting.finished is not None and not waiting.finished.done():
                waiting.finished.set_result(None)
            if waiting.future.done():
                continue  # it was cancelled
            if isinstance(answer, Exception):
                waiting.future.set_exception(answer)
            elif waiting.append is not None and self._answer is not None:
                self._answer(waiting.future, answer)
            else:
                waiting.future.set_result(answer)
        self._waiters.wake(self.view)
        for watcher in self.watchers:
            watcher()
        if self._log.is_checkpoint_due:
            self._start_checkpoint()
        self._loop.call_soon(self._gather)

    # The writer's thread

    def _write_group(self) -> None:
        """Write the next group, and hand it to the loop to be answered."""
        started = self._clock.monotonic()
        with self._lock:
            group = self._group = self._next_group()  # empty if all that waited were cancelled
        try:
            if group and group[0].call is not None:
                answers = [group[0].call()]
            else:
                refused = [self._refusal(waiting) if waiting.is_unchecked else None for waiting in group]
                appends = [w.append for w, error in zip(group, refused, strict=True) if w.append and error is None]
                written = iter(self._log.append(appends) if appends else ())
                answers = [error or next(written) for error in refused]
        except Exception as error:  # noqa: BLE001
            # Each caller gets the error: the thread must not end with their futures open.
            answers = [error for _ in group]
        seconds = self._clock.monotonic() - started
        self._loop.call_soon_threadsafe(self._finish_group, group, answers, seconds)

    def _next_group(self) -> list[_QueuedWrite]:
        group: list[_QueuedWrite] = []
        size = 0
        while self._queue:
            following = self._queue[0]
            if following.append is None:
                return group or [self._queue.popleft()]
            size += len(following.append.request.data)
            if group and size > self._log.options.group_bytes_max:
                break
            group.append(self._queue.popleft())
        return group

    def _refusal(self, waiting: _QueuedWrite) -> InvalidInput | None:
        """Check records that would take too long to check on the loop; return the error, if any."""
        assert waiting.append is not None
        try:
            check_records(waiting.append.request.data, waiting.append.batches, self._log.options.batches)
        except InvalidInput as error:
            return error
        return None

    # Back on the loop

    def _start_checkpoint(self) -> None:
        if self._log.is_checkpoint_due and (self._checkpointing is None or self._checkpointing.done()):
            self._checkpointing = self._loop.create_task(self._checkpoint(), name="log-checkpoint")

    async def _checkpoint(self) -> None:
        while self._log.is_checkpoint_due and self._log.stopped is None:
            threads = self._threads.checkpointers or self._threads.writers
            seconds = await self._loop.run_in_executor(threads, self._write_checkpoint)
            # Its syncs slow down those of the commits, so a busy log rests after it. Of the checkpoints that became due
            # meanwhile only the newest is written.
            await wait_or_timeout(self._closing, CHECKPOINT_REST * seconds)

    def _write_checkpoint(self) -> float:
        """Write the checkpoint that is due. Return how many seconds it took."""
        started = self._clock.monotonic()
        self._log.checkpoint()
        return self._clock.monotonic() - started

    async def wait_for(
        self, *, offset: Offset | None = None, version: Version | None = None, timeout_seconds: float
    ) -> View:
        """Return when a record with `offset`, and `version`, can be read.

        Raises:
            NotYet: the timeout has passed.
            LogClosed: the log was closed.
        """
        return await self._waiters.wait(lambda: self.view, offset, version, timeout_seconds)

    # Reading

    async def _read(self, call: Callable[[], Result]) -> Result:
        if self._closing.is_set():
            raise LogClosed(path=self._log.directory)
        return await self._loop.run_in_executor(self._threads.readers, call)

    async def read(
        self,
        offset: Offset,
        *,
        max_bytes: int = READ_BYTES,
        version: Version | None = None,
        end: Offset | None = None,
    ) -> Slice:
        """Read batches from `offset` on, as of a version or the newest; empty at the end of the log, or at `end`.

        At least one batch is read, even if it is larger than `max_bytes`. Every byte is checked.

        Raises:
            NotYet: the log has not reached `version`.
            OffsetOutOfRange: the log does not have the offset.
            VersionNotRetained: the commit of `version` was removed.
            CorruptSegment: stored bytes are damaged.
        """
        return await self._read(lambda: self._log.read(offset, max_bytes, version, end))

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset | None:
        """Return the first offset whose record has this timestamp or a later one; None if no record has."""
        return await self._read(lambda: self._log.offset_for_timestamp(timestamp_ms))

    async def commits(self, start: Version, end: Version) -> list[Commit]:
        """Return the commits of versions [start, end).

        Raises:
            VersionNotRetained: some of them were removed.
        """
        end = min(end, Version(self.view.version + 1))
        return await self._read(lambda: list(self._log.commits.entries(start, end)))


def _check_txn_id(txn_id: str) -> None:
    if not 0 < len(txn_id) <= TXN_ID_LENGTH_MAX:
        raise InvalidInput(f"txn_id must have 1 to {TXN_ID_LENGTH_MAX} characters, not {len(txn_id)}")
    try:
        txn_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"txn_id must be text that UTF-8 can encode: {error}") from None


@dataclass(frozen=True, slots=True)
class LogThreads:
    """The threads that logs share. Readers have threads of their own, so that they cannot delay writers."""

    writers: Executor
    readers: Executor
    stagers: Executor | None = None  # write commit files beside the data; None: the writers do both
    # For archives, apart from the others: an object store may take seconds to answer.
    archive_writers: Executor | None = None
    archive_readers: Executor | None = None
    archive_gate: ByteBudget | None = None  # for the bytes of running uploads
    # Separate from the writers: slow checkpoints of many logs must not delay appends. None: the writers write them.
    checkpointers: Executor | None = None

    @classmethod
    def of(cls, *, writers: int, readers: int, archivers: int = 0) -> "LogThreads":
        """Start the threads: the given numbers, a stager for each writer, and some that write checkpoints."""

        def threads(count: int, name: str) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(max_workers=count, thread_name_prefix=f"sulina-{name}")

        return cls(
            threads(writers, "write"),
            threads(readers, "read"),
            threads(writers, "stage"),
            threads(archivers, "archive") if archivers else None,
            threads(archivers, "recall") if archivers else None,
            ByteBudget(ARCHIVING_BYTES_MAX) if archivers else None,
            threads(max(1, writers // 2), "checkpoint"),
        )

    def shutdown(self) -> None:
        """End the threads when they have done the work that they were given."""
        archivers = (self.archive_writers, self.archive_readers)
        for threads in (self.writers, self.readers, self.stagers, self.checkpointers, *archivers):
            if threads is not None:
                threads.shutdown(wait=False)


class Appends(Protocol):
    """A log that accepts batches."""

    async def append(
        self, data: Bytes, *, txn_id: str | None = None, expected_version: Version | None = None
    ) -> Appended:
        """Append as `PartitionLog.append` does."""
        ...


class Transaction:
    """Batches that become visible together, if no other commit comes first."""

    def __init__(self, log: Appends, options: LogOptions, version: Version, txn_id: str | None) -> None:
        self._log = log
        self._options = options
        self._data = bytearray()
        self._is_open = True
        self.version = version  # at the start of the transaction
        self.txn_id = txn_id

    def add(self, data: Bytes) -> None:
        """Buffer one or more batches.

        Raises:
            InvalidInput: a batch is not valid, or the transaction has ended.
            BatchTooLarge: the transaction would be over the limit.
        """
        self._check_open()
        size, limit = len(self._data) + len(data), self._options.waiting_bytes_max
        if size > limit:
            raise BatchTooLarge(size_bytes=size, limit_bytes=limit)
        split(data, self._options.batches)
        self._data += data

    async def commit(self, expected_version: Version | None = None) -> Appended:
        """Append all batches in one commit.

        After an error the transaction is still open: retry it, if need be with another expected version.

        Raises:
            VersionConflict: the log has other commits since the transaction began.
        """
        self._check_open()
        expected = self.version if expected_version is None else expected_version
        answer = await self._log.append(bytes(self._data), txn_id=self.txn_id, expected_version=expected)
        self._is_open = False
        return answer

    def abort(self) -> None:
        """Discard the batches. Nothing was written."""
        self._is_open = False
        self._data.clear()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInput("the transaction has been committed or aborted: start another one")
