"""Cursors on their way to the metadata store, many in one transaction.

Whoever waits for a cursor to be durable starts a transaction at once, which takes along every cursor that has changed.
Those that nobody waits for are written a little later. A cursor that is forgotten is never written again, nor is one
whose fence no longer holds: its partition has another owner, who goes on from what was written before.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from sulina.errors import NotServing
from sulina.ports import TXN_OPERATIONS_MAX, Compare, MetadataStore, Put

DELAY_SECONDS = 0.2

_logger = structlog.get_logger("sulina.cursors")

Stored = Callable[[], bytes]
TOGETHER_MAX = TXN_OPERATIONS_MAX // 3  # each may have three fences


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What to write, and what must hold for that."""

    stored: Stored
    fences: Sequence[Compare]


class CursorWriter:
    """One for a node. `start`, then `close`, which writes what is left."""

    def __init__(self, metadata: MetadataStore, delay_seconds: float = DELAY_SECONDS) -> None:
        self._metadata = metadata
        self._delay_seconds = delay_seconds
        self._changed: dict[str, _Cursor] = {}  # in the order in which they changed
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._some = asyncio.Event()
        self._urgent = asyncio.Event()
        self._writing: set[str] = set()  # in the transaction that runs
        self._write_done = asyncio.Event()  # of that transaction
        self._forgotten: set[str] = set()  # that must not be tried again
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="cursor-writer")

    async def close(self) -> None:
        """Write what is left. What the store then refuses stays unwritten: those records are delivered again."""
        self._is_closing = True
        self._some.set()
        self._urgent.set()
        if self._task is not None:
            await self._task
        for waiters in self._waiting.values():
            _fail(waiters, NotServing(reason="the node is stopping"))

    def changed(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> None:
        """Write it soon, as it is by then, if its fences hold by then."""
        self._changed[key] = _Cursor(stored, fences)
        self._some.set()

    def durable(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> asyncio.Future[None]:
        """Write it now; the future is done when it is durable. NotServing when a fence does not hold."""
        self.changed(key, stored, fences)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._urgent.set()
        return future

    async def forget(self, keys: list[str]) -> None:
        """Return when none of these will be written any more. It does not wait for anything else."""
        self._forgotten.update(keys)
        try:
            for key in keys:
                self._changed.pop(key, None)
                _fail(self._waiting.pop(key, []), NotServing(reason="the subscription is gone"))
            if not self._writing.isdisjoint(keys):
                await self._write_done.wait()
        finally:
            self._forgotten.difference_update(keys)

    async def _run(self) -> None:
        while not (self._is_closing and not self._changed):
            self._some.clear()
            if not self._changed:
                await self._some.wait()
                continue
            if not self._waiting and not self._is_closing:
                self._urgent.clear()
                try:
                    async with asyncio.timeout(self._delay_seconds):
                        await self._urgent.wait()
                except TimeoutError:
                    pass
            if not await self._write() and self._is_closing:
                return

    async def _write(self) -> bool:
        # Those that somebody waits for go first.
        keys = sorted(self._changed, key=lambda key: key not in self._waiting)[:TOGETHER_MAX]
        if await self._write_together(keys, is_last_try=len(keys) == 1):
            return True
        # One that cannot be written must not keep the others from it.
        done = [await self._write_together([key], is_last_try=True) for key in keys if key in self._changed]
        if not all(done):
            await asyncio.sleep(self._delay_seconds)
        return all(done)

    async def _write_together(self, keys: list[str], *, is_last_try: bool) -> bool:
        group = {key: self._changed.pop(key) for key in keys}
        waiting = {key: self._waiting.pop(key, []) for key in keys}
        self._writing, self._write_done = set(keys), asyncio.Event()
        try:
            fences = {fence for cursor in group.values() for fence in cursor.fences}
            puts = [Put(key, cursor.stored()) for key, cursor in group.items()]
            is_done = (await self._metadata.txn(compares=list(fences), puts=puts)).is_done
            if not is_done and len(keys) == 1:
                _fail(waiting[keys[0]], NotServing(reason="the partition has another owner"))
                return True
            if not is_done:
                raise NotServing(reason="one of the partitions has another owner")
        except Exception as error:  # noqa: BLE001
            # Whatever it is, those who wait must hear of it, and it is tried again.
            for key, cursor in group.items():
                if key in self._forgotten:
                    _fail(waiting[key], NotServing(reason="the subscription is gone"))
                    continue
                self._changed.setdefault(key, cursor)
                if is_last_try:
                    _logger.error("cursor_not_written", key=key, error=str(error))
                    _fail(waiting[key], error)
                else:
                    self._waiting[key] = waiting[key] + self._waiting.get(key, [])
            return False
        finally:
            self._writing = set()
            self._write_done.set()
        for future in (future for waiters in waiting.values() for future in waiters):
            if not future.done():
                future.set_result(None)
        return True


def _fail(waiters: list[asyncio.Future[None]], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
