"""Watches of etcd that outlive connections.

Each watch has a stream of its own, and a task that moves its changes into the bounded queue of its reader. When the
stream breaks, the task opens another one, on the next endpoint, from the last revision that it has seen whole; changes
that come again are skipped. So a reader sees every revision once, or Compacted.

- A stream begins at the last revision that was seen, not after it: if the following ones were compacted, etcd says so.
  Older versions do not say so to a watch that begins at the very revision of a compaction, and have lost its deletes.
- A long answer comes in fragments; it counts when the last of them is there. The changes of a revision are never spread
  over two answers.
- While nothing changes, etcd reports its revision now and then (on the stream, in order with the changes), so that
  resuming a quiet watch does not need a long history.
- etcd may call a watch compacted that has already seen more than was compacted: such a watch is just resumed.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from sulina.errors import Compacted, LimitReached, MetadataFailed, MetadataWentBack
from sulina.metadata.checks import WATCHES_MAX
from sulina.metadata.etcd_calls import RANGE, WATCH, EtcdRefused, Unanswered
from sulina.metadata.etcd_channel import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, EtcdEndpoint, EtcdEndpoints, Stream
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.quiet_grpc import grpc
from sulina.metadata.watches import WatchQueue
from sulina.ports import Change

_logger = logging.getLogger("sulina.metadata")


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream of one watch, and the revision of the store when it was opened."""

    stream: Stream[pb.WatchRequest, pb.WatchResponse]
    revision: int


