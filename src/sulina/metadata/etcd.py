"""Metadata in etcd, for clusters.

- Reads are linearizable: they see everything that was acknowledged to any client before they began.
- A transaction is done once or not at all. Where its answer is lost, its outcome is found out (`etcd_txn`); where that
  is not possible in time either, MetadataFailed says that it is unknown.
- Every call ends within `timeout_seconds` (a long listing: each page of it), with all endpoints tried as often as that
  allows. Watches have no time limit.
- Keys in etcd are `prefix` and the key. The key "/" and those that begin with "/\\0" are reserved; callers never see
  them.
- The revision is etcd's, which rises with every write of any client, and by 1 or more with each transaction of ours,
  even with one that has nothing to delete.

Import this module where it is needed, not at the top: gRPC is slow to load.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Self

from sulina.errors import InvalidInput, InvalidSettings, LogClosed, MetadataFailed
from sulina.metadata import etcd_lease, etcd_space
from sulina.metadata.checks import (
    WATCH_QUEUE_CHANGES_MAX,
    check_key,
    check_prefix,
    check_ttl,
    check_txn,
    check_watch,
)
from sulina.metadata.etcd_calls import RANGE, EtcdRefused
from sulina.metadata.etcd_channel import EtcdEndpoints
from sulina.metadata.etcd_lease import EtcdLease
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.etcd_settings import EtcdStatus, EtcdTls
from sulina.metadata.etcd_txn import Transactions, compare
from sulina.metadata.etcd_watch import EtcdWatches
from sulina.metadata.quiet_grpc import grpc
from sulina.metadata.revision_floor import RevisionFloor
from sulina.ports import NO_REVISION, Change, Compare, Entry, Listing, Put, StoreSpace, TxnResult

__all__ = ["EtcdMetadata", "EtcdStatus", "EtcdTls"]

TIMEOUT_SECONDS = 5.0
TXN_BYTES_MAX = (5 << 18) + (1 << 16)  # etcd allows 1.5 MiB, with the overhead of keys and values
PAGE_ENTRIES = 1000
PAGE_BYTES = 4 << 20  # the wanted size of a page of a listing
LISTING_TRIES_MAX = 5  # when the history is compacted during a long listing
CLOSE_SECONDS = 1.0  # for removing our slots
RESERVED = "/\0"

_logger = logging.getLogger("sulina.metadata")


class EtcdMetadata:
    """A `ports.MetadataStore`. Open with `open`; use on the loop that opened it; then `close`."""

    def __init__(self, endpoints: EtcdEndpoints, prefix: str, watch_queue_changes_max: int) -> None:
        self.endpoints = endpoints
        self.prefix, self._prefix = prefix, prefix.encode()
        self._slots = self._prefix + RESERVED.encode() + b"txn/"
        self.transactions = Transactions(endpoints, self._slots)
        self.watches = EtcdWatches(endpoints, name_of=self.name_of, queue_changes_max=watch_queue_changes_max)
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        prefix: str = "",
        tls: EtcdTls | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        watch_queue_changes_max: int = WATCH_QUEUE_CHANGES_MAX,
    ) -> Self:
        """Connect to the first of `endpoints` ("host:port") that answers, and read one key.

        Raises:
            InvalidSettings: there are no endpoints, or TLS files, user, password or rights are wrong.
            MetadataFailed: no endpoint answers in time.
        """
        if not endpoints:
            raise InvalidSettings("etcd needs at least one endpoint: use HOST:PORT")
        prefix = prefix.rstrip("/")
        if prefix and not prefix.startswith("/"):
            raise InvalidSettings(f'the prefix of keys in etcd must begin with "/", not {prefix!r}')
        links = EtcdEndpoints(endpoints, tls=tls, user=user, password=password, timeout_seconds=timeout_seconds)
        store = cls(links, prefix, watch_queue_changes_max)
        try:
            with store._call():
                await links.call(RANGE, pb.RangeRequest(key=store._slots, count_only=True), deadline=links.deadline())
        except BaseException:
            await links.close()
            raise
        return store

    @property
    def path(self) -> str:
        """Name of the store, for messages."""
        return self.endpoints.path

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        with self._call():
            request = pb.RangeRequest(key=self.key_of(key))
            response = await self.endpoints.call(RANGE, request, deadline=self.endpoints.deadline())
        return self._entry(response.kvs[0]) if response.kvs else None

    @property
    def history(self) -> RevisionFloor:
        """The history of the store: whether it went back."""
        return self.endpoints.history

    async def peek(self, key: str) -> Entry | None:
        check_key(key)
        request = pb.RangeRequest(key=self.key_of(key))
        with self._call(is_of_another=bool(self._under_way)):
            response = await self.endpoints.call(
                RANGE, request, deadline=self.endpoints.deadline(), even_if_went_back=True
            )
        return self._entry(response.kvs[0]) if response.kvs else None

    async def list(self, prefix: str) -> Listing:
        """List all entries whose keys begin with `prefix`.

        Raises:
            MetadataFailed: etcd does not answer, or its history is compacted too often during the listing.
        """
        check_prefix(prefix)
        first, end = self._range_of(prefix)
        with self._call():
            for _ in range(LISTING_TRIES_MAX):
                try:
                    return await self._list(first, end)
                except EtcdRefused as refused:
                    if refused.code != grpc.StatusCode.OUT_OF_RANGE:
                        raise
                    failure = refused
            raise MetadataFailed(path=self.path, cause=failure)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        """Do all puts and deletes in one revision if every compare holds, else nothing.

        Raises:
            InvalidInput: the transaction is too large, or not valid.
            LeaseLost: a lease of a put has ended.
            MetadataFailed: the outcome is unknown.
        """
        size_bytes = check_txn(compares, puts, deletes)
        compared = [compare(self.key_of(each.key), each.revision) for each in compares]
        operations = [
            pb.RequestOp(put=pb.PutRequest(key=self.key_of(put.key), value=bytes(put.value), lease=put.lease_id))
            for put in puts
        ]
        operations += [pb.RequestOp(delete_range=pb.DeleteRangeRequest(key=self.key_of(key))) for key in deletes]
        sent_bytes = sum(each.ByteSize() for each in compared) + sum(each.ByteSize() for each in operations)
        if sent_bytes > TXN_BYTES_MAX:
            raise InvalidInput(f"the transaction has {sent_bytes} bytes, the limit in etcd is {TXN_BYTES_MAX}")
        lease_ids = sorted({put.lease_id for put in puts} - {0})
        with self._call():
            deadline = self.endpoints.deadline()
            if not operations:
                return await self.transactions.check(compared, deadline=deadline)
            return await self.transactions.write(
                compared, operations, lease_ids=lease_ids, size_bytes=size_bytes, deadline=deadline
            )

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Sequence[Change], None]:
        check_watch(prefix, after)
        first, end = self._range_of(prefix)
        return self._watch(prefix, first, end, after)

    async def lease(self, ttl_seconds: float) -> EtcdLease:
        """Grant a lease. It has whole seconds, and at least as many as the election of a leader may take: it may last
        longer than requested, and `keep_alive` returns how long."""
        check_ttl(ttl_seconds)
        with self._call():
            deadline = self.endpoints.deadline()
            lease_id, granted_seconds = await etcd_lease.grant(self.endpoints, ttl_seconds, deadline=deadline)
        return EtcdLease(lease_id, granted_seconds, keep_alive=self._keep_alive, revoke=self._revoke)

    async def status(self) -> EtcdStatus:
        """Return the status of the member that answers.

        Raises:
            MetadataFailed: no member answers.
        """

        with self._call():
            return await self.endpoints.repeat(etcd_space.status_of, deadline=self.endpoints.deadline())

    async def compact(self, revision: int) -> None:
        """Compact the whole history of etcd, with that of other clients. Unsafe steps are left to operators."""
        is_full = (await self.status()).is_full
        with self._call():
            if revision > NO_REVISION:
                deadline = self.endpoints.deadline()
                await etcd_space.compact(self.endpoints, revision, is_waiting=is_full, deadline=deadline)
            if is_full:
                await etcd_space.make_room(self.endpoints)

    async def space(self) -> StoreSpace:
        status = await self.status()
        return StoreSpace(
            revision=status.revision,
            is_full=status.is_full,
            size_bytes=status.db_bytes,
            used_bytes=status.used_bytes,
            quota_bytes=status.quota_bytes or None,
        )

    async def close(self) -> None:
        """Finish all calls, then close the connections; watches end. May be called again."""
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_task(self._close(), name="metadata-close")
        # A caller that is cancelled leaves no connections open.
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        await self.watches.close()
        await self._idle.wait()
        try:
            deadline = asyncio.get_running_loop().time() + min(CLOSE_SECONDS, self.endpoints.timeout_seconds)
            await self.transactions.close(deadline=deadline)
        except (EtcdRefused, MetadataFailed) as error:
            _logger.info("etcd_slots_left error=%s", error)
        finally:
            await self.endpoints.close()

    @contextlib.contextmanager
    def _call(self, *, is_of_another: bool = False) -> Iterator[None]:
        """Run a call: refuse it if the store is closed, delay closing until it ends, and translate refusals to errors.

        `is_of_another`: another call may need the answer, so it is allowed while the store closes.
        """
        if self._closed is not None and not is_of_another:
            raise LogClosed(path=self.path)
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        except EtcdRefused as refused:
            raise refused.as_error(self.path) from refused
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _list(self, first: bytes, end: bytes) -> Listing:
        """List page by page, all as of the revision of the first. EtcdRefused OUT_OF_RANGE: that was compacted."""
        entries: list[Entry] = []
        revision, limit = 0, PAGE_ENTRIES
        while True:
            request = pb.RangeRequest(key=first, range_end=end, limit=limit, revision=revision)
            try:
                page = await self.endpoints.call(RANGE, request, deadline=self.endpoints.deadline())
            except EtcdRefused as refused:
                if refused.code != grpc.StatusCode.RESOURCE_EXHAUSTED or limit == 1:
                    raise
                limit = max(limit // 8, 1)  # the page was larger than a message may be
                continue
            revision = revision or page.header.revision
            entries.extend(self._entry(kv) for kv in page.kvs)
            if not page.more:
                return Listing(entries, revision)
            first = page.kvs[-1].key + b"\0"
            limit = max(min(PAGE_BYTES * len(page.kvs) // page.ByteSize(), PAGE_ENTRIES), 1)

    async def _watch(self, prefix: str, first: bytes, end: bytes, after: int) -> AsyncGenerator[Sequence[Change], None]:
        with self._call():
            changes = self.watches.follow(prefix, first, end, after=after)
        async with contextlib.aclosing(changes):
            async for same_revision in changes:
                yield same_revision

    async def _keep_alive(self, lease_id: int, ttl_seconds: float) -> float:
        with self._call():
            deadline = min(self.endpoints.deadline(), asyncio.get_running_loop().time() + ttl_seconds)
            return await etcd_lease.renew(self.endpoints, lease_id, ttl_seconds, self._slots, deadline=deadline)

    async def _revoke(self, lease_id: int) -> None:
        with self._call():
            await etcd_lease.revoke(self.endpoints, lease_id, deadline=self.endpoints.deadline())

    def key_of(self, key: str) -> bytes:
        """Return the key in etcd of a key of the store.

        Raises:
            InvalidInput: it is reserved.
        """
        if key == "/" or key.startswith(RESERVED):
            raise InvalidInput(f"metadata key {key!r} is reserved in etcd: use another")
        return self._prefix + key.encode()

    def name_of(self, key: bytes) -> str:
        """Return the key of the store of a key in etcd."""
        return key[len(self._prefix) :].decode(errors="replace")

    def _entry(self, kv: pb.KeyValue) -> Entry:
        return Entry(self.name_of(kv.key), kv.value, kv.mod_revision)

    def _range_of(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the range of keys that begin with `prefix`, without the reserved ones."""
        if prefix in ("", "/"):
            return self._prefix + b"/\1", self._prefix + b"0"
        first = self.key_of(prefix)
        return first, first[:-1] + bytes([first[-1] + 1])  # no byte of UTF-8 is 0xff
