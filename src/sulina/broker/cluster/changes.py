"""The changes of ownership, each as what one transaction compares, puts and deletes. They touch `/cluster/` only.

Those of a leader are written in groups, and each transaction compares the leader's key as well.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec
import structlog

from sulina.broker.cluster.view import ClusterView, Ownership, Versioned
from sulina.core.cluster import keys
from sulina.core.cluster.entries import FIRST_EPOCH, Assignment, EpochEntry, Registration, Unassigned, UnloadRequest
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Compare, MetadataStore, Put
from sulina.types import PartitionName, TopicName

_logger = structlog.get_logger("sulina.cluster")


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """One change, to be made whole or not at all."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()


def waits(partition: PartitionName, entry: Unassigned, epoch: Versioned[EpochEntry] | None) -> OwnershipChange:
    """A partition that nobody has comes to wait for an owner."""
    return OwnershipChange(
        compares=(
            Compare(keys.unassigned(partition), NO_REVISION),
            Compare(keys.epoch(partition), epoch.revision if epoch else NO_REVISION),
        ),
        puts=(Put(keys.unassigned(partition), msgspec.json.encode(entry)),),
    )


def assign(
    partition: PartitionName,
    waiting: Versioned[Unassigned],
    epoch: Versioned[EpochEntry] | None,
    broker: Versioned[Registration],
    *,
    topic_id: str | None,
    deleted: Container[str] = (),
    now_ms: int,
) -> OwnershipChange:
    """A partition that waits gets its owner, with a new epoch.

    A broker that may have the partition without its last owner's disk has everything that counts in the archive.
    `topic_id` is what the leader knows of its topic, which may be old: what the store has of the partition comes first,
    unless it is left over from one of the topics that were `deleted`.
    """
    before = epoch.value if epoch else None
    stored_id = before.topic_id if before else waiting.value.topic_id
    raised = EpochEntry(
        epoch=before.epoch + 1 if before else FIRST_EPOCH,
        broker_id=broker.value.broker_id,
        store_id=broker.value.store_id,
        is_archived=before is None or before.is_archived or not waiting.value.is_recovering,
        in_sync=before.in_sync if before else [],
        topic_id=topic_id if stored_id is None or stored_id in deleted else stored_id,
    )
    owned = Assignment(epoch=raised.epoch, since_ms=now_ms)
    return OwnershipChange(
        compares=(
            Compare(keys.register(broker.value.broker_id), broker.revision),
            Compare(keys.unassigned(partition), waiting.revision),
            Compare(keys.epoch(partition), epoch.revision if epoch else NO_REVISION),
        ),
        puts=(
            Put(keys.epoch(partition), msgspec.json.encode(raised)),
            Put(keys.assignment(broker.value.broker_id, partition), msgspec.json.encode(owned)),
        ),
        deletes=(keys.unassigned(partition),),
    )


def take_away(
    partition: PartitionName,
    owned: Ownership,
    entry: Unassigned,
    *,
    epoch: Versioned[EpochEntry] | None,
    registration: Versioned[Registration] | None,
    sealed_revision: int | None,
    has_unload: bool,
) -> OwnershipChange:
    """A partition is taken from a broker that is gone, and only while it is: it may be back by now.

    `sealed_revision`: of the sealed state that the entry was decided by; None when it did not matter.
    """
    compares = [
        Compare(keys.register(owned.broker_id), registration.revision if registration else NO_REVISION),
        Compare(keys.assignment(owned.broker_id, partition), owned.revision),
        Compare(keys.epoch(partition), epoch.revision if epoch else NO_REVISION),
    ]
    if sealed_revision is not None:
        compares.append(Compare(keys.sealed_state(partition), sealed_revision))
    return OwnershipChange(
        compares=tuple(compares),
        puts=(Put(keys.unassigned(partition), msgspec.json.encode(entry)),),
        deletes=(keys.assignment(owned.broker_id, partition), *([keys.unload(partition)] if has_unload else [])),
    )


