"""Transactions whose outcome is known, although the answer of etcd can be lost.

A transaction that got no answer may have been done, or not, or may still be under way inside etcd: neither repeating it
nor looking for its effects decides that. So each transaction also writes a token of its own under a key that only this
client has, its slot, and compares the revision that the slot had before. Then:

- The first change of the slot, with a compare of that same revision, rules out the transaction for ever, wherever it
  is. This is the fence; it may be repeated, since only one change of one revision can be the first.
- If the fence comes too late, the slot holds the token, and its revision is that of the transaction.

Every change of a slot compares the revision before, which etcd never uses twice; so a change that is left over from a
lost connection or a cancelled caller can only fail. A slot serves one transaction at a time; there are as many slots as
there are transactions at once, up to a limit. All have one lease of this client: slots of a dead client are deleted
when it ends.
"""

import asyncio
import itertools
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sulina.errors import LeaseLost, MetadataFailed, QueueFull
from sulina.metadata import etcd_lease
from sulina.metadata.etcd_calls import LEASE_TIME_TO_LIVE, RANGE, TXN, EtcdRefused, Unanswered
from sulina.metadata.etcd_channel import PAUSE_SECONDS_MIN, EtcdEndpoints
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.ports import TxnResult

SLOTS_MAX = 64  # transactions at once; more wait
WAITING_BYTES_MAX = 64 << 20  # of transactions that are under way or wait; a single one may have more
TXN_BYTES = 1024  # of a transaction besides its keys and values
SLOT_LEASE_SECONDS = 600.0  # far longer than a call can take
UNKNOWN = 0  # not a revision: the slot must be prepared before it is used


@dataclass(slots=True)
class _Slot:
    key: bytes
    revision: int = UNKNOWN
    is_new: bool = True  # it was never written


