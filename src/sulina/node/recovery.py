"""Recovers a cluster whose metadata store was restored to an older state, or lost: `sulina cluster recover`.

It needs no broker. It reads what brokers remember, in the archive and in the data directories that it is given, and the
newest claim in the archive of every partition; puts back what the store has lost; and raises the cluster's generation
last, by which running brokers see that they can go on.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from sulina.broker.archives import Archives
from sulina.broker.cluster.memory import MEMORY_FILE
from sulina.core.cluster import keys
from sulina.core.cluster.entries import Current, GivenUp, Sealed
from sulina.core.cluster.recovery import (
    ClaimSeen,
    Identity,
    Mark,
    Memory,
    Recovery,
    merged,
    partitions_of,
    plan_recovery,
)
from sulina.core.formats import MEMORY, METADATA
from sulina.core.log.archive import ArchiveView
from sulina.core.log.log_state import NO_EPOCH
from sulina.errors import Corrupt, CorruptCommit, InvalidSettings, SulinaError
from sulina.ports import TXN_OPERATIONS_MAX, Compare, Entry, MetadataStore, Put
from sulina.storage.files import OsFiles, read_whole
from sulina.types import PartitionName

READ_PREFIXES = (keys.TOPICS, keys.NAMESPACES, keys.CLUSTER)
ARCHIVES_AT_ONCE = 16
REPORTS_AT_ONCE = 64

Report = TypeVar("Report", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the metadata store has heard of the log of a partition."""

    sealed: Sealed | None = None
    current: Current | None = None
    given_up: tuple[GivenUp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What disks, archive and metadata store know of one cluster.

    Each was read before what it is compared with: memories before the store, reports before the archives, archives
    before epochs. So nothing that running brokers did meanwhile looks as if something had gone back.
    """

    identity: Identity | None
    revision: int
    stored: Mapping[str, bytes]
    memories: Sequence[Memory]
    archives: Mapping[PartitionName, ArchiveView]
    unreadable: Mapping[PartitionName, SulinaError]  # archives
    reports: Mapping[PartitionName, Reports]
    claims_in_damaged: Mapping[PartitionName, ClaimSeen] = field(default_factory=dict)

    @property
    def claims(self) -> dict[PartitionName, ClaimSeen]:
        """Return the newest claim in the archive of every partition that has one, also in one that is damaged."""
        views = self.archives.items()
        readable = {name: ClaimSeen(view.epoch, view.claimer) for name, view in views if view.holder is not None}
        return {**readable, **self.claims_in_damaged}

    @property
    def marks(self) -> dict[str, int]:
        """Return the marks of brokers that the store has."""
        found = {key: value for key, value in self.stored.items() if key.startswith(keys.MARKS)}
        return {key.removeprefix(keys.MARKS): METADATA.decode(value, Mark, key).number for key, value in found.items()}


async def read_known(
    metadata: MetadataStore, archives: Archives | None, directories: Sequence[str] = (), *, with_reports: bool = False
) -> Known:
    """Read everything; nothing is changed. `with_reports`: also what was reported of each log.

    Raises:
        InvalidSettings: a directory was never part of a cluster.
        ArchiveFailed, Corrupt: a memory cannot be read.
    """
    memories = [] if archives is None else await asyncio.to_thread(archives.memories)
    memories += map(memory_on_disk, directories)
    topics = {found.key: found.value for found in (await metadata.list(keys.TOPICS)).entries}
    known = {**partitions_of(topics), **partitions_of(merged(memories))}
    reports = await _reports(metadata, known) if with_reports else {}
    views: dict[PartitionName, ArchiveView] = {}
    unreadable: dict[PartitionName, SulinaError] = {}
    claims: dict[PartitionName, ClaimSeen] = {}
    if archives is not None:
        views, unreadable = await asyncio.to_thread(_views, archives, known)
        claims = await asyncio.to_thread(_claims_in_damaged, archives, known, unreadable)
    stored: dict[str, bytes] = {}
    revision = 0
    for prefix in READ_PREFIXES:
        listing = await metadata.list(prefix)
        stored |= {found.key: found.value for found in listing.entries}
        revision = listing.revision
    entry = stored.get(keys.IDENTITY)
    return Known(
        identity=METADATA.decode(entry, Identity, keys.IDENTITY) if entry is not None else None,
        revision=revision,
        stored=stored,
        memories=memories,
        archives=views,
        unreadable=unreadable,
        reports=reports,
        claims_in_damaged=claims,
    )


async def plan(metadata: MetadataStore, archives: Archives, directories: Sequence[str] = ()) -> Recovery:
    """Find out what the store has lost, and what would be written. Nothing is changed.

    A partition whose archive is damaged stays closed by that, and keeps no other from going on.

    Raises:
        InvalidSettings: nobody remembers anything, or what is remembered is of several clusters.
        ArchiveFailed: the object store does not answer.
        Corrupt: a memory cannot be read, or an archive is damaged of whose owners nothing else is known.
    """
    known = await read_known(metadata, archives, directories)
    clusters = {memory.seen.cluster_id for memory in known.memories}
    if not known.memories:
        raise InvalidSettings(f"no broker has left a memory in {archives.location}; name data directories with --data")
    if len(clusters) > 1:
        raise InvalidSettings(f"what is remembered is of several clusters: {', '.join(sorted(clusters))}")
    for error in known.unreadable.values():
        if not isinstance(error, Corrupt):
            raise error
    planned = plan_recovery(
        known.identity,
        known.stored,
        known.memories,
        known.claims,
        damaged=known.unreadable,
        now_ms=int(time.time() * 1000),
    )
    for partition, error in known.unreadable.items():
        if keys.epoch(partition) not in planned.puts:
            raise error  # its owners are not known, and their epochs might be given again
    return replace(planned, unreadable=tuple((name, str(error)) for name, error in sorted(known.unreadable.items())))


async def carry_out(metadata: MetadataStore, recovery: Recovery) -> None:
    """Write what was planned, the cluster's identity last. It can be repeated after any failure.

    Raises:
        InvalidSettings: another process recovers the cluster at this moment.
    """
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
        raise InvalidSettings("another process is recovering this cluster; run this again when it has finished")


def memory_on_disk(directory: str) -> Memory:
    """Read what a broker remembers on its disk.

    Raises:
        InvalidSettings: it was never part of a cluster.
        CorruptCommit: the file is damaged.
    """
    path = os.path.join(directory, MEMORY_FILE)
    data = read_whole(OsFiles(), path)
    if data is None:
        raise InvalidSettings(f"{directory} has no {MEMORY_FILE}: it was never part of a cluster")
    try:
        return MEMORY.decode(data, Memory, path)
    except msgspec.DecodeError as error:
        raise CorruptCommit(name=path, reason=str(error)) from None


async def _reports(metadata: MetadataStore, partitions: Iterable[PartitionName]) -> dict[PartitionName, Reports]:
    turns = asyncio.Semaphore(REPORTS_AT_ONCE)

    async def read(partition: PartitionName) -> Reports:
        async with turns:
            sealed = await metadata.get(keys.sealed_state(partition))
            current = await metadata.get(keys.archive_current(partition))
            given_up = (await metadata.list(f"{keys.archive_prefix(partition)}given_up/")).entries
        decoded = (_decoded(entry, GivenUp) for entry in given_up)
        return Reports(
            sealed=_decoded(sealed, Sealed),
            current=_decoded(current, Current),
            given_up=tuple(each for each in decoded if each is not None),
        )

    names = list(partitions)
    return dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))


def _decoded(entry: Entry | None, kind: type[Report]) -> Report | None:
    """Read a report. It is a witness only: one that is damaged counts for nothing, as it does for brokers."""
    try:
        return None if entry is None else METADATA.decode(entry.value, kind, entry.key)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _claims_in_damaged(
    archives: Archives, known: Mapping[PartitionName, str], damaged: Mapping[PartitionName, SulinaError]
) -> dict[PartitionName, ClaimSeen]:
    """Read what can be read of archives that are damaged: no epoch of theirs may be given again. ArchiveFailed."""
    found = {
        name: archives.of(name, known[name]).highest_claim()
        for name, error in damaged.items()
        if isinstance(error, Corrupt)
    }
    return {name: ClaimSeen(*claim) for name, claim in found.items() if claim[0] != NO_EPOCH}


def _views(
    archives: Archives, known: Mapping[PartitionName, str]
) -> tuple[dict[PartitionName, ArchiveView], dict[PartitionName, SulinaError]]:
    def view(partition: PartitionName) -> ArchiveView | SulinaError:
        try:
            return archives.of(partition, known[partition]).load()
        except SulinaError as error:
            return error

    with ThreadPoolExecutor(ARCHIVES_AT_ONCE) as pool:
        found = dict(zip(known, pool.map(view, known), strict=True))
    views = {name: each for name, each in found.items() if isinstance(each, ArchiveView)}
    return views, {name: each for name, each in found.items() if isinstance(each, SulinaError)}
