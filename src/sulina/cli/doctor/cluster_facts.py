"""Reads the state that `sulina doctor --cluster` judges: brokers over HTTP, etcd, the archive, a data directory.

Changes nothing. A source that does not answer is reported, and the others are read without it.
"""

import asyncio
import contextlib
import os
import shutil
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import msgspec

from sulina.cli.doctor import CheckResult, Grade
from sulina.cli.doctor.diagnosis import BrokerAnswer, BrokerDisk, ClusterFacts, remedy
from sulina.config import Settings
from sulina.core.cluster import keys
from sulina.core.cluster.recovery import Seen, partitions_of, topics_of
from sulina.core.formats import MEMORY, METADATA
from sulina.core.topic import Policy, resolved
from sulina.errors import ArchiveFailed, Corrupt, InvalidName, InvalidSettings, NewerFormat, SulinaError
from sulina.json_values import decode_json
from sulina.types import PartitionName, TopicName
from sulina.wire.messages import ClusterInfo, NodeInfo, PartitionInfo, TopicPage, TroubleKind

if TYPE_CHECKING:
    from sulina.core.log.resume import End
    from sulina.node.recovery import Known
    from sulina.ports import MetadataStore

ANSWER_SECONDS_MAX = 5.0
PAGE = 1000
ETCD_ADVICE = "check that etcd has a quorum, and the rights of --metadata-user"

Answer = TypeVar("Answer")


async def gather(
    settings: Settings, *, urls: Sequence[str], data: str | None, etcd: CheckResult | None
) -> ClusterFacts:
    """Read everything that the settings name. `urls`: brokers to ask first; `etcd`: what its own check found."""
    disk = None if data is None else await asyncio.to_thread(read_disk, data)
    known, by_etcd, objects_error, policies = None, None, None, None
    if settings.etcd is not None and (etcd is None or etcd.figures is not None):  # else it does not answer
        try:
            known, by_etcd, objects_error = await _read_etcd(settings, data if disk and disk.has_memory else None)
            policies = stored_policies(known.stored) if known is not None else None
        except SulinaError as error:
            if etcd is not None and etcd.grade != Grade.FAIL:
                found = f"{settings.metadata} cannot be read: {error}"
                etcd = CheckResult(check="etcd", grade=Grade.FAIL, found=found, advice=remedy(error, ETCD_ADVICE))
    if disk is not None and data is not None:
        # After the reports: a log that its broker writes to meanwhile must not look as if it ended before them.
        disk = replace(disk, ends=await asyncio.to_thread(_ends, data))
    registered = [info.url for info in by_etcd.brokers if info.url] if by_etcd is not None else []
    brokers = await ask_brokers(urls or registered)
    fresh = next((one.cluster for one in brokers if one.cluster is not None and not one.cluster.is_stale), None)
    stale = next((one.cluster for one in brokers if one.cluster is not None), None)
    cluster = fresh or by_etcd or stale
    if known is None:
        policies = await _asked_policies(brokers)
    return ClusterFacts(
        now_ms=int(time.time() * 1000),
        brokers=brokers,
        cluster=cluster,
        policies=policies,
        metadata=settings.metadata if settings.etcd is not None else None,
        etcd=etcd,
        known=known,
        objects=settings.objects,
        objects_error=objects_error,
        disk=disk,
    )


# Brokers


async def ask_brokers(urls: Iterable[str]) -> list[BrokerAnswer]:
    """Ask these brokers, and all others that they know of."""
    answers = list(await asyncio.gather(*map(_ask_broker, dict.fromkeys(url.rstrip("/") for url in urls))))
    known = {
        answer.node.broker_id
        for answer in answers
        if answer.node is not None and TroubleKind.REPLACED not in answer.node.trouble_counts
    }
    asked = {answer.url for answer in answers}
    others = {
        info.broker_id: info.url.rstrip("/")
        for answer in answers
        if answer.cluster is not None
        for info in answer.cluster.brokers
        if info.url and info.broker_id not in known and info.url.rstrip("/") not in asked
    }
    return [*answers, *await asyncio.gather(*map(_ask_broker, others.values()))]


async def _ask_broker(url: str) -> BrokerAnswer:
    try:
        node = await _fetched(f"{url}/v1/node", NodeInfo)
        kinds = [*TroubleKind]
        if closed := [one for one in node.troubles if one.kind not in kinds and one.partition is not None]:
            # The cause may be gone by now: a first use lets the owner open them.
            await asyncio.gather(*(_use(f"{url}/v1/topics{one.topic}/partitions/{one.partition}") for one in closed))
            node = await _fetched(f"{url}/v1/node", NodeInfo)
        cluster = await _fetched(f"{url}/v1/cluster", ClusterInfo)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        reason = getattr(error, "reason", None) or error
        return BrokerAnswer(url=url, error=str(reason) or type(error).__name__)
    return BrokerAnswer(url=url, node=node, cluster=cluster)


async def _use(url: str) -> None:
    with contextlib.suppress(OSError, ValueError, msgspec.DecodeError):
        await _fetched(url, PartitionInfo)