def put_unload_request(
    partition: PartitionName, owned: Ownership, unload: UnloadRequest, before: Versioned[UnloadRequest] | None
) -> OwnershipChange:
    """A wish, for as long as this assignment lasts."""
    return OwnershipChange(
        compares=(
            Compare(keys.assignment(owned.broker_id, partition), owned.revision),
            Compare(keys.unload(partition), before.revision if before else NO_REVISION),
        ),
        puts=(Put(keys.unload(partition), msgspec.json.encode(unload)),),
    )


def sweep(topic: TopicName, gone: Sequence[str]) -> OwnershipChange:
    """What a topic has left behind goes, if it really is gone."""
    return OwnershipChange(compares=(Compare(keys.delivery(topic), NO_REVISION),), deletes=tuple(gone))


def forget_broker(broker_id: str) -> OwnershipChange:
    """The last load report of a broker that has been gone for long."""
    return OwnershipChange(compares=(Compare(keys.register(broker_id), NO_REVISION),), deletes=(keys.load(broker_id),))


def keys_of(view: ClusterView, partition: PartitionName) -> list[str]:
    """Everything that the cluster knows of a partition."""
    owned, found = view.assignments.get(partition), []
    if owned is not None:
        found.append(keys.assignment(owned.broker_id, partition))
    if partition in view.unassigned:
        found.append(keys.unassigned(partition))
    if partition in view.epochs:
        found.append(keys.epoch(partition))
    if partition in view.unloads:
        found.append(keys.unload(partition))
    return found


def new_unload(now_ms: int, *, force: bool, to: str | None, requested_by: str) -> UnloadRequest:
    """A wish that nobody has begun with."""
    return UnloadRequest(unload_id=uuid4().hex, force=force, requested_ms=now_ms, requested_by=requested_by, to=to)


def may_recover_only(epoch: EpochEntry | None, *, is_reliable: bool, sealed_epoch: int | None) -> bool:
    """Whether the broker that a partition was taken from alone has all that was acknowledged."""
    if epoch is None or not is_reliable or epoch.is_archived:
        return False
    return sealed_epoch != epoch.epoch


class NotLeading(Exception):
    """Another leader was elected, or our lease has ended; nothing was written."""


class LeaderWriter:
    """Writes changes, many in one transaction, each only while the leader leads."""

    def __init__(self, metadata: MetadataStore, leader_revision: int) -> None:
        self._metadata = metadata
        self._leader = Compare(keys.LEADER, leader_revision)

    async def write(self, changes: Sequence[OwnershipChange], *, is_split: bool = True) -> int:
        """The revision after it; `NO_REVISION` when nothing was written.

        A change whose compares do not hold is left out: with `is_split` those that share its transaction are tried
        without it, else they are left out too. NotLeading.
        """
        done = await self._metadata.txn(
            compares=list(dict.fromkeys([self._leader, *(one for change in changes for one in change.compares)])),
            puts=[put for change in changes for put in change.puts],
            deletes=[key for change in changes for key in change.deletes],
        )
        if done.is_done:
            return done.revision
        leader = await self._metadata.get(keys.LEADER)
        if leader is None or leader.revision != self._leader.revision:
            raise NotLeading("this broker does not lead any more")
        if not is_split or len(changes) == 1:
            _logger.debug("ownership_change_outrun", keys=[put.key for put in changes[0].puts])
            return NO_REVISION
        half = len(changes) // 2
        return max(await self.write(changes[:half]), await self.write(changes[half:]))


def grouped(changes: Sequence[OwnershipChange]) -> Iterator[list[OwnershipChange]]:
    """In their order, as many together as one transaction takes."""
    group: list[OwnershipChange] = []
    compares = writes = 0
    for change in changes:
        its_writes = len(change.puts) + len(change.deletes)
        is_full = compares + len(change.compares) >= TXN_OPERATIONS_MAX or writes + its_writes > TXN_OPERATIONS_MAX
        if group and is_full:
            yield group
            group, compares, writes = [], 0, 0
        group.append(change)
        compares += len(change.compares)
        writes += its_writes
    if group:
        yield group
