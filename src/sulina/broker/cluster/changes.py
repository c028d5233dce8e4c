"""Changes of ownership, each as the compares, puts and deletes of one transaction. They touch `/cluster/` only.

A leader writes its changes in groups, and each transaction compares the leader's key too.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import structlog
from msgspec.structs import replace

from sulina.broker.cluster.view import ClusterView, Ownership, Versioned
from sulina.core.cluster import keys
from sulina.core.cluster.entries import FIRST_EPOCH, Assignment, EpochEntry, Registration, Unassigned, UnloadRequest
from sulina.core.formats import METADATA
from sulina.errors import AlreadyExists
from sulina.ports import NO_REVISION, TXN_OPERATIONS_MAX, Compare, MetadataStore, Put
from sulina.types import PartitionName, TopicName

_logger = structlog.get_logger("sulina.cluster")


@dataclass(frozen=True, slots=True)
class OwnershipChange:
    """One change, which is made as a whole or not at all."""

    compares: tuple[Compare, ...]
    puts: tuple[Put, ...] = ()
    deletes: tuple[str, ...] = ()


def add_unassigned(partition: PartitionName, entry: Unassigned, epoch: Versioned[EpochEntry] | None) -> OwnershipChange:
    """Let a partition without an owner wait for one."""
    return OwnershipChange(
        compares=(
            Compare(keys.unassigned(partition), NO_REVISION),
            Compare(keys.epoch(partition), epoch.revision if epoch else NO_REVISION),
        ),
        puts=(Put(keys.unassigned(partition), METADATA.encode(entry)),),
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
    """Assign a waiting partition to a broker, with a new epoch.

    A broker that may get the partition without the disk of its last owner finds everything acknowledged in the archive.
    `topic_id` is what the leader knows, which may be old: the id that the store has for the partition comes first,
    unless it is that of a topic in `deleted`.
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
            Put(keys.epoch(partition), METADATA.encode(raised)),
            Put(keys.assignment(broker.value.broker_id, partition), METADATA.encode(owned)),
        ),
        deletes=(keys.unassigned(partition),),
    )


def unassign(
    partition: PartitionName,
    owned: Ownership,
    entry: Unassigned,
    *,
    epoch: Versioned[EpochEntry] | None,
    registration: Versioned[Registration] | None,
    sealed_revision: int | None,
    has_unload: bool,
) -> OwnershipChange:
    """Unassign a partition from a broker that is not registered, and only if it still is not.

    `sealed_revision` is that of the sealed state on which the entry was based; None: it did not matter.
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
        puts=(Put(keys.unassigned(partition), METADATA.encode(entry)),),
        deletes=(keys.assignment(owned.broker_id, partition), *([keys.unload(partition)] if has_unload else [])),
    )


def put_unload_request(
    partition: PartitionName, owned: Ownership, unload: UnloadRequest, before: Versioned[UnloadRequest] | None
) -> OwnershipChange:
    """Write an unload request, which is valid for this assignment only."""
    return OwnershipChange(
        compares=(
            Compare(keys.assignment(owned.broker_id, partition), owned.revision),
            Compare(keys.unload(partition), before.revision if before else NO_REVISION),
        ),
        puts=(Put(keys.unload(partition), METADATA.encode(unload)),),
    )


def delete_leftovers(topic: TopicName, gone: Sequence[str]) -> OwnershipChange:
    """Delete what is left of a topic, if it does not exist."""
    return OwnershipChange(compares=(Compare(keys.delivery(topic), NO_REVISION),), deletes=tuple(gone))


def delete_load_report(broker_id: str) -> OwnershipChange:
    """Delete the last load report of a broker, if it is not registered."""
    return OwnershipChange(compares=(Compare(keys.register(broker_id), NO_REVISION),), deletes=(keys.load(broker_id),))


def keys_of(view: ClusterView, partition: PartitionName) -> list[str]:
    """Return the keys of everything that the cluster knows about a partition."""
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


def unload_request(
    partition: PartitionName,
    before: UnloadRequest | None,
    *,
    now_ms: int,
    force: bool,
    to: str | None,
    requested_by: str,
    give_up: bool = False,
) -> UnloadRequest:
    """Return a request to unload a partition: a new one, or the one that is there already, extended.

    Raises:
        AlreadyExists: it is being moved to another broker.
    """
    if before is None:
        return UnloadRequest(
            unload_id=uuid4().hex, force=force, requested_ms=now_ms, requested_by=requested_by, to=to, give_up=give_up
        )
    if to is not None and before.to not in (None, to):
        raise AlreadyExists(
            kind="unload", name=str(partition), difference=f"it is being moved to {before.to}, not to {to}"
        )
    return replace(before, force=before.force or force, to=before.to or to, give_up=before.give_up or give_up)


def may_recover_only(epoch: EpochEntry | None, *, is_reliable: bool, sealed_epoch: int | None) -> bool:
    """Return whether only the last owner of a partition may have everything that was acknowledged."""
    if epoch is None or not is_reliable or epoch.is_archived:
        return False
    return sealed_epoch != epoch.epoch


class NotLeading(Exception):
    """This broker does not lead any more: another leader was elected, or the lease has ended. Nothing was written."""


class LeaderWriter:
    """Writes changes, many in one transaction, only while this broker leads."""

    def __init__(self, metadata: MetadataStore, leader_revision: int) -> None:
        self._metadata = metadata
        self._leader = Compare(keys.LEADER, leader_revision)

    async def write(self, changes: Sequence[OwnershipChange], *, is_split: bool = True) -> int:
        """Write changes; return the revision after them, or `NO_REVISION` if nothing was written.

        A change whose compares do not hold is left out. With `is_split` the others of its transaction are tried without
        it, else they are left out too.

        Raises:
            NotLeading: this broker does not lead any more.
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
            _logger.debug("ownership_change_conflicted", keys=[put.key for put in changes[0].puts])
            return NO_REVISION
        half = len(changes) // 2
        return max(await self.write(changes[:half]), await self.write(changes[half:]))


def grouped(changes: Sequence[OwnershipChange]) -> Iterator[list[OwnershipChange]]:
    """Group changes, in their order, as many as fit into one transaction."""
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
