"""Cursors on their way to the metadata store, many in one transaction.

- Whoever waits for a cursor to be durable starts a transaction at once, which takes along all that have changed. What
  changes while it is under way goes into the next one: the more consumers wait, the more share a transaction, and none
  waits for others to come.
- Cursors that nobody waits for are written a little later. Notes, which are for whoever looks and change all the time,
  are written together, once a second at most, as they are then.
- What is forgotten is never written again, nor is anything whose fence no longer holds: its partition has another
  owner, who goes on from what was written before. A fence that no longer holds costs nobody else anything.
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
WAITING_MAX = 100_000  # cursors and notes; beyond it no new notes are taken

_logger = structlog.get_logger("sulina.cursors")

Stored = Callable[[], bytes | None]  # None: the key is to go
_Failures = dict[str, Exception | None]  # why a key was not written; None: a fence does not hold


@dataclass(frozen=True, slots=True)
class _Write:
    """What to write, and what must hold for that."""

    stored: Stored
    fences: Sequence[Compare]
    is_note: bool = False


class CursorWriter:
    """One for a node. `start`, then `close`, which writes what is left."""

    def __init__(
        self, metadata: MetadataStore, delay_seconds: float = DELAY_SECONDS, notes_seconds: float = NOTES_SECONDS
    ) -> None:
        self._metadata = metadata
        self._delay_seconds = delay_seconds
        self._notes_seconds = notes_seconds
        self._changed: dict[str, _Write] = {}  # in the order in which they changed
        self._due = math.inf  # when those of them are written that nobody waits for
        self._notes: dict[str, _Write] = {}
        self._notes_due = math.inf
        self._notes_taken = -math.inf
        self._left_out = 0  # notes, since the start
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._wake = asyncio.Event()
        self._writing: set[str] = set()  # in the transaction that runs
        self._write_done = asyncio.Event()  # of that transaction
        self._forgotten: set[str] = set()  # that must not be tried again
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="cursor-writer")

    async def close(self) -> None:
        """Write what is left. What the store then refuses stays unwritten: those records are delivered again."""
        self._closing.set()
        self._wake.set()
        if self._task is not None:
            await self._task
        for waiters in self._waiting.values():
            _fail(waiters, NotServing(reason="the node is stopping"))

    def changed(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> None:
        """Write it soon, as it is by then, if its fences hold by then."""
        self._changed[key] = _Write(stored, fences)
        self._set_due()

    def note(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> None:
        """Write it with other notes, once a second at most, as it is by then, if its fences hold by then.

        Where too many wait already, because the store takes nothing, it is left out: whoever looks sees less.
        """
        if key not in self._notes and len(self._notes) + len(self._changed) >= WAITING_MAX:
            self._left_out += 1
            return
        self._notes[key] = _Write(stored, fences, is_note=True)
        self._set_notes_due()

    def durable(self, key: str, stored: Stored, fences: Sequence[Compare] = ()) -> asyncio.Future[None]:
        """Write it now; the future is done when it is durable. NotServing when a fence does not hold."""
        self._changed[key] = _Write(stored, fences)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        self._wake.set()
        return future

    async def forget(self, keys: list[str]) -> None:
        """Return when none of these will be written any more. It does not wait for anything else."""
        self._forgotten.update(keys)
        try:
            for key in keys:
                self._changed.pop(key, None)
                self._notes.pop(key, None)
                _fail(self._waiting.pop(key, []), NotServing(reason="the subscription is gone"))
            if not self._writing.isdisjoint(keys):
                await self._write_done.wait()
        finally:
            self._forgotten.difference_update(keys)

    async def write_notes(self, prefix: str) -> None:
        """Write the notes under `prefix` now; return when they are durable, or cannot be."""
        is_writing, written = any(key.startswith(prefix) for key in self._writing), self._write_done
        due = {key: note for key, note in (self._changed | self._notes).items() if key.startswith(prefix)}
        for key in due:
            self._notes.pop(key, None)
        writes = [self.durable(key, note.stored, note.fences) for key, note in due.items()]
        await asyncio.gather(*writes, return_exceptions=True)
        if is_writing:
            await written.wait()

    async def forget_notes(self, prefix: str) -> None:
        """Return when nothing under `prefix` will be written any more."""
        keys = {*self._notes, *self._changed, *self._writing}
        await self.forget([key for key in keys if key.startswith(prefix)])

    # When

    async def _run(self) -> None:
        while self._changed or self._notes or not self._closing.is_set():
            if not await self._is_due() or await self._write():
                continue
            if self._closing.is_set():
                return
            await wait_or_timeout(self._closing, self._delay_seconds)

    async def _is_due(self) -> bool:
        """Whether something is to be written now. Else wait until that may be so."""
        due = min(self._due, self._notes_due)
        if self._waiting or self._closing.is_set() or due <= _now():
            return True
        self._wake.clear()
        await wait_or_timeout(self._wake, None if due == math.inf else due - _now())
        return False

    def _set_due(self) -> None:
        if self._due == math.inf:
            self._due = _now() + self._delay_seconds
            self._wake.set()

    def _set_notes_due(self) -> None:
        if self._notes_due == math.inf:
            self._notes_due = max(_now() + self._delay_seconds, self._notes_taken + self._notes_seconds)
            self._wake.set()

    # What

    def _take(self) -> dict[str, _Write]:
        """As much as one transaction takes: what somebody waits for first; notes, once they are due, as all else."""
        if self._notes_due <= _now() or self._closing.is_set():
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
        """Whether everything that was to be written is, or never can be. What cannot be written yet is kept."""
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
                _succeed(waiters)
        unwritten = [key for key, error in failures.items() if error is not None and key not in self._forgotten]
        for key in unwritten:
            self._keep(key, group[key])
        if unwritten:
            error = str(failures[unwritten[0]])
            _logger.error("cursors_not_written", count=len(unwritten), left_out=self._left_out, error=error)
        return not unwritten

    def _keep(self, key: str, write: _Write) -> None:
        """Try it again later, unless there is a newer word."""
        if write.is_note:
            self._notes.setdefault(key, write)
            self._set_notes_due()
        else:
            self._changed.setdefault(key, write)
            self._set_due()

    async def _store(self, group: Mapping[str, _Write]) -> _Failures:
        """Write what can be written; what could not, and why."""
        if not group:
            return {}
        try:
            if await self._txn(group):
                return {}
            fenced = await self._fenced(group)
        except MetadataFailed as error:  # the others would fare no better
            return dict.fromkeys(group, error)
        except Exception as error:  # noqa: BLE001
            # Whatever it is: one that cannot be written must not keep the others from it.
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

    async def _txn(self, group: Mapping[str, _Write]) -> bool:
        values = {key: write.stored() for key, write in group.items()}
        done = await self._metadata.txn(
            compares=list({fence for write in group.values() for fence in write.fences}),
            puts=[Put(key, value) for key, value in values.items() if value is not None],
            deletes=[key for key, value in values.items() if value is None],
        )
        return done.is_done

    async def _fenced(self, group: Mapping[str, _Write]) -> list[str]:
        """Those of which a fence does not hold, and never will again: a revision does not return."""
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


def _succeed(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _now() -> float:
    return asyncio.get_running_loop().time()
