"""Metadata that lasts as long as its process: for tests, and for a node without a data directory.

No call waits between its reads and its writes, so each is atomic. Leases that have ended are removed first, so none of
their keys is ever seen.
"""

import bisect
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from sulina.clock import SystemClock
from sulina.errors import Compacted, LeaseLost, LimitReached, LogClosed
from sulina.metadata.checks import (
    HISTORY_BYTES_MAX,
    HISTORY_CHANGES_MAX,
    LEASES_MAX,
    WATCH_QUEUE_CHANGES_MAX,
    check_compact,
    check_key,
    check_prefix,
    check_ttl,
    check_txn,
    check_watch,
)
from sulina.metadata.leases import Deadlines, HeldLease, LeaseTimer
from sulina.metadata.revision_floor import RevisionFloor
from sulina.metadata.watches import History, Watches
from sulina.ports import NO_REVISION, Change, Clock, Compare, Entry, Listing, Put, StoreSpace, TxnResult


@dataclass(frozen=True, slots=True)
class _Stored:
    entry: Entry
    lease_id: int


class MemoryMetadata:
    """A `ports.MetadataStore`. Use on one event loop."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        history_changes_max: int = HISTORY_CHANGES_MAX,
        watch_queue_changes_max: int = WATCH_QUEUE_CHANGES_MAX,
    ) -> None:
        self.history = RevisionFloor()
        self._entries: dict[str, _Stored] = {}
        self._keys: list[str] = []  # of all entries, sorted
        self._revision = NO_REVISION
        self._history = _RecentChanges(history_changes_max)
        self.watches = Watches(queue_changes_max=watch_queue_changes_max)
        self._lease_id_last = 0
        self._lease_keys: dict[int, set[str]] = {}  # of every lease that has not ended
        self.deadlines = Deadlines(clock or SystemClock())
        self._timer = LeaseTimer(self.deadlines, self._expire)
        self._is_closed = False

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        self._begin()
        stored = self._entries.get(key)
        return stored.entry if stored else None

    async def peek(self, key: str) -> Entry | None:
        check_key(key)
        stored = self._entries.get(key)
        return stored.entry if stored else None

    async def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        self._begin()
        entries = []
        for position in range(bisect.bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[position]
            if not key.startswith(prefix):
                break
            entries.append(self._entries[key].entry)
        return Listing(entries, self._revision)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """Do all puts and deletes in one revision if every compare holds, else nothing.

        Raises:
            InvalidInput: the transaction is not valid.
            LeaseLost: a lease of a put has ended.
        """
        check_txn(compares, puts, deletes)
        self._begin()
        if not all(self._revision_of(compare.key) == compare.revision for compare in compares):
            return TxnResult(False, self._revision)
        for put in puts:
            if put.lease_id and put.lease_id not in self._lease_keys:
                raise LeaseLost(lease_id=put.lease_id)
        self._apply(puts, deletes)
        return TxnResult(True, self._revision)

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Sequence[Change], None]:
        check_watch(prefix, after)

        async def read_history() -> History:
            self._begin()
            return History(self._history.after(after, prefix), self._revision)

        return self.watches.follow(prefix, after, read_history)

    async def lease(self, ttl_seconds: float) -> HeldLease:
        """Grant a lease.

        Raises:
            InvalidInput: the duration is not valid.
            LimitReached: there are too many leases.
        """
        check_ttl(ttl_seconds)
        self._begin()
        if len(self._lease_keys) >= LEASES_MAX:
            raise LimitReached(kind="leases", limit=LEASES_MAX)
        self._lease_id_last += 1
        self._lease_keys[self._lease_id_last] = set()
        self.deadlines.start(self._lease_id_last, ttl_seconds)
        self._timer.arm()
        return HeldLease(self._lease_id_last, keep_alive=self._keep_alive, revoke=self._revoke)

    async def compact(self, revision: int) -> None:
        self._begin()
        check_compact(revision, self._revision)
        self._history.compact(revision)

    async def space(self) -> StoreSpace:
        self._begin()
        return StoreSpace(revision=self._revision)

    async def expire(self) -> None:
        """End the leases whose time is over, as the timer does. For tests that control the clock."""
        self._begin()

    async def close(self) -> None:
        self._is_closed = True
        self._timer.stop()
        self.watches.end()

    def _begin(self) -> None:
        if self._is_closed:
            raise LogClosed(path="memory:")
        self.history.check()
        for lease_id in self.deadlines.ended():
            self._end(lease_id)

    def _expire(self) -> None:
        self._begin()
        self._timer.arm()

    def _keep_alive(self, lease_id: int) -> float:
        self._begin()
        return self.deadlines.restart(lease_id)

    async def _revoke(self, lease_id: int) -> None:
        self._begin()
        if lease_id in self._lease_keys:
            self._end(lease_id)

    def _end(self, lease_id: int) -> None:
        self._apply((), sorted(self._lease_keys[lease_id]))
        del self._lease_keys[lease_id]
        self.deadlines.remove(lease_id)

    def _revision_of(self, key: str) -> int:
        stored = self._entries.get(key)
        return stored.entry.revision if stored else NO_REVISION

    def _apply(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        revision = self._revision + 1
        changes = [Change(put.key, bytes(put.value), revision) for put in puts]
        changes += [Change(key, None, revision) for key in deletes if key in self._entries]
        if not changes:
            return
        for key in deletes:
            self._remove(key)
        for put in puts:
            self._detach(put.key)
            if put.key not in self._entries:
                bisect.insort(self._keys, put.key)
            self._entries[put.key] = _Stored(Entry(put.key, bytes(put.value), revision), put.lease_id)
            if put.lease_id:
                self._lease_keys[put.lease_id].add(put.key)
        self._revision = revision
        self._history.append(changes)
        self.watches.publish(changes)

    def _remove(self, key: str) -> None:
        if key in self._entries:
            self._detach(key)
            del self._entries[key]
            del self._keys[bisect.bisect_left(self._keys, key)]

    def _detach(self, key: str) -> None:
        stored = self._entries.get(key)
        if stored and stored.lease_id:
            self._lease_keys[stored.lease_id].discard(key)


class _RecentChanges:
    """The newest revisions, whole, as many as the limits allow and at least one. Every revision has a change."""

    def __init__(self, changes_max: int) -> None:
        self._changes_max = changes_max
        self._revisions: deque[Sequence[Change]] = deque()
        self._changes = 0
        self._bytes = 0
        self._compacted = NO_REVISION  # the newest revision that was removed

    def append(self, changes: Sequence[Change]) -> None:
        self._revisions.append(changes)
        self._changes += len(changes)
        self._bytes += _size_bytes(changes)
        while len(self._revisions) > 1 and (self._changes > self._changes_max or self._bytes > HISTORY_BYTES_MAX):
            self._remove_oldest()

    def compact(self, revision: int) -> None:
        while self._compacted < revision:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        oldest = self._revisions.popleft()
        self._changes -= len(oldest)
        self._bytes -= _size_bytes(oldest)
        self._compacted = oldest[0].revision

    def after(self, after: int, prefix: str) -> list[Sequence[Change]]:
        """Return the changes after a revision, or raise Compacted."""
        if after < self._compacted:
            raise Compacted(after=after, oldest=self._compacted + 1)
        newer = itertools.islice(self._revisions, min(after - self._compacted, len(self._revisions)), None)
        picked = ([change for change in changes if change.key.startswith(prefix)] for changes in newer)
        return [changes for changes in picked if changes]


def _size_bytes(changes: Sequence[Change]) -> int:
    return sum(len(change.key) + len(change.value or b"") for change in changes)
