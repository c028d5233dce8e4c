"""Metadata in one SQLite file: the default of a single node.

- A transaction is durable when `txn` returns. Transactions that come while one is being committed wait, and then share
  one commit of SQLite and one sync; each still has its own revision and sees the ones before it.
- All file access runs in one thread; the loop never waits for it. Reads wait for at most the one commit that runs.
- A commit that fails (disk full, IO error) fails all transactions that share it with MetadataFailed, and the revision
  stays. Whether it is on disk is unknown until the next commit, which replaces it, or the next open, which may find it.
- Watches get committed changes only. All leases are renewed when the file is opened.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from sulina.clock import SystemClock
from sulina.errors import LimitReached, LogClosed, QueueFull, SulinaError
from sulina.metadata.checks import (
    HISTORY_CHANGES_MAX,
    LEASES_MAX,
    WATCH_QUEUE_CHANGES_MAX,
    check_key,
    check_prefix,
    check_ttl,
    check_txn,
    check_watch,
)
from sulina.metadata.leases import Deadlines, HeldLease, LeaseTimer
from sulina.metadata.revision_floor import RevisionFloor
from sulina.metadata.tables import Draft, SqliteTables
from sulina.metadata.watches import History, Watches
from sulina.ports import Change, Clock, Compare, Entry, Listing, Put, StoreSpace, TxnResult

WAITING_BYTES_MAX = 64 << 20  # of calls that wait for the thread; a single one may have more
CALL_BYTES = 1024  # of a call besides its values

Revisions = Sequence[Sequence[Change]]  # the changes of each revision
Context = TypeVar("Context")
Result = TypeVar("Result")

_logger = logging.getLogger("sulina.metadata")


class SqliteMetadata:
    """A `ports.MetadataStore`. Open with `open`; use on the loop that opened it; then `close`."""

    def __init__(self, tables: SqliteTables, thread: Executor, clock: Clock, watch_queue_changes_max: int) -> None:
        self.history = RevisionFloor()
        self._tables = tables
        self._thread = thread
        self.watches = Watches(queue_changes_max=watch_queue_changes_max)
        self._reads: _CallQueue[SqliteTables] = _CallQueue(thread, self._run_reads, self._settle)
        self._writes: _CallQueue[Draft] = _CallQueue(thread, self._run_writes, self._settle)
        self.deadlines = Deadlines(clock)
        self._timer = LeaseTimer(self.deadlines, self._expire)
        for lease_id, ttl_seconds in tables.leases.items():
            self.deadlines.start(lease_id, ttl_seconds)
        self._timer.arm()
        self._closed: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        clock: Clock | None = None,
        history_changes_max: int = HISTORY_CHANGES_MAX,
        watch_queue_changes_max: int = WATCH_QUEUE_CHANGES_MAX,
    ) -> Self:
        """Open the file, or create it.

        Raises:
            LogLocked: another process has it.
            Corrupt: it is damaged.
            InvalidInput: it is a file of another kind.
            NewerFormat: a newer version of Sulina wrote it.
            MetadataFailed: it cannot be read or written.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sulina-metadata")
        opening = thread.submit(SqliteTables, path, history_changes_max=history_changes_max)
        try:
            tables = await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # The thread goes on: when it has opened the file, it must be closed again.
            opening.add_done_callback(lambda done: None if done.exception() else done.result().close())
            await asyncio.wrap_future(thread.submit(thread.shutdown, wait=False))  # returns after that
            raise
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(tables, thread, clock or SystemClock(), watch_queue_changes_max)

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        self._check_open()
        return await self._reads.call(lambda tables: tables.get(key, ended=self.deadlines.ended()))

    async def peek(self, key: str) -> Entry | None:
        check_key(key)
        return await self._reads.call(lambda tables: tables.get(key, ended=self.deadlines.ended()))

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        self._check_open()
        return await self._reads.call(lambda tables: tables.list(prefix, ended=self.deadlines.ended()))

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        compares, puts, deletes = tuple(compares), tuple(puts), tuple(deletes)
        size_bytes = check_txn(compares, puts, deletes)
        self._check_open()
        return await self._writes.call(lambda draft: draft.txn(compares, puts, deletes), size_bytes)

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Sequence[Change], None]:
        check_watch(prefix, after)

        async def read_history() -> History:
            self._check_open()
            return await self._reads.call(lambda tables: tables.history(prefix, after=after))

        return self.watches.follow(prefix, after, read_history)

    async def lease(self, ttl_seconds: float) -> HeldLease:
        check_ttl(ttl_seconds)
        self._check_open()
        lease_id = await self._writes.call(lambda draft: self._grant(draft, ttl_seconds))
        return HeldLease(lease_id, keep_alive=self._keep_alive, revoke=self._revoke)

    async def compact(self, revision: int) -> None:
        self._check_open()
        await self._writes.call(lambda draft: draft.compact(revision))

    async def space(self) -> StoreSpace:
        self._check_open()
        return StoreSpace(revision=self._tables.state.revision)

    async def expire(self) -> None:
        """End the leases whose time is over, as the timer does. For tests that control the clock."""
        self._check_open()
        await self._writes.call(_nothing)

    async def close(self) -> None:
        """Finish all calls, then close the file; watches end. May be called again."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_task(self._close(), name="metadata-close")
            self._timer.stop()
            self.watches.end()
        # A caller that is cancelled does not leave the file locked.
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        await self._reads.wait_idle()
        await self._writes.wait_idle()
        try:
            await asyncio.wrap_future(self._thread.submit(self._tables.close))
        finally:
            self._thread.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosed(path=self._tables.path)
        self.history.check()

    def _keep_alive(self, lease_id: int) -> float:
        self._check_open()
        return self.deadlines.restart(lease_id)

    async def _revoke(self, lease_id: int) -> None:
        self._check_open()
        await self._writes.call(lambda draft: draft.end_lease(lease_id))

    def _expire(self) -> None:
        with contextlib.suppress(QueueFull):  # the waiting calls end the leases too
            self._writes.call(_nothing).add_done_callback(_note_failure)

    def _settle(self, changes: Revisions) -> None:
        """Publish the changes of the thread's work, on the loop, in the order of the commits."""
        for same_revision in changes:
            self.watches.publish(same_revision)
        if self._closed is None and self._timer.is_needed:
            self._timer.arm()

    # In the thread.

    def _run_reads(self, calls: "Sequence[_ThreadCall[SqliteTables]]") -> Revisions:
        """End expired leases first, so that a listing matches its revision. If that fails, their keys are hidden
        all the same."""
        changes: Revisions = ()
        if self.deadlines.ended():
            try:
                changes = self._transact([])
            except SulinaError as error:
                _note_error(error)
        for call in calls:
            call.run(self._tables)
        return changes

    def _run_writes(self, calls: "Sequence[_ThreadCall[Draft]]") -> Revisions:
        try:
            return self._transact(calls)
        except SulinaError as error:
            for call in calls:
                call.error = _copy(error)
            return []

    def _grant(self, draft: Draft, ttl_seconds: float) -> int:
        if self.deadlines.count + len(draft.granted) >= LEASES_MAX:
            raise LimitReached(kind="leases", limit=LEASES_MAX)
        return draft.grant(ttl_seconds)

    def _transact(self, calls: "Sequence[_ThreadCall[Draft]]") -> Revisions:
        with self._tables.transaction() as draft:
            for lease_id in self.deadlines.ended():
                draft.end_lease(lease_id)
            for call in calls:
                call.run(draft)
        for lease_id in draft.ended:
            self.deadlines.remove(lease_id)
        for lease_id, ttl_seconds in draft.granted.items():
            self.deadlines.start(lease_id, ttl_seconds)
        return draft.changes


