"""How a partition leaves its owner: quiesce, commit, seal, unassign. Then the owner is told that it has lost it, cleans
up what is here, and says at last that the topic is unloaded.

Each step may be done again, and is, when the process died in between: what is durable decides. A partition whose data
cannot be archived in time is served again, and tried again later. Nothing is taken after the seal, and the seal is
durable before the assignment changes.
"""

import asyncio
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any

import structlog

from sulina.broker.cluster.cluster import Cluster
from sulina.broker.cluster_handle import ClusterHandle
from sulina.broker.events import EventStream
from sulina.broker.options import BrokerOptions
from sulina.broker.partition_logs import PartitionLogs
from sulina.broker.topic import Topic
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current, GivenUp, Reason, Sealed, UnloadRequest, UnloadStep
from sulina.core.formats import METADATA
from sulina.core.log.commit import timestamp_text
from sulina.core.log.log_state import NO_EPOCH
from sulina.core.log.resume import DIRECTORY, End
from sulina.errors import Corrupt, LogIncomplete, NotOwner, NotServing, SubscriptionBusy, SulinaError
from sulina.failpoints import Failpoint
from sulina.ports import Clock, Put
from sulina.wire.messages import TopicState

TAKE_BACK_SECONDS = 0.5  # between two attempts to serve a partition again

_logger = structlog.get_logger("sulina.unload")


class UnloadOutcome(StrEnum):
    """How an attempt to unload a partition ended."""

    DONE = "done"
    REFUSED = "refused"  # the request is deleted, unless it was changed meanwhile: then it comes again
    LATER = "later"  # the partition is served as before, and it is tried again