class EtcdWatches:
    """The running watches of one client. Use on one event loop."""

    def __init__(self, endpoints: EtcdEndpoints, *, name_of: Callable[[bytes], str], queue_changes_max: int) -> None:
        """Keep watches. `name_of` turns a key of etcd into the key that callers see."""
        self._endpoints = endpoints
        self._name_of = name_of
        self._queue_changes_max = queue_changes_max
        self._queues: set[WatchQueue] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        endpoints.history.listen(self._history_changed)

    def _history_changed(self) -> None:
        """End every watch of a store that went back: on its new history it would resume from a revision of the old."""
        if (error := self._endpoints.history.went_back) is not None:
            for queue in self._queues:
                queue.fail(error)

    def __len__(self) -> int:
        return len(self._queues)

    async def follow(
        self, prefix: str, first: bytes, end: bytes, *, after: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        """Watch the keys in [first, end). The watch ends when the generator is closed, cancelled or collected.

        Raises:
            LimitReached: there are too many watches.
            Compacted: changes were lost: list, then watch again.
            InvalidSettings: the user may not read these keys.
        """
        if len(self._queues) >= WATCHES_MAX:
            raise LimitReached(kind="metadata watches", limit=WATCHES_MAX)
        queue = WatchQueue(prefix, after, self._queue_changes_max)
        self._queues.add(queue)
        task = asyncio.get_running_loop().create_task(self._feed(queue, first, end), name=f"etcd-watch-{prefix}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while (changes := await queue.take()) is not None:
                queue.delivered = changes[0].revision
                yield changes
        finally:
            self._queues.discard(queue)
            task.cancel()

    async def close(self) -> None:
        """End all watches. Changes in their queues are not delivered."""
        for queue in self._queues:
            queue.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _feed(self, queue: WatchQueue, first: bytes, end: bytes) -> None:
        """Fill a queue until it ends, with one stream after the other."""
        pause_seconds, is_again = PAUSE_SECONDS_MIN, False
        while True:
            seen = queue.seen
            try:
                await self._feed_once(queue, first, end, is_again=is_again)
            except Unanswered as failure:
                _logger.info("etcd_watch_broken prefix=%s seen=%d error=%s", queue.prefix, queue.seen, failure)
            except EtcdRefused as refused:
                if self._endpoints.may_renew(refused) and "permission denied" not in refused.details:
                    # The next stream gets another token.
                    _logger.info("etcd_watch_broken prefix=%s seen=%d error=%s", queue.prefix, queue.seen, refused)
                else:
                    queue.fail(refused.as_error(self._endpoints.path))
            except MetadataWentBack as error:
                queue.fail(error)
            except MetadataFailed as failure:  # a stream was opened, and nobody could confirm what it shows
                _logger.info("etcd_watch_broken prefix=%s seen=%d error=%s", queue.prefix, queue.seen, failure)
            except Exception as error:  # noqa: BLE001
                # Nobody awaits this task: without this its reader would wait for ever.
                queue.fail(MetadataFailed(path=self._endpoints.path, cause=error))
            if not queue.is_running:
                return
            is_again = True
            if queue.seen > seen:
                pause_seconds = PAUSE_SECONDS_MIN
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1))
            pause_seconds = min(pause_seconds * 2, PAUSE_SECONDS_MAX)

    async def _feed_once(self, queue: WatchQueue, first: bytes, end: bytes, *, is_again: bool) -> None:
        """Fill a queue with one stream, until either ends.

        Raises:
            EtcdRefused: etcd did not accept the watch.
            Unanswered: the stream broke.
            MetadataFailed: no quorum confirmed in time that the stream can be believed.
            MetadataWentBack: the store shows an older state than before.
        """
        create = pb.WatchCreateRequest(
            key=first, range_end=end, start_revision=max(queue.seen, 1), progress_notify=True, fragment=True
        )

        async def try_once(endpoint: EtcdEndpoint, seconds: float) -> OpenedStream:
            return await open_stream(endpoint, pb.WatchRequest(create=create), seconds)

        opened = await self._endpoints.once(try_once, deadline=self._endpoints.deadline())
        try:
            if opened.revision < queue.seen:
                # A member that lags behind, or a store that went back: this watch would wait for ever there.
                await self._endpoints.call(
                    RANGE, pb.RangeRequest(key=first, count_only=True), deadline=self._endpoints.deadline()
                )
            if is_again:  # without a stream, no loss of a connection could be noticed
                self._endpoints.connection_lost()
            await self._endpoints.believe(deadline=self._endpoints.deadline())
            await self._move(opened, queue)
        finally:
            opened.stream.cancel()

    async def _move(self, opened: OpenedStream, queue: WatchQueue) -> None:
        """Move changes from the stream to the queue. EtcdRefused, Unanswered."""
        events: list[pb.Event] = []
        while queue.is_running:
            response = await opened.stream.read()
            if response.compact_revision:
                if queue.seen < response.compact_revision:
                    queue.fail(Compacted(after=queue.delivered, oldest=response.compact_revision + 1))
                return
            if response.canceled:
                raise _cancellation(response.cancel_reason)
            events.extend(response.events)
            if response.fragment:
                continue
            if not events and response.watch_id >= 0:
                queue.seen = max(queue.seen, response.header.revision)
            for revision, changed in itertools.groupby(events, key=lambda event: event.kv.mod_revision):
                changes = [self._change(event, revision) for event in changed]
                if revision <= opened.revision:
                    await queue.wait_room(len(changes))
                queue.offer(changes)
            events = []

    def _change(self, event: pb.Event, revision: int) -> Change:
        value = None if event.type == pb.Event.DELETE else event.kv.value
        return Change(self._name_of(event.kv.key), value, revision)


async def open_stream(endpoint: EtcdEndpoint, request: pb.WatchRequest, seconds: float) -> OpenedStream:
    """Open a stream on which etcd has accepted the watch.

    Raises:
        EtcdRefused: the user may not read these keys.
        Unanswered: etcd did not answer in time, or has ended the watch.
    """
    stream, created = await endpoint.open(WATCH, request, seconds)
    if created.canceled:
        stream.cancel()
        raise _cancellation(created.cancel_reason)
    return OpenedStream(stream, created.header.revision)


def _cancellation(reason: str) -> EtcdRefused | Unanswered:
    """Return the failure of a watch: etcd ends it if its reader has no right or an expired token; others may pass."""
    if "permission denied" in reason or "auth" in reason:
        return EtcdRefused(grpc.StatusCode.UNAUTHENTICATED, reason)
    return Unanswered(reason or "etcd has ended the watch")