class _ThreadCall(Generic[Context]):
    """Work for the thread, and its outcome."""

    __slots__ = ("_run", "error", "future", "result", "size_bytes")

    def __init__(self, run: Callable[[Context], Any], future: asyncio.Future[Any], size_bytes: int) -> None:
        self._run = run
        self.future = future
        self.size_bytes = size_bytes
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, context: Context) -> None:
        """Run the call. Errors of Sulina's are its answer; others end the group."""
        try:
            self.result = self._run(context)
        except SulinaError as error:
            self.error = error


class _CallQueue(Generic[Context]):
    """Calls of one kind for the thread. While one group of them runs, the next one gathers."""

    def __init__(
        self,
        thread: Executor,
        work: Callable[[Sequence[_ThreadCall[Context]]], Revisions],
        settle: Callable[[Revisions], None],
    ) -> None:
        self._thread = thread
        self._work = work
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_ThreadCall[Context]] = []
        self._waiting_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def call(self, run: Callable[[Context], Result], size_bytes: int = 0) -> asyncio.Future[Result]:
        """Run a call in the thread, or raise QueueFull. A caller that is cancelled removes its waiting call."""
        size_bytes += CALL_BYTES
        if self._waiting and self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            raise QueueFull(waiting_bytes=self._waiting_bytes, limit_bytes=WAITING_BYTES_MAX)
        call = _ThreadCall(run, self._loop.create_future(), size_bytes)
        self._waiting.append(call)
        self._waiting_bytes += size_bytes
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._start)
        return call.future

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def _start(self) -> None:
        calls = [call for call in self._waiting if not call.future.done()]
        self._waiting, self._waiting_bytes = [], 0
        if calls:
            work = asyncio.wrap_future(self._thread.submit(self._work, calls), loop=self._loop)
            work.add_done_callback(lambda done: self._finish(calls, done))
        else:
            self._idle.set()

    def _finish(self, calls: Sequence[_ThreadCall[Context]], done: "asyncio.Future[Revisions]") -> None:
        failure = done.exception()
        for call in calls:
            error = failure or call.error
            if call.future.done():
                continue  # its caller was cancelled
            if error is not None:
                call.future.set_exception(error)
            else:
                call.future.set_result(call.result)
        self._settle(() if failure else done.result())
        # Not at once: callers that were just answered may have more calls, which would miss the group.
        self._loop.call_soon(self._start)


def _nothing(draft: Draft) -> None:
    """Do nothing: expired leases are ended by every write, even by this one."""


def _copy(error: SulinaError) -> SulinaError:
    """Copy an error for another task: a traceback belongs to one task."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


def _note_error(error: BaseException) -> None:
    _logger.error("lease_expiry_failed error=%s", error)


def _note_failure(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _note_error(error)
