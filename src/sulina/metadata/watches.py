"""Watches of one store: the changes before they began, then the changes while they last.

Each watch sees every revision that touches its prefix once, whole, and in order, or ends with `Compacted`. It is
registered before its history is read, so no change is lost between the two; a change that comes both ways is delivered
once. A reader that is too slow loses its own watch only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from sulina.errors import Compacted, LimitReached, SulinaError
from sulina.metadata.checks import WATCHES_MAX
from sulina.ports import Change


@dataclass(frozen=True, slots=True)
class History:
    """The changes under a prefix after some revision, those of one revision together, up to `revision` of the store."""

    revisions: Sequence[Sequence[Change]]
    revision: int


class Watches:
    """The running watches. Use on one event loop."""

    def __init__(self, *, queue_changes_max: int) -> None:
        self._queue_changes_max = queue_changes_max
        self.watchers: set[WatchQueue] = set()

    def __len__(self) -> int:
        return len(self.watchers)

    def publish(self, changes: Sequence[Change]) -> None:
        """Add the changes of one revision, greater than those before, to the queues of the watches for them."""
        for watcher in self.watchers:
            mine = [change for change in changes if change.key.startswith(watcher.prefix)]
            if mine:
                watcher.offer(mine)

    def end(self) -> None:
        """End all watches. Changes in their queues are not delivered."""
        for watcher in self.watchers:
            watcher.end()

    async def follow(
        self, prefix: str, after: int, read_history: Callable[[], Awaitable[History]]
    ) -> AsyncGenerator[Sequence[Change], None]:
        """Watch a prefix. The watch ends when the generator is closed, cancelled or collected.

        Raises:
            LimitReached: there are too many watches.
            Compacted: changes were lost: list, then watch again.
        """
        if len(self.watchers) >= WATCHES_MAX:
            raise LimitReached(kind="metadata watches", limit=WATCHES_MAX)
        watcher = WatchQueue(prefix, after, self._queue_changes_max)
        self.watchers.add(watcher)
        try:
            history = await read_history()
            watcher.skip_to(history.revision)
            waiting = deque(history.revisions)
            del history
            while True:
                changes = waiting.popleft() if waiting and watcher.is_running else await watcher.take()
                if changes is None:
                    return
                watcher.delivered = changes[0].revision
                yield changes
        finally:
            self.watchers.discard(watcher)


class WatchQueue:
    """The changes that wait for the reader of one watch: bounded, whole revisions, each once and in order."""

    __slots__ = (
        "_error",
        "_queue",
        "_queue_changes_max",
        "_queued_changes",
        "_taken",
        "_wake",
        "delivered",
        "is_ended",
        "prefix",
        "seen",
    )

    def __init__(self, prefix: str, after: int, queue_changes_max: int) -> None:
        self.prefix = prefix
        self.delivered = after  # the newest revision that the reader has got
        self.seen = after  # in the history, or queued: older revisions are not added again
        self.is_ended = False
        self._error: SulinaError | None = None  # why the watch has ended
        self._queue: deque[Sequence[Change]] = deque()
        self._queued_changes = 0
        self._queue_changes_max = queue_changes_max
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return not self.is_ended and self._error is None

    def offer(self, changes: Sequence[Change]) -> None:
        """Add all changes of one revision, unless it was seen before."""
        revision = changes[0].revision
        if revision <= self.seen or not self.is_running:
            return
        self.seen = revision
        if not self._has_room(len(changes)):
            self.fail(Compacted(after=self.delivered, oldest=revision))
            return
        self._queue.append(changes)
        self._queued_changes += len(changes)
        self._wake.set()

    async def wait_room(self, changes: int) -> None:
        """Return when there is room for this many changes: for old changes, which can wait for their reader."""
        while self.is_running and not self._has_room(changes):
            self._taken.clear()
            await self._taken.wait()

    def skip_to(self, revision: int) -> None:
        """Note that the history had everything up to `revision`."""
        self.seen = max(self.seen, revision)
        while self._queue and self._queue[0][0].revision <= revision:
            self._queued_changes -= len(self._queue.popleft())

    async def take(self) -> Sequence[Change] | None:
        """Return the next changes; None when the store was closed.

        Raises:
            Compacted: changes were lost, or another error that ended the watch.
        """
        while not self._queue and self.is_running:
            self._wake.clear()
            await self._wake.wait()
        if self.is_ended:
            return None
        if self._error is not None:
            raise self._error
        changes = self._queue.popleft()
        self._queued_changes -= len(changes)
        self._taken.set()
        return changes

    def fail(self, error: SulinaError) -> None:
        """End the watch with an error. Queued changes are not delivered."""
        self._error = error
        self._queue.clear()
        self._wake.set()

    def end(self) -> None:
        """End the watch because the store was closed. Queued changes are not delivered."""
        self.is_ended = True
        self._queue.clear()
        self._wake.set()

    def _has_room(self, changes: int) -> bool:
        """Tell whether changes fit. A single revision may have more than the limit."""
        return not self._queue or self._queued_changes + changes <= self._queue_changes_max
