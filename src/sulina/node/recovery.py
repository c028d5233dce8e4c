"""Recovers a cluster whose metadata store was restored to an older state, or lost: `sulina cluster recover`.

It needs no broker. It reads what brokers remember, in the archive and in the data directories that it is given, and the
newest claim in the archive of every partition; puts back what the store has lost; and raises the cluster's generation
last, by which running brokers see that they can go on.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from sulina.broker.archives import Archives
from sulina.broker.cluster.memory import MEMORY_FILE
from sulina.core import keys
from sulina.core.recovery import ClaimSeen, Identity, Memory, Recovery, merged, partitions_of, plan_recovery
from sulina.errors import CorruptCommit, InvalidSettings
from sulina.ports import TXN_OPERATIONS_MAX, Compare, MetadataStore, Put
from sulina.storage.files import OsFiles, read_whole
from sulina.types import PartitionName

READ_PREFIXES = (keys.TOPICS, keys.NAMESPACES, keys.CLUSTER)
ARCHIVES_AT_ONCE = 16


async def plan(metadata: MetadataStore, archives: Archives, directories: Sequence[str] = ()) -> Recovery:
    """Find out what the store has lost, and what would be written. Nothing is changed.

    Raises:
        InvalidSettings: nobody remembers anything, or what is remembered is of several clusters.
        ArchiveFailed, Corrupt: a claim or a memory cannot be read.
    """
    memories = [*await asyncio.to_thread(archives.memories), *map(_memory_on_disk, directories)]
    entry = await metadata.peek(keys.IDENTITY)
    identity = msgspec.json.decode(entry.value, type=Identity) if entry is not None else None
    clusters = {memory.seen.cluster_id for memory in memories}
    if not memories:
        raise InvalidSettings(f"no broker has left a memory in {archives.location}; name data directories with --data")
    if len(clusters) > 1:
        raise InvalidSettings(f"what is remembered is of several clusters: {', '.join(sorted(clusters))}")
    stored: dict[str, bytes] = {}
    for prefix in READ_PREFIXES:
        stored |= {found.key: found.value for found in (await metadata.list(prefix)).entries}
    known = {**partitions_of(stored), **partitions_of(merged(memories))}
    claims = await asyncio.to_thread(_claims, archives, known)
    return plan_recovery(identity, stored, memories, claims, now_ms=int(time.time() * 1000))


async def carry_out(metadata: MetadataStore, recovery: Recovery) -> None:
    """Write what was planned; the cluster's identity last. May be done again after any failure."""
    operations = [Put(key, value) for key, value in recovery.puts.items() if key != keys.IDENTITY]
    deletes = sorted(recovery.deletes)
    for first in range(0, len(deletes), TXN_OPERATIONS_MAX):
        await metadata.txn(deletes=deletes[first : first + TXN_OPERATIONS_MAX])
    for first in range(0, len(operations), TXN_OPERATIONS_MAX):
        await metadata.txn(puts=operations[first : first + TXN_OPERATIONS_MAX])
    entry = await metadata.peek(keys.IDENTITY)
    compare = Compare(keys.IDENTITY, entry.revision if entry is not None else 0)
    done = await metadata.txn(compares=[compare], puts=[Put(keys.IDENTITY, recovery.puts[keys.IDENTITY])])
    if not done.is_done:
        raise InvalidSettings("somebody else recovers this cluster at this moment; look again when they are done")


def _memory_on_disk(directory: str) -> Memory:
    path = os.path.join(directory, MEMORY_FILE)
    data = read_whole(OsFiles(), path)
    if data is None:
        raise InvalidSettings(f"{directory} has no {MEMORY_FILE}: it was never part of a cluster")
    try:
        return msgspec.json.decode(data, type=Memory)
    except msgspec.DecodeError as error:
        raise CorruptCommit(name=path, reason=str(error)) from None


def _claims(archives: Archives, known: dict[PartitionName, str]) -> dict[PartitionName, ClaimSeen]:
    def claim(partition: PartitionName) -> ClaimSeen | None:
        view = archives.of(partition, known[partition]).load()
        return None if view.holder is None else ClaimSeen(view.epoch, view.claimer)

    with ThreadPoolExecutor(ARCHIVES_AT_ONCE) as pool:
        found = zip(known, pool.map(claim, known), strict=True)
        return {partition: claim for partition, claim in found if claim is not None}
