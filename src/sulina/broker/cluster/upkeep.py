"""The upkeep of the metadata store: old history is compacted, and an event is emitted when the store is full.

Every broker notes which revisions it has seen, and looks at the size of the store. Only the leader compacts, by what it
has seen itself, so a new leader can go on at once. When the store is full no leader can be elected: then, without a
leader, every broker may compact. Compacting twice, or by a former leader, does no harm.
"""

import asyncio
import math

import structlog

from sulina.broker.cluster.election import Election
from sulina.broker.cluster.view import ClusterView
from sulina.broker.events import EventStream
from sulina.broker.options import ClusterOptions
from sulina.core.cluster import history
from sulina.core.cluster.history import SeenRevisions
from sulina.ports import NO_REVISION, Clock, MetadataStore, StoreSpace

COMPACTIONS_PER_KEEP = 5

_logger = structlog.get_logger("sulina.cluster")


class MetadataUpkeep:
    """Runs on every broker. `space` is the last known size of the store; None: not known yet."""

    def __init__(
        self,
        metadata: MetadataStore,
        view: ClusterView,
        election: Election,
        *,
        events: EventStream,
        clock: Clock,
        options: ClusterOptions,
    ) -> None:
        self._metadata = metadata
        self._view = view
        self._election = election
        self._events = events
        self._clock = clock
        self._keep_seconds = options.metadata_history_seconds
        self._pause_seconds = min(options.upkeep_seconds, options.metadata_history_seconds / COMPACTIONS_PER_KEEP)
        self._seen = SeenRevisions(options.metadata_history_seconds)
        self._compacted = NO_REVISION
        self._compacted_at = -math.inf
        self.space: StoreSpace | None = None

    async def run(self) -> None:
        """Look at the size regularly, and compact when it is due."""
        while True:
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001
                # Whatever the error is, try again: the store may be filling up.
                _logger.warning("metadata_upkeep_failed", error=str(error) or type(error).__name__)
            await asyncio.sleep(self._pause_seconds)

    async def _round(self) -> None:
        space = await self._look()
        self._seen.saw(space.revision, self._clock.monotonic())
        is_pressed = history.is_pressed(
            is_full=space.is_full, used_bytes=space.used_bytes, quota_bytes=space.quota_bytes
        )
        now = self._clock.monotonic()
        keep_seconds = history.kept_seconds(self._keep_seconds, is_pressed=is_pressed)
        pause_seconds = keep_seconds if space.is_full else keep_seconds / COMPACTIONS_PER_KEEP
        if not self._may_compact(space) or now < self._compacted_at + pause_seconds:
            return
        revision = self._seen.older_than(keep_seconds, now)
        if revision > self._compacted or (space.is_full and revision != NO_REVISION):
            await self._metadata.compact(revision)
            self._compacted = revision
            _logger.info("metadata_compacted", revision=revision, used_bytes=space.used_bytes)
            if space.is_full:
                await self._look()
        self._compacted_at = now

    async def _look(self) -> StoreSpace:
        before, self.space = self.space, await self._metadata.space()
        is_told = before is not None and before.is_full
        if self.space.is_full != is_told:
            type_ = "metadata_full" if self.space.is_full else "metadata_has_room"
            self._events.emit(type_, size_bytes=self.space.size_bytes, used_bytes=self.space.used_bytes)
        return self.space

    def _may_compact(self, space: StoreSpace) -> bool:
        return self._election.revision is not None or (space.is_full and self._view.leader is None)