async def _asked_policies(brokers: Sequence[BrokerAnswer]) -> dict[TopicName, Policy] | None:
    """Return the policies of all topics by the first broker that answers; None if none does."""
    for broker in brokers:
        if broker.node is None:
            continue
        found: dict[TopicName, Policy] = {}
        after: str | None = ""
        try:
            while after is not None:
                query = urlencode({"limit": PAGE, **({"after": after} if after else {})})
                page = await _fetched(f"{broker.url}/v1/topics?{query}", TopicPage)
                found |= {TopicName.parse(info.topic): info.policy for info in page.topics}
                after = page.next
        except (OSError, ValueError, msgspec.DecodeError):
            continue
        return found
    return None


async def _fetched(url: str, kind: type[Answer]) -> Answer:
    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return bytes(answer.read())

    return decode_json(await asyncio.to_thread(fetch), kind)


# etcd and the archive


async def _read_etcd(
    settings: Settings, data: str | None
) -> "tuple[Known | None, ClusterInfo | None, SulinaError | None]":
    """Return what etcd and the archive know, the cluster's state by etcd, and why the archive could not be read."""
    from sulina.broker.options import BrokerOptions
    from sulina.node.cluster import open_archives, open_metadata
    from sulina.node.recovery import read_known

    metadata = await open_metadata(settings, settings.data)
    directories = [] if data is None else [data]
    objects_error: SulinaError | None = None
    try:
        try:
            archives = await open_archives(settings, BrokerOptions(data=settings.data, broker_id=settings.broker_id))
            known = await read_known(metadata, archives, directories, with_reports=True)
        except (ArchiveFailed, Corrupt, InvalidSettings, NewerFormat) as error:
            objects_error = error
            known = await read_known(metadata, None, directories, with_reports=True)
        return known, await _cluster_by_etcd(metadata, known), objects_error
    finally:
        await metadata.close()


async def _cluster_by_etcd(metadata: "MetadataStore", known: "Known") -> ClusterInfo:
    """Return the state of the cluster as a broker would report it."""
    from sulina.broker.cluster.view import ClusterView
    from sulina.broker.events import EventStream
    from sulina.clock import SystemClock

    clock = SystemClock()
    view = ClusterView(metadata, events=EventStream(clock), clock=clock)
    await view.load()
    partitions = partitions_of(known.stored)
    return view.info(topics=len(set(partitions.values())), partitions=len(partitions))


def stored_policies(stored: Mapping[str, bytes]) -> dict[TopicName, Policy]:
    """Return the effective policies of all topics by the keys of the metadata store."""

    def policy(key: str) -> Policy:
        return METADATA.decode(stored[key], Policy, key) if key in stored else Policy()

    topics = [name for name in topics_of(stored) if keys.delivery(name) in stored]
    return {name: resolved(policy(keys.policy(name)), policy(keys.namespace_policy(name.namespace))) for name in topics}


# A data directory


def read_disk(data: str) -> BrokerDisk:
    """Return what a data directory has, without the ends of its logs. Blocks.

    Raises:
        InvalidSettings: it is not a directory.
    """
    from sulina.broker.cluster.memory import SEEN_FILE
    from sulina.node.cluster import STORE_ID_FILE
    from sulina.node.recovery import memory_on_disk
    from sulina.storage.files import OsFiles, read_whole
    from sulina.storage.orphans import orphans
    from sulina.storage.partition_directory import set_aside_in

    if not os.path.isdir(data):
        raise InvalidSettings(f"{data} is not a directory: name the data directory of a broker with --data")
    files = OsFiles()
    store_id = read_whole(files, os.path.join(data, STORE_ID_FILE))
    has_memory, seen, damage = False, None, None
    try:
        seen_path = os.path.join(data, SEEN_FILE)
        seen = _decoded(read_whole(files, seen_path), seen_path)
        memory_on_disk(data)
        has_memory = True
    except InvalidSettings:
        pass  # it was never part of a cluster
    except (Corrupt, NewerFormat) as error:
        damage = error
    return BrokerDisk(
        path=data,
        free_bytes=shutil.disk_usage(data).free,
        store_id=None if store_id is None else store_id.decode("ascii", "replace"),
        seen=seen,
        has_memory=has_memory,
        damage=damage,
        orphaned=[os.path.basename(each.path) for each in orphans(files, data)],
        set_aside=set_aside_in(files, data),
    )


def _decoded(data: bytes | None, path: str) -> Seen | None:
    try:
        return None if data is None else MEMORY.decode(data, Seen, path)
    except msgspec.DecodeError:
        return None  # a witness only, as for the broker itself


def _ends(data: str) -> "dict[PartitionName, End]":
    """Return the ends of the logs in a data directory, without logs that cannot be read."""
    from sulina.storage.files import OsFiles
    from sulina.storage.partition_directory import directory_end

    files, found = OsFiles(), {}
    for name in sorted(os.listdir(data)):
        try:
            found[PartitionName.from_directory(name)] = directory_end(files, os.path.join(data, name))
        except InvalidName:
            continue  # not a log's directory
        except (SulinaError, OSError):
            continue  # its broker reports the error when it opens the log
    return found
