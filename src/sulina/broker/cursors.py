"""Writes cursors to the metadata store, many in one transaction.

- A cursor that somebody waits for starts a transaction at once, which includes all cursors that have changed. Changes
  during the transaction go into the next one, so waiters share transactions and do not wait for more of them.
- Cursors that nobody waits for are written a little later. Notes, which change all the time and are only shown to
  users, are written together, at most once a second.
- A key that was discarded is not written again. Nor is one whose fence does not hold any more: its partition has
  another owner, which goes on from what was written before. The other keys of such a transaction are still written.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from sulina.errors import MetadataFailed, NotServing
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Compare, MetadataStore, Put
from sulina.waiting import wait_or_timeout

DELAY_SECONDS = 0.2
NOTES_SECONDS = 1.0  # between two transactions with notes
WAITING_MAX = 100_000  # cursors and notes; beyond it new notes are dropped

_logger = structlog.get_logger("sulina.cursors")

Stored = Callable[[], bytes | None]  # None: delete the key
_Failures = dict[str, Exception | None]  # why a key was not written; None: a fence does not hold


@dataclass(frozen=True, slots=True)
class _Write:
    """A value to write, and the fences that must hold."""

    stored: Stored
    fences: Sequence[Compare]
    is_note: bool = False


class CursorWriter:
    """The writer of a node. `stop` writes what is left."""

    def __init__(
        self, metadata: MetadataStore, delay_seconds: float = DELAY_SECONDS, notes_seconds: float = NOTES_SECONDS
    ) -> None:
        self._metadata = metadata
        self.delay_seconds = delay_seconds  # before a cursor that nobody waits for is written
        self._notes_seconds = notes_seconds
        self._changed: dict[str, _Write] = {}  # in the order in which they changed
        self._due = math.inf  # when changes that nobody waits for are written
        self._notes: dict[str, _Write] = {}
        self._notes_due = math.inf
        self._notes_taken = -math.inf
        self._dropped_notes = 0  # since the start
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._wake = asyncio.Event()
        self._writing: set[str] = set()  # keys in the current transaction
        self._write_done = asyncio.Event()  # of that transaction
        self._discarded: set[str] = set()  # keys that must not be tried again
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def pending(self) -> int:
        """Number of values that are waiting or being written."""
        return len(self._notes) + len(self._changed) + len(self._writing)

    def start(self) -> None:
        """Start to write."""
        self._task = asyncio.create_task(self._run(), name="cursor-writer")

    async def stop(self) -> None:
        """Write what is left, and stop. If the store refuses a cursor now, its records are delivered again later."""
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            await self._task
        for waiters in self._waiting.values():
            _fail(waiters, NotServing(reason="the node is stopping"))

    def changed(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> None:
        """Write a value soon, as `stored` returns it then, if its fences hold then."""
        self._changed[key] = _Write(stored, fences)
        self._set_due()

    def note(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> None:
        """Write a value with other notes, at most once a second, as `stored` returns it then, if its fences hold then.

        It is dropped when too many wait already, because the store refuses writes.
        """
        if key not in self._notes and len(self._notes) + len(self._changed) >= WAITING_MAX:
            self._dropped_notes += 1
            return
        self._notes[key] = _Write(stored, fences, is_note=True)
        self._set_notes_due()

    def durable(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> asyncio.Future[None]:
        """Write a value now; the future is done when it is durable.

        Raises:
            NotServing: in the future: a fence does not hold, or the key was discarded.
        """
        self._changed[key] = _Write(stored, fences)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._wake.set()
        return future

    async def discard(self, keys: list[str]) -> None:
        """Drop pending writes of these keys; when it returns, none of them will be written."""
        self._discarded.update(keys)
        try:
            for key in keys:
                self._changed.pop(key, None)
                self._notes.pop(key, None)
                _fail(self._waiting.pop(key, []), NotServing(reason="the subscription was deleted"))
            if not self._writing.isdisjoint(keys):
                await self._write_done.wait()
        finally:
            self._discarded.difference_update(keys)

    async def write_notes(self, prefix: str) -> None:
        """Write the notes under `prefix` now; return when they are durable, or could not be written."""
        is_writing, written = any(key.startswith(prefix) for key in self._writing), self._write_done
        due = {key: note for key, note in (self._changed | self._notes).items() if key.startswith(prefix)}
        for key in due:
            self._notes.pop(key, None)
        writes = [self.durable(key, note.stored, note.fences) for key, note in due.items()]
        await asyncio.gather(*writes, return_exceptions=True)
        if is_writing:
            await written.wait()

    async def discard_notes(self, prefix: str) -> None:
        """Drop pending writes under `prefix`; when it returns, none of them will be written."""
        keys = {*self._notes, *self._changed, *self._writing}
        await self.discard([key for key in keys if key.startswith(prefix)])

    # When to write

    async def _run(self) -> None:
        while self._changed or self._notes or not self._stopping.is_set():
            due = min(self._due, self._notes_due)
            if not self._waiting and not self._stopping.is_set() and due > _now():
                self._wake.clear()
                await wait_or_timeout(self._wake, None if due == math.inf else due - _now())
            elif not await self._write():
                if self._stopping.is_set():
                    return
                await wait_or_timeout(self._stopping, self.delay_seconds)

    def _set_due(self) -> None:
        if self._due == math.inf:
            self._due = _now() + self.delay_seconds
            self._wake.set()

    def _set_notes_due(self) -> None:
        if self._notes_due == math.inf:
            self._notes_due = max(_now() + self.delay_seconds, self._notes_taken + self._notes_seconds)
            self._wake.set()

    # What to write

    def _take(self) -> dict[str, _Write]:
        """Take what fits into one transaction: first what somebody waits for; notes only when they are due."""
        if self._notes_due <= _now() or self._stopping.is_set():
            self._changed |= self._notes
            self._notes, self._notes_due, self._notes_taken = {}, math.inf, _now()
            self._due = _now()
        taken: dict[str, _Write] = {}
        fences: set[Compare] = set()
        for key in sorted(self._changed, key=lambda key: key not in self._waiting):
            write = self._changed[key]
            new = [fence for fence in write.fences if fence not in fences]
            if len(fences) + len(new) > TXN_OPERATIONS_MAX or len(taken) == TXN_OPERATIONS_MAX:
                break
            taken[key] = write
            fences.update(new)
        for key in taken:
            del self._changed[key]
        if not self._changed:
            self._due = math.inf
        return taken

    async def _write(self) -> bool:
        """Write one group; return False if something of it has to be tried again later."""
        group = self._take()
        waiting = {key: self._waiting.pop(key) for key in group if key in self._waiting}
        self._writing, self._write_done = set(group), asyncio.Event()
        try:
            failures = await self._store(group)
        finally:
            self._writing = set()
            self._write_done.set()
        for key, waiters in waiting.items():
            if key in failures:
                _fail(waiters, failures[key] or NotServing(reason="the partition has another owner"))
            else:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(None)
        unwritten = [key for key, error in failures.items() if error is not None and key not in self._discarded]
        for key in unwritten:
            self._keep(key, group[key])
        if unwritten:
            error = str(failures[unwritten[0]])
            _logger.error("cursors_not_written", count=len(unwritten), dropped_notes=self._dropped_notes, error=error)
        return not unwritten

    def _keep(self, key: str, write: _Write) -> None:
        """Try a write again later, unless there is a newer one of the same key."""
        if write.is_note:
            self._notes.setdefault(key, write)
            self._set_notes_due()
        else:
            self._changed.setdefault(key, write)
            self._set_due()

    async def _store(self, group: Mapping[str, _Write]) -> _Failures:
        """Write what can be written; return the keys that could not, with the errors."""
        if not group:
            return {}
        try:
            values = {key: write.stored() for key, write in group.items()}
            done = await self._metadata.txn(
                compares=list({fence for write in group.values() for fence in write.fences}),
                puts=[Put(key, value) for key, value in values.items() if value is not None],
                deletes=[key for key, value in values.items() if value is None],
            )
            if done.is_done:
                return {}
            fenced = await self._fenced(group)
        except MetadataFailed as error:  # the same would happen to the others
            return dict.fromkeys(group, error)
        except Exception as error:  # noqa: BLE001
            # Whatever the error is: one bad value must not prevent the others from being written.
            if len(group) == 1:
                return dict.fromkeys(group, error)
            return await self._store_halves(group)
        if not fenced:
            return await self._store_halves(group)
        rest = {key: write for key, write in group.items() if key not in fenced}
        return dict.fromkeys(fenced) | await self._store(rest)

    async def _store_halves(self, group: Mapping[str, _Write]) -> _Failures:
        keys = list(group)
        half = len(keys) // 2
        failures: _Failures = {}
        for some in (keys[:half], keys[half:]):
            failures |= await self._store({key: group[key] for key in some})
        return failures

    async def _fenced(self, group: Mapping[str, _Write]) -> list[str]:
        """Return the keys with a fence that does not hold, and never will again: revisions only increase."""
        if len(group) == 1:
            return list(group)
        fences = list({fence for write in group.values() for fence in write.fences})
        found = await asyncio.gather(*(self._metadata.get(fence.key) for fence in fences))
        broken = {
            fence
            for fence, entry in zip(fences, found, strict=True)
            if fence.revision != (entry.revision if entry is not None else NO_REVISION)
        }
        return [key for key, write in group.items() if not broken.isdisjoint(write.fences)]


def _fail(waiters: list[asyncio.Future[None]], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