class Transactions:
    """The transactions of one client. Use on one event loop."""

    def __init__(self, endpoints: EtcdEndpoints, folder: bytes) -> None:
        """Write slots in `folder`: its keys in etcd must belong to clients like this one."""
        self._endpoints = endpoints
        self._folder = folder + secrets.token_hex(12).encode() + b"/"
        self._names = itertools.count()
        self._tokens = itertools.count(1)
        self._free: list[_Slot] = []  # the last one used is taken first: few slots do most of the work
        self._room = asyncio.Semaphore(SLOTS_MAX)
        self._waiting_bytes = 0
        self.lease_id = 0  # of the slots; 0: none yet
        self._lease_seconds = 0.0
        self.renew_at = -math.inf
        self._renewing = asyncio.Lock()

    async def check(self, compares: Sequence[pb.Compare], *, deadline: float) -> TxnResult:
        """Check whether all compares hold, without writing anything.

        Raises:
            EtcdRefused: etcd did nothing.
            MetadataFailed: there was no answer in time.
        """
        # A transaction without operations would be answered by any member, out of its own state.
        read = pb.RequestOp(range=pb.RangeRequest(key=self._folder, count_only=True))
        request = pb.TxnRequest(compare=compares, success=[read], failure=[read])
        response = await self._endpoints.call(TXN, request, deadline=deadline)
        return TxnResult(response.succeeded, response.header.revision)

    async def write(
        self,
        compares: Sequence[pb.Compare],
        operations: Sequence[pb.RequestOp],
        *,
        lease_ids: Sequence[int],
        size_bytes: int,
        deadline: float,
    ) -> TxnResult:
        """Do all operations, or none.

        Raises:
            QueueFull: too many transactions wait already.
            LeaseLost: one of `lease_ids` has ended.
            EtcdRefused: etcd did nothing.
            MetadataFailed: the outcome is unknown.
        """
        async with self._slot(size_bytes, deadline) as slot:
            while True:
                try:
                    result = await self._try_once(slot, compares, operations, deadline)
                except EtcdRefused as refused:
                    if "lease not found" not in refused.details:
                        raise
                    await self._find_lost(lease_ids, deadline)
                    continue
                if result is not None:
                    return result

    async def close(self, *, deadline: float) -> None:
        """Delete the slots by ending their lease.

        Raises:
            EtcdRefused, MetadataFailed: the slots are deleted when their lease ends.
        """
        if self.lease_id:
            # The answer is not used, so it does not matter which store gives it.
            await etcd_lease.revoke(self._endpoints, self.lease_id, deadline=deadline, even_if_went_back=True)

    async def _try_once(
        self, slot: _Slot, compares: Sequence[pb.Compare], operations: Sequence[pb.RequestOp], deadline: float
    ) -> TxnResult | None:
        """Try the transaction once. None: it was not done, and never will be; try again."""
        if slot.revision == UNKNOWN:
            await self._prepare(slot, deadline)
        # Whatever happens now, even a cancellation: until the outcome is known, the slot must not be used.
        before, slot.revision = slot.revision, UNKNOWN
        token = self._token()
        request = self._request(slot, before, token, compares, operations)
        try:
            response = await self._endpoints.once(
                lambda endpoint, seconds: endpoint.call(TXN, request, seconds), deadline=deadline
            )
            await self._endpoints.believe(deadline=deadline)
        except Unanswered as failure:
            return await self._settle(slot, before, token, deadline, failure)
        except EtcdRefused:
            slot.revision = before
            raise
        if response.succeeded:
            slot.revision = response.header.revision
            return TxnResult(True, response.header.revision)
        found = _found(response)
        if found is None or (found.mod_revision != before and found.value != token):
            return None  # the slot was deleted with its lease
        slot.revision = found.mod_revision
        if found.value == token:  # the network has repeated the request
            return TxnResult(True, found.mod_revision)
        return TxnResult(False, response.header.revision)

    async def _settle(
        self, slot: _Slot, before: int, token: bytes, deadline: float, failure: Unanswered
    ) -> TxnResult | None:
        """Find out the outcome of a transaction that got no answer. None: it was not done, and never will be."""
        fence = self._token()
        response = await self._endpoints.call(TXN, self._request(slot, before, fence), deadline=deadline)
        if response.succeeded:
            slot.revision = response.header.revision
            return None
        found = _found(response)
        if found is None or found.value not in (token, fence):  # we were away for longer than the lease of the slots
            raise MetadataFailed(path=self._endpoints.path, cause=failure)
        slot.revision = found.mod_revision
        return TxnResult(True, found.mod_revision) if found.value == token else None

    async def _prepare(self, slot: _Slot, deadline: float) -> None:
        """Write a slot, so that its revision is known. This fences a change that may still be under way."""
        before = UNKNOWN
        if not slot.is_new:
            read = await self._endpoints.call(RANGE, pb.RangeRequest(key=slot.key), deadline=deadline)
            before = read.kvs[0].mod_revision if read.kvs else UNKNOWN
        slot.is_new = False
        token = self._token()
        while True:
            try:
                response = await self._endpoints.call(TXN, self._request(slot, before, token), deadline=deadline)
            except EtcdRefused as refused:
                if "lease not found" not in refused.details:
                    raise
                await self._find_lost((), deadline)
                continue
            found = _found(response)
            if response.succeeded:
                slot.revision = response.header.revision
            elif found is not None and found.value == token:
                slot.revision = found.mod_revision
            else:  # the change that was under way came first, and it was the last one
                before = found.mod_revision if found else UNKNOWN
                continue
            return

    def _request(
        self,
        slot: _Slot,
        before: int,
        token: bytes,
        compares: Sequence[pb.Compare] = (),
        operations: Sequence[pb.RequestOp] = (),
    ) -> pb.TxnRequest:
        put = pb.PutRequest(key=slot.key, value=token, lease=self.lease_id)
        return pb.TxnRequest(
            compare=[*compares, compare(slot.key, before)],
            success=[*operations, pb.RequestOp(put=put)],
            failure=[pb.RequestOp(range=pb.RangeRequest(key=slot.key))],
        )

    def _token(self) -> bytes:
        return b"%d" % next(self._tokens)

    @asynccontextmanager
    async def _slot(self, size_bytes: int, deadline: float) -> AsyncIterator[_Slot]:
        size_bytes += TXN_BYTES
        if self._waiting_bytes and self._waiting_bytes + size_bytes > WAITING_BYTES_MAX:
            raise QueueFull(waiting_bytes=self._waiting_bytes, limit_bytes=WAITING_BYTES_MAX)
        self._waiting_bytes += size_bytes
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.acquire()
            except TimeoutError:
                failure = TimeoutError(f"{SLOTS_MAX} transactions are under way")
                raise MetadataFailed(path=self._endpoints.path, cause=failure) from None
            try:
                await self._keep_lease(deadline)
                slot = self._free.pop() if self._free else _Slot(self._folder + b"%d" % next(self._names))
                try:
                    yield slot
                finally:
                    self._free.append(slot)
            finally:
                self._room.release()
        finally:
            self._waiting_bytes -= size_bytes

    async def _keep_lease(self, deadline: float) -> None:
        """Renew the lease of the slots when it is due, so that they outlive every call that uses them."""
        if asyncio.get_running_loop().time() < self.renew_at:
            return
        async with self._renewing:
            now = asyncio.get_running_loop().time()
            if now < self.renew_at:
                return
            if not (self.lease_id and await self._renew_lease(deadline)):
                self.lease_id, self._lease_seconds = await etcd_lease.grant(
                    self._endpoints, SLOT_LEASE_SECONDS, deadline=deadline
                )
            self.renew_at = now + self._lease_seconds / 3

    async def _renew_lease(self, deadline: float) -> bool:
        try:
            await etcd_lease.renew(self._endpoints, self.lease_id, self._lease_seconds, self._folder, deadline=deadline)
        except LeaseLost:
            return False
        return True

    async def _find_lost(self, lease_ids: Sequence[int], deadline: float) -> None:
        """Handle a transaction that was refused for a lease: raise LeaseLost if it is one of the caller's; if it is
        that of the slots, get another."""
        for lease_id in lease_ids:
            if await self._is_lost(lease_id, deadline):
                raise LeaseLost(lease_id=lease_id)
        if await self._is_lost(self.lease_id, deadline):
            self.renew_at = -math.inf
            await self._keep_lease(deadline)
        else:  # the members do not agree yet
            await asyncio.sleep(PAUSE_SECONDS_MIN)

    async def _is_lost(self, lease_id: int, deadline: float) -> bool:
        request = pb.LeaseTimeToLiveRequest(id=lease_id)
        try:
            return (await self._endpoints.call(LEASE_TIME_TO_LIVE, request, deadline=deadline)).ttl_seconds < 0
        except EtcdRefused as refused:
            if "lease not found" not in refused.details:
                raise
            return True


def compare(key: bytes, revision: int) -> pb.Compare:
    """Return the compare: the key was last changed by `revision`; 0: it does not exist."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)


def _found(response: pb.TxnResponse) -> pb.KeyValue | None:
    """Return the entry of the slot, from a transaction that was not done."""
    if response.succeeded:
        return None
    kvs = response.responses[0].range.kvs
    return kvs[0] if kvs else None