class Unloading:
    """The unloading of one partition, under one assignment."""

    def __init__(
        self,
        topic: Topic,
        number: int,
        *,
        cluster: Cluster,
        handle: ClusterHandle,
        revision: int,
        events: EventStream,
        options: BrokerOptions,
        clock: Clock,
        logs: PartitionLogs,
    ) -> None:
        self._logs = logs
        self._topic = topic
        self._ownership = topic.ownerships[number]
        self._number = number
        self._cluster = cluster
        self._handle = handle
        self._revision = revision  # of the assignment
        self._events = events
        self._options = options
        self._clock = clock
        self._drained: End | None = None
        self._was_served = False  # when it began; a partition may leave that could not be made ready
        self._is_unassigning = False  # the answer may be lost

    async def run(self, unload: UnloadRequest, record_revision: int) -> UnloadOutcome:
        """Carry out a request to unload the partition."""
        try:
            if not unload.force:
                try:
                    self._topic.check_idle()
                except SubscriptionBusy as busy:
                    await self._cluster.refuse_unload(self._ownership.name, record_revision, str(busy))
                    return UnloadOutcome.REFUSED
            try:
                await self.archive_ahead()
            except LogIncomplete as missing:
                if not unload.give_up:
                    raise
                await self._give_up(unload, missing)
                return UnloadOutcome.DONE
            await self._hand_back(unload, record_revision)
        except Exception as error:  # noqa: BLE001
            # Whatever it is: what is ours must be served.
            if not await self._take_back() and self._is_unassigning:
                return UnloadOutcome.DONE  # only the answer was lost
            reason = str(error) or f"its data did not reach the archive in {self._options.unload_seconds_max:g} seconds"
            await self._tell_failed(reason)
            return UnloadOutcome.LATER
        return UnloadOutcome.DONE

    async def _tell_failed(self, reason: str) -> None:
        """Store what went wrong, so that an operator sees it until it is tried again."""
        _logger.warning("unload_failed", partition=str(self._ownership.name), error=reason)
        self._events.emit("unload_failed", self._topic.name, partition=self._number, reason=reason)
        try:
            await self._cluster.fail_unload(self._ownership.name, reason)
        except (SulinaError, OSError) as error:
            _logger.warning("unload_error_not_written", partition=str(self._ownership.name), error=str(error))

    async def _take_back(self) -> bool:
        """Serve it again, once it is certain that it is ours and that nobody takes it for sealed; False: it is not.

        What we wrote last may have been done, or may yet be. A later write tells, and rules that out.
        """
        ownership = self._ownership
        while ownership.state is TopicState.DRAINING and ownership.revision == self._revision:
            try:
                await self._unseal()
            except NotOwner:
                return False  # we are about to hear that it is lost
            except (SulinaError, OSError) as error:
                _logger.warning("unload_not_taken_back", partition=str(ownership.name), error=str(error))
                await asyncio.sleep(TAKE_BACK_SECONDS)
                continue
            if ownership.revision != self._revision:
                break
            if not self._was_served:
                ownership.state = TopicState.CLOSED
                break
            ownership.state = TopicState.ACTIVE
            for subscription in self._topic.subscriptions.values():
                subscription.resume(self._number)
        return ownership.revision == self._revision

    async def _unseal(self) -> None:
        ownership = self._ownership
        async with ownership.archived_flag_lock:
            log = self._topic.partitions[self._number].log_if_open if self._topic.is_reliable else None
            is_only_here = ownership.is_archived is False or (log is not None and not log.is_ack_archived)
            await self._handle.set_archived(
                ownership, self._revision, not is_only_here, deletes=(keys.sealed_state(ownership.name),)
            )

    async def leave(self) -> None:
        """Give the partition back because this broker stops. What is on its disk is cleaned up when it starts again."""
        with self.span("quiesce"):
            await self._quiesce()
        with self.span("commit"):
            await self._pause()
        with self.span("seal"):
            self._drained = await self._seal() if self._has_something() else None
        with self.span("unassign"):
            name = self._ownership.name
            is_done = await self._cluster.unassign(name, self._revision, reason=Reason.STOPPED, to=None)
        if is_done:
            self.tell_unloaded()

    def _has_something(self) -> bool:
        """Return whether anything may be here that is not in the archive."""
        if not self._topic.is_reliable:
            return False
        return self._ownership.is_archived is not True or self._topic.partitions[self._number].log_if_open is not None

    def tell_unloaded(self) -> None:
        """Emit the final event: nothing of the unload is left to do."""
        drained = self._drained
        self._events.emit(
            "topic_unloaded",
            self._topic.name,
            partition=self._number,
            from_broker=self._cluster.membership.broker_id,
            last_committed_offset=drained.next_offset - 1 if drained is not None else None,
        )

    async def archive_ahead(self) -> None:
        """Archive what there is while records are still taken, so that little is left for the pause."""
        if self._topic.is_reliable:
            try:
                async with self._topic.partitions[self._number].using() as log:
                    await log.catch_up()
            except (Corrupt, OSError, NotServing) as error:
                if not self._may_leave_without(error):
                    raise
                # All that was ever acknowledged is in the archive: it can leave without what is here.

    def _may_leave_without(self, error: Exception) -> bool:
        """Return whether only the log here is damaged or cannot be opened, and the archive has all of it."""
        is_here = not isinstance(error, NotServing) or isinstance(error.__cause__, OSError)
        return is_here and self._ownership.is_archived is True

    async def _give_up(self, unload: UnloadRequest, missing: LogIncomplete) -> None:
        """Go on without records that were reported and are missing: expect them no more, under a higher epoch.

        What this broker's directory has is kept: the log goes on from it, or it is set aside.
        """
        name, ownership = self._ownership.name, self._ownership
        is_on_disk = missing.where == DIRECTORY
        if not is_on_disk:
            await self._logs.set_directory_aside(name)
        now_ms = int(self._clock.now() * 1000)
        current = Current(archived_offset=0, end_offset=missing.start, epoch=NO_EPOCH, at_ms=now_ms)  # of nobody
        given_up = GivenUp(start=missing.start, end=missing.end, reason=missing.source, at_ms=now_ms)
        assert ownership.epoch is not None
        is_done = await self._cluster.unassign(
            name,
            self._revision,
            reason=Reason.FORCED,
            to=unload.to,
            is_on_disk=is_on_disk,
            puts=(
                Put(keys.archive_current(name), METADATA.encode(current)),
                Put(keys.given_up(name, ownership.epoch.epoch), METADATA.encode(given_up)),
            ),
            deletes=(keys.sealed_state(name),),
        )
        if not is_done:
            raise NotOwner(topic=str(name.topic), partition=self._number)
        self._events.emit(
            "range_given_up",
            self._topic.name,
            partition=self._number,
            from_broker=ownership.epoch.broker_id,
            start=missing.start,
            end=missing.end,
        )

    async def _hand_back(self, unload: UnloadRequest, record_revision: int) -> None:
        name = self._ownership.name
        async with asyncio.timeout(self._options.unload_seconds_max):
            with self.span("quiesce"):
                await self._quiesce()
                record_revision = await self._cluster.advance_unload(
                    name, unload, record_revision, step=UnloadStep.QUIESCED
                )
                self._options.failpoints(Failpoint.UNLOAD_QUIESCED)
            with self.span("commit"):
                await self._pause()
                record_revision = await self._cluster.advance_unload(
                    name, unload, record_revision, step=UnloadStep.PAUSED
                )
                self._options.failpoints(Failpoint.UNLOAD_PAUSED)
            with self.span("seal"):
                self._drained = await self._seal()
                await self._cluster.advance_unload(name, unload, record_revision, step=UnloadStep.SEALED)
            with self.span("unassign"):
                self._is_unassigning = True
                is_done = await self._cluster.unassign(name, self._revision, reason=Reason.UNLOADED, to=unload.to)
                if not is_done:
                    raise NotOwner(topic=str(name.topic), partition=self._number)
                self._options.failpoints(Failpoint.UNLOAD_UNASSIGNED)

    async def _quiesce(self) -> None:
        if self._ownership.revision != self._revision:
            raise self._ownership.refusal()
        self._was_served = self._ownership.is_here
        self._ownership.state = TopicState.DRAINING

    async def _pause(self) -> None:
        """Wait until consumers have acked what they have, and their cursors are durable."""
        subscriptions = list(self._topic.subscriptions.values())
        grace = self._options.ack_grace_seconds
        await asyncio.gather(*(subscription.pause(self._number, grace) for subscription in subscriptions))
        await asyncio.gather(*(subscription.flush(self._number) for subscription in subscriptions))

    async def _seal(self) -> End | None:
        """Bring everything into the archive, then store that it is there."""
        if not self._topic.is_reliable:
            return None
        try:
            async with self._topic.partitions[self._number].using() as log:
                drained = await log.drain()
        except (Corrupt, OSError, NotServing) as error:
            if not self._may_leave_without(error):
                raise
            return None  # the archive says where to go on; a sealed state is only a witness of it
        self._options.failpoints(Failpoint.UNLOAD_SEALED_ARCHIVE)
        epoch = self._ownership.epoch
        assert epoch is not None
        sealed = Sealed(
            last_committed_offset=drained.next_offset - 1,
            next_offset=drained.next_offset,
            version=drained.version,
            epoch=epoch.epoch,
            broker_id=epoch.broker_id,
            ts=timestamp_text(self._clock.now()),
        )
        state = Put(keys.sealed_state(self._ownership.name), METADATA.encode(sealed))
        async with self._ownership.archived_flag_lock:
            await self._handle.set_archived(self._ownership, self._revision, True, puts=(state,))
        self._options.failpoints(Failpoint.UNLOAD_SEALED_STATE)
        return drained

    def span(self, phase: str) -> AbstractContextManager[Any]:
        """Trace a phase; the last one, `cleanup`, is the owner's, who deletes what is here."""
        attributes = {"topic": str(self._topic.name), "partition": self._number}
        return self._options.span(f"unload {phase}", attributes)
